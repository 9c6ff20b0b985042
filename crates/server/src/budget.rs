//! What requests under way may take together: pages of the arena that are held until a peer sent
//! its data or took its reply, and memory beside the arena.
//!
//! Each session and each user has a share, so that those who let the server wait stop nobody else.
//! Who needs more than is left of its own share waits for what it has itself under way; who needs
//! more than is left of the whole waits in turns with other users. A request takes all that it
//! may need before it begins, and gives it back when its reply has left: nobody waits for more
//! while it holds some.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

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

impl Needs {
    fn each(self, part: impl Fn(usize) -> usize) -> Needs {
        Needs { pages: part(self.pages), memory: part(self.memory) }
    }

    fn plus(self, more: Needs) -> Needs {
        Needs {
            pages: self.pages.saturating_add(more.pages),
            memory: self.memory.saturating_add(more.memory),
        }
    }

    pub(crate) fn minus(self, less: Needs) -> Needs {
        Needs {
            pages: self.pages.saturating_sub(less.pages),
            memory: self.memory.saturating_sub(less.memory),
        }
    }

    /// These and `more` are within `most`. What is larger than a whole share goes alone.
    pub(crate) fn leaves_room(self, more: Needs, most: Needs) -> bool {
        let fits = |used: usize, more: usize, most: usize| {
            more == 0 || used == 0 || used.saturating_add(more) <= most
        };
        fits(self.pages, more.pages, most.pages) && fits(self.memory, more.memory, most.memory)
    }

    pub(crate) fn add(&mut self, more: Needs) {
        *self = self.plus(more);
    }
}

/// The session whose first delayed request may begin: its needs are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Granted {
    pub uid: u32,
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
    ledger: Mutex<Ledger>,
    all: Needs,
    /// As whom the server runs.
    own_uid: u32,
}

struct Ledger {
    most: Needs,
    used: Needs,
    users: FxHashMap<u32, User>,
    /// Users whose first request has room in their share, but not in the whole. They take turns.
    ready: VecDeque<u32>,
}

#[derive(Default)]
struct User {
    most: Needs,
    used: Needs,
    sessions: usize,
    /// First come, first served.
    line: VecDeque<Granted>,
}

/// Root, and as whom the server runs, may have half of everything, others a quarter.
pub(crate) fn user_part(all: usize, uid: u32, own_uid: u32) -> usize {
    if uid == 0 || uid == own_uid { all / 2 } else { all / 4 }
}

/// A session may have half of what its user may.
pub(crate) fn session_part(of_user: usize) -> usize {
    of_user / 2
}

impl Budgets {
    pub(crate) fn new(all: Needs, own_uid: u32) -> Budgets {
        let (users, ready) = (FxHashMap::default(), VecDeque::new());
        let ledger = Ledger { most: all, used: Needs::default(), users, ready };
        Budgets { ledger: Mutex::new(ledger), all, own_uid }
    }

    fn lock(&self) -> MutexGuard<'_, Ledger> {
        self.ledger.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn of_user(&self, uid: u32) -> Needs {
        self.all.each(|all| user_part(all, uid, self.own_uid))
    }

    /// A session of this user begins; what it may have at a time.
    pub(crate) fn enter(&self, uid: u32) -> Needs {
        let most = self.of_user(uid);
        let mut ledger = self.lock();
        let user = ledger.users.entry(uid).or_default();
        user.most = most;
        user.sessions += 1;
        most.each(session_part)
    }

    /// It has ended; what it took may still be under way.
    pub(crate) fn leave(&self, uid: u32) {
        let mut ledger = self.lock();
        if let Some(user) = ledger.users.get_mut(&uid) {
            user.sessions = user.sessions.saturating_sub(1);
        }
        ledger.forget_idle(uid);
    }

    /// Takes what a request needs, if nobody waits and there is room.
    pub(crate) fn try_take(&self, uid: u32, needs: Needs) -> bool {
        self.lock().try_take(uid, needs).is_ok()
    }

