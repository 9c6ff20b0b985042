//! The addresses of a host.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::path::Path;

use crate::dns::{Answer, Resolver, Settings};
use crate::files;

/// Where hosts are looked up.
pub struct Sources {
    /// What `/etc/hosts` says.
    pub hosts: String,
    pub settings: Settings,
}

impl Sources {
    /// Those of this machine.
    ///
    /// # Errors
    /// A file is there and cannot be read.
    #[cfg_attr(
        not(target_feature = "crt-static"),
        expect(dead_code, reason = "the system looks up")
    )]
    pub fn of_system() -> io::Result<Sources> {
        let hosts = files::read(Path::new("/etc/hosts"))?;
        let settings = Settings::parse(&files::read(Path::new("/etc/resolv.conf"))?);
        Ok(Sources { hosts, settings })
    }
}

/// The addresses of `HOST:PORT`, those that can be reached first. What is an address already is looked up
/// nowhere.
///
/// # Errors
/// It is no such thing, nobody knows the host, or who knows does not answer.
pub fn addresses(
    place: &str,
    sources: &dyn Fn() -> io::Result<Sources>,
) -> io::Result<Vec<SocketAddr>> {
    if let Ok(address) = place.parse() {
        return Ok(vec![address]);
    }
    let wrong = || io::Error::new(io::ErrorKind::InvalidInput, "expected HOST:PORT");
    let (host, port) = place.rsplit_once(':').ok_or_else(wrong)?;
    let port = port.parse().map_err(|_| wrong())?;
    if let Ok(address) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(address, port)]);
    }
    let found = look_up(host, &sources()?)?;
    let mut found: Vec<_> = found.into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
    found.sort_by_key(|address| !has_route(*address));
    Ok(found)
}

fn look_up(host: &str, sources: &Sources) -> io::Result<Vec<IpAddr>> {
    let bare = host.strip_suffix('.').unwrap_or(host);
    let found = files::host(&sources.hosts, bare);
    if !found.is_empty() {
        return Ok(found);
    }
    if is_localhost(bare) {
        return Ok(vec![Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()]);
    }
    match Resolver::new(&sources.settings).addresses(host)? {
        Answer::Addresses(found) => Ok(found),
        Answer::NoSuchName => Err(io::Error::new(io::ErrorKind::NotFound, "no such host")),
        Answer::NoAddress => {
            Err(io::Error::new(io::ErrorKind::NotFound, "the host has no address"))
        }
    }
}

/// Names below `localhost` are this machine's, whatever name servers say (RFC 6761).
fn is_localhost(host: &str) -> bool {
    let last = host.rsplit('.').next().unwrap_or("");
    last.eq_ignore_ascii_case("localhost")
}

/// Whether the system has a way to an address: nothing is sent.
fn has_route(to: SocketAddr) -> bool {
    let from: SocketAddr = match to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    UdpSocket::bind(from).and_then(|socket| socket.connect(to)).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources() -> io::Result<Sources> {
        let hosts = "127.0.0.9 here\n255.255.255.255 two\n127.0.0.2 two\n".to_owned();
        // Nobody is asked: no test sends a question to a real name server.
        Ok(Sources { hosts, settings: Settings { servers: Vec::new(), ..Settings::default() } })
    }

    fn found(place: &str) -> Result<String, io::ErrorKind> {
        let list = addresses(place, &sources).map_err(|error| error.kind())?;
        Ok(list.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
    }

    #[test]
    fn what_is_an_address_is_looked_up_nowhere() {
        let unread = || -> io::Result<Sources> { panic!("looked up") };
        for place in ["127.0.0.1:20490", "[::1]:7", "[fe80::1%2]:7"] {
            let list = addresses(place, &unread).expect(place);
            assert_eq!(list.len(), 1, "{place}");
        }
    }

    #[test]
    fn hosts_come_from_the_file_and_localhost_from_nowhere() {
        assert_eq!(found("HERE:1"), Ok("127.0.0.9:1".to_owned()));
        assert_eq!(found("here.:1"), Ok("127.0.0.9:1".to_owned()));
        assert_eq!(found("localhost:2"), Ok("127.0.0.1:2 [::1]:2".to_owned()));
        assert_eq!(found("a.localhost:2"), Ok("127.0.0.1:2 [::1]:2".to_owned()));
    }

    #[test]
    fn what_has_no_way_comes_last() {
        assert_eq!(found("two:3"), Ok("127.0.0.2:3 255.255.255.255:3".to_owned()));
    }

    #[test]
    fn wrong_places_are_refused() {
        for place in ["", "host", "host:", "host:99999", "host:x", ":"] {
            assert_eq!(found(place), Err(io::ErrorKind::InvalidInput), "{place}");
        }
        found("a..b:1").expect_err("an empty label");
        found(":1").expect_err("no host");
    }
}
