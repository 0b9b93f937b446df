//! For clients that can't be proxied, or that tunnel: ask first, report after; and look up without asking.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use utoipa::ToSchema;

use super::extract::JsonBody;
use super::json::{Admitted, LookUp, LookedUp};
use super::problem::Problem;
use super::{Admin, permit};
use crate::clock::rfc3339_ceil;
use crate::core::breaker::Ticket;
use crate::core::key::{Authority, HostError};
use crate::core::outcome::{Failure, Outcome, parse_retry_after};
use crate::core::time::MAX_SPAN;
use crate::gate::{Gate, Site};
use crate::proxy::refuse::Answer;

/// The most URLs of one look-up.
const MOST_URLS: usize = 10_000;

/// The site of a whole URL.
fn site(gate: &Gate, url: &str) -> Result<Site, String> {
    let Some((scheme, rest)) = url.trim().split_once("://") else {
        return Err("this is no whole URL, such as https://host/path".to_owned());
    };
    let usual = match scheme.to_ascii_lowercase().as_str() {
        "http" | "ws" => 80,
        "https" | "wss" => 443,
        _ => return Err(HostError::Scheme.to_string()),
    };
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    // a password in a URL is for its host; nothing of it is kept
    let authority = authority.rsplit('@').next().unwrap_or_default();
    let Authority { host, port } = Authority::parse(authority).map_err(|error| error.to_string())?;
    Ok(gate.site(host, port.unwrap_or(usual)))
}

/// What is to be fetched.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Wish {
    /// A whole URL.
    #[schema(example = "https://medium.com/feed/tag/rust")]
    url: String,
}

/// May this be fetched now?
///
/// It spends a unit of the budget and may make the caller the probe of a half-open circuit; hand the
/// permit in with the result. It never waits and holds no place among `max_in_flight`. A permit lives for
/// `probe_timeout`.
#[utoipa::path(post, path = "/api/v1/admit", tag = "ask", request_body = Wish, responses(
    (status = 200, description = "Yes", body = Admitted),
    (status = 400, description = "The URL has no domain, or the body is not JSON", body = Problem),
    (status = 503, description = "No: what the proxy would answer, `Retry-After` included",
        content_type = "application/problem+json", body = serde_json::Value),
))]
pub(super) async fn admit(
    State(admin): State<Arc<Admin>>,
    JsonBody(wish): JsonBody<Wish>,
) -> Result<Response, Problem> {
    let site = Arc::new(site(&admin.gate, &wish.url).map_err(|error| Problem::bad(format!("url: {error}")))?);
    Ok(match admin.gate.admit_elsewhere(&site) {
        Ok(ticket) => {
            let permit = permit::write(&site.key.key, &ticket);
            Json(Admitted { admit: true, domain: site.key.key.to_string(), permit }).into_response()
        }
        Err(refused) => Answer::Refused(&refused).response(false).map(Body::from),
    })
}

/// What came of a fetch: a status or an error.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Report {
    /// The URL that was fetched.
    #[schema(example = "https://medium.com/feed/tag/rust")]
    url: String,
    /// The status of the answer, 100 to 999.
    #[schema(example = 429, minimum = 100, maximum = 999)]
    status: Option<u16>,
    /// Its `Retry-After`, as it came.
    #[schema(value_type = Option<String>, example = "120")]
    retry_after: Option<TextOrNumber>,
    /// In place of a status: `connect`, `timeout` or `tls`.
    #[schema(pattern = "^(connect|timeout|tls)$")]
    error: Option<String>,
    /// What `admit` gave. Without one the fetch counts as begun now, and never as the probe.
    permit: Option<String>,
}

/// A field's text; a number will do.
#[derive(Deserialize)]
#[serde(untagged)]
enum TextOrNumber {
    Text(String),
    Number(u64),
}

