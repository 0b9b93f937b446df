//! What the admin port answers when it does not do what it was asked: a problem document (RFC 9457).

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use utoipa::ToSchema;

/// Why a call was not done. Nothing was changed.
#[derive(Debug, Serialize, ToSchema)]
pub struct Problem {
    /// `about:blank`: the status says it all.
    #[schema(example = "about:blank")]
    r#type: &'static str,
    /// The name of the status.
    #[schema(example = "Unprocessable Entity")]
    title: &'static str,
    /// The status.
    #[schema(value_type = u16, example = 422)]
    #[serde(serialize_with = "number")]
    status: StatusCode,
    /// What is wrong and what to do.
    detail: String,
    /// The key of the body that is wrong, where it is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    key: Option<String>,
}

fn number<S: serde::Serializer>(status: &StatusCode, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_u16(status.as_u16())
}

impl Problem {
    pub(super) fn new(status: StatusCode, detail: impl Into<String>) -> Problem {
        let title = status.canonical_reason().unwrap_or("Error");
        Problem { r#type: "about:blank", title, status, detail: detail.into(), key: None }
    }

    pub(super) fn bad(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::BAD_REQUEST, detail)
    }

    pub(super) fn unprocessable(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, detail)
    }

    /// `key` of the body is wrong; the detail names it too.
    pub(super) fn with_key(key: &str, message: &str) -> Problem {
        Problem { key: Some(key.to_owned()), ..Problem::unprocessable(format!("{key}: {message}")) }
    }

    pub(super) fn unauthorized() -> Problem {
        let detail = "the admin token is missing or wrong: send `Authorization: Bearer …` with what admin.token in the data \
                      directory holds, or open the link that `fusebox page` prints";
        Problem::new(StatusCode::UNAUTHORIZED, detail)
    }

    pub(super) fn forbidden(detail: impl Into<String>) -> Problem {
        Problem::new(StatusCode::FORBIDDEN, detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let status = self.status;
        let mut response = (status, Json(self)).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        if status == StatusCode::UNAUTHORIZED {
            // RFC 9110 section 15.5.2
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"fusebox\""));
        }
        response
    }
}
