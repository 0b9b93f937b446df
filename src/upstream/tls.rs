//! TLS to the origin, always verified.
//!
//! Trusted are the system's roots and those of `[egress] ca_file`. A machine that has no roots at all, as
//! most minimal containers, gets Mozilla's, which are compiled in. There is no way to turn verification
//! off, and no second try with less of it.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustls::client::Resumption;
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::error::UpstreamError;
use crate::core::key::Host;

/// Hosts whose sessions are kept for resumption.
const SESSIONS: usize = 1_024;

/// Why upstream TLS can't be set up.
#[derive(Debug, thiserror::Error)]
pub enum TlsSetupError {
    /// `[egress] ca_file` can't be used.
    #[error("egress.ca_file: {path}: {problem}")]
    CaFile {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// The TLS library refused its own defaults.
    #[error("TLS: {0}")]
    Library(#[from] rustls::Error),
}

/// What the client offers in ALPN (RFC 7301).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Alpn {
    /// HTTP/1.1 alone: upgrades and WebSocket need it.
    H1Only,
    /// HTTP/2 where the origin has it, else HTTP/1.1.
    H2OrH1,
}

/// Makes TLS sessions. Cheap to clone; clones share the resumption cache.
#[derive(Clone)]
pub struct UpstreamTls {
    h1_only: TlsConnector,
    h2_or_h1: TlsConnector,
}

impl UpstreamTls {
    /// Reads the system's roots and `ca_file` (PEM), which are trusted besides.
    ///
    /// # Errors
    ///
    /// A `ca_file` that can't be read, holds no certificate or holds one that is no root.
    pub fn new(ca_file: Option<&Path>) -> Result<UpstreamTls, TlsSetupError> {
        let mut roots = system_roots();
        if let Some(path) = ca_file {
            add_ca_file(&mut roots, path)?;
        }
        let roots = Arc::new(roots);
        Ok(UpstreamTls {
            h1_only: connector(roots.clone(), &[b"http/1.1"])?,
            h2_or_h1: connector(roots, &[b"h2", b"http/1.1"])?,
        })
    }

    /// A TLS session with `host` over `tcp`, within `timeout`.
    ///
    /// Name and verification follow `host`, the authority that was dialled. An IP address is verified
    /// against the certificate's iPAddress names and sends no SNI (RFC 6066 section 3).
    ///
    /// # Errors
    ///
    /// The TLS variants of [`UpstreamError`], and [`UpstreamError::Reset`].
    pub async fn connect(
        &self,
        tcp: TcpStream,
        host: &Host,
        alpn: Alpn,
        timeout: Duration,
    ) -> Result<TlsStream<TcpStream>, UpstreamError> {
        let connector = match alpn {
            Alpn::H1Only => &self.h1_only,
            Alpn::H2OrH1 => &self.h2_or_h1,
        };
        let name = server_name(host)?;
        match tokio::time::timeout(timeout, connector.connect(name, tcp)).await {
            Ok(session) => session.map_err(handshake_failure),
            Err(_) => Err(UpstreamError::TlsTimeout),
        }
    }
}

/// True if the origin chose HTTP/2.
pub fn negotiated_h2(stream: &TlsStream<TcpStream>) -> bool {
    stream.get_ref().1.alpn_protocol() == Some(b"h2")
}

fn server_name(host: &Host) -> Result<ServerName<'static>, UpstreamError> {
    match host {
        Host::V4(v4) => Ok(ServerName::IpAddress(IpAddr::V4(*v4).into())),
        Host::V6(v6) => Ok(ServerName::IpAddress(IpAddr::V6(*v6).into())),
        Host::Name(name) => {
            let bare = name.strip_suffix('.').unwrap_or(name).to_owned();
            // no certificate can be for such a name, which is the request's fault and not the origin's
            ServerName::try_from(bare)
                .map_err(|error| UpstreamError::Local(io::Error::new(io::ErrorKind::InvalidInput, error)))
        }
    }
}

/// What ended a handshake: rustls says it inside an I/O error.
fn handshake_failure(error: io::Error) -> UpstreamError {
    if let Some(tls) = UpstreamError::of_tls_within(&error) {
        return tls;
    }
    match error.kind() {
        io::ErrorKind::UnexpectedEof
        | io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::NotConnected => UpstreamError::Reset,
        _ => UpstreamError::of_connect(error),
    }
}

fn connector(roots: Arc<RootCertStore>, alpn: &[&[u8]]) -> Result<TlsConnector, rustls::Error> {
    // named, not the process-wide default: another crate could have installed a different one
    let provider = Arc::new(aws_lc_rs::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = alpn.iter().map(|protocol| protocol.to_vec()).collect();
    config.resumption = Resumption::in_memory_sessions(SESSIONS);
    Ok(TlsConnector::from(Arc::new(config)))
}

fn system_roots() -> RootCertStore {
    let mut roots = RootCertStore::empty();
    let found = rustls_native_certs::load_native_certs();
    let (usable, _) = roots.add_parsable_certificates(found.certs);
    if usable > 0 {
        return roots;
    }
    let errors: Vec<_> = found.errors.iter().map(ToString::to_string).collect();
    tracing::warn!(?errors, "this system has no trusted roots: Mozilla's, which are built in, are used");
    roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned());
    roots
}

fn add_ca_file(roots: &mut RootCertStore, path: &Path) -> Result<(), TlsSetupError> {
    let unusable = |problem| TlsSetupError::CaFile { path: path.to_owned(), problem };
    let unreadable = |error| match error {
        pem::Error::Io(error) => unusable(format!("can't be read: {error}")),
        other => unusable(format!("is not PEM: {other}")),
    };
    let mut count = 0;
    for certificate in CertificateDer::pem_file_iter(path).map_err(unreadable)? {
        roots
            .add(certificate.map_err(unreadable)?)
            .map_err(|error| unusable(format!("a certificate in it can't be a root: {error}")))?;
        count += 1;
    }
    if count == 0 {
        return Err(unusable("holds no certificate".to_owned()));
    }
    Ok(())
}
