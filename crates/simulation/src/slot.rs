//! The name of a data file, and what of it is known.

use std::time::Duration;

use dafs_protocol::Attr;

/// The name of a data file.
#[derive(Debug)]
pub struct Slot {
    /// Which file has it.
    pub file: usize,
    /// Its number.
    pub inode: u64,
    /// So many opens are under way.
    pub opening: usize,
    /// Another file is to get it: nobody may open it.
    pub replacing: bool,
    /// This one may have got it; not to be looked at before.
    pub unclear: Option<(usize, Duration)>,
}

impl Slot {
    /// That of the first file.
    pub fn new((file, inode): (usize, u64)) -> Slot {
        Slot { file, inode, opening: 0, replacing: false, unclear: None }
    }

    /// Nobody opens it or replaces its file.
    pub fn is_free(&self) -> bool {
        self.opening == 0 && !self.replacing
    }

    /// It is known which file has it.
    pub fn is_settled(&self) -> bool {
        !self.replacing
    }

    /// When it is time to look, if that is to come.
    pub fn not_before(&self, now: Duration) -> Option<Duration> {
        self.unclear.map(|unclear| unclear.1).filter(|at| *at > now)
    }

    /// Nobody knows whether this file has it.
    pub fn look_at(&mut self, file: usize, not_before: Duration) {
        self.unclear = Some((file, not_before));
    }

    /// This file has it.
    pub fn is_now(&mut self, file: usize, attr: &Attr) {
        (self.file, self.inode, self.replacing) = (file, attr.inode, false);
    }
}
