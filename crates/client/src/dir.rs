//! Reading directories.

use std::sync::Arc;

use dafs_protocol::{DirEntry, FileHandle, Identity};

use crate::answer::unexpected;
use crate::core::{Memory, Output, Place, Work};
use crate::error::{Error, Result};
use crate::handle::Handle;

/// Bytes of a batch of entries.
pub(crate) const BATCH_BYTES: u32 = 64 << 10;

/// Entries of a directory with their attributes, in the server's order, without `.` and `..`.
/// Fetched in batches; an entry that comes or goes meanwhile may be seen or not.
pub struct ReadDir {
    session: Arc<Handle>,
    user: Option<Arc<Identity>>,
    handle: FileHandle,
    cookie: u64,
    batch: std::vec::IntoIter<DirEntry>,
    end: bool,
}

impl std::fmt::Debug for ReadDir {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ReadDir").field("cookie", &self.cookie).finish_non_exhaustive()
    }
}

impl ReadDir {
    pub(crate) fn new(
        session: Arc<Handle>,
        user: Option<Arc<Identity>>,
        path: &[u8],
    ) -> Result<ReadDir> {
        let place = Place::new(path)?;
        let mut dir = ReadDir {
            session,
            user,
            handle: FileHandle::default(),
            cookie: 0,
            batch: Vec::new().into_iter(),
            end: false,
        };
        dir.fetch(place)?;
        Ok(dir)
    }

    fn fetch(&mut self, place: Place) -> Result<()> {
        let work = Work::ReadDir {
            place,
            cookie: self.cookie,
            bytes: BATCH_BYTES,
            attributes: true,
            handles: false,
        };
        match self.session.inner.call(self.user.clone(), work, Memory::None)? {
            Output::Entries { handle, entries, end } => {
                if entries.is_empty() && !end {
                    return Err(Error::PeerProtocol("an empty batch of entries".into()));
                }
                self.handle = handle;
                self.cookie = entries.last().map_or(self.cookie, |last| last.cookie);
                self.batch = entries.into_iter();
                self.end = end;
                Ok(())
            }
            other => Err(unexpected(&other)),
        }
    }
}

impl Iterator for ReadDir {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Result<DirEntry>> {
        loop {
            match self.batch.next() {
                Some(entry) if matches!(entry.name.as_slice(), b"." | b"..") => {}
                Some(entry) => return Some(Ok(entry)),
                None if self.end => return None,
                None => {
                    if let Err(error) = self.fetch(Place::at(self.handle)) {
                        self.end = true;
                        return Some(Err(error));
                    }
                }
            }
        }
    }
}
