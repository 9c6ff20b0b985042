//! What requests under way may take together: pages of the arena that are held until a peer sent
//! its data or took its reply, and memory beside the arena.
//!
//! Each session and each user has a share, so that those who let the server wait stop nobody else.
//! Who needs more than is left of its own share waits for what it has itself under way; who needs
//! more than is left of the whole waits in turns with other users. A request takes all that it
//! may need before it begins, and gives it back when its reply has left: nobody waits for more
//! while it holds some.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use dafs_protocol::SessionId;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// Bytes that a request may need.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Needs {
    /// Of the arena: pinned by its READs, reserved by its WRITEs.
    pub pages: usize,
    /// Beside the arena.
    pub memory: usize,
}

/// What is larger than a whole share goes alone.
fn fits(used: usize, more: usize, most: usize) -> bool {
    more == 0 || used == 0 || used.saturating_add(more) <= most
}

impl Needs {
    fn each(self, part: impl Fn(usize) -> usize) -> Needs {
        Needs { pages: part(self.pages), memory: part(self.memory) }
    }

    pub(crate) fn minus(self, less: Needs) -> Needs {
        Needs {
            pages: self.pages.saturating_sub(less.pages),
            memory: self.memory.saturating_sub(less.memory),
        }
    }

    /// These and `more` are within `most`.
    pub(crate) fn leaves_room(self, more: Needs, most: Needs) -> bool {
        fits(self.pages, more.pages, most.pages) && fits(self.memory, more.memory, most.memory)
    }

    pub(crate) fn add(&mut self, more: Needs) {
        self.pages = self.pages.saturating_add(more.pages);
        self.memory = self.memory.saturating_add(more.memory);
    }
}

/// A share, and what is taken of it.
#[derive(Debug)]
struct Share {
    most: Needs,
    pages: AtomicUsize,
    memory: AtomicUsize,
}

impl Share {
    fn new(most: Needs) -> Share {
        Share { most, pages: AtomicUsize::new(0), memory: AtomicUsize::new(0) }
    }

    fn used(&self) -> Needs {
        let load = |used: &AtomicUsize| used.load(Ordering::SeqCst);
        Needs { pages: load(&self.pages), memory: load(&self.memory) }
    }

    #[inline]
    fn try_take(&self, needs: Needs) -> bool {
        let take = |used: &AtomicUsize, more: usize, most: usize| {
            let sum = |used| fits(used, more, most).then(|| used.saturating_add(more));
            more == 0 || used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, sum).is_ok()
        };
        if !take(&self.pages, needs.pages, self.most.pages) {
            return false;
        }
        let taken = take(&self.memory, needs.memory, self.most.memory);
        if !taken {
            self.give(Needs { memory: 0, ..needs });
        }
        taken
    }

    #[inline]
    fn give(&self, needs: Needs) {
        let give = |used: &AtomicUsize, less: usize| {
            if less > 0 {
                used.fetch_sub(less, Ordering::SeqCst);
            }
        };
        give(&self.pages, needs.pages);
        give(&self.memory, needs.memory);
    }
}

/// The share of one user's sessions together.
#[derive(Debug)]
pub(crate) struct UserShare {
    uid: u32,
    share: Share,
    is_limited: bool,
    /// What they have of the server's limits.
    pub sessions: AtomicUsize,
    pub opens: AtomicUsize,
}

impl UserShare {
    /// Others come first: it is neither root nor as whom the server runs.
    pub(crate) fn is_limited(&self) -> bool {
        self.is_limited
    }

    /// Of a limit of the server, what the user may have: a quarter, at least one. All of it for
    /// root, and for the user as whom the server runs.
    pub(crate) fn part_of(&self, limit: usize) -> usize {
        if self.is_limited { (limit / 4).max(1) } else { limit }
    }

    /// What one session may take at a time.
    pub(crate) fn of_session(&self) -> Needs {
        self.share.most.each(session_part)
    }
}

/// The session whose first delayed request may begin: its needs are taken.
#[derive(Debug, Clone)]
pub(crate) struct Granted {
    pub user: Arc<UserShare>,
    pub session: SessionId,
    /// Of the session.
    pub worker: u16,
    /// The session's, for this place in line.
    pub ticket: u64,
    pub needs: Needs,
}

/// Those who may go on now; usually nobody.
pub(crate) type AllGranted = SmallVec<[Granted; 1]>;

/// See the module. Shared by all workers.
pub(crate) struct Budgets {
    all: Share,
    /// Requests in line, and those about to be. While there is none, no lock is taken.
    waiting: AtomicUsize,
    lines: Mutex<Lines>,
    users: Mutex<FxHashMap<u32, Weak<UserShare>>>,
    /// As whom the server runs.
    own_uid: u32,
}

