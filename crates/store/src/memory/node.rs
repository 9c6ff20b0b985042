//! One inode, and the names in a directory.

use std::collections::BTreeMap;
use std::sync::Weak;

use dafs_protocol::{FileKind, Status, Timestamp};

use super::data::Data;
use super::open_file::MemoryFile;

/// An inode.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) generation: u64,
    pub(super) content: Content,
    pub(super) mode: u32,
    pub(super) links: u32,
    /// Made without a name, and may get its first one.
    pub(super) linkable: bool,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) rdev: u64,
    pub(super) change: u64,
    pub(super) accessed: Timestamp,
    pub(super) modified: Timestamp,
    pub(super) changed: Timestamp,
    pub(super) created: Timestamp,
    pub(super) xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// What an inode holds.
#[derive(Debug)]
pub(super) enum Content {
    /// `durable`: what a crash leaves.
    File {
        data: Data,
        durable: Data,
        open: Weak<MemoryFile>,
    },
    Directory(Directory),
    Symlink(Vec<u8>),
    /// A fifo, socket or device.
    Special(FileKind),
}

/// A directory's names. Cookies grow, so a reader meets each name that stays exactly once.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) parent: u64,
    names: BTreeMap<Vec<u8>, (u64, u64)>,
    order: BTreeMap<u64, Vec<u8>>,
    next_cookie: u64,
}

impl Directory {
    pub(super) fn new(parent: u64) -> Directory {
        Directory { parent, names: BTreeMap::new(), order: BTreeMap::new(), next_cookie: 1 }
    }

    pub(super) fn get(&self, name: &[u8]) -> Option<u64> {
        self.names.get(name).map(|(inode, _)| *inode)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Adds or replaces.
    pub(super) fn set(&mut self, name: &[u8], inode: u64) {
        self.take(name);
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.names.insert(name.to_vec(), (inode, cookie));
        self.order.insert(cookie, name.to_vec());
    }

    pub(super) fn take(&mut self, name: &[u8]) {
        if let Some((_, cookie)) = self.names.remove(name) {
            self.order.remove(&cookie);
        }
    }

    /// Cookie, name and inode of all after `cookie`.
    pub(super) fn after(&self, cookie: u64) -> impl Iterator<Item = (u64, &Vec<u8>, u64)> {
        let from = cookie.saturating_add(1);
        self.order.range(from..).filter_map(|(cookie, name)| Some((*cookie, name, self.get(name)?)))
    }
}

impl Node {
    pub(super) fn kind(&self) -> FileKind {
        match &self.content {
            Content::File { .. } => FileKind::File,
            Content::Directory(_) => FileKind::Directory,
            Content::Symlink(_) => FileKind::Symlink,
            Content::Special(kind) => *kind,
        }
    }

    pub(super) fn is_dir(&self) -> bool {
        matches!(self.content, Content::Directory(_))
    }

    pub(super) fn directory(&self) -> Result<&Directory, Status> {
        match &self.content {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Status::NotDir),
        }
    }

    pub(super) fn directory_mut(&mut self) -> Result<&mut Directory, Status> {
        match &mut self.content {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Status::NotDir),
        }
    }

    pub(super) fn data(&self) -> Result<&Data, Status> {
        match &self.content {
            Content::File { data, .. } => Ok(data),
            Content::Directory(_) => Err(Status::IsDir),
            _ => Err(Status::BadType),
        }
    }

    pub(super) fn data_mut(&mut self) -> Result<&mut Data, Status> {
        match &mut self.content {
            Content::File { data, .. } => Ok(data),
            Content::Directory(_) => Err(Status::IsDir),
            _ => Err(Status::BadType),
        }
    }

    /// Nobody names it, and nobody has it open.
    pub(super) fn is_unused(&self) -> bool {
        let open =
            matches!(&self.content, Content::File { open, .. } if Weak::strong_count(open) != 0);
        self.links == 0 && !open
    }
}

impl Node {
    /// What is there now survives a crash.
    pub(super) fn make_durable(&mut self) {
        if let Content::File { data, durable, .. } = &mut self.content {
            durable.clone_from(data);
        }
    }

    /// As the kernel does for a writer who is neither root nor of the file's group.
    pub(super) fn clear_privileges(&mut self) {
        self.mode &= !0o6000;
    }
}
