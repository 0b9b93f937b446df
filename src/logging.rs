//! Log lines: pretty on a terminal, JSON otherwise, always on standard error.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use crate::config::{Log, LogFormat};

/// Starts logging. A second call, as tests make it, changes nothing.
pub fn start(log: &Log) {
    let filter = EnvFilter::new(format!("warn,fusebox={}", log.level.name()));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let pretty = match log.format {
        LogFormat::Auto => std::io::stderr().is_terminal(),
        LogFormat::Pretty => true,
        LogFormat::Json => false,
    };
    let _ = if pretty {
        let colours = std::io::stderr().is_terminal();
        builder.with_ansi(colours).with_target(false).try_init()
    } else {
        builder.json().flatten_event(true).try_init()
    };
}
