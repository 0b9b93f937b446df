//! What the HTTP library's errors mean.

use std::error::Error;

use super::UpstreamError;

/// What a failure of hyper's means.
pub fn classify(error: &hyper::Error) -> UpstreamError {
    if error.is_parse_too_large() {
        return UpstreamError::HeaderTooLarge;
    }
    if let Some(tls) = UpstreamError::of_tls_within(error) {
        return tls;
    }
    if let Some(h2) = error.source().and_then(|cause| cause.downcast_ref::<h2::Error>()) {
        return classify_h2(h2);
    }
    if error.is_parse() {
        return UpstreamError::BadResponse { cause: error.to_string() };
    }
    if error.is_user() || error.is_body_write_aborted() {
        return UpstreamError::RequestBroken;
    }
    UpstreamError::ConnectionClosed
}

/// What a failure of HTTP/2 means: of one stream, or of the connection.
fn classify_h2(error: &h2::Error) -> UpstreamError {
    let Some(reason) = error.reason() else { return UpstreamError::ConnectionClosed };
    match reason {
        h2::Reason::REFUSED_STREAM if error.is_reset() && error.is_remote() => UpstreamError::StreamRefused,
        // an orderly end; what the connection had begun may go down with it, so this is no refusal
        h2::Reason::NO_ERROR if error.is_go_away() => UpstreamError::ConnectionClosed,
        _ if error.is_remote() => UpstreamError::StreamReset { reason: reason.description().to_owned() },
        // what h2 itself says of a head that is over the limit
        h2::Reason::PROTOCOL_ERROR if error.is_reset() && error.is_library() => UpstreamError::HeaderTooLarge,
        // ... and of one that is over it many times
        h2::Reason::ENHANCE_YOUR_CALM | h2::Reason::COMPRESSION_ERROR if error.is_library() => {
            UpstreamError::HeaderTooLarge
        }
        _ if error.is_library() => UpstreamError::BadResponse { cause: error.to_string() },
        _ => UpstreamError::ConnectionClosed,
    }
}
