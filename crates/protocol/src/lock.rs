//! Byte-range and whole-file locks: what they are called, and which stand against each other.
//!
//! [`RangeLocks`] are the locks of one file. The server decides with them; a client keeps those
//! that it holds, to reclaim them after a restart of the server.

/// Which locks stand against each other, and whose they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum LockKind {
    /// As fcntl(2) `F_SETLK`: of a process. Deadlocks are found.
    Posix = 1,
    /// As `F_OFD_SETLK`: of an open file. Stand against POSIX locks too.
    Ofd = 2,
    /// As flock(2): of an open file, over the whole of it; a world of their own.
    Whole = 3,
}

/// Who holds a lock, within its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct OwnerKey {
    /// The kind of its locks.
    pub kind: LockKind,
    /// Chosen by the client.
    pub number: u64,
}

/// Bytes from the first to the last, both of them included.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LockRange {
    first: u64,
    last: u64,
}

impl LockRange {
    /// All bytes.
    pub const ALL: LockRange = LockRange { first: 0, last: u64::MAX };

    /// `None` where `last` comes before `first`.
    pub fn new(first: u64, last: u64) -> Option<LockRange> {
        (first <= last).then_some(LockRange { first, last })
    }
    /// The first byte.
    pub fn first(&self) -> u64 {
        self.first
    }
    /// The last byte; `u64::MAX`: to the end, however the file grows.
    pub fn last(&self) -> u64 {
        self.last
    }
    /// Has a byte in common with the other.
    pub fn overlaps(&self, other: &LockRange) -> bool {
        self.first <= other.last && other.first <= self.last
    }
    /// Overlaps, or begins where the other ends.
    fn touches(&self, other: &LockRange) -> bool {
        self.first <= other.last.saturating_add(1) && other.first <= self.last.saturating_add(1)
    }
}

/// A lock that is wanted, or held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRequest {
    /// By whom.
    pub owner: OwnerKey,
    /// Of what.
    pub range: LockRange,
    /// Shared with nobody.
    pub exclusive: bool,
    /// The process, for those who ask who holds it.
    pub pid: u32,
}

/// A place in a queue; never 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LockTicket(pub u64);

/// The answer to LOCK.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Locked {
    /// It is held.
    Granted,
    /// It waits; a callback with this ticket tells the end of it.
    Waiting(LockTicket),
}

/// A held range of an owner `O` (a client's [`OwnerKey`], for a server with the client).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeldLock<O> {
    /// By whom.
    pub owner: O,
    /// Of what.
    pub range: LockRange,
    /// Shared with nobody.
    pub exclusive: bool,
    /// The process.
    pub pid: u32,
}

/// Locks of one file that stand against each other: POSIX and OFD ones, or whole-file ones.
/// Ranges of one owner never overlap; neighbours alike are one.
#[derive(Debug, Clone)]
pub struct RangeLocks<O> {
    held: Vec<HeldLock<O>>,
}

impl<O> Default for RangeLocks<O> {
    fn default() -> Self {
        RangeLocks { held: Vec::new() }
    }
}

impl<O: Copy + Eq> RangeLocks<O> {
    /// The lock with the lowest first byte that stands against this one.
    pub fn conflict(&self, owner: O, range: LockRange, exclusive: bool) -> Option<&HeldLock<O>> {
        let against = |held: &&HeldLock<O>| {
            held.owner != owner && held.range.overlaps(&range) && (held.exclusive || exclusive)
        };
        self.held.iter().filter(against).min_by_key(|held| held.range.first)
    }

    /// Every owner that stands against it.
    pub fn conflicts(
        &self,
        owner: O,
        range: LockRange,
        exclusive: bool,
    ) -> impl Iterator<Item = &HeldLock<O>> {
        self.held.iter().filter(move |held| {
            held.owner != owner && held.range.overlaps(&range) && (held.exclusive || exclusive)
        })
    }

