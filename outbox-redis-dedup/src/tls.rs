use rustls::crypto::{CryptoProvider, ring};

/// The client asks rustls for the program's cryptography, and panics where crate features leave two to choose
/// from. So, before the first `rediss://`, ring is chosen if the program has not chosen.
pub(crate) fn provide(url: &str) {
    if url.starts_with("rediss:") && CryptoProvider::get_default().is_none() {
        // Failing means that somebody else chose at the same moment.
        let _ = ring::default_provider().install_default();
    }
}
