//! What the server's cache holds of a file, and advice about it.

use dafs_protocol::{CacheInfo, CachedRange};

use crate::advice::Advice;
use crate::answer::unexpected;
use crate::core::{Advised, Output, Work};
use crate::error::Result;
use crate::file::File;
use crate::session::Session;

impl File {
    /// Tells the server about future use of a range (all: 0, 0); best effort. A call reads in a
    /// part of a large range: go on after [`Advised::bytes`].
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn advise(&self, offset: u64, len: u64, advice: Advice) -> Result<Advised> {
        let (advice, cache) = advice.parts();
        match self.call(Work::Advise { file: self.key(), offset, len, advice, cache })? {
            Output::Advised(advised) => Ok(advised),
            other => Err(unexpected(&other)),
        }
    }

    /// What the server's cache holds of a range (`len` 0: to the end): sums, and ranges in order.
    /// Where [`CacheInfo::next`] is some, this was a part, and the next call goes on there.
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn cache_query(&self, offset: u64, len: u64) -> Result<(CacheInfo, Vec<CachedRange>)> {
        cached_of(self.call(Work::CacheQuery { file: self.key(), offset, len })?)
    }
}

impl Session {
    /// As [`File::cache_query`], of a file that is not opened for it, so that the server does not
    /// begin to remember it. Needs the right to read. Symlinks are not followed.
    ///
    /// # Errors
    /// [`Error`](crate::Error).
    pub fn cache_query(
        &self,
        path: &[u8],
        offset: u64,
        len: u64,
    ) -> Result<(CacheInfo, Vec<CachedRange>)> {
        cached_of(self.on(path, |place| Work::CacheQueryAt { place, offset, len })?)
    }
}

fn cached_of<F: std::fmt::Debug>(output: Output<F>) -> Result<(CacheInfo, Vec<CachedRange>)> {
    match output {
        Output::Cached { info, ranges } => Ok((info, ranges)),
        other => Err(unexpected(&other)),
    }
}
