//! A DAFS session as a file system for the kernel.
//!
//! Reads and writes go to the server as they come; what the kernel caches of a file is dropped at
//! the next open (or lock) that finds the file changed: close-to-open consistency. The server
//! checks every call under the caller's identity; the kernel checks permissions too, so that what
//! it has cached is not shown to the wrong user.

mod data;
mod error;
mod files;
mod flushes;
mod gone;
mod identity;
mod later;
mod locks;
mod lookup;
mod names;
mod nodes;
mod resolve;
mod write;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use dafs_client::Session;
use dafs_fabric::Buffer;
use dafs_protocol::mode_with_umask;

use crate::kernel::{Answer, Caller, FileSystem, InitOptions, Notifier, Op};
use error::Errno;
use files::Files;
use later::Laters;
use locks::LockWaits;
use nodes::Nodes;

/// Version of the kernel's protocol (Linux 6.9) from which on direct writes are in parallel only
/// while nobody has the file cached.
const PARALLEL_UNCACHED: u32 = 40;

/// How a mount behaves.
#[derive(Debug, Clone)]
pub struct FsOptions {
    /// Refuses all changes.
    pub read_only: bool,
    /// Every write is on disk before it returns.
    pub sync: bool,
    /// The kernel caches no file data.
    pub direct_io: bool,
    /// How long the kernel believes attributes.
    pub attr_timeout: Duration,
    /// How long it believes names.
    pub entry_timeout: Duration,
    /// Each caller acts under its own identity; else all act as the session's user.
    pub all_users: bool,
}

impl Default for FsOptions {
    fn default() -> FsOptions {
        FsOptions {
            read_only: false,
            sync: false,
            direct_io: false,
            attr_timeout: Duration::from_secs(1),
            entry_timeout: Duration::from_secs(1),
            all_users: false,
        }
    }
}

/// The mounted file system.
pub struct DafsFs {
    session: Session,
    options: FsOptions,
    nodes: Arc<Nodes>,
    files: Files,
    notifier: OnceLock<Notifier>,
    lock_waits: LockWaits,
    laters: Arc<Laters>,
    itself: Weak<DafsFs>,
    /// Somebody flushes files until less is kept of all.
    relieved: Mutex<()>,
    /// Calls that wait until the kernel has forgotten pages.
    forgetting: AtomicUsize,
    /// The kernel writes a file in parallel only where nobody has it cached.
    parallel_writes: AtomicBool,
}

