//! The audit trail, as pages and live.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Json;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper::body::Frame;
use serde::Deserialize;
use tokio::sync::broadcast::{self, error::RecvError};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use utoipa::IntoParams;

use super::Admin;
use super::breakers::limit;
use super::extract::{Params, domain, unless_blank};
use super::json::{EventJson, Events};
use super::problem::Problem;
use crate::core::row::Event;
use crate::store::EventQuery;

/// Events of a page, unless said otherwise.
const PAGE: usize = 100;
/// The most events of a page.
const MOST_EVENTS: usize = 1_000;

/// How often a stream says that it is still there. Well below what proxies in between allow.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Events that wait in one stream for a slow reader, besides those that all streams share.
const WAITING: usize = 16;

/// Which events are wanted.
#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(super) struct Wanted {
    /// Those of this domain only; a host below it will do.
    #[serde(default, deserialize_with = "unless_blank")]
    domain: Option<String>,
    /// Those with a smaller id only: `next` of the page before.
    #[serde(default, deserialize_with = "unless_blank")]
    before: Option<u64>,
    /// At most this many, 1 to 1000; 100 if left out.
    #[serde(default, deserialize_with = "unless_blank")]
    #[param(minimum = 1, maximum = 1000)]
    limit: Option<usize>,
}

/// The audit trail, newest first. It outlives restarts.
#[utoipa::path(get, path = "/api/v1/events", params(Wanted), tag = "events", responses(
    (status = 200, description = "The events", body = Events),
    (status = 422, description = "A parameter is wrong", body = Problem),
))]
pub(super) async fn list(
    State(admin): State<Arc<Admin>>,
    Params(wanted): Params<Wanted>,
) -> Result<Json<Events>, Problem> {
    let limit = limit(wanted.limit, PAGE, MOST_EVENTS)?;
    let domain = wanted.domain.map(|text| domain(&admin.gate, &text)).transpose()?.map(|resolved| resolved.key);
    // one more than asked for tells whether there is a next page
    let query = EventQuery { domain, before: wanted.before, limit: limit + 1 };
    let mut events = admin
        .store
        .events(query)
        .await
        .map_err(|error| Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()))?;
    let more = events.len() > limit;
    events.truncate(limit);
    let next = events.last().filter(|_| more).map(|event| event.id);
    Ok(Json(Events { events: events.into_iter().map(EventJson::from).collect(), next }))
}

/// Events as they happen (server-sent events).
///
/// Each has the event's id as `id`, its kind as `event` and itself as JSON in `data`. A reader that is too
/// slow misses some and gets `event: lagged` with `{"missed":N}`; the audit trail has them.
#[utoipa::path(get, path = "/api/v1/stream", tag = "events", responses(
    (status = 200, description = "The stream", content_type = "text/event-stream", body = String),
))]
pub(super) async fn stream(State(admin): State<Arc<Admin>>) -> Response {
    let (lines, waiting) = mpsc::channel(WAITING);
    tokio::spawn(pump(admin.gate.subscribe(), lines, admin.closing.clone()));
    // proxies of the nginx kind hold back what they may buffer
    let fields =
        [(header::CONTENT_TYPE, "text/event-stream"), (header::HeaderName::from_static("x-accel-buffering"), "no")];
    (fields, Body::new(Live(waiting))).into_response()
}

/// The body of a stream: what the pump sends.
struct Live(mpsc::Receiver<Bytes>);

impl hyper::body::Body for Live {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(cx).map(|bytes| bytes.map(|bytes| Ok(Frame::data(bytes))))
    }
}

/// Carries events to one reader until it leaves or the port closes. While the reader is slow the pump stands
/// still; what the shared queue then drops is told as `lagged`.
async fn pump(mut events: broadcast::Receiver<Event>, lines: mpsc::Sender<Bytes>, closing: CancellationToken) {
    // the first tick is at once: the reader learns that it is connected
    let mut quiet = tokio::time::interval(KEEP_ALIVE);
    loop {
        let line = tokio::select! {
            () = closing.cancelled() => return,
            () = lines.closed() => return,
            received = events.recv() => match received {
                Ok(event) => of_event(event),
                Err(RecvError::Lagged(missed)) => format!("event: lagged\ndata: {{\"missed\":{missed}}}\n\n"),
                Err(RecvError::Closed) => return,
            },
            _ = quiet.tick() => ": live\n\n".to_owned(),
        };
        tokio::select! {
            () = closing.cancelled() => return,
            sent = lines.send(Bytes::from(line)) => if sent.is_err() { return },
        }
    }
}

fn of_event(event: Event) -> String {
    let (id, kind) = (event.id, event.kind.name());
    // JSON has no line ends outside of its strings, and escapes them within
    let data = serde_json::to_string(&EventJson::from(event)).unwrap_or_default();
    format!("id: {id}\nevent: {kind}\ndata: {data}\n\n")
}
