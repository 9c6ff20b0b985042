//! All that a reader of entries may see, by the rules for memory of languages and processors that order little.
//!
//! The server's part is its own code, taken down store by store. The reader's part is the code for readers, run
//! once for each way in which its loads can be answered: by any store that is not older than what the reader
//! knows of, where a store tells of those before it only by a fence or an order that says so. Data is words that
//! nothing orders. Since readers store nothing, that is all that there is. Each fence and each order is left out
//! in turn, and steps are taken in a wrong order, and each time a reader must be deceived.

use std::cell::RefCell;
use std::sync::atomic::Ordering;

use dafs_protocol::{
    ENTRY_FILE, ENTRY_VALID, ENTRY_WORD, ENTRY_WORDS, EntryMemory, EntryState, EntryWord, is_still,
};

use crate::entry::{Entries, Meaning};

const SLOTS: usize = 2;
const DATA: usize = SLOTS * ENTRY_WORDS;
/// Words of data in a slot.
const WORDS: usize = 2;
/// The server has answered a request.
const ACKNOWLEDGED: usize = DATA + SLOTS * WORDS;
const PLACES: usize = ACKNOWLEDGED + 1;

/// Of each place, which of its stores is the oldest that can still be seen.
type View = [usize; PLACES];

fn join(view: &mut View, other: &View) {
    view.iter_mut().zip(other).for_each(|(own, other)| *own = (*own).max(*other));
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Store { at: usize, value: u64, release: bool },
    Fence,
}

/// Takes down what the server does.
#[derive(Default)]
struct Steps(RefCell<Vec<Step>>);

impl EntryMemory for &Steps {
    fn load(&self, number: usize, _: Ordering) -> u64 {
        let is_it = |step: &Step| match *step {
            Step::Store { at, value, .. } if at == number => Some(value),
            _ => None,
        };
        self.0.borrow().iter().rev().find_map(is_it).unwrap_or(0)
    }

    fn store(&self, number: usize, value: u64, order: Ordering) {
        let release = order == Ordering::Release;
        self.0.borrow_mut().push(Step::Store { at: number, value, release });
    }

    fn fence(&self, order: Ordering) {
        assert_eq!(order, Ordering::Release, "the server's");
        self.0.borrow_mut().push(Step::Fence);
    }
}

/// The stores of each place, in order, and what who sees one of them learns by a fence.
struct History(Vec<Vec<(u64, View)>>, View);

impl History {
    fn of(steps: &[Step]) -> History {
        let mut stores = vec![vec![(0, [0; PLACES])]; PLACES];
        let (mut now, mut fenced) = ([0; PLACES], [0; PLACES]);
        for step in steps {
            match *step {
                Step::Fence => fenced = now,
                Step::Store { at, value, release } => {
                    now[at] = stores[at].len();
                    let mut tells = if release { now } else { fenced };
                    tells[at] = now[at];
                    stores[at].push((value, tells));
                }
            }
        }
        History(stores, now)
    }
}

/// A reader whose loads are answered in one of the ways.
struct Reader<'a> {
    history: &'a History,
    with_fence: bool,
    knows: RefCell<View>,
    /// What it will know behind a fence.
    seen: RefCell<View>,
    /// Which answers, of how many.
    answers: RefCell<Vec<(usize, usize)>>,
    next: RefCell<usize>,
}

impl EntryMemory for Reader<'_> {
    fn load(&self, number: usize, order: Ordering) -> u64 {
        let (mut knows, mut answers) = (self.knows.borrow_mut(), self.answers.borrow_mut());
        let mut next = self.next.borrow_mut();
        let stores = &self.history.0[number];
        let oldest = knows[number];
        if answers.len() == *next {
            answers.push((0, stores.len() - oldest));
        }
        let at = oldest + answers[*next].0;
        *next += 1;
        let (value, tells) = stores[at];
        knows[number] = at;
        join(&mut self.seen.borrow_mut(), &tells);
        if order == Ordering::Acquire {
            join(&mut knows, &tells);
        }
        value
    }

    fn store(&self, _: usize, _: u64, _: Ordering) {
        unreachable!("readers store nothing");
    }

    fn fence(&self, order: Ordering) {
        assert_eq!(order, Ordering::Acquire, "a reader's");
        if self.with_fence {
            join(&mut self.knows.borrow_mut(), &self.seen.borrow());
        }
    }
}

impl Reader<'_> {
    fn data(&self, slot: usize) -> [u64; WORDS] {
        std::array::from_fn(|word| self.load(DATA + slot * WORDS + word, Ordering::Relaxed))
    }

    /// Copies a slot, and what its entry says.
    fn copy(&self, slot: usize) -> ([u64; WORDS], u64, u64) {
        let part = |part| self.load(slot * ENTRY_WORDS + part, Ordering::Relaxed);
        (self.data(slot), part(ENTRY_FILE), part(ENTRY_VALID))
    }

    fn is_still(&self, slot: usize, word: EntryWord) -> bool {
        is_still(self, slot * ENTRY_WORDS, word)
    }
}

