//! A deadline that is moved far more often than it is met.
//!
//! Every request moves several deadlines, and setting a timer anew each time costs more than the rest of
//! the bookkeeping. So the timer is left where it is when the deadline moves away; only when it runs out is
//! the deadline looked at, and the timer set for what is left.

use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::time::{Instant, Sleep};

use crate::core::time::Span;

/// A point in time to be woken at, cheap to move away.
#[derive(Debug)]
pub struct Deadline {
    at: Instant,
    timer: Option<Pin<Box<Sleep>>>,
}

impl Deadline {
    /// A deadline `span` from now.
    pub fn after(span: Span) -> Deadline {
        Deadline { at: Instant::now() + span.into(), timer: None }
    }

    /// Moves it to `span` from now.
    pub fn reset(&mut self, span: Span) {
        self.at = Instant::now() + span.into();
    }

    /// Ready once the deadline has passed; else the task is woken when it may have.
    pub fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let at = self.at;
        let timer = self.timer.get_or_insert_with(|| Box::pin(tokio::time::sleep_until(at)));
        if timer.deadline() > at {
            timer.as_mut().reset(at);
        }
        while timer.as_mut().poll(cx).is_ready() {
            if Instant::now() >= at {
                return Poll::Ready(());
            }
            timer.as_mut().reset(at);
        }
        Poll::Pending
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::future::poll_fn;

    #[tokio::test(start_paused = true)]
    async fn it_is_met_where_it_was_moved_to() {
        let started = Instant::now();
        let mut deadline = Deadline::after(Span::seconds(1));
        let early = poll_fn(|cx| Poll::Ready(deadline.poll(cx).is_ready())).await;
        assert!(!early);
        deadline.reset(Span::seconds(5));
        poll_fn(|cx| deadline.poll(cx)).await;
        assert_eq!(started.elapsed().as_secs(), 5);
        deadline.reset(Span::seconds(3));
        assert!(!poll_fn(|cx| Poll::Ready(deadline.poll(cx).is_ready())).await);
        deadline.reset(Span::seconds(1));
        poll_fn(|cx| deadline.poll(cx)).await;
        assert_eq!(started.elapsed().as_secs(), 6);
    }
}
