//! Where a client connects, and whom it trusts there.
//!
//! The target of a `tcp` address is `HOST:PORT`, and after a `?` what is wished for, in this order, with
//! `&` between:
//!
//! * `server_uid=UID`: on loopback, servers of this user are trusted, too; `any`: everybody's.
//! * `tcp=off`: by a local socket or not at all.
//! * `local=off`: no local sockets; `local=DIR`: those of this directory only.
//!
//! Any user may listen on a port of loopback that is free. So what listens there must belong to root or
//! to the client's own user, or to whom the address names. The same holds for a server's local socket
//! ([`dafs_fabric::local`]), which is tried before its TCP address.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use dafs_fabric::local::{self, Trust};
use dafs_fabric::{Address, ConnectError};

use crate::{owner, sys};

/// Where to connect.
#[derive(Debug, Clone)]
pub enum Target {
    Tcp(SocketAddr, Trust),
    /// The local socket of a server on loopback TCP.
    Local(PathBuf, Trust),
    Unix(PathBuf),
}

impl Target {
    /// Checks whose the server is that `socket` is connected to, as far as can be known before it
    /// has answered.
    pub fn check_connected(&self, socket: &OwnedFd) -> io::Result<()> {
        let Target::Local(path, trust) = self else { return Ok(()) };
        let (_, uid, _) = local::peer_credentials(socket.as_fd())?;
        if trust.covers(uid) {
            return Ok(());
        }
        Err(untrusted(format!("{} is of uid {uid}", path.display())))
    }

    /// Checks it when the server has answered: a TCP socket that is not accepted yet has no owner.
    pub fn check_answered(&self, socket: &OwnedFd) -> io::Result<()> {
        match self {
            Target::Tcp(_, trust) => check_owner(*trust, socket),
            Target::Local(..) | Target::Unix(_) => Ok(()),
        }
    }
}

/// What an address wishes beside host and port.
#[derive(Debug, PartialEq, Eq)]
struct Wish<'a> {
    trust: Trust,
    by_tcp: bool,
    local: Local<'a>,
}

/// Where local sockets are looked for.
#[derive(Debug, PartialEq, Eq)]
enum Local<'a> {
    Usual,
    Off,
    In(&'a Path),
}

/// An error where a server at the other end of a loopback connection is none to be believed.
fn check_owner(trust: Trust, socket: &OwnedFd) -> io::Result<()> {
    let (_, peer) = owner::addresses(socket.as_fd())?;
    if trust == Trust::Anybody || !peer.ip().is_loopback() {
        return Ok(());
    }
    let owner = owner::of_peer(socket.as_fd())
        .map_err(|error| untrusted(format!("cannot ask whose server is at {peer}: {error}")))?;
    // As of then, if the connection stands still.
    match owner.filter(|_| sys::is_established(socket.as_raw_fd())) {
        Some(uid) if trust.covers(uid) => Ok(()),
        Some(uid) => Err(untrusted(format!("the server at {peer} is {}", local::stranger(uid)))),
        None => Err(untrusted(format!(
            "nobody knows whose server is at {peer}; ?server_uid=any in the URL trusts it"
        ))),
    }
}

fn untrusted(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::PermissionDenied, text)
}

pub fn bad(address: &Address, reason: impl ToString) -> ConnectError {
    ConnectError::Address { address: address.to_string(), reason: reason.to_string() }
}

/// What to try, in this order.
pub fn resolve(address: &Address) -> Result<VecDeque<Target>, ConnectError> {
    match address.scheme.as_str() {
        "unix" if address.target.is_empty() => Err(bad(address, "no path")),
        "unix" => Ok(VecDeque::from([Target::Unix(PathBuf::from(&address.target))])),
        "tcp" => {
            let (place, wish) = take_apart(&address.target).ok_or_else(|| bad(address, WISH))?;
            let found = dafs_names::addresses(place).map_err(|error| bad(address, error))?;
            let targets: VecDeque<Target> =
                found.into_iter().flat_map(|to| wish.ways(plain(to))).collect();
            match targets.is_empty() {
                false => Ok(targets),
                true if wish.by_tcp => Err(bad(address, "no such host")),
                true => {
                    Err(bad(address, "a local socket was asked for, and this is not this host"))
                }
            }
        }
        _ => Err(bad(address, "neither tcp nor unix")),
    }
}

const WISH: &str = "after '?' may stand server_uid=UID|any, then tcp=off, then local=off|DIR";

