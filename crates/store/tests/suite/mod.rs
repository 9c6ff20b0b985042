//! What every store does alike. `store_suite!` makes a test of each case.
//!
//! A case gets a fresh store whose root directory everybody may write, and the identity that
//! the store can act as. Cases in `rights` need a store that can act as anybody.

#![allow(dead_code, unused_imports, reason = "each test program uses its part")]

pub mod basics;
pub mod files;
pub mod names;
pub mod ranges;
pub mod rights;
pub mod unlinked;

use std::sync::Arc;

use dafs_fabric::{Buffer, SgList};
use dafs_protocol::{Attr, CreateMode, FileHandle, FileKind, Identity, OpenFlags, SetAttr, Status};
use dafs_store::{Caller, File, Found, Opened, Store};

/// Makes tests of all cases: `store_suite!(make)`, where `make()` of the same module answers
/// something that is [`Made`]; `rights` adds the cases for several users.
#[macro_export]
macro_rules! store_suite {
    ($make:ident; $($module:ident { $($case:ident)* })*) => {
        $(mod $module {
            $(#[test]
            fn $case() {
                let made = super::$make();
                if stringify!($module) == "rights" && !$crate::suite::Made::switches(&made) {
                    return eprintln!("skipped: needs a server that is root");
                }
                let store = $crate::suite::Made::store(&made);
                let fs = $crate::suite::Fs::new(store);
                $crate::suite::$module::$case(&fs.by(&$crate::suite::Made::caller(&made)));
            })*
        })*
    };
    ($make:ident) => {
        $crate::store_suite! { $make;
            basics {
                the_root_is_found paths_are_walked attributes_are_true mode_and_times_are_set
                set_attr_is_all_or_nothing
                extended_attributes space_is_told access_is_told bad_handles_are_refused
                removed_objects_are_stale
            }
            files {
                bytes_come_back open_flags only_regular_files_are_opened opens_share_one_object
                an_unlinked_file_lives_while_open holes_stay_holes fallocate_modes
                sizes_are_set privileges_are_cleared scattered_memory sync_answers
            }
            ranges {
                ranges_are_copied blocks_are_shared extents_are_told ranges_move
            }
            unlinked {
                a_file_without_a_name a_name_comes_later an_exclusive_one_gets_no_name
                a_removed_file_goes_on gone_while_others_are_made
            }
            names {
                hostile_names hostile_paths no_way_out hard_links symlinks removal renames
                renames_of_directories exchange listing_pages listing_while_it_changes
                special_files odd_names
            }
        }
    };
    ($make:ident, rights) => {
        $crate::store_suite! { $make }
        $crate::store_suite! { $make;
            rights {
                a_private_file_is_private groups_count directories_are_guarded sticky_directories
                owners_change_their_files owners_open_again umasks_come_along root_opens_all times_need_rights
                setgid_directories_inherit attributes_need_rights
                writes_by_others_clear_privileges making_one_needs_rights access_lists
            }
        }
    };
}

/// A store, somebody, and short forms of its calls.
pub struct Fs<'a> {
    pub store: &'a dyn Store,
    pub caller: Caller,
    pub root: FileHandle,
}

/// What `store_suite!` makes for each case.
pub trait Made {
    fn store(&self) -> &dyn Store;
    /// The store can act as any user.
    fn switches(&self) -> bool;
    /// For whom it works, unless a case says otherwise.
    fn caller(&self) -> Caller {
        myself()
    }
}

pub fn user(uid: u32, gid: u32, groups: &[u32]) -> Caller {
    Arc::new(Identity { uid, gid, groups: groups.to_vec() })
}

/// Whom this process is.
pub fn myself() -> Caller {
    use std::os::unix::fs::MetadataExt;
    let of = std::fs::metadata("/proc/self").expect("this process");
    user(of.uid(), of.gid(), &[])
}

pub const READ: OpenFlags = OpenFlags {
    read: true,
    write: false,
    create: CreateMode::No,
    truncate: false,
    append: false,
    no_follow: false,
    unlinked: false,
    again: false,
};
pub const WRITE: OpenFlags = OpenFlags { read: false, write: true, ..READ };
pub const BOTH: OpenFlags = OpenFlags { write: true, ..READ };
pub const MAKE: OpenFlags = OpenFlags { create: CreateMode::Unchecked, ..BOTH };

impl<'a> Fs<'a> {
    pub fn new(store: &'a dyn Store) -> Fs<'a> {
        let caller = myself();
        let root = store.root(&caller).wait().expect("root").handle;
        Fs { store, caller, root }
    }

    /// The same store for somebody else.
    pub fn by(&self, caller: &Caller) -> Fs<'a> {
        Fs { store: self.store, caller: caller.clone(), root: self.root }
    }

    pub fn find(&self, path: &str) -> Result<Found, Status> {
        self.store.lookup(&self.caller, &self.root, path.as_bytes(), true).wait()
    }

    pub fn follow(&self, path: &str) -> Result<Found, Status> {
        self.store.lookup(&self.caller, &self.root, path.as_bytes(), false).wait()
    }

    pub fn handle(&self, path: &str) -> FileHandle {
        self.find(path).unwrap_or_else(|status| panic!("{path}: {status}")).handle
    }

