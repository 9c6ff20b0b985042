//! Users as this host's database knows them, looked up beside the acceptor.
//!
//! The database may be a directory service that answers late. Whoever waits for it keeps nobody else
//! waiting: a few threads ask, each for another user, and what they learn holds for a minute.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use dafs_protocol::Identity;

/// How long an answer holds.
const KNOWN_TIME: Duration = Duration::from_secs(60);
/// Answers that are kept.
const KNOWN_MAX: usize = 4096;
/// Users asked for at a time.
const THREADS_MAX: usize = 8;
/// Connections that wait for answers: of all users, and of one, who may start a program of many processes.
const WAITING_MAX: usize = 2048;
const WAITING_OF_USER_MAX: usize = 512;

/// The user, or why nobody knows, for people.
pub(crate) type Found = Result<Identity, String>;
type LookUp = Box<dyn Fn(u32) -> Found + Send + Sync>;
type Then = Box<dyn FnOnce(Found) + Send>;

/// The users that are known, and those that are asked for.
#[derive(Clone)]
pub(crate) struct Users(Arc<Inner>);

struct Inner {
    look_up: LookUp,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    known: HashMap<u32, (Identity, Instant)>,
    /// Who waits for which user.
    waiting: HashMap<u32, Vec<Then>>,
    waiting_count: usize,
    /// Users that no thread has begun to ask for.
    queue: VecDeque<u32>,
    threads: usize,
}

impl State {
    fn known(&self, uid: u32) -> Option<Identity> {
        let (who, since) = self.known.get(&uid)?;
        (since.elapsed() < KNOWN_TIME).then(|| who.clone())
    }

    fn learn(&mut self, who: Identity) {
        if self.known.len() >= KNOWN_MAX {
            self.known.retain(|_, (_, since)| since.elapsed() < KNOWN_TIME);
        }
        if self.known.len() < KNOWN_MAX {
            self.known.insert(who.uid, (who, Instant::now()));
        }
    }

    fn is_full_for(&self, uid: u32) -> bool {
        let of_user = self.waiting.get(&uid).map_or(0, Vec::len);
        self.waiting_count >= WAITING_MAX || of_user >= WAITING_OF_USER_MAX
    }

    /// True where a thread is needed.
    fn wait(&mut self, uid: u32, then: Then) -> bool {
        self.waiting_count += 1;
        let waiting = self.waiting.entry(uid).or_default();
        waiting.push(then);
        if waiting.len() > 1 {
            return false;
        }
        self.queue.push_back(uid);
        let is_needed = self.threads < THREADS_MAX;
        self.threads += usize::from(is_needed);
        is_needed
    }

    fn take_waiting(&mut self, uid: u32) -> Vec<Then> {
        let waiting = self.waiting.remove(&uid).unwrap_or_default();
        self.waiting_count -= waiting.len();
        waiting
    }
}

impl Users {
    /// None are known yet; `look_up` may block.
    pub(crate) fn new(look_up: impl Fn(u32) -> Found + Send + Sync + 'static) -> Users {
        Users(Arc::new(Inner { look_up: Box::new(look_up), state: Mutex::default() }))
    }

    /// Calls `then` with the user, now or from a thread. Does not block, unless the system has no
    /// thread. Too many that wait are told so.
    pub(crate) fn find(&self, uid: u32, then: impl FnOnce(Found) + Send + 'static) {
        let mut state = self.0.lock();
        if let Some(who) = state.known(uid) {
            drop(state);
            return then(Ok(who));
        }
        if state.is_full_for(uid) {
            drop(state);
            return then(Err("server limit reached: users being looked up".into()));
        }
        let needs_thread = state.wait(uid, Box::new(then));
        drop(state);
        if needs_thread {
            self.start_thread();
        }
    }

    /// Nobody waits for its end: it may hang for as long as the database does.
    fn start_thread(&self) {
        let inner = self.0.clone();
        let thread = std::thread::Builder::new().name("dafs-users".into());
        if let Err(error) = thread.spawn(move || inner.answer_all()) {
            tracing::warn!(%error, "no thread to look up users");
            self.0.answer_all();
        }
    }
}

impl Inner {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Until nobody is asked for.
    fn answer_all(&self) {
        while let Some(uid) = self.next() {
            let found = (self.look_up)(uid);
            let mut state = self.lock();
            if let Ok(who) = &found {
                state.learn(who.clone());
            }
            let waiting = state.take_waiting(uid);
            drop(state);
            for then in waiting {
                then(found.clone());
            }
        }
    }

    fn next(&self) -> Option<u32> {
        let mut state = self.lock();
        let next = state.queue.pop_front();
        state.threads -= usize::from(next.is_none());
        next
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    /// A user whose look-up takes until the test lets it end.
    const SLOW: u32 = 1;
    const LONG: Duration = Duration::from_secs(30);

    struct Asked {
        users: Users,
        let_go: Sender<()>,
        look_ups: Arc<AtomicUsize>,
    }

    fn users() -> Asked {
        let (let_go, go) = channel::<()>();
        let go = Mutex::new(go);
        let look_ups = Arc::new(AtomicUsize::new(0));
        let count = look_ups.clone();
        let users = Users::new(move |uid| {
            count.fetch_add(1, Ordering::SeqCst);
            if uid == SLOW {
                let _ = go.lock().expect("one at a time").recv();
            }
            Ok(Identity { uid, gid: uid, groups: Vec::new() })
        });
        Asked { users, let_go, look_ups }
    }

    fn find(users: &Users, uid: u32) -> Receiver<Found> {
        let (sender, receiver) = channel();
        users.find(uid, move |found| drop(sender.send(found)));
        receiver
    }

    #[test]
    fn one_slow_answer_keeps_nobody_else_waiting() {
        let Asked { users, let_go, look_ups } = users();
        let slow = [find(&users, SLOW), find(&users, SLOW)];
        for uid in 2..20 {
            let who = find(&users, uid).recv_timeout(LONG).expect("an answer").expect("a user");
            assert_eq!(who.uid, uid);
        }
        assert!(slow.iter().all(|waits| waits.try_recv().is_err()));
        let_go.send(()).expect("it waits");
        for waits in slow {
            assert_eq!(waits.recv_timeout(LONG).expect("an answer").expect("a user").uid, SLOW);
        }
        // One question for both; and now it is known.
        find(&users, SLOW).try_recv().expect("at once").expect("a user");
        assert_eq!(look_ups.load(Ordering::SeqCst), 19);
    }

    #[test]
    fn those_who_wait_are_bounded() {
        let Asked { users, let_go, .. } = users();
        let waiting: Vec<_> = (0..WAITING_OF_USER_MAX).map(|_| find(&users, SLOW)).collect();
        let refused = find(&users, SLOW).try_recv().expect("at once").expect_err("too many");
        assert!(refused.contains("limit"), "{refused}");
        drop(let_go);
        assert!(waiting.iter().all(|waits| waits.recv_timeout(LONG).is_ok()));
        assert_eq!(users.0.lock().waiting_count, 0);
    }

    #[test]
    fn what_is_not_found_is_asked_for_again() {
        let count = AtomicUsize::new(0);
        let users = Users::new(move |uid| match count.fetch_add(1, Ordering::SeqCst) {
            0 => Err("the directory is away".into()),
            _ => Ok(Identity { uid, gid: 0, groups: Vec::new() }),
        });
        assert!(find(&users, 7).recv_timeout(LONG).expect("an answer").is_err());
        assert!(find(&users, 7).recv_timeout(LONG).expect("an answer").is_ok());
    }
}
