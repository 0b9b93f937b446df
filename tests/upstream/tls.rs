//! TLS against real servers with certificates of all kinds.

use std::io::Write;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use fusebox::core::key::Host;
use fusebox::core::outcome::{Failure, Outcome};
use fusebox::upstream::error::UpstreamError;
use fusebox::upstream::tls::{Alpn, UpstreamTls, negotiated_h2};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::server::{ServerConfig, WebPkiClientVerifier};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::client::TlsStream;

const LONG: Duration = Duration::from_secs(20);

/// A CA that the client under test trusts through `ca_file`.
struct Ca {
    issuer: Issuer<'static, KeyPair>,
    certificate: CertificateDer<'static>,
    client: UpstreamTls,
}

impl Ca {
    fn new() -> Ca {
        Ca::named("the CA of this test")
    }

    fn named(name: &str) -> Ca {
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.self_signed(&key).expect("a CA");
        let mut file = tempfile::NamedTempFile::new().expect("a file");
        file.write_all(certificate.pem().as_bytes()).expect("a PEM file");
        let client = UpstreamTls::new(Some(file.path())).expect("a client");
        Ca { issuer: Issuer::new(params, key), certificate: certificate.der().clone(), client }
    }

    fn sign(&self, params: &CertificateParams) -> Identity {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Identity { certificate: certificate.der().clone(), key }
    }
}

struct Identity {
    certificate: CertificateDer<'static>,
    key: KeyPair,
}

impl Identity {
    fn server(self) -> ServerConfig {
        let key = PrivatePkcs8KeyDer::from(self.key.serialize_der());
        builder().with_no_client_auth().with_single_cert(vec![self.certificate], key.into()).expect("a server")
    }
}

fn builder() -> rustls::ConfigBuilder<ServerConfig, rustls::WantsVerifier> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("versions")
}

fn params(name: &str) -> CertificateParams {
    CertificateParams::new(vec![name.to_owned()]).expect("a name")
}

/// Serves any number of connections; each says the SNI that it got. Ends with the runtime.
async fn serve(config: ServerConfig) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    tokio::spawn(async move {
        while let Ok((tcp, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let mut tls = acceptor.accept(tcp).await?;
                let sni = tls.get_ref().1.server_name().unwrap_or("none").to_owned();
                tls.write_all(sni.as_bytes()).await?;
                tls.shutdown().await
            });
        }
    });
    port
}

fn name(text: &str) -> Host {
    Host::Name(text.into())
}

async fn connect(ca: &Ca, port: u16, host: &Host, alpn: Alpn) -> Result<TlsStream<TcpStream>, UpstreamError> {
    let tcp = TcpStream::connect(("127.0.0.1", port)).await.expect("a connection");
    ca.client.connect(tcp, host, alpn, LONG).await
}

async fn said(mut stream: TlsStream<TcpStream>) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).await.expect("a clean end");
    text
}

#[tokio::test]
async fn a_good_certificate_is_accepted_and_sni_follows_the_host() {
    let ca = Ca::new();
    let port = serve(ca.sign(&params("good.test")).server()).await;
    for host in ["good.test", "good.test."] {
        let stream = connect(&ca, port, &name(host), Alpn::H1Only).await.unwrap_or_else(|e| panic!("{host}: {e}"));
        assert!(!negotiated_h2(&stream));
        assert_eq!(said(stream).await, "good.test");
    }
}

#[tokio::test]
async fn sessions_are_resumed() {
    let ca = Ca::new();
    let port = serve(ca.sign(&params("good.test")).server()).await;
    let first = connect(&ca, port, &name("good.test"), Alpn::H1Only).await.expect("a session");
    assert_eq!(first.get_ref().1.handshake_kind(), Some(rustls::HandshakeKind::Full));
    // the ticket comes with the first read
    said(first).await;
    let second = connect(&ca, port, &name("good.test"), Alpn::H1Only).await.expect("a session");
    assert_eq!(second.get_ref().1.handshake_kind(), Some(rustls::HandshakeKind::Resumed));
}

