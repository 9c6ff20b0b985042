//! Opening and reading files.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use dafs_client::{File, Loan, Object as Found, OpenOptions, Session};
use dafs_fabric::Buffer;
use dafs_protocol::{LockKind, OwnerKey};

use super::DafsFs;
use super::error::Errno;
use super::nodes::{Node, OpenFile};
use crate::kernel::abi::open;
use crate::kernel::{Answer, Caller, LentData, Opened, Pieces};

/// From so many bytes on, the kernel copies data out of the server's cache, where it is lent.
const LENT_MIN: usize = 64 << 10;

/// Data in the server's cache.
struct Lent(Loan);

impl Pieces for Lent {
    fn pieces(&self) -> Vec<&[u8]> {
        self.0.pieces().collect()
    }
}

/// The kernel opens a program to run it.
const FMODE_EXEC: u32 = 0x20;

impl DafsFs {
    /// What the kernel's open flags say.
    fn open_options(&self, flags: u32) -> Result<OpenOptions, Errno> {
        let flags = flags as i32;
        let (read, write) = match flags & libc::O_ACCMODE {
            libc::O_RDONLY => (true, false),
            libc::O_WRONLY => (false, true),
            libc::O_RDWR => (true, true),
            _ => return Err(Errno::INVAL),
        };
        let truncate = flags & libc::O_TRUNC != 0;
        if write || truncate {
            self.writable()?;
        }
        Ok(OpenOptions { read, write, truncate, ..OpenOptions::default() })
    }

    /// `known`: the kernel may have something of it.
    fn open_file(&self, file: File, node: &Arc<Node>, flags: u32, known: bool) -> Arc<OpenFile> {
        let asked = flags as i32;
        // An append goes where the file ends on the server: the kernel cannot know.
        let direct = self.options.direct_io || asked & (libc::O_APPEND | libc::O_DIRECT) != 0;
        OpenFile::new(file, node.clone(), direct, !known)
    }

    fn opened(&self, file: File, node: &Arc<Node>, flags: u32, known: bool) -> Opened {
        let open = self.open_file(file, node, flags, known);
        node.opened(&open);
        self.tell_opened(open, known)
    }

    /// What the kernel is told of an open that its node knows.
    fn tell_opened(&self, open: Arc<OpenFile>, known: bool) -> Opened {
        let (file, node) = (&open.file, &open.node);
        let keep = node.cache_is_good(&file.opened_attr());
        let mut flags = 0;
        if open.direct {
            flags |= self.open_direct();
        } else if keep {
            flags |= open::KEEP_CACHE;
        }
        if known
            && !keep
            && let Some(notifier) = self.notifier.get()
        {
            // Its size too: a look at the file right after this shows what was closed before.
            let _ = notifier.inval_inode(node.number, -1, 0);
        }
        let (nodes, of) = (Arc::downgrade(&self.nodes), Arc::downgrade(node));
        file.found_by(move || nodes.upgrade()?.path(&*of.upgrade()?));
        Opened { fh: self.files.add(open), flags }
    }

    /// In parallel only where a call that waits for pages of the file is alone: with many at once
    /// no thread might be left for the reads that fill those pages.
    fn open_direct(&self) -> u32 {
        let parallel = self.parallel_writes.load(Ordering::Relaxed);
        open::DIRECT_IO | if parallel { open::PARALLEL_DIRECT_WRITES } else { 0 }
    }

    pub(super) fn open(&self, caller: &Caller, node: u64, flags: u32) -> Result<Answer, Errno> {
        let options = self.open_options(flags)?;
        let (node, session) = (self.nodes.get(node)?, self.as_caller(caller));
        node.is_new_no_more();
        loop {
            let (known, open) = (node.handle(), |handle| session.open_at(handle, b"", options));
            let (file, _) = match self.repeated(|| self.on_handle(&node, open)) {
                // A program may be run by who may not read it.
                Err(Errno(libc::EACCES)) if flags & FMODE_EXEC != 0 => {
                    self.open_program(&session, &node)?
                }
                Err(Errno::STALE) => match self.open_replaced(&session, &node, options, flags) {
                    // Somebody else was faster: it may be there again.
                    Err(Errno::STALE) if node.handle() != known => continue,
                    other => return other,
                },
                other => other?,
            };
            return Ok(Answer::Opened(self.opened(file, &node, flags, true)));
        }
    }

    /// The object is gone, and others gave its name to another one a moment ago: who opens the name
    /// gets that. Looked up and opened in one step, so that no third comes between. Not later than
    /// the kernel may believe the name without asking: it does not say when it means this object,
    /// whatever its name is (`/proc/self/fd`).
    fn open_replaced(
        &self,
        session: &Session,
        node: &Arc<Node>,
        options: OpenOptions,
        flags: u32,
    ) -> Result<Answer, Errno> {
        let (gone, (dir, name)) = (node.handle(), node.place());
        if !self.nodes.may_be_replaced(node, self.options.entry_timeout) {
            return Err(Errno::STALE);
        }
        let dir = self.nodes.get(dir)?;
        let options = OpenOptions { no_follow: true, ..options };
        let opened = self.on(&dir, |handle| session.open_at(handle, &name, options));
        let (file, _) = opened.map_err(|_| Errno::STALE)?;
        let found = Found { handle: file.handle(), attr: file.opened_attr() };
        let open = self.open_file(file, node, flags, true);
        let place = (dir.number, &*name);
        if !self.nodes.replaced(node, (gone, place), &found, &open) {
            return Err(Errno::STALE);
        }
        Ok(Answer::Opened(self.tell_opened(open, true)))
    }

