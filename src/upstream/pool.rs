//! Kept-alive connections, by origin.
//!
//! An idle HTTP/1 connection is a value in here: no task of its own polls it. Whoever takes it drives it,
//! in the same task as the client's connection, so that a request costs no hand-over between tasks.
//! Taking it polls it once, which shows whether the origin has closed it meanwhile.
//!
//! An HTTP/2 connection is shared and has a task of its own.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};

use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::sync::watch;

use super::body::RequestBody;
use super::h2::{H2, MAX_STREAMS};
use super::stream::{Received, UpstreamStream};
use crate::clock::since_boot;
use crate::core::key::Host;
use crate::core::time::Micros;
use crate::deadline::Deadline;

/// Where connections go: they are shared by requests to the same one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    /// Whether the connection is TLS.
    pub tls: bool,
    /// The host, canonical.
    pub host: Host,
    /// The port.
    pub port: u16,
}

/// An HTTP/1 connection and the handle that sends on it.
#[derive(Debug)]
pub struct H1 {
    /// Moves bytes when it is polled.
    pub connection: Box<http1::Connection<TokioIo<UpstreamStream>, RequestBody>>,
    /// Takes requests.
    pub sender: http1::SendRequest<RequestBody>,
    /// Tells whether anything of an answer has come.
    pub received: Received,
    /// Of the settings that it was made under.
    pub generation: u64,
    /// For whatever is due on it.
    pub deadline: Deadline,
}

impl H1 {
    /// Moves what can be moved now. True while the connection lives and waits for a request.
    fn is_usable(&mut self) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        self.connection.poll_without_shutdown(&mut cx).is_pending() && self.sender.is_ready()
    }
}

#[derive(Debug)]
struct Idle {
    h1: H1,
    since: Micros,
}

#[derive(Debug, Default)]
struct Slot {
    /// Oldest first.
    idle: Vec<Idle>,
    /// Those without streams are idle too.
    h2: Vec<Arc<H2>>,
    /// The last connection was HTTP/2: the next one will do for many requests.
    speaks_h2: bool,
    /// Streams that a connection may carry, as far as is known.
    streams: Option<usize>,
    dials: Vec<Dial>,
}

impl Slot {
    fn is_empty(&self) -> bool {
        self.idle.is_empty() && self.h2.is_empty() && self.dials.is_empty()
    }

    fn idle(&self) -> usize {
        self.idle.len() + self.h2.iter().filter(|h2| h2.live.load(Ordering::Relaxed) == 0).count()
    }
}

/// A connection that is being made.
#[derive(Debug)]
struct Dial {
    /// Closed when it has been made, or could not be.
    done: watch::Receiver<()>,
    /// Requests that wait for it.
    waiting: usize,
}

/// Whose turn it is to dial.
#[derive(Debug)]
pub enum Turn {
    /// The asker's. The others wait while it keeps this.
    Dial(watch::Sender<()>),
    /// Somebody else's: the channel closes when there is something to take, or nothing will come.
    Wait(watch::Receiver<()>),
}

/// How many idle connections are kept, and for how long.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// For one origin.
    pub per_origin: usize,
    /// In all.
    pub overall: usize,
    /// Idle for longer than this many microseconds: closed.
    pub idle_for: u64,
}

const SHARDS: usize = 16;

/// Origins in a shard up to which it is remembered of one without connections that it speaks HTTP/2.
const REMEMBERED: usize = 256;

/// A request that could not be repeated never meets a connection that has been idle for longer: the
/// shortest keep-alive timeouts of servers are longer than this.
const FRESH_FOR: u64 = 2_000_000;

/// The pool.
#[derive(Debug)]
pub struct Pool {
    shards: [Mutex<HashMap<Origin, Slot, foldhash::fast::RandomState>>; SHARDS],
    hasher: foldhash::fast::RandomState,
    idle: AtomicUsize,
    limits: Limits,
    generation: AtomicU64,
}

