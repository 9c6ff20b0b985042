//! Which files everybody may open for reading.
//!
//! # What is a proof
//!
//! The path that the kernel has for the open file is taken for a guess, whatever it says: files
//! have come and gone since, and names may look like anything. What counts is a walk along that path,
//! from the directory that the root's descriptor names, through descriptors of each directory on the
//! way, that ends at the open file. It asks what the kernel would ask, in the same order, if
//! somebody without any rights opened that path at the same time: which directory a name is of, its
//! mode, then its access control list, then the next name in it; which file the last name is of and
//! its mode, then its list. So in any race with changes of names, modes, or lists, whenever the walk
//! says yes, an open by a stranger as quick as the walk would have succeeded.
//!
//! In particular, of somebody who may not search a private directory around the file:
//!
//! - Another directory in the private one's place while it is walked: what is below is looked up in
//!   that other directory, from where no name leads to the file.
//! - Another directory in the place of one that is passed: the walk goes on in the one whose mode was
//!   asked, by its descriptor.
//! - Another file, or a symlink, in the place of the last name: it is not the open file, whose number
//!   nobody else gets while it is open. A symlink on the way ends the walk.
//! - To move a directory from where it was passed to around the file takes the right to write there.
//! - The root's directory is renamed or replaced: the walk begins at its descriptor.
//!
//! Descriptors of directories are kept: a directory that is open has its number to itself, so a name
//! of that number is a name of that directory. That it has the name, its mode, and its list are
//! asked each time. (Where a file system has given a number twice, when it has counted once round,
//! the time of birth tells.)
//!
//! The walk goes on under whatever identity the thread has: where everybody may pass it may, too, and
//! what is refused to it is a no.
//!
//! # What is not asked
//!
//! Linux security modules (SELinux, AppArmor, Landlock), which may refuse an open that modes grant.
//! Directories above the root: who can say a path is let in by the export. What is changed later.

use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dafs_protocol::FileKind;
use dafs_store::Ancestors;
use smallvec::{SmallVec, smallvec};

use super::attr::{Born, Stat};
use super::lru::Lru;
use super::objects::Objects;
use super::sys::{self, Errno, Outcome};
use super::{BTRFS, EXT4, F2FS, OVERLAY, TMPFS, XFS};

/// File systems where the mode and the POSIX access control list are what the kernel goes by.
const BY_MODE: [i64; 6] = [EXT4, XFS, BTRFS, F2FS, TMPFS, OVERLAY];
/// The same, where lists are POSIX ones: others there are not seen as such.
const BY_MODE_WITH_LISTS: [i64; 2] = [BCACHEFS, ZFS];
const BCACHEFS: i64 = 0xca45_1a4e;
const ZFS: i64 = 0x2fc1_2fc1;
/// So that deep trees do not hold up opens.
const DIRECTORIES_MAX: usize = 64;
/// Directories that stay open, to be passed again.
const PASSED_MAX: usize = 256;
const PATH_BYTES: usize = libc::PATH_MAX as usize;

/// How the file system of an export decides who may do what.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rights {
    /// By modes and lists; it may have been mounted without lists.
    Modes,
    /// By modes and lists, if it has these.
    ModesWithLists,
    /// By what a server, a program, or mount options say.
    Unknown,
}

impl Rights {
    pub(super) fn of(magic: i64) -> Rights {
        if BY_MODE.contains(&magic) {
            Rights::Modes
        } else if BY_MODE_WITH_LISTS.contains(&magic) {
            Rights::ModesWithLists
        } else {
            Rights::Unknown
        }
    }

    /// By what was answered to a question for a list, the mode says all.
    fn has_no_list(self, asked: Outcome<usize>) -> bool {
        match asked {
            Err(Errno(libc::ENODATA)) => true,
            Err(Errno(libc::EOPNOTSUPP)) => self == Rights::Modes,
            _ => false,
        }
    }
}

/// What is asked of files of one export.
pub(super) struct Everybody {
    rights: Rights,
    /// The root, open for reading: so it tells of its list at half the cost.
    root: OwnedFd,
    /// Of this process. (A forked one has others: there the guess is wrong.)
    descriptors: OwnedFd,
    /// The path of the root when it was asked for last; at first none.
    root_path: Mutex<Arc<[u8]>>,
    /// Directories that were passed.
    passed: Mutex<Lru<Born, Arc<OwnedFd>>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Everybody {
    /// `root` is open for reading.
    pub(super) fn new(magic: i64, root: OwnedFd, descriptors_max: usize) -> Outcome<Everybody> {
        Ok(Everybody {
            rights: Rights::of(magic),
            root,
            descriptors: sys::own_descriptors()?,
            root_path: Mutex::new(Arc::from([])),
            passed: Mutex::new(Lru::new(PASSED_MAX.min(descriptors_max))),
        })
    }

    /// Closes directories that were not passed lately.
    pub(super) fn tidy(&self) {
        let idle = lock(&self.passed).take_unused(|_| true);
        drop(idle); // outside of the lock
    }

    /// See [`dafs_store::File::public_ancestors`].
    pub(super) fn ancestors(&self, objects: &Objects, file: &OwnedFd) -> Option<Ancestors> {
        if self.rights == Rights::Unknown {
            return None;
        }
        let asked = Asked { everybody: self, root: &objects.root_stat };
        Stat::of(file, true).ok().filter(all_read).and_then(|stat| {
            let mut room = [0; PATH_BYTES];
            let path = sys::path_of(&self.descriptors, file, &mut room).ok()?;
            let by_root = |root: &[u8]| asked.prove(file, &stat, below(root, path)?);
            let known = lock(&self.root_path).clone();
            by_root(&known).or_else(|| by_root(&self.moved(&known)?))
        })
    }

    /// The path of the root, if it is not the one that was known.
    fn moved(&self, known: &Arc<[u8]>) -> Option<Arc<[u8]>> {
        let mut room = [0; PATH_BYTES];
        let path = sys::path_of(&self.descriptors, &self.root, &mut room).ok()?;
        let path: Arc<[u8]> = Some(path).filter(|path| **path != **known)?.into();
        lock(&self.root_path).clone_from(&path);
        Some(path)
    }

    /// The directory that `dir` has by this name, if it is the one of `stat`.
    fn open(&self, dir: &OwnedFd, name: &[u8], stat: &Stat) -> Option<Arc<OwnedFd>> {
        let born = stat.born();
        if let Some(open) = lock(&self.passed).get(&born) {
            return Some(open);
        }
        // Nothing that is mounted there meanwhile is opened, but by O_PATH, which asks nobody.
        let (flags, stay) = (libc::O_DIRECTORY | libc::O_NOFOLLOW, libc::RESOLVE_NO_XDEV);
        let fd = sys::openat2(dir, name, flags | libc::O_RDONLY, 0, stay)
            .or_else(|_| sys::openat(dir, name, flags | libc::O_PATH, 0))
            .ok()?;
        if Stat::of(&fd, true).ok()?.born() != born {
            return None;
        }
        let fd = Arc::new(fd);
        let old = lock(&self.passed).insert(born, fd.clone());
        drop(old); // outside of the lock
        Some(fd)
    }
}

struct Asked<'a> {
    everybody: &'a Everybody,
    /// As the store was opened.
    root: &'a Stat,
}

