//! How many connections of other users read memory of this process by themselves.
//!
//! Each of them is waited for until its peer has left that memory, as one who is stopped may never do. So
//! no user has many, and all users together no more than some: who comes beyond that is told of nothing,
//! and data is copied for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

const OF_USER_MAX: usize = 64;
/// One person may be many users.
const ALL_MAX: usize = 1024;

/// Those that do.
#[derive(Debug, Default)]
pub struct Admitted(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    all: usize,
    of_users: HashMap<u32, usize>,
}

/// One of them; given back when it is dropped.
#[derive(Debug)]
pub struct Admission {
    all: Arc<Admitted>,
    uid: u32,
}

impl Admitted {
    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// One more of this user; `None`: there are enough.
    pub fn enter(self: &Arc<Self>, uid: u32) -> Option<Admission> {
        let counts = &mut *self.counts();
        let of_user = counts.of_users.get(&uid).copied().unwrap_or(0);
        if of_user >= OF_USER_MAX || counts.all >= ALL_MAX {
            return None;
        }
        counts.of_users.insert(uid, of_user + 1);
        counts.all += 1;
        Some(Admission { all: self.clone(), uid })
    }
}

impl Admission {
    /// Of whom it is.
    #[inline]
    pub fn uid(&self) -> u32 {
        self.uid
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        let counts = &mut *self.all.counts();
        counts.all = counts.all.saturating_sub(1);
        let left = counts.of_users.get(&self.uid).map_or(0, |count| count.saturating_sub(1));
        match left {
            0 => counts.of_users.remove(&self.uid),
            left => counts.of_users.insert(self.uid, left),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_user_and_not_all_together_have_many() {
        let all = Arc::new(Admitted::default());
        let mut of_one: Vec<_> = (0..OF_USER_MAX).map_while(|_| all.enter(7)).collect();
        assert_eq!(of_one.len(), OF_USER_MAX);
        assert!(all.enter(7).is_none() && all.enter(8).is_some());
        of_one.pop();
        of_one.extend(all.enter(7));
        assert_eq!(of_one.len(), OF_USER_MAX, "what was given back is had again");
        let others: Vec<_> = (8..).map_while(|uid| all.enter(uid)).collect();
        assert_eq!(of_one.len() + others.len(), ALL_MAX);
        drop((of_one, others));
        assert!(all.counts().all == 0 && all.counts().of_users.is_empty());
    }
}
