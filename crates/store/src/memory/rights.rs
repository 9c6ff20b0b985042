//! POSIX permission checks.

use dafs_protocol::{AccessMask, Identity, Status};

use super::node::Node;

pub(super) const READ: AccessMask = 4;
pub(super) const WRITE: AccessMask = 2;
pub(super) const EXECUTE: AccessMask = 1;

const STICKY: u32 = 0o1000;

/// What `caller` may do with `node`.
pub(super) fn granted(node: &Node, caller: &Identity) -> AccessMask {
    if caller.uid == 0 {
        let executable = node.is_dir() || node.mode & 0o111 != 0;
        return if executable { READ | WRITE | EXECUTE } else { READ | WRITE };
    }
    let bits = if caller.uid == node.uid {
        node.mode >> 6
    } else if in_group(caller, node.gid) {
        node.mode >> 3
    } else {
        node.mode
    };
    (bits & 7) as AccessMask
}

/// All of `mask`, or ACCESS.
pub(super) fn need(node: &Node, caller: &Identity, mask: AccessMask) -> Result<(), Status> {
    if granted(node, caller) & mask == mask { Ok(()) } else { Err(Status::Access) }
}

pub(super) fn owns(node: &Node, caller: &Identity) -> bool {
    caller.uid == 0 || caller.uid == node.uid
}

pub(super) fn in_group(caller: &Identity, gid: u32) -> bool {
    caller.gid == gid || caller.groups.contains(&gid)
}

/// May a name of `child` be taken out of `dir`? (Write and search are checked besides.)
pub(super) fn not_sticky(dir: &Node, child: &Node, caller: &Identity) -> Result<(), Status> {
    if dir.mode & STICKY == 0 || owns(dir, caller) || owns(child, caller) {
        Ok(())
    } else {
        Err(Status::Perm)
    }
}
