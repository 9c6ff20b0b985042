//! File systems mounted inside of an export: a descriptor of each, for its handles.
//!
//! That is always the mount's own root, a directory: what a client finds there first may be a
//! device, and a descriptor of a file keeps its space. It is given up when nobody used it for some
//! seconds, so that the file system can be unmounted, and had again when it is needed: from the
//! place that the kernel names for the mount, if that is in the export.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dafs_protocol::Status;

use super::attr::Stat;
use super::sys;

/// Mounts inside of an export.
const MOUNTS_MAX: usize = 1024;
/// Directories from the root of a mount up to that of the export.
const DEPTH_MAX: usize = 4096;

/// A mounted file system.
pub(super) struct Mount {
    /// Its root, open for reading.
    pub(super) fd: OwnedFd,
    /// As [`sys::statvfs`] has it: another file system that is mounted there is another one.
    pub(super) fs: u64,
    device: u64,
}

enum Place {
    Open {
        mount: Arc<Mount>,
        used: bool,
    },
    /// Its last data may still be unwritten: it is synced with the others.
    Closed {
        fs: u64,
        device: u64,
    },
}

/// Those met so far, by the number that the kernel gives a mount; that of the root is 0.
pub(super) struct Mounts {
    root: Arc<Mount>,
    root_stat: Stat,
    root_number: u32,
    others: Mutex<HashMap<u32, Place>>,
    /// How often the root of one of them was opened.
    opened: AtomicU64,
}

impl Mounts {
    /// `readable` is the root of the export, opened for reading, `number` that of its mount.
    pub(super) fn new(readable: OwnedFd, number: i32) -> Result<Mounts, Status> {
        let (root_stat, root_number) = (Stat::of(&readable, true)?, number.unsigned_abs());
        let root = Arc::new(Mount::of(readable)?);
        let (others, opened) = (Mutex::default(), AtomicU64::new(0));
        Ok(Mounts { root, root_stat, root_number, others, opened })
    }

    /// How often the root of one of them was opened. While it stays open its device has no other
    /// file system; after that it may.
    pub(super) fn opened(&self) -> u64 {
        self.opened.load(Ordering::Acquire)
    }

    fn others(&self) -> MutexGuard<'_, HashMap<u32, Place>> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number for handles, and the file system, of the kernel's mount `number`, if it is open.
    pub(super) fn known(&self, number: i32) -> Option<(u32, u64)> {
        let number = number.unsigned_abs();
        if number == self.root_number {
            return Some((0, self.root.fs));
        }
        match self.others().get_mut(&number)? {
            Place::Open { mount, used } => {
                *used = true;
                Some((number, mount.fs))
            }
            Place::Closed { .. } => None,
        }
    }

    /// The mount of a handle. This thread should act as the server.
    pub(super) fn get(&self, number: u32, fs: u64) -> Result<Arc<Mount>, Status> {
        let open = if number == 0 { Some(self.root.clone()) } else { self.used(number)? };
        let mount = open.map_or_else(|| self.open_again(number), Ok)?;
        if mount.fs == fs { Ok(mount) } else { Err(Status::Stale) }
    }

    /// `None`: it is closed.
    fn used(&self, number: u32) -> Result<Option<Arc<Mount>>, Status> {
        match self.others().get_mut(&number) {
            Some(Place::Open { mount, used }) => {
                *used = true;
                Ok(Some(mount.clone()))
            }
            Some(Place::Closed { .. }) => Ok(None),
            None => Err(Status::Stale),
        }
    }

    /// Makes the mount with the kernel's `number` known. This thread should act as the server.
    pub(super) fn add(&self, number: i32) -> Result<(), Status> {
        let number = number.unsigned_abs();
        let mount = Arc::new(self.root_of(number)?);
        if self.others().len() >= MOUNTS_MAX {
            self.forget_gone();
        }
        let mut others = self.others();
        if others.len() >= MOUNTS_MAX && !others.contains_key(&number) {
            return Err(Status::Resource);
        }
        let old = others.insert(number, Place::Open { mount, used: true });
        drop(others);
        drop(old); // outside of the lock
        Ok(())
    }

    fn open_again(&self, number: u32) -> Result<Arc<Mount>, Status> {
        let mount = Arc::new(self.root_of(number).map_err(|_| Status::Stale)?);
        let place = Place::Open { mount: mount.clone(), used: true };
        let old = self.others().insert(number, place);
        drop(old);
        Ok(mount)
    }

