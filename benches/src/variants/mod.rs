pub(crate) mod article;
pub(crate) mod claim_settle;
pub(crate) mod hand_written;
pub(crate) mod insert;
pub(crate) mod leases;
pub(crate) mod publish;
pub(crate) mod wire;
