//! One file's bytes: every change with its interval, and which of them a read may see.
//!
//! Each 8-byte word that a change writes names the change and its place in it. A read may see a
//! word of any change that no other one has certainly replaced: one that began after the first
//! had ended, and was answered before the read began. What a crash or an error of the store may
//! have taken away replaces nothing any more, until a commit says that it is there.

mod change;

use super::{Moment, Span};
pub use change::Shape;
use change::{Change, Progress};

/// Bytes that are told apart.
pub const WORD: u64 = 8;
/// Offsets and lengths are multiples of this: half of a write, which is what a store that fails
/// may leave, still ends with a word.
pub const STEP: u64 = 16;

/// What a crash takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Crash {
    /// All that is not in the store.
    Process,
    /// All that was not synced.
    Machine,
}

/// How safe a commit or close made what was written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Safety {
    /// In the store.
    Stored,
    /// On disk.
    Durable,
}

/// A file.
#[derive(Debug, Clone)]
pub struct File {
    name: String,
    changes: Vec<Change>,
}

impl File {
    /// An empty one.
    pub fn new(name: String) -> File {
        let empty = Change {
            id: 0,
            shape: Shape::Cut { size: 0 },
            who: usize::MAX,
            open: None,
            start: 0,
            progress: Progress::Done(0),
            seen: None,
            seen_since: 0,
            stored: true,
            durable: true,
            crashed: false,
            shaky: false,
            told: false,
            kept: false,
            kept_perhaps: false,
            unordered: false,
            too_late: false,
            pending: false,
            again: None,
        };
        File { name, changes: vec![empty] }
    }

    /// A change was asked for.
    pub fn begin(&mut self, id: u32, shape: Shape, who: usize, open: Option<u64>, start: Moment) {
        let empty = self.changes[0].clone();
        self.changes.push(Change {
            id,
            shape,
            who,
            open,
            start,
            progress: Progress::UnderWay,
            stored: false,
            durable: false,
            ..empty
        });
    }

    /// Its bytes are kept by its writer.
    pub fn keep(&mut self, id: u32) {
        if let Some(change) = self.find(id) {
            change.kept = true;
        }
    }

    /// An open is over, and what was kept for it.
    pub fn keep_no_more(&mut self, open: u64) {
        for change in self.changes.iter_mut().filter(|change| change.open == Some(open)) {
            (change.kept, change.pending) = (false, false);
        }
    }

    /// The file was flushed for `who`, or it was told that it could not be: what it wrote before,
    /// through any open, is not kept any more.
    pub fn flushed(&mut self, who: usize, start: Moment) {
        for change in self.changes.iter_mut().filter(|change| change.who == who && change.kept) {
            match change.is_done_before(start) {
                true => (change.kept, change.pending) = (false, false),
                false => change.kept_perhaps = true,
            }
        }
    }

    /// Calls of `who` go on in a new session: what it keeps is there again. What its writer was
    /// told of an error about may be, or was given up.
    pub fn written_again(&mut self, who: usize, now: Moment) {
        let own = |change: &&Change| change.who == who && change.cut().is_some();
        let (cuts, others): (Vec<Change>, Vec<Change>) = (self.changes.iter().filter(own).cloned())
            .partition(|cut| matches!(cut.progress, Progress::Done(_)));
        others.iter().for_each(|cut| self.kept_beside_cut(cut));
        let kept = |change: &&mut Change| change.who == who && change.kept && change.pending;
        for change in self.changes.iter_mut().filter(kept) {
            change.pending = false;
            let mut is_cut = false;
            for cut in &cuts {
                // Where the machine lost the cut, nobody knows what is behind it.
                match cut.crashed {
                    true => change.told |= change.is_cut_by(cut),
                    false => is_cut |= change.shorten(cut),
                }
            }
            if !is_cut {
                change.crashed &= change.told || change.kept_perhaps;
                (change.again, change.seen) = (Some(now), None);
            }
        }
    }

