//! Which addresses may be dialled: the egress guard.
//!
//! A proxy that fetches what it is told to is a way into the network it stands in. The guard judges the
//! very address that is about to be dialled, after the lookup, so neither the spelling of the host nor a
//! DNS answer that changes between check and use matters. It is pure but for one question, asked in
//! [`OwnListeners`]: whether an address belongs to this machine.
//!
//! IPv6 can carry an IPv4 address in many forms. Each is taken out and judged as well, so that
//! `64:ff9b::a9fe:a9fe` is as forbidden as `169.254.169.254`, while a form that embeds a public address
//! passes: networks with DNS64 live on those.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use ipnet::IpNet;

/// One entry of `[egress] deny`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenyEntry {
    /// `"private"`: everything that is not the public internet's unicast space, as far as that matters for safety.
    Private,
    /// A CIDR.
    Net(IpNet),
}

/// `[egress] deny` and `[egress] allow`.
#[derive(Clone, Debug)]
pub struct Guard {
    deny: Vec<DenyEntry>,
    allow: Vec<IpNet>,
}

impl Guard {
    /// A guard that denies what `deny` names, unless `allow` names it too.
    pub fn new(deny: Vec<DenyEntry>, allow: Vec<IpNet>) -> Guard {
        Guard { deny, allow }
    }

    /// Whether `address` may be dialled.
    ///
    /// # Errors
    ///
    /// What the address is, to complete "it is …".
    pub fn judge(&self, address: IpAddr) -> Result<(), &'static str> {
        if self.allows(address) {
            return Ok(());
        }
        self.deny_reason(address)?;
        match address {
            IpAddr::V4(_) => Ok(()),
            IpAddr::V6(v6) => embedded(v6).into_iter().try_for_each(|v4| self.deny_reason(IpAddr::V4(v4))),
        }
    }

    /// An exception opens what it names and nothing else: of the embedding forms only the mapped one, which
    /// is the same IPv4 destination for the kernel.
    fn allows(&self, address: IpAddr) -> bool {
        let canonical = address.to_canonical();
        self.allow.iter().any(|net| net.contains(&address) || net.contains(&canonical))
    }

    fn deny_reason(&self, address: IpAddr) -> Result<(), &'static str> {
        for entry in &self.deny {
            match entry {
                DenyEntry::Private => private(address)?,
                DenyEntry::Net(net) if net.contains(&address) => return Err("in a denied network"),
                DenyEntry::Net(_) => {}
            }
        }
        Ok(())
    }
}

impl Default for Guard {
    /// `deny = ["private"]`, no exceptions.
    fn default() -> Guard {
        Guard::new(vec![DenyEntry::Private], Vec::new())
    }
}

/// `Err` says in which way `address` is private. Embedded addresses are not looked at.
fn private(address: IpAddr) -> Result<(), &'static str> {
    let why = match address {
        IpAddr::V4(v4) => private_v4(v4),
        IpAddr::V6(v6) => private_v6(v6),
    };
    why.map_or(Ok(()), Err)
}

fn private_v4(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, ..] = address.octets();
    match a {
        _ if address.is_unspecified() => Some("the unspecified address"),
        _ if address.is_broadcast() => Some("the broadcast address"),
        0 => Some("an address of this network (0.0.0.0/8)"),
        127 => Some("a loopback address"),
        169 if b == 254 => Some("a link-local address"),
        100 if (64..128).contains(&b) => Some("a carrier-grade NAT address (100.64.0.0/10)"),
        224..240 => Some("a multicast address"),
        240.. => Some("a reserved address (240.0.0.0/4)"),
        _ if address.is_private() => Some("a private address"),
        _ => None,
    }
}

fn private_v6(address: Ipv6Addr) -> Option<&'static str> {
    match address.segments()[0] {
        _ if address.is_unspecified() => Some("the unspecified address"),
        _ if address.is_loopback() => Some("a loopback address"),
        0xfe80..0xfec0 => Some("a link-local address"),
        0xfc00..0xfe00 => Some("a unique local address (fc00::/7)"),
        0xff00.. => Some("a multicast address"),
        _ => None,
    }
}

