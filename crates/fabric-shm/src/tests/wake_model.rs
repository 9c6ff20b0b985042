//! The way in which the ends of a connection wake each other, in all orders that there are.
//!
//! A model of [`Bell`](crate::bell::Bell) and of who uses it, step by step, on a processor where each thread's
//! stores wait in a queue of its own until a fence, and loads do not wait for them. What is left out here, one
//! thing at a time, is found: so the model would find it in the protocol.

use std::collections::HashSet;

/// Messages that are sent, each of which is to be taken.
const MESSAGES: u8 = 3;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// By a futex, of which the peer counts up the word.
    Word,
    /// In epoll, which is told of a descriptor by its edge.
    Edge,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Left {
    Nothing,
    FenceOfSleeper,
    FenceOfRinger,
    /// What the futex has is looked at after the ring.
    SeenLate,
    /// The word is not counted up before who sleeps by it is woken.
    Count,
    /// Each sleep is announced by another word.
    Generation,
}

/// Places in memory.
const RING: usize = 0;
const WORD: usize = 1;
const FUTEX: usize = 2;

const SLEEPER: usize = 0;
const RINGER: usize = 1;

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Thread {
    step: u8,
    /// Stores that nobody else sees yet.
    queue: Vec<(usize, u8)>,
    /// Messages that it has sent, or taken.
    count: u8,
    /// The word that it has announced, or rung for.
    word: u8,
    seen: u8,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct State {
    memory: [u8; 3],
    threads: [Thread; 2],
    /// An edge that epoll has not told of.
    edge: bool,
}

const ASLEEP: u8 = 7;
const AWAKE: u8 = 6;
const DONE: u8 = 9;

impl State {
    fn load(&self, thread: usize, place: usize) -> u8 {
        let own = self.threads[thread].queue.iter().rev().find(|(at, _)| *at == place);
        own.map_or(self.memory[place], |(_, value)| *value)
    }

    fn store(&mut self, thread: usize, place: usize, value: u8) {
        self.threads[thread].queue.push((place, value));
    }

    fn drained(&self, thread: usize) -> bool {
        self.threads[thread].queue.is_empty()
    }

    fn goes_to(&mut self, thread: usize, step: u8) {
        self.threads[thread].step = step;
    }

    /// The oldest of its stores is seen by all.
    fn flushed(&self, thread: usize) -> Option<State> {
        let mut next = self.clone();
        let queue = &mut next.threads[thread].queue;
        let (place, value) = (!queue.is_empty()).then(|| queue.remove(0))?;
        next.memory[place] = value;
        Some(next)
    }

    /// What its next step makes; `None`: it waits.
    fn stepped(&self, thread: usize, way: Way, left: Left) -> Option<State> {
        let mut next = self.clone();
        let goes_on = match thread {
            SLEEPER => next.sleeper(way, left),
            _ => next.ringer(way, left),
        };
        goes_on.then_some(next)
    }

    fn sleeper(&mut self, way: Way, left: Left) -> bool {
        let ring = self.load(SLEEPER, RING);
        let has_some = ring > self.threads[SLEEPER].count;
        let futex = self.load(SLEEPER, FUTEX);
        let is_drained = self.drained(SLEEPER);
        let me = &mut self.threads[SLEEPER];
        match me.step {
            0 if has_some => {
                me.count = ring;
                me.step = if ring == MESSAGES { DONE } else { 0 };
            }
            0 => me.step = 1,
            1 => (me.seen, me.step) = (futex, 2),
            2 => {
                me.word += if left == Left::Generation && me.word > 0 { 0 } else { 2 };
                let word = me.word | 1;
                me.step = 3;
                self.store(SLEEPER, WORD, word);
            }
            3 if is_drained || left == Left::FenceOfSleeper => me.step = 4,
            4 => me.step = if has_some { AWAKE } else { 5 },
            5 if left == Left::SeenLate && me.seen != futex => me.seen = futex,
            // To sleep is a call, which is a fence as well.
            5 if is_drained => {
                let is_rung = match way {
                    Way::Word => me.seen != self.memory[FUTEX],
                    Way::Edge => std::mem::take(&mut self.edge),
                };
                self.goes_to(SLEEPER, if is_rung { AWAKE } else { ASLEEP });
            }
            AWAKE => {
                let word = me.word;
                me.step = 0;
                self.store(SLEEPER, WORD, word);
            }
            _ => return false,
        }
        true
    }

    fn ringer(&mut self, way: Way, left: Left) -> bool {
        let word = self.load(RINGER, WORD);
        let is_drained = self.drained(RINGER);
        let me = &mut self.threads[RINGER];
        match me.step {
            0 => {
                me.count += 1;
                let put = me.count;
                me.step = 1;
                self.store(RINGER, RING, put);
            }
            1 if is_drained || left == Left::FenceOfRinger => me.step = 2,
            2 if word & 1 == 1 && word != me.word => (me.word, me.step) = (word, 3),
            2 => me.step = 5,
            3 if is_drained => {
                me.step = 4;
                self.memory[FUTEX] += u8::from(way == Way::Word && left != Left::Count);
            }
            4 => {
                me.step = 5;
                match self.threads[SLEEPER].step == ASLEEP {
                    true => self.goes_to(SLEEPER, AWAKE),
                    false => self.edge = way == Way::Edge,
                }
            }
            5 => me.step = if me.count == MESSAGES { DONE } else { 0 },
            _ => return false,
        }
        true
    }
}

/// States in which nothing goes on and not all was taken, and how many states there are.
fn lost(way: Way, left: Left) -> (usize, usize) {
    let (mut known, mut open, mut lost) = (HashSet::new(), vec![State::default()], 0);
    while let Some(state) = open.pop() {
        if !known.insert(state.clone()) {
            continue;
        }
        let before = open.len();
        for thread in [SLEEPER, RINGER] {
            open.extend(state.flushed(thread));
            open.extend(state.stepped(thread, way, left));
        }
        let stands = open.len() == before;
        lost += usize::from(stands && state.threads[SLEEPER].step != DONE);
    }
    (lost, known.len())
}

#[test]
fn in_no_order_a_message_is_slept_through() {
    for way in [Way::Word, Way::Edge] {
        let (lost, states) = lost(way, Left::Nothing);
        assert_eq!(lost, 0, "{way:?}");
        assert!(states > 500, "{way:?}: {states}");
    }
}

#[test]
fn each_part_of_it_is_needed() {
    use Left::{Count, FenceOfRinger, FenceOfSleeper, Generation, SeenLate};
    for left in [FenceOfSleeper, FenceOfRinger, SeenLate, Count, Generation] {
        assert!(lost(Way::Word, left).0 > 0, "{left:?} is not missed");
    }
    for left in [FenceOfSleeper, FenceOfRinger, Generation] {
        assert!(lost(Way::Edge, left).0 > 0, "{left:?} is not missed");
    }
}