    fn find(&mut self, id: u32) -> Option<&mut Change> {
        self.changes.iter_mut().find(|change| change.id == id)
    }

    /// It was answered with success; an append tells where it went.
    ///
    /// # Errors
    /// What is wrong with that place.
    pub fn done(&mut self, id: u32, end: Moment, at: Option<u64>) -> Result<(), String> {
        let name = self.name.clone();
        let Some(change) = self.find(id) else { return Ok(()) };
        change.progress = Progress::Done(end);
        if matches!(change.shape, Shape::Cut { .. }) {
            change.stored = true;
            let cut = change.clone();
            self.kept_beside_cut(&cut);
            return Ok(());
        }
        if let (Shape::Append { len, offset }, Some(at)) = (&mut change.shape, at) {
            let (len, seen) = (*len, *offset);
            if seen.is_some_and(|seen| seen != at) {
                return Err(format!("{name}: append {id} answered {at}, but was seen at {seen:?}"));
            }
            *offset = Some(at);
            let span = Span { start: change.start, end };
            if len > 0 {
                self.check_append(id, at, len, span)?;
            }
        }
        Ok(())
    }

    /// What its writer keeps is kept no longer where that was under way with this cut.
    fn kept_beside_cut(&mut self, cut: &Change) {
        let beside = |change: &&mut Change| change.who == cut.who && change.kept;
        for change in self.changes.iter_mut().filter(beside) {
            // Or where it went on in a session in which that was written again.
            let in_between = change.again.is_some_and(|again| again > cut.start);
            if in_between || !change.is_done_before(cut.start) {
                (change.kept_perhaps, change.unordered) = (true, true);
            }
            if in_between && change.shorten(cut) {
                change.again = None;
            }
        }
    }

    /// `who` came back too late: what it was to write again is lost, and each open has to tell.
    pub fn too_late(&mut self, who: usize) {
        let kept = |change: &&mut Change| change.who == who && change.kept && change.pending;
        for change in self.changes.iter_mut().filter(kept) {
            (change.kept, change.pending, change.too_late) = (false, false, true);
        }
    }

    /// What `who` wrote through this open was not written again, and nobody told it so far.
    pub fn came_too_late(&self, who: usize, open: u64) -> bool {
        let mine = |change: &Change| change.who == who && change.open == Some(open);
        self.changes.iter().any(|change| mine(change) && change.too_late)
    }

    /// What `who` kept may have been given up, since a cut was under way with it.
    pub fn gave_up(&self, who: usize) -> bool {
        self.changes.iter().any(|change| change.who == who && change.unordered)
    }

    /// An append lies where the file ended, and over no other one.
    fn check_append(&self, id: u32, at: u64, len: u64, span: Span) -> Result<(), String> {
        self.check_absent(at, span).map_err(|why| format!("append {id} at {at}: {why}"))?;
        let own = self.changes.iter().find(|change| change.id == id);
        let Some(own) = own.filter(|own| !own.is_doubtful()) else { return Ok(()) };
        for other in self.changes.iter().filter(|other| other.id != id) {
            let Shape::Append { offset: Some(from), len: bytes } = other.shape else { continue };
            let overlap = from < at + len && at < from + bytes;
            let since = own.start.min(other.start);
            let was_cut = self.changes.iter().any(|cut| {
                cut.cut().is_some() && cut.happened().is_none_or(|happened| happened > since)
            });
            // One that was written again did not look where the file ends.
            let apart = !other.is_doubtful() && other.again.is_none();
            if overlap && !was_cut && apart && matches!(other.progress, Progress::Done(_)) {
                return Err(format!(
                    "{}: appends {id} at {at} and {} at {from} overlap",
                    self.name, other.id
                ));
            }
        }
        Ok(())
    }

    /// It was answered with an error.
    pub fn failed(&mut self, id: u32, end: Moment) {
        if let Some(change) = self.find(id) {
            change.progress = Progress::Failed(end);
        }
    }

