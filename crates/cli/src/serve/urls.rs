//! What clients are told to connect to.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::PathBuf;

use dafs_client::Url;
use dafs_fabric::Address;

/// The URLs of what listens at `addresses`, as they work on other machines, too, where the addresses do.
pub fn public(addresses: &[Address]) -> Vec<String> {
    addresses.iter().map(|address| url(&with_host(address, own))).collect()
}

/// The URLs by which `dafs status` may be asked for the server: also by loopback where it has all addresses.
pub fn known(addresses: &[Address]) -> Vec<String> {
    let loopback = |address| url(&with_host(address, loopback));
    let mut urls = public(addresses);
    urls.extend(addresses.iter().map(loopback));
    urls.dedup();
    urls
}

/// With another host in place of "all addresses", which nobody can connect to from elsewhere.
fn with_host(address: &Address, host: impl Fn(bool) -> IpAddr) -> Address {
    match address.target.parse::<SocketAddr>() {
        Ok(mut at) if at.ip().is_unspecified() && !address.is_path() => {
            at.set_ip(host(at.is_ipv6()));
            Address { target: at.to_string(), ..address.clone() }
        }
        _ => address.clone(),
    }
}

/// The address by which this machine goes to others; without any, loopback is all there is.
fn own(is_ipv6: bool) -> IpAddr {
    // Addresses for documentation: nothing is sent, the system looks for a way there.
    let (any, far) =
        if is_ipv6 { ("[::]:0", "[2001:db8::1]:9") } else { ("0.0.0.0:0", "192.0.2.1:9") };
    let found = UdpSocket::bind(any).and_then(|socket| {
        socket.connect(far)?;
        socket.local_addr()
    });
    found.map_or_else(|_| loopback(is_ipv6), |at| at.ip())
}

fn loopback(is_ipv6: bool) -> IpAddr {
    if is_ipv6 { Ipv6Addr::LOCALHOST.into() } else { Ipv4Addr::LOCALHOST.into() }
}

/// The URL of what listens at `address`.
fn url(address: &Address) -> String {
    if address.is_path() {
        let url = Url {
            host: String::new(),
            port: dafs_client::DEFAULT_PORT,
            unix: Some(PathBuf::from(&address.target)),
            transport: Some(address.scheme.clone()).filter(|name| name != Address::LOCAL_SCHEME),
            path: Vec::new(),
            options: Vec::new(),
        };
        return url.to_string();
    }
    let default = format!(":{}", dafs_client::DEFAULT_PORT);
    let target = address.target.strip_suffix(&default).unwrap_or(&address.target);
    format!("dafs://{target}/")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        Address::parse(text).expect("address")
    }

    #[test]
    fn addresses_become_urls_that_end_in_a_slash() {
        let url = |text| url(&address(text));
        assert_eq!(url("tcp://127.0.0.1:20490"), "dafs://127.0.0.1/");
        assert_eq!(url("tcp://127.0.0.1:7000"), "dafs://127.0.0.1:7000/");
        assert_eq!(url("tcp://[::1]:20490"), "dafs://[::1]/");
        assert_eq!(url("unix:/run/dafs.sock"), "dafs+unix:///run/dafs.sock//");
        for text in [
            "tcp://127.0.0.1:7000",
            "tcp://[::1]:1",
            "unix:/run/dafs.sock",
            "unix:/a b/s",
            "mesh:/s",
        ] {
            let parsed = Url::parse(&url(text)).expect("a URL of ours");
            assert_eq!(parsed.address().to_string(), text);
        }
    }

    #[test]
    fn all_addresses_are_one_that_others_can_use() {
        for (text, host) in [("tcp://0.0.0.0:7", "0.0.0.0"), ("tcp://[::]:7", "[::]")] {
            let urls = public(&[address(text)]);
            assert!(!urls[0].contains(host) && urls[0].ends_with(":7/"), "{urls:?}");
        }
        let known = known(&[address("tcp://0.0.0.0:7")]);
        assert_eq!(known.last().map(String::as_str), Some("dafs://127.0.0.1:7/"));
        assert_eq!(public(&[address("tcp://127.0.0.1:7")]), ["dafs://127.0.0.1:7/"]);
    }
}
