//! What processes of one host know of each other: users, and where servers have local sockets.
//!
//! A server that listens on loopback TCP has a Unix socket beside it, by which the kernel tells each end
//! who the other one is. The name of the socket says what it stands for: address, port, and the network
//! namespace in which those are the server's. Directories may be shared by several namespaces, and the
//! same port then belongs to others.

#[allow(unsafe_code)]
mod peer;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

pub use peer::{PeerProcess, effective_uid, peer_credentials, peer_info};

/// The number of users and groups that are nobody, where the system does not say otherwise.
const NOBODY: u32 = 65_534;

/// Where root's servers have their local sockets.
pub const SYSTEM_DIRECTORY: &str = "/run/dafs";

/// Where the servers of this process's user have theirs; `None`: nowhere (`XDG_RUNTIME_DIR` is not set).
pub fn own_directory() -> Option<PathBuf> {
    let runtime = PathBuf::from(std::env::var_os("XDG_RUNTIME_DIR")?);
    runtime.is_absolute().then(|| runtime.join("dafs"))
}

/// The name of the local socket of a server that listens at `address`, in this process's network
/// namespace; `None` where the namespace is not known.
pub fn socket_name(address: SocketAddr) -> Option<String> {
    let namespace = fs::metadata("/proc/self/ns/net").ok()?.ino();
    Some(format!("{address}@{namespace}.sock"))
}

/// Whether the uid stands for all users that this user namespace has no number for: then it tells
/// nobody apart.
pub fn is_ambiguous(uid: u32) -> bool {
    uid == overflow_number("/proc/sys/kernel/overflowuid") && !are_all_mapped("/proc/self/uid_map")
}

/// The gid that stands for all groups that this user namespace has no number for, as the rights of one of them it
/// would be anybody's. `None`: each has one, or groups decide nothing here, since nobody may choose them.
pub fn ambiguous_group() -> Option<u32> {
    let are_fixed =
        || fs::read_to_string("/proc/self/setgroups").is_ok_and(|may| may.trim() == "deny");
    let is_one = !are_all_mapped("/proc/self/gid_map") && !are_fixed();
    is_one.then(|| overflow_number("/proc/sys/kernel/overflowgid"))
}

/// Of whom a server is that is not trusted, and what would have it trusted: behind "the server is".
pub fn stranger(uid: u32) -> String {
    if is_ambiguous(uid) {
        return format!(
            "of a user who has no number in this user namespace (uid {uid}); \
             ?server_uid={uid} in the URL trusts all who have none"
        );
    }
    format!("of uid {uid}, who is neither root nor you; ?server_uid={uid} in the URL trusts it")
}

/// Memory of this machine, or as much of it as this process's container has.
pub fn memory_bytes() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    let total = kib.map_or(1 << 30, |kib| kib.saturating_mul(1024));
    // "max" does not parse.
    let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").unwrap_or_default();
    total.min(limit.trim().parse().unwrap_or(u64::MAX))
}

/// Which servers of this host are believed to be servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trust {
    /// Root's and one's own.
    Usual,
    /// This user's, too.
    User(u32),
    /// Everybody's.
    Anybody,
}

impl Trust {
    /// `any`, or a number of a user.
    pub fn parse(text: &str) -> Option<Trust> {
        match text {
            "any" => Some(Trust::Anybody),
            uid => uid.parse().ok().map(Trust::User),
        }
    }

    /// Servers of this user are believed, whoever else is.
    pub fn covers(self, uid: u32) -> bool {
        self == Trust::User(uid) || (uid == 0 || uid == effective_uid()) && !is_ambiguous(uid)
    }
}

/// Of users or groups without a number.
fn overflow_number(file: &str) -> u32 {
    let text = fs::read_to_string(file);
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(NOBODY)
}

fn are_all_mapped(map: &str) -> bool {
    fs::read_to_string(map).is_ok_and(|map| maps_all(&map))
}

/// Whether each has a number: one range, from the first to the last.
fn maps_all(map: &str) -> bool {
    let mut lines = map.lines();
    let whole = lines.next().is_some_and(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some("0") && words.nth(1) == Some("4294967295")
    });
    whole && lines.next().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_is_named_by_address_and_namespace() {
        let name = |text: &str| socket_name(text.parse().expect("address")).expect("/proc");
        let own = fs::metadata("/proc/self/ns/net").expect("/proc").ino();
        assert_eq!(name("127.0.0.1:7"), format!("127.0.0.1:7@{own}.sock"));
        assert_eq!(name("[::1]:7"), format!("[::1]:7@{own}.sock"));
    }

    #[test]
    fn users_of_other_namespaces_are_told_apart() {
        assert!(maps_all("         0          0 4294967295\n"));
        assert!(!maps_all("0 100000 65536\n"));
        assert!(!maps_all("0 1000 1\n1 100000 65536\n"));
        assert!(!maps_all(""));
    }
}
