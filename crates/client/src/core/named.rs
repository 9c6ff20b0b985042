//! What is known of reading an open file by name: by what, and where it is worth to try.
//!
//! Where many reads of a part of a file are refused, those of that part are requests for a while: the longer, the more.

use dafs_protocol::NamedReference;

/// Reads before the server is asked for a reference, at least and at most.
const READS_LEAST: u32 = 2;
const READS_MOST: u32 = 4096;
/// Bytes of a part of a file.
const PART_BYTES: u64 = 4 << 20;
/// Parts of a file of which is known how their reads went.
const PARTS: usize = 64;
/// Reads that are requests after one that was refused, at least and at most.
const PAUSE_LEAST: u16 = 4;
const PAUSE_MOST: u16 = 256;
/// So many refused in a row may mean that the reference is of no use any more.
const REFUSED_MOST: u32 = 8;

/// How reads of a part of a file went.
#[derive(Debug, Clone, Copy, Default)]
struct Part {
    number: u64,
    /// So many of the next reads are requests.
    pause: u16,
    /// As many were, when the last one was refused; halved by each that was not.
    level: u16,
}

/// What an open file has.
#[derive(Debug)]
pub(super) struct Named {
    reference: Option<Box<NamedReference>>,
    parts: Vec<Part>,
    /// Reads since the last question, and how many there have to be.
    reads: u32,
    due: u32,
    /// Nobody is asked (again).
    is_asked: bool,
    /// Refused in a row.
    refused: u32,
    /// The level of new parts.
    level: u16,
}

impl Named {
    /// Nothing was read yet.
    pub(super) fn new() -> Named {
        Named {
            reference: None,
            parts: Vec::new(),
            reads: 0,
            due: READS_LEAST,
            is_asked: false,
            refused: 0,
            level: 0,
        }
    }

    /// By what bytes from here on are read; `None`: by a request.
    #[inline]
    pub(super) fn turn(&mut self, offset: u64) -> Option<&NamedReference> {
        self.reference.as_ref()?;
        let level = self.level / 2;
        let part = self.part(offset, level);
        if part.pause > 0 {
            part.pause -= 1;
            return None;
        }
        self.reference.as_deref()
    }

    /// A read that is a request. True: the server is to be asked for a reference.
    #[inline]
    pub(super) fn is_due(&mut self) -> bool {
        if self.is_asked || self.reference.is_some() {
            return false;
        }
        self.reads += 1;
        self.is_asked = self.reads >= self.due;
        self.is_asked
    }

    #[inline]
    fn part(&mut self, offset: u64, level: u16) -> &mut Part {
        if self.parts.is_empty() {
            self.parts.resize(PARTS, Part { number: u64::MAX, ..Part::default() });
        }
        let number = offset / PART_BYTES;
        let part = &mut self.parts[number as usize % PARTS];
        if part.number != number {
            *part = Part { number, pause: level, level };
        }
        part
    }

    /// The server gives this reference.
    pub(super) fn told(&mut self, reference: NamedReference) {
        self.reference = Some(Box::new(reference));
        (self.is_asked, self.reads, self.refused) = (false, 0, 0);
    }

    /// A read by it was answered.
    #[inline]
    pub(super) fn hit(&mut self, offset: u64) {
        (self.refused, self.due) = (0, READS_LEAST);
        self.level /= 2;
        self.part(offset, 0).level /= 2;
    }

    /// A read by it was refused.
    pub(super) fn refused(&mut self, offset: u64) {
        let part = self.part(offset, 0);
        part.level = (part.level * 2).clamp(PAUSE_LEAST, PAUSE_MOST);
        part.pause = part.level;
        self.level = part.level;
        self.refused += 1;
        if self.refused >= REFUSED_MOST {
            self.reference = None;
            (self.reads, self.due) = (0, (self.due * 2).min(READS_MOST));
        }
    }
}

impl Named {
    /// The server gave none, for a reason of the moment: it is asked again.
    pub(super) fn ask_again(&mut self) {
        (self.is_asked, self.reads) = (false, 0);
        self.due = (self.due * 2).min(READS_MOST);
    }
}

/// How a session's reads by name went.
#[derive(Debug, Clone, Copy, Default)]
pub struct NamedCounts {
    /// Without a request.
    pub hits: u64,
    /// Refused, and asked for by a request.
    pub refused: u64,
    /// Questions for a reference.
    pub asked: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference() -> NamedReference {
        NamedReference::new(b"name").expect("short")
    }

    #[test]
    fn the_server_is_asked_when_something_was_read() {
        let mut named = Named::new();
        assert!(named.turn(0).is_none());
        let due: Vec<_> = (0..4).map(|_| named.is_due()).collect();
        assert_eq!(due, [false, true, false, false]);
        named.told(reference());
        assert!(named.turn(0).is_some() && !named.is_due());
    }

    /// Of so many reads of a file of which nothing is cached.
    #[test]
    fn a_file_that_is_not_cached_costs_next_to_nothing() {
        let mut named = Named::new();
        let (mut tried, mut asked) = (0, 0);
        for block in 0..100_000u64 {
            match named.turn(block * 4096).is_some() {
                true => {
                    tried += 1;
                    named.refused(block * 4096);
                }
                false if named.is_due() => {
                    asked += 1;
                    named.told(reference());
                }
                false => {}
            }
        }
        assert!((100..1000).contains(&tried) && asked < 100, "{tried} tried, {asked} asked");
    }

    #[test]
    fn a_part_that_is_cached_now_is_read_by_name_again() {
        let mut named = Named::new();
        named.told(reference());
        for _ in 0..5 {
            named.refused(0);
        }
        let paused = (0..1000).take_while(|_| named.turn(0).is_none()).count();
        assert_eq!(paused, 64);
        named.hit(0);
        assert!((0..100).all(|_| named.turn(0).is_some()));
        // Another part has not been tried, and is believed half of it.
        named.refused(0);
        let paused = (0..1000).take_while(|_| named.turn(PART_BYTES).is_none()).count();
        assert!((1..=PAUSE_MOST as usize / 2).contains(&paused), "{paused}");
    }

    #[test]
    fn a_reference_that_is_of_no_use_is_asked_for_anew() {
        let mut named = Named::new();
        named.told(reference());
        for part in 0..u64::from(REFUSED_MOST) {
            assert!(named.reference.is_some());
            named.refused(part * PART_BYTES);
        }
        assert!(named.reference.is_none());
        let reads = (1..).find(|_| named.is_due());
        assert_eq!(reads, Some(2 * READS_LEAST));
    }
}
