//! Whether the peer may be at a private address. Where it may not, a name that leads to one is refused when it is looked up,
//! at every connection: what a name means can change between a check and its use.

use super::PeerRefused;
use reqwest::Url;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};

/// Whether the peer may be at a private address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PrivateAddresses {
    /// It most often is.
    Allow,
    /// Only addresses that anybody can reach.
    Refuse,
}

/// Refuses an address that is written out and private. Names are looked at when they are looked up.
pub(super) fn check_literal(url: &Url) -> Result<(), PeerRefused> {
    let host = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    match host.parse::<IpAddr>() {
        Ok(address) if is_private(address) => Err(PeerRefused::Private),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Looks names up, and forgets private addresses.
pub(super) struct Guarded;

impl Resolve for Guarded {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let name = name.as_str().to_owned();
            let found = tokio::task::spawn_blocking(move || (name.as_str(), 0).to_socket_addrs()).await??;
            let public: Vec<SocketAddr> = found.filter(|address| !is_private(address.ip())).collect();
            if public.is_empty() {
                return Err(io::Error::other("the name leads to private addresses only").into());
            }
            Ok(Box::new(public.into_iter()) as Addrs)
        })
    }
}

fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => is_private_v4(address),
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(mapped) => is_private_v4(mapped),
            None => is_private_v6(address),
        },
    }
}

fn is_private_v4(address: Ipv4Addr) -> bool {
    let [first, second, ..] = address.octets();
    address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_broadcast()
        // "This network", shared between carriers and customers, and what is reserved.
        || first == 0
        || (first == 100 && (64..128).contains(&second))
        || first >= 240
}

fn is_private_v6(address: Ipv6Addr) -> bool {
    address.is_loopback()
        || address.is_unspecified()
        || address.is_multicast()
        || address.is_unique_local()
        || address.is_unicast_link_local()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_addresses_are_known_however_they_are_written() {
        for private in [
            "127.0.0.1",
            "10.1.2.3",
            "172.16.0.1",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "255.255.255.255",
            "::1",
            "::",
            "fe80::1",
            "fd00::1",
            "::ffff:127.0.0.1",
        ] {
            assert!(is_private(private.parse().unwrap()), "{private}");
        }
        for public in ["1.1.1.1", "100.128.0.1", "172.32.0.1", "2606:4700::1111"] {
            assert!(!is_private(public.parse().unwrap()), "{public}");
        }
        let check = |url: &str| check_literal(&Url::parse(url).unwrap());
        assert_eq!(check("http://[::1]:9/x"), Err(PeerRefused::Private));
        assert_eq!(check("http://0x7f.1/x"), Err(PeerRefused::Private));
        assert_eq!(check("http://peer.example/x"), Ok(()));
    }
}
