//! Who may use the proxy: Basic credentials, hashed at rest, and client networks.
//!
//! Argon2 is slow on purpose, so what has passed once is remembered as a keyed digest for the life of the
//! process. Comparisons take the same time wherever the texts differ.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{Arc, PoisonError, RwLock};

use argon2::password_hash::PasswordVerifier;
use argon2::{Argon2, PasswordHash};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use http::header::{self, HeaderMap};
use ipnet::IpNet;
use sha2::{Digest, Sha256};
use tokio::sync::Semaphore;

/// A name and its Argon2 hash in PHC form.
#[derive(Clone)]
pub struct User {
    /// The name.
    pub name: String,
    /// `$argon2id$…`.
    pub hash: String,
}

impl std::fmt::Debug for User {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("User").field("name", &self.name).finish_non_exhaustive()
    }
}

/// Who may come in.
#[derive(Debug)]
pub struct Doorman {
    users: Vec<User>,
    allow_clients: Vec<IpNet>,
    salt: [u8; 32],
    passed: RwLock<HashSet<[u8; 32]>>,
    /// A hash takes 19 MiB and a core: no more at a time than there are cores, whoever asks.
    hashing: Arc<Semaphore>,
}

impl Doorman {
    /// Lets in `users` from `allow_clients`; an empty list asks for nothing.
    pub fn new(users: Vec<User>, allow_clients: Vec<IpNet>) -> Doorman {
        let mut salt = [0; 32];
        rand::fill(&mut salt);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let hashing = Arc::new(Semaphore::new(cores));
        Doorman { users, allow_clients, salt, passed: RwLock::default(), hashing }
    }

    /// True if a client with this address may use the proxy.
    pub fn lets_in(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.allow_clients.is_empty() || self.allow_clients.iter().any(|net| net.contains(&address))
    }

    /// True if no credentials are asked for.
    pub fn is_open(&self) -> bool {
        self.users.is_empty()
    }

    /// True if the request's `Proxy-Authorization` is that of a user (RFC 7617).
    pub async fn knows(&self, headers: &HeaderMap) -> bool {
        let Some(credentials) = basic_credentials(headers) else { return false };
        let digest: [u8; 32] = Sha256::new().chain_update(self.salt).chain_update(&credentials).finalize().into();
        if self.passed.read().unwrap_or_else(PoisonError::into_inner).contains(&digest) {
            return true;
        }
        let Ok(place) = self.hashing.clone().acquire_owned().await else { return false };
        let users = self.users.clone();
        let judged = tokio::task::spawn_blocking(move || {
            // held until the work is done, even if the client leaves meanwhile
            let _place = place;
            is_right(&users, &credentials)
        });
        let right = judged.await.unwrap_or(false);
        if right {
            self.passed.write().unwrap_or_else(PoisonError::into_inner).insert(digest);
        }
        right
    }
}

fn basic_credentials(headers: &HeaderMap) -> Option<Vec<u8>> {
    let mut values = headers.get_all(header::PROXY_AUTHORIZATION).iter();
    let (value, None) = (values.next()?, values.next()) else { return None };
    let (scheme, rest) = value.to_str().ok()?.split_once(' ')?;
    if !scheme.eq_ignore_ascii_case("basic") {
        return None;
    }
    STANDARD.decode(rest.trim()).ok()
}

/// Always does the work of one hash, so that the time does not tell whether the name exists.
fn is_right(users: &[User], credentials: &[u8]) -> bool {
    let Some(colon) = credentials.iter().position(|byte| *byte == b':') else { return false };
    let (name, password) = (&credentials[..colon], &credentials[colon + 1..]);
    let user = users.iter().find(|user| user.name.as_bytes() == name);
    let Some(known) = user.or(users.first()) else { return false };
    let Ok(hash) = PasswordHash::new(&known.hash) else { return false };
    Argon2::default().verify_password(password, &hash).is_ok() && user.is_some()
}

/// The hash of a password, as `[proxy] users` wants it.
///
/// # Errors
///
/// If the password can't be hashed (it is longer than 4 GiB).
pub fn hash_password(password: &str) -> Result<String, argon2::password_hash::Error> {
    use argon2::password_hash::PasswordHasher;
    Ok(Argon2::default().hash_password(password.as_bytes())?.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::HeaderValue;

    fn headers(credentials: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        let value = format!("Basic {}", STANDARD.encode(credentials));
        headers.insert(header::PROXY_AUTHORIZATION, HeaderValue::try_from(value).expect("a value"));
        headers
    }

    #[tokio::test]
    async fn only_the_right_password_of_a_known_name_passes() {
        let user = User { name: "bob".to_owned(), hash: hash_password("s3:cret").expect("a hash") };
        let doorman = Doorman::new(vec![user], vec![]);
        for _ in 0..2 {
            assert!(doorman.knows(&headers("bob:s3:cret")).await);
            assert!(!doorman.knows(&headers("bob:wrong")).await);
            assert!(!doorman.knows(&headers("eve:s3:cret")).await);
            assert!(!doorman.knows(&headers("bob")).await);
            assert!(!doorman.knows(&HeaderMap::new()).await);
        }
        assert!(!format!("{doorman:?}").contains("argon2"));
    }

    #[test]
    fn networks_are_judged_by_the_plain_address() {
        let doorman = Doorman::new(vec![], vec!["10.0.0.0/8".parse().expect("a network")]);
        assert!(doorman.lets_in("10.1.2.3".parse().expect("an address")));
        assert!(doorman.lets_in("::ffff:10.1.2.3".parse().expect("an address")));
        assert!(!doorman.lets_in("11.0.0.1".parse().expect("an address")));
        assert!(Doorman::new(vec![], vec![]).lets_in("11.0.0.1".parse().expect("an address")));
    }
}
