//! What REFS_GET answers: by what a client on the server's host reads blocks of a file in the server's cache by
//! himself.

/// Blocks of one REFS_GET: 16 MiB of a file.
pub const REFERENCES_MAX: usize = 4096;
/// Bytes of a reference.
pub const REFERENCE_BYTES: usize = 4;
/// Stands for a block of which there is no reference.
pub const NO_SLOT: u32 = u32::MAX;

/// Bytes of a named reference at most.
pub const NAMED_REFERENCE_BYTES_MAX: usize = 64;

/// By what a client reads an open file in the server's cache, where the network takes names: the server gives it,
/// and looks into it at each read; to the client it is but bytes. It is good for all of the file, as long as
/// that is open for reading in the session that asked.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct NamedReference {
    bytes: [u8; NAMED_REFERENCE_BYTES_MAX],
    len: u8,
}

impl NamedReference {
    /// Of these bytes; `None`: there are none, or too many.
    pub fn new(bytes: &[u8]) -> Option<NamedReference> {
        let mut all = [0; NAMED_REFERENCE_BYTES_MAX];
        all.get_mut(..bytes.len())?.copy_from_slice(bytes); // not payload: a name
        (!bytes.is_empty()).then_some(NamedReference { bytes: all, len: bytes.len() as u8 })
    }

    /// Those.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

impl std::fmt::Debug for NamedReference {
    /// Who has it can read: it is in no log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NamedReference({} bytes)", self.len)
    }
}

/// A word of the memory with the [entries](crate::EntryWord), and what it says as long as they may be believed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LifeWord {
    /// Which word of 64 bits.
    pub number: u32,
    /// Its value.
    pub value: u64,
}

/// What all references of one answer have in common.
///
/// A reference is a guess: the number of a slot of the cache. Whether the slot still holds the block, and which
/// bytes of it are the file's, is what its [entry](crate::EntryWord) says, and that may be believed as long as both
/// words of life stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReferenceInfo {
    /// Bytes of references in the reply's data.
    pub bytes: u32,
    /// The server's life: of no other one is an entry of this file.
    pub epoch: u32,
    /// The file's number in entries.
    pub file: u64,
    /// The key (rkey) of the memory that is the cache: slots of 4 KiB.
    pub cache: u64,
    /// The key (rkey) of the memory that has the entries of the slots, and the words of life.
    pub entries: u64,
    /// Stands as long as the server lives.
    pub server: LifeWord,
    /// Stands as long as the session does.
    pub session: LifeWord,
}
