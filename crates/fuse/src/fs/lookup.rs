//! Finding things: names, attributes, directories.

use std::sync::{Arc, PoisonError};
use std::time::Instant;

use dafs_client::{Error, Object as Found, Session};
use dafs_protocol::{Attr, DirEntry, FileHandle, FileKind};

use super::DafsFs;
use super::error::{Errno, is_stale};
use super::files::DirStream;
use super::nodes::{DEPTH_MAX, Node, ROOT};
use crate::kernel::{Answer, Caller, DirBuffer, Entry, NodeAttr, Opened};

/// Positions after `.` and `..`: beyond all that a file system uses.
const AFTER_DOT: u64 = i64::MAX as u64 - 2;
const AFTER_DOT_DOT: u64 = i64::MAX as u64 - 1;
/// Bytes of entries asked for first: the kernel is not to wait for more than it needs to go on.
const FIRST_LIST_BYTES: u32 = 12 << 10;
/// Bytes of entries asked for at a time after that, while the kernel takes those before them.
const LIST_BYTES: u32 = 32 << 10;

fn node_attr(ino: u64, attr: &Attr) -> NodeAttr {
    NodeAttr {
        ino,
        size: attr.size,
        blocks: attr.allocated.div_ceil(512),
        atime: attr.accessed,
        mtime: attr.modified,
        ctime: attr.changed,
        mode: file_type(attr.kind) | attr.mode,
        nlink: attr.links,
        uid: attr.uid,
        gid: attr.gid,
        rdev: u32::try_from(attr.rdev).unwrap_or(0),
        blksize: attr.block_size,
    }
}

pub(super) fn file_type(kind: FileKind) -> u32 {
    match kind {
        FileKind::File => libc::S_IFREG,
        FileKind::Directory => libc::S_IFDIR,
        FileKind::Symlink => libc::S_IFLNK,
        FileKind::Fifo => libc::S_IFIFO,
        FileKind::Socket => libc::S_IFSOCK,
        FileKind::CharDevice => libc::S_IFCHR,
        FileKind::BlockDevice => libc::S_IFBLK,
    }
}

impl DafsFs {
    /// Does something with a handle; where the server does not know it (any more), the object is
    /// looked for under its name once.
    pub(super) fn on<T>(
        &self,
        node: &Arc<Node>,
        call: impl Fn(FileHandle) -> dafs_client::Result<T>,
    ) -> Result<T, Errno> {
        Ok(self.on_handle(node, call)??)
    }

    /// As `on`, with the server's own error.
    pub(super) fn on_handle<T>(
        &self,
        node: &Arc<Node>,
        call: impl Fn(FileHandle) -> dafs_client::Result<T>,
    ) -> Result<dafs_client::Result<T>, Errno> {
        if node.gone().is_some() {
            return Err(Errno::STALE);
        }
        match call(node.handle()) {
            // Under the same handle, too: a server that was started again meets file systems by
            // their names.
            Err(error) if is_stale(&error) => Ok(call(self.find_again(node, 0)?)),
            other => Ok(other),
        }
    }

    /// Walks to an object by the names under which it was seen. The handle that it has now.
    pub(super) fn find_again(&self, node: &Arc<Node>, depth: usize) -> Result<FileHandle, Errno> {
        if depth > DEPTH_MAX {
            return Err(Errno::STALE);
        }
        let found = if node.number == ROOT {
            let mut root = self.session.root()?;
            let names = self.nodes.root_path().split(|byte| *byte == b'/');
            for name in names.filter(|name| !name.is_empty()) {
                root = self.session.lookup_at(root.handle, name)?;
            }
            root
        } else {
            let (parent, name) = node.place();
            let parent = self.nodes.get(parent)?;
            let found = match self.session.lookup_at(parent.handle(), &name) {
                Err(error) if is_stale(&error) => {
                    let handle = self.find_again(&parent, depth + 1)?;
                    self.session.lookup_at(handle, &name)
                }
                other => other,
            };
            match found {
                Err(error) if error.errno() == libc::ENOENT => return Err(Errno::STALE),
                other => other?,
            }
        };
        if node.number == ROOT {
            self.nodes.take_root(node, &found);
        } else if !node.is(&found.attr) {
            return Err(Errno::STALE);
        }
        self.nodes.set_handle(node, found.handle);
        Ok(found.handle)
    }

