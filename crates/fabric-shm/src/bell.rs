//! The words by which the ends of a connection wake each other.
//!
//! Before it sleeps, an end says so in a word, and looks again. Whoever has put something into a ring, or has
//! made room in it, looks at that word afterwards. One of them sees what the other did.
//!
//! The word says how its end sleeps, too: in epoll, where it has other descriptors as well, or by the word
//! behind it, a futex, which the peer counts up before it wakes. Who sleeps in epoll has given the peer an eventfd to
//! write to (a server), or has its socket for that.
//!
//! Behind that word an end says on which processor it runs when it begins to wait: a peer that is on the same one does
//! not spin for it ([`Bell::peer_is_on`]).

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use dafs_fabric::epoll::{self, EpollWaiter, Watch};

use crate::ring::{Memory, other, places};
use crate::wire::Side;

const SLEEPS: u64 = 1;
const WANTS_ROOM: u64 = 2;
const BY_WORD: u64 = 4;
const ONE: u64 = 8;
/// Where the futex is, behind the word that says whether its end sleeps.
const FUTEX: usize = size_of::<u64>();
/// Where the number of the end's processor is, plus one; 0: it has not said.
const PROCESSOR: usize = 2 * size_of::<u64>();

/// How a peer is to be woken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ring {
    /// It sleeps in epoll.
    Descriptor,
    /// It sleeps by its word.
    Word,
}

/// Who sleeps, and who was told.
#[derive(Debug)]
pub struct Bell {
    memory: Arc<Memory>,
    side: Side,
    own_at: usize,
    peer_at: usize,
    own: u64,
    /// The peer's word when it was rung for last.
    rung: u64,
    /// Where this end runs, as it was said last.
    said: u64,
}

impl Bell {
    /// Both are awake.
    pub fn new(memory: &Arc<Memory>, side: Side) -> Bell {
        let (own_at, peer_at) = (places(side).1, places(other(side)).1);
        Bell { memory: memory.clone(), side, own_at, peer_at, own: 0, rung: 0, said: 0 }
    }

    /// A server's words are in memory that its clients made, and may take away: it sleeps by none of them.
    pub fn may_sleep_by_word(&self) -> bool {
        self.side == Side::Client
    }

    /// Says that this end will sleep in epoll, also for room in its ring. A full fence and a look follow.
    pub fn sleep(&mut self, wants_room: bool) {
        self.say(if wants_room { SLEEPS | WANTS_ROOM } else { SLEEPS });
    }

    /// As [`sleep`](Self::sleep), by the word, where nothing is seen in that look.
    pub fn sleep_by_word(&mut self) -> Sleep {
        let at = self.own_at + FUTEX;
        let seen = self.memory.load(at, Ordering::Acquire);
        self.say(SLEEPS | BY_WORD);
        Sleep { memory: self.memory.clone(), at, seen }
    }

    /// Says that this end runs on this processor; whether the peer said so, too, when it was the last to wait: a
    /// hint, by which nothing but time is won or lost.
    pub fn peer_is_on(&mut self, processor: u32) -> bool {
        let here = u64::from(processor) + 1;
        if std::mem::replace(&mut self.said, here) != here {
            self.memory.store(self.own_at + PROCESSOR, here, Ordering::Relaxed);
        }
        self.memory.load(self.peer_at + PROCESSOR, Ordering::Relaxed) == here
    }

    fn say(&mut self, how: u64) {
        self.own = (self.own & !(ONE - 1)).wrapping_add(ONE) | how;
        self.memory.store(self.own_at, self.own, Ordering::Release);
    }

    /// Says that it does not.
    pub fn wake(&mut self) {
        if self.own & SLEEPS != 0 {
            self.own &= !(ONE - 1);
            self.memory.store(self.own_at, self.own, Ordering::Release);
        }
    }

    /// Whether the peer is to be rung, and how: after messages were put in, or room was made.
    #[inline]
    pub fn is_wanted(&mut self, put: bool) -> Option<Ring> {
        fence(Ordering::SeqCst);
        let word = self.memory.load(self.peer_at, Ordering::Relaxed);
        let wanted = word & SLEEPS != 0 && (put || word & WANTS_ROOM != 0) && word != self.rung;
        if !wanted {
            return None;
        }
        self.rung = word;
        Some(if word & BY_WORD == 0 { Ring::Descriptor } else { Ring::Word })
    }

    /// Wakes a peer that sleeps by its word.
    pub fn ring_by_word(&self) {
        self.memory.wake(self.peer_at + FUTEX);
    }
}

/// A sleep by a word, and what was there when it was announced.
#[derive(Debug, Clone)]
pub struct Sleep {
    memory: Arc<Memory>,
    at: usize,
    seen: u64,
}

