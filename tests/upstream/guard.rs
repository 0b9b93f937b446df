//! Which addresses may be dialled.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};

use fusebox::upstream::guard::{DenyEntry, Guard, OwnListeners};
use ipnet::IpNet;
use proptest::prelude::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn inner_addresses_are_denied_in_every_disguise() {
    for text in [
        "169.254.169.254",
        "::ffff:169.254.169.254",
        "::ffff:a9fe:a9fe",
        "::169.254.169.254",
        "::ffff:0:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "64:ff9b:1::a9fe:a9fe",
        "64:ff9b:1:fffe::a9fe:a9fe",
        "64:ff9b:1:a9fe:a9:fe00::",
        "64:ff9b:1:a9:fe:a9fe::",
        "64:ff9b:1:7:a9:fea9:fe00::",
        "2002:a9fe:a9fe::1",
        "2001:0:808:808::5601:5601",
        "2001:0:a00:1::f7f7:f7f7",
        "0.0.0.0",
        "0.1.2.3",
        "::",
        "::1",
        "::2",
        "::ffff:127.0.0.1",
        "::ffff:0.0.0.0",
        "127.0.0.1",
        "127.255.255.254",
        "10.0.0.1",
        "10.255.255.255",
        "172.16.0.0",
        "172.31.255.255",
        "192.168.0.1",
        "169.254.0.1",
        "100.64.0.1",
        "100.127.255.255",
        "fe80::1",
        "febf::1",
        "fc00::1",
        "fd00::1",
        "fdff::1",
        "ff02::1",
        "224.0.0.1",
        "239.255.255.255",
        "240.0.0.1",
        "255.255.255.255",
        "64:ff9b::7f00:1",
        "64:ff9b::",
        "64:ff9b:1::",
    ] {
        assert!(Guard::default().judge(ip(text)).is_err(), "{text}");
    }
}

#[test]
fn neighbours_of_inner_addresses_are_allowed() {
    for text in [
        "1.0.0.0",
        "8.8.8.8",
        "9.255.255.255",
        "11.0.0.0",
        "100.63.255.255",
        "100.128.0.0",
        "126.255.255.255",
        "128.0.0.0",
        "169.253.255.255",
        "169.255.0.0",
        "172.15.255.255",
        "172.32.0.0",
        "192.167.255.255",
        "192.169.0.0",
        "223.255.255.255",
        "::ffff:8.8.8.8",
        "64:ff9b::808:808",
        "64:ff9b:1::808:808",
        "64:ff9b:1:808:8:800::",
        "64:ff9b:1:8:8:808::",
        "64:ff9b:1:7:8:808:800::",
        "2002:808:808::1",
        "2001:0:808:808::f7f7:f7f7",
        "2001:4860:4860::8888",
        "2606:4700::1",
        "fbff::1",
    ] {
        assert_eq!(Guard::default().judge(ip(text)), Ok(()), "{text}");
    }
}

#[test]
fn an_exception_opens_exactly_what_it_names() {
    let guard = Guard::new(vec![DenyEntry::Private], vec![net("10.0.0.7/32"), net("fd00:1::/32")]);
    for text in ["10.0.0.7", "::ffff:10.0.0.7", "fd00:1::9"] {
        assert_eq!(guard.judge(ip(text)), Ok(()), "{text}");
    }
    for text in ["10.0.0.6", "10.0.0.8", "64:ff9b::a00:7", "2002:a00:7::", "::10.0.0.7", "fd00:2::9", "127.0.0.1"] {
        assert!(guard.judge(ip(text)).is_err(), "{text}");
    }
}

#[test]
fn a_denied_network_is_denied_in_disguise_too_and_nothing_else_is() {
    let guard = Guard::new(vec![DenyEntry::Net(net("203.0.113.0/24"))], vec![net("203.0.113.9/32")]);
    for text in ["203.0.113.1", "::ffff:203.0.113.1", "64:ff9b::cb00:7101", "2002:cb00:7101::"] {
        assert_eq!(guard.judge(ip(text)), Err("in a denied network"), "{text}");
    }
    for text in ["203.0.113.9", "203.0.114.1", "127.0.0.1", "::1"] {
        assert_eq!(guard.judge(ip(text)), Ok(()), "{text}");
    }
    assert_eq!(Guard::new(vec![], vec![]).judge(ip("127.0.0.1")), Ok(()));
}