#[tokio::test]
async fn an_address_is_verified_as_one_and_sends_no_sni() {
    let ca = Ca::new();
    let host = Host::V4(Ipv4Addr::LOCALHOST);
    let port = serve(ca.sign(&params("127.0.0.1")).server()).await;
    assert_eq!(said(connect(&ca, port, &host, Alpn::H1Only).await.expect("an IP certificate")).await, "none");
    let port = serve(ca.sign(&params("good.test")).server()).await;
    let error = connect(&ca, port, &host, Alpn::H1Only).await.expect_err("a certificate for a name");
    assert!(matches!(error, UpstreamError::Certificate { .. }), "{error}");
}

#[tokio::test]
async fn http2_is_negotiated_only_when_it_is_offered() {
    let ca = Ca::new();
    let mut config = ca.sign(&params("h2.test")).server();
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    let port = serve(config).await;
    for (alpn, h2) in [(Alpn::H2OrH1, true), (Alpn::H1Only, false)] {
        let stream = connect(&ca, port, &name("h2.test"), alpn).await.expect("a session");
        assert_eq!(negotiated_h2(&stream), h2, "{alpn:?}");
    }
}

#[tokio::test]
async fn a_bad_certificate_is_named_by_its_fault() {
    let ca = Ca::new();
    let mut expired = params("bad.test");
    expired.not_after = date_time_ymd(2001, 1, 1);
    let mut future = params("bad.test");
    future.not_before = date_time_ymd(4000, 1, 1);
    let key = KeyPair::generate().expect("a key");
    let certificate = params("bad.test").self_signed(&key).expect("a certificate").der().clone();
    let mut own_ca = params("bad.test");
    own_ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let ca_key = KeyPair::generate().expect("a key");
    let ca_as_leaf = own_ca.self_signed(&ca_key).expect("a certificate").der().clone();
    for (identity, words) in [
        (ca.sign(&expired), "has expired"),
        (ca.sign(&future), "is not valid yet"),
        (ca.sign(&params("other.test")), "is for another name: other.test"),
        (Identity { certificate, key }, "self-signed"),
        (Identity { certificate: ca_as_leaf, key: ca_key }, "self-signed"),
        (Ca::named("a stranger").sign(&params("bad.test")), "unknown issuer"),
    ] {
        let port = serve(identity.server()).await;
        let error = connect(&ca, port, &name("bad.test"), Alpn::H2OrH1).await.expect_err(words);
        assert!(matches!(error, UpstreamError::Certificate { .. }), "{words}: {error:?}");
        assert!(error.detail(&"bad.test").contains(words), "{}", error.detail(&"bad.test"));
        assert_eq!((error.status().as_u16(), error.proxy_error()), (502, "tls_certificate_error"));
        assert_eq!(error.outcome(), Outcome::Failure(Failure::Tls));
        assert_eq!(error.kind(), "tls_certificate");
    }
}

/// What a server that wants a client certificate answers: in the handshake (1.2) or in the first read (1.3).
async fn without_client_certificate(version: &'static rustls::SupportedProtocolVersion) -> UpstreamError {
    let ca = Ca::new();
    let mut roots = RootCertStore::empty();
    roots.add(ca.certificate.clone()).expect("a root");
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone()).build();
    let identity = ca.sign(&params("picky.test"));
    let config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[version])
        .expect("a version")
        .with_client_cert_verifier(verifier.expect("a verifier"))
        .with_single_cert(vec![identity.certificate], PrivatePkcs8KeyDer::from(identity.key.serialize_der()).into())
        .expect("a server");
    let port = serve(config).await;
    match connect(&ca, port, &name("picky.test"), Alpn::H1Only).await {
        Err(error) => error,
        Ok(mut stream) => {
            let error = stream.read(&mut [0]).await.expect_err("an alert");
            UpstreamError::of_tls_within(&error).expect("a TLS error in it")
        }
    }
}