impl Sleep {
    /// Sleeps, unless it was woken since it was announced. May end early.
    pub fn wait(&self, timeout: Option<Duration>) {
        self.memory.wait(self.at, self.seen, timeout);
    }

    /// Ends it, whether it has begun or not.
    pub fn wake(&self) {
        self.memory.wake(self.at);
    }
}

/// What a peer writes to, to wake an engine that sleeps in epoll. It has the very same object, and may do with it
/// what it likes: this end neither reads nor writes it, and is told of each write by its edge.
pub struct OwnBell {
    eventfd: OwnedFd,
    waiter: Arc<EpollWaiter>,
}

impl OwnBell {
    /// Which epoll tells of by `token`.
    ///
    /// # Errors
    /// The system's.
    pub fn new(waiter: &Arc<EpollWaiter>, token: u64) -> io::Result<OwnBell> {
        let eventfd = epoll::eventfd()?;
        let watch = Watch::Add(epoll::EPOLLIN | epoll::EPOLLET);
        waiter.watch_own(eventfd.as_raw_fd(), token, watch)?;
        Ok(OwnBell { eventfd, waiter: waiter.clone() })
    }
}

impl AsFd for OwnBell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }
}

impl Drop for OwnBell {
    /// To close it would not be enough: the peer has it as well.
    fn drop(&mut self) {
        let _ = self.waiter.watch_own(self.eventfd.as_raw_fd(), 0, Watch::Remove);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ring::{MEMORY_BYTES, Receiver, Sender};
    use dafs_fabric::Arena;

    fn memory() -> Arc<Memory> {
        Memory::new(&Arena::shared(MEMORY_BYTES).expect("memory"))
    }

    #[test]
    fn a_sleeper_is_rung_once() {
        let words = memory();
        let (mut a, mut b) = (Bell::new(&words, Side::Client), Bell::new(&words, Side::Server));
        let by_descriptor = Some(Ring::Descriptor);
        assert_eq!(a.is_wanted(true), None);
        b.sleep(false);
        assert_eq!([false, true, true].map(|put| a.is_wanted(put)), [None, by_descriptor, None]);
        b.wake();
        assert_eq!(a.is_wanted(true), None);
        b.sleep(true);
        assert_eq!([false, true].map(|put| a.is_wanted(put)), [by_descriptor, None]);
        assert!(a.may_sleep_by_word() && !b.may_sleep_by_word());
        let sleep = a.sleep_by_word();
        assert_eq!([false, true, true].map(|put| b.is_wanted(put)), [None, Some(Ring::Word), None]);
        b.ring_by_word();
        // It was rung before it slept.
        sleep.wait(None);
        a.wake();
        assert_eq!(b.is_wanted(true), None);
    }

    #[test]
    fn an_end_knows_where_the_other_one_waited_last() {
        let words = memory();
        let (mut a, mut b) = (Bell::new(&words, Side::Client), Bell::new(&words, Side::Server));
        assert!(!a.peer_is_on(0), "it has not said");
        assert!(b.peer_is_on(0) && a.peer_is_on(0));
        assert!(!b.peer_is_on(1) && !a.peer_is_on(0) && a.peer_is_on(1));
        b.sleep(false);
        assert!(b.peer_is_on(1), "sleeping says nothing else");
    }

    /// One end of those who sleep by words, without a limit: who is not woken sleeps for ever.
    fn take_turns(memory: &Arc<Memory>, side: Side, rounds: u64) {
        let mut bell = Bell::new(memory, side);
        let (mut sender, mut receiver) = (Sender::new(memory, side), Receiver::new(memory, side));
        for round in 0..rounds {
            if side == Side::Client {
                sender.push_header(&round.to_le_bytes());
                ring(&mut bell);
            }
            while !receiver.has_some() {
                let sleep = bell.sleep_by_word();
                fence(Ordering::SeqCst);
                if !receiver.has_some() {
                    sleep.wait(None);
                }
                bell.wake();
            }
            let message = receiver.front().expect("right").expect("there");
            receiver.pop(message);
            if side == Side::Server {
                sender.push_header(&round.to_le_bytes());
                ring(&mut bell);
            }
            assert_eq!(sender.has_room(8), Ok(true));
        }
    }

    fn ring(bell: &mut Bell) {
        if bell.is_wanted(true) == Some(Ring::Word) {
            bell.ring_by_word();
        }
    }

    #[test]
    fn nobody_sleeps_by_a_word_for_ever() {
        const ROUNDS: u64 = 20_000;
        let memory = memory();
        let far = memory.clone();
        let server = std::thread::spawn(move || take_turns(&far, Side::Server, ROUNDS));
        take_turns(&memory, Side::Client, ROUNDS);
        server.join().expect("the other end");
    }
}
