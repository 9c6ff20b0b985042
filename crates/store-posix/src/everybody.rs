//! Which files everybody may open for reading.
//!
//! # What is a proof
//!
//! The path that the kernel has for the open file is taken for a guess, whatever it says: files
//! have come and gone since, and names may look like anything. What counts is a walk along that path,
//! from the directory that the root's descriptor names, through descriptors of each directory on the
//! way, that ends at the open file. It asks what the kernel would ask, in the same order, if
//! somebody without any rights opened that path at the same time: of each directory its mode, then
//! its access control list, then the next name in it; of the file its mode by that last name, then its
//! list. So in any race with changes of names, modes, or lists, whenever the walk says yes, an open by
//! a stranger as quick as the walk would have succeeded.
//!
//! In particular, of somebody who may not search a private directory around the file:
//!
//! - Another directory in the private one's place while it is walked: what is below is looked up in
//!   that other directory, from where no name leads to the file.
//! - Another directory in the place of one that is passed: it stays the one that was asked, by its
//!   descriptor.
//! - Another file, or a symlink, in the place of the last name: it is not the open file, whose number
//!   nobody else gets while it is open. A symlink on the way ends the walk.
//! - To move a directory from where it was passed to around the file takes the right to write there.
//! - The root's directory is renamed or replaced: the walk begins at its descriptor.
//!
//! The walk goes on under whatever identity the thread has: where everybody may pass it may, too, and
//! what is refused to it is a no.
//!
//! # What is not asked
//!
//! Linux security modules (SELinux, AppArmor, Landlock), which may refuse an open that modes grant.
//! Directories above the root: who can say a path is let in by the export. What is changed later.

use std::os::fd::OwnedFd;

use dafs_protocol::FileKind;

use super::attr::Stat;
use super::sys::{self, Errno};
use super::{BTRFS, EXT4, F2FS, Inner, OVERLAY, TMPFS, XFS};

/// File systems where the mode and the POSIX access control list are what the kernel goes by.
const BY_MODE: [i64; 6] = [EXT4, XFS, BTRFS, F2FS, TMPFS, OVERLAY];
/// The same, where lists are POSIX ones: others there are not seen as such.
const BY_MODE_WITH_LISTS: [i64; 2] = [BCACHEFS, ZFS];
const BCACHEFS: i64 = 0xca45_1a4e;
const ZFS: i64 = 0x2fc1_2fc1;
/// So that deep trees do not hold up opens.
const DIRECTORIES_MAX: usize = 64;
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
    fn has_no_list(self, asked: sys::Outcome<usize>) -> bool {
        match asked {
            Err(Errno(libc::ENODATA)) => true,
            Err(Errno(libc::EOPNOTSUPP)) => self == Rights::Modes,
            _ => false,
        }
    }
}

impl Inner {
    /// See [`dafs_store::File::is_for_everybody`].
    pub(super) fn is_for_everybody(&self, file: &OwnedFd) -> bool {
        self.rights != Rights::Unknown && self.prove(file).is_some()
    }

    /// `None`: not proven.
    fn prove(&self, file: &OwnedFd) -> Option<()> {
        let root = &self.objects.root.fd;
        let (mut of_root, mut of_file) = ([0; PATH_BYTES], [0; PATH_BYTES]);
        let of_root = sys::path_of(root, &mut of_root).ok()?;
        let path = below(of_root, sys::path_of(file, &mut of_file).ok()?)?;
        let mut names = path.split(|byte| *byte == b'/');
        let last = names.next_back()?;
        self.pass(root)?;
        let mut passed = None;
        for (number, name) in names.enumerate() {
            // No path of the kernel has such names; ".." would lead out.
            if number >= DIRECTORIES_MAX || matches!(name, b"" | b"." | b"..") {
                return None;
            }
            let flags = libc::O_PATH | libc::O_DIRECTORY;
            let next = sys::openat(passed.as_ref().unwrap_or(root), name, flags, 0).ok()?;
            self.pass(&next)?;
            passed = Some(next);
        }
        if matches!(last, b"" | b"." | b"..") {
            return None;
        }
        let found = Stat::at(passed.as_ref().unwrap_or(root), last, true).ok()?;
        let all_read = found.kind() == FileKind::File && found.mode() & 0o444 == 0o444;
        let is_it = found.links() != 0 && found.id() == Stat::of(file, true).ok()?.id();
        let proven = all_read && is_it && self.is_in_place(&found);
        (proven && self.rights.has_no_list(sys::access_list_of_file(file))).then_some(())
    }

    /// `None`: somebody may not pass this directory.
    fn pass(&self, directory: &OwnedFd) -> Option<()> {
        let stat = Stat::of(directory, true).ok()?;
        let all_pass = stat.kind() == FileKind::Directory && stat.mode() & 0o111 == 0o111;
        let passed = all_pass && self.is_in_place(&stat);
        let list = || sys::access_list_of_directory(directory);
        (passed && self.rights.has_no_list(list())).then_some(())
    }

    /// Nothing is mounted between the root and this.
    fn is_in_place(&self, stat: &Stat) -> bool {
        let root = &self.objects.root_stat;
        stat.id().device == root.id().device
            && stat.mount().is_some()
            && stat.mount() == root.mount()
    }
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
