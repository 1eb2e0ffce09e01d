//! TLS with a certificate of our own.
use outbox_core::DedupStore;
use outbox_redis_dedup::redis::{Client, TlsCertificates};
use outbox_redis_dedup::{RedisDedup, RedisDedupConfig};

use crate::fixture::{LONG, acquire, key};
use crate::private_server::{PrivateServer, free_port, new_folder};

#[tokio::test]
#[ignore = "needs Redis: run scripts/test.sh"]
async fn private_redis_over_tls_is_used_only_with_a_certificate_that_is_trusted() {
    let own = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
    let folder = new_folder();
    let (cert, secret) = (folder.join("cert.pem"), folder.join("key.pem"));
    std::fs::write(&cert, own.cert.pem()).unwrap();
    std::fs::write(&secret, own.signing_key.serialize_pem()).unwrap();
    let (port, cert, secret) = (free_port().to_string(), cert.to_str().unwrap(), secret.to_str().unwrap());
    let files = ["--tls-cert-file", cert, "--tls-key-file", secret, "--tls-ca-cert-file", cert];
    let options = [&["--tls-port", &port, "--tls-auth-clients", "no"], files.as_slice()].concat();
    let _server = PrivateServer::start(&options);

    let url = format!("rediss://localhost:{port}");
    let strangers = RedisDedup::new(&url, RedisDedupConfig::default()).unwrap();
    let error = strangers.begin(&key("g"), LONG).await.unwrap_err();
    assert!(error.to_string().contains("certificate"), "{error}");

    let trust = TlsCertificates { client_tls: None, root_cert: Some(own.cert.pem().into_bytes()) };
    let client = Client::build_with_tls(url, trust).unwrap();
    let dedup = RedisDedup::from_client(client, RedisDedupConfig::default());
    let key = key("g");
    let token = acquire(&dedup, &key, LONG).await;
    assert!(dedup.finish(&key, token).await.unwrap());
    std::fs::remove_dir_all(folder).unwrap();
}
