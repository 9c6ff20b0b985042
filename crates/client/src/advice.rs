//! Advice about the use of a file.

use dafs_protocol::CacheHint;

/// What [`File::advise`](crate::File::advise) says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Advice {
    /// Through this open file there will be streams of reads, which the server may read ahead of.
    /// So it is without advice. The range says nothing.
    Sequential,
    /// There will not: nothing is read ahead.
    Random,
    /// The range will be read soon: the server reads it in, as far as it has room.
    WillNeed,
    /// The range will not be read soon: the server drops what it need not write back.
    DontNeed,
    /// What is not 0 in it is wished for the whole file, for all of its users, by root, its owner or
    /// somebody who may write it. The range says nothing.
    Wish(CacheHint),
}

impl Advice {
    /// As the protocol says it.
    pub(crate) fn parts(self) -> (u8, CacheHint) {
        match self {
            Advice::Sequential => (2, CacheHint::default()),
            Advice::Random => (1, CacheHint::default()),
            Advice::WillNeed => (3, CacheHint::default()),
            Advice::DontNeed => (4, CacheHint::default()),
            Advice::Wish(hint) => (5, hint),
        }
    }
}
