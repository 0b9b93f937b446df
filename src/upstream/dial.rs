//! A TCP connection to a host: look up, judge, then try the addresses in a staggered race.
//!
//! The race is Happy Eyeballs (RFC 8305): the families alternate, IPv6 first, and the next address is
//! tried 250 ms after the last one or as soon as one fails. A broken family then costs a quarter of a
//! second, not a timeout.
//!
//! When all fail, one error has to speak for all, and the breaker acts on it. It is the one that says most
//! about the origin: a refusal beats a timeout, a timeout beats "unreachable", and all of them beat trouble
//! of our own, so that a missing IPv6 route never hides what the origin did over IPv4.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpStream;
use tokio::task::JoinSet;

use super::error::UpstreamError;
use super::guard::{Guard, OwnListeners};
use super::resolve::Resolver;
use crate::core::key::Host;

/// The stagger between two attempts (RFC 8305 section 8, Connection Attempt Delay).
const ATTEMPT_DELAY: Duration = Duration::from_millis(250);

/// Addresses that are tried, at most: an answer with hundreds must not become hundreds of sockets.
const MAX_ATTEMPTS: usize = 16;

/// Makes connections. Cheap to clone.
#[derive(Clone)]
pub struct Dialer {
    /// Names to addresses.
    pub resolver: Arc<Resolver>,
    /// Which addresses may be dialled.
    pub guard: Arc<Guard>,
    /// Addresses that are never dialled, whatever the guard allows.
    pub own: Arc<OwnListeners>,
    /// `[timeouts] connect`: for lookup and connection together.
    pub connect_timeout: Duration,
}

impl Dialer {
    /// Connects to `host`, within `connect_timeout`.
    ///
    /// # Errors
    ///
    /// Those of the resolver; [`UpstreamError::Denied`] or [`UpstreamError::OwnListener`] when no address
    /// may be dialled; else what the attempts came to.
    pub async fn connect(&self, host: &Host, port: u16) -> Result<TcpStream, UpstreamError> {
        let time_is_up = tokio::time::sleep(self.connect_timeout);
        tokio::pin!(time_is_up);
        let addresses = match host {
            Host::Name(name) => self.resolver.resolve(name, self.connect_timeout).await?,
            Host::V4(v4) => vec![IpAddr::V4(*v4)],
            Host::V6(v6) => vec![IpAddr::V6(*v6)],
        };
        let targets = self.permitted(addresses, port)?;
        let mut failure = None;
        tokio::select! {
            stream = race(targets, &mut failure) => stream,
            () = &mut time_is_up => Err(more_telling(failure, UpstreamError::ConnectTimeout)),
        }
    }

    /// The targets that may be dialled, in the order of attempts.
    fn permitted(&self, addresses: Vec<IpAddr>, port: u16) -> Result<Vec<SocketAddr>, UpstreamError> {
        let (mut targets, mut first_refusal) = (Vec::new(), None);
        for address in addresses {
            let target = SocketAddr::new(address, port);
            let verdict = match self.own.contains(target) {
                true => Err(UpstreamError::OwnListener { address }),
                false => self.guard.judge(address).map_err(|why| UpstreamError::Denied { address, why }),
            };
            match verdict {
                Ok(()) if targets.contains(&target) => {}
                Ok(()) => targets.push(target),
                Err(refusal) => first_refusal = first_refusal.or(Some(refusal)),
            }
        }
        match first_refusal {
            Some(refusal) if targets.is_empty() => Err(refusal),
            None if targets.is_empty() => Err(UpstreamError::NoSuchName),
            _ => Ok(interleaved(targets)),
        }
    }
}

/// IPv6 and IPv4 in turns, IPv6 first, each in the resolver's order (RFC 8305 section 4).
fn interleaved(targets: Vec<SocketAddr>) -> Vec<SocketAddr> {
    let total = targets.len();
    let (v6, v4): (Vec<_>, Vec<_>) = targets.into_iter().partition(SocketAddr::is_ipv6);
    let (mut v6, mut v4) = (v6.into_iter(), v4.into_iter());
    let mut ordered = Vec::with_capacity(total);
    while ordered.len() < total {
        ordered.extend(v6.next());
        ordered.extend(v4.next());
    }
    ordered.truncate(MAX_ATTEMPTS);
    ordered
}

