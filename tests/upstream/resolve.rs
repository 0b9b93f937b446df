//! Names to addresses, with a DNS server of our own.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use fusebox::core::outcome::Outcome;
use fusebox::upstream::error::{ResolverTrouble, UpstreamError};
use fusebox::upstream::resolve::{Resolver, StaticAnswers};
use hickory_resolver::Hosts;
use hickory_resolver::config::{ConnectionConfig, NameServerConfig, ResolverConfig, ResolverOpts};
use hickory_resolver::proto::op::{Message, ResponseCode};
use hickory_resolver::proto::rr::{Name, RData, Record, RecordType};
use tokio::net::UdpSocket;

const LIMIT: Duration = Duration::from_secs(5);

fn fixed(answers: &[(&str, &str)]) -> StaticAnswers {
    StaticAnswers::new(
        answers.iter().map(|(pattern, ip)| {
            (pattern.to_string(), ip.split(' ').map(|ip| ip.parse().expect("an address")).collect())
        }),
    )
}

fn hosts(text: &str) -> Hosts {
    let mut hosts = Hosts::default();
    hosts.read_hosts_conf(text.as_bytes()).expect("a hosts file");
    hosts
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().expect("an address")).collect()
}

#[test]
fn the_longest_static_pattern_wins() {
    let answers = fixed(&[
        ("*.medium.test", "127.0.0.1"),
        ("*.deep.medium.test", "127.0.0.2"),
        ("one.deep.medium.test", "127.0.0.3 ::3"),
        ("Exact.TEST.", "127.0.0.4"),
        ("*.bücher.test", "127.0.0.5"),
        ("*.test", "127.0.0.6"),
    ]);
    for (name, expected) in [
        ("a.medium.test", "127.0.0.1"),
        ("a.b.medium.test", "127.0.0.1"),
        ("deep.medium.test", "127.0.0.1"),
        ("A.Deep.Medium.test", "127.0.0.2"),
        ("exact.test", "127.0.0.4"),
        ("a.xn--bcher-kva.test", "127.0.0.5"),
        ("medium.test", "127.0.0.6"),
        ("untrusted-medium.test", "127.0.0.6"),
    ] {
        assert_eq!(answers.find(name), Some(ips(&[expected]).as_slice()), "{name}");
    }
    assert_eq!(answers.find("one.deep.medium.test"), Some(ips(&["127.0.0.3", "::3"]).as_slice()));
    for name in ["test", "medium.example", "atest", ".test"] {
        assert_eq!(answers.find(name), None, "{name}");
    }
}

/// A server that answers by the first label of the name. Returns its address; it ends with the runtime.
async fn dns_server() -> SocketAddr {
    let socket = UdpSocket::bind("127.0.0.1:0").await.expect("a free port");
    let address = socket.local_addr().expect("an address");
    tokio::spawn(async move {
        let mut buffer = [0; 1_500];
        while let Ok((length, from)) = socket.recv_from(&mut buffer).await {
            let query = Message::from_vec(&buffer[..length]).expect("a query");
            if let Some(answer) = dns_answer(query) {
                let _ = socket.send_to(&answer.to_vec().expect("a message"), from).await;
            }
        }
    });
    address
}

fn dns_answer(query: Message) -> Option<Message> {
    let question = query.queries.first().cloned().expect("a question");
    let (name, family) = (question.name().clone(), question.query_type());
    let first_label = name.iter().next().map(<[u8]>::to_vec).unwrap_or_default();
    let mut answer = query.into_response();
    let v4 = RData::A(Ipv4Addr::new(203, 0, 113, 1).into());
    let v6 = RData::AAAA("2001:db8::1".parse().expect("an address"));
    let records = match (first_label.as_slice(), family) {
        (b"both" | b"feeds" | b"v4only" | b"aaaa-lost" | b"aaaa-servfail" | b"127", RecordType::A) => vec![v4],
        (b"both" | b"v6only", RecordType::AAAA) => vec![v6],
        (b"typo", _) => {
            answer.metadata.response_code = ResponseCode::NXDomain;
            vec![]
        }
        (b"servfail", _) | (b"aaaa-servfail", RecordType::AAAA) | (b"half-servfail", RecordType::A) => {
            answer.metadata.response_code = ResponseCode::ServFail;
            vec![]
        }
        (b"refused", _) => {
            answer.metadata.response_code = ResponseCode::Refused;
            vec![]
        }
        (b"silent", _) | (b"aaaa-lost", RecordType::AAAA) => return None,
        _ => vec![],
    };
    answer.insert_answers(records.into_iter().map(|data| Record::from_rdata(name.clone(), 60, data)).collect());
    Some(answer)
}