/// The IPv4 addresses that an IPv6 address carries.
fn embedded(address: Ipv6Addr) -> Vec<Ipv4Addr> {
    let bits = address.to_bits();
    let low = Ipv4Addr::from_bits(bits as u32);
    match address.segments() {
        // `::` and `::1` are addresses of their own
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => Vec::new(),
        // IPv4-compatible and IPv4-mapped (RFC 4291 section 2.5.5), IPv4-translated (RFC 2765 section 2.1)
        [0, 0, 0, 0, 0, 0 | 0xffff, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => vec![low],
        // NAT64, the well-known prefix (RFC 6052 section 2.1)
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => vec![low],
        [0x64, 0xff9b, 1, ..] => local_nat64(bits),
        // 6to4 (RFC 3056 section 2)
        [0x2002, ..] => vec![Ipv4Addr::from_bits((bits >> 80) as u32)],
        // Teredo: the server, and the client with its bits turned (RFC 4380 section 4)
        [0x2001, 0, ..] => vec![Ipv4Addr::from_bits((bits >> 64) as u32), Ipv4Addr::from_bits(!(bits as u32))],
        _ => Vec::new(),
    }
}

/// Every reading of an address in 64:ff9b:1::/48 (RFC 8215), whose owner chooses how long the prefix is.
///
/// The layouts are those of RFC 6052 section 2.2 for /48, /56, /64 and /96; what follows the IPv4 address
/// has to be zero, which leaves one layout for almost every address. Where more remain, all are judged.
/// A reading as 0.0.0.0/8 is what a wrong layout looks like, and counts only if there is no other.
fn local_nat64(bits: u128) -> Vec<Ipv4Addr> {
    let (high, low) = ((bits >> 64) as u64, bits as u64);
    // bits 64 to 71 are a gap: with it taken out, the IPv4 address follows the prefix without a break
    let joined = u128::from(high) << 64 | u128::from(low << 8);
    let short = [48u32, 56, 64].into_iter().filter_map(|prefix| {
        let rest = joined << prefix;
        (rest << 32 == 0).then(|| Ipv4Addr::from_bits((rest >> 96) as u32))
    });
    let readings = short.chain([Ipv4Addr::from_bits(bits as u32)]);
    let plausible: Vec<_> = readings.filter(|v4| v4.octets()[0] != 0).collect();
    if plausible.is_empty() { vec![Ipv4Addr::UNSPECIFIED] } else { plausible }
}

/// The sockets on which this process itself listens. Dialling one would let a client of the proxy reach
/// the admin port, or make the proxy talk to itself.
#[derive(Clone, Debug, Default)]
pub struct OwnListeners {
    addresses: Vec<SocketAddr>,
}

impl OwnListeners {
    /// The addresses as bound, with their real ports. Wildcards stand for every address of this machine.
    pub fn new(addresses: impl IntoIterator<Item = SocketAddr>) -> OwnListeners {
        OwnListeners { addresses: addresses.into_iter().collect() }
    }

    /// True if a connection to `target` would end at one of them.
    pub fn contains(&self, target: SocketAddr) -> bool {
        let ip = where_it_ends(target.ip());
        self.addresses.iter().filter(|own| own.port() == target.port()).any(|own| {
            let own = own.ip().to_canonical();
            own == ip || (own.is_unspecified() && takes_family(own, ip) && is_of_this_machine(ip))
        })
    }
}

/// A connection to the unspecified address ends at the loopback address on Linux and the BSDs.
fn where_it_ends(ip: IpAddr) -> IpAddr {
    match ip.to_canonical() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        other => other,
    }
}

/// `[::]` takes IPv4 as well, unless it was told not to; `0.0.0.0` never takes IPv6.
fn takes_family(wildcard: IpAddr, ip: IpAddr) -> bool {
    wildcard.is_ipv6() || ip.is_ipv4()
}

/// Asks the kernel: only an address of this machine can be bound. Sends nothing.
fn is_of_this_machine(ip: IpAddr) -> bool {
    match UdpSocket::bind(SocketAddr::new(ip, 0)) {
        Ok(_) => true,
        Err(error) => error.kind() == io::ErrorKind::AddrInUse,
    }
}