    /// Nobody will ever know.
    pub fn open_ended(&mut self, id: u32) {
        if let Some(change) = self.find(id) {
            (change.progress, change.seen) = (Progress::Open, None);
        }
    }

    /// A session of `who` was lost: what is under way may be done again.
    pub fn session_lost(&mut self, who: usize, now: Moment) {
        for change in self.changes.iter_mut().filter(|change| change.who == who) {
            change.forget_seen(now);
        }
    }

    /// The server crashed.
    pub fn crash(&mut self, crash: Crash, now: Moment) {
        for change in &mut self.changes {
            change.forget_seen(now);
            change.pending |= change.kept && matches!(change.progress, Progress::Done(_));
            let survives = match crash {
                Crash::Process => change.stored || change.durable,
                Crash::Machine => change.durable,
            };
            if !survives {
                change.crashed = true;
                change.seen = None;
                if let (Shape::Append { offset, .. }, Progress::UnderWay) =
                    (&mut change.shape, change.progress)
                {
                    *offset = None;
                }
            }
        }
    }

    /// The store fails: what is not stored may be lost.
    pub fn store_fails(&mut self) {
        for change in self.changes.iter_mut().filter(|change| !change.stored && !change.durable) {
            change.shaky = true;
        }
    }

    /// A commit (or close) succeeded, for all bytes or those of a range.
    pub fn committed(
        &mut self,
        who: usize,
        open: Option<u64>,
        span: Span,
        safety: Safety,
        range: Option<(u64, u64)>,
    ) {
        let within = |change: &Change| match (range, change.range()) {
            (None, _) => true,
            (Some((from, to)), Some((start, end))) => from <= start && end <= to,
            _ => false,
        };
        for change in &mut self.changes {
            if !change.is_covered(who, span) || !within(change) {
                continue;
            }
            let own = open.is_some() && change.open == open && change.who == who;
            if own && !change.told {
                (change.crashed, change.shaky) = (false, false);
                change.too_late = false;
            }
            if !change.is_doubtful() {
                change.stored = true;
                change.durable |= safety == Safety::Durable;
            }
        }
    }

    /// Writes of `who`, through this open or any, were answered in this span and can be lost.
    pub fn wrote_within(&self, who: usize, open: Option<u64>, span: Span) -> bool {
        self.changes.iter().any(|change| {
            let mine = change.who == who && (open.is_none() || change.open == open);
            let at_risk = !change.kept && !change.stored && !change.durable;
            let within = matches!(change.progress, Progress::Done(end) if span.start < end);
            mine && at_risk && within && change.range().is_some()
        })
    }

    /// Everything of the export was synced, says the answer to `who`.
    pub fn synced(&mut self, who: usize, span: Span) {
        for change in &mut self.changes {
            if !change.is_covered(who, span) {
                continue;
            }
            if change.who == who && !change.told && change.range().is_some() {
                change.crashed = false;
            }
            if !change.is_doubtful() {
                (change.stored, change.durable) = (true, true);
            }
        }
    }

    /// A stable write is on disk when it is answered.
    pub fn made_durable(&mut self, id: u32) {
        if let Some(change) = self.find(id) {
            (change.stored, change.durable) = (true, true);
        }
    }

    /// `who` was told of an error, through this open or any.
    pub fn told(&mut self, who: usize, open: Option<u64>) {
        let mine =
            |change: &&mut Change| change.who == who && (open.is_none() || change.open == open);
        for change in self.changes.iter_mut().filter(mine).filter(|change| !change.durable) {
            change.told();
        }
    }

    /// A sync told `who` that writes are lost. Those that are certainly kept are not meant: they are
    /// written again, and a commit of their file tells what becomes of them.
    pub fn sync_told(&mut self, who: usize) {
        let is_kept = |change: &Change| change.kept && !change.kept_perhaps;
        let mine = |change: &&mut Change| change.who == who && !is_kept(change) && !change.durable;
        self.changes.iter_mut().filter(mine).for_each(Change::told);
    }

