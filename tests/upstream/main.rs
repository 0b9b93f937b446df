//! The way to the origin, against real sockets on the loopback interface.
//!
//! Nothing here sends a packet to another machine.

mod dial;
mod guard;
mod resolve;
mod tls;
