//! Floor 0, the pure core: what is decided, without a socket, a clock or a global.
//!
//! Time is an argument everywhere. Nothing here imports an adapter or an async runtime; a test fails if
//! it does.

pub mod breaker;
pub mod budget;
pub mod circuit;
pub mod key;
pub mod layers;
pub mod outcome;
pub mod policy;
pub mod row;
pub mod time;
pub mod window;
