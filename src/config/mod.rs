//! Configuration: file, environment and flags in, a [`Config`] or every [`Problem`] out.
//!
//! ```text
//! file ─┐
//! env ──┼─> Tree (what is written, each value with its position) ─> Config (what it means) ─> Checks
//! flags ┘
//! ```
//!
//! Everything that is wrong is found in one go and shown with file, line, column and advice, since a
//! configuration that is half understood protects nobody. A load changes nothing: a reload that fails
//! leaves the caller with the configuration it had.

mod check;
mod env;
mod keys;
mod load;
mod problem;
mod read;
pub mod reload;
mod sections;
mod source;
mod tree;

pub use env::{Flags, Inputs};
pub use keys::{known_keys, variable};
pub use load::{Loaded, Subject, data_dir, load};
pub use problem::{Place, Problem, Problems, Warning};
pub use sections::{
    Admin, Config, ConnectPorts, Denied, Egress, Https, HttpsMode, Keys, Limits, Log, LogFormat, LogLevel, ParentProxy,
    Proxy, PublicSuffixes, Redis, Secret, Timeouts, User,
};
