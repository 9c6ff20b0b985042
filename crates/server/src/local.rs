//! Local sockets: beside each loopback TCP address a Unix socket, by which the kernel tells each end
//! who the other one is. Clients find it by its name ([`dafs_fabric::local`]).

use std::fs;
use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use dafs_fabric::{Address, ConnectError, Domain, Listener, local};
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, socket};

use crate::config::LocalSocket;

/// Files of a directory that are looked at for sockets of servers that are no more.
const FILES_MAX: usize = 10_000;
/// Sockets younger than this may be those of servers that start now.
const YOUNG: Duration = Duration::from_secs(60);

/// The local socket of a TCP listener that was to be at `named` and is at `address`. `None` where it
/// needs none, or cannot have one: then clients come by TCP.
pub(crate) fn beside(
    domain: &Domain,
    named: &Address,
    address: &Address,
    wanted: &LocalSocket,
) -> Option<Box<dyn Listener>> {
    let at = dialled(address)?;
    // Nobody comes back to a port that was free by chance: its socket would only be left over.
    let directory = match wanted {
        LocalSocket::Off => return None,
        LocalSocket::Auto if named.target.ends_with(":0") => return None,
        LocalSocket::Auto => usual_directory()?,
        LocalSocket::In(directory) => directory.clone(),
    };
    let opened = open(domain, &directory, at);
    opened.inspect_err(|error| tracing::warn!(%at, %error, "without a local socket")).ok()
}

/// Where clients of this host dial, if they can.
fn dialled(address: &Address) -> Option<SocketAddr> {
    if !address.may_have_local_socket() {
        return None;
    }
    let at: SocketAddr = address.target.parse().ok()?;
    let ip = match at.ip() {
        ip if ip.is_loopback() => ip,
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        _ => return None,
    };
    Some(SocketAddr::new(ip, at.port()))
}

fn usual_directory() -> Option<PathBuf> {
    if nix::unistd::geteuid().is_root() {
        return Some(local::SYSTEM_DIRECTORY.into());
    }
    local::own_directory()
}

fn open(
    domain: &Domain,
    directory: &Path,
    at: SocketAddr,
) -> std::result::Result<Box<dyn Listener>, ConnectError> {
    let name = local::socket_name(at).ok_or_else(|| Error::other("no /proc/self/ns/net"))?;
    make_own(directory)?;
    remove_left_over(directory);
    domain.listen(&Address::local(&directory.join(name)))
}

/// Makes a directory, and makes sure that nobody else can put files into it.
///
/// # Errors
/// The system's; `PermissionDenied` where the directory is another user's, or others may write to it.
pub fn make_own(directory: &Path) -> Result<()> {
    match fs::DirBuilder::new().mode(0o755).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let meta = fs::symlink_metadata(directory)?;
    let is_own = meta.uid() == nix::unistd::geteuid().as_raw();
    if meta.is_dir() && is_own && meta.mode() & 0o022 == 0 {
        return Ok(());
    }
    let text = format!("{} belongs to others", directory.display());
    Err(Error::new(ErrorKind::PermissionDenied, text))
}

/// Removes sockets of servers that had no time for it.
fn remove_left_over(directory: &Path) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    for entry in entries.take(FILES_MAX).flatten() {
        let path = entry.path();
        if path.extension().is_some_and(|end| end == "sock") && is_left_over(&path) {
            let _ = fs::remove_file(path);
        }
    }
}

fn is_left_over(path: &Path) -> bool {
    let Ok(meta) = fs::symlink_metadata(path) else { return false };
    let is_old = meta.modified().is_ok_and(|at| at.elapsed().is_ok_and(|age| age > YOUNG));
    meta.file_type().is_socket() && is_old && is_dead(path)
}

