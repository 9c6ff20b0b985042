//! Where the log is kept: a file beside the records of clients, or memory.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dafs_protocol::{RequestOutcome, SessionId};
use nix::time::{ClockId, clock_gettime};

use super::record::{Found, RECORD_BYTES, Record};

/// Bytes that survive the end of the server's process, not that of its machine. Nothing of it
/// waits for a disk.
pub trait LogStore: Send + Sync {
    /// Writes at an offset, which may be past the end; as a whole as far as other processes, and
    /// the end of this one, are concerned.
    ///
    /// # Errors
    /// There is no room, or the file cannot be written.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Fills `into` with what is there, and with zeros past the end.
    ///
    /// # Errors
    /// The file cannot be read.
    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()>;

    /// Bytes that are there.
    ///
    /// # Errors
    /// As `read`.
    fn bytes(&self) -> io::Result<u64>;

    /// Drops all.
    ///
    /// # Errors
    /// As `write`.
    fn clear(&self) -> io::Result<()>;

    /// Time that this machine runs.
    fn now(&self) -> Duration;
}

/// In a file.
#[derive(Debug)]
pub(crate) struct LogFile(File);

impl LogFile {
    /// Of a path, which is made if need be.
    ///
    /// # Errors
    /// It cannot be made.
    pub(crate) fn open(path: &Path) -> io::Result<LogFile> {
        let mut options = OpenOptions::new();
        options.create(true).truncate(false).read(true).write(true).mode(0o600);
        options.open(path).map(LogFile)
    }
}

impl LogStore for LogFile {
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.write_all_at(bytes, offset) // not payload: records of fixed size
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while let Some(rest) = into.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match self.0.read_at(rest, offset + filled as u64) {
                Ok(0) => {
                    rest.fill(0);
                    return Ok(());
                }
                Ok(bytes) => filled += bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn bytes(&self) -> io::Result<u64> {
        self.0.metadata().map(|meta| meta.len())
    }

    fn clear(&self) -> io::Result<()> {
        self.0.set_len(0)
    }

    fn now(&self) -> Duration {
        clock_gettime(ClockId::CLOCK_BOOTTIME).map_or(Duration::ZERO, Duration::from)
    }
}

/// In memory that lives as long as its clones: over restarts within one process.
#[derive(Clone)]
pub struct MemoryLog {
    bytes: Arc<Mutex<Vec<u8>>>,
    clock: Arc<dyn Fn() -> Duration + Send + Sync>,
}

impl MemoryLog {
    /// Empty, with a clock of the machine's.
    pub fn new(clock: Arc<dyn Fn() -> Duration + Send + Sync>) -> MemoryLog {
        MemoryLog { bytes: Arc::default(), clock }
    }

    /// What was begun and not done: where it is logged, and its sequence. For simulations.
    pub fn begun(&self) -> Vec<(usize, SessionId, u32)> {
        let all = self.all();
        let (records, _) = all.as_chunks::<RECORD_BYTES>();
        let begun =
            records.iter().enumerate().filter_map(|(at, record)| match Record::decode(record) {
                Found::Record(Record {
                    session,
                    sequence,
                    request_outcome: RequestOutcome::Begun,
                }) => Some((at, session, sequence)),
                _ => None,
            });
        begun.collect()
    }

    fn all(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LogStore for MemoryLog {
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let end = start.checked_add(bytes.len()).ok_or(io::ErrorKind::FileTooLarge)?;
        let mut all = self.all();
        if all.len() < end {
            all.resize(end, 0);
        }
        let place = all.get_mut(start..end).ok_or(io::ErrorKind::InvalidInput)?;
        place.copy_from_slice(bytes); // not payload: records of fixed size
        Ok(())
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let all = self.all();
        let there = all.get(start..).unwrap_or_default();
        for (to, from) in into.iter_mut().zip(there.iter().chain(std::iter::repeat(&0))) {
            *to = *from;
        }
        Ok(())
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.all().len() as u64)
    }

    fn clear(&self) -> io::Result<()> {
        self.all().clear();
        Ok(())
    }

    fn now(&self) -> Duration {
        (self.clock)()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_keep_what_was_written() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("notes");
        let memory = MemoryLog::new(Arc::new(|| Duration::from_secs(1)));
        let stores: [[Box<dyn LogStore>; 2]; 2] = [
            [Box::new(memory.clone()), Box::new(memory)],
            [
                Box::new(LogFile::open(&path).expect("made")),
                Box::new(LogFile::open(&path).expect("there")),
            ],
        ];
        for [one, other] in stores {
            assert_eq!(one.bytes().expect("length"), 0);
            one.write(70, &[1, 2, 3]).expect("written");
            let mut bytes = [9; 6];
            other.read(69, &mut bytes).expect("read");
            assert_eq!((bytes, other.bytes().expect("length")), ([0, 1, 2, 3, 0, 0], 73));
            other.read(1 << 40, &mut bytes).expect("read");
            assert_eq!(bytes, [0; 6]);
            other.clear().expect("cleared");
            assert_eq!(one.bytes().expect("length"), 0);
            assert!(one.now() > Duration::ZERO);
        }
    }
}