async fn resolver() -> Resolver {
    let server = dns_server().await;
    let mut connection = ConnectionConfig::udp();
    connection.port = server.port();
    let name_server = NameServerConfig::new(server.ip(), true, vec![connection]);
    let search = vec![Name::from_ascii("search.test.").expect("a name")];
    let config = ResolverConfig::from_parts(None, search, vec![name_server]);
    Resolver::new(
        fixed(&[("*.fixed.test", "127.0.0.1")]),
        hosts("127.0.0.7 listed both"),
        Ok((config, ResolverOpts::default())),
    )
}

#[tokio::test]
async fn addresses_come_from_the_nearest_source() {
    let resolver = resolver().await;
    for (name, expected) in [
        ("a.fixed.test", vec!["127.0.0.1"]),
        ("listed", vec!["127.0.0.7"]),
        ("both", vec!["127.0.0.7"]),
        ("both.test", vec!["2001:db8::1", "203.0.113.1"]),
        ("v4only.test", vec!["203.0.113.1"]),
        ("v6only.test", vec!["2001:db8::1"]),
        ("feeds", vec!["203.0.113.1"]),
        ("localhost", vec!["::1", "127.0.0.1"]),
        ("x.LocalHost", vec!["::1", "127.0.0.1"]),
    ] {
        let mut found = resolver.resolve(name, LIMIT).await.unwrap_or_else(|error| panic!("{name}: {error}"));
        found.sort_by_key(IpAddr::is_ipv4);
        assert_eq!(found, ips(&expected), "{name}");
    }
    assert_eq!(resolver.failures(), 0);
}

#[tokio::test]
async fn text_that_looks_like_a_number_is_asked_as_a_name() {
    let found = resolver().await.resolve("127.0.0.1", LIMIT).await.expect("an answer of our server");
    assert_eq!(found, ips(&["203.0.113.1"]));
}

#[tokio::test]
async fn a_name_without_addresses_is_told_from_a_resolver_in_trouble() {
    let resolver = resolver().await;
    for name in ["typo.test", "nodata.test", "typo", "a..b"] {
        let error = resolver.resolve(name, LIMIT).await.expect_err(name);
        assert!(matches!(error, UpstreamError::NoSuchName), "{name}: {error}");
        assert_eq!((error.status().as_u16(), error.proxy_error()), (502, "dns_error"));
    }
    assert_eq!(resolver.failures(), 0);
    for name in ["servfail.test", "refused.test", "half-servfail.test"] {
        let error = resolver.resolve(name, LIMIT).await.expect_err(name);
        assert!(matches!(error, UpstreamError::ResolverTrouble(ResolverTrouble::Failed(_))), "{name}: {error}");
        assert_eq!((error.status().as_u16(), error.proxy_error()), (502, "dns_error"));
        assert_eq!(error.outcome(), Outcome::NotCounted);
    }
    assert_eq!(resolver.failures(), 3);
    let error = resolver.resolve("silent.test", Duration::from_millis(50)).await.expect_err("silence");
    assert!(matches!(error, UpstreamError::ResolverTrouble(ResolverTrouble::Timeout)), "{error}");
    assert_eq!((error.status().as_u16(), error.proxy_error()), (504, "dns_timeout"));
    assert_eq!(error.outcome(), Outcome::NotCounted);
    assert_eq!(resolver.failures(), 4);
}

#[tokio::test]
async fn one_family_in_trouble_does_not_hold_up_the_other() {
    let resolver = resolver().await;
    for name in ["aaaa-servfail.test", "aaaa-lost.test"] {
        // far below the time after which a lost question is asked again
        let found = tokio::time::timeout(Duration::from_secs(1), resolver.resolve(name, LIMIT)).await;
        assert_eq!(found.expect("in time").expect("addresses"), ips(&["203.0.113.1"]), "{name}");
    }
}

#[tokio::test]
async fn without_a_resolver_all_but_dns_works() {
    for dns in
        [Err("no such file".to_owned()), Ok((ResolverConfig::from_name_servers(vec![]), ResolverOpts::default()))]
    {
        let resolver = Resolver::new(fixed(&[("a.test", "127.0.0.1")]), hosts("::7 listed"), dns);
        assert_eq!(resolver.resolve("a.test", LIMIT).await.expect("static"), ips(&["127.0.0.1"]));
        assert_eq!(resolver.resolve("listed", LIMIT).await.expect("hosts"), ips(&["::7"]));
        assert_eq!(resolver.resolve("localhost", LIMIT).await.expect("loopback"), ips(&["::1", "127.0.0.1"]));
        let error = resolver.resolve("b.test", LIMIT).await.expect_err("no DNS");
        assert!(matches!(error, UpstreamError::ResolverTrouble(ResolverTrouble::NotConfigured(_))), "{error}");
        assert_eq!(resolver.failures(), 1);
    }
}