impl DafsFs {
    /// Shows the root of the session's export, or the directory at `path` in it.
    ///
    /// # Errors
    /// The server's, when the directory is not there; `NotDir` when it is none.
    pub fn new(
        session: Session,
        path: &[u8],
        options: FsOptions,
    ) -> dafs_client::Result<Arc<DafsFs>> {
        let mut root = session.root()?;
        for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
            root = session.lookup_at(root.handle, name)?;
        }
        if root.attr.kind != dafs_protocol::FileKind::Directory {
            return Err(dafs_protocol::Status::NotDir.into());
        }
        let all_users = options.all_users && session.info().uid == 0;
        Ok(Arc::new_cyclic(|itself| DafsFs {
            nodes: Arc::new(Nodes::new(&root, path)),
            session,
            options: FsOptions { all_users, ..options },
            files: Files::default(),
            notifier: OnceLock::new(),
            lock_waits: LockWaits::default(),
            laters: Arc::default(),
            itself: itself.clone(),
            relieved: Mutex::new(()),
            forgetting: AtomicUsize::new(0),
            parallel_writes: AtomicBool::new(false),
        }))
    }

    fn writable(&self) -> Result<(), Errno> {
        if self.options.read_only { Err(Errno::ROFS) } else { Ok(()) }
    }

    fn answer(
        &self,
        caller: &Caller,
        node: u64,
        op: Op<'_>,
        room: &mut Buffer,
    ) -> Result<Answer, Errno> {
        self.settle_before(node, &op)?;
        match op {
            Op::Read { fh, offset, size, .. } => self.read(fh, offset, size as usize, room),
            Op::Write { fh, offset, data, flags, from_cache, kill_suidgid, memory } => {
                let open = self.files.get(fh)?;
                if kill_suidgid {
                    self.written_by(&open, caller);
                }
                let outcome = self.write(&open, offset, (data, memory), flags, from_cache);
                let end = outcome.as_ref().ok().map(|_| offset.saturating_add(data.len() as u64));
                open.node.is_written_to(end);
                self.kernel_forgets_privileges(&open.node);
                outcome
            }
            Op::Lookup { name } => self.lookup(caller, node, name),
            Op::GetAttr { .. } => self.get_attr(node),
            Op::SetAttr(set) => self.set_attr(caller, node, &set),
            Op::ReadLink => self.read_link(caller, node),
            Op::Open { flags } => self.open(caller, node, flags),
            Op::Create { name, flags, mode, umask } => {
                self.create(caller, node, name, flags, mode_with_umask(mode, umask))
            }
            Op::TmpFile { flags, mode, umask } => {
                self.tmp_file(caller, node, flags, mode_with_umask(mode, umask))
            }
            Op::Flush { fh, owner } => self.flush(fh, owner),
            Op::Release { fh, owner, flock_unlock, .. } => self.release(fh, owner, flock_unlock),
            Op::FSync { fh, data_only } => self.fsync(fh, data_only),
            Op::StatFs => self.stat_fs(node),
            Op::SyncFs => self.sync_fs(),
            Op::FSyncDir { .. } => self.sync_dir(node),
            Op::OpenDir { .. } => self.open_dir(node),
            Op::ReadDir { fh, offset, size, plus } => {
                self.read_dir(caller, node, fh, offset, size, plus)
            }
            Op::ReleaseDir { fh } => {
                self.files.close_dir(fh);
                Ok(Answer::Done)
            }
            Op::GetLk { fh, lock } => self.get_lock(fh, lock),
            Op::SetLk { fh, lock, wait, flock } => self.set_lock(caller, fh, lock, wait, flock),
            Op::FAllocate { fh, mode, offset, len } => {
                let open = self.files.get(fh)?;
                self.written_by(&open, caller);
                open.node.is_new_no_more();
                let outcome = self.fallocate(&open, mode, offset, len);
                self.kernel_forgets_privileges(&open.node);
                outcome
            }
            Op::LSeek { fh, offset, whence } => self.seek(fh, offset, whence),
            Op::CopyFileRange { fh, offset, to_fh, to_offset, len, .. } => {
                let (from, to) = (self.files.get(fh)?, self.files.get(to_fh)?);
                self.written_by(&to, caller);
                let outcome = self.copy_range((&from, offset), (&to, to_offset), len);
                to.node.is_written_to(match &outcome {
                    Ok(Answer::Written(bytes)) => to_offset.checked_add((*bytes).into()),
                    _ => None,
                });
                self.kernel_forgets_privileges(&to.node);
                outcome
            }
            other => self.name_answer(caller, node, other),
        }
    }

    fn name_answer(&self, caller: &Caller, node: u64, op: Op<'_>) -> Result<Answer, Errno> {
        match op {
            Op::SymLink { name, target } => self.symlink(caller, node, name, target),
            Op::MkNod { name, mode, rdev, umask } => {
                let kind = mode & libc::S_IFMT;
                self.mknod(caller, node, name, (kind, mode_with_umask(mode, umask)), rdev)
            }
            Op::MkDir { name, mode, umask } => {
                self.mkdir(caller, node, name, mode_with_umask(mode, umask))
            }
            Op::Unlink { name } => self.remove(caller, node, name, false),
            Op::RmDir { name } => self.remove(caller, node, name, true),
            Op::Rename { name, to_dir, to, flags } => {
                self.rename(caller, (node, name), (to_dir, to), flags)
            }
            Op::Link { from, name } => self.link(caller, from, node, name),
            Op::SetXattr { name, value, flags } => self.set_xattr(caller, node, name, value, flags),
            Op::GetXattr { name, size } => self.get_xattr(caller, node, name, size),
            Op::ListXattr { size } => self.list_xattr(caller, node, size),
            Op::RemoveXattr { name } => self.remove_xattr(caller, node, name),
            Op::Access { mask } => self.access(caller, node, mask),
            Op::Ioctl { .. } => Err(Errno::NOTTY),
            _ => Err(Errno::NOSYS),
        }
    }
}

impl Drop for DafsFs {
    fn drop(&mut self) {
        self.laters.end();
    }
}

impl FileSystem for DafsFs {
    fn init(&self, kernel: &mut InitOptions) {
        // Mounted once.
        let _ = self.notifier.set(kernel.notifier());
        self.parallel_writes.store(kernel.minor >= PARALLEL_UNCACHED, Ordering::Relaxed);
    }

    fn call(&self, caller: &Caller, node: u64, op: Op<'_>, room: &mut Buffer) -> Answer {
        self.answer(caller, node, op, room).unwrap_or_else(|errno| Answer::Error(errno.0))
    }

    fn buffer(&self, bytes: usize) -> io::Result<Buffer> {
        self.session.buffer_to_fill(bytes).map_err(io::Error::other)
    }

    fn forget(&self, node: u64, count: u64) {
        self.nodes.forget(node, count);
    }

    fn is_stuck(&self) -> bool {
        !self.session.is_connected()
    }

    fn unmounted(&self) {
        self.files.close_all();
    }
}