    /// The root of a mount that is in the export.
    fn root_of(&self, number: u32) -> Result<Mount, Status> {
        let table = std::fs::read("/proc/self/mountinfo").map_err(|_| Status::Stale)?;
        let path = place_of(&table, number).ok_or(Status::Stale)?;
        let fd = sys::open_path(&path, libc::O_PATH | libc::O_DIRECTORY | libc::O_NOFOLLOW)?;
        // Another one may be mounted over it.
        let is_it = sys::name_to_handle(&fd, b"")?.mount.unsigned_abs() == number;
        if !is_it || !self.is_inside(&fd)? {
            return Err(Status::Stale);
        }
        let fd = sys::reopen(&fd, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NONBLOCK)?;
        let mount = Mount::of(fd)?;
        self.opened.fetch_add(1, Ordering::AcqRel);
        Ok(mount)
    }

    fn is_inside(&self, fd: &OwnedFd) -> Result<bool, Status> {
        let mut stat = Stat::of(fd, true)?;
        let mut dir = sys::duplicate(fd)?;
        for _ in 0..DEPTH_MAX {
            if stat.is_same_place(&self.root_stat) {
                return Ok(true);
            }
            dir = sys::openat(&dir, b"..", libc::O_PATH | libc::O_DIRECTORY, 0)?;
            let above = Stat::of(&dir, true)?;
            if above.is_same_place(&stat) {
                return Ok(false);
            }
            stat = above;
        }
        Ok(false)
    }

    /// True when there are any to close.
    pub(super) fn has_others(&self) -> bool {
        self.others().values().any(|place| matches!(place, Place::Open { .. }))
    }

    /// Closes those that were not used since the last time.
    pub(super) fn tidy(&self) {
        let mut idle = Vec::new();
        for place in self.others().values_mut() {
            if let Place::Open { mount, used } = place
                && !std::mem::take(used)
            {
                let closed = Place::Closed { fs: mount.fs, device: mount.device };
                idle.push(std::mem::replace(place, closed));
            }
        }
        drop(idle); // outside of the lock
    }

    /// Drops those that were unmounted.
    fn forget_gone(&self) {
        let closed = |(number, place): (&u32, &Place)| {
            matches!(place, Place::Closed { .. }).then_some(*number)
        };
        let closed: Vec<u32> = self.others().iter().filter_map(closed).collect();
        let gone = closed.into_iter().filter(|number| self.root_of(*number).is_err());
        for number in gone.collect::<Vec<_>>() {
            self.others().remove(&number);
        }
    }

    /// Syncs all that were met; what was unmounted was written then.
    pub(super) fn sync(&self) -> Result<(), Status> {
        let sync = |mount: &Mount| Ok(sys::syncfs(&mount.fd)?);
        let numbers: Vec<u32> = self.others().keys().copied().collect();
        let others = numbers.into_iter().filter_map(|number| self.to_sync(number));
        others.map(|mount| sync(&mount)).fold(sync(&self.root), Result::and)
    }

    fn to_sync(&self, number: u32) -> Option<Arc<Mount>> {
        let closed = match self.others().get(&number)? {
            Place::Open { mount, .. } => return Some(mount.clone()),
            Place::Closed { fs, .. } => *fs,
        };
        self.root_of(number).ok().filter(|mount| mount.fs == closed).map(Arc::new)
    }

    /// One of them has this device.
    pub(super) fn has_device(&self, device: u64) -> bool {
        let of_place = |place: &Place| match place {
            Place::Open { mount, .. } => mount.device,
            Place::Closed { device, .. } => *device,
        };
        self.root.device == device || self.others().values().any(|place| of_place(place) == device)
    }
}

impl Mount {
    fn of(fd: OwnedFd) -> Result<Mount, Status> {
        let (fs, device) = (sys::statvfs(&fd)?.f_fsid, Stat::of(&fd, true)?.id().device);
        Ok(Mount { fd, fs, device })
    }
}

/// Something with this device is mounted; `None`: that cannot be told. Devices of subvolumes never
/// are.
pub(super) fn is_mounted(device: u64) -> Option<bool> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    let wanted = format!("{}:{}", libc::major(device), libc::minor(device));
    let mut lines = table.split(|byte| *byte == b'\n');
    Some(lines.any(|line| line.split(|byte| *byte == b' ').nth(2) == Some(wanted.as_bytes())))
}

/// Where a mount is, by the table of the kernel: `36 35 98:0 /inside /the\040place ...`.
fn place_of(table: &[u8], number: u32) -> Option<Vec<u8>> {
    let number = number.to_string();
    let mut lines = table.split(|byte| *byte == b'\n').map(|line| line.split(|byte| *byte == b' '));
    lines.find_map(|mut fields| {
        let is_it = fields.next()? == number.as_bytes();
        is_it.then(|| fields.nth(3).map(unescaped)).flatten()
    })
}

