//! Who a peer is, by the kernel's word: SO_PEERCRED on a Unix socket, sock_diag on loopback TCP.
//!
//! Sockets of this host are asked for by their four numbers. A socket that is not established
//! any more, or has no inode, has no owner to trust (the kernel reports uid 0 for those).
//!
//! The four numbers are those of our peer only while our end is established: a peer that resets
//! leaves its bytes to be read here, and its port to anybody. So our end is looked at *after* the
//! question: established then, it was so while the kernel answered, and as long as it is, nobody
//! else can be connected from that port to this one.

use std::net::SocketAddr;

use dafs_fabric::PeerInfo;
use dafs_protocol::{GROUPS_MAX, Identity};
use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::{
    SockDiagMessage,
    constants::{AF_INET, AF_INET6, IPPROTO_TCP},
    inet::{ExtensionFlags, InetRequest, SocketId, StateFlags},
};
use netlink_sys::{Socket, SocketAddr as NetlinkAddr, protocols::NETLINK_SOCK_DIAG};

/// The number of users and groups that are nobody.
const NOBODY: u32 = 65_534;

/// What is known of a peer when its connection is accepted.
#[derive(Debug, Clone)]
pub enum Proof {
    /// The kernel says so.
    Kernel(Identity),
    /// It must prove that it holds the key.
    Key,
    /// Nothing; it acts as this.
    Anonymous(Identity),
    /// It is not wanted; it is told why when it asks.
    Refused(String),
}

/// Why nobody can tell who a peer is.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The kernel does not know the socket (any more), or it is not on this host.
    #[error("no established socket of this host has the peer's address {0}")]
    Unknown(SocketAddr),
    /// A user of another user namespace: one of many with this number.
    #[error("the peer's user has no number in the server's user namespace (uid {0})")]
    Unmapped(u32),
    /// Not a loopback connection, and no key is configured.
    #[error("peer {0} is not on this host and no key is configured")]
    Remote(SocketAddr),
    /// The user database.
    #[error("groups of uid {uid}: {source}")]
    Groups {
        /// Whose.
        uid: u32,
        /// Why.
        source: nix::Error,
    },
    /// sock_diag.
    #[error("sock_diag: {0}")]
    Io(#[from] std::io::Error),
}

/// Proves a peer, given whether a key is configured and who callers without proof are.
///
/// # Errors
/// [`IdentityError`].
pub(crate) fn prove(
    peer: &PeerInfo,
    is_established: impl Fn() -> bool,
    has_key: bool,
    anonymous: Option<&Identity>,
) -> Result<Proof, IdentityError> {
    match peer {
        PeerInfo::Unix { uid, gid, groups, .. } => {
            let groups = groups.iter().copied().take(GROUPS_MAX).collect();
            Ok(Proof::Kernel(Identity { uid: known(*uid)?, gid: *gid, groups }))
        }
        PeerInfo::Tcp { local, peer } if local.ip().is_loopback() && peer.ip().is_loopback() => {
            let owner = socket_owner(*peer, *local)?;
            match owner.filter(|_| is_established()) {
                Some(uid) => Ok(Proof::Kernel(with_groups(known(uid)?)?)),
                None => Err(IdentityError::Unknown(*peer)),
            }
        }
        PeerInfo::Tcp { .. } if has_key => Ok(Proof::Key),
        PeerInfo::Tcp { peer, .. } => match anonymous {
            Some(identity) => Ok(Proof::Anonymous(identity.clone())),
            None => Err(IdentityError::Remote(*peer)),
        },
        PeerInfo::Sim { .. } => Ok(Proof::Kernel(Identity::root())),
    }
}

/// The uid, unless it stands for all users that this user namespace has no number for.
fn known(uid: u32) -> Result<u32, IdentityError> {
    let is_ambiguous = uid == overflow_uid() && !all_users_are_mapped();
    if is_ambiguous { Err(IdentityError::Unmapped(uid)) } else { Ok(uid) }
}

fn overflow_uid() -> u32 {
    let text = std::fs::read_to_string("/proc/sys/kernel/overflowuid");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(NOBODY)
}

fn all_users_are_mapped() -> bool {
    std::fs::read_to_string("/proc/self/uid_map").is_ok_and(|map| maps_all(&map))
}

/// Whether every uid has a number: one range, from the first to the last.
fn maps_all(map: &str) -> bool {
    let mut lines = map.lines();
    let whole = lines.next().is_some_and(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some("0") && words.nth(1) == Some("4294967295")
    });
    whole && lines.next().is_none()
}

