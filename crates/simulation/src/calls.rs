//! Calls under way, as the model needs them.

use std::time::Duration;

use dafs_protocol::{Attr, Status};

use crate::model::Moment;
use crate::model::locks::Want;
use crate::model::names::{NodeId, Path, Steps};

/// A call under way.
#[derive(Debug)]
pub struct Call {
    /// Its number.
    pub tag: u64,
    /// What was asked.
    pub kind: Kind,
    /// When, in the order of things.
    pub start: Moment,
    /// When, in virtual time.
    pub since: Duration,
    /// Bytes of its buffer that the call uses.
    pub len: usize,
    /// How many sessions its client had had.
    pub sessions: u64,
}

/// A piece of a file and of a buffer.
#[derive(Debug, Clone, Copy)]
pub struct Piece {
    /// Where in the file.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// The change, for a write.
    pub change: u32,
}

/// What was asked.
#[derive(Debug)]
pub enum Kind {
    /// Nothing.
    Ping,
    /// A data file.
    Open {
        /// Under which name.
        slot: usize,
        /// Which file has it.
        file: usize,
        /// How: read, write, append.
        how: (bool, bool, bool),
        /// The truncation.
        cut: Option<u32>,
    },
    /// Another file gets the name of a data file.
    Replace {
        /// Which name.
        slot: usize,
        /// The new file.
        file: usize,
        /// What is written to it, after a cut.
        changes: [u32; 2],
    },
    /// Finds out which file has the name of a data file.
    SlotLook {
        /// Which name.
        slot: usize,
        /// The file that may have it.
        file: usize,
    },
    /// The end of an open.
    Close {
        /// Which open.
        open: u64,
        /// Of which file.
        file: usize,
    },
    /// Bytes of a file.
    Read {
        /// Which.
        file: usize,
        /// One after the other in the buffer.
        pieces: Vec<Piece>,
    },
    /// Bytes for a file.
    Write {
        /// Which.
        file: usize,
        /// One after the other in the buffer.
        pieces: Vec<Piece>,
        /// On disk when it is answered.
        stable: bool,
    },
    /// Bytes for the end of a file.
    Append {
        /// Which.
        file: usize,
        /// The change, without a place.
        piece: Piece,
        /// On disk when it is answered.
        stable: bool,
    },
    /// A new size.
    Cut {
        /// Of which file.
        file: usize,
        /// The change.
        change: u32,
    },
    /// What was written, on disk.
    Commit {
        /// Of which open.
        open: u64,
        /// Of which file.
        file: usize,
        /// Not all of it.
        range: Option<(u64, u64)>,
        /// To the file system, not to the disk.
        flush: bool,
    },
    /// The size of an open file.
    Size {
        /// Which.
        file: usize,
    },
    /// Advice about the cache of a file, or what is in it.
    Cache {
        /// Which; `None`: the one that has a name.
        file: Option<usize>,
    },
    /// Where the server's cache has blocks of a file.
    Where {
        /// By which open.
        open: u64,
        /// Of which file.
        file: usize,
    },
    /// Everything on disk.
    Sync,
    /// Something about names.
    Name(Box<NameCall>),
    /// A change that others try at the same time.
    Race {
        /// Of which name.
        name: usize,
    },
    /// Finds out about a raced name.
    RaceLook {
        /// Which.
        name: usize,
    },
    /// Finds out what became of a call whose answer was lost.
    Look(Box<Look>),
    /// A file of locks.
    LockOpen {
        /// Which.
        file: usize,
    },
    /// The end of that open.
    LockClose {
        /// Of which.
        file: usize,
    },
    /// Attributes of a file of locks.
    LockLook {
        /// Which.
        file: usize,
    },
    /// A lock.
    Lock {
        /// For which owner of the client.
        locker: usize,
        /// Of which file.
        file: usize,
        /// It is answered when the lock is held.
        wait: bool,
    },
    /// What stands against a lock.
    LockTest {
        /// For which owner.
        locker: usize,
        /// Which lock.
        want: Want,
    },
    /// The end of a lock.
    Unlock {
        /// Of which owner.
        locker: usize,
        /// Where.
        want: Want,
        /// It is all that the owner may hold there.
        all: bool,
    },
    /// The end of all locks of an owner.
    Release {
        /// Which.
        locker: usize,
    },
}

impl Kind {
    /// It may take as long as others want.
    pub fn may_wait(&self) -> bool {
        matches!(self, Kind::Lock { wait: true, .. })
    }

    /// The owner of locks that asks.
    pub fn locker(&self) -> Option<usize> {
        match self {
            Kind::Lock { locker, .. } | Kind::LockTest { locker, .. } => Some(*locker),
            Kind::Unlock { locker, .. } | Kind::Release { locker } => Some(*locker),
            _ => None,
        }
    }

    /// The file of locks that it is about.
    pub fn lock_file(&self) -> Option<usize> {
        match self {
            Kind::LockOpen { file } | Kind::LockClose { file } | Kind::LockLook { file } => {
                Some(*file)
            }
            Kind::Lock { file, .. } => Some(*file),
            Kind::LockTest { want, .. } | Kind::Unlock { want, .. } => Some(want.file),
            _ => None,
        }
    }

    /// About locks, of this file or all.
    pub fn is_of_locks(&self, file: usize) -> bool {
        matches!(self, Kind::Release { .. }) || self.lock_file() == Some(file)
    }
}

/// What is done to names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NameOp {
    /// A directory is made.
    Mkdir,
    /// A symlink is made.
    Symlink,
    /// A small file is made or replaced, and perhaps renamed.
    Put {
        /// It is synced.
        commit: bool,
        /// What is written.
        piece: (u32, u64),
    },
    /// A small file is read.
    Get,
    /// Attributes.
    Stat,
    /// What a symlink says.
    ReadLink,
    /// A directory is listed.
    ReadDir,
    /// A name goes.
    Remove,
    /// A name changes.
    Rename,
    /// A second name.
    Link,
    /// Other permission bits.
    Chmod(u32),
}

/// A call about names.
#[derive(Debug)]
pub struct NameCall {
    /// What.
    pub op: NameOp,
    /// Yards that nobody else may touch meanwhile.
    pub yards: Vec<usize>,
    /// Names that tell whether it happened.
    pub paths: Vec<Path>,
    /// What the answer must be, and what it means.
    pub expect: Result<Steps, Status>,
    /// What it is about: the node that is made, read, or renamed.
    pub node: Option<NodeId>,
    /// Changes of a file: which, and which.
    pub changes: Vec<u32>,
}

/// A question what became of a call.
#[derive(Debug, Clone)]
pub struct Look {
    /// Names to look at.
    pub paths: Vec<Path>,
    /// What was found so far.
    pub found: Vec<Option<Attr>>,
    /// What the call would have done.
    pub steps: Steps,
    /// Yards that are set free then.
    pub yards: Vec<usize>,
    /// Not before this, since the call may still run.
    pub not_before: Duration,
}