/// The first connection that is made; the other attempts are dropped. `failure` keeps the most telling
/// failure so far, also when the race itself is dropped.
async fn race(targets: Vec<SocketAddr>, failure: &mut Option<UpstreamError>) -> Result<TcpStream, UpstreamError> {
    let mut waiting = targets.into_iter();
    let mut attempts = JoinSet::new();
    loop {
        if let Some(target) = waiting.next() {
            attempts.spawn(attempt(target));
        }
        let finished = if waiting.len() > 0 {
            match tokio::time::timeout(ATTEMPT_DELAY, attempts.join_next()).await {
                Ok(finished) => finished,
                Err(_) => continue,
            }
        } else {
            attempts.join_next().await
        };
        match finished {
            Some(Ok(Ok(stream))) => return Ok(stream),
            Some(Ok(Err(error))) => *failure = Some(more_telling(failure.take(), error)),
            Some(Err(lost)) => {
                *failure = Some(more_telling(failure.take(), UpstreamError::Local(io::Error::other(lost))));
            }
            None => return Err(failure.take().unwrap_or(UpstreamError::NoRoute)),
        }
    }
}

async fn attempt(target: SocketAddr) -> Result<TcpStream, UpstreamError> {
    let stream = TcpStream::connect(target).await.map_err(UpstreamError::of_connect)?;
    // a proxy passes on what it has: waiting for more only adds latency
    stream.set_nodelay(true).map_err(UpstreamError::of_connect)?;
    Ok(stream)
}

/// Of two failures the one that says more about the origin; the earlier one of two equals.
fn more_telling(earlier: Option<UpstreamError>, later: UpstreamError) -> UpstreamError {
    match earlier {
        Some(earlier) if weight(&earlier) >= weight(&later) => earlier,
        _ => later,
    }
}

fn weight(error: &UpstreamError) -> u8 {
    match error {
        UpstreamError::Refused => 5,
        UpstreamError::Reset => 4,
        UpstreamError::ConnectTimeout => 3,
        UpstreamError::Unreachable => 2,
        UpstreamError::Local(_) => 1,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str) -> SocketAddr {
        text.parse().expect("a socket address")
    }

    #[test]
    fn families_alternate_with_ipv6_first() {
        let targets = ["1.1.1.1:1", "1.1.1.2:1", "1.1.1.3:1", "[2::1]:1"].map(target).to_vec();
        let ordered = ["[2::1]:1", "1.1.1.1:1", "1.1.1.2:1", "1.1.1.3:1"].map(target);
        assert_eq!(interleaved(targets), ordered);
        let many = (0..100).map(|port| SocketAddr::new([1, 1, 1, 1].into(), port)).collect();
        assert_eq!(interleaved(many).len(), MAX_ATTEMPTS);
    }

    #[test]
    fn our_own_trouble_never_hides_what_the_origin_did() {
        let local = || UpstreamError::Local(io::Error::other("no file descriptors"));
        for (first, second, kind) in [
            (UpstreamError::NoRoute, UpstreamError::Refused, "refused"),
            (UpstreamError::Refused, UpstreamError::NoRoute, "refused"),
            (UpstreamError::NoRoute, UpstreamError::Unreachable, "unreachable"),
            (UpstreamError::ConnectTimeout, UpstreamError::Refused, "refused"),
            (UpstreamError::Refused, UpstreamError::ConnectTimeout, "refused"),
            (UpstreamError::Unreachable, UpstreamError::ConnectTimeout, "connect_timeout"),
            (local(), UpstreamError::ConnectTimeout, "connect_timeout"),
            (UpstreamError::NoRoute, local(), "local"),
        ] {
            assert_eq!(more_telling(Some(first), second).kind(), kind);
        }
    }

    #[test]
    fn what_connect_says_is_sorted_by_whose_fault_it_is() {
        for (errno, kind) in [
            (rustix::io::Errno::CONNREFUSED, "refused"),
            (rustix::io::Errno::CONNRESET, "reset"),
            (rustix::io::Errno::HOSTUNREACH, "unreachable"),
            (rustix::io::Errno::NETUNREACH, "no_route"),
            (rustix::io::Errno::NETDOWN, "no_route"),
            (rustix::io::Errno::TIMEDOUT, "connect_timeout"),
            (rustix::io::Errno::MFILE, "local"),
            (rustix::io::Errno::NFILE, "local"),
            (rustix::io::Errno::ADDRNOTAVAIL, "local"),
            (rustix::io::Errno::ACCESS, "local"),
            (rustix::io::Errno::PERM, "local"),
        ] {
            assert_eq!(UpstreamError::of_connect(errno.into()).kind(), kind, "{errno}");
        }
    }
}
