//! The served trees, and which one a handle or a path belongs to.
//!
//! The last byte of a handle on the wire is the number of its export; the store's own bytes stay
//! before it and are authenticated by the store. With several exports the root is a virtual
//! directory whose entries are their names.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dafs_protocol::{Attr, DirEntry, FileHandle, FileKind, Status, Timestamp};
use dafs_store::{FileSystem, Store};
use dafs_unifier::{DomainId, Policy};

use crate::config::Optimistic;
use crate::paths::DataPath;

/// A served tree.
pub struct Export {
    /// First component of its paths where there are several.
    pub name: String,
    /// Where its files are.
    pub store: Arc<dyn Store>,
    /// No changes.
    pub read_only: bool,
    /// The cache's policy for its files, if no user wishes another.
    pub policy: Policy,
    /// How data of its files goes between the store and the network.
    pub data_path: DataPath,
    /// For people.
    pub path: String,
    /// Where data of its files is cached.
    pub domain: DomainId,
    /// Whoever is let in may read that by himself.
    pub share_cache: bool,
    /// How those read it who may.
    pub optimistic: Optimistic,
}

/// All of them.
pub struct Exports {
    list: Vec<Export>,
    /// File systems that their stores met.
    met: Arc<AtomicU64>,
}

const EXPORT_BYTE: usize = 63;
const VIRTUAL: u8 = 0xfe;

/// Where an operation goes.
pub(crate) enum Place<'a, 'p> {
    /// The list of exports itself.
    Virtual,
    /// A path below a handle of a store.
    In { export: &'a Export, number: u8, dir: FileHandle, path: &'p [u8] },
    /// A path below the root of an export, entered through the list of exports.
    Root { export: &'a Export, number: u8, path: &'p [u8] },
}

impl Exports {
    /// At least one, at most 200.
    ///
    /// # Panics
    /// On none or too many ([`crate::Config::check`] tells before).
    pub fn new(list: Vec<Export>) -> Exports {
        assert!(!list.is_empty() && list.len() <= 200, "1 to 200 exports");
        let met = Arc::default();
        list.iter().for_each(|export| export.store.count_file_systems(&met));
        Exports { list, met }
    }

    /// Grows when a device may have become another file system.
    pub(crate) fn file_systems_met(&self) -> u64 {
        self.met.load(Ordering::Acquire)
    }

    /// What was met last on a device.
    pub(crate) fn file_system(&self, device: u64) -> Option<FileSystem> {
        let of = |export: &Export| export.store.file_system(device);
        self.list.iter().filter_map(of).max_by_key(|file_system| file_system.met)
    }

    /// What was met on a device is known to be unmounted.
    pub(crate) fn is_unmounted(&self, device: u64) -> bool {
        let mut told = self.list.iter().filter_map(|export| export.store.is_mounted(device));
        told.next().is_some_and(|first| !first) && !told.any(|is_mounted| is_mounted)
    }

    /// All.
    pub fn iter(&self) -> impl Iterator<Item = &Export> {
        self.list.iter()
    }

    pub(crate) fn only(&self) -> Option<&Export> {
        if self.list.len() == 1 { self.list.first() } else { None }
    }

    pub(crate) fn virtual_root() -> FileHandle {
        let mut handle = FileHandle::default();
        handle.0[EXPORT_BYTE] = VIRTUAL;
        handle
    }

    /// The directory of several exports.
    pub(crate) fn is_virtual(&self, handle: &FileHandle) -> bool {
        *handle == Self::virtual_root() && self.only().is_none()
    }

    pub(crate) fn mark(number: u8, mut handle: FileHandle) -> FileHandle {
        handle.0[EXPORT_BYTE] = number;
        handle
    }

    pub(crate) fn named(&self, name: &[u8]) -> Option<(u8, &Export)> {
        let number = self.list.iter().position(|export| export.name.as_bytes() == name)?;
        Some((u8::try_from(number).ok()?, self.list.get(number)?))
    }

    /// The export and the store's handle of a handle from the wire.
    pub(crate) fn of(&self, handle: &FileHandle) -> Result<(u8, &Export, FileHandle), Status> {
        let number = handle.0[EXPORT_BYTE];
        let export = self.list.get(usize::from(number)).ok_or(Status::BadHandle)?;
        let mut inner = *handle;
        inner.0[EXPORT_BYTE] = 0;
        Ok((number, export, inner))
    }

    pub(crate) fn place<'a, 'p>(
        &'a self,
        dir: &FileHandle,
        path: &'p [u8],
    ) -> Result<Place<'a, 'p>, Status> {
        if *dir != Self::virtual_root() || self.list.len() == 1 {
            let (number, export, dir) = self.of(dir)?;
            return Ok(Place::In { export, number, dir, path });
        }
        let path = trim(path);
        if path.is_empty() || path == b"." {
            return Ok(Place::Virtual);
        }
        let end = path.iter().position(|&byte| byte == b'/').unwrap_or(path.len());
        let (name, rest) = path.split_at(end);
        let (number, export) = self.named(name).ok_or(Status::NoEnt)?;
        Ok(Place::Root { export, number, path: trim(rest) })
    }

    pub(crate) fn virtual_attr() -> Attr {
        Attr {
            kind: FileKind::Directory,
            mode: 0o555,
            links: 2,
            uid: 0,
            gid: 0,
            size: 0,
            allocated: 0,
            inode: 1,
            device: 0,
            number: 0,
            rdev: 0,
            block_size: 4096,
            change: 0,
            accessed: Timestamp::default(),
            modified: Timestamp::default(),
            changed: Timestamp::default(),
            created: None,
        }
    }

    pub(crate) fn virtual_entries(&self, cookie: u64) -> Vec<DirEntry> {
        let after = usize::try_from(cookie).unwrap_or(usize::MAX);
        let entry = |(i, export): (usize, &Export)| DirEntry {
            cookie: i as u64 + 1,
            name: export.name.clone().into_bytes(),
            kind: Some(FileKind::Directory),
            attr: None,
            handle: None,
            id: None,
        };
        self.list.iter().enumerate().skip(after).map(entry).collect()
    }
}

fn trim(path: &[u8]) -> &[u8] {
    let start = path.iter().position(|&byte| byte != b'/').unwrap_or(path.len());
    path.get(start..).unwrap_or(&[])
}
