//! The command line: parse arguments, call the library, print.
//!
//! Exit codes: 0 = done, 1 = it could not be done, 2 = the command line or the configuration is wrong.

mod breakers;
mod client;
mod explain;
mod password;
mod print;

use std::ffi::OsString;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context as _;
use clap::{CommandFactory as _, Parser, Subcommand};

use crate::app::{self, StartError};
use crate::config::{Flags, Inputs, Loaded, Problems};
use crate::core::time::Span;
use client::Client;
use print::{out, printable};

/// A forward HTTP proxy with one circuit breaker and one request budget per domain.
///
/// Point HTTP_PROXY at it. When a domain answers 429 or 5xx too often, Fusebox stops sending to it for a while and
/// answers 503 itself, with a true Retry-After.
#[derive(Debug, Parser)]
#[command(name = "fusebox", version, arg_required_else_help = false, disable_help_subcommand = true)]
#[command(after_help = "Without a command Fusebox serves. Any key of the configuration can be set by environment: \
FUSEBOX_PROXY__LISTEN=127.0.0.1:8080 sets proxy.listen.")]
struct Cli {
    #[command(flatten)]
    given: Given,
    #[command(subcommand)]
    command: Option<Command>,
}

/// What the configuration is made from. Commands that talk to a running Fusebox find it by the same.
#[derive(Debug, clap::Args)]
struct Given {
    /// The configuration file [default: $FUSEBOX_CONFIG, else ./config.toml if it is there]
    #[arg(long, value_name = "FILE", global = true)]
    config: Option<PathBuf>,
    /// Where programs connect [default: 127.0.0.1:3128]
    #[arg(long, value_name = "ADDR", global = true)]
    listen: Option<String>,
    /// Where API, page and metrics are served [default: 127.0.0.1:3129]
    #[arg(long, value_name = "ADDR", global = true)]
    admin_listen: Option<String>,
    /// Where state and token are kept [default: $FUSEBOX_DATA_DIR, $STATE_DIRECTORY, ~/.local/state/fusebox]
    #[arg(long, value_name = "DIR", global = true)]
    data_dir: Option<PathBuf>,
    /// Worker threads [default: one per core]
    #[arg(long, value_name = "N", global = true, value_parser = clap::value_parser!(u16).range(1..=1024))]
    workers: Option<u16>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the proxy (the default)
    Serve,
    /// Validate a configuration: every problem with its line
    Check {
        /// The file [default: as for serve]
        file: Option<PathBuf>,
    },
    /// Say which domain a URL counts for, why, and what applies to it
    Explain {
        /// Print JSON
        #[arg(long)]
        json: bool,
        /// URLs, hosts or domains
        #[arg(required = true, value_name = "URL")]
        urls: Vec<String>,
    },
    /// List the breakers of the running Fusebox
    Breakers {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Open a domain's circuit, or restart its clock
    Open {
        /// The domain, or a host below it
        domain: String,
        /// For how long, such as 30m [default: the policy's open_for]
        #[arg(long = "for", value_name = "TIME")]
        length: Option<Span>,
    },
    /// Close a domain's circuit; forget its errors and spent budget
    Close {
        /// The domain, or a host below it
        domain: String,
    },
    /// Override values of a domain's policy
    ///
    /// For instance: fusebox set medium.com max_errors=5 open_for=30m errors=429,5xx requests_per_10s=
    Set {
        /// The domain, or a host below it
        domain: String,
        /// key=value; lists with commas; `key=` or `key=null` clears the override
        #[arg(required = true, value_name = "KEY=VALUE", value_parser = breakers::assignment)]
        values: Vec<(String, serde_json::Value)>,
    },
    /// Back to the configured policy: closed, without overrides
    Reset {
        /// The domain, or a host below it
        domain: String,
    },
    /// Print the link of the page, with the token
    Page,
    /// Print the hash of a password, for [proxy] users
    ///
    /// Asks for the password on a terminal; else reads the first line of its input.
    HashPassword,
    /// Print completions for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
}

/// Does what the command line says.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match run(cli) {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            print::complain(&error);
            ExitCode::from(if is_about_config(&error) { 2 } else { 1 })
        }
    }
}

fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    let inputs = inputs(cli.given)?;
    match cli.command.unwrap_or(Command::Serve) {
        Command::Serve => return Ok(app::serve(&inputs)?),
        Command::Check { file } => return check(&Inputs { file: file.or(inputs.file.clone()), ..inputs }),
        Command::Explain { json, urls } => return explain::run(&inputs, &urls, json),
        Command::Breakers { json } => breakers::list(&client(&inputs)?, json)?,
        Command::Open { domain, length } => breakers::open(&client(&inputs)?, &domain, length)?,
        Command::Close { domain } => breakers::close(&client(&inputs)?, &domain)?,
        Command::Set { domain, values } => breakers::set(&client(&inputs)?, &domain, values)?,
        Command::Reset { domain } => breakers::reset(&client(&inputs)?, &domain)?,
        Command::Page => out(format_args!("{}\n", client(&inputs)?.login_link()))?,
        Command::HashPassword => password::hash()?,
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "fusebox", &mut script);
            out(format_args!("{}", String::from_utf8_lossy(&script)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn inputs(given: Given) -> anyhow::Result<Inputs> {
    let text = |text: OsString| text.into_string().ok();
    // a variable that is not UTF-8 sets none of our keys
    let mut env: Vec<_> = std::env::vars_os().filter_map(|(name, value)| Some((text(name)?, text(value)?))).collect();
    if let Some(workers) = given.workers {
        env.push(("FUSEBOX_PROXY__WORKERS".to_owned(), workers.to_string()));
    }
    let cwd = std::env::current_dir().context("the working directory can't be told")?;
    let flags = Flags { listen: given.listen, admin_listen: given.admin_listen, data_dir: given.data_dir };
    Ok(Inputs { file: given.config, env, flags, cwd })
}

fn client(inputs: &Inputs) -> anyhow::Result<Client> {
    let Loaded { config, .. } = app::load(inputs)?;
    Client::new(inputs, &config)
}

/// Validates, and says everything.
fn check(inputs: &Inputs) -> anyhow::Result<ExitCode> {
    let (problems, warnings) = match app::load(inputs) {
        Ok(Loaded { config, path, warnings }) => {
            // what can only be told by reading further files
            let problem = app::policies(&config, Default::default()).err();
            if problem.is_none() {
                let what = path
                    .map_or("the built-in defaults: there is no file".to_owned(), |path| path.display().to_string());
                out(format_args!("valid: {}\n", printable(&what)))?;
            }
            (problem.map(|error| format!("keys.list: {error}")).into_iter().collect::<Vec<_>>(), warnings)
        }
        Err(Problems { problems, warnings }) => (problems.iter().map(ToString::to_string).collect(), warnings),
    };
    for problem in &problems {
        eprintln!("{}", printable(problem));
    }
    for warning in &warnings {
        eprintln!("warning: {}", printable(&warning.to_string()));
    }
    Ok(if problems.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

/// The reader of our output has seen enough (`fusebox breakers | head`).
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
}

fn is_about_config(error: &anyhow::Error) -> bool {
    error.is::<Problems>() || matches!(error.downcast_ref(), Some(StartError::Config(_) | StartError::List(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn flags_stand_before_or_behind_the_command() {
        for line in [
            "fusebox --config c --workers 2",
            "fusebox serve --config c --workers 2",
            "fusebox --config c serve --workers 2",
        ] {
            let cli = Cli::try_parse_from(line.split(' ')).expect(line);
            let inputs = inputs(cli.given).expect("inputs");
            assert_eq!(inputs.file, Some("c".into()));
            assert_eq!(inputs.env.last(), Some(&("FUSEBOX_PROXY__WORKERS".to_owned(), "2".to_owned())));
        }
        assert!(Cli::try_parse_from(["fusebox", "--workers", "0"]).is_err());
        assert!(Cli::try_parse_from(["fusebox", "open", "a.test", "--for", "30"]).is_err());
    }
}
