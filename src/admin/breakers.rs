//! The calls about breakers: list, one, open, close, set, remove.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use serde::Deserialize;
use serde_json::{Map, Value};
use utoipa::{IntoParams, ToSchema};

use super::extract::{Domain, JsonBody, Params, unless_blank};
use super::json::{Breaker, Breakers, StateName};
use super::problem::Problem;
use super::{Admin, BY};
use crate::core::policy::PolicyPatch;
use crate::core::time::Span;
use crate::gate::ActError;

/// The most rows of one page.
const MOST_ROWS: usize = 1_000;
/// How long an act waits for the disk.
const KEPT_WITHIN: Duration = Duration::from_millis(250);

/// Which rows are wanted.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Wanted {
    /// Those in this state only.
    #[serde(default, deserialize_with = "unless_blank")]
    #[param(inline)]
    state: Option<StateName>,
    /// At most this many, 1 to 1000 (the default).
    #[serde(default, deserialize_with = "unless_blank")]
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
    /// Those behind this domain only: `next` of the page before.
    #[serde(default, deserialize_with = "unless_blank")]
    after: Option<String>,
}

/// Every row.
///
/// A domain has one while it has errors in its window or an override, and for 30 days after its circuit
/// was last opened. Rows are sorted by domain.
#[utoipa::path(get, path = "/api/v1/breakers", params(Wanted), tag = "breakers", responses(
    (status = 200, description = "The rows", body = Breakers),
    (status = 422, description = "A parameter is wrong", body = Problem),
))]
pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    Params(wanted): Params<Wanted>,
) -> Result<Json<Breakers>, Problem> {
    let limit = limit(wanted.limit, MOST_ROWS, MOST_ROWS)?;
    let mut rows = admin.gate.rows();
    if let Some(after) = &wanted.after {
        rows.retain(|row| row.domain.as_str() > after.as_str());
    }
    if let Some(state) = wanted.state {
        rows.retain(|row| StateName::from(row.state) == state);
    }
    let more = rows.len() > limit;
    rows.truncate(limit);
    let next = rows.last().filter(|_| more).map(|row| row.domain.to_string());
    Ok(Json(Breakers { breakers: rows.into_iter().map(Breaker::from).collect(), next }))
}

/// A page's length: from 1 to `most`.
pub(super) fn limit(given: Option<usize>, default: usize, most: usize) -> Result<usize, Problem> {
    let limit = given.unwrap_or(default);
    if (1..=most).contains(&limit) {
        Ok(limit)
    } else {
        Err(Problem::unprocessable(format!("limit: write a number from 1 to {most}")))
    }
}

/// One row.
///
/// `domain` may be any host below the domain too, percent-encoded where it has to be.
#[utoipa::path(get, path = "/api/v1/breakers/{domain}", tag = "breakers",
    params(("domain" = String, Path, description = "A domain, or a host below it")),
    responses(
        (status = 200, description = "The row", body = Breaker),
        (status = 400, description = "This is no domain", body = Problem),
        (status = 404, description = "The domain has no row", body = Problem),
    ))]
pub(super) async fn one(State(admin): State<Arc<Admin>>, Domain(key): Domain) -> Result<Json<Breaker>, Problem> {
    let row = admin.gate.row_of(&key).ok_or_else(|| no_row(key.key.as_str()))?;
    Ok(Json(row.into()))
}

fn no_row(domain: &str) -> Problem {
    let detail =
        format!("{domain} has no row: no errors in its window, no override, and not opened in the last 30 days");
    Problem::new(StatusCode::NOT_FOUND, detail)
}

/// How to open.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct OpenFor {
    /// For how long; left out, the policy's `open_for`.
    #[serde(rename = "for")]
    #[schema(value_type = Option<String>, example = "30m")]
    length: Option<Span>,
}

/// Open a circuit, or restart its clock.
#[utoipa::path(post, path = "/api/v1/breakers/{domain}/open", tag = "breakers", request_body(content = Option<OpenFor>),
    params(("domain" = String, Path, description = "A domain, or a host below it")),
    responses(
        (status = 200, description = "The row", body = Breaker),
        (status = 400, description = "This is no domain, or the body is not JSON", body = Problem),
        (status = 422, description = "The body says something wrong", body = Problem),
    ))]
pub(super) async fn open(
    State(admin): State<Arc<Admin>>,
    Domain(key): Domain,
    JsonBody(how): JsonBody<OpenFor>,
) -> Result<Json<Breaker>, Problem> {
    if how.length.is_some_and(Span::is_zero) {
        return Err(Problem::with_key("for", "must be longer than zero"));
    }
    let row = admin.gate.open(&key, how.length, BY).map_err(refused)?;
    kept(&admin).await;
    Ok(Json(row.into()))
}

/// Nothing to say.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Nothing {}

