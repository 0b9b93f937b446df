//! Where a request wants to go: its target, read strictly (RFC 9112 section 3.2).

use http::uri::PathAndQuery;
use http::{HeaderValue, Uri};

use crate::core::key::{Authority, Host};

/// The target of a request that is not a `CONNECT`.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// Whether the proxy makes the TLS.
    pub tls: bool,
    /// The host, canonical.
    pub host: Host,
    /// The port that is dialled.
    pub port: u16,
}

impl Target {
    /// The `Host` field made from the target (RFC 9110 section 7.2).
    pub fn host_field(&self) -> Option<HeaderValue> {
        let default = if self.tls { 443 } else { 80 };
        let text = if self.port == default { self.host.to_string() } else { format!("{}:{}", self.host, self.port) };
        HeaderValue::try_from(text).ok()
    }
}

/// Reads an absolute-form target. `Err` says what is wrong.
pub fn absolute(uri: &Uri) -> Result<Target, String> {
    let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
        return Err("this is a proxy: the request target must be a whole URL, such as http://host/path".to_owned());
    };
    let tls = match scheme {
        "http" | "ws" => false,
        "https" | "wss" => true,
        _ => return Err("only http and https can be fetched through this proxy".to_owned()),
    };
    // a user name in a URL is for the client to use; nothing of it goes further
    let authority = authority.as_str().rsplit('@').next().unwrap_or_default();
    let authority = Authority::parse(authority).map_err(|error| error.to_string())?;
    let port = authority.port.unwrap_or(if tls { 443 } else { 80 });
    Ok(Target { tls, host: authority.host, port })
}

/// Reads the authority of a `CONNECT`, which must have a port (RFC 9110 section 9.3.6).
pub fn authority(uri: &Uri) -> Result<(Host, u16), String> {
    if uri.scheme().is_some() || uri.path_and_query().is_some_and(|path| !path.as_str().is_empty()) {
        return Err("a CONNECT target is a host and a port, such as host:443".to_owned());
    }
    let text = uri.authority().map_or("", |authority| authority.as_str());
    if text.contains('@') {
        return Err("a CONNECT target has no user name".to_owned());
    }
    let authority = Authority::parse(text).map_err(|error| error.to_string())?;
    let port = authority.port.ok_or("a CONNECT target needs a port, such as host:443")?;
    Ok((authority.host, port))
}

/// The target as the upstream is sent it: path and query, untouched (RFC 9112 section 3.2.1).
pub fn origin_form(uri: Uri) -> Uri {
    Uri::from(uri.into_parts().path_and_query.unwrap_or(PathAndQuery::from_static("/")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_connect_target_is_host_and_port() {
        let read = |text: &str| authority(&text.parse().expect("a URI"));
        assert_eq!(read("u.test:443").map(|(host, port)| (host.to_string(), port)), Ok(("u.test".to_owned(), 443)));
        for text in ["u.test", "user@u.test:443", "http://u.test:443/", "u.test:0", "u.test:99999"] {
            assert!(read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn an_absolute_target_is_read_and_passed_on_untouched() {
        let uri: Uri = "http://bob:pw@U.test:81?a=1&b=YQ%3D%3D".parse().expect("a URI");
        let target = absolute(&uri).expect("a target");
        assert_eq!(target.host_field().expect("a field"), "u.test:81");
        assert_eq!(origin_form(uri).to_string(), "/?a=1&b=YQ%3D%3D");
        for text in ["/path", "ftp://u.test/", "http://u.test:0/", "http://127.1/", "http://u..test/"] {
            assert!(absolute(&text.parse().expect("a URI")).is_err(), "{text}");
        }
    }
}