/// The kernel writes blanks, line ends and backslashes as three octal digits.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    while let [first, tail @ ..] = rest {
        rest = tail;
        match (first, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', tail @ ..]) => {
                out.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = tail;
            }
            _ => out.push(*first),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use dafs_protocol::{FileKind, Identity};

    use super::*;
    use crate::{PosixOptions, PosixStore};
    use dafs_store::Store;

    /// A file system in memory, below an export.
    struct Below {
        dir: tempfile::TempDir,
        store: Arc<PosixStore>,
    }

    fn done(program: &str, args: &[&str], path: &Path) -> bool {
        let output = Command::new(program).args(args).arg(path).output();
        output.is_ok_and(|output| output.status.success())
    }

    impl Below {
        /// `None`, and says so, where nothing can be mounted or the kernel gives no handles.
        fn new() -> Option<Below> {
            let dir = tempfile::tempdir().expect("tempdir");
            std::fs::create_dir(dir.path().join("a mount")).expect("mkdir");
            let store = PosixStore::open(dir.path(), PosixOptions::default()).expect("open");
            let below = Below { dir, store };
            let can = below.store.inner.objects.by_kernel() && below.mount();
            if !can {
                println!("skipped: needs root, the right to mount, and the kernel's handles");
            }
            can.then_some(below)
        }

        fn at(&self) -> PathBuf {
            self.dir.path().join("a mount")
        }

        fn mount(&self) -> bool {
            done("mount", &["-t", "tmpfs", "-o", "size=1m", "tmpfs"], &self.at())
        }

        fn find(&self, path: &str) -> dafs_store::Found {
            let top = self.store.root(&root()).wait().expect("root").handle;
            self.store.lookup(&root(), &top, path.as_bytes(), false).wait().expect(path)
        }

        /// As after some seconds without work.
        fn idle(&self) {
            self.store.inner.objects.tidy();
            self.store.inner.objects.tidy();
        }
    }

    impl Drop for Below {
        fn drop(&mut self) {
            done("umount", &["-l"], &self.at());
        }
    }

    fn root() -> dafs_store::Caller {
        Arc::new(Identity::root())
    }

    #[test]
    fn what_is_found_first_is_not_opened() {
        let Some(below) = Below::new() else { return };
        let fifo = below.at().join("fifo");
        assert!(done("mkfifo", &[], &fifo));
        assert_eq!(below.find("a mount/fifo").attr.kind, FileKind::Fifo);
        // A fifo that somebody reads could be opened for writing.
        use std::os::unix::fs::OpenOptionsExt;
        let mut options = std::fs::OpenOptions::new();
        let writer = options.write(true).custom_flags(libc::O_NONBLOCK).open(&fifo);
        let errno = writer.expect_err("nobody reads it").raw_os_error();
        assert_eq!(errno, Some(libc::ENXIO));
    }

    #[test]
    fn what_is_not_used_can_be_unmounted_and_is_found_while_it_is_there() {
        let Some(below) = Below::new() else { return };
        std::fs::create_dir(below.at().join("d")).expect("mkdir");
        std::fs::write(below.at().join("d/f"), "x").expect("write");
        let found = below.find("a mount/d/f");
        assert!(!done("umount", &[], &below.at()), "it is in use");
        below.idle();
        assert!(!below.store.inner.objects.mounts().has_others());
        below.store.sync_fs().wait().expect("synced, although closed");
        assert!(below.store.has_device(found.attr.device));
        let attr = |handle| below.store.attr(&root(), handle).wait();
        assert_eq!(attr(&found.handle), Ok(found.attr), "the handle is good, and opens the mount");
        assert_eq!(below.find("a mount/d/f").handle, found.handle);
        below.idle();
        assert!(done("umount", &[], &below.at()), "nobody uses it");
        assert_eq!(attr(&found.handle), Err(Status::Stale));
        // Another one there, perhaps by the same number, does not have the file.
        assert!(below.mount());
        assert_eq!(attr(&found.handle), Err(Status::Stale));
        assert_eq!(below.find("a mount").attr.kind, FileKind::Directory);
        assert_eq!(attr(&found.handle), Err(Status::Stale));
    }

    #[test]
    fn the_table_of_mounts_is_read() {
        let table = b"36 35 98:0 /mnt1 /mnt/parent rw - ext3 /dev/root rw\n\
            360 36 0:24 / /a\\040b\\134c\\0 rw shared:1 - tmpfs tmpfs rw\n";
        assert_eq!(place_of(table, 36).as_deref(), Some(&b"/mnt/parent"[..]));
        assert_eq!(place_of(table, 360).as_deref(), Some(&b"/a b\\c\\0"[..]));
        assert_eq!(place_of(table, 35), None);
        assert_eq!(place_of(b"", 0), None);
    }
}