/// Close a circuit, and forget errors and spent budget.
#[utoipa::path(post, path = "/api/v1/breakers/{domain}/close", tag = "breakers", request_body(content = Option<Nothing>),
    params(("domain" = String, Path, description = "A domain, or a host below it")),
    responses(
        (status = 200, description = "The row", body = Breaker),
        (status = 400, description = "This is no domain", body = Problem),
    ))]
pub(super) async fn close(
    State(admin): State<Arc<Admin>>,
    Domain(key): Domain,
    JsonBody(Nothing {}): JsonBody<Nothing>,
) -> Result<Json<Breaker>, Problem> {
    let row = admin.gate.close(&key, BY).map_err(refused)?;
    kept(&admin).await;
    Ok(Json(row.into()))
}

/// Set overrides, or clear them with null. All that is named changes, or nothing does.
#[utoipa::path(patch, path = "/api/v1/breakers/{domain}", tag = "breakers",
    params(("domain" = String, Path, description = "A domain, or a host below it")),
    request_body(content = std::collections::BTreeMap<String, serde_json::Value>,
        description = "Keys of the policy with values as in the configuration, or null",
        example = json!({"max_errors": 5, "requests_per_10s": null})),
    responses(
        (status = 200, description = "The row", body = Breaker),
        (status = 400, description = "This is no domain, or the body is not JSON", body = Problem),
        (status = 422, description = "A key or a value is wrong; `key` names it", body = Problem),
    ))]
pub(super) async fn set(
    State(admin): State<Arc<Admin>>,
    Domain(key): Domain,
    JsonBody(changes): JsonBody<Map<String, Value>>,
) -> Result<Json<Breaker>, Problem> {
    for (name, value) in &changes {
        check(name, value)?;
    }
    if changes.is_empty() {
        return Err(Problem::unprocessable("name at least one key of the policy, with its value, or null to clear it"));
    }
    let mut failed = None;
    let edit = |patch: &mut PolicyPatch| match merged(patch, &changes) {
        Ok(new) => *patch = new,
        Err(error) => failed = Some(error),
    };
    let row = admin.gate.set_override(&key, edit, BY);
    if let Some(error) = failed {
        return Err(Problem::unprocessable(error.to_string()));
    }
    let row = row.map_err(refused)?;
    kept(&admin).await;
    Ok(Json(row.into()))
}

/// One key of an override by itself, so that what is wrong can be named.
fn check(name: &str, value: &Value) -> Result<(), Problem> {
    if !PolicyPatch::KEYS.contains(&name) {
        let near = PolicyPatch::KEYS.iter().map(|known| (strsim::damerau_levenshtein(known, name), known)).min();
        let hint = near
            .filter(|(distance, _)| *distance <= 3)
            .map_or(String::new(), |(_, known)| format!(": did you mean {known}?"));
        return Err(Problem::with_key(name, &format!("this is no key of a policy{hint}")));
    }
    if name == "key" {
        return Err(Problem::with_key(name, &ActError::KeyIsFixed.to_string()));
    }
    let alone = Map::from_iter([(name.to_owned(), value.clone())]);
    serde_json::from_value::<PolicyPatch>(Value::Object(alone))
        .map_err(|error| Problem::with_key(name, &error.to_string()))?;
    Ok(())
}

/// The overrides with the changes made; null takes a key away.
fn merged(patch: &PolicyPatch, changes: &Map<String, Value>) -> serde_json::Result<PolicyPatch> {
    let Value::Object(mut keys) = serde_json::to_value(patch)? else { return Ok(patch.clone()) };
    for (name, value) in changes {
        match value {
            Value::Null => keys.remove(name),
            value => keys.insert(name.clone(), value.clone()),
        };
    }
    serde_json::from_value(Value::Object(keys))
}

/// What a person did is on disk before he is told that it is done. A disk in trouble is not waited for.
async fn kept(admin: &Admin) {
    let _ = admin.store.flush(KEPT_WITHIN).await;
}

fn refused(error: ActError) -> Problem {
    match error {
        ActError::TableFull => Problem::new(StatusCode::INSUFFICIENT_STORAGE, error.to_string()),
        ActError::KeyIsFixed => Problem::with_key("key", &error.to_string()),
    }
}

/// Back to the configured policy: closed, without overrides, the row gone.
#[utoipa::path(delete, path = "/api/v1/breakers/{domain}", tag = "breakers",
    params(("domain" = String, Path, description = "A domain, or a host below it")),
    responses(
        (status = 204, description = "There is no row, any more or at all"),
        (status = 400, description = "This is no domain", body = Problem),
    ))]
pub(super) async fn remove(State(admin): State<Arc<Admin>>, Domain(key): Domain) -> Result<StatusCode, Problem> {
    admin.gate.delete(&key, BY);
    kept(&admin).await;
    Ok(StatusCode::NO_CONTENT)
}