fn take_apart(target: &str) -> Option<(&str, Wish<'_>)> {
    let mut wish = Wish { trust: Trust::Usual, by_tcp: true, local: Local::Usual };
    let Some((place, mut rest)) = target.split_once('?') else { return Some((target, wish)) };
    if let Some(trust) = rest.strip_prefix("server_uid=") {
        let (uid, after) = trust.split_once('&').unwrap_or((trust, ""));
        (wish.trust, rest) = (Trust::parse(uid)?, after);
    }
    if let Some(after) = rest.strip_prefix("tcp=off") {
        (wish.by_tcp, rest) = (false, after.strip_prefix('&').unwrap_or(after));
    }
    match rest.strip_prefix("local=") {
        Some("off") => wish.local = Local::Off,
        Some(directory) if directory.starts_with('/') => wish.local = Local::In(directory.as_ref()),
        None if rest.is_empty() => {}
        _ => return None,
    }
    Some((place, wish))
}

impl Wish<'_> {
    /// To one address: by local sockets where there can be one, then by TCP.
    fn ways(&self, to: SocketAddr) -> Vec<Target> {
        let name = if to.ip().is_loopback() { local::socket_name(to) } else { None };
        let at =
            |directory: PathBuf| Some(Target::Local(directory.join(name.as_ref()?), self.trust));
        let mut ways: Vec<_> = self.directories().into_iter().filter_map(at).collect();
        if self.by_tcp {
            ways.push(Target::Tcp(to, self.trust));
        }
        ways
    }

    fn directories(&self) -> Vec<PathBuf> {
        match self.local {
            Local::Off => Vec::new(),
            Local::In(directory) => vec![directory.into()],
            Local::Usual => {
                let mut all = vec![PathBuf::from(local::SYSTEM_DIRECTORY)];
                all.extend(local::own_directory());
                all
            }
        }
    }
}

/// An IPv4 address that is written as one of IPv6 is one of IPv4.
fn plain(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        ip if ip.is_ipv4() => SocketAddr::new(ip, address.port()),
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn an_address_may_say_what_it_wishes() {
        let wish = |text| {
            let (place, wish) = take_apart(text)?;
            assert_eq!(place, "h:1");
            Some(wish)
        };
        let usual = |trust| Some(Wish { trust, by_tcp: true, local: Local::Usual });
        assert_eq!(wish("h:1"), usual(Trust::Usual));
        assert_eq!(wish("h:1?server_uid=7"), usual(Trust::User(7)));
        assert_eq!(wish("h:1?server_uid=any"), usual(Trust::Anybody));
        let off = |trust| Some(Wish { trust, by_tcp: true, local: Local::Off });
        assert_eq!(wish("h:1?local=off"), off(Trust::Usual));
        assert_eq!(wish("h:1?server_uid=7&local=off"), off(Trust::User(7)));
        let local = Local::In(Path::new("/a?b&c"));
        assert_eq!(
            wish("h:1?local=/a?b&c"),
            Some(Wish { trust: Trust::Usual, by_tcp: true, local })
        );
        assert_eq!(wish("h:1?"), usual(Trust::Usual));
        let not_by_tcp = Wish { trust: Trust::User(7), by_tcp: false, local: Local::Usual };
        assert_eq!(wish("h:1?server_uid=7&tcp=off"), Some(not_by_tcp));
        for wrong in ["h:1?server_uid=", "h:1?colour=red", "h:1?local=a", "h:1?local"] {
            assert_eq!(take_apart(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn only_loopback_has_local_sockets() {
        let ways = |target, to: &str| {
            let (_, wish) = take_apart(target).expect("a target");
            wish.ways(to.parse().expect("address")).len()
        };
        assert_eq!(ways("h:1?local=/d", "127.0.0.1:1"), 2);
        assert_eq!(ways("h:1?local=/d", "[::1]:1"), 2);
        assert_eq!(ways("h:1?local=off", "127.0.0.1:1"), 1);
        assert_eq!(ways("h:1?local=/d", "10.0.0.1:1"), 1);
        assert_eq!(ways("h:1?tcp=off&local=/d", "127.0.0.1:1"), 1);
        assert_eq!(ways("h:1?tcp=off", "10.0.0.1:1"), 0);
    }

    #[test]
    fn roots_servers_and_ones_own_are_trusted() {
        let me = local::effective_uid();
        let other = (1..).find(|uid| *uid != me).expect("a number");
        assert!(Trust::Usual.covers(0) && Trust::Usual.covers(me));
        assert!(!Trust::Usual.covers(other));
        assert!(Trust::User(other).covers(other) && Trust::User(other).covers(me));
    }

    #[test]
    fn who_is_not_known_is_not_trusted() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
        let to = listener.local_addr().expect("address");
        let socket = OwnedFd::from(TcpStream::connect(to).expect("connect"));
        let error = check_owner(Trust::Usual, &socket).expect_err("nobody has accepted it");
        assert!(error.to_string().contains("nobody knows whose"), "{error}");
        assert!(check_owner(Trust::Anybody, &socket).is_ok());
        let _server = listener.accept().expect("accept");
        assert!(check_owner(Trust::Usual, &socket).is_ok());
    }
}