#[tokio::test]
async fn a_wanted_client_certificate_is_an_alert() {
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let error = without_client_certificate(version).await;
        assert!(matches!(error, UpstreamError::TlsAlert { .. }), "{version:?}: {error:?}");
        assert_eq!((error.status().as_u16(), error.proxy_error()), (502, "tls_alert_received"));
        assert_eq!(error.outcome(), Outcome::Failure(Failure::Tls));
    }
    let error = without_client_certificate(&rustls::version::TLS13).await;
    assert!(error.detail(&"picky.test").contains("client certificate"), "{}", error.detail(&"picky.test"));
}

#[test]
fn an_alert_is_found_where_only_its_text_is_left() {
    let lost = std::io::Error::other("received fatal alert: CertificateRequired");
    let error = UpstreamError::of_tls_within(&lost).expect("an alert");
    assert!(matches!(error, UpstreamError::TlsAlert { alert } if alert == "CertificateRequired"));
    assert!(UpstreamError::of_tls_within(&std::io::Error::other("broken pipe")).is_none());
}

/// A server that is none: it writes `bytes` after the first read, then closes or stays silent.
async fn impostor(bytes: &'static [u8], stays: bool) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let port = listener.local_addr().expect("an address").port();
    tokio::spawn(async move {
        let (mut tcp, _) = listener.accept().await?;
        let _ = tcp.read(&mut [0; 4_096]).await?;
        tcp.write_all(bytes).await?;
        if stays {
            std::future::pending::<()>().await;
        }
        std::io::Result::Ok(())
    });
    port
}

#[tokio::test]
async fn what_is_no_tls_is_a_protocol_error() {
    let ca = Ca::new();
    let port = impostor(b"HTTP/1.1 400 Bad Request\r\n\r\n", true).await;
    let error = connect(&ca, port, &name("plain.test"), Alpn::H2OrH1).await.expect_err("plain text");
    assert!(matches!(error, UpstreamError::TlsProtocol { .. }), "{error:?}");
    assert_eq!((error.status().as_u16(), error.proxy_error()), (502, "tls_protocol_error"));
    assert_eq!(error.outcome(), Outcome::Failure(Failure::Tls));
}

#[tokio::test]
async fn silence_is_a_timeout_and_a_close_is_a_reset() {
    let ca = Ca::new();
    let tcp = TcpStream::connect(("127.0.0.1", impostor(b"", true).await)).await.expect("a connection");
    let short = Duration::from_millis(100);
    let error = ca.client.connect(tcp, &name("slow.test"), Alpn::H2OrH1, short).await.expect_err("silence");
    assert!(matches!(error, UpstreamError::TlsTimeout), "{error:?}");
    assert_eq!((error.status().as_u16(), error.proxy_error()), (504, "connection_timeout"));

    let port = impostor(b"", false).await;
    let error = connect(&ca, port, &name("gone.test"), Alpn::H2OrH1).await.expect_err("a close");
    assert!(matches!(error, UpstreamError::Reset), "{error:?}");
    assert_eq!(error.outcome(), Outcome::Failure(Failure::Connect));
}

#[test]
fn an_unusable_ca_file_is_an_error_that_names_it() {
    let empty = tempfile::NamedTempFile::new().expect("a file");
    let mut broken = tempfile::NamedTempFile::new().expect("a file");
    broken.write_all(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n").expect("a PEM file");
    let missing = std::path::Path::new("/nonexistent/roots.pem");
    for path in [empty.path(), broken.path(), missing] {
        let Err(error) = UpstreamTls::new(Some(path)) else { panic!("{} was taken", path.display()) };
        let text = error.to_string();
        assert!(text.contains("egress.ca_file") && text.contains(&path.display().to_string()), "{text}");
    }
    assert!(UpstreamTls::new(None).is_ok());
}
