//! Closing what a peer sent, or may still have in its socket. Where it is the last to close a descriptor, a process
//! waits for the file's end: for the program of a file system in user space, or until the peer of a TCP socket
//! takes what lingers. To set an option of a socket waits for who sends there. So such a descriptor is asked nothing but
//! whether it is memory, and another thread closes it. That may never end: of each user few such threads
//! go on, and who has so many is shut out, as nothing may be taken from a socket of theirs any more.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Threads that close for one user, and from which number of all on each user has but one. One person may be many
/// users (subordinate ones, in a user namespace): then there is an end, and who has none waits.
const OF_USER_MAX: usize = 16;
const ALL_MAX: usize = 256;
const END: usize = 512;
/// What waits for one of them, of a user and in all, before no more connections are taken.
const WAITING_OF_USER_MAX: usize = 64;
const WAITING_MAX: usize = 1024;

type Work = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct OfUser {
    threads: usize,
    /// What no thread has begun.
    waiting: VecDeque<Work>,
}

struct Users {
    all: BTreeMap<u32, OfUser>,
    threads: usize,
}

impl Users {
    /// Whether there may be no further thread for this user.
    fn has_all(&self, uid: u32) -> bool {
        let threads = self.all.get(&uid).map_or(0, |user| user.threads);
        threads >= OF_USER_MAX || threads > 0 && self.threads >= ALL_MAX || self.threads >= END
    }

    /// Whether this user has all that they may, and something is to be closed for them.
    fn is_shut_out(&self, uid: u32) -> bool {
        self.has_all(uid) && self.all.contains_key(&uid)
    }

    /// The next to be closed by a thread of this user's, who may become another's that has none.
    fn next(&mut self, uid: &mut u32) -> Option<Work> {
        if let Some(work) = self.all.get_mut(uid).and_then(|user| user.waiting.pop_front()) {
            return Some(work);
        }
        let starves = |user: &OfUser| user.threads == 0 && !user.waiting.is_empty();
        let (other, user) = self.all.iter_mut().find(|(_, user)| starves(user))?;
        let (other, work) = (*other, user.waiting.pop_front()?);
        user.threads += 1;
        self.leave(std::mem::replace(uid, other));
        Some(work)
    }

    /// A thread is this user's no more.
    fn leave(&mut self, uid: u32) {
        let Some(user) = self.all.get_mut(&uid) else { return };
        user.threads -= 1;
        if user.threads == 0 && user.waiting.is_empty() {
            self.all.remove(&uid);
        }
    }
}

/// The threads that close.
pub struct Closing {
    users: Mutex<Users>,
    /// How many there are: mostly none.
    threads: AtomicUsize,
}

/// Those of this process.
pub static CLOSING: Closing = Closing::new();

impl Closing {
    const fn new() -> Closing {
        let users = Users { all: BTreeMap::new(), threads: 0 };
        Closing { users: Mutex::new(users), threads: AtomicUsize::new(0) }
    }

    fn users(&self) -> MutexGuard<'_, Users> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// So much of this user's is being closed that nothing more is taken from them.
    pub fn is_shut_out(&self, uid: u32) -> bool {
        self.threads.load(Ordering::Relaxed) > 0 && self.users().is_shut_out(uid)
    }

    /// So much waits, of one user or of all together, that nothing more may come to it: it is descriptors of this
    /// process.
    pub fn is_full(&self) -> bool {
        if self.threads.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let users = self.users();
        let waiting = || users.all.values().map(|user| user.waiting.len());
        waiting().any(|count| count >= WAITING_OF_USER_MAX)
            || waiting().sum::<usize>() >= WAITING_MAX
    }

    /// Has a thread do it, now or after other work for this user. Without a thread it stays undone.
    pub fn hand_over(&'static self, uid: u32, work: impl FnOnce() + Send + 'static) {
        let mut users = self.users();
        let has_all = users.has_all(uid);
        let user = users.all.entry(uid).or_default();
        user.waiting.push_back(Box::new(work));
        if has_all {
            return;
        }
        user.threads += 1;
        users.threads += 1;
        self.threads.store(users.threads, Ordering::Relaxed);
        drop(users);
        let thread = std::thread::Builder::new().name("dafs-close".into());
        let work = move || {
            let mut uid = uid;
            while self.work(&mut uid) {}
        };
        if let Err(error) = thread.spawn(work) {
            tracing::debug!(%error, uid, "what a peer sent is left open");
            self.has_ended(&mut self.users(), uid);
        }
    }

    /// Closes the next; false: there is none, and the thread ends.
    fn work(&self, uid: &mut u32) -> bool {
        let mut users = self.users();
        match users.next(uid) {
            Some(work) => {
                drop(users);
                work();
                true
            }
            None => {
                self.has_ended(&mut users, *uid);
                false
            }
        }
    }

