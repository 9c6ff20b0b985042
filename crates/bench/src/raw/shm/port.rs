//! One end of a connection: a ring to the peer, one from it, and how it waits.
//!
//! A slot is a cache line: its number, then seven words. The number is written last, so that a
//! message is one line that moves from one processor to the other.

use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{Ordering, fence};
use std::time::{Duration, Instant};

use super::sys::{Epoll, Mapping};
use crate::wait::Wait;

/// Slots of a ring, and so the most that can be under way.
pub(super) const SLOTS: u64 = 512;
const SLOT_BYTES: usize = 64;
const RING_BYTES: usize = SLOTS as usize * SLOT_BYTES;
/// Where the words lie that say who sleeps, far enough apart for no processor to fetch both.
const SLEEPS: [usize; 2] = [0, 1024];
const RINGS: [usize; 2] = [4096, 4096 + RING_BYTES];
/// Bytes of all that.
pub(super) const CONTROL_BYTES: usize = 4096 + 2 * RING_BYTES;
/// How long an adaptive wait polls.
const SPIN: Duration = Duration::from_micros(50);
/// Looks at the ring before a look at the socket, whether the peer still lives.
const LOOKS: u32 = 1 << 20;

/// What a slot says, without its number.
pub(super) type Words = [u64; 7];

/// Which of the two.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Client = 0,
    Server = 1,
}

#[derive(Debug)]
pub(super) struct Port {
    pub(super) mapping: Mapping,
    socket: UnixStream,
    epoll: Epoll,
    /// Rings and words: own, the peer's.
    own: (usize, usize),
    peer: (usize, usize),
    sent: u64,
    taken: u64,
    /// Odd while this end sleeps: the word that the peer reads.
    announced: u64,
    /// The peer's word for which it was woken.
    woken: u64,
    wait: Wait,
    pub(super) system_calls: u64,
}

impl Port {
    pub(super) fn new(mapping: Mapping, socket: UnixStream, end: End) -> io::Result<Port> {
        if mapping.len() < CONTROL_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the shared memory is too small",
            ));
        }
        socket.set_nonblocking(true)?;
        let epoll = Epoll::new(socket.as_fd())?;
        let [client, server] = [0, 1].map(|at| (RINGS[at], SLEEPS[at]));
        let (own, peer) = if end == End::Client { (client, server) } else { (server, client) };
        let (sent, taken, announced, woken, wait) = (0, 0, 0, 0, Wait::Sleeping);
        let system_calls = 0;
        Ok(Port {
            mapping,
            socket,
            epoll,
            own,
            peer,
            sent,
            taken,
            announced,
            woken,
            wait,
            system_calls,
        })
    }

    pub(super) fn set_wait(&mut self, wait: Wait) {
        self.wait = wait;
    }

    /// Puts a message into the ring. The caller knows that there is room: no more than [`SLOTS`]
    /// are under way.
    pub(super) fn send(&mut self, words: &Words) {
        let slot = slot(self.own.0, self.sent);
        for (at, word) in words.iter().enumerate() {
            self.mapping.store(slot + 8 + 8 * at, *word, Ordering::Relaxed);
        }
        self.sent += 1;
        self.mapping.store(slot, self.sent, Ordering::Release);
    }

    /// The next message, if it is there.
    pub(super) fn take(&mut self) -> Option<Words> {
        let slot = slot(self.peer.0, self.taken);
        if self.mapping.load(slot, Ordering::Acquire) != self.taken + 1 {
            return None;
        }
        self.taken += 1;
        Some(std::array::from_fn(|at| self.mapping.load(slot + 8 + 8 * at, Ordering::Relaxed)))
    }

    /// Wakes the peer if it sleeps and was not woken for it yet.
    pub(super) fn wake(&mut self) -> io::Result<()> {
        if self.wait == Wait::Polled {
            return Ok(());
        }
        // Either we see that it sleeps, or it sees what we sent before it does.
        fence(Ordering::SeqCst);
        let word = self.mapping.load(self.peer.1, Ordering::Relaxed);
        if word.is_multiple_of(2) || word == self.woken {
            return Ok(());
        }
        self.woken = word;
        self.system_calls += 1;
        match self.socket.write(&[1]) {
            // A full socket has bytes that wake.
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(()),
        }
    }

    /// The next message; wakes the peer, and waits for it as this end waits.
    pub(super) fn wait(&mut self) -> io::Result<Words> {
        self.wake()?;
        match self.wait {
            Wait::Polled => self.spin(None),
            Wait::Sleeping => self.sleep(),
            Wait::Adaptive => self.spin(Some(SPIN)),
        }
    }

    fn spin(&mut self, time: Option<Duration>) -> io::Result<Words> {
        let start = time.map(|_| Instant::now());
        loop {
            for look in 0..LOOKS {
                if let Some(words) = self.take() {
                    return Ok(words);
                }
                std::hint::spin_loop();
                if look.is_multiple_of(64) && start.zip(time).is_some_and(|(s, t)| s.elapsed() > t)
                {
                    return self.sleep();
                }
            }
            self.hear()?;
        }
    }

    fn sleep(&mut self) -> io::Result<Words> {
        loop {
            if let Some(words) = self.take() {
                return Ok(words);
            }
            self.announce();
            fence(Ordering::SeqCst);
            if self.is_next_there() {
                self.announce();
                continue;
            }
            self.system_calls += 1;
            self.epoll.wait();
            self.announce();
            self.hear()?;
        }
    }

    fn announce(&mut self) {
        self.announced += 1;
        self.mapping.store(self.own.1, self.announced, Ordering::SeqCst);
    }

    fn is_next_there(&self) -> bool {
        self.mapping.load(slot(self.peer.0, self.taken), Ordering::Acquire) == self.taken + 1
    }

    /// Ends the connection: the peer finds out when it looks.
    pub(super) fn hang_up(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Takes bytes that woke us; an error when the peer has gone.
    fn hear(&mut self) -> io::Result<()> {
        self.system_calls += 1;
        match self.socket.read(&mut [0; 64]) {
            Ok(0) => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(()),
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
                _ => Err(error),
            },
        }
    }
}

fn slot(ring: usize, number: u64) -> usize {
    ring + (number % SLOTS) as usize * SLOT_BYTES
}
