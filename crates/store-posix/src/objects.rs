//! From handles to what they name, and back.
//!
//! As root, handles are the kernel's own (name_to_handle_at): they outlive this process.
//! Directories stay open in a cache, other objects for a few seconds only: a descriptor keeps a
//! deleted file's space. Where the kernel's handles cannot be had (not root, some file systems)
//! a handle is a number in a bounded table of descriptors and ends with its place there: the
//! client walks its path again.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard};

use dafs_protocol::{FileHandle, FileKind, Status};

use super::attr::Stat;
use super::handles::{HandleKey, Named, Sealer};
use super::identity::Identities;
use super::lru::Lru;
use super::mounts::{self, Mounts};
use super::sys::{self, KernelHandle};
use super::{BTRFS, OVERLAY};
use dafs_store::{FileId, FileSystem, Found};

/// Objects other than directories that stay open for a while.
const RECENT_MAX: usize = 256;

/// Something in the tree, by an O_PATH descriptor.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) fd: OwnedFd,
    pub(super) kind: FileKind,
    /// In a file system mounted inside of the export: kept only while it is used.
    elsewhere: bool,
}

pub(super) struct Objects {
    sealer: Sealer,
    epoch: u64,
    pub(super) root: Arc<Object>,
    pub(super) root_stat: Stat,
    root_handle: FileHandle,
    by_kernel: bool,
    mounts: Mounts,
    directories: Mutex<Lru<FileHandle, Arc<Object>>>,
    recent: Mutex<Lru<FileHandle, Arc<Object>>>,
    /// The directory found last: names in one directory come in a row.
    last: Mutex<Option<Last>>,
    table: Mutex<Table>,
    /// Which file systems the devices met so far are.
    file_systems: RwLock<HashMap<u64, Met>>,
    /// Counts them; others may too.
    met: OnceLock<Arc<AtomicU64>>,
}

/// What is known of a device.
struct Met {
    file_system: FileSystem,
    /// Roots of mounts that were opened before it was asked ([`Mounts::opened`]).
    opened: u64,
    /// The device was in the kernel's table of mounts.
    mounted: bool,
}

/// A directory and its handle, which is good as long as the descriptor keeps the inode.
struct Last {
    stat: Stat,
    handle: FileHandle,
    _open: Arc<Object>,
}