    fn has_ended(&self, users: &mut Users, uid: u32) {
        users.threads -= 1;
        self.threads.store(users.threads, Ordering::Relaxed);
        users.leave(uid);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    /// Each has hundreds of threads: one after the other.
    static TURN: Mutex<()> = Mutex::new(());

    fn turn() -> MutexGuard<'static, ()> {
        TURN.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Work that ends when its end is dropped.
    fn stuck(closing: &'static Closing, uid: u32, count: usize) -> Vec<mpsc::Sender<()>> {
        let one = |_| {
            let (end, ends) = mpsc::channel::<()>();
            closing.hand_over(uid, move || assert!(ends.recv().is_err()));
            end
        };
        (0..count).map(one).collect()
    }

    /// Threads have begun what they can: so much waits.
    fn wait_for_waiting(closing: &Closing, count: usize) {
        while closing.users().all.values().map(|user| user.waiting.len()).sum::<usize>() > count {
            std::thread::yield_now();
        }
    }

    fn wait_for_none(closing: &Closing) {
        while closing.users().threads > 0 {
            std::thread::yield_now();
        }
        assert!(closing.users().all.is_empty(), "something is left");
    }

    #[test]
    fn who_has_too_much_to_be_closed_is_shut_out() {
        static CLOSING: Closing = Closing::new();
        let _turn = turn();
        let ends = stuck(&CLOSING, 1, OF_USER_MAX - 1);
        assert!(!CLOSING.is_shut_out(1));
        let last = stuck(&CLOSING, 1, 1);
        assert!(CLOSING.is_shut_out(1) && !CLOSING.is_shut_out(2));
        // What comes then waits, and is done all the same.
        let (done, is_done) = mpsc::channel();
        CLOSING.hand_over(1, move || done.send(()).expect("the test waits"));
        assert_eq!(CLOSING.users().threads, OF_USER_MAX);
        drop(last);
        is_done.recv().expect("done");
        drop(ends);
        wait_for_none(&CLOSING);
        assert!(!CLOSING.is_shut_out(1));
    }

    #[test]
    fn what_waits_is_bounded() {
        static CLOSING: Closing = Closing::new();
        let _turn = turn();
        let held = stuck(&CLOSING, 1, OF_USER_MAX);
        let waiting = stuck(&CLOSING, 1, WAITING_OF_USER_MAX - 1);
        wait_for_waiting(&CLOSING, waiting.len());
        assert!(!CLOSING.is_full());
        let last = stuck(&CLOSING, 1, 1);
        assert!(CLOSING.is_full());
        drop((held, waiting, last));
        wait_for_none(&CLOSING);
        assert!(!CLOSING.is_full());
        // No user has too much, but all together.
        let each = WAITING_OF_USER_MAX - 1;
        let users = WAITING_MAX / each;
        let many: Vec<_> =
            (0..users as u32).map(|uid| stuck(&CLOSING, uid, OF_USER_MAX + each)).collect();
        wait_for_waiting(&CLOSING, users * each);
        assert!(!CLOSING.is_full());
        let more = stuck(&CLOSING, users as u32, 1 + WAITING_MAX % each);
        wait_for_waiting(&CLOSING, WAITING_MAX);
        assert!(CLOSING.is_full());
        drop((many, more));
        wait_for_none(&CLOSING);
    }

    /// Who has no thread is shut out until one is free, and then served by it.
    #[test]
    fn users_without_end_have_an_end_of_threads() {
        static CLOSING: Closing = Closing::new();
        let _turn = turn();
        let users = END as u32;
        let ends: Vec<_> = (0..users).map(|uid| stuck(&CLOSING, uid, 1)).collect();
        assert_eq!(CLOSING.users().threads, END);
        assert!(CLOSING.is_shut_out(0) && !CLOSING.is_shut_out(users));
        let (done, is_done) = mpsc::channel();
        CLOSING.hand_over(users, move || done.send(()).expect("the test waits"));
        assert_eq!(CLOSING.users().threads, END);
        assert!(CLOSING.is_shut_out(users) && !CLOSING.is_shut_out(users + 1));
        assert!(is_done.try_recv().is_err());
        drop(ends);
        is_done.recv().expect("done");
        wait_for_none(&CLOSING);
    }

    #[test]
    fn many_users_together_have_a_thread_each() {
        static CLOSING: Closing = Closing::new();
        let _turn = turn();
        let users = u32::try_from(ALL_MAX / OF_USER_MAX).expect("few");
        let ends: Vec<_> = (0..users).map(|uid| stuck(&CLOSING, uid, OF_USER_MAX)).collect();
        assert!(!CLOSING.is_shut_out(users));
        let one = stuck(&CLOSING, users, 2);
        assert!(CLOSING.is_shut_out(users) && !CLOSING.is_shut_out(users + 1));
        assert_eq!(CLOSING.users().threads, ALL_MAX + 1);
        drop((ends, one));
        wait_for_none(&CLOSING);
    }
}