/// Every form in which `v4` can stand inside an IPv6 address.
fn embeddings(v4: Ipv4Addr, prefix: u16) -> Vec<Ipv6Addr> {
    let bits = u128::from(v4.to_bits());
    let [a, b, c, d] = v4.octets().map(u16::from);
    let word = |high: u16, low: u16| high << 8 | low;
    let low = |base: &str| Ipv6Addr::from_bits(base.parse::<Ipv6Addr>().expect("a prefix").to_bits() | bits);
    vec![
        v4.to_ipv6_mapped(),
        low("::ffff:0:0:0"),
        low("64:ff9b::"),
        low("64:ff9b:1::"),
        Ipv6Addr::new(0x64, 0xff9b, 1, prefix, 0, 0, word(a, b), word(c, d)),
        Ipv6Addr::new(0x2002, word(a, b), word(c, d), prefix, 0, 0, 0, 1),
        Ipv6Addr::new(0x2001, 0, 0x808, 0x808, 0, prefix, !word(a, b), !word(c, d)),
    ]
}

fn any_v4() -> impl Strategy<Value = Ipv4Addr> {
    // at random almost nothing is private: half of the addresses start as one does
    let first = prop_oneof![any::<u8>(), prop::sample::select(vec![0, 10, 100, 127, 169, 172, 192, 224, 240, 255])];
    let second = prop_oneof![any::<u8>(), prop::sample::select(vec![0, 15, 16, 31, 32, 63, 64, 127, 128, 168, 254])];
    (first, second, any::<u8>(), any::<u8>()).prop_map(|(a, b, c, d)| Ipv4Addr::new(a, b, c, d))
}

proptest! {
    #[test]
    fn an_address_and_all_its_embeddings_get_the_same_verdict(v4 in any_v4(), prefix: u16) {
        let guard = Guard::default();
        let plain = guard.judge(v4.into()).is_ok();
        for v6 in embeddings(v4, prefix) {
            prop_assert_eq!(guard.judge(v6.into()).is_ok(), plain, "{} as {}", v4, v6);
        }
        // `::` and `::1` have names of their own
        if v4.to_bits() > 1 {
            let compatible = Ipv6Addr::from_bits(u128::from(v4.to_bits()));
            prop_assert_eq!(guard.judge(compatible.into()).is_ok(), plain, "{} as {}", v4, compatible);
        }
    }
}

fn at(text: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip(text), port)
}

#[test]
fn own_listeners_are_known_by_address_and_port() {
    let own = OwnListeners::new([at("127.0.0.1", 3128), at("::1", 3129)]);
    for target in
        [at("127.0.0.1", 3128), at("::ffff:127.0.0.1", 3128), at("0.0.0.0", 3128), at("::1", 3129), at("::", 3129)]
    {
        assert!(own.contains(target), "{target}");
    }
    for target in [at("127.0.0.2", 3128), at("127.0.0.1", 3129), at("::1", 3128), at("127.0.0.1", 80)] {
        assert!(!own.contains(target), "{target}");
    }
    assert!(!OwnListeners::default().contains(at("127.0.0.1", 3128)));
}

#[test]
fn a_wildcard_listener_stands_for_every_address_of_this_machine() {
    let v4 = TcpListener::bind("0.0.0.0:0").expect("a free port").local_addr().expect("an address");
    let own = OwnListeners::new([v4]);
    for text in ["127.0.0.1", "127.9.9.9", "0.0.0.0", "::ffff:127.0.0.1"] {
        assert!(own.contains(at(text, v4.port())), "{text}");
    }
    // 203.0.113.0/24 is for documentation: no machine has it
    for text in ["203.0.113.7", "::1", "2001:db8::7"] {
        assert!(!own.contains(at(text, v4.port())), "{text}");
    }
    assert!(!own.contains(at("127.0.0.1", v4.port() ^ 1)));

    let both = OwnListeners::new([at("::", 4000)]);
    for text in ["127.0.0.1", "::1", "::"] {
        assert!(both.contains(at(text, 4000)), "{text}");
    }
    assert!(!both.contains(at("2001:db8::7", 4000)));
}
