//! Memory that one process writes, and others of its host may read.

use std::io::{ErrorKind, Result};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use super::shared::{READ_WRITE, SharedFile, align_of, checked_bytes, ok, system};
use super::{Arena, HUGE_PAGE_BYTES, Keep, PAGE_BYTES, Span};
use crate::error::ArenaError;

/// Which peers may read memory that [is for readers](Arena::for_readers): whoever maps a file of it reads all of it,
/// so this is a property of the file, for its life.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Readers {
    /// This process's own user and root, who could read all of its memory anyway. They read what is for others, too.
    Own,
    /// Peers of this user as well, when they are [admitted](crate::Engine::admit): memory of which nothing is secret
    /// to him.
    User(u32),
    /// Peers of any user, when they are admitted: memory of which nothing is secret to anybody who is let in.
    All,
}

impl SharedFile {
    /// What a peer is given: a descriptor for reading, of an arena [for readers](Arena::for_readers).
    pub fn for_peers(&self) -> BorrowedFd<'_> {
        self.for_readers.as_ref().map_or(self.as_fd(), |(fd, _)| fd.as_fd())
    }

    /// Bytes that it takes of memory, whoever had touched it first.
    ///
    /// # Errors
    /// The system's.
    pub fn resident_bytes(&self) -> Result<u64> {
        const BLOCK_BYTES: u64 = 512;
        let file = std::fs::File::from(self.as_fd().try_clone_to_owned()?);
        Ok(file.metadata()?.blocks() * BLOCK_BYTES)
    }

    /// Where the next page is, from here on, that takes memory; `None`: all the rest is holes.
    pub fn next_data(&self, from: usize) -> Option<usize> {
        let from = libc::off_t::try_from(from).ok()?;
        // SAFETY: numbers only. Nobody reads or writes this file by its position.
        let at = unsafe { libc::lseek(self.as_fd().as_raw_fd(), from, libc::SEEK_DATA) };
        usize::try_from(at).ok()
    }

    /// Peers are given it for reading only.
    pub fn is_for_readers(&self) -> bool {
        self.for_readers.is_some()
    }

    /// Which peers are given it, where it is for reading only.
    pub fn readers(&self) -> Option<Readers> {
        self.for_readers.as_ref().map(|(_, readers)| *readers)
    }

    /// Who owns a file may open it anew, to write, by what he was given to read.
    fn is_own(&self) -> Result<bool> {
        let file = std::fs::File::from(self.as_fd().try_clone_to_owned()?);
        Ok(file.metadata()?.uid() == crate::local::effective_uid())
    }
}

impl Arena {
    /// As [`in_segments`](Arena::in_segments), of memory that peers of this host can be given as that of
    /// [`shared`](Arena::shared), but for reading only, where they are `readers` of it.
    ///
    /// # Errors
    /// [`ArenaError`]. There may be no /proc, or a limit of the size of files. A thread that acts as another user in
    /// file systems makes none: it would be that user's file.
    ///
    /// # Panics
    /// As of `in_segments`.
    pub fn for_readers(
        bytes: usize,
        segment_bytes: usize,
        readers: Readers,
    ) -> std::result::Result<Arc<Arena>, ArenaError> {
        let whole_pages = segment_bytes.is_power_of_two() && segment_bytes >= PAGE_BYTES;
        assert!(whole_pages, "segments of {segment_bytes} bytes");
        let mut arena = Arena::map(bytes, HUGE_PAGE_BYTES)?;
        arena.segment_bytes = segment_bytes;
        let len = arena.len;
        let refused = |source| ArenaError::System { bytes: len, source };
        let mut file = SharedFile::new(len).map_err(refused)?;
        if !file.is_own().map_err(refused)? {
            return Err(refused(ErrorKind::PermissionDenied.into()));
        }
        file.for_readers = Some((file.read_only().map_err(refused)?, readers));
        arena.show(file.as_fd(), READ_WRITE).map_err(refused)?;
        arena.keep_out_of_dumps();
        file.close_seals().map_err(refused)?;
        arena.file = Some(Arc::new(file));
        Ok(Arc::new(arena))
    }

    /// A core dump is not to have all that a server has cached, nor to make memory of its holes.
    fn keep_out_of_dumps(&self) {
        // SAFETY: the arena's own mapping; its contents stay. What cannot do it says so, and goes on.
        unsafe { libc::madvise(self.base.as_ptr().cast(), self.len, libc::MADV_DONTDUMP) };
    }