/// A connection from the pool.
#[derive(Debug)]
pub enum Pooled {
    /// To be driven and given back by the taker.
    H1(H1),
    /// One of many users of it: a stream is counted already.
    H2(Arc<H2>),
}

impl Pool {
    /// An empty pool.
    pub fn new(limits: Limits) -> Pool {
        Pool {
            shards: Default::default(),
            hasher: Default::default(),
            idle: AtomicUsize::new(0),
            limits,
            generation: AtomicU64::new(0),
        }
    }

    fn shard(&self, origin: &Origin) -> MutexGuard<'_, HashMap<Origin, Slot, foldhash::fast::RandomState>> {
        let hash = self.hasher.hash_one(origin);
        self.shards[(hash >> 60) as usize % SHARDS].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a live connection to `origin`, the most recently used first. `repeatable` says that the
    /// request could be sent again should the origin close the connection at this very moment.
    pub fn take(&self, origin: &Origin, repeatable: bool, now: Micros) -> Option<Pooled> {
        loop {
            let mut shard = self.shard(origin);
            let slot = shard.get_mut(origin)?;
            if let Some(h2) = self.join(slot) {
                return Some(Pooled::H2(h2));
            }
            let mut idle = slot.idle.pop()?;
            drop(shard);
            self.idle.fetch_sub(1, Ordering::Relaxed);
            let age = now.saturating_sub(idle.since);
            if idle.h1.generation != self.generation() || age > self.limits.idle_for || (!repeatable && age > FRESH_FOR)
            {
                continue;
            }
            if idle.h1.is_usable() {
                return Some(Pooled::H1(idle.h1));
            }
        }
    }

    /// Gives an HTTP/1 connection back, if it can serve another request and there is room.
    pub fn give_back(&self, origin: &Origin, mut h1: H1) {
        if h1.generation != self.generation()
            || !h1.is_usable()
            || self.idle.load(Ordering::Relaxed) >= self.limits.overall
        {
            return;
        }
        let idle = Idle { h1, since: since_boot() };
        let mut shard = self.shard(origin);
        let slot = match shard.get_mut(origin) {
            Some(slot) => slot,
            None => shard.entry(origin.clone()).or_default(),
        };
        if slot.idle() >= self.limits.per_origin {
            return;
        }
        slot.idle.push(idle);
        self.idle.fetch_add(1, Ordering::Relaxed);
    }

    /// The settings' generation, which grows with every reload.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// From now on no connection is taken that was made before.
    pub fn age(&self) {
        self.generation.fetch_add(1, Ordering::AcqRel);
        self.tidy();
    }

    /// Puts a stream on the HTTP/2 connection with the fewest, if one has room.
    fn join(&self, slot: &mut Slot) -> Option<Arc<H2>> {
        let generation = self.generation();
        self.drop_h2(slot, |h2| h2.is_closed() || h2.generation != generation);
        let h2 = slot.h2.iter().min_by_key(|h2| h2.live.load(Ordering::Relaxed))?;
        let live = h2.live.load(Ordering::Relaxed);
        // one that is full may hide one that is not, where limits differ; few peers change theirs
        if live >= h2.limit() {
            return None;
        }
        if h2.live.fetch_add(1, Ordering::Relaxed) == 0 {
            self.idle.fetch_sub(1, Ordering::Relaxed);
        }
        Some(h2.clone())
    }

    /// Streams that are still open keep a connection, which then is nobody's but theirs.
    fn drop_h2(&self, slot: &mut Slot, mut doomed: impl FnMut(&H2) -> bool) {
        slot.h2.retain(|h2| {
            let stays = !doomed(h2);
            if !stays && h2.live.load(Ordering::Relaxed) == 0 {
                self.idle.fetch_sub(1, Ordering::Relaxed);
            }
            stays
        });
    }

