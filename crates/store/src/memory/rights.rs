//! POSIX permission checks.

use dafs_protocol::{AccessMask, Identity, Status};

use super::tree::Node;

pub(super) const READ: AccessMask = 4;
pub(super) const WRITE: AccessMask = 2;
pub(super) const EXECUTE: AccessMask = 1;

const STICKY: u32 = 0o1000;

/// What `who` may do with `node`.
pub(super) fn granted(node: &Node, who: &Identity) -> AccessMask {
    if who.uid == 0 {
        let executable = node.is_dir() || node.mode & 0o111 != 0;
        return if executable { READ | WRITE | EXECUTE } else { READ | WRITE };
    }
    let bits = if who.uid == node.uid {
        node.mode >> 6
    } else if in_group(who, node.gid) {
        node.mode >> 3
    } else {
        node.mode
    };
    (bits & 7) as AccessMask
}

/// All of `mask`, or ACCESS.
pub(super) fn need(node: &Node, who: &Identity, mask: AccessMask) -> Result<(), Status> {
    if granted(node, who) & mask == mask { Ok(()) } else { Err(Status::Access) }
}

pub(super) fn owns(node: &Node, who: &Identity) -> bool {
    who.uid == 0 || who.uid == node.uid
}

pub(super) fn in_group(who: &Identity, gid: u32) -> bool {
    who.gid == gid || who.groups.contains(&gid)
}

/// May a name of `child` be taken out of `dir`? (Write and search are checked besides.)
pub(super) fn not_sticky(dir: &Node, child: &Node, who: &Identity) -> Result<(), Status> {
    if dir.mode & STICKY == 0 || owns(dir, who) || owns(child, who) {
        Ok(())
    } else {
        Err(Status::Perm)
    }
}