    /// The most bytes that it may have.
    pub fn size_max(&self) -> u64 {
        let size = |change: &Change| match change.shape {
            Shape::Append { len, offset: None } => len,
            _ => change.end(),
        };
        self.changes.iter().map(size).max().unwrap_or(0)
    }

    /// Checks what a read of `asked` bytes at `offset` brought.
    ///
    /// # Errors
    /// What should not be there, or should be.
    pub fn check_read(
        &mut self,
        read: Span,
        offset: u64,
        asked: u64,
        bytes: &[u8],
    ) -> Result<(), String> {
        if !(bytes.len() as u64).is_multiple_of(WORD) {
            return Err(format!("{}: a read ended within a word", self.name));
        }
        let end = offset + bytes.len() as u64;
        let word = |at: usize| {
            let word = bytes.get(at * 8..at * 8 + 8).and_then(|word| word.try_into().ok());
            u64::from_le_bytes(word.unwrap_or_default())
        };
        let words = bytes.len() / 8;
        let mut at = 0;
        while at < words {
            let first = word(at);
            let step = u64::from(first != 0);
            let mut count = 1;
            while at + count < words && word(at + count) == first + step * count as u64 {
                count += 1;
            }
            let from = offset + at as u64 * WORD;
            let to = from + count as u64 * WORD;
            if first == 0 {
                self.check_zeros(from, to, read)?;
            } else {
                self.check_data(first, from, to, read)?;
            }
            at += count;
        }
        if end < offset + asked {
            self.check_absent(end, read)?;
        }
        if !bytes.is_empty() {
            self.check_present(end - WORD, read)?;
        }
        Ok(())
    }

    /// Checks a size.
    ///
    /// # Errors
    /// Why the file cannot have it.
    pub fn check_size(&self, size: u64, span: Span) -> Result<(), String> {
        self.check_absent(size, span)?;
        match size.checked_sub(1) {
            Some(last) => self.check_present(last, span),
            None => Ok(()),
        }
    }

    fn check_data(&mut self, first: u64, from: u64, to: u64, read: Span) -> Result<(), String> {
        let (id, index) = ((first >> 32) as u32, first & 0xffff_ffff);
        let name = self.name.clone();
        let place = format!("{name}: bytes {from} to {to}");
        let Some(start) = from.checked_sub(index * WORD) else {
            return Err(format!("{place} hold the inside of change {id}, misplaced"));
        };
        let Some(change) = self.find(id).filter(|change| change.id != 0) else {
            return Err(format!("{place} hold words {first:#x} that nobody wrote here"));
        };
        if let Shape::Append { offset: offset @ None, .. } = &mut change.shape {
            *offset = Some(start);
        }
        let fits = change.range().is_some_and(|(at, end)| at == start && to <= end);
        if !fits || change.start > read.end {
            let range = change.range();
            return Err(format!("{place} hold change {id} from its word {index}, of {range:?}"));
        }
        let seen = read.end;
        if read.start > change.seen_since {
            change.seen = Some(change.saw().min(seen));
        }
        let change = change.clone();
        let over = |other: &&Change| match other.cut() {
            Some(size) => size < to,
            None => other.range().is_some_and(|(a, b)| a < to && from < b),
        };
        match self.changes.iter().filter(over).find(|other| other.replaces(&change, read)) {
            Some(newer) => Err(format!(
                "{place} hold {change:?}, read {read:?}, although {newer:?} has replaced it"
            )),
            None => Ok(()),
        }
    }