    /// Puts a stream on an HTTP/2 connection that has room.
    pub fn take_h2(&self, origin: &Origin) -> Option<Arc<H2>> {
        self.join(self.shard(origin).get_mut(origin)?)
    }

    /// Shares a new HTTP/2 connection that carries the maker's stream.
    pub fn share(&self, origin: &Origin, h2: &Arc<H2>) {
        h2.live.store(1, Ordering::Relaxed);
        let mut shard = self.shard(origin);
        let slot = shard.entry(origin.clone()).or_default();
        slot.speaks_h2 = true;
        slot.h2.push(h2.clone());
    }

    /// A stream has ended. A connection without any is kept while there is room.
    pub fn leave(&self, origin: &Origin, h2: &Arc<H2>) {
        let mut shard = self.shard(origin);
        if h2.live.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        h2.idle_since.store(since_boot(), Ordering::Relaxed);
        let Some(slot) = shard.get_mut(origin) else { return };
        let Some(index) = slot.h2.iter().position(|kept| Arc::ptr_eq(kept, h2)) else { return };
        // the slot's count has this one in it already
        let no_room = slot.idle() > self.limits.per_origin || self.idle.load(Ordering::Relaxed) >= self.limits.overall;
        if no_room || h2.is_closed() || h2.generation != self.generation() {
            slot.h2.swap_remove(index);
        } else {
            self.idle.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Stops sharing an HTTP/2 connection that turned out to be closed.
    pub fn unshare(&self, origin: &Origin, h2: &Arc<H2>) {
        if let Some(slot) = self.shard(origin).get_mut(origin) {
            self.drop_h2(slot, |kept| std::ptr::eq(kept, &**h2));
        }
    }

    /// Whether to dial or to wait for a connection that somebody else is making, which will have room.
    pub fn turn(&self, origin: &Origin) -> Turn {
        let mut shard = self.shard(origin);
        let slot = shard.entry(origin.clone()).or_default();
        let per_connection = slot.streams.unwrap_or(MAX_STREAMS);
        slot.dials.retain(|dial| dial.done.has_changed().is_ok());
        if slot.speaks_h2
            && let Some(dial) = slot.dials.iter_mut().find(|dial| dial.waiting + 1 < per_connection)
        {
            dial.waiting += 1;
            return Turn::Wait(dial.done.clone());
        }
        let (dial, done) = watch::channel(());
        slot.dials.push(Dial { done, waiting: 0 });
        Turn::Dial(dial)
    }

    /// What a new connection has shown: HTTP/2 and its limit on streams, or neither.
    pub fn learn(&self, origin: &Origin, streams: Option<usize>) {
        if let Some(slot) = self.shard(origin).get_mut(origin) {
            (slot.speaks_h2, slot.streams) = (streams.is_some(), streams);
        }
    }

    /// Closes what has been idle for too long or has been closed by the origin.
    pub fn tidy(&self) {
        let (now, generation) = (since_boot(), self.generation());
        for shard in &self.shards {
            let mut shard = shard.lock().unwrap_or_else(PoisonError::into_inner);
            let remembered = shard.len();
            shard.retain(|_, slot| {
                let before = slot.idle.len();
                slot.idle.retain_mut(|idle| {
                    idle.h1.generation == generation
                        && now.saturating_sub(idle.since) <= self.limits.idle_for
                        && idle.h1.is_usable()
                });
                self.idle.fetch_sub(before - slot.idle.len(), Ordering::Relaxed);
                self.drop_h2(slot, |h2| {
                    let idle_for = now.saturating_sub(h2.idle_since.load(Ordering::Relaxed));
                    let is_idle = h2.live.load(Ordering::Relaxed) == 0;
                    h2.is_closed() || h2.generation != generation || (is_idle && idle_for > self.limits.idle_for)
                });
                slot.dials.retain(|dial| dial.done.has_changed().is_ok());
                !slot.is_empty() || (slot.speaks_h2 && remembered < REMEMBERED)
            });
        }
    }
}
