//! Whose socket is at the other end of a loopback connection: sock_diag, by its four numbers.
//!
//! A socket that is not established any more, or has no inode (closed, or not accepted yet), has no
//! owner to trust: the kernel reports uid 0 for those.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::{AsRawFd, BorrowedFd};

use dafs_fabric::{Ends, PeerInfo, local};
use netlink_packet_core::{NLM_F_REQUEST, NetlinkHeader, NetlinkMessage, NetlinkPayload};
use netlink_packet_sock_diag::{
    SockDiagMessage,
    constants::{AF_INET, AF_INET6, IPPROTO_TCP},
    inet::{ExtensionFlags, InetRequest, SocketId, StateFlags},
};
use netlink_sys::{Socket, SocketAddr as NetlinkAddr, protocols::NETLINK_SOCK_DIAG};

use crate::sys;

const ESTABLISHED: u8 = 1;

/// Both ends of a connected TCP socket: ours, and the peer's.
pub fn addresses(socket: BorrowedFd<'_>) -> io::Result<(SocketAddr, SocketAddr)> {
    let stream = TcpStream::from(socket.try_clone_to_owned()?);
    Ok((stream.local_addr()?, stream.peer_addr()?))
}

/// Who is at the other end of a connected stream socket.
pub fn peer_info(socket: BorrowedFd<'_>) -> io::Result<PeerInfo> {
    if sys::is_tcp(socket.as_raw_fd()) {
        let (local, peer) = addresses(socket)?;
        return Ok(Ends { local, peer }.into());
    }
    local::peer_info(socket)
}

/// The owner of what is at the other end of a TCP socket; `None`: not a socket of this host's
/// loopback, or not any more.
pub fn of_peer(socket: BorrowedFd<'_>) -> io::Result<Option<u32>> {
    match addresses(socket) {
        Ok((local, peer)) if local.ip().is_loopback() && peer.ip().is_loopback() => {
            of_socket(peer, local)
        }
        Ok(_) => Ok(None),
        Err(error) if error.kind() == io::ErrorKind::NotConnected => Ok(None),
        Err(error) => Err(error),
    }
}

/// The owner of the established TCP socket of this host that goes from `from` to `to`.
fn of_socket(from: SocketAddr, to: SocketAddr) -> io::Result<Option<u32>> {
    let mut socket = Socket::new(NETLINK_SOCK_DIAG)?;
    socket.bind_auto()?;
    socket.connect(&NetlinkAddr::new(0, 0))?;
    socket.send(&question(from, to), 0)?;
    let mut answer = vec![0; 8192];
    let len = socket.recv(&mut &mut answer[..], 0)?;
    Ok(owner(answer.get(..len).unwrap_or(&[]), from, to))
}

fn owner(answer: &[u8], from: SocketAddr, to: SocketAddr) -> Option<u32> {
    let message = <NetlinkMessage<SockDiagMessage>>::deserialize(answer).ok()?;
    let NetlinkPayload::InnerMessage(SockDiagMessage::InetResponse(found)) = message.payload else {
        return None;
    };
    let header = &found.header;
    let same = header.socket_id.source_port == from.port()
        && header.socket_id.destination_port == to.port()
        && header.socket_id.source_address == from.ip()
        && header.socket_id.destination_address == to.ip();
    let owned = header.state == ESTABLISHED && header.inode != 0;
    (same && owned).then_some(header.uid)
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
    use std::net::TcpListener;
    use std::os::fd::AsFd;

    use super::*;

    fn check(address: &str) {
        let listener = TcpListener::bind(address).expect("listen");
        let client = TcpStream::connect(listener.local_addr().expect("address")).expect("connect");
        // Not accepted yet, it is nobody's.
        assert_eq!(of_peer(client.as_fd()).expect("sock_diag"), None);
        let (server, _) = listener.accept().expect("accept");
        let me = local::effective_uid();
        assert_eq!(of_peer(server.as_fd()).expect("sock_diag"), Some(me));
        assert_eq!(of_peer(client.as_fd()).expect("sock_diag"), Some(me));
        // A socket that is closed has no owner any more, whatever the kernel reports.
        let (to, from) = addresses(client.as_fd()).expect("addresses");
        drop(client);
        drop(server);
        assert_eq!(of_socket(from, to).ok().flatten(), None);
        let nobody = SocketAddr::new(from.ip(), 1);
        assert_eq!(of_socket(nobody, to).ok().flatten(), None);
    }

    #[test]
    fn the_kernel_tells_who_owns_a_socket() {
        check("127.0.0.1:0");
        check("[::1]:0");
    }
}
