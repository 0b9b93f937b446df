//! The description of the API, made from the handlers themselves.

use std::sync::Arc;

use axum::Extension;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use utoipa::openapi::security::{ApiKey, ApiKeyValue, HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::openapi::{Content, OpenApi, Ref, ResponseBuilder};
use utoipa::{Modify, OpenApi as _};

use super::problem::Problem;

#[derive(utoipa::OpenApi)]
#[openapi(
    info(
        title = "Fusebox admin port",
        description = "One circuit breaker and one request budget per domain: what they are, and what can be done to them. \
                       Times are RFC 3339 in UTC, lengths of time are written \"500ms\", \"60s\" or \"1h30m\".",
    ),
    components(schemas(Problem)),
    modifiers(&Schemes),
    security(("bearer" = []), ("cookie" = [])),
    tags(
        (name = "breakers", description = "Domains: state, policy, and what people do to them"),
        (name = "events", description = "The audit trail"),
        (name = "ask", description = "For clients that can't be proxied"),
        (name = "status", description = "Metrics and health"),
        (name = "page", description = "For people"),
    ),
)]
struct Frame;

/// The ways to show the token.
struct Schemes;

impl Modify for Schemes {
    fn modify(&self, openapi: &mut OpenApi) {
        let components = openapi.components.get_or_insert_default();
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("What admin.token holds"));
        components.add_security_scheme("bearer", SecurityScheme::Http(bearer.build()));
        let cookie = ApiKeyValue::with_description(
            "fusebox_3129",
            "Set by /login, named after the port; a write then needs an Origin that is ours",
        );
        components.add_security_scheme("cookie", SecurityScheme::ApiKey(ApiKey::Cookie(cookie)));
    }
}

/// What holds for every call.
pub(super) fn frame() -> OpenApi {
    Frame::openapi()
}

/// The description as text.
#[derive(Clone)]
pub(super) struct Description(Bytes);

impl Description {
    /// Writes the description, with the problem document that any call may answer.
    pub(super) fn new(mut openapi: OpenApi) -> Arc<Description> {
        for item in openapi.paths.paths.values_mut() {
            let operations = [&mut item.get, &mut item.post, &mut item.patch, &mut item.delete];
            for operation in operations.into_iter().flatten() {
                let content = Content::new(Some(Ref::from_schema_name("Problem")));
                let problem =
                    ResponseBuilder::new().description("It was not done").content("application/problem+json", content);
                operation.responses.responses.insert("default".to_owned(), problem.build().into());
            }
        }
        Arc::new(Description(openapi.to_json().unwrap_or_default().into()))
    }
}

/// This description.
#[utoipa::path(get, path = "/openapi.json", tag = "page", responses(
    (status = 200, description = "OpenAPI 3.1", body = serde_json::Value),
))]
pub(super) async fn describe(Extension(description): Extension<Arc<Description>>) -> Response {
    ([(header::CONTENT_TYPE, "application/json")], description.0.clone()).into_response()
}