impl Asked<'_> {
    /// `None`: not proven.
    fn prove(&self, file: &OwnedFd, stat: &Stat, path: &[u8]) -> Option<Ancestors> {
        let Everybody { root, .. } = self.everybody;
        let mut names = path.split(|byte| *byte == b'/');
        let last = names.next_back().filter(|name| is_plain(name))?;
        let at_root = Stat::of(root, true).ok().filter(|stat| stat.is_same_place(self.root))?;
        self.pass(&at_root)?;
        self.has_no_list(root)?;
        let mut passed: Option<Arc<OwnedFd>> = None;
        let mut ancestors: SmallVec<[u64; 16]> = smallvec![at_root.id().inode];
        for (number, name) in names.enumerate() {
            if number >= DIRECTORIES_MAX || !is_plain(name) {
                return None;
            }
            let dir = passed.as_deref().unwrap_or(root);
            let at_name = Stat::at(dir, name, true).ok()?;
            self.pass(&at_name)?;
            let next = self.everybody.open(dir, name, &at_name)?;
            self.has_no_list(&next)?;
            ancestors.push(at_name.id().inode);
            passed = Some(next);
        }
        let found = Stat::at(passed.as_deref().unwrap_or(root), last, true).ok()?;
        let is_it = all_read(&found) && found.born() == stat.born() && self.is_in_place(&found);
        if !is_it {
            return None;
        }
        self.has_no_list(file)?;
        Some(Arc::from(ancestors.as_slice()))
    }

    /// `None`: by its mode, somebody may not pass this directory.
    fn pass(&self, stat: &Stat) -> Option<()> {
        let all_pass = stat.kind() == FileKind::Directory && stat.mode() & 0o111 == 0o111;
        (all_pass && self.is_in_place(stat)).then_some(())
    }

    /// Nothing is mounted between the root and this.
    fn is_in_place(&self, stat: &Stat) -> bool {
        let is_known = stat.mount().is_some() && stat.mount() == self.root.mount();
        is_known && stat.id().device == self.root.id().device
    }

    fn has_no_list(&self, fd: &OwnedFd) -> Option<()> {
        self.everybody.rights.has_no_list(sys::access_list(fd)).then_some(())
    }
}

/// A regular file that has a name and whose mode lets all read it.
fn all_read(stat: &Stat) -> bool {
    stat.kind() == FileKind::File && stat.mode() & 0o444 == 0o444 && stat.links() != 0
}

/// Paths of the kernel have no other names; `..` would lead out.
fn is_plain(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..")
}

/// The part of `path` that is below `root`.
fn below<'a>(root: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    let root = root.strip_suffix(b"/").unwrap_or(root);
    path.strip_prefix(root)?.strip_prefix(b"/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_below_the_root_or_not() {
        assert_eq!(below(b"/a", b"/a/b/c"), Some(&b"b/c"[..]));
        assert_eq!(below(b"/", b"/b"), Some(&b"b"[..]));
        for (root, path) in
            [("/a", "/a"), ("/a", "/ab/c"), ("/a/b", "/a/c"), ("/a", "(unreachable)/a/b")]
        {
            assert_eq!(below(root.as_bytes(), path.as_bytes()), None, "{root} {path}");
        }
    }

    #[test]
    fn a_list_is_missed_only_where_modes_say_all() {
        let answers = |rights: Rights| {
            [Err(libc::ENODATA), Err(libc::EOPNOTSUPP), Err(libc::EACCES), Ok(0), Ok(28)]
                .map(|answer: Result<usize, i32>| rights.has_no_list(answer.map_err(Errno)))
        };
        assert_eq!(answers(Rights::Modes), [true, true, false, false, false]);
        assert_eq!(answers(Rights::ModesWithLists), [true, false, false, false, false]);
        let (nfs, fuse, vfat) = (0x6969, 0x6573_5546, 0x4d44);
        for magic in [nfs, fuse, vfat, 0] {
            assert_eq!(Rights::of(magic), Rights::Unknown);
        }
        assert_eq!((Rights::of(EXT4), Rights::of(ZFS)), (Rights::Modes, Rights::ModesWithLists));
    }
}
