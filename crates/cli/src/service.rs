//! What the service manager that started this process wants to know of it (`sd_notify(3)`).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// Where a service manager listens.
const VARIABLE: &str = "NOTIFY_SOCKET";

/// Requests are answered.
pub const READY: &str = "READY=1";
/// What is in the cache is being written.
pub const STOPPING: &str = "STOPPING=1";

/// Tells the service manager, if there is one. Does not wait for it.
pub fn tell(state: &str) {
    let Some(socket) = std::env::var_os(VARIABLE).filter(|socket| !socket.is_empty()) else {
        return;
    };
    if let Err(error) = send(&socket, state) {
        tracing::warn!(%error, "cannot tell the service manager: {state}");
    }
}

fn send(socket: &OsStr, state: &str) -> io::Result<()> {
    let address = match socket.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        path => SocketAddr::from_pathname(OsStr::from_bytes(path))?,
    };
    let sender = UnixDatagram::unbound()?;
    sender.set_nonblocking(true)?;
    sender.send_to_addr(state.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn received(listener: &UnixDatagram) -> String {
        let mut room = [0; 64];
        let bytes = listener.recv(&mut room).expect("a message");
        String::from_utf8_lossy(&room[..bytes]).into_owned()
    }

    #[test]
    fn a_service_manager_is_told_by_its_socket() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path().join("notify");
        let listener = UnixDatagram::bind(&path).expect("bind");
        send(path.as_os_str(), READY).expect("sent");
        assert_eq!(received(&listener), "READY=1");

        let name = format!("dafs-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let listener = UnixDatagram::bind_addr(&address).expect("bind");
        send(OsStr::new(&format!("@{name}")), STOPPING).expect("sent");
        assert_eq!(received(&listener), "STOPPING=1");
        drop(listener);
        send(OsStr::new(&format!("@{name}")), STOPPING).expect_err("nobody listens");
    }
}
