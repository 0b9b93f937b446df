//! The permit that `admit` hands out: a ticket and its domain, as one opaque text.
//!
//! It needs no signature: whoever can hand it in has the token, and may open and close what they like.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

use crate::core::breaker::Ticket;
use crate::core::key::DomainKey;
use crate::core::time::{Micros, Span};

/// Written first, so that a later shape is told from this one.
const VERSION: u8 = 1;

/// The permit's text for a ticket of this domain.
pub(super) fn write(domain: &DomainKey, ticket: &Ticket) -> String {
    let mut octets = vec![VERSION];
    octets.extend(ticket.admitted_at.to_be_bytes());
    // a token is a time, and never 0
    octets.extend(ticket.token.unwrap_or(0).to_be_bytes());
    octets.extend(domain.as_str().as_bytes());
    URL_SAFE_NO_PAD.encode(octets)
}

/// The domain and the ticket of a permit, if it is one.
pub(super) fn read(text: &str) -> Option<(String, Ticket)> {
    let octets = URL_SAFE_NO_PAD.decode(text).ok()?;
    let (&VERSION, rest) = octets.split_first()? else { return None };
    let (admitted_at, rest) = rest.split_first_chunk()?;
    let (token, domain) = rest.split_first_chunk()?;
    let token = Some(u64::from_be_bytes(*token)).filter(|token| *token != 0);
    let ticket = Ticket { token, ..Ticket::plain(u64::from_be_bytes(*admitted_at)) };
    Some((std::str::from_utf8(domain).ok()?.to_owned(), ticket))
}

/// What a ticket is still worth: a claim to be the probe ends with `probe_timeout`, the time of admission
/// stays, for it tells a late result from a new one. Nobody was admitted later than now.
pub(super) fn aged(ticket: Ticket, now: Micros, probe_timeout: Span) -> Ticket {
    let is_over = now > ticket.admitted_at.saturating_add(probe_timeout.micros());
    Ticket { admitted_at: ticket.admitted_at.min(now), token: ticket.token.filter(|_| !is_over), ..ticket }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_permit_reads_back() {
        let domain = DomainKey::from_stored("medium.com");
        for token in [None, Some(7)] {
            let ticket = Ticket { token, ..Ticket::plain(5) };
            assert_eq!(read(&write(&domain, &ticket)), Some(("medium.com".to_owned(), ticket)));
        }
        for text in ["", "x", "AQ", "!!", &URL_SAFE_NO_PAD.encode([2; 30])] {
            assert_eq!(read(text), None, "{text}");
        }
    }

    #[test]
    fn a_claim_ends_and_nobody_comes_from_the_future() {
        let ticket = Ticket { token: Some(130), ..Ticket::plain(100) };
        assert_eq!(aged(ticket, 130, Span(30)), ticket);
        assert_eq!(aged(ticket, 131, Span(30)), Ticket::plain(100));
        assert_eq!(aged(Ticket::plain(9), 5, Span(30)), Ticket::plain(5));
    }
}