    pub fn attr(&self, path: &str) -> Attr {
        self.find(path).unwrap_or_else(|status| panic!("{path}: {status}")).attr
    }

    /// The directory and name of a path of plain names.
    fn split<'p>(&self, path: &'p str) -> Result<(FileHandle, &'p [u8]), Status> {
        match path.rsplit_once('/') {
            Some((dir, name)) => Ok((self.find(dir)?.handle, name.as_bytes())),
            None => Ok((self.root, path.as_bytes())),
        }
    }

    pub fn make(&self, path: &str, kind: FileKind, mode: u32) -> Result<Found, Status> {
        let (dir, name) = self.split(path)?;
        self.store.create(&self.caller, &dir, name, kind, mode, 0, b"").wait()
    }

    pub fn mkdir(&self, path: &str) -> FileHandle {
        self.make(path, FileKind::Directory, 0o755).expect("mkdir").handle
    }

    pub fn symlink(&self, path: &str, target: &str) -> Result<Found, Status> {
        let (dir, name) = self.split(path)?;
        let target = target.as_bytes();
        self.store.create(&self.caller, &dir, name, FileKind::Symlink, 0, 0, target).wait()
    }

    pub fn open(&self, path: &str, flags: OpenFlags) -> Result<Opened, Status> {
        self.store.open(&self.caller, &self.root, path.as_bytes(), flags, 0o644).wait()
    }

    /// Makes a file.
    pub fn file(&self, path: &str, bytes: &[u8]) -> FileHandle {
        let opened = self.open(path, MAKE).unwrap_or_else(|status| panic!("{path}: {status}"));
        write(&*opened.file, 0, bytes).expect("write");
        opened.handle
    }

    /// All bytes of a file.
    pub fn bytes(&self, path: &str) -> Vec<u8> {
        let opened = self.open(path, READ).unwrap_or_else(|status| panic!("{path}: {status}"));
        read(&*opened.file, 0, opened.attr.size as usize + 1).expect("read")
    }

    pub fn link(&self, from: &str, to: &str) -> Result<Found, Status> {
        let from = self.find(from)?.handle;
        let (dir, name) = self.split(to)?;
        self.store.link(&self.caller, &from, &dir, name).wait()
    }

    pub fn remove(&self, path: &str, directory: bool) -> Result<(), Status> {
        let (dir, name) = self.split(path)?;
        self.store.remove(&self.caller, &dir, name, directory).wait()
    }

    pub fn rename(&self, from: &str, to: &str) -> Result<(), Status> {
        self.rename_with(from, to, false, false)
    }

    pub fn rename_with(
        &self,
        from: &str,
        to: &str,
        no_replace: bool,
        exchange: bool,
    ) -> Result<(), Status> {
        let ((from_dir, from), (to_dir, to)) = (self.split(from)?, self.split(to)?);
        self.store
            .rename(&self.caller, &from_dir, from, &to_dir, to, (no_replace, exchange, false))
            .wait()
    }

    pub fn set(&self, path: &str, set: SetAttr) -> Result<Attr, Status> {
        self.store.set_attr(&self.caller, &self.find(path)?.handle, &set).wait()
    }

    pub fn chmod(&self, path: &str, mode: u32) -> Result<Attr, Status> {
        self.set(path, SetAttr { mode: Some(mode), ..SetAttr::default() })
    }

    pub fn chown(&self, path: &str, uid: Option<u32>, gid: Option<u32>) -> Result<Attr, Status> {
        self.set(path, SetAttr { uid, gid, ..SetAttr::default() })
    }

    /// All names of a directory, read with room for few entries at a time.
    pub fn list(&self, path: &str) -> Result<Vec<String>, Status> {
        let dir = if path.is_empty() { self.root } else { self.find(path)?.handle };
        let (mut names, mut cookie) = (Vec::new(), 0);
        loop {
            let page = self.store.read_dir(&self.caller, &dir, cookie, 512, false, false).wait()?;
            for entry in &page.entries {
                cookie = entry.cookie;
                names.push(String::from_utf8_lossy(&entry.name).into_owned());
            }
            if page.end {
                names.sort();
                return Ok(names);
            }
            assert!(!page.entries.is_empty(), "a page without entries ends the directory");
        }
    }
}

/// A list over all of a buffer.
pub fn one_span(buffer: &dafs_fabric::PostedBuffer) -> SgList {
    SgList::from_iter([buffer.span().clone()])
}

pub fn write(file: &dyn File, offset: u64, bytes: &[u8]) -> Result<(), Status> {
    let mut buffer = Buffer::new(bytes.len()).expect("buffer");
    buffer.copy_from_slice(bytes);
    file.write_at(offset, one_span(&buffer.post()), false).wait()
}

pub fn read(file: &dyn File, offset: u64, len: usize) -> Result<Vec<u8>, Status> {
    let mut buffer = Buffer::new(len).expect("buffer");
    buffer.fill(0xee);
    let posted = buffer.post();
    let bytes = file.read_at(offset, one_span(&posted)).wait()?;
    let buffer = posted.take_back().expect("the store is done with it");
    Ok(buffer[..bytes].to_vec())
}

/// The error of a call whose good result cannot be printed.
pub fn error<T>(result: Result<T, Status>) -> Status {
    match result {
        Ok(_) => panic!("should have failed"),
        Err(status) => status,
    }
}
