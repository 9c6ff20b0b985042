//! What a client tells of its reads that needed no server, for those who look at the server.

/// How reads of the server's cache went that a client did by itself, since its session began. The server shows it, and
/// does nothing else with it: a client may say what it likes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ToldReads {
    /// Reads that needed no server.
    pub hits: u64,
    /// Reads of blocks of which nothing was known.
    pub unknown: u64,
    /// Reads of blocks that were not any more where they had been, or changed meanwhile.
    pub stale: u64,
}

impl ToldReads {
    /// One after the other, as on the wire.
    pub fn fields(&self) -> [u64; 3] {
        [self.hits, self.unknown, self.stale]
    }

    /// As [`fields`](Self::fields) told them.
    pub fn of_fields([hits, unknown, stale]: [u64; 3]) -> ToldReads {
        ToldReads { hits, unknown, stale }
    }

    /// What was added since; nothing where there are fewer now.
    #[must_use]
    pub fn since(&self, before: &ToldReads) -> ToldReads {
        let (now, before) = (self.fields(), before.fields());
        ToldReads::of_fields(std::array::from_fn(|at| now[at].saturating_sub(before[at])))
    }
}
