//! What is known of the segment that is being emptied.

/// A segment that is not empty after so many looks stays, and another one goes.
pub(crate) const LOOKS_MAX: u32 = 20;

/// The segment that is being emptied, where only whole ones can be given back.
#[derive(Default)]
pub(crate) struct Emptying {
    /// Which, and how often it was looked at.
    pub(crate) segment: Option<(usize, u32)>,
    /// About how many frames are to stay.
    pub(crate) target: usize,
    /// Given up by this shrink.
    pub(crate) besides: Vec<usize>,
    /// Somebody held pages of it, as of all others, when it was chosen.
    pub(crate) was_held: bool,
    /// So many looks nothing is emptied, since that was in vain.
    pub(crate) rest: u32,
}

impl Emptying {
    /// It stays for now.
    pub(crate) fn give_up(&mut self, segment: usize) {
        self.segment = None;
        self.besides.push(segment);
    }

    /// Whoever holds a page of each segment, or keeps the system from taking one, has a part of the
    /// cache emptied in vain no more than once in a while.
    pub(crate) fn rest(&mut self) {
        self.rest = LOOKS_MAX;
        self.besides.clear();
    }
}
