//! An origin that loses its patience, to see Fusebox at work without bothering anybody.
//!
//! It serves a small feed under any host name, so hundreds of subdomains of one domain lead to it, and it
//! limits the way a publisher does: when one registrable domain has had more than `--limit` requests within
//! `--window` seconds it answers 429 with a `Retry-After`, whatever the subdomain.
//!
//! ```text
//! cargo run --example flaky_origin -- [--port 8099] [--limit 20] [--window 10] [--retry-after 30]
//! ```
//!
//! Beside it, Fusebox with
//!
//! ```toml
//! [egress]
//! allow = ["127.0.0.0/8"]
//! [egress.resolve]
//! "*.feeds.test" = "127.0.0.1"
//! ```
//!
//! and then `curl -x http://127.0.0.1:3128 http://alice.feeds.test:8099/feed`, again and again.
//! `curl http://127.0.0.1:8099/__storm` makes it answer 503 to everything (`/__storm?429` for 429),
//! `/__calm` makes it answer 200, `/__auto` lets it count again.

use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode, body::Incoming, header};
use hyper_util::rt::TokioIo;
use tokio::time::Instant;

/// What the command line says.
struct Options {
    port: u16,
    limit: usize,
    window: Duration,
    retry_after: u64,
}

#[derive(Default)]
struct Origin {
    /// When the requests of each domain came, oldest first.
    recent: HashMap<String, VecDeque<Instant>>,
    /// What every request is answered with, if that was asked for.
    forced: Option<StatusCode>,
    seen: u64,
}

impl Origin {
    /// The status for one more request to a domain.
    fn judge(&mut self, domain: &str, options: &Options, now: Instant) -> StatusCode {
        let recent = self.recent.entry(domain.to_owned()).or_default();
        while recent.front().is_some_and(|at| now.duration_since(*at) >= options.window) {
            recent.pop_front();
        }
        recent.push_back(now);
        // what is turned away counts too: who keeps knocking is not let in again
        if recent.len() > options.limit.saturating_add(1) {
            recent.pop_front();
        }
        let auto = if recent.len() > options.limit { StatusCode::TOO_MANY_REQUESTS } else { StatusCode::OK };
        self.forced.unwrap_or(auto)
    }
}

const USAGE: &str = "flaky_origin [--port 8099] [--limit 20] [--window SECONDS] [--retry-after SECONDS]";

fn options() -> Result<Options, &'static str> {
    let mut options = Options { port: 8099, limit: 20, window: Duration::from_secs(10), retry_after: 30 };
    let mut args = std::env::args().skip(1);
    while let Some(name) = args.next() {
        let value = args.next().and_then(|value| value.parse::<u64>().ok()).ok_or(USAGE)?;
        match name.as_str() {
            "--port" => options.port = u16::try_from(value).map_err(|_| USAGE)?,
            "--limit" => options.limit = usize::try_from(value).unwrap_or(usize::MAX),
            "--window" => options.window = Duration::from_secs(value),
            "--retry-after" => options.retry_after = value,
            _ => return Err(USAGE),
        }
    }
    Ok(options)
}

/// The last two labels of a host: all there is to a registrable domain where no public suffix is longer.
fn domain(host: &str) -> String {
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host).trim_end_matches('.').to_ascii_lowercase();
    let start = host.rmatch_indices('.').nth(1).map_or(0, |(dot, _)| dot + 1);
    host[start..].to_owned()
}

fn feed(host: &str, seen: u64) -> String {
    format!(
        "<?xml version=\"1.0\"?>\n<rss version=\"2.0\"><channel><title>{host}</title><link>http://{host}/</link>\
         <description>A small feed</description><item><title>Post {seen}</title></item></channel></rss>\n"
    )
}

fn respond(request: &Request<Incoming>, options: &Options, origin: &Mutex<Origin>) -> Response<Full<Bytes>> {
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("nobody");
    let host: String = host.chars().filter(|c| c.is_ascii_alphanumeric() || ".-:[]".contains(*c)).collect();
    let mut origin = origin.lock().unwrap_or_else(PoisonError::into_inner);
    let forced = match (request.uri().path(), request.uri().query()) {
        ("/__storm", Some("429")) => Some(Some(StatusCode::TOO_MANY_REQUESTS)),
        ("/__storm", _) => Some(Some(StatusCode::SERVICE_UNAVAILABLE)),
        ("/__calm", _) => Some(Some(StatusCode::OK)),
        ("/__auto", _) => Some(None),
        _ => None,
    };
    if let Some(forced) = forced {
        (origin.forced, origin.recent) = (forced, HashMap::new());
        let says = forced.map_or("counting again".to_owned(), |status| format!("everything gets {status}"));
        println!("-- {says}");
        return Response::new(Full::from(format!("{says}\n")));
    }
    origin.seen += 1;
    let status = origin.judge(&domain(&host), options, Instant::now());
    println!("{:>6}  {}  {host}", origin.seen, status.as_u16());
    let mut response = Response::new(Full::from(feed(&host, origin.seen)));
    *response.status_mut() = status;
    let kind = header::HeaderValue::from_static("application/rss+xml");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    if status != StatusCode::OK {
        *response.body_mut() = Full::from("too many requests from you\n");
        response.headers_mut().insert(header::CONTENT_TYPE, header::HeaderValue::from_static("text/plain"));
        response.headers_mut().insert(header::RETRY_AFTER, options.retry_after.into());
    }
    response
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Arc::new(options()?);
    let origin = Arc::new(Mutex::new(Origin::default()));
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", options.port)).await?;
    let (limit, window) = (options.limit, options.window.as_secs());
    println!("{}: more than {limit} requests for one domain in {window} s get 429", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        let (options, origin) = (options.clone(), origin.clone());
        tokio::spawn(async move {
            let service = service_fn(move |request| {
                let response = respond(&request, &options, &origin);
                async move { Ok::<_, Infallible>(response) }
            });
            // a client that goes away in the middle is none of our business
            let _ = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service).await;
        });
    }
}