    /// As [`try_take`](Self::try_take). False: it waits in line, and is granted later.
    pub(crate) fn take(&self, wanted: Granted) -> bool {
        let ledger = &mut *self.lock();
        let Err(has_room) = ledger.try_take(wanted.uid, wanted.needs) else { return true };
        if let Some(user) = ledger.users.get_mut(&wanted.uid) {
            user.line.push_back(wanted);
        }
        if has_room && !ledger.ready.contains(&wanted.uid) {
            ledger.ready.push_back(wanted.uid);
        }
        false
    }

    /// Gives back what a request took.
    #[must_use = "others wait for it"]
    pub(crate) fn give(&self, uid: u32, needs: Needs) -> AllGranted {
        let mut ledger = self.lock();
        ledger.used = ledger.used.minus(needs);
        if let Some(user) = ledger.users.get_mut(&uid) {
            user.used = user.used.minus(needs);
        }
        ledger.forget_idle(uid);
        ledger.grant(uid)
    }

    /// The session waits no more. What it was granted meanwhile is told to its worker.
    #[must_use = "others wait for it"]
    pub(crate) fn forget(&self, uid: u32, session: SessionId) -> AllGranted {
        let mut ledger = self.lock();
        if let Some(user) = ledger.users.get_mut(&uid) {
            user.line.retain(|waiting| waiting.session != session);
        }
        ledger.grant(uid)
    }

    /// What is taken, of how much.
    pub(crate) fn used(&self) -> (Needs, Needs) {
        (self.lock().used, self.all)
    }
}

impl Ledger {
    /// Otherwise: whether there is room in the user's share.
    fn try_take(&mut self, uid: u32, needs: Needs) -> Result<(), bool> {
        let user = self.users.get_mut(&uid).ok_or(false)?;
        let has_room = user.line.is_empty() && user.used.leaves_room(needs, user.most);
        if !has_room || !self.ready.is_empty() || !self.used.leaves_room(needs, self.most) {
            return Err(has_room);
        }
        user.used.add(needs);
        self.used.add(needs);
        Ok(())
    }

    fn forget_idle(&mut self, uid: u32) {
        let is_idle = |user: &User| {
            user.sessions == 0 && user.used == Needs::default() && user.line.is_empty()
        };
        if self.users.get(&uid).is_some_and(is_idle) {
            self.users.remove(&uid);
        }
    }

    /// The first request of a user in line has room in its share.
    fn has_room(&self, uid: u32) -> Option<Granted> {
        let user = self.users.get(&uid)?;
        let first = user.line.front()?;
        user.used.leaves_room(first.needs, user.most).then_some(*first)
    }