#[derive(Default)]
struct Lines {
    /// By user: first come, first served.
    of_users: FxHashMap<u32, VecDeque<Granted>>,
    /// Users whose first request has room in their share, but not in the whole. They take turns.
    ready: VecDeque<u32>,
}

/// Root, and as whom the server runs, may have half of everything, others a quarter.
pub(crate) fn user_part(all: usize, uid: u32, own_uid: u32) -> usize {
    if uid == 0 || uid == own_uid { all / 2 } else { all / 4 }
}

/// A session may have half of what its user may.
pub(crate) fn session_part(of_user: usize) -> usize {
    of_user / 2
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Budgets {
    pub(crate) fn new(all: Needs, own_uid: u32) -> Budgets {
        let all = Share::new(all);
        let (lines, users) = (Mutex::default(), Mutex::default());
        Budgets { all, waiting: AtomicUsize::new(0), lines, users, own_uid }
    }

    /// The share of a user, for a session that begins.
    pub(crate) fn of_user(&self, uid: u32) -> Arc<UserShare> {
        let mut users = locked(&self.users);
        if let Some(user) = users.get(&uid).and_then(Weak::upgrade) {
            return user;
        }
        users.retain(|_, user| user.strong_count() > 0);
        let most = self.all.most.each(|all| user_part(all, uid, self.own_uid));
        let user = Arc::new(UserShare {
            uid,
            share: Share::new(most),
            is_limited: uid != 0 && uid != self.own_uid,
            sessions: AtomicUsize::new(0),
            opens: AtomicUsize::new(0),
        });
        users.insert(uid, Arc::downgrade(&user));
        user
    }

    /// Takes what a request needs, if there is room and nobody waits for any.
    #[inline]
    pub(crate) fn take_at_once(&self, user: &UserShare, needs: Needs) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0 && self.take_both(user, needs)
    }

    /// Takes what a request needs, if there is room and nobody was there before it.
    ///
    /// # Errors
    /// Those who may go on, since nothing was taken.
    pub(crate) fn try_take(&self, user: &UserShare, needs: Needs) -> Result<(), AllGranted> {
        if self.waiting.load(Ordering::SeqCst) == 0 {
            if self.take_both(user, needs) {
                return Ok(());
            }
            // Somebody may have met what was taken for a moment.
            return Err(self.changed(user.uid));
        }
        let mut lines = locked(&self.lines);
        match lines.is_free(user.uid) && self.take_both(user, needs) {
            true => Ok(()),
            false => Err(self.grant(&mut lines, user.uid)),
        }
    }

    /// As [`try_take`](Self::try_take). False: it waits in line, and is granted later.
    pub(crate) fn take(&self, wanted: Granted) -> bool {
        // Before it is looked once more: who gives something back sees this, or it is there.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut lines = locked(&self.lines);
        let uid = wanted.user.uid;
        if lines.is_free(uid) && self.take_both(&wanted.user, wanted.needs) {
            self.waiting.fetch_sub(1, Ordering::SeqCst);
            return true;
        }
        lines.of_users.entry(uid).or_default().push_back(wanted);
        lines.note_ready(uid);
        false
    }

    #[inline(always)]
    fn take_both(&self, user: &UserShare, needs: Needs) -> bool {
        if !user.share.try_take(needs) {
            return false;
        }
        let taken = self.all.try_take(needs);
        if !taken {
            user.share.give(needs);
        }
        taken
    }

    /// Gives back what a request took. True where somebody waits for that, and is to be
    /// [granted](Self::granted) it.
    #[inline]
    #[must_use = "others wait for it"]
    pub(crate) fn give(&self, user: &UserShare, needs: Needs) -> bool {
        user.share.give(needs);
        self.all.give(needs);
        self.waiting.load(Ordering::SeqCst) > 0
    }

    /// A user has more room: those who may go on.
    #[must_use = "others wait for it"]
    pub(crate) fn granted(&self, user: &UserShare) -> AllGranted {
        self.changed(user.uid)
    }

    fn changed(&self, uid: u32) -> AllGranted {
        match self.waiting.load(Ordering::SeqCst) {
            0 => AllGranted::new(),
            _ => self.grant(&mut locked(&self.lines), uid),
        }
    }

    /// The session waits no more. What it was granted meanwhile is told to its worker.
    #[must_use = "others wait for it"]
    pub(crate) fn forget(&self, user: &UserShare, session: SessionId) -> AllGranted {
        let mut lines = locked(&self.lines);
        if let Some(line) = lines.of_users.get_mut(&user.uid) {
            let before = line.len();
            line.retain(|waiting| waiting.session != session);
            self.waiting.fetch_sub(before - line.len(), Ordering::SeqCst);
        }
        self.grant(&mut lines, user.uid)
    }

    /// Those who can begin now: `changed` is a user whose share or line has changed.
    fn grant(&self, lines: &mut Lines, changed: u32) -> AllGranted {
        let mut granted = AllGranted::new();
        lines.note_ready(changed);
        while let Some(&uid) = lines.ready.front() {
            let Some(first) = lines.has_room(uid) else {
                lines.ready.pop_front();
                continue;
            };
            if !self.take_both(&first.user, first.needs) {
                break;
            }
            if let Some(line) = lines.of_users.get_mut(&uid) {
                granted.extend(line.pop_front());
            }
            lines.ready.rotate_left(1);
        }
        lines.of_users.retain(|_, line| !line.is_empty());
        self.waiting.fetch_sub(granted.len(), Ordering::SeqCst);
        granted
    }

    /// What is taken, of how much.
    pub(crate) fn used(&self) -> (Needs, Needs) {
        (self.all.used(), self.all.most)
    }
}