    /// What the kernel is told of an object; it gets a reference.
    pub(super) fn entry(&self, found: &Found, parent: u64, name: &[u8]) -> Entry {
        let node = self.nodes.refer(found, parent, name);
        self.entry_of(node.number, &found.attr)
    }

    pub(super) fn node_attr(&self, attr: &Attr) -> NodeAttr {
        node_attr(self.nodes.inode(&attr.id()), attr)
    }

    fn entry_of(&self, node: u64, attr: &Attr) -> Entry {
        Entry {
            node,
            generation: 0,
            attr: self.node_attr(attr),
            attr_ttl: self.options.attr_timeout,
            entry_ttl: self.options.entry_timeout,
        }
    }

    pub(super) fn lookup(&self, caller: &Caller, dir: u64, name: &[u8]) -> Result<Answer, Errno> {
        let (dir, session) = (self.nodes.get(dir)?, self.as_caller(caller));
        let found = match name {
            b"." => self.on(&dir, |handle| Ok(Found { handle, attr: session.attr_of(handle)? }))?,
            b".." => self.on(&dir, |handle| session.parent_of(handle))?,
            name => self.on(&dir, |handle| session.lookup_at(handle, name))?,
        };
        if let Some(known) = self.nodes.elsewhere(&found, dir.number, name)
            && (found.attr.links == 1 || !self.is_still_there(&known))
        {
            self.nodes.part(&known);
        }
        Ok(Answer::Entry(self.entry(&found, dir.number, name)))
    }

    /// Whether an object has the name under which it was seen last.
    fn is_still_there(&self, node: &Node) -> bool {
        let (parent, name) = node.place();
        let parent = self.nodes.get(parent);
        let found = parent.and_then(|dir| self.on(&dir, |at| self.session.lookup_at(at, &name)));
        found.is_ok_and(|found| node.is(&found.attr))
    }

    /// Attributes of what may have no name any more.
    pub(super) fn attr_of(&self, session: &Session, node: &Arc<Node>) -> Result<Attr, Errno> {
        match self.on(node, |handle| session.attr_of(handle)) {
            Err(Errno::STALE) => match node.any_open() {
                Some(open) => Ok(open.file.attr()?),
                None => node.gone().ok_or(Errno::STALE),
            },
            other => other,
        }
    }

    pub(super) fn attr_answer(&self, node: &Node, attr: &Attr) -> Answer {
        node.tell(attr);
        Answer::Attr(self.node_attr(attr), self.options.attr_timeout)
    }

    pub(super) fn get_attr(&self, node: u64) -> Result<Answer, Errno> {
        // Who may look at an object was decided on the way to it.
        let node = self.nodes.get(node)?;
        if let Some((attr, left)) = node.take_learned(self.options.attr_timeout) {
            return Ok(Answer::Attr(self.node_attr(&attr), left));
        }
        Ok(self.attr_answer(&node, &self.attr_of(&self.session, &node)?))
    }

    pub(super) fn open_dir(&self, node: u64) -> Result<Answer, Errno> {
        self.nodes.get(node)?;
        Ok(Answer::Opened(Opened { fh: self.files.open_dir(), flags: 0 }))
    }

    pub(super) fn read_dir(
        &self,
        caller: &Caller,
        node: u64,
        fh: u64,
        offset: u64,
        size: u32,
        plus: bool,
    ) -> Result<Answer, Errno> {
        let (dir, stream) = (self.nodes.get(node)?, self.files.dir(fh)?);
        let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = DirBuffer::new(size);
        let Some(mut at) = self.dots(&dir, offset, plus, &mut out) else {
            return Ok(Answer::Data(out.into_vec()));
        };
        loop {
            if stream.at != at || (plus && !stream.plus) {
                *stream = DirStream { at, plus, ..DirStream::default() };
            }
            if stream.entries.is_empty() {
                if stream.end {
                    break;
                }
                match self.list_more(caller, &dir, &mut stream) {
                    Ok(true) => continue,
                    // What was added counts: the kernel has references to it, and asks again.
                    Err(error) if out.is_empty() => return Err(error),
                    Ok(false) | Err(_) => break,
                }
            }
            let asked = stream.asked.unwrap_or_else(Instant::now);
            while let Some(entry) = stream.entries.front() {
                if !self.add_entry(&dir, entry, asked, plus, &mut out) {
                    return Ok(Answer::Data(out.into_vec()));
                }
                at = entry.cookie;
                stream.at = at;
                stream.entries.pop_front();
            }
        }
        Ok(Answer::Data(out.into_vec()))
    }

