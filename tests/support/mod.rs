//! What the black-box tests stand on: the real binary, a scripted origin, a client that speaks raw bytes.
//!
//! Nothing in here knows how Fusebox is made. Everything has a deadline; nothing sleeps for luck.

// every test file compiles all of this and uses a part of it
#![allow(dead_code, unused_imports)]

pub mod client;
pub mod fusebox;
pub mod message;
pub mod metrics;
pub mod patience;
pub mod upstream;

pub use client::{Client, get};
pub use fusebox::{Fusebox, loopback};
pub use message::{Request, Response};
pub use patience::{Latch, PATIENCE, eventually, now, until};
pub use upstream::{Step, Upstream, answer, ok, status};