    /// Zeros: a hole, or what a cut left.
    fn check_zeros(&self, from: u64, to: u64, read: Span) -> Result<(), String> {
        let mut edges = vec![from, to];
        for change in &self.changes {
            let (a, b) = change.range().unwrap_or((change.end(), change.end()));
            edges.extend([a, b].into_iter().filter(|edge| from < *edge && *edge < to));
        }
        edges.sort_unstable();
        edges.dedup();
        for pair in edges.windows(2) {
            let (from, to) = (pair[0], pair[1]);
            let source = |source: &&Change| {
                let over = |other: &&Change| other.range().is_some_and(|(a, b)| a < to && from < b);
                source.cut().is_some_and(|size| size <= from)
                    && source.start < read.end
                    && !self.changes.iter().filter(over).any(|other| other.replaces(source, read))
            };
            if !self.changes.iter().any(|change| source(&change)) {
                let over: Vec<_> = self
                    .changes
                    .iter()
                    .filter(|c| c.range().is_some_and(|(a, b)| a < to && from < b))
                    .collect();
                return Err(format!(
                    "{}: bytes {from} to {to} are zero, read {read:?}, written by {over:?}",
                    self.name
                ));
            }
        }
        Ok(())
    }

    /// The file may end before `at`.
    fn check_absent(&self, at: u64, read: Span) -> Result<(), String> {
        let source = |source: &&Change| {
            source.cut().is_some_and(|size| size <= at)
                && source.start < read.end
                && !self
                    .changes
                    .iter()
                    .any(|other| other.end() > at && other.replaces(source, read))
        };
        if self.changes.iter().any(|change| source(&change)) {
            return Ok(());
        }
        let longer: Vec<_> = self.changes.iter().filter(|change| change.end() > at).collect();
        Err(format!("{}: ends at {at}, read {read:?}, although {longer:?}", self.name))
    }

    /// The file may be longer than `at`.
    fn check_present(&self, at: u64, read: Span) -> Result<(), String> {
        let source = |source: &&Change| {
            let unknown = matches!(source.shape, Shape::Append { offset: None, .. });
            (source.end() > at || unknown)
                && source.start < read.end
                && !self.changes.iter().any(|other| {
                    other.cut().is_some_and(|size| size <= at) && other.replaces(source, read)
                })
        };
        if self.changes.iter().any(|change| source(&change)) {
            return Ok(());
        }
        let cuts: Vec<_> = self.changes.iter().filter(|change| change.cut().is_some()).collect();
        Err(format!("{}: reaches beyond {at}, read {read:?}, although {cuts:?}", self.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write through each of two opens, kept by client 1, and a crash of the server.
    fn crashed() -> File {
        let mut file = File::new("f".into());
        for (id, open) in [(1, 7), (2, 8)] {
            let shape = Shape::Write { offset: u64::from(id) * STEP, len: STEP };
            file.begin(id, shape, 1, Some(open), 10);
            file.keep(id);
            file.done(id, 20, None).expect("a write");
        }
        file.crash(Crash::Process, 30);
        file
    }

    /// What a read of the first write finds where it is not there.
    fn finds_it_lost(file: &mut File) -> bool {
        let nothing = vec![0; STEP as usize];
        file.check_read(Span { start: 60, end: 70 }, STEP, STEP, &nothing).is_ok()
    }

    #[test]
    fn what_is_kept_is_there_again_after_a_crash() {
        let mut file = crashed();
        file.written_again(1, 40);
        assert!(!file.came_too_late(1, 7));
        assert!(!finds_it_lost(&mut file));
    }

    #[test]
    fn who_came_too_late_is_told_by_each_open_once() {
        let mut file = crashed();
        file.too_late(1);
        file.written_again(1, 40);
        assert!(file.came_too_late(1, 7) && file.came_too_late(1, 8));
        assert!(!file.came_too_late(2, 7) && !file.came_too_late(1, 9), "others lost nothing");
        file.told(1, Some(7));
        assert!(!file.came_too_late(1, 7) && file.came_too_late(1, 8));
        assert!(finds_it_lost(&mut file));
    }

    #[test]
    fn a_commit_that_says_nothing_of_a_late_loss_is_found() {
        let mut file = crashed();
        file.too_late(1);
        file.written_again(1, 40);
        file.committed(1, Some(7), Span { start: 45, end: 50 }, Safety::Durable, None);
        assert!(!finds_it_lost(&mut file));
        assert!(!file.came_too_late(1, 7) && file.came_too_late(1, 8));
    }
}