    /// All of the memory that a peer shares, as [`of_peer`](Arena::of_peer). What it shares for reading only
    /// is no memory to [write](Span::is_writable).
    ///
    /// # Errors
    /// As of `of_peer`.
    pub fn span_of_peer(fd: BorrowedFd<'_>, bytes_max: usize) -> Result<Span> {
        // SAFETY: a call on a descriptor that is open.
        let flags = ok(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
        if flags & libc::O_ACCMODE != libc::O_RDONLY {
            let arena = Arena::of_peer(fd, bytes_max)?;
            return Ok(arena.span(0, arena.len));
        }
        let len = checked_bytes(fd, bytes_max)?;
        let room = Arena::map(len, align_of(len)).map_err(system)?;
        room.show(fd, libc::PROT_READ)?;
        room.keep_out_of_dumps();
        let start = room.base;
        Ok(Span { start, len, keep: Keep::Readable { _arena: Arc::new(room) } })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::OwnedFd;

    use super::*;

    fn arena() -> Arc<Arena> {
        Arena::for_readers(3 * HUGE_PAGE_BYTES, HUGE_PAGE_BYTES, Readers::Own).expect("memory")
    }

    #[test]
    fn peers_read_and_do_not_write() {
        let arena = arena();
        let span = arena.span(PAGE_BYTES, 5);
        span.copy_from(0, b"hello");
        let file = span.shared().expect("shared").file;
        assert!(file.is_for_readers() && file.readers() == Some(Readers::Own));
        let theirs = Arena::span_of_peer(file.for_peers(), file.len()).expect("mapped");
        assert!(span.is_writable() && !theirs.is_writable() && !theirs.is_shared());
        let mut seen = [0; 5];
        theirs.copy_to(PAGE_BYTES, &mut seen);
        assert_eq!(&seen, b"hello");
        assert!(Arena::of_peer(file.for_peers(), file.len()).is_err(), "not to be written");
        let fd: OwnedFd = file.for_peers().try_clone_to_owned().expect("a descriptor");
        assert!(std::fs::File::from(fd).write_all(b"x").is_err());
        assert!(Arena::span_of_peer(file.for_peers(), file.len() - 1).is_err(), "not agreed");
    }

    #[test]
    #[should_panic(expected = "lent for reading")]
    fn what_a_peer_lets_be_read_is_no_target() {
        let file = arena().span(0, 1).shared().expect("shared").file;
        let theirs = Arena::span_of_peer(file.for_peers(), file.len()).expect("mapped");
        theirs.copy_from(0, b"x");
    }

    #[test]
    fn what_is_given_back_is_gone_for_readers_too() {
        let arena = arena();
        arena.populate_huge(0, arena.len());
        let whole = arena.span(0, arena.len());
        let file = whole.shared().expect("shared").file;
        let theirs = Arena::span_of_peer(file.for_peers(), file.len()).expect("mapped");
        for at in [HUGE_PAGE_BYTES - 2, HUGE_PAGE_BYTES + PAGE_BYTES] {
            whole.copy_from(at, b"ok");
        }
        arena.discard(HUGE_PAGE_BYTES, 16 * PAGE_BYTES).expect("a hole in a huge page");
        let seen = |at| {
            let mut seen = [0; 2];
            theirs.copy_to(at, &mut seen);
            seen
        };
        assert_eq!(&seen(HUGE_PAGE_BYTES - 2), b"ok");
        assert_eq!(seen(HUGE_PAGE_BYTES + PAGE_BYTES), [0; 2]);
        whole.copy_from(HUGE_PAGE_BYTES + PAGE_BYTES, b"on");
        assert_eq!(&seen(HUGE_PAGE_BYTES + PAGE_BYTES), b"on");
    }

    #[test]
    fn it_has_segments() {
        let arena = arena();
        assert_eq!(arena.segment_bytes(), HUGE_PAGE_BYTES);
        let part = |page: usize| arena.span(page * PAGE_BYTES, PAGE_BYTES);
        assert!(part(0).is_followed_by(&part(1)) && !part(511).is_followed_by(&part(512)));
        assert_eq!(part(0).addr() as usize % HUGE_PAGE_BYTES, 0);
    }
}
