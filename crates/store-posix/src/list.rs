//! READDIR.

use std::os::fd::OwnedFd;

use dafs_protocol::{DirEntry, FileHandle, FileKind, ObjectId, Status, dir_entry_bytes};

use super::attr::Stat;
use super::sys::{self, Errno};
use super::{Inner, OVERLAY};
use dafs_store::{Caller, FileId, Listing};

/// Raw entries asked for at once, at most and at least.
const BUFFER_BYTES_MAX: usize = 32 << 10;
const BUFFER_BYTES_MIN: usize = 1 << 10;

/// Arguments of READDIR.
pub(super) struct Request {
    pub(super) cookie: u64,
    pub(super) bytes_max: usize,
    pub(super) attributes: bool,
    pub(super) handles: bool,
}

/// A raw entry.
struct Raw<'a> {
    inode: u64,
    cookie: u64,
    kind: Option<FileKind>,
    name: &'a [u8],
}

impl Inner {
    pub(super) fn read_dir(
        &self,
        caller: &Caller,
        dir: &FileHandle,
        request: &Request,
    ) -> Result<Listing, Status> {
        let object = self.objects.resolve(&self.identities, dir)?;
        if object.kind != FileKind::Directory {
            return Err(Status::NotDir);
        }
        let _acting = self.identities.act_as(caller)?;
        // Opened anew each time: that is the check of the caller's right to read it.
        let fd = sys::openat(&object.fd, b".", libc::O_RDONLY | libc::O_DIRECTORY, 0)
            .or_else(|errno| match errno {
                // `.` needs the right to search, which listing does not.
                Errno(libc::EACCES) => sys::reopen(&object.fd, libc::O_RDONLY | libc::O_DIRECTORY),
                other => Err(other),
            })
            .map_err(gone)?;
        if request.cookie != 0 {
            let offset = i64::try_from(request.cookie).map_err(|_| Status::BadCookie)?;
            sys::lseek(&fd, offset, libc::SEEK_SET).map_err(|_| Status::BadCookie)?;
        }
        self.list(caller, &fd, request)
    }

    pub(super) fn sync_dir(&self, dir: &FileHandle) -> Result<(), Status> {
        let object = self.objects.resolve(&self.identities, dir)?;
        if object.kind != FileKind::Directory {
            return Err(Status::NotDir);
        }
        let _server = self.identities.as_server()?;
        let fd = sys::openat(&object.fd, b".", libc::O_RDONLY | libc::O_DIRECTORY, 0);
        Ok(sys::fsync(&fd.map_err(gone)?, false)?)
    }

    fn list(&self, caller: &Caller, fd: &OwnedFd, request: &Request) -> Result<Listing, Status> {
        let mut listing = Listing::default();
        let mut bytes = 0;
        let stat = Stat::of(fd, true)?;
        let device = stat.id().device;
        // There, what lists tell of a number is not what objects tell.
        let looks = request.attributes || sys::fs_magic(fd)? == OVERLAY;
        // With attributes an answer's entry is some times as long as the raw one.
        let room = if request.attributes { request.bytes_max / 4 } else { request.bytes_max };
        let mut buffer = vec![0; room.clamp(BUFFER_BYTES_MIN, BUFFER_BYTES_MAX)];
        loop {
            let len = sys::getdents(fd, &mut buffer).map_err(gone)?;
            if len == 0 {
                listing.end = true;
                return Ok(listing);
            }
            for raw in Entries(buffer.get(..len).unwrap_or_default()) {
                if raw.name == b"." || raw.name == b".." {
                    continue;
                }
                let entry = self.entry(caller, (fd, device), &raw, request, looks)?;
                bytes += dir_entry_bytes(&entry);
                if bytes > request.bytes_max {
                    let none = listing.entries.is_empty();
                    return if none { Err(Status::Range) } else { Ok(listing) };
                }
                listing.entries.push(entry);
            }
        }
    }

    fn entry(
        &self,
        caller: &Caller,
        (dir, device): (&OwnedFd, u64),
        raw: &Raw<'_>,
        request: &Request,
        looks: bool,
    ) -> Result<DirEntry, Status> {
        // A directory may be another file system's root.
        let looks = looks || raw.kind.is_none_or(|kind| kind == FileKind::Directory);
        // Fails without the right to search, and for what was removed meanwhile.
        let stat = if looks { Stat::at(dir, raw.name, true).ok() } else { None };
        let id = stat.as_ref().map_or(FileId { device, inode: raw.inode }, Stat::id);
        // To ask anew at each listing would have the system mount what waits for its first use.
        if !self.objects.knows(id.device)
            && let Ok(fd) = sys::openat(dir, raw.name, libc::O_PATH, 0)
        {
            self.meet(caller, &fd)?;
        }
        let id = ObjectId { inode: id.inode, device: id.device, number: 0 };
        let handle = if request.handles { self.objects.handle_at(dir, raw.name) } else { None };
        Ok(DirEntry {
            cookie: raw.cookie,
            name: raw.name.to_vec(),
            kind: stat.as_ref().map(Stat::kind).or(raw.kind),
            attr: stat.filter(|_| request.attributes).map(|stat| stat.attr()),
            handle,
            id: (!request.attributes).then_some(id),
        })
    }
}

/// A directory that was removed has no entries, not even itself.
fn gone(errno: Errno) -> Status {
    if errno == Errno(libc::ENOENT) { Status::Stale } else { errno.into() }
}

/// Takes `struct linux_dirent64`s apart.
struct Entries<'a>(&'a [u8]);

impl<'a> Iterator for Entries<'a> {
    type Item = Raw<'a>;

    fn next(&mut self) -> Option<Raw<'a>> {
        let number = |at: usize| self.0.get(at..at + 8)?.try_into().ok().map(u64::from_ne_bytes);
        let (inode, cookie) = (number(0)?, number(8)?);
        let len = usize::from(u16::from_ne_bytes(self.0.get(16..18)?.try_into().ok()?));
        let kind = *self.0.get(18)?;
        let name = self.0.get(19..len)?;
        let name = name.split(|byte| *byte == 0).next()?;
        self.0 = self.0.get(len..)?;
        Some(Raw { inode, cookie, kind: kind_of(kind), name })
    }
}

fn kind_of(raw: u8) -> Option<FileKind> {
    match raw {
        libc::DT_REG => Some(FileKind::File),
        libc::DT_DIR => Some(FileKind::Directory),
        libc::DT_LNK => Some(FileKind::Symlink),
        libc::DT_FIFO => Some(FileKind::Fifo),
        libc::DT_SOCK => Some(FileKind::Socket),
        libc::DT_CHR => Some(FileKind::CharDevice),
        libc::DT_BLK => Some(FileKind::BlockDevice),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_entries_end_the_list() {
        for len in [0u16, 5, 19, 24, 200] {
            let mut bytes = vec![0; 24];
            bytes[16..18].copy_from_slice(&len.to_ne_bytes());
            bytes[19] = b'x';
            let count = Entries(&bytes).take(10).count();
            assert_eq!(count, usize::from(matches!(len, 19 | 24)), "{len}");
        }
    }
}
