//! `amqps://`, to a TLS end of our own before the broker.

use std::sync::Arc;

use lapin::uri::{AMQPScheme, AMQPUri};
use outbox_amqp::{AmqpConfig, AmqpPublisher};
use outbox_core::PublishErrorKind::Unavailable;
use outbox_core::Publisher;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::RootCertStore;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::PrivateKeyDer;
use tokio_rustls::rustls::server::WebPkiClientVerifier;

use crate::lab::{Lab, expect_error, message, uri};

/// A certificate authority and what it has signed.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Self(CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap())
    }

    fn sign(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let certificate =
            CertificateParams::new(vec![name.into()]).unwrap().signed_by(&key, &self.0).unwrap();
        (certificate, key)
    }

    /// Decrypts for the broker, and lets only clients in that show a certificate of ours; its port.
    async fn serve(&self) -> u16 {
        let (certificate, key) = self.sign("localhost");
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let clients =
            WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone()).build().unwrap();
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(clients)
            .with_single_cert(
                vec![certificate.der().clone()],
                PrivateKeyDer::try_from(key.serialize_der()).unwrap(),
            )
            .unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(accept(listener, TlsAcceptor::from(Arc::new(config))));
        port
    }
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor) {
    let broker: AMQPUri = uri().parse().unwrap();
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let (acceptor, host, port) = (acceptor.clone(), broker.authority.host.clone(), broker.authority.port);
        tokio::spawn(async move {
            let Ok(mut client) = acceptor.accept(client).await else { return };
            let mut broker = TcpStream::connect((host, port)).await.unwrap();
            let _ = copy_bidirectional(&mut client, &mut broker).await;
        });
    }
}

fn config(lab: &Lab, port: u16) -> AmqpConfig {
    let mut uri: AMQPUri = uri().parse().unwrap();
    uri.scheme = AMQPScheme::AMQPS;
    uri.authority.host = "localhost".into();
    uri.authority.port = port;
    AmqpConfig::new(uri.to_string()).unwrap().with_exchange(&lab.exchange)
}

#[tokio::test]
#[ignore = "needs RabbitMQ: run scripts/test.sh"]
async fn rabbitmq_over_tls_with_a_private_authority_and_a_client_certificate() {
    let mut lab = Lab::new("tls").await;
    let queue = lab.queue("#").await;
    let authority = Authority::new();
    let port = authority.serve().await;
    let (certificate, key) = authority.sign("client");
    let trusting = config(&lab, port).with_root_certificates(authority.0.pem());
    let known = trusting.clone().with_client_certificate(certificate.pem(), key.serialize_pem());
    assert!(!format!("{known:?}").contains("PRIVATE KEY"));
    AmqpPublisher::new(known).publish(&message("a", "0")).await.unwrap();
    assert_eq!(lab.drain(&queue, 1).await, ["0"]);

    let distrusting = AmqpPublisher::new(config(&lab, port));
    expect_error(&distrusting.ready().await, Unavailable, "UnknownIssuer");
    let anonymous = AmqpPublisher::new(trusting);
    expect_error(&anonymous.ready().await, Unavailable, "cannot connect to amqps://");
    lab.end().await;
}