/// A user with the groups that the user database gives it; one that it does not know has none: a
/// number that happens to be that of a group would give its rights.
pub(crate) fn with_groups(uid: u32) -> Result<Identity, IdentityError> {
    let failed = |source| IdentityError::Groups { uid, source };
    let Some(user) = nix::unistd::User::from_uid(uid.into()).map_err(failed)? else {
        return Ok(Identity { uid, gid: NOBODY, groups: Vec::new() });
    };
    let gid = user.gid.as_raw();
    let name = std::ffi::CString::new(user.name).unwrap_or_default();
    let list = nix::unistd::getgrouplist(&name, gid.into()).map_err(failed)?;
    let groups = list.iter().map(|group| group.as_raw()).take(GROUPS_MAX).collect();
    Ok(Identity { uid, gid, groups })
}

/// The owner of the established TCP socket of this host that goes from `from` to `to`.
fn socket_owner(from: SocketAddr, to: SocketAddr) -> Result<Option<u32>, IdentityError> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&NetlinkAddr::new(0, 0))?;
    socket.send(&question(from, to), 0)?;
    let mut answer = vec![0; 8192];
    let len = socket.recv(&mut &mut answer[..], 0)?;
    let bytes = answer.get(..len).unwrap_or(&[]);
    let Ok(message) = <NetlinkMessage<SockDiagMessage>>::deserialize(bytes) else {
        return Ok(None);
    };
    let NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(found)) = message.payload else {
        return Ok(None);
    };
    const ESTABLISHED: u8 = 1;
    let header = &found.header;
    let same = header.socket_id.source_port == from.port()
        && header.socket_id.destination_port == to.port()
        && header.socket_id.source_address == from.ip()
        && header.socket_id.destination_address == to.ip();
    let owned = header.state == ESTABLISHED && header.inode != 0;
    Ok((same && owned).then_some(header.uid))
}