    /// Those who can begin now: `changed` is a user whose share or line has changed.
    fn grant(&mut self, changed: u32) -> AllGranted {
        let mut granted = AllGranted::new();
        if self.has_room(changed).is_some() && !self.ready.contains(&changed) {
            self.ready.push_back(changed);
        }
        while let Some(&uid) = self.ready.front() {
            let Some(first) = self.has_room(uid) else {
                self.ready.pop_front();
                continue;
            };
            if !self.used.leaves_room(first.needs, self.most) {
                break;
            }
            self.used.add(first.needs);
            if let Some(user) = self.users.get_mut(&uid) {
                user.used.add(first.needs);
                user.line.pop_front();
            }
            granted.push(first);
            self.ready.rotate_left(1);
        }
        granted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Needs = Needs { pages: 800, memory: 80 };

    fn wanted(uid: u32, session: u8, pages: usize) -> Granted {
        let needs = Needs { pages, memory: 1 };
        Granted { uid, session: SessionId([session; 16]), worker: 0, ticket: 0, needs }
    }

    fn budgets(users: &[u32]) -> Budgets {
        let budgets = Budgets::new(ALL, 1);
        for uid in users {
            budgets.enter(*uid);
        }
        budgets
    }

    #[test]
    fn a_user_takes_its_share_and_no_more() {
        let budgets = budgets(&[0, 1, 7]);
        assert_eq!(budgets.enter(7), Needs { pages: 100, memory: 10 });
        assert_eq!(budgets.enter(0), Needs { pages: 200, memory: 20 });
        for (uid, share) in [(7, 200), (0, 400)] {
            assert!(budgets.take(wanted(uid, 1, share)));
            assert!(!budgets.take(wanted(uid, 1, 1)), "one more");
        }
        assert!(budgets.take(wanted(1, 2, 200)), "others are not behind them");
    }

    #[test]
    fn what_is_larger_than_a_share_goes_alone() {
        let budgets = budgets(&[7]);
        let large = wanted(7, 1, 10_000);
        assert!(budgets.take(large));
        assert!(!budgets.take(wanted(7, 2, 1)));
        let granted = budgets.give(7, large.needs);
        assert_eq!(granted.as_slice(), [wanted(7, 2, 1)]);
        assert!(!budgets.take(large), "beside another");
    }

    #[test]
    fn a_large_request_is_not_overtaken_by_small_ones_of_its_user() {
        let budgets = budgets(&[7]);
        assert!(budgets.take(wanted(7, 1, 150)));
        assert!(!budgets.take(wanted(7, 2, 100)));
        assert!(!budgets.take(wanted(7, 3, 10)), "behind it");
        let granted = budgets.give(7, wanted(7, 1, 150).needs);
        assert_eq!(granted.as_slice(), [wanted(7, 2, 100), wanted(7, 3, 10)]);
    }

    #[test]
    fn users_take_turns_where_all_is_taken() {
        let budgets = budgets(&[7, 8, 9, 10, 11]);
        for uid in [7, 8, 9, 10] {
            assert!(budgets.take(wanted(uid, 1, 200)), "{uid}");
        }
        for session in 2..9 {
            assert!(!budgets.take(wanted(7, session, 40)));
        }
        assert!(!budgets.take(wanted(11, 1, 40)), "nothing is left of the whole");
        // Its own share is free before the whole is.
        let granted = budgets.give(7, wanted(7, 1, 40).needs);
        assert_eq!(granted.as_slice(), [wanted(11, 1, 40)], "who waited for others comes first");
        let granted = budgets.give(7, wanted(7, 1, 160).needs);
        let sessions: Vec<u8> = granted.iter().map(|one| one.session.0[0]).collect();
        assert_eq!(sessions, [2, 3, 4, 5]);
    }

    #[test]
    fn who_leaves_the_line_holds_up_nobody() {
        let budgets = budgets(&[7]);
        assert!(budgets.take(wanted(7, 1, 150)));
        assert!(!budgets.take(wanted(7, 2, 100)));
        assert!(!budgets.take(wanted(7, 3, 10)));
        let granted = budgets.forget(7, SessionId([2; 16]));
        assert_eq!(granted.as_slice(), [wanted(7, 3, 10)]);
    }

    #[test]
    fn nothing_is_kept_of_users_that_have_gone() {
        let budgets = budgets(&[7, 7, 8]);
        assert!(budgets.take(wanted(7, 1, 10)));
        budgets.leave(7);
        budgets.leave(8);
        budgets.leave(7);
        assert_eq!(budgets.lock().users.len(), 1, "its request is under way");
        assert!(budgets.give(7, wanted(7, 1, 10).needs).is_empty());
        assert!(budgets.lock().users.is_empty());
        assert_eq!(budgets.used(), (Needs::default(), ALL));
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
            let budgets = budgets(&uids);
            let (mut running, mut waiting) = (Vec::new(), 0);
            for step in 0..300 {
                if step < 200 && next(2) == 0 {
                    let pages = (next(300) + 1) as usize;
                    let one = wanted(uids[next(3) as usize], next(9) as u8, pages);
                    match budgets.take(one) {
                        true => running.push(one),
                        false => waiting += 1,
                    }
                } else if !running.is_empty() {
                    let ended: Granted = running.swap_remove(next(running.len() as u64) as usize);
                    let granted = budgets.give(ended.uid, ended.needs);
                    waiting -= granted.len();
                    running.extend(granted);
                }
                assert!(waiting == 0 || !running.is_empty(), "seed {seed}: nobody is served");
            }
            while let Some(ended) = running.pop() {
                let granted = budgets.give(ended.uid, ended.needs);
                waiting -= granted.len();
                running.extend(granted);
            }
            assert_eq!((waiting, budgets.used().0), (0, Needs::default()), "seed {seed}");
        }
    }
}