    fn open_program(&self, session: &Session, node: &Arc<Node>) -> Result<(File, bool), Errno> {
        if self.on(node, |handle| session.access_of(handle, 1))? & 1 == 0 {
            return Err(Errno(libc::EACCES));
        }
        self.on(node, |handle| self.session.open_at(handle, b"", OpenOptions::read()))
    }

    pub(super) fn create(
        &self,
        caller: &Caller,
        dir: u64,
        name: &[u8],
        flags: u32,
        mode: u32,
    ) -> Result<Answer, Errno> {
        self.writable()?;
        let options = OpenOptions {
            create: true,
            exclusive: flags as i32 & libc::O_EXCL != 0,
            no_follow: true,
            mode,
            ..self.open_options(flags)?
        };
        let (dir, session) = (self.nodes.get(dir)?, self.as_caller(caller));
        let asked = Instant::now();
        let (file, made) = self.open_new(caller, &session, &dir, name, options)?;
        let found = Found { handle: file.handle(), attr: file.opened_attr() };
        let entry = self.entry(&found, dir.number, name);
        let node = self.nodes.get(entry.node)?;
        if made {
            node.note_incapable(asked, self.options.attr_timeout);
        } else {
            node.is_new_no_more();
        }
        let open = self.open_file(file, &node, flags, !made);
        node.opened(&open);
        if made {
            node.is_new(&open, asked);
        }
        Ok(Answer::Created(entry, self.tell_opened(open, !made)))
    }

    pub(super) fn tmp_file(
        &self,
        caller: &Caller,
        dir: u64,
        flags: u32,
        mode: u32,
    ) -> Result<Answer, Errno> {
        self.writable()?;
        let options = OpenOptions {
            unlinked: true,
            create: true,
            exclusive: flags as i32 & libc::O_EXCL != 0,
            truncate: false,
            mode,
            ..self.open_options(flags)?
        };
        let (dir, session) = (self.nodes.get(dir)?, self.as_caller(caller));
        let (file, _) = self.on(&dir, |handle| session.open_at(handle, b"", options))?;
        let found = Found { handle: file.handle(), attr: file.opened_attr() };
        let entry = self.entry(&found, dir.number, b"");
        let node = self.nodes.get(entry.node)?;
        Ok(Answer::Created(entry, self.opened(file, &node, flags, false)))
    }

    pub(super) fn read(
        &self,
        fh: u64,
        offset: u64,
        size: usize,
        room: &mut Buffer,
    ) -> Result<Answer, Errno> {
        let open = self.files.get(fh)?;
        let into = room.get_mut(..size).ok_or(Errno::INVAL)?;
        let (mut read, loan) = match size >= LENT_MIN {
            true => open.file.read_or_lend(into, offset)?,
            false => (open.file.read_at(into, offset)?, None),
        };
        // The kernel takes what lacks for zeros, up to the size that it was told meanwhile.
        let end = |read| offset.saturating_add(read as u64);
        if let Some(loan) = loan {
            let is_told = |read| open.node.told_beyond(end(read)).is_some();
            if read == size || open.direct || !is_told(read) {
                return Ok(Answer::Lent(LentData::new(Lent(loan))));
            }
            read = open.file.read_at(into, offset)?;
        }
        if read < size
            && !open.direct
            && let Some(told) = open.node.told_beyond(end(read))
        {
            read = open.file.read_at(into, offset)?;
            if read < size {
                open.node.is_shorter(told, end(read));
            }
        }
        Ok(Answer::Read(read))
    }

    pub(super) fn seek(&self, fh: u64, offset: u64, whence: u32) -> Result<Answer, Errno> {
        let open = self.files.get(fh)?;
        if i64::try_from(offset).is_err() {
            // Below 0, as the program has it.
            return Err(Errno::NXIO);
        }
        let found = match whence as i32 {
            libc::SEEK_DATA => open.file.seek_data(offset)?,
            libc::SEEK_HOLE => open.file.seek_hole(offset)?,
            _ => return Err(Errno::INVAL),
        };
        found.map(Answer::Offset).ok_or(Errno::NXIO)
    }

    pub(super) fn release(&self, fh: u64, owner: u64, flock_unlock: bool) -> Result<Answer, Errno> {
        // Nothing is left to be set, but of a close that was interrupted.
        let _ = self.files.get(fh).map(|open| self.settle(&open.node));
        let Some(open) = self.files.remove(fh) else { return Err(Errno::BADF) };
        let mut owners = open.take_lockers();
        if flock_unlock {
            let owner = OwnerKey { kind: LockKind::Whole, number: owner };
            owners.retain(|other| *other != owner);
            owners.push(owner);
        }
        if !owners.is_empty() {
            // What is left belongs to the open file itself: nobody can unlock it any more. Errors
            // were told at the last close.
            let _ = self.flush_file(&open);
        }
        for owner in owners {
            self.unlock_all(&open, owner);
        }
        Ok(Answer::Done)
    }
}
