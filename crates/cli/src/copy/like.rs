//! What a copy is to look like.

use std::fs::Metadata;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::time::{SystemTime, UNIX_EPOCH};

use dafs_protocol::{Attr, FileKind, Timestamp};

/// What a copy is to look like.
#[derive(Debug, Clone, Copy)]
pub struct Like {
    /// Of the original.
    pub attr: Attr,
    /// User and group, where they can be kept.
    pub owner: Option<(u32, u32)>,
    /// Permission bits, without those that would let others act as another owner.
    pub mode: u32,
}

/// What is to be set for that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Set {
    /// User and group.
    pub owner: Option<(u32, u32)>,
    /// Permission bits.
    pub mode: Option<u32>,
    /// Of access and modification.
    pub times: Option<(Timestamp, Timestamp)>,
}

impl Like {
    /// `attr` as far as files made by `uid` can be like it.
    pub fn new(attr: &Attr, uid: u32) -> Like {
        let owner = (uid == 0).then_some((attr.uid, attr.gid));
        let trusted = owner.is_some() || attr.uid == uid;
        let mode = if trusted { attr.mode & 0o7777 } else { attr.mode & 0o1777 };
        Like { attr: *attr, owner, mode }
    }

    /// All that `there` has not; all of it where nothing is known of it.
    pub fn beside(&self, there: Option<&Attr>) -> Set {
        let owner = self.owner.filter(|owner| there.is_none_or(|at| *owner != (at.uid, at.gid)));
        let has_mode = self.attr.kind != FileKind::Symlink;
        // A new owner ends set-user-ID.
        let mode = there.is_none_or(|at| at.mode & 0o7777 != self.mode) || owner.is_some();
        let times = there.is_none_or(|at| at.modified != self.attr.modified);
        Set {
            owner,
            mode: (has_mode && mode).then_some(self.mode),
            times: times.then_some((self.attr.accessed, self.attr.modified)),
        }
    }

    /// True when `there` has all of it.
    pub fn is_like(&self, there: &Attr) -> bool {
        self.beside(Some(there)) == Set { owner: None, mode: None, times: None }
    }
}

/// Attributes as servers tell them.
pub fn attr_of(meta: &Metadata) -> Attr {
    let kind = match meta.file_type() {
        t if t.is_dir() => FileKind::Directory,
        t if t.is_symlink() => FileKind::Symlink,
        t if t.is_fifo() => FileKind::Fifo,
        t if t.is_socket() => FileKind::Socket,
        t if t.is_char_device() => FileKind::CharDevice,
        t if t.is_block_device() => FileKind::BlockDevice,
        _ => FileKind::File,
    };
    let time = |seconds, nanoseconds: i64| Timestamp {
        seconds,
        nanoseconds: u32::try_from(nanoseconds).unwrap_or(0),
    };
    Attr {
        kind,
        mode: meta.mode() & 0o7777,
        links: u32::try_from(meta.nlink()).unwrap_or(u32::MAX),
        uid: meta.uid(),
        gid: meta.gid(),
        size: meta.size(),
        allocated: meta.blocks().saturating_mul(512),
        inode: meta.ino(),
        device: meta.dev(),
        number: 0,
        rdev: meta.rdev(),
        block_size: u32::try_from(meta.blksize()).unwrap_or(4096),
        change: 0,
        accessed: time(meta.atime(), meta.atime_nsec()),
        modified: time(meta.mtime(), meta.mtime_nsec()),
        changed: time(meta.ctime(), meta.ctime_nsec()),
        created: meta.created().ok().and_then(timestamp),
    }
}

fn timestamp(time: SystemTime) -> Option<Timestamp> {
    let since = time.duration_since(UNIX_EPOCH).ok()?;
    let seconds = i64::try_from(since.as_secs()).ok()?;
    Some(Timestamp { seconds, nanoseconds: since.subsec_nanos() })
}

/// What tells an object of this machine also where a server shows it, who gives its devices numbers
/// of their own. (Where the file system keeps no time of creation the inode has to do.)
pub fn identity(attr: &Attr) -> (u64, Timestamp) {
    (attr.inode, attr.created.unwrap_or(Timestamp { seconds: 0, nanoseconds: 0 }))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn set_user_bits_are_kept_only_with_their_owner() {
        let mut attr = attr_of(&fs::symlink_metadata("/").expect("a root"));
        attr.mode = 0o6755;
        attr.uid = 0;
        assert_eq!(Like::new(&attr, 0).mode, 0o6755);
        assert_eq!(Like::new(&attr, 0).owner, Some((0, attr.gid)));
        assert_eq!(Like::new(&attr, 1000).mode, 0o755);
        assert_eq!(Like::new(&attr, 1000).owner, None);
        attr.uid = 1000;
        assert_eq!(Like::new(&attr, 1000).mode, 0o6755);
    }

    #[test]
    fn only_what_differs_is_set() {
        let attr = attr_of(&fs::symlink_metadata("/").expect("a root"));
        let like = Like::new(&attr, 0);
        assert!(like.is_like(&attr));
        let mut other = attr;
        other.mode ^= 0o111;
        let set = like.beside(Some(&other));
        assert_eq!((set.owner, set.mode, set.times), (None, Some(like.mode), None));
        other = attr;
        other.modified.seconds += 1;
        let set = like.beside(Some(&other));
        assert_eq!((set.owner, set.mode), (None, None));
        assert!(set.times.is_some() && like.beside(None).mode.is_some());
    }
}
