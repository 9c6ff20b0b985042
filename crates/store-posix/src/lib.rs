//! A directory of this host, by plain system calls.
//!
//! What may block runs in a pool of threads; what the kernel has in memory is answered in the
//! calling thread: names (RESOLVE_CACHED), attributes, cached data, short writes.
//!
//! # Who acts
//!
//! As root, each operation runs under the caller's fsuid, fsgid and supplementary groups, so the
//! kernel checks all rights. A calling thread is given back with the server's identity; it loses
//! CAP_SYS_RESOURCE at its first call here, since quotas hold for our callers. A server that is
//! not root acts for its own user only: everybody else gets PERM
//! (see [`PosixStore::can_switch`]).
//!
//! Modes of new files are taken as they are: the client has applied its umask, or sends it along
//! ([`dafs_protocol::mode_with_umask`]). The process's is cleared by [`PosixStore::open`].

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod attr;
mod copies;
mod data;
mod direct;
mod direct_fd;
mod everybody;
mod file;
mod handles;
mod identity;
mod leases;
mod list;
mod lru;
mod mounts;
mod names;
mod objects;
mod open;
mod pace;
mod pool;
mod ranges;
pub(crate) mod ring;
mod store;
#[allow(unsafe_code)]
mod sys;
mod transfer;
mod umask;
mod walk;
mod xattr;

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use dafs_protocol::{AccessMask, Status};
use dafs_store::{Blocking, Disk, Store, allowed_blocking};

use dafs_store::{Answer, Caller, FileId, Pending, pending};
use everybody::Everybody;
use file::OpenFiles;
use identity::Identities;
use leases::Leases;
use objects::{Object, Objects};
use pace::Pace;
use pool::Pool;
use walk::{Tree, Walking};

pub use handles::{HandleKey, load_or_create_key, state_dir};
pub use ring::ThreadRing;

/// How a [`PosixStore`] is opened.
#[derive(Debug, Clone)]
pub struct PosixOptions {
    /// Threads for calls that may block: this many stay when they are idle.
    pub threads_min: usize,
    /// At most this many come.
    pub threads_max: usize,
    /// Refuses changes.
    pub read_only: bool,
    /// Authenticates handles. `None`: the key in [`state_dir`], made where there is none; where
    /// that fails too a random one, with which handles end with the process.
    pub key: Option<HandleKey>,
    /// Changes of names and attributes are done in the calling thread, too.
    pub inline_metadata: bool,
    /// Writes of at most this many bytes are done in the calling thread (into the page cache).
    pub inline_write_bytes: usize,
    /// Uses openat2 where the kernel has it.
    pub kernel_walk: bool,
    /// Uses the kernel's file handles where they can be had.
    pub kernel_handles: bool,
    /// Directories that stay open, or, where handles are numbers of a table, all objects.
    /// 0: a quarter of the descriptors that the process may have.
    pub objects_max: usize,
    /// How file data gets from the disk and back.
    pub disk: Disk,
}

impl Default for PosixOptions {
    fn default() -> PosixOptions {
        PosixOptions {
            threads_min: 2,
            threads_max: 32,
            read_only: false,
            key: None,
            inline_metadata: false,
            inline_write_bytes: 64 << 10,
            kernel_walk: true,
            kernel_handles: true,
            objects_max: 0,
            disk: Disk::default(),
        }
    }
}

/// Why a directory cannot be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenStoreError {
    /// It is not there, is no directory, or may not be read.
    #[error("{path}: {status}")]
    Directory {
        /// Which.
        path: PathBuf,
        /// Why.
        status: Status,
    },
    /// /proc is needed to reach open files by their descriptors.
    #[error("/proc/self/fd: {0} (is /proc mounted?)")]
    Proc(Status),
    /// [`Disk::Direct`] is wanted and cannot be had.
    #[error("no direct I/O: {reason}; --disk auto takes what there is")]
    NotDirect {
        /// Why.
        reason: String,
    },
}

