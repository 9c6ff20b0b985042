//! Changes of attributes and of extended attributes.

use dafs_protocol::{FileKind, Identity, SetAttr, SetTime, Status, XATTR_BYTES_MAX};

use super::State;
use super::file::set_size;
use super::node::Node;
use super::rights::{self, READ, WRITE};

const SETGID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o010;
const XATTRS_MAX: usize = 1024;
const CREATE_ONLY: u8 = 1;
const REPLACE_ONLY: u8 = 2;

impl State {
    /// All of `set`, or nothing.
    pub(super) fn set_attr(
        &mut self,
        caller: &Identity,
        inode: u64,
        set: &SetAttr,
    ) -> Result<dafs_protocol::Attr, Status> {
        check_set(self.tree.node(inode)?, caller, set)?;
        if let Some(size) = set.size {
            set_size(self, inode, size)?;
        }
        let now = self.tree.now();
        let time = |time: SetTime| match time {
            SetTime::Now => now,
            SetTime::To(time) => time,
        };
        let node = self.tree.node_mut(inode)?;
        if (set.uid.is_some() || set.gid.is_some()) && !node.is_dir() {
            node.clear_privileges();
        }
        node.uid = set.uid.unwrap_or(node.uid);
        node.gid = set.gid.unwrap_or(node.gid);
        if let Some(mode) = set.mode {
            node.mode = mode & 0o7777;
            if caller.uid != 0 && !rights::in_group(caller, node.gid) {
                node.mode &= !SETGID;
            }
        }
        if set.size.is_some() && caller.uid != 0 {
            node.clear_privileges();
        }
        node.accessed = set.accessed.map_or(node.accessed, time);
        node.modified = set.modified.map_or(node.modified, time);
        if *set != SetAttr::default() {
            self.tree.touch(inode, false);
        }
        self.tree.attr(inode)
    }

    pub(super) fn xattr(
        &self,
        caller: &Identity,
        inode: u64,
        name: &[u8],
    ) -> Result<Vec<u8>, Status> {
        let node = self.tree.node(inode)?;
        xattr_rights(node, caller, name, READ)?;
        node.xattrs.get(name).cloned().ok_or(Status::NoData)
    }

    pub(super) fn set_xattr(
        &mut self,
        caller: &Identity,
        inode: u64,
        name: &[u8],
        value: Vec<u8>,
        flags: u8,
    ) -> Result<(), Status> {
        let node = self.tree.node_mut(inode)?;
        xattr_rights(node, caller, name, WRITE)?;
        if value.len() > XATTR_BYTES_MAX {
            return Err(Status::TooBig);
        }
        match (flags, node.xattrs.contains_key(name)) {
            (CREATE_ONLY, true) => return Err(Status::Exist),
            (REPLACE_ONLY, false) => return Err(Status::NoData),
            (0 | CREATE_ONLY, false) if node.xattrs.len() >= XATTRS_MAX => {
                return Err(Status::NoSpc);
            }
            (0..=REPLACE_ONLY, _) => {}
            _ => return Err(Status::Inval),
        }
        node.xattrs.insert(name.to_vec(), value);
        self.tree.touch(inode, false);
        Ok(())
    }

    pub(super) fn list_xattr(&self, caller: &Identity, inode: u64) -> Result<Vec<u8>, Status> {
        let mut list = Vec::new();
        for name in self.tree.node(inode)?.xattrs.keys() {
            if caller.uid == 0 || !name.starts_with(b"trusted.") {
                list.extend_from_slice(name);
                list.push(0);
            }
        }
        Ok(list)
    }

    pub(super) fn remove_xattr(
        &mut self,
        caller: &Identity,
        inode: u64,
        name: &[u8],
    ) -> Result<(), Status> {
        let node = self.tree.node_mut(inode)?;
        xattr_rights(node, caller, name, WRITE)?;
        node.xattrs.remove(name).ok_or(Status::NoData)?;
        self.tree.touch(inode, false);
        Ok(())
    }
}

fn check_set(node: &Node, caller: &Identity, set: &SetAttr) -> Result<(), Status> {
    let owner = rights::owns(node, caller);
    if set.mode.is_some() && node.kind() == FileKind::Symlink {
        return Err(Status::NotSupp);
    }
    if set.mode.is_some() && !owner {
        return Err(Status::Perm);
    }
    if set.uid.is_some_and(|uid| caller.uid != 0 && (!owner || uid != node.uid)) {
        return Err(Status::Perm);
    }
    let may_give = |gid| owner && (gid == node.gid || rights::in_group(caller, gid));
    if set.gid.is_some_and(|gid| caller.uid != 0 && !may_give(gid)) {
        return Err(Status::Perm);
    }
    let times = [set.accessed, set.modified];
    // Who may write may set both to now, and nothing else.
    let touched = times.iter().all(|time| matches!(time, Some(SetTime::Now)));
    if times.iter().any(Option::is_some) && !touched && !owner {
        return Err(Status::Perm);
    }
    if touched && !owner {
        rights::need(node, caller, WRITE)?;
    }
    let is_wrong = |time: &Option<SetTime>| matches!(time, Some(SetTime::To(time)) if time.nanoseconds > 999_999_999);
    if times.iter().any(is_wrong) {
        return Err(Status::Inval);
    }
    if set.size.is_some() {
        node.data()?;
        rights::need(node, caller, WRITE)?;
    }
    Ok(())
}

/// The rules of xattr(7).
fn xattr_rights(node: &Node, caller: &Identity, name: &[u8], mask: u8) -> Result<(), Status> {
    let writes = mask == WRITE;
    if name.starts_with(b"user.") {
        return match node.kind() {
            FileKind::File => rights::need(node, caller, mask),
            FileKind::Directory
                if writes && node.mode & 0o1000 != 0 && !rights::owns(node, caller) =>
            {
                Err(Status::Perm)
            }
            FileKind::Directory => rights::need(node, caller, mask),
            _ if writes => Err(Status::Perm),
            _ => Err(Status::NoData),
        };
    }
    if name.starts_with(b"trusted.") || name.starts_with(b"security.") {
        return match (caller.uid, writes) {
            (0, _) => Ok(()),
            (_, true) => Err(Status::Perm),
            (_, false) if name.starts_with(b"trusted.") => Err(Status::NoData),
            _ => Ok(()),
        };
    }
    Err(Status::NotSupp)
}

impl State {
    /// Mode and group of what `caller` makes in `dir`: a setgid directory gives its group on.
    pub(super) fn inherit(&mut self, dir: u64, inode: u64) -> Result<(), Status> {
        let (dir_mode, dir_gid) = self.tree.node(dir).map(|dir| (dir.mode, dir.gid))?;
        let node = self.tree.node_mut(inode)?;
        if dir_mode & SETGID != 0 {
            node.gid = dir_gid;
            if node.is_dir() {
                node.mode |= SETGID;
            }
        }
        Ok(())
    }

    /// A new file's setgid bit stays only for a member of its group, as inode_init_owner has it.
    pub(super) fn check_setgid(&mut self, caller: &Identity, inode: u64) -> Result<(), Status> {
        let node = self.tree.node_mut(inode)?;
        let executable = node.mode & (SETGID | GROUP_EXECUTE) == SETGID | GROUP_EXECUTE;
        if executable && !node.is_dir() && caller.uid != 0 && !rights::in_group(caller, node.gid) {
            node.mode &= !SETGID;
        }
        Ok(())
    }
}
