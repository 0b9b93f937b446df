//! How the process is: metrics, liveness, readiness; and the first thing that a browser sees.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{Html, IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

use super::Admin;
use crate::health::Phase;
use crate::store::StoreState;

/// What Prometheus reads. Needs no token.
#[utoipa::path(get, path = "/metrics", tag = "status", security(()), responses(
    (status = 200, description = "The metrics", content_type = "text/plain; version=0.0.4", body = String),
))]
pub(super) async fn metrics(State(admin): State<Arc<Admin>>) -> Response {
    let text = admin.metrics.render(&admin.gate.scrape());
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4")], text).into_response()
}

/// A process that answers.
#[derive(Serialize, ToSchema)]
pub(super) struct Alive {
    /// `ok`
    #[schema(example = "ok")]
    status: &'static str,
}

/// Is the process alive? Needs no token.
#[utoipa::path(get, path = "/healthz", tag = "status", security(()), responses(
    (status = 200, description = "Yes", body = Alive),
))]
pub(super) async fn healthz() -> Json<Alive> {
    Json(Alive { status: "ok" })
}

/// How ready the process is, and what is out of order without stopping it.
#[derive(Serialize, ToSchema)]
pub(super) struct Ready {
    /// `starting`, `ready` or `draining`.
    #[schema(example = "ready")]
    status: &'static str,
    /// `ok`; `memory`: nothing outlives the process; `degraded`: the last write failed and is tried again.
    #[schema(example = "ok")]
    store: &'static str,
    /// Why the store is not `ok`.
    #[serde(skip_serializing_if = "Option::is_none")]
    store_reason: Option<String>,
    /// `off`: nothing is shared.
    #[schema(example = "off")]
    redis: &'static str,
    /// Why the last reload changed nothing, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    reload_error: Option<String>,
}

/// Does the process take requests? Needs no token.
#[utoipa::path(get, path = "/readyz", tag = "status", security(()), responses(
    (status = 200, description = "Yes", body = Ready),
    (status = 503, description = "Not yet, or no longer", body = Ready),
))]
pub(super) async fn readyz(State(admin): State<Arc<Admin>>) -> (StatusCode, Json<Ready>) {
    let phase = admin.health.phase();
    let (store, store_reason) = match admin.store.state() {
        StoreState::Ok => ("ok", None),
        StoreState::Memory => ("memory", admin.health.no_persistence()),
        StoreState::Degraded(reason) => ("degraded", Some(reason)),
    };
    let reload_error = admin.health.reload_error();
    let status = if phase == Phase::Ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Json(Ready { status: phase.name(), store, store_reason, redis: "off", reload_error }))
}

const INDEX: &str = r#"<!doctype html>
<html lang="en">
<head><meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Fusebox</title></head>
<body>
<h1>Fusebox</h1>
<ul>
<li><a href="/api/v1/breakers">Breakers</a></li>
<li><a href="/api/v1/events">Events</a></li>
<li><a href="/metrics">Metrics</a></li>
<li><a href="/openapi.json">Description of the API</a></li>
</ul>
</body>
</html>
"#;

/// The page.
#[utoipa::path(get, path = "/", tag = "page", responses(
    (status = 200, description = "The page", content_type = "text/html", body = String),
))]
pub(super) async fn index() -> Html<&'static str> {
    Html(INDEX)
}