/// Opens a directory as it is by default: see [`dafs_store::OpenStore`].
///
/// # Errors
/// What is wrong, for people.
pub fn open(path: &Path, read_only: bool, disk: Disk) -> Result<Arc<dyn Store>, String> {
    let options = PosixOptions { read_only, disk, ..PosixOptions::default() };
    match PosixStore::open(path, options) {
        Ok(store) => Ok(store),
        // Who asked names the path.
        Err(OpenStoreError::Directory { status, .. }) => Err(status.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

/// A directory of this host.
pub struct PosixStore {
    inner: Shared,
}

type Shared = Arc<Inner>;

struct Inner {
    options: PosixOptions,
    identities: Identities,
    objects: Objects,
    walking: Walking,
    files: OpenFiles,
    pool: Pool,
    pace: Pace,
    leases: Leases,
    /// Of short writes into the page cache.
    write_pace: Pace,
    /// A local file system: what it has in memory is answered without blocking.
    local: bool,
    /// A file system that is nothing but memory.
    in_memory: bool,
    /// Its fsync makes a new file's name durable, too.
    syncs_names: bool,
    everybody: Everybody,
    /// The limit of this process.
    file_bytes_max: u64,
    /// Large files go past the page cache.
    direct: bool,
    direct_transfers: AtomicU64,
}

/// File systems that answer from memory what they have there.
const LOCAL: [i64; 6] = [EXT4, XFS, BTRFS, TMPFS, F2FS, OVERLAY];
/// A new file and its name are one transaction of their journal, which fsync writes (ext4, XFS),
/// or fsync logs the name as well (btrfs).
const SYNCS_NAMES: [i64; 3] = [EXT4, XFS, BTRFS];
/// They have a page cache whose pages are written back, and a store into a mapping of one that is
/// not dirty changes the file's times.
const TELLS_STORES: [i64; 4] = [EXT4, XFS, BTRFS, F2FS];
const EXT4: i64 = 0xef53;
const XFS: i64 = 0x5846_5342;
const BTRFS: i64 = 0x9123_683e;
const TMPFS: i64 = 0x0102_1994;
const F2FS: i64 = 0xf2f5_2010;
const OVERLAY: i64 = 0x794c_7630;

impl PosixStore {
    /// Opens the directory `dir`. Clears the umask of this process.
    ///
    /// # Errors
    /// [`OpenStoreError`].
    pub fn open(dir: &Path, options: PosixOptions) -> Result<Arc<PosixStore>, OpenStoreError> {
        sys::set_umask(0);
        let failed = |status: Status| OpenStoreError::Directory { path: dir.into(), status };
        let path = dir.as_os_str().as_bytes();
        let open = |flags| sys::open_path(path, flags | libc::O_DIRECTORY);
        let root = open(libc::O_PATH).map_err(|errno| failed(errno.into()))?;
        let readable = open(libc::O_RDONLY).map_err(|errno| failed(errno.into()))?;
        sys::reopen(&root, libc::O_PATH).map_err(|errno| OpenStoreError::Proc(errno.into()))?;
        let magic = sys::fs_magic(&root).map_err(|errno| failed(errno.into()))?;
        let key = options.key.unwrap_or_else(stored_key);
        let walking = if options.kernel_walk { Walking::probe(&root) } else { Walking::BY_HAND };
        let descriptors = match options.objects_max {
            0 => (sys::descriptors_max() / 4).clamp(64, 1 << 16),
            max => max,
        };
        let direct = match options.disk {
            Disk::Buffered => false,
            wanted => match direct::probe(&readable, magic, options.read_only) {
                Ok(()) => true,
                Err(reason) if wanted == Disk::Direct => {
                    return Err(OpenStoreError::NotDirect { reason });
                }
                Err(reason) => {
                    tracing::info!(path = %dir.display(), reason, "file data is buffered");
                    false
                }
            },
        };
        let everybody = sys::duplicate(&readable)
            .and_then(|root| Everybody::new(magic, root, descriptors))
            .map_err(|errno| failed(errno.into()))?;
        let by_kernel = options.kernel_handles;
        let objects = Objects::new(root, readable, key, by_kernel, descriptors).map_err(failed)?;
        let inner = Arc::new_cyclic(|weak: &std::sync::Weak<Inner>| {
            let weak = weak.clone();
            let tidy = move || {
                if let Some(inner) = weak.upgrade() {
                    inner.objects.tidy();
                    inner.everybody.tidy();
                }
            };
            Inner {
                pool: Pool::new(options.threads_min, options.threads_max, Box::new(tidy)),
                pace: Pace::default(),
                leases: Leases::new(options.threads_max),
                write_pace: Pace::default(),
                options,
                identities: Identities::probe(),
                objects,
                walking,
                files: OpenFiles::default(),
                local: LOCAL.contains(&magic),
                in_memory: magic == TMPFS,
                syncs_names: SYNCS_NAMES.contains(&magic),
                everybody,
                file_bytes_max: sys::file_bytes_max(),
                direct,
                direct_transfers: AtomicU64::new(0),
            }
        });
        Ok(Arc::new(PosixStore { inner }))
    }

    /// Can act as any user. Otherwise it acts as the server's own user only, and everybody else
    /// gets PERM.
    pub fn can_switch(&self) -> bool {
        self.inner.identities.can_switch()
    }

    /// File data goes directly between disk and cache: threads that call this store want a
    /// [`ThreadRing`].
    pub fn is_direct(&self) -> bool {
        self.inner.direct
    }

    /// Transfers that were direct as a whole, so far.
    pub fn direct_transfers(&self) -> u64 {
        self.inner.direct_transfers.load(Ordering::Relaxed)
    }

    /// Handles stay good when the server is started again (given the same key).
    pub fn handles_survive(&self) -> bool {
        self.inner.objects.by_kernel()
    }
}

impl std::fmt::Debug for PosixStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PosixStore").field("options", &self.inner.options).finish_non_exhaustive()
    }
}

fn stored_key() -> HandleKey {
    let none = || std::io::Error::other("no directory for it");
    let stored = state_dir().ok_or_else(none).and_then(|dir| load_or_create_key(&dir));
    stored.unwrap_or_else(|error| {
        tracing::warn!(%error, "no stored key: handles end with this process");
        HandleKey::random()
    })
}

impl Inner {
    fn tree(&self) -> Tree<'_> {
        Tree { root: &self.objects.root, stat: &self.objects.root_stat }
    }

    fn may_change(&self) -> Result<(), Status> {
        if self.options.read_only { Err(Status::RoFs) } else { Ok(()) }
    }

    /// Work on names and attributes: in the pool, or here where the caller may be blocked.
    fn call<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Shared) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        self.call_for(Blocking::Names, work)
    }

    /// Work that moves much data or waits for a device.
    fn call_long<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Shared) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        self.call_for(Blocking::All, work)
    }

    fn call_for<T: Send + 'static>(
        self: &Arc<Self>,
        blocking: Blocking,
        work: impl FnOnce(&Shared) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        if self.may_block(blocking) {
            return Pending::ready(self.paced(work));
        }
        self.in_pool(work)
    }

    /// Work may be done in the calling thread.
    fn may_block(&self, blocking: Blocking) -> bool {
        self.local && allowed_blocking() >= blocking && self.pace.is_quick()
    }

    /// Does it here, and notes how long it takes.
    fn paced<T>(self: &Arc<Self>, work: impl FnOnce(&Shared) -> T) -> T {
        let start = Instant::now();
        let result = work(self);
        self.pace.note(start.elapsed());
        result
    }

    fn in_pool<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Shared) -> Result<T, Status> + Send + 'static,
    ) -> Answer<T> {
        let (completer, answer) = pending();
        let inner = self.clone();
        self.pool.run(Box::new(move || {
            let result = work(&inner);
            // First, so that who waits for the answer is not the last to hold the store.
            drop(inner);
            completer.complete(result);
        }));
        answer
    }

    /// Which of `mask` the caller may do.
    fn granted(
        &self,
        caller: &Caller,
        object: &Object,
        mask: AccessMask,
    ) -> Result<AccessMask, Status> {
        let _acting = self.identities.act_as(caller)?;
        let mask = if self.options.read_only { mask & !2 } else { mask } & 7;
        let may = |mask: AccessMask| match sys::access(&object.fd, mask.into()) {
            Ok(()) => Ok(true),
            Err(sys::Errno(libc::EACCES | libc::EROFS | libc::EPERM)) => Ok(false),
            Err(errno) => Err(Status::from(errno)),
        };
        if may(mask)? {
            return Ok(mask);
        }
        let mut granted = 0;
        for bit in [4, 2, 1] {
            if mask & bit != 0 && may(bit)? {
                granted |= bit;
            }
        }
        Ok(granted)
    }

    /// fsync of the file also makes its name durable.
    fn syncs_names(&self, file: FileId) -> bool {
        self.syncs_names && file.device == self.objects.root_stat.id().device
    }
}
