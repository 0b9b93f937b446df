//! Hashes a password for `[proxy] users`.

use std::io::{self, BufRead as _, IsTerminal as _, Read as _, Write as _};
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};

use super::print::out;
use crate::proxy::auth::hash_password;

/// The longest password that is read, in octets.
const MOST: u64 = 4_096;

/// Reads a password and prints its hash.
pub(super) fn hash() -> anyhow::Result<()> {
    let password = if io::stdin().is_terminal() { ask()? } else { line()? };
    ensure!(!password.is_empty(), "the password is empty");
    match hash_password(&password) {
        Ok(hash) => out(format_args!("{hash}\n"))?,
        Err(error) => bail!("this password can't be hashed: {error}"),
    }
    Ok(())
}

fn line() -> anyhow::Result<String> {
    let mut line = String::new();
    let read = io::stdin().lock().take(MOST + 1).read_line(&mut line).context("the password can't be read")?;
    ensure!(read as u64 <= MOST, "a password has at most {MOST} octets");
    Ok(line.strip_suffix('\n').map(|line| line.strip_suffix('\r').unwrap_or(line)).unwrap_or(&line).to_owned())
}

fn ask() -> anyhow::Result<String> {
    let quiet = Quiet::new()?;
    let mut passwords = Vec::new();
    for prompt in ["Password: ", "Again: "] {
        eprint!("{prompt}");
        let _ = io::stderr().flush();
        passwords.push(line()?);
        eprintln!();
    }
    drop(quiet);
    ensure!(passwords.first() == passwords.last(), "the two are not the same");
    Ok(passwords.swap_remove(0))
}

/// While it lives, the terminal does not show what is typed.
struct Quiet;

impl Quiet {
    fn new() -> anyhow::Result<Quiet> {
        ensure!(stty("-echo"), "this terminal can't be told to hide what is typed: pipe the password in instead");
        Ok(Quiet)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        stty("echo");
    }
}

/// Sets a mode of the terminal that is our input. POSIX has `stty` wherever there are terminals.
fn stty(mode: &str) -> bool {
    let status = Command::new("stty").arg(mode).stdin(Stdio::inherit()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}