/// Nobody listens there.
fn is_dead(path: &Path) -> bool {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let Ok(client) = socket(AddressFamily::Unix, SockType::Stream, flags, None) else {
        return false;
    };
    UnixAddr::new(path)
        .is_ok_and(|to| connect(client.as_raw_fd(), &to) == Err(nix::errno::Errno::ECONNREFUSED))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::UnixListener;

    use dafs_fabric_tcp::TcpProvider;

    use super::*;

    fn address(text: &str) -> Address {
        Address::parse(text).expect("address")
    }

    fn beside_in(directory: &Path, named: &str, at: &str) -> Option<Box<dyn Listener>> {
        let domain = Domain::open(&TcpProvider::new()).expect("device");
        let wanted = LocalSocket::In(directory.into());
        beside(&domain, &address(named), &address(at), &wanted)
    }

    fn names(directory: &Path) -> usize {
        fs::read_dir(directory).expect("directory").count()
    }

    #[test]
    fn an_address_of_loopback_has_a_socket_while_it_is_served() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path();
        let v4 = beside_in(path, "tcp://127.0.0.1:0", "tcp://127.0.0.1:7").expect("a socket");
        let name = local::socket_name(([127, 0, 0, 1], 7).into()).expect("/proc");
        let mode = fs::symlink_metadata(path.join(&name)).expect("there").mode();
        assert_eq!(mode & 0o777, 0o666);
        // Of all addresses, loopback is one.
        let all = beside_in(path, "tcp://[::]:7", "tcp://[::]:7").expect("a socket");
        assert_eq!(names(path), 2);
        // A live one is not replaced; others are not reached by loopback.
        assert!(beside_in(path, "tcp://127.0.0.1:7", "tcp://127.0.0.1:7").is_none());
        assert!(beside_in(path, "tcp://10.0.0.1:7", "tcp://10.0.0.1:7").is_none());
        assert!(beside_in(path, "unix:/x", "unix:/x").is_none());
        drop((v4, all));
        assert_eq!(names(path), 0);
        // That of a server that was killed is replaced.
        drop(UnixListener::bind(path.join(&name)).expect("a socket"));
        assert!(beside_in(path, "tcp://127.0.0.1:7", "tcp://127.0.0.1:7").is_some());
    }

    #[test]
    fn a_directory_that_others_can_write_is_not_used() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path();
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).expect("mode");
        assert!(beside_in(path, "tcp://127.0.0.1:0", "tcp://127.0.0.1:7").is_none());
        assert_eq!(names(path), 0);
    }

    #[test]
    fn a_port_by_chance_leaves_no_file_where_clients_look() {
        let domain = Domain::open(&TcpProvider::new()).expect("device");
        let chosen = address("tcp://127.0.0.1:7");
        let socket =
            |named| beside(&domain, &address(named), &chosen, &LocalSocket::Auto).is_some();
        assert!(!socket("tcp://127.0.0.1:0") && !socket("tcp://[::1]:0"));
    }

    #[test]
    fn what_servers_left_is_removed_when_it_is_old() {
        let directory = tempfile::tempdir().expect("directory");
        let path = directory.path();
        let old = std::time::SystemTime::now() - 2 * YOUNG;
        let bind = |name: &str| UnixListener::bind(path.join(name)).expect("a socket");
        let (dead, alive, young) = (bind("dead.sock"), bind("alive.sock"), bind("young.sock"));
        set_modified(&path.join("dead.sock"), old);
        set_modified(&path.join("alive.sock"), old);
        drop((dead, young));
        remove_left_over(path);
        assert!(!path.join("dead.sock").exists());
        assert!(path.join("alive.sock").exists() && path.join("young.sock").exists());
        drop(alive);
    }

    fn set_modified(path: &Path, to: std::time::SystemTime) {
        let since = to.duration_since(std::time::UNIX_EPOCH).expect("after 1970");
        let time = nix::sys::time::TimeSpec::new(since.as_secs().cast_signed(), 0);
        let at = nix::fcntl::AT_FDCWD;
        let follow = nix::sys::stat::UtimensatFlags::NoFollowSymlink;
        nix::sys::stat::utimensat(at, path, &time, &time, follow).expect("times");
    }
}
