//! What is measured: a directory of a server, or a local one.

mod costs;
mod local;
mod memory;
mod read_path;
mod remote;

use std::io;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::slice::Slice;
use crate::wait::Wait;

pub(crate) use costs::Costs;
pub use local::Local;
pub use memory::Memory;
pub use read_path::ReadPath;
pub use remote::{Connect, Remote};
pub(crate) use remote::{below, remove_tree};

/// Small files that `openread` reads.
pub const SMALL_FILES: u64 = 200;
/// Files made for `remove` to remove, and at most made by `create`, per stretch of measuring.
const FILES_MAX: u64 = 20_000;
/// More than any target makes or removes in a second.
const FILES_PER_SECOND: f64 = 40_000.0;
/// Directories between the target and the file that `stat` asks for.
const DEEP: usize = 8;
/// Pieces in which the file is written before measuring.
const FILL_BYTES: usize = 1 << 20;

/// What one operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// Reads one piece after the other.
    Read,
    /// Reads pieces in random order.
    RandRead,
    /// Writes one piece after the other, not synced.
    Write,
    /// Writes pieces in random order, not synced.
    RandWrite,
    /// Writes a piece and waits until it is on disk.
    WriteFsync,
    /// Attributes of a file eight directories down.
    Stat,
    /// Makes a file, writes a piece, closes it.
    Create,
    /// As `Create`, on disk before it ends.
    CreateFsync,
    /// Opens a small file, reads it, closes it.
    OpenRead,
    /// Removes a file.
    Remove,
}

impl Op {
    const ALL: [Op; 10] = [
        Op::Read,
        Op::RandRead,
        Op::Write,
        Op::RandWrite,
        Op::WriteFsync,
        Op::Stat,
        Op::Create,
        Op::CreateFsync,
        Op::OpenRead,
        Op::Remove,
    ];

    /// The name in options and output.
    pub fn name(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::RandRead => "randread",
            Op::Write => "write",
            Op::RandWrite => "randwrite",
            Op::WriteFsync => "write-fsync",
            Op::Stat => "stat",
            Op::Create => "create",
            Op::CreateFsync => "create-fsync",
            Op::OpenRead => "openread",
            Op::Remove => "remove",
        }
    }

    /// True where pieces come in random order.
    pub fn is_random(self) -> bool {
        matches!(self, Op::RandRead | Op::RandWrite)
    }

    /// True where the large file is used.
    pub fn uses_file(self) -> bool {
        matches!(self, Op::Read | Op::RandRead | Op::Write | Op::RandWrite | Op::WriteFsync)
    }

    /// Payload bytes of one operation on pieces of `size`.
    pub fn bytes(self, size: usize) -> u64 {
        match self {
            Op::Stat | Op::Remove => 0,
            _ => size as u64,
        }
    }
}

impl FromStr for Op {
    type Err = String;
    fn from_str(text: &str) -> Result<Op, String> {
        Op::ALL.into_iter().find(|op| op.name() == text).ok_or_else(|| {
            let names = Op::ALL.map(Op::name).join(", ");
            format!("'{text}' is not one of {names}")
        })
    }
}

/// One stretch of measuring.
#[derive(Debug, Clone, Copy)]
pub struct Work<'a> {
    /// What.
    pub op: Op,
    /// Bytes of a piece.
    pub size: usize,
    /// Operations under way.
    pub depth: usize,
    /// How to wait; `None` where the target gives no choice.
    pub wait: Option<Wait>,
    /// For about how long.
    pub time: Duration,
    /// Ends it early.
    pub stop: &'a AtomicBool,
}

impl Work<'_> {
    /// Files to make for `remove`, and at most to be made by `create`.
    fn files(&self) -> u64 {
        let wanted = self.time.as_secs_f64() * FILES_PER_SECOND;
        (wanted as u64).clamp(self.depth as u64, FILES_MAX)
    }

    fn goes_on(&self, started: Instant, now: Instant) -> bool {
        now - started < self.time && !self.stop.load(Ordering::Relaxed)
    }
}

/// A directory in which operations are measured. All that it makes lies in a directory of its
/// own, which is removed by [`clean_up`](Target::clean_up).
pub trait Target {
    /// What the measurements are called: a transport, or `local`.
    fn transport(&self) -> &str;

    /// True where waiting modes mean something.
    fn has_waits(&self) -> bool;

    /// Makes what all measurements need: a file of `file_bytes` for those that use it.
    ///
    /// # Errors
    /// The target's.
    fn set_up(&mut self, file_bytes: Option<u64>, stop: &AtomicBool) -> io::Result<()>;

    /// Makes what the next measurements of this kind need.
    ///
    /// # Errors
    /// The target's.
    fn prepare(&mut self, work: &Work<'_>) -> io::Result<()>;

    /// Measures. What is left over from it is removed, unmeasured.
    ///
    /// # Errors
    /// The target's.
    fn measure(&mut self, work: &Work<'_>) -> io::Result<Slice>;

    /// Begins to measure single operations, one at a time.
    ///
    /// # Errors
    /// The target's.
    fn begin(&mut self, wait: Option<Wait>) -> io::Result<Box<dyn Files + '_>>;

    /// Removes all that was made.
    ///
    /// # Errors
    /// The target's.
    fn clean_up(&mut self) -> io::Result<()>;
}

/// Whole small files, by number.
pub trait Files {
    /// Makes a file of `size` bytes.
    ///
    /// # Errors
    /// The target's.
    fn create(&mut self, number: u64, size: usize) -> io::Result<()>;
    /// Opens, reads and closes a file; its length.
    ///
    /// # Errors
    /// The target's.
    fn read(&mut self, number: u64, size: usize) -> io::Result<usize>;
    /// Opens a file, writes all of it anew and closes it.
    ///
    /// # Errors
    /// The target's.
    fn write(&mut self, number: u64, size: usize) -> io::Result<()>;
    /// Removes a file.
    ///
    /// # Errors
    /// The target's.
    fn remove(&mut self, number: u64) -> io::Result<()>;
    /// Costs since it was begun are added to `slice`.
    ///
    /// # Errors
    /// The target's.
    fn costs(&mut self, slice: &mut Slice) -> io::Result<()>;
}

/// The directory of this process in the target.
fn own_directory() -> String {
    format!(".dafs-bench-{}", std::process::id())
}

fn small_name(number: u64) -> String {
    format!("small-{number}")
}

/// Components of the path that `stat` asks for: directories, then the file.
fn deep_path() -> Vec<String> {
    let directories = (1..=DEEP).map(|level| format!("directory-{level}"));
    directories.chain(["file".to_owned()]).collect()
}