/// Handles of this process.
struct Table {
    objects: Lru<u64, (FileId, Arc<Object>)>,
    numbers: HashMap<FileId, u64>,
    next: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Objects {
    /// `readable` is the root directory opened for reading.
    pub(super) fn new(
        root: OwnedFd,
        readable: OwnedFd,
        key: HandleKey,
        by_kernel: bool,
        descriptors_max: usize,
    ) -> Result<Objects, Status> {
        let root_stat = Stat::of(&root, false)?;
        let fs = sys::statvfs(&root)?.f_fsid;
        let own = sys::name_to_handle(&root, b"").ok();
        // Being able to make handles says nothing of opening them.
        let opens = |own: &KernelHandle| sys::open_by_handle(&readable, own, libc::O_PATH).is_ok();
        let by_kernel = by_kernel && own.as_ref().is_some_and(opens);
        let root_mount = own.map_or(0, |own| own.mount);
        let mut export = [0; 16];
        let (of_fs, of_root) = export.split_at_mut(8);
        of_fs.copy_from_slice(&fs.to_le_bytes());
        of_root.copy_from_slice(&root_stat.id().inode.to_le_bytes());
        let mut epoch = [0; 8];
        getrandom::fill(&mut epoch).map_err(|_| Status::ServerFault)?;
        let epoch = u64::from_le_bytes(epoch);
        let sealer = Sealer::new(key, export);
        let root_handle = match own.filter(|_| by_kernel) {
            Some(own) => sealer.kernel(fs, 0, &own).ok_or(Status::ServerFault)?,
            None => sealer.table(epoch, 0),
        };
        let table = Table { objects: Lru::new(descriptors_max), numbers: HashMap::new(), next: 1 };
        let file_system = FileSystem { identity: identity(&root)?, met: 0 };
        let met = Met { file_system, opened: 0, mounted: false };
        let file_systems = HashMap::from([(root_stat.id().device, met)]);
        let mounts = Mounts::new(readable, root_mount)?;
        Ok(Objects {
            sealer,
            epoch,
            root: Arc::new(Object { fd: root, kind: FileKind::Directory, elsewhere: false }),
            root_stat,
            root_handle,
            by_kernel,
            mounts,
            directories: Mutex::new(Lru::new(descriptors_max)),
            recent: Mutex::new(Lru::new(RECENT_MAX.min(descriptors_max))),
            last: Mutex::new(None),
            table: Mutex::new(table),
            file_systems: RwLock::new(file_systems),
            met: OnceLock::new(),
        })
    }

    #[cfg(test)]
    pub(super) fn mounts(&self) -> &Mounts {
        &self.mounts
    }

    /// Handles survive this process.
    pub(super) fn by_kernel(&self) -> bool {
        self.by_kernel
    }

    pub(super) fn root_handle(&self) -> FileHandle {
        self.root_handle
    }

    /// What a handle names, if it is open. (What is in a cache was authenticated before.)
    pub(super) fn cached(&self, handle: &FileHandle) -> Option<Arc<Object>> {
        if *handle == self.root_handle {
            return Some(self.root.clone());
        }
        if !self.by_kernel {
            return self.resolve_table(handle).ok();
        }
        if let Some(object) = lock(&self.directories).get(handle) {
            return Some(object);
        }
        lock(&self.recent).get(handle)
    }

    /// What a handle names. May leave this (pool) thread with the server's identity.
    pub(super) fn resolve(
        &self,
        identities: &Identities,
        handle: &FileHandle,
    ) -> Result<Arc<Object>, Status> {
        if let Some(object) = self.cached(handle) {
            return Ok(object);
        }
        match self.sealer.open(handle)? {
            Named::Table { .. } => self.resolve_table(handle),
            Named::Kernel { fs, mount, handle: own } => {
                let _server = identities.as_server()?;
                let mount = self.mounts.get(mount, fs)?;
                let fd = sys::open_by_handle(&mount.fd, &own, libc::O_PATH)?;
                let stat = Stat::of(&fd, true)?;
                if !self.knows(stat.id().device) {
                    self.meet(&fd)?;
                }
                let object = self.object(fd, &stat);
                // What has no name any more lives as long as it is open, not as it is kept here.
                if stat.links() != 0 {
                    self.keep(handle, &object);
                }
                Ok(object)
            }
        }
    }

    fn resolve_table(&self, handle: &FileHandle) -> Result<Arc<Object>, Status> {
        match self.sealer.open(handle)? {
            Named::Table { epoch, number } if epoch == self.epoch => {
                lock(&self.table).objects.get(&number).map(|(_, o)| o).ok_or(Status::Stale)
            }
            _ => Err(Status::Stale),
        }
    }

    fn object(&self, fd: OwnedFd, stat: &Stat) -> Arc<Object> {
        Arc::new(Object { fd, kind: stat.kind(), elsewhere: self.is_elsewhere(stat) })
    }

    fn is_elsewhere(&self, stat: &Stat) -> bool {
        let root = &self.root_stat;
        stat.id().device != root.id().device || stat.mount() != root.mount()
    }

    fn keep(&self, handle: &FileHandle, object: &Arc<Object>) {
        let cache =
            if object.kind == FileKind::Directory { &self.directories } else { &self.recent };
        let old = lock(cache).insert(*handle, object.clone());
        drop(old); // outside of the lock: closing may take long
    }

    /// Handle and attributes of what a fresh O_PATH descriptor names. Gives the descriptor back
    /// where it is in a file system that was not met before (see [`add_mount`](Self::add_mount)),
    /// unless `settle`.
    pub(super) fn found(
        &self,
        fd: OwnedFd,
        lazy: bool,
        settle: bool,
    ) -> Result<Result<Found, OwnedFd>, Status> {
        let stat = Stat::of(&fd, lazy)?;
        if stat.is_same_place(&self.root_stat) {
            return Ok(Ok(Found { handle: self.root_handle, attr: stat.attr() }));
        }
        if let Some(last) = &*lock(&self.last)
            && stat.is_same_place(&last.stat)
        {
            return Ok(Ok(Found { handle: last.handle, attr: stat.attr() }));
        }
        let handle = match self.kernel_handle(&fd, b"")? {
            Ok(handle) => handle,
            Err(UnknownMount) if settle => None,
            Err(UnknownMount) => return Ok(Err(fd)),
        };
        let attr = stat.attr();
        let object = self.object(fd, &stat);
        let handle = match handle {
            Some(handle) => {
                self.keep(&handle, &object);
                if object.kind == FileKind::Directory {
                    let old = lock(&self.last).replace(Last { stat, handle, _open: object });
                    drop(old); // outside of the lock
                }
                handle
            }
            None => self.add_to_table(stat.id(), object),
        };
        Ok(Ok(Found { handle, attr }))
    }

    /// As [`found`](Self::found) for a file that is open for I/O: no descriptor is kept where
    /// handles are the kernel's. `None`: in a file system not met before, if not `settle`.
    pub(super) fn handle_of_open(
        &self,
        fd: &OwnedFd,
        stat: &Stat,
        settle: bool,
    ) -> Result<Option<FileHandle>, Status> {
        match self.kernel_handle(fd, b"")? {
            Ok(Some(handle)) => return Ok(Some(handle)),
            Err(UnknownMount) if !settle => return Ok(None),
            _ => {}
        }
        if let Some(number) = lock(&self.table).numbers.get(&stat.id()) {
            return Ok(Some(self.sealer.table(self.epoch, *number)));
        }
        let fd = sys::reopen(fd, libc::O_PATH)?;
        let object = self.object(fd, stat);
        Ok(Some(self.add_to_table(stat.id(), object)))
    }

    /// The handle of a name in a directory, without opening it; only where it is the kernel's.
    pub(super) fn handle_at(&self, dir: &OwnedFd, name: &[u8]) -> Option<FileHandle> {
        self.kernel_handle(dir, name).ok()?.ok()?
    }

    /// `None`: this object has no kernel handle (or the table is used for all).
    fn kernel_handle(
        &self,
        dir: &OwnedFd,
        name: &[u8],
    ) -> Result<Result<Option<FileHandle>, UnknownMount>, Status> {
        if !self.by_kernel {
            return Ok(Ok(None));
        }
        let own = match sys::name_to_handle(dir, name) {
            Ok(own) => own,
            Err(sys::Errno(libc::EOPNOTSUPP | libc::EOVERFLOW)) => return Ok(Ok(None)),
            Err(errno) => return Err(errno.into()),
        };
        let Some((number, fs)) = self.mounts.known(own.mount) else {
            return Ok(Err(UnknownMount));
        };
        Ok(Ok(self.sealer.kernel(fs, number, &own)))
    }

    /// Makes the file system of `fd` known; this thread should act as the server.
    pub(super) fn add_mount(&self, fd: &OwnedFd) -> Result<(), Status> {
        self.mounts.add(sys::name_to_handle(fd, b"")?.mount)
    }

    fn add_to_table(&self, id: FileId, object: Arc<Object>) -> FileHandle {
        let mut table = lock(&self.table);
        let known = table.numbers.get(&id).copied();
        let number = match known.filter(|number| table.objects.get(number).is_some()) {
            Some(number) => number,
            None => {
                let number = table.next;
                table.next += 1;
                let old = table.objects.insert(number, (id, object));
                if let Some((gone, (id, _))) = &old
                    && table.numbers.get(id) == Some(gone)
                {
                    table.numbers.remove(id);
                }
                table.numbers.insert(id, number);
                drop(table);
                drop(old); // outside of the lock: closing may take long
                number
            }
        };
        self.sealer.table(self.epoch, number)
    }

    /// What is about to lose this name must not be kept by a descriptor here. Answers what to
    /// drop when it is gone.
    pub(super) fn before_removal(&self, dir: &OwnedFd, name: &[u8]) -> Leaving {
        match self.kernel_handle(dir, name) {
            Ok(Ok(Some(handle))) => return Leaving { handle: Some(handle), id: None },
            Err(Status::NoEnt) => return Leaving { handle: None, id: None },
            _ => {}
        }
        let stat = Stat::at(dir, name, true).ok();
        let last = |stat: &Stat| stat.links() <= 1 || stat.kind() == FileKind::Directory;
        Leaving { handle: None, id: stat.filter(last).map(|stat| stat.id()) }
    }

    pub(super) fn removed(&self, leaving: Leaving) {
        if let Some(handle) = leaving.handle {
            let recent = lock(&self.recent).remove(&handle);
            let directory = lock(&self.directories).remove(&handle);
            let last = lock(&self.last).take_if(|last| last.handle == handle);
            drop((recent, directory, last));
        }
        if let Some(id) = leaving.id {
            self.forget(id);
        }
    }

    /// Takes what is gone out of the table.
    pub(super) fn forget(&self, id: FileId) {
        let mut table = lock(&self.table);
        let number = table.numbers.remove(&id);
        let object = number.and_then(|number| table.objects.remove(&number));
        drop(table);
        drop(object); // outside of the lock
    }

    /// Closes what was not used lately: all in other file systems than that of the root, which
    /// could not be unmounted else, of that all but directories.
    pub(super) fn tidy(&self) {
        let idle = lock(&self.recent).take_unused(|_| true);
        drop(idle);
        if self.mounts.has_others() {
            let last = lock(&self.last).take_if(|last| self.is_elsewhere(&last.stat));
            let idle = lock(&self.directories).take_unused(|object| object.elsewhere);
            drop((last, idle));
            self.mounts.tidy();
        }
    }

    fn file_systems(&self) -> RwLockReadGuard<'_, HashMap<u64, Met>> {
        self.file_systems.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Which file system a device is, if it was met.
    pub(super) fn file_system(&self, device: u64) -> Option<FileSystem> {
        self.file_systems().get(&device).map(|met| met.file_system)
    }

    /// It was met, and no mount since then that could have its device.
    pub(super) fn knows(&self, device: u64) -> bool {
        let is_known = |met: &Met| met.opened == self.mounts.opened();
        device == self.root_stat.id().device
            || self.file_systems().get(&device).is_some_and(is_known)
    }

    /// See [`dafs_store::Store::count_file_systems`].
    pub(super) fn count_file_systems(&self, met: &Arc<AtomicU64>) {
        // Only the first is told: a store is of one server.
        let _ = self.met.set(met.clone());
    }

    /// Asks which file system something is in; this thread should act as the server.
    pub(super) fn meet(&self, fd: &OwnedFd) -> Result<(), Status> {
        let opened = self.mounts.opened();
        let (device, identity) = (Stat::of(fd, true)?.id().device, identity(fd)?);
        // Before the lock, which workers wait for.
        let mounted = mounts::is_mounted(device) == Some(true);
        let mut known = self.file_systems.write().unwrap_or_else(PoisonError::into_inner);
        match known.get_mut(&device) {
            Some(met) if met.file_system.identity == identity => met.opened = opened,
            _ => {
                let count = self.met.get().map_or(0, |met| met.fetch_add(1, Ordering::AcqRel) + 1);
                let file_system = FileSystem { identity, met: count };
                known.insert(device, Met { file_system, opened, mounted });
            }
        }
        Ok(())
    }

    /// Whether what was met on a device is still there, as far as can be told.
    pub(super) fn is_mounted(&self, device: u64) -> Option<bool> {
        let was_mounted = self.file_systems().get(&device).map(|met| met.mounted)?;
        Some(!was_mounted || mounts::is_mounted(device).unwrap_or(true))
    }

    /// All file systems met so far.
    pub(super) fn sync(&self) -> Result<(), Status> {
        self.mounts.sync()
    }

    /// The file system of the root or one met so far has this device.
    pub(super) fn has_device(&self, device: u64) -> bool {
        self.mounts.has_device(device)
    }
}

/// What is the same of a file system as long as it exists: its UUID, which the kernel tells of an
/// open file or directory; else what statfs(2) has, or its device. A subvolume of btrfs is one.
fn identity(fd: &OwnedFd) -> Result<u64, Status> {
    let (magic, fs) = (sys::fs_magic(fd)?, sys::statvfs(fd)?.f_fsid);
    let stat = Stat::of(fd, true)?;
    let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOCTTY;
    let opens = matches!(stat.kind(), FileKind::Directory | FileKind::File) && magic != OVERLAY;
    let open = || sys::reopen(fd, flags).and_then(|fd| sys::fs_uuid(&fd)).ok();
    let uuid = if opens { open() } else { None };
    let words = match (uuid, fs) {
        (Some(uuid), fs) if magic == BTRFS => (uuid, fs),
        (Some(uuid), _) => (uuid, 0),
        (None, 0) => ([0; 16], stat.id().device),
        (None, fs) => ([0xff; 16], fs),
    };
    Ok(super::handles::digest(&words.0, words.1))
}

/// See [`Objects::before_removal`].
pub(super) struct Leaving {
    handle: Option<FileHandle>,
    pub(super) id: Option<FileId>,
}

struct UnknownMount;
