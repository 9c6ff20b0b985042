//! Who a peer is, by the kernel's word: SO_PEERCRED on a Unix socket, sock_diag on loopback TCP.
//!
//! Sockets of this host are asked for by their four numbers. A socket that is not established
//! any more, or has no inode, has no owner to trust (the kernel reports uid 0 for those).

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
    has_key: bool,
    anonymous: Option<&Identity>,
) -> Result<Proof, IdentityError> {
    match peer {
        PeerInfo::Unix { uid, gid, .. } => Ok(Proof::Kernel(with_groups(*uid, Some(*gid))?)),
        PeerInfo::Tcp { local, peer } if local.ip().is_loopback() && peer.ip().is_loopback() => {
            match socket_owner(*peer, *local)? {
                Some(uid) => Ok(Proof::Kernel(with_groups(uid, None)?)),
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

/// A user with the groups that the user database gives it.
pub(crate) fn with_groups(uid: u32, gid: Option<u32>) -> Result<Identity, IdentityError> {
    let failed = |source| IdentityError::Groups { uid, source };
    let Some(user) = nix::unistd::User::from_uid(uid.into()).map_err(failed)? else {
        let gid = gid.unwrap_or(uid);
        return Ok(Identity { uid, gid, groups: Vec::new() });
    };
    let gid = gid.unwrap_or(user.gid.as_raw());
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
    use super::*;

    fn check(address: &str) {
        let listener = std::net::TcpListener::bind(address).expect("listen");
        let to = listener.local_addr().expect("address");
        let client = std::net::TcpStream::connect(to).expect("connect");
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

    #[test]
    fn remote_peers_need_a_key() {
        let peer = PeerInfo::Tcp {
            local: "10.0.0.1:1".parse().expect("address"),
            peer: "10.0.0.2:2".parse().expect("address"),
        };
        assert!(matches!(prove(&peer, false, None), Err(IdentityError::Remote(_))));
        assert!(matches!(prove(&peer, true, None), Ok(Proof::Key)));
        let nobody = Identity { uid: 65_534, gid: 65_534, groups: Vec::new() };
        assert!(matches!(prove(&peer, false, Some(&nobody)), Ok(Proof::Anonymous(_))));
    }
}