/// In how many of all ways a reader that knows of the first `told` steps is deceived, and how many there are.
fn deceived(
    steps: &[Step],
    told: usize,
    with_fence: bool,
    reads: &dyn Fn(&Reader<'_>) -> bool,
) -> (usize, usize) {
    let (history, begin) = (History::of(steps), History::of(&steps[..told]).1);
    let (mut deceived, mut ways, mut answers) = (0, 0, Vec::new());
    loop {
        let reader = Reader {
            history: &history,
            with_fence,
            knows: RefCell::new(begin),
            seen: RefCell::new(begin),
            answers: RefCell::new(answers),
            next: RefCell::new(0),
        };
        ways += 1;
        deceived += usize::from(!reads(&reader));
        answers = reader.answers.into_inner();
        while answers.last().is_some_and(|(at, of)| at + 1 == *of) {
            answers.pop();
        }
        match answers.last_mut() {
            Some(last) => last.0 += 1,
            None => return (deceived, ways),
        }
    }
}

const EPOCH: u32 = 3;

fn word(generation: u64) -> EntryWord {
    EntryWord::new(EPOCH, generation, EntryState::Stable)
}

/// The block that a slot holds by what its data is.
fn what(id: u64) -> Meaning {
    Meaning { file: id, block: 0, valid: 100 + id }
}

/// What a server does; how many of its steps the reader has been told of.
struct Story {
    steps: Steps,
    told: usize,
}

impl Story {
    fn new(
        tell: impl FnOnce(&Entries<&Steps>, &Steps),
        then: impl FnOnce(&Entries<&Steps>, &Steps),
    ) -> Story {
        let steps = Steps::default();
        let entries = Entries::new(&steps, EPOCH);
        tell(&entries, &steps);
        let told = steps.0.borrow().len();
        then(&entries, &steps);
        Story { steps, told }
    }

    fn run(&self, reads: &dyn Fn(&Reader<'_>) -> bool) -> (usize, usize) {
        deceived(&self.steps.0.borrow(), self.told, true, reads)
    }

    /// As [`run`](Self::run), with nothing that orders among the steps that the reader was not told of.
    fn unordered(&self, reads: &dyn Fn(&Reader<'_>) -> bool) -> usize {
        let mut steps = self.steps.0.borrow().clone();
        let later = steps.split_off(self.told).into_iter().filter(|step| *step != Step::Fence);
        steps.extend(later.map(|step| match step {
            Step::Store { at, value, .. } => Step::Store { at, value, release: false },
            Step::Fence => step,
        }));
        deceived(&steps, self.told, true, reads).0
    }

    /// Nobody is deceived, and somebody is without the reader's fence, or without one of these steps, by
    /// their numbers among those that the reader was not told of.
    fn holds_by(&self, reader: bool, needed: &[usize], reads: &dyn Fn(&Reader<'_>) -> bool) {
        let steps = self.steps.0.borrow();
        let (lost, ways) = self.run(reads);
        assert!(lost == 0 && ways > 2, "{lost} of {ways}: {steps:?}");
        let (lost, _) = deceived(&steps, self.told, false, reads);
        assert_eq!(lost > 0, reader, "without the reader's fence");
        let ordering = (self.told..steps.len())
            .filter(|at| matches!(steps[*at], Step::Fence | Step::Store { release: true, .. }));
        let mut found = Vec::new();
        for (number, at) in ordering.enumerate() {
            let mut less = steps.clone();
            match &mut less[at] {
                Step::Store { release, .. } => *release = false,
                Step::Fence => drop(less.remove(at)),
            }
            if deceived(&less, self.told, true, reads).0 > 0 {
                found.push(number);
            }
        }
        assert_eq!(found, needed, "{steps:?}");
    }
}

fn fill(steps: &Steps, slot: usize, id: u64) {
    for word in 0..WORDS {
        (&steps).store(DATA + slot * WORDS + word, id, Ordering::Relaxed);
    }
}

fn brings(entries: &Entries<&Steps>, steps: &Steps, slot: usize, id: u64) {
    entries.leave(slot, EntryState::Landing);
    fill(steps, slot, id);
    entries.publish(slot, what(id));
}

fn is(copied: ([u64; WORDS], u64, u64), id: u64) -> bool {
    copied == ([id; WORDS], what(id).file, what(id).valid)
}

/// One slot, of which the reader was told, is evicted, and filled with another block.
fn refilled() -> Story {
    Story::new(
        |entries, steps| brings(entries, steps, 0, 1),
        |entries, steps| {
            entries.leave(0, EntryState::Retired);
            entries.leave(0, EntryState::Free);
            brings(entries, steps, 0, 2);
        },
    )
}

#[test]
fn who_was_told_of_a_block_finds_it_or_learns_that_it_is_gone() {
    let reads = |reader: &Reader<'_>| {
        let copied = reader.copy(0);
        !reader.is_still(0, word(1)) || is(copied, 1)
    };
    // It is left three times before data comes: one of those fences is enough.
    refilled().holds_by(true, &[], &reads);
    assert!(refilled().unordered(&reads) > 0);
    // The shortest way to other data.
    let taken_over = Story::new(
        |entries, steps| brings(entries, steps, 0, 1),
        |entries, steps| brings(entries, steps, 0, 2),
    );
    taken_over.holds_by(true, &[0], &reads);
}

#[test]
fn who_finds_a_block_by_its_entry_has_that_block() {
    let reads = |reader: &Reader<'_>| {
        let found = EntryWord(reader.load(ENTRY_WORD, Ordering::Acquire));
        let copied = reader.copy(0);
        let id = found.generation();
        !reader.is_still(0, found) || is(copied, id)
    };
    let taken_over = Story::new(
        |entries, steps| brings(entries, steps, 0, 1),
        |entries, steps| brings(entries, steps, 0, 2),
    );
    taken_over.holds_by(true, &[0, 1], &reads);
}

#[test]
fn what_is_filled_before_it_is_left_or_published_before_it_is_filled_is_found() {
    let reads = |reader: &Reader<'_>| {
        let found = EntryWord(reader.load(ENTRY_WORD, Ordering::Acquire));
        let copied = reader.copy(0);
        !reader.is_still(0, found) || is(copied, found.generation())
    };
    let told = |entries: &Entries<&Steps>, steps: &Steps| brings(entries, steps, 0, 1);
    let filled_early = Story::new(told, |entries, steps| {
        fill(steps, 0, 2);
        entries.leave(0, EntryState::Landing);
        entries.publish(0, what(2));
    });
    let published_early = Story::new(told, |entries, steps| {
        entries.leave(0, EntryState::Landing);
        entries.publish(0, what(2));
        fill(steps, 0, 2);
    });
    for story in [filled_early, published_early] {
        assert!(story.run(&reads).0 > 0);
    }
}

/// The generation begins anew: the word is one that was told before.
#[test]
fn a_generation_that_begins_anew_is_found() {
    let reads = |reader: &Reader<'_>| {
        let copied = reader.copy(0);
        !reader.is_still(0, word(1)) || is(copied, 1)
    };
    let story = Story::new(
        |entries, steps| brings(entries, steps, 0, 1),
        |entries, mut steps| {
            entries.leave(0, EntryState::Landing);
            let begun = EntryWord::new(EPOCH, 0, EntryState::Landing);
            (&mut steps as &mut &Steps).store(ENTRY_WORD, begun.0, Ordering::Relaxed);
            fill(steps, 0, 2);
            entries.publish(0, what(2));
        },
    );
    assert!(story.run(&reads).0 > 0);
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Order {
    RetirePublishAcknowledge,
    PublishRetireAcknowledge,
    AcknowledgeRetirePublish,
}

/// What slot 0 holds is written anew, into slot 1.
fn written(order: Order) -> Story {
    Story::new(
        |entries, steps| brings(entries, steps, 0, 1),
        |entries, steps| {
            entries.leave(1, EntryState::Landing);
            fill(steps, 1, 2);
            let acknowledge = || (&steps).store(ACKNOWLEDGED, 1, Ordering::Release);
            let retire = || entries.leave(0, EntryState::Retired);
            let publish = || entries.publish(1, what(2));
            let each: [&dyn Fn(); 3] = match order {
                Order::RetirePublishAcknowledge => [&retire, &publish, &acknowledge],
                Order::PublishRetireAcknowledge => [&publish, &retire, &acknowledge],
                Order::AcknowledgeRetirePublish => [&acknowledge, &retire, &publish],
            };
            each.iter().for_each(|step| step());
        },
    )
}

/// A read that begins when a write was acknowledged.
fn late(reader: &Reader<'_>) -> bool {
    let is_late = reader.load(ACKNOWLEDGED, Ordering::Acquire) == 1;
    let copied = reader.copy(0);
    let believes = reader.is_still(0, word(1));
    !(believes && (is_late || !is(copied, 1)))
}

/// Two reads, the first of which finds what was written.
fn backwards(reader: &Reader<'_>) -> bool {
    let found = EntryWord(reader.load(ENTRY_WORDS + ENTRY_WORD, Ordering::Acquire));
    let copied = reader.copy(1);
    let is_new = reader.is_still(1, found);
    if is_new && !is(copied, 2) {
        return false;
    }
    let older = reader.copy(0);
    let believes = reader.is_still(0, word(1));
    !(believes && (is_new || !is(older, 1)))
}

#[test]
fn who_reads_after_an_acknowledged_write_does_not_find_what_it_replaced() {
    // The fence behind what retires and the order of the answer: one of them is enough.
    let story = written(Order::RetirePublishAcknowledge);
    story.holds_by(false, &[], &late);
    assert!(story.unordered(&late) > 0);
    assert!(written(Order::AcknowledgeRetirePublish).run(&late).0 > 0);
}

#[test]
fn who_has_read_what_was_written_does_not_find_what_it_replaced() {
    written(Order::RetirePublishAcknowledge).holds_by(false, &[2], &backwards);
    assert!(written(Order::PublishRetireAcknowledge).run(&backwards).0 > 0);
}
