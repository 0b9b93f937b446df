#![doc = include_str!("../docs/crate.md")]
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod admin;
pub mod app;
pub mod cli;
pub mod clock;
pub mod config;
pub mod core;
pub mod deadline;
pub mod gate;
pub mod health;
pub mod logging;
pub mod metrics;
pub mod proxy;
pub mod store;
pub mod upstream;
