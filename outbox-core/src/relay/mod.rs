//! x
/// x
pub struct Relay;
/// x
pub struct RelayConfig;
/// x
pub struct RelayHandle;