    /// `.` and `..`, as far as they are asked for; the server's position to go on from, `None`
    /// when there is no room.
    fn dots(&self, dir: &Node, offset: u64, plus: bool, out: &mut DirBuffer) -> Option<u64> {
        // Above the root nothing is known.
        let inode = |node: &Node| self.nodes.inode(&node.id());
        let above =
            || self.nodes.get(dir.place().0).map_or_else(|_| inode(dir), |above| inode(&above));
        let mut add = |inode: u64, after, name: &[u8]| {
            if plus {
                // No reference: the number 0 says that only the entry itself is meant.
                let mut entry = Entry::default();
                entry.attr.ino = inode;
                entry.attr.mode = libc::S_IFDIR;
                out.add_plus(&entry, after, name)
            } else {
                out.add(inode, after, Some(FileKind::Directory), name)
            }
        };
        if offset == 0 && !add(inode(dir), AFTER_DOT, b".") {
            return None;
        }
        if (offset == 0 || offset == AFTER_DOT) && !add(above(), AFTER_DOT_DOT, b"..") {
            return None;
        }
        Some(if matches!(offset, 0 | AFTER_DOT | AFTER_DOT_DOT) { 0 } else { offset })
    }

    /// False when nothing follows.
    fn list_more(
        &self,
        caller: &Caller,
        dir: &Arc<Node>,
        stream: &mut DirStream,
    ) -> Result<bool, Errno> {
        let session = self.as_caller(caller);
        let (at, plus) = (stream.at, stream.plus);
        // Its time of access may change.
        dir.unlearn();
        let mut asked = Instant::now();
        let ahead = stream.ahead.take().map(|(ahead, asked)| (ahead.wait(), asked));
        let list = match ahead {
            Some((Ok(list), then)) => {
                asked = then;
                Ok(list)
            }
            Some((Err(Error::Interrupted), _)) => return Err(Errno::INTR),
            // Asked once more, and looked for where the handle is not known any more.
            Some((Err(_), _)) | None => {
                let bytes = if at == 0 { FIRST_LIST_BYTES } else { LIST_BYTES };
                self.on(dir, |handle| session.read_dir_of(handle, at, bytes, plus))
            }
        };
        let (entries, end) = match list {
            // A directory that was removed while it is read has no entries.
            Err(Errno::STALE) => (Vec::new(), true),
            other => other?,
        };
        if let Some(last) = entries.last().filter(|_| !end) {
            let now = Instant::now();
            let ahead = session.read_dir_ahead(dir.handle(), last.cookie, LIST_BYTES, plus);
            stream.ahead = ahead.map(|ahead| (ahead, now));
        }
        stream.asked = Some(asked);
        stream.entries = entries.into();
        stream.end = end;
        Ok(!stream.entries.is_empty())
    }

    fn add_entry(
        &self,
        dir: &Node,
        entry: &DirEntry,
        asked: Instant,
        plus: bool,
        out: &mut DirBuffer,
    ) -> bool {
        let kind = entry.attr.as_ref().map(|attr| attr.kind).or(entry.kind);
        let id = entry.attr.as_ref().map(Attr::id).or(entry.id);
        let number = id.map_or(u64::MAX, |id| self.nodes.inode(&id));
        if !plus {
            return out.add(number, entry.cookie, kind, &entry.name);
        }
        // What has another name here as well, or was changed here, is looked up first.
        let known = entry.attr.zip(entry.handle).and_then(|(attr, handle)| {
            let found = Found { handle, attr };
            let node = self.nodes.refer_listed(&found, dir, &entry.name, asked)?;
            let (known, age) = (self.entry_of(node, &attr), asked.elapsed());
            let attr_ttl = known.attr_ttl.saturating_sub(age);
            Some(Entry { attr_ttl, entry_ttl: known.entry_ttl.saturating_sub(age), ..known })
        });
        match known {
            Some(known) => {
                let added = out.add_plus(&known, entry.cookie, &entry.name);
                if !added {
                    self.nodes.forget(known.node, 1);
                }
                added
            }
            None => {
                let mut nameless = Entry::default();
                nameless.attr.ino = number;
                nameless.attr.mode = kind.map_or(0, file_type);
                out.add_plus(&nameless, entry.cookie, &entry.name)
            }
        }
    }
}
