//! What handlers take: a domain from the path, a query, a JSON body. What can't be read is a problem
//! document, never a bare line of text.

use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Path, Query, Request};
use axum::http::request::Parts;
use serde::de::{DeserializeOwned, Error as _, IgnoredAny};
use serde::{Deserialize, Deserializer};
use serde_json::error::Category;

use super::Admin;
use super::problem::Problem;
use crate::core::key::{DomainKey, Resolved, Rule};
use crate::gate::Gate;

/// The domain that `{domain}` of the path names: a key, or any host, port or URL below it.
pub(super) struct Domain(pub Resolved);

impl FromRequestParts<Arc<Admin>> for Domain {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, admin: &Arc<Admin>) -> Result<Domain, Problem> {
        let path = Path::<String>::from_request_parts(parts, admin).await;
        let Path(text) = path.map_err(|rejection| Problem::bad(format!("the domain: {}", rejection.body_text())))?;
        domain(&admin.gate, &text).map(Domain)
    }
}

/// The domain that people mean by `text`.
pub(super) fn domain(gate: &Gate, text: &str) -> Result<Resolved, Problem> {
    let resolved = gate.policies().keys.resolve_text(text);
    match resolved {
        Ok(resolved) if resolved.key.as_str() == text => Ok(resolved),
        resolved => {
            // a row from before the keys were configured anew is still called by its name
            let old = Resolved { key: DomainKey::from_stored(text), section: None, rule: Rule::HostSection };
            if gate.row_of(&old).is_some() {
                return Ok(old);
            }
            resolved.map_err(|error| Problem::bad(format!("the domain: {error}")))
        }
    }
}

/// The query, read strictly: a parameter that is misspelt is not ignored.
pub(super) struct Params<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Params<T>, Problem> {
        let query = Query::<T>::from_request_parts(parts, state).await;
        let Query(params) = query.map_err(|rejection| Problem::unprocessable(rejection.body_text()))?;
        Ok(Params(params))
    }
}

/// Reads a parameter that is as good as left out when it is blank (`?domain=&before=`).
pub(super) fn unless_blank<'de, T, D>(deserializer: D) -> Result<Option<T>, D::Error>
where
    T: FromStr<Err: Display>,
    D: Deserializer<'de>,
{
    let text = String::deserialize(deserializer)?;
    if text.is_empty() { Ok(None) } else { text.parse().map(Some).map_err(D::Error::custom) }
}

/// A JSON body, whatever its `Content-Type` says: `curl -d` calls it a form, and no page of another origin can
/// send one either way. The empty body is read as `{}`, so that a call whose keys are all optional needs none.
pub(super) struct JsonBody<T>(pub T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for JsonBody<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<JsonBody<T>, Problem> {
        let body = Bytes::from_request(request, state).await;
        let body = body.map_err(|rejection| Problem::new(rejection.status(), rejection.body_text()))?;
        if body.is_empty() {
            return parse(b"{}");
        }
        parse(&body)
    }
}

fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<JsonBody<T>, Problem> {
    // serde would take a list of the values as well, which nobody means
    if body.trim_ascii_start().first() != Some(&b'{') {
        let is_json = serde_json::from_slice::<IgnoredAny>(body);
        return Err(
            is_json.map_or_else(|error| not_json(&error), |_| Problem::unprocessable("the body must be a JSON object"))
        );
    }
    serde_json::from_slice(body).map(JsonBody).map_err(|error| match error.classify() {
        Category::Data => Problem::unprocessable(error.to_string()),
        _ => not_json(&error),
    })
}

fn not_json(error: &serde_json::Error) -> Problem {
    Problem::bad(format!("the body is not JSON: {error}"))
}
