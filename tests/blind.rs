//! TLS through a tunnel that nobody looks into: the client talks to the origin, and that is all there is to see.

mod support;

use std::io::{self, Write};
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::pki_types::PrivatePkcs8KeyDer;
use rustls::{ServerConfig, ServerConnection, Stream};
use support::message::Reader;
use support::upstream::Conn;
use support::{Fusebox, Upstream, answer, loopback, until};

/// An origin with a certificate for `u.test`.
struct Secure {
    upstream: Upstream,
    /// What signs its certificate, in a file.
    ca: PathBuf,
    _dir: tempfile::TempDir,
}

impl Secure {
    fn new() -> Secure {
        let ca_key = KeyPair::generate().expect("a key");
        let mut ca = CertificateParams::default();
        ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        ca.distinguished_name.push(DnType::CommonName, "the CA of these tests");
        let ca_certificate = ca.self_signed(&ca_key).expect("a CA");
        let key = KeyPair::generate().expect("a key");
        let leaf = CertificateParams::new(vec!["u.test".to_owned()]).expect("a name");
        let leaf = leaf.signed_by(&key, &Issuer::new(ca, ca_key)).expect("a certificate");
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().expect("TLS");
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let config = config.with_no_client_auth().with_single_cert(vec![leaf.der().clone()], key.into());
        let config = Arc::new(config.expect("a server"));
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("ca.pem");
        std::fs::write(&file, ca_certificate.pem()).expect("a file");
        let upstream = Upstream::raw(move |conn| serve(conn, &config));
        Secure { upstream, ca: file, _dir: dir }
    }

    fn url(&self, host: &str) -> String {
        format!("https://{host}:{}/path?q=1", self.upstream.port())
    }
}

/// Answers 503 to everything.
fn serve(conn: &mut Conn, config: &Arc<ServerConfig>) -> io::Result<()> {
    let mut tls = ServerConnection::new(config.clone()).map_err(io::Error::other)?;
    let mut reader = Reader::new(Stream::new(&mut tls, &mut conn.reader.stream));
    while reader.request_head()?.is_some() {
        reader.stream.write_all(&answer("503 Down", &[], "down"))?;
        reader.stream.flush()?;
    }
    Ok(())
}

#[test]
fn t6_a_blind_tunnel_is_between_client_and_origin() {
    let origin = Secure::new();
    let fusebox = Fusebox::start(&loopback("[defaults]\nmax_errors = 1"));
    for _ in 0..4 {
        let mut command = Command::new("curl");
        command.args(["-sS", "--noproxy", "", "-x", &format!("http://{}", fusebox.proxy()), "--cacert"]);
        command.arg(&origin.ca).arg(origin.url("u.test"));
        let ran = support::fusebox::run(command, "");
        assert_eq!((ran.code, ran.out.as_str()), (Some(0), "down"), "{ran:?}");
    }
    // nothing inside can be seen, and that is said: in a metric each time, in the log once
    assert_eq!(fusebox.state("u.test"), "closed");
    assert_eq!(fusebox.metric("fusebox_blind_tunnels_total"), 4.0);
    assert_eq!(fusebox.metric("fusebox_requests_total{way=\"connect\",outcome=\"forwarded\"}"), 4.0);
    until("the log says it", || fusebox.log().events("blind_tunnel").len() == 1);
    assert!(!fusebox.log().text().contains("path?q"));
}