impl Lines {
    /// Nobody waits that was there before.
    fn is_free(&self, uid: u32) -> bool {
        self.ready.is_empty() && !self.of_users.contains_key(&uid)
    }

    /// The first request of a user, if it has room in its share.
    fn has_room(&self, uid: u32) -> Option<Granted> {
        let first = self.of_users.get(&uid)?.front()?;
        let share = &first.user.share;
        share.used().leaves_room(first.needs, share.most).then(|| first.clone())
    }

    fn note_ready(&mut self, uid: u32) {
        if self.has_room(uid).is_some() && !self.ready.contains(&uid) {
            self.ready.push_back(uid);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Needs = Needs { pages: 800, memory: 80 };

    /// With users that have sessions.
    struct World {
        budgets: Budgets,
        users: Vec<Arc<UserShare>>,
    }

    type Asked = (u32, u8, usize);

    fn needs(pages: usize) -> Needs {
        Needs { pages, memory: 1 }
    }

    impl World {
        fn new(users: &[u32]) -> World {
            let budgets = Budgets::new(ALL, 1);
            let users = users.iter().map(|uid| budgets.of_user(*uid)).collect();
            World { budgets, users }
        }

        fn user(&self, uid: u32) -> Arc<UserShare> {
            self.users.iter().find(|user| user.uid == uid).expect("a user").clone()
        }

        fn take(&self, uid: u32, session: u8, pages: usize) -> bool {
            let (user, session) = (self.user(uid), SessionId([session; 16]));
            let needs = needs(pages);
            self.budgets.take(Granted { user, session, worker: 0, ticket: 0, needs })
        }

        fn give(&self, uid: u32, pages: usize) -> Vec<Asked> {
            asked(give(&self.budgets, &self.user(uid), needs(pages)))
        }
    }

    fn give(budgets: &Budgets, user: &UserShare, needs: Needs) -> AllGranted {
        match budgets.give(user, needs) {
            true => budgets.granted(user),
            false => AllGranted::new(),
        }
    }

    fn asked(granted: AllGranted) -> Vec<Asked> {
        let one = |one: Granted| (one.user.uid, one.session.0[0], one.needs.pages);
        granted.into_iter().map(one).collect()
    }

    #[test]
    fn a_user_takes_its_share_and_no_more() {
        let world = World::new(&[0, 1, 7]);
        assert_eq!(world.user(7).of_session(), Needs { pages: 100, memory: 10 });
        assert_eq!(world.user(0).of_session(), Needs { pages: 200, memory: 20 });
        for (uid, share) in [(7, 200), (0, 400)] {
            assert!(world.take(uid, 1, share));
            assert!(!world.take(uid, 1, 1), "one more");
        }
        assert!(world.take(1, 2, 200), "others are not behind them");
    }

    #[test]
    fn what_is_larger_than_a_share_goes_alone() {
        let world = World::new(&[7]);
        assert!(world.take(7, 1, 10_000));
        assert!(!world.take(7, 2, 1));
        assert_eq!(world.give(7, 10_000), [(7, 2, 1)]);
        assert!(!world.take(7, 1, 10_000), "beside another");
    }

    #[test]
    fn a_large_request_is_not_overtaken_by_small_ones_of_its_user() {
        let world = World::new(&[7, 8]);
        assert!(world.take(7, 1, 150));
        assert!(!world.take(7, 2, 100));
        assert!(!world.take(7, 3, 10), "behind it");
        assert!(
            world.budgets.try_take(&world.user(7), needs(1)).is_err(),
            "also who does not wait"
        );
        assert!(world.budgets.try_take(&world.user(8), needs(1)).is_ok(), "another user");
        assert_eq!(world.give(7, 150), [(7, 2, 100), (7, 3, 10)]);
    }

    #[test]
    fn users_take_turns_where_all_is_taken() {
        let world = World::new(&[7, 8, 9, 10, 11]);
        for uid in [7, 8, 9, 10] {
            assert!(world.take(uid, 1, 40) && world.take(uid, 1, 160), "{uid}");
        }
        for session in 2..9 {
            assert!(!world.take(7, session, 40));
        }
        assert!(!world.take(11, 1, 40), "nothing is left of the whole");
        // Its own share is free before the whole is.
        assert_eq!(world.give(7, 40), [(11, 1, 40)], "who waited for others comes first");
        let sessions: Vec<u8> = world.give(7, 160).iter().map(|one| one.1).collect();
        assert_eq!(sessions, [2, 3, 4, 5]);
    }

    #[test]
    fn who_leaves_the_line_holds_up_nobody() {
        let world = World::new(&[7]);
        assert!(world.take(7, 1, 150));
        assert!(!world.take(7, 2, 100));
        assert!(!world.take(7, 3, 10));
        let granted = world.budgets.forget(&world.user(7), SessionId([2; 16]));
        assert_eq!(asked(granted), [(7, 3, 10)]);
    }

    #[test]
    fn nothing_is_kept_of_users_that_have_gone() {
        let world = World::new(&[7]);
        let again = world.budgets.of_user(7);
        assert!(Arc::ptr_eq(&again, &world.user(7)), "one share for all sessions");
        let World { budgets, users } = world;
        drop((users, again));
        let _other = budgets.of_user(8);
        assert_eq!(locked(&budgets.users).len(), 1);
    }

    /// Any order of requests and ends: nothing is lost, nobody waits beside room of his own.
    #[test]
    fn random_requests_are_all_served() {
        for seed in 1..200u64 {
            let mut random = seed;
            let mut next = |below: u64| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (random >> 33) % below
            };
            let uids = [0, 7, 8];
            let world = World::new(&uids);
            let (mut running, mut waiting): (Vec<Asked>, usize) = (Vec::new(), 0);
            for step in 0..300 {
                if step < 200 && next(2) == 0 {
                    let (uid, session) = (uids[next(3) as usize], next(9) as u8);
                    let pages = (next(300) + 1) as usize;
                    match world.take(uid, session, pages) {
                        true => running.push((uid, session, pages)),
                        false => waiting += 1,
                    }
                } else if !running.is_empty() {
                    let (uid, _, pages) = running.swap_remove(next(running.len() as u64) as usize);
                    let granted = world.give(uid, pages);
                    waiting -= granted.len();
                    running.extend(granted);
                }
                assert!(waiting == 0 || !running.is_empty(), "seed {seed}: nobody is served");
            }
            while let Some((uid, _, pages)) = running.pop() {
                let granted = world.give(uid, pages);
                waiting -= granted.len();
                running.extend(granted);
            }
            assert_eq!((waiting, world.budgets.used().0), (0, Needs::default()), "seed {seed}");
            assert_eq!(world.budgets.waiting.load(Ordering::SeqCst), 0);
        }
    }

    /// Workers side by side: everybody who waits is granted in the end.
    #[test]
    fn nobody_is_forgotten_between_threads() {
        let budgets = Arc::new(Budgets::new(Needs { pages: 8, memory: 8 }, 1));
        let (sender, receiver) = std::sync::mpsc::channel::<Granted>();
        let threads: Vec<_> = (0..4u16)
            .map(|worker| {
                let (budgets, sender) = (budgets.clone(), sender.clone());
                std::thread::spawn(move || {
                    let user = budgets.of_user(u32::from(worker % 2));
                    let mut waiting = 0usize;
                    for ticket in 0..20_000u64 {
                        let needs = Needs { pages: 1 + (ticket % 3) as usize, memory: 1 };
                        let session = SessionId([worker as u8; 16]);
                        let wanted = Granted { user: user.clone(), session, worker, ticket, needs };
                        if budgets.take(wanted) {
                            give(&budgets, &user, needs).into_iter().for_each(|one| {
                                sender.send(one).expect("open");
                            });
                        } else {
                            waiting += 1;
                        }
                    }
                    waiting
                })
            })
            .collect();
        drop(sender);
        let mut granted = 0;
        for one in receiver {
            granted += 1;
            let mut next = vec![one];
            while let Some(one) = next.pop() {
                let more = give(&budgets, &one.user, one.needs);
                granted += more.len();
                next.extend(more);
            }
        }
        let waiting: usize = threads.into_iter().map(|thread| thread.join().expect("ends")).sum();
        assert_eq!((granted, budgets.used().0), (waiting, Needs::default()));
    }
}
