//! The admin port, seen from the command line.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use bytes::Bytes;
use http::{Method, Request, StatusCode, header};
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpStream;

use crate::admin::token::Token;
use crate::admin::{login_link, reachable};
use crate::config::{Config, Inputs, data_dir};

/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest answer that is read: a page of rows has some two megabytes.
const MOST: usize = 64 * 1024 * 1024;

/// Nobody listens where the configuration says.
#[derive(Debug, thiserror::Error)]
#[error(
    "no Fusebox is running at {address} ({source}): start it, or say where its admin port is with --config or --admin-listen"
)]
pub(super) struct NotRunning {
    address: SocketAddr,
    source: io::Error,
}

/// A way to the Fusebox that runs with this configuration.
pub(super) struct Client {
    address: SocketAddr,
    token: Token,
    runtime: tokio::runtime::Runtime,
}

impl Client {
    /// Reads the token; connects at each call.
    pub(super) fn new(inputs: &Inputs, config: &Config) -> anyhow::Result<Client> {
        let dir = data_dir(inputs).context("the data directory is not known: say --data-dir, or set HOME")?;
        let token = Token::load(&dir).context(
            "the admin token can't be read: start Fusebox first, and call this as the same user with the same data directory",
        )?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        Ok(Client { address: reachable(config.admin.listen), token, runtime })
    }

    /// The link that opens the page.
    pub(super) fn login_link(&self) -> String {
        login_link(self.address, &self.token)
    }

    /// Calls, and gives back what came, whatever the status.
    pub(super) fn call(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<(StatusCode, Value)> {
        let call = async { tokio::time::timeout(PATIENCE, self.exchange(method, path, body)).await };
        match self.runtime.block_on(call) {
            Ok(result) => result,
            Err(_) => bail!("{} did not answer in {} seconds", self.address, PATIENCE.as_secs()),
        }
    }

    /// Calls, and gives back what came if it was done.
    pub(super) fn done(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<Value> {
        let (status, value) = self.call(method, path, body)?;
        if status.is_success() { Ok(value) } else { Err(problem(status, &value)) }
    }

    async fn exchange(&self, method: Method, path: &str, body: Option<&Value>) -> anyhow::Result<(StatusCode, Value)> {
        let address = self.address;
        let stream = TcpStream::connect(address).await.map_err(|source| NotRunning { address, source })?;
        let foreign = || format!("what listens at {address} does not answer as Fusebox does");
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.with_context(foreign)?;
        tokio::spawn(connection);
        let body = body.map_or_else(Bytes::new, |body| body.to_string().into());
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, address.to_string())
            .header(header::AUTHORIZATION, format!("Bearer {}", self.token.expose()))
            .header(header::CONTENT_TYPE, "application/json")
            .body(Full::new(body))?;
        let response = sender.send_request(request).await.with_context(foreign)?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MOST)
            .collect()
            .await
            .map_err(|error| anyhow!(error))
            .with_context(foreign)?;
        let body = body.to_bytes();
        let value = if body.is_empty() { Value::Null } else { serde_json::from_slice(&body).with_context(foreign)? };
        Ok((status, value))
    }
}

/// Why a call was not done, in the server's words.
fn problem(status: StatusCode, value: &Value) -> anyhow::Error {
    match (status, value["detail"].as_str()) {
        (StatusCode::UNAUTHORIZED, _) => {
            anyhow!("the running Fusebox has another token: give the --data-dir that it was started with")
        }
        (_, Some(detail)) => anyhow!("{detail}"),
        (status, None) => anyhow!("the admin port answered {status}"),
    }
}

/// The path of a breaker. A key may have brackets and colons.
pub(super) fn breaker_path(domain: &str) -> String {
    let mut path = "/api/v1/breakers/".to_owned();
    for octet in domain.bytes() {
        match octet {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => path.push(octet.into()),
            other => path.push_str(&format!("%{other:02X}")),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_fits_into_a_path() {
        assert_eq!(breaker_path("[::1]:81"), "/api/v1/breakers/%5B%3A%3A1%5D%3A81");
        assert_eq!(breaker_path("b\u{fc}.x/y"), "/api/v1/breakers/b%C3%BC.x%2Fy");
    }
}
