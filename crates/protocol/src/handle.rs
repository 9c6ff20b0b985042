//! Names of things on the wire.

use std::fmt;

/// Names an object of an export, for as long as it exists (also over server restarts where the
/// store can do that). Opaque to clients; the server checks its MAC.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FileHandle(pub [u8; 64]);

impl FileHandle {
    /// Stands for "the handle that the operation before in this chain produced".
    pub const PREVIOUS: FileHandle = FileHandle([0xff; 64]);
}

impl Default for FileHandle {
    fn default() -> Self {
        FileHandle([0; 64])
    }
}

impl fmt::Debug for FileHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for byte in self.0.iter().take(12) {
            write!(f, "{byte:02x}")?;
        }
        Ok(())
    }
}

/// An open of one file in one session, made by OPEN.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct StateId(pub u64);

impl StateId {
    /// No open: reads are checked under the caller's identity each time.
    pub const NONE: StateId = StateId(0);
    /// Stands for "the state that the operation before in this chain produced".
    pub const PREVIOUS: StateId = StateId(u64::MAX);
}

/// A session, unique over all sessions of all servers (random part).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct SessionId(pub [u8; 16]);

/// A client over all its sessions, chosen by it at random and kept secret: who shows it may reclaim
/// its locks, and ends its older sessions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct ClientId(pub [u8; 16]);

impl fmt::Debug for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientId")
    }
}

/// Changes when uncommitted writes may have been lost: at each start of the server. The first half
/// names the run of its machine: where it stays the same, only what was not flushed may be lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct WriteVerifier(pub [u8; 16]);

impl WriteVerifier {
    /// Of a run of a machine and of a process on it.
    pub fn new(machine: [u8; 8], process: [u8; 8]) -> WriteVerifier {
        let mut bytes = [0; 16];
        let (first, second) = bytes.split_at_mut(8);
        first.copy_from_slice(&machine);
        second.copy_from_slice(&process);
        WriteVerifier(bytes)
    }

    /// What was flushed under one of them is still there under the other.
    pub fn same_machine_run(&self, other: &WriteVerifier) -> bool {
        self.0.first_chunk::<8>() == other.0.first_chunk::<8>()
    }
}

/// A slot of a session: one request under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct SlotId(pub u16);

/// A registered credential of a session; 0 is the session's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct CredHandle(pub u32);
