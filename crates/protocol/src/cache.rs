//! What is said about the server's cache: wishes, and what it holds.

/// Best effort wishes about caching, carried by OPEN and ADVISE (\[UNIFIER\] 4.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheHint {
    /// Cache unit in bytes (4 KiB to 1 MiB), 0 = the server chooses.
    pub unit: u32,
    /// 0 = the server chooses.
    pub policy: u8,
    /// 0 = the server chooses.
    pub class: u8,
}

impl CacheHint {
    /// Bytes of the smallest unit, and of the largest.
    pub const UNIT_BYTES: [u32; 2] = [4 << 10, 1 << 20];
    /// The numbers of policies, with their names.
    pub const POLICIES: [(u8, &str); 2] = [(1, "lru"), (2, "mq")];
    /// The numbers of classes, with their names: what is dropped first is low.
    pub const CLASSES: [(u8, &str); 3] = [(1, "low"), (2, "normal"), (3, "high")];
}

/// What CACHE_QUERY answers beside its ranges. A query looks at a part of a file at a time; the
/// sums are of that part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CacheInfo {
    /// Bytes of the ranges in the reply's data.
    pub bytes: u32,
    /// Where the next query goes on; `None`: this was all.
    pub next: Option<u64>,
    /// The file's size for readers; 0 where the cache does not know the file.
    pub size: u64,
    /// Bytes of memory that hold what the store has too.
    pub clean_bytes: u64,
    /// Bytes of memory that hold what the store does not have yet.
    pub dirty_bytes: u64,
    /// What holds for the file.
    pub cache: CacheHint,
}

/// A range of a file that is cached, in whole pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CachedRange {
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
    /// The store does not have it yet.
    pub dirty: bool,
}