fn question(from: SocketAddr, to: SocketAddr) -> Vec<u8> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST;
    let request = InetRequest {
        family: if from.is_ipv4() { AF_INET } else { AF_INET6 },
        protocol: IPPROTO_TCP,
        extensions: ExtensionFlags::empty(),
        states: StateFlags::ESTABLISHED,
        socket_id: SocketId {
            source_port: from.port(),
            destination_port: to.port(),
            source_address: from.ip(),
            destination_address: to.ip(),
            interface_id: 0,
            cookie: [0xff; 8],
        },
    };
    let payload = SockDiagMessage::InetRequest(request);
    let mut packet = NetlinkMessage::new(header, payload.into());
    packet.finalize();
    let mut bytes = vec![0; packet.header.length as usize];
    packet.serialize(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, TcpListener, TcpStream};
    use std::os::fd::{AsRawFd, OwnedFd};

    use dafs_fabric::{Address, Device, Incoming, Listener, Provider};
    use dafs_fabric_tcp::TcpProvider;
    use nix::sys::socket::{
        AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket,
        sockopt,
    };

    use super::*;

    fn check(address: &str) {
        let listener = TcpListener::bind(address).expect("listen");
        let to = listener.local_addr().expect("address");
        let client = TcpStream::connect(to).expect("connect");
        let from = client.local_addr().expect("address");
        let me = nix::unistd::geteuid().as_raw();
        assert_eq!(socket_owner(from, to).expect("sock_diag"), Some(me));
        // A socket that is closed has no owner any more, whatever the kernel reports.
        let (server, _) = listener.accept().expect("accept");
        drop(client);
        drop(server);
        assert_eq!(socket_owner(from, to).ok().flatten(), None);
        let nobody = SocketAddr::new(from.ip(), 1);
        assert_eq!(socket_owner(nobody, to).ok().flatten(), None);
    }

    #[test]
    fn the_kernel_tells_who_owns_a_socket() {
        check("127.0.0.1:0");
        check("[::1]:0");
    }

    /// A listener of the provider, and a socket that is connected to it.
    struct Attack {
        listener: Box<dyn Listener>,
        _device: std::sync::Arc<dyn Device>,
        to: SocketAddr,
    }

    impl Attack {
        fn new(ip: &str) -> Attack {
            let device = TcpProvider::new().open().expect("device");
            let address = Address::parse(&format!("tcp://{ip}:0")).expect("address");
            let listener = device.listen(&address).expect("listen");
            let to = listener.address().target.parse().expect("an address");
            Attack { listener, _device: device, to }
        }

        /// From `port`, or any; closed, it resets.
        fn connect(&self, port: u16) -> (OwnedFd, u16) {
            let family = if self.to.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
            let flags = SockFlag::SOCK_CLOEXEC;
            let fd = socket(family, SockType::Stream, flags, None).expect("socket");
            setsockopt(&fd, sockopt::ReuseAddr, &true).expect("option");
            let at_once = nix::libc::linger { l_onoff: 1, l_linger: 0 };
            setsockopt(&fd, sockopt::Linger, &at_once).expect("option");
            let from = SocketAddr::new(self.to.ip(), port);
            bind(fd.as_raw_fd(), &SockaddrStorage::from(from)).expect("bind");
            connect(fd.as_raw_fd(), &SockaddrStorage::from(self.to)).expect("connect");
            let stream = TcpStream::from(fd);
            let port = stream.local_addr().expect("address").port();
            (stream.into(), port)
        }

        /// One that has said hello, as the acceptor gets it.
        fn hello(&mut self) -> (OwnedFd, u16, Incoming) {
            let (socket, port) = self.connect(0);
            let mut stream = TcpStream::from(socket);
            // A frame of the kind that everybody begins with.
            let mut hello = [0; 32];
            hello[0] = 1;
            hello[8..16].copy_from_slice(b"DAFSnic1");
            hello[28] = 1;
            std::io::Write::write_all(&mut stream, &hello).expect("hello");
            loop {
                if let Some(incoming) = self.listener.poll_accept() {
                    return (stream.into(), port, incoming);
                }
                std::thread::yield_now();
            }
        }
    }

    /// Where the peer resets and another process takes its port.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    enum Moment {
        BeforeQuestion,
        BetweenQuestionAndState,
        AfterState,
    }

    /// What is proved of a peer that resets at `moment`, and whose port somebody else has at once.
    fn attack(ip: &str, moment: Moment) -> Result<Proof, IdentityError> {
        let mut attack = Attack::new(ip);
        let (socket, port, incoming) = attack.hello();
        let socket = std::cell::Cell::new(Some(socket));
        let victim = std::cell::Cell::new(None);
        let now = |at| {
            if at == moment {
                drop(socket.take());
                victim.set(Some(attack.connect(port)));
            }
        };
        now(Moment::BeforeQuestion);
        let is_established = || {
            now(Moment::BetweenQuestionAndState);
            incoming.inner.is_established()
        };
        let proof = prove(&incoming.peer, is_established, false, None);
        now(Moment::AfterState);
        assert!(victim.take().is_some(), "the port can be taken");
        // The bytes of a connection that was reset are no reason to serve it.
        proof
    }

    #[test]
    fn nobody_is_taken_for_who_has_his_port_now() {
        for ip in ["127.0.0.1", "[::1]"] {
            for moment in [Moment::BeforeQuestion, Moment::BetweenQuestionAndState] {
                let proof = attack(ip, moment);
                assert!(matches!(proof, Err(IdentityError::Unknown(_))), "{moment:?}: {proof:?}");
            }
            // Then it was he who was asked about.
            let proof = attack(ip, Moment::AfterState);
            let me = nix::unistd::geteuid().as_raw();
            assert!(matches!(proof, Ok(Proof::Kernel(who)) if who.uid == me));
        }
    }

    #[test]
    fn a_peer_that_has_closed_is_refused() {
        let mut attack = Attack::new("127.0.0.1");
        let (socket, _, incoming) = attack.hello();
        assert!(incoming.inner.is_established());
        drop(socket);
        assert!(!incoming.inner.is_established());
    }

    #[test]
    fn a_user_without_an_entry_has_no_group() {
        let uid = (54_321..60_000)
            .find(|uid| nix::unistd::User::from_uid((*uid).into()).is_ok_and(|user| user.is_none()))
            .expect("a free number");
        let who = with_groups(uid).expect("nobody in particular");
        assert_eq!((who.uid, who.gid, who.groups), (uid, NOBODY, Vec::new()));
    }

    #[test]
    fn users_of_other_namespaces_are_told_apart() {
        assert!(maps_all("         0          0 4294967295\n"));
        assert!(!maps_all("0 100000 65536\n"));
        assert!(!maps_all("0 1000 1\n1 100000 65536\n"));
        assert!(!maps_all(""));
    }

    /// The groups of the process count, not those of the database.
    #[test]
    fn a_peer_of_a_unix_socket_has_the_groups_of_its_process() {
        let peer = PeerInfo::Unix { pid: 1, uid: 0, gid: 7, groups: vec![8, 9] };
        let proof = prove(&peer, || false, false, None);
        let expected = Identity { uid: 0, gid: 7, groups: vec![8, 9] };
        assert!(matches!(proof, Ok(Proof::Kernel(who)) if who == expected));
    }

    #[test]
    fn remote_peers_need_a_key() {
        let remote = |last| SocketAddr::new(IpAddr::from([10, 0, 0, last]), last.into());
        let peer = PeerInfo::Tcp { local: remote(1), peer: remote(2) };
        let up = || true;
        assert!(matches!(prove(&peer, up, false, None), Err(IdentityError::Remote(_))));
        assert!(matches!(prove(&peer, up, true, None), Ok(Proof::Key)));
        let nobody = Identity { uid: NOBODY, gid: NOBODY, groups: Vec::new() };
        assert!(matches!(prove(&peer, up, false, Some(&nobody)), Ok(Proof::Anonymous(_))));
    }
}