/// Report what came of a fetch.
#[utoipa::path(post, path = "/api/v1/record", tag = "ask", request_body = Report, responses(
    (status = 204, description = "It counts, as far as the policy counts it"),
    (status = 400, description = "The URL has no domain, or the body is not JSON", body = Problem),
    (status = 422, description = "The report says something wrong", body = Problem),
))]
pub(super) async fn record(
    State(admin): State<Arc<Admin>>,
    JsonBody(report): JsonBody<Report>,
) -> Result<StatusCode, Problem> {
    let gate = &admin.gate;
    let site = site(gate, &report.url).map_err(|error| Problem::bad(format!("url: {error}")))?;
    let outcome = outcome(gate, &report)?;
    let ticket = match &report.permit {
        None => Ticket::plain(gate.now()),
        Some(text) => ticket(gate, &site, text)?,
    };
    gate.record_ticket(&site, &ticket, outcome);
    Ok(StatusCode::NO_CONTENT)
}

fn ticket(gate: &Gate, site: &Site, text: &str) -> Result<Ticket, Problem> {
    let Some((domain, ticket)) = permit::read(text) else {
        return Err(Problem::with_key("permit", "this is no permit that `admit` gave"));
    };
    if domain != site.key.key.as_str() {
        return Err(Problem::with_key("permit", &format!("this is a permit of another domain, {domain}")));
    }
    let policies = gate.policies();
    let policy = policies.effective(&site.key.key, site.key.section.as_ref());
    Ok(permit::aged(ticket, gate.now(), policy.probe_timeout))
}

fn outcome(gate: &Gate, report: &Report) -> Result<Outcome, Problem> {
    match (report.status, report.error.as_deref()) {
        (Some(code @ 100..=999), None) => {
            let text = match &report.retry_after {
                None => None,
                Some(TextOrNumber::Text(text)) => Some(text.clone()),
                Some(TextOrNumber::Number(number)) => Some(number.to_string()),
            };
            let retry_after =
                text.and_then(|text| parse_retry_after(text.as_bytes(), None, gate.wall_now(), MAX_SPAN.micros()));
            Ok(Outcome::Status { code, retry_after })
        }
        (Some(_), None) => Err(Problem::with_key("status", "a status is a number from 100 to 999")),
        (None, Some(error)) => {
            let failure = Failure::ALL.into_iter().find(|failure| failure.name() == error);
            failure.map(Outcome::Failure).ok_or_else(|| Problem::with_key("error", "write connect, timeout or tls"))
        }
        (Some(_), Some(_)) => Err(Problem::with_key("error", "either a status or an error, not both")),
        (None, None) => Err(Problem::with_key("status", "a status, or an error in its place, is wanted")),
    }
}

/// What is asked about.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Question {
    /// Whole URLs, at most 10 000.
    #[schema(max_items = 10_000)]
    urls: Vec<String>,
}

/// What would be said to fetches of these URLs? Changes nothing.
#[utoipa::path(post, path = "/api/v1/lookup", tag = "ask", request_body = Question, responses(
    (status = 200, description = "What is known, in the order of the question", body = LookedUp),
    (status = 413, description = "More than 8 MiB", body = Problem),
    (status = 422, description = "More than 10 000 URLs", body = Problem),
))]
pub(super) async fn look_up(
    State(admin): State<Arc<Admin>>,
    JsonBody(question): JsonBody<Question>,
) -> Result<Json<LookedUp>, Problem> {
    if question.urls.len() > MOST_URLS {
        return Err(Problem::with_key("urls", &format!("at most {MOST_URLS} URLs a call")));
    }
    let results = question.urls.into_iter().map(|url| match site(&admin.gate, &url) {
        Ok(site) => {
            let (state, retry_at) = admin.gate.look_up(&site);
            LookUp::Known {
                url,
                domain: site.key.key.to_string(),
                state: state.into(),
                retry_at: retry_at.map(rfc3339_ceil),
            }
        }
        Err(error) => LookUp::Bad { url, error },
    });
    Ok(Json(LookedUp { results: results.collect() }))
}