    /// Gives the range to an owner, whatever it held there before. The caller saw that nothing
    /// stands against it.
    pub fn set(&mut self, owner: O, range: LockRange, exclusive: bool, pid: u32) {
        self.clear(owner, range);
        let mut whole = range;
        self.held.retain(|held| {
            let alike = held.owner == owner && held.exclusive == exclusive && held.pid == pid;
            if !alike || !held.range.touches(&whole) {
                return true;
            }
            whole.first = whole.first.min(held.range.first);
            whole.last = whole.last.max(held.range.last);
            false
        });
        self.held.push(HeldLock { owner, range: whole, exclusive, pid });
    }

    /// Takes a range from an owner; true when it held some of it.
    pub fn clear(&mut self, owner: O, range: LockRange) -> bool {
        let mut kept = Vec::new();
        let before = self.held.len();
        self.held.retain(|held| {
            if held.owner != owner || !held.range.overlaps(&range) {
                return true;
            }
            if held.range.first < range.first {
                let last = range.first - 1;
                kept.push(HeldLock { range: LockRange { last, ..held.range }, ..*held });
            }
            if held.range.last > range.last {
                let first = range.last + 1;
                kept.push(HeldLock { range: LockRange { first, ..held.range }, ..*held });
            }
            false
        });
        let any = self.held.len() < before;
        self.held.append(&mut kept);
        any
    }

    /// Takes everything from the owners that `is` names; true when one held something.
    pub fn clear_owners(&mut self, is: impl Fn(O) -> bool) -> bool {
        let before = self.held.len();
        self.held.retain(|held| !is(held.owner));
        self.held.len() < before
    }

    /// All.
    pub fn iter(&self) -> impl Iterator<Item = &HeldLock<O>> {
        self.held.iter()
    }

    /// How many ranges are held.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Nothing is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(first: u64, last: u64) -> LockRange {
        LockRange::new(first, last).expect("in order")
    }

    /// As the kernel does it: one state for each byte and owner.
    #[derive(Default)]
    struct Bytes([[Option<bool>; 24]; 3]);

    #[test]
    fn ranges_are_what_single_bytes_are() {
        let mut random = 7u64;
        let mut next = |below: u64| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
            (random >> 33) % below
        };
        let (mut locks, mut bytes) = (RangeLocks::default(), Bytes::default());
        for _ in 0..20_000 {
            let owner = next(3) as usize;
            let (a, b) = (next(24), next(24));
            let wanted = range(a.min(b), a.max(b));
            let exclusive = next(2) == 0;
            let part = a.min(b) as usize..=a.max(b) as usize;
            if next(3) == 0 {
                locks.clear(owner, wanted);
                bytes.0[owner][part].fill(None);
            } else {
                let others = (0..3).filter(|other| *other != owner);
                let against = others.flat_map(|other| bytes.0[other][part.clone()].iter());
                let free = !against.flatten().any(|held| *held || exclusive);
                assert_eq!(locks.conflict(owner, wanted, exclusive).is_none(), free);
                if free {
                    locks.set(owner, wanted, exclusive, 1);
                    bytes.0[owner][part].fill(Some(exclusive));
                }
            }
            let mut seen = Bytes::default();
            for held in locks.iter() {
                for byte in held.range.first()..=held.range.last() {
                    let cell = &mut seen.0[held.owner][byte as usize];
                    assert_eq!(cell.replace(held.exclusive), None, "ranges overlap");
                }
            }
            assert_eq!(seen.0, bytes.0);
        }
    }

    #[test]
    fn neighbours_become_one_and_the_end_has_no_neighbour() {
        let mut locks = RangeLocks::default();
        locks.set(1, range(0, 9), true, 5);
        locks.set(1, range(10, u64::MAX), true, 5);
        assert_eq!(locks.len(), 1);
        locks.clear(1, range(u64::MAX, u64::MAX));
        let all: Vec<_> = locks.iter().map(|held| held.range).collect();
        assert_eq!(all, [range(0, u64::MAX - 1)]);
        assert!(locks.clear_owners(|owner| owner == 1) && locks.is_empty());
    }
}
