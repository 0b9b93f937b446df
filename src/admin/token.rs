//! The admin token: 256 random bits that open the admin port.
//!
//! It is made at the first start and kept in the data directory as `admin.token`, mode 0600, so that
//! scrapers and scripts survive a restart. The file appears whole or not at all, and once: of two processes
//! that start together the slower one takes the token of the faster.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::unix::fs::{OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// The file in the data directory.
pub const FILE: &str = "admin.token";

/// Octets of randomness.
const LENGTH: usize = 32;

/// The longest file that is looked at; a token and a line end have 44 octets.
const MOST: u64 = 1_024;

/// A token. Its `Debug` does not show it.
#[derive(Clone)]
pub struct Token(String);

impl std::fmt::Debug for Token {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Token(…)")
    }
}

impl Token {
    /// A new token, known to this process alone.
    pub fn random() -> Token {
        let mut octets = [0; LENGTH];
        rand::fill(&mut octets);
        Token(URL_SAFE_NO_PAD.encode(octets))
    }

    /// The token of the data directory, made now if there is none. Without a directory: one in memory.
    ///
    /// A file that others may read is closed to them, with a warning, since refusing to start would not
    /// make the secret any safer.
    ///
    /// # Errors
    ///
    /// If the file can't be made, read or closed to others, or holds no token. A file that holds no token
    /// is left alone: somebody put it there.
    pub fn load_or_create(dir: Option<&Path>) -> io::Result<Token> {
        let Some(dir) = dir else { return Ok(Token::random()) };
        let path = dir.join(FILE);
        match File::open(&path) {
            Ok(file) => {
                close_to_others(&file, &path)?;
                read(file, &path)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => create(&path),
            Err(error) => Err(about(&path, &error)),
        }
    }

    /// The token of the data directory of a Fusebox that runs, changing nothing.
    ///
    /// # Errors
    ///
    /// If there is none, or it can't be read.
    pub fn load(dir: &Path) -> io::Result<Token> {
        let path = dir.join(FILE);
        read(File::open(&path).map_err(|error| about(&path, &error))?, &path)
    }

    /// True if `text` is the token. Takes the same time wherever they differ.
    pub fn is(&self, text: &[u8]) -> bool {
        self.0.as_bytes().ct_eq(text).into()
    }

    /// What a browser gets in place of the token: made from it, and of no use as a bearer's. Browsers send
    /// cookies to every port of a machine.
    pub fn session(&self) -> String {
        let digest = Sha256::new().chain_update(b"fusebox session: ").chain_update(self.0.as_bytes()).finalize();
        URL_SAFE_NO_PAD.encode(digest)
    }

    /// True if `text` is the session. Takes the same time wherever they differ.
    pub fn is_session(&self, text: &str) -> bool {
        self.session().as_bytes().ct_eq(text.as_bytes()).into()
    }

    /// The token itself.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

fn about(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn read(file: File, path: &Path) -> io::Result<Token> {
    let mut text = String::new();
    file.take(MOST).read_to_string(&mut text).map_err(|error| about(path, &error))?;
    let text = text.trim_end();
    match URL_SAFE_NO_PAD.decode(text) {
        Ok(octets) if octets.len() == LENGTH => Ok(Token(text.to_owned())),
        _ => {
            let advice =
                "this is no token of 256 bits in base64url: delete the file, and the next start makes a new one";
            Err(io::Error::new(ErrorKind::InvalidData, format!("{}: {advice}", path.display())))
        }
    }
}

fn close_to_others(file: &File, path: &Path) -> io::Result<()> {
    let mode = file.metadata().map_err(|error| about(path, &error))?.permissions().mode();
    if mode & 0o077 == 0 {
        return Ok(());
    }
    tracing::warn!(
        event = "token",
        "{} could be read by others (mode {:o}) and is now 0600; delete it and restart for a new token",
        path.display(),
        mode & 0o777
    );
    file.set_permissions(std::fs::Permissions::from_mode(0o600)).map_err(|error| about(path, &error))
}

/// Writes a new token beside its place and links it there, which fails if another process was first.
fn create(path: &Path) -> io::Result<Token> {
    let token = Token::random();
    let draft = Draft::write(path, &token)?;
    match std::fs::hard_link(&draft.0, path) {
        Ok(()) => Ok(token),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => read(File::open(path)?, path),
        Err(error) => Err(about(path, &error)),
    }
}

/// The file before it has its name; it goes when this is dropped.
struct Draft(PathBuf);

impl Draft {
    fn write(path: &Path, token: &Token) -> io::Result<Draft> {
        let draft = path.with_extension(format!("{:016x}.new", rand::random::<u64>()));
        let failed = |error| about(path, &error);
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&draft).map_err(failed)?;
        let draft = Draft(draft);
        writeln!(file, "{}", token.0).and_then(|()| file.sync_all()).map_err(failed)?;
        Ok(draft)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
