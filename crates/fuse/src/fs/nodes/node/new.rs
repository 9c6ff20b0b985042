//! A file that was just made, and what is set of it that the server is not told yet.

use std::sync::atomic::Ordering;
use std::sync::{Arc, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use dafs_client::Session;
use dafs_protocol::{Attr, SetAttr, SetTime};

use super::{Node, OpenFile, PRIVILEGES, now};

/// Rights of the mode.
const RIGHTS: u32 = 0o777;

/// See the module.
pub(super) struct New {
    /// Who is told what becomes of it.
    maker: Weak<OpenFile>,
    /// How it is with what is not told yet.
    attr: Attr,
    /// When the server was asked for that.
    asked: Instant,
    /// Root made it, and is root for the server.
    by_root: bool,
    later: Option<Later>,
    /// Things set later so far.
    number: u64,
    /// Nothing more is set later.
    over: bool,
}

/// What is to be set, for a user.
#[derive(Clone)]
struct Later {
    session: Session,
    uid: u32,
    set: SetAttr,
}

/// What is to be set by now.
pub(in crate::fs) struct Due {
    later: Later,
    number: u64,
}

impl Due {
    /// That of who set it.
    pub(in crate::fs) fn session(&self) -> &Session {
        &self.later.session
    }

    pub(in crate::fs) fn set(&self) -> SetAttr {
        self.later.set
    }

    pub(in crate::fs) fn is_by(&self, uid: u32) -> bool {
        self.later.uid == uid
    }

    /// And what is set after it.
    pub(in crate::fs) fn and(&self, then: &SetAttr) -> SetAttr {
        both(&self.later.set, then)
    }
}

/// Whether nobody can tell this from what is set a moment later: it takes nothing from anybody,
/// and `uid`, whose file it is, may do it.
fn can_wait(uid: u32, set: &SetAttr, (mode, owner, group): (u32, u32, u32)) -> bool {
    let is_now = |time| time == Some(SetTime::Now);
    let stays = |own: u32, wanted: Option<u32>| wanted.is_none_or(|wanted| wanted == own);
    let then = set.mode.unwrap_or(mode);
    let only_gives = mode & RIGHTS & !then == 0 && (mode | then) & PRIVILEGES == 0;
    let is_owner = uid == owner && stays(owner, set.uid) && stays(group, set.gid);
    let has_time = !is_now(set.accessed) && !is_now(set.modified);
    set.size.is_none() && only_gives && is_owner && has_time
}

/// What two changes come to, one after the other.
fn both(first: &SetAttr, then: &SetAttr) -> SetAttr {
    SetAttr {
        size: then.size.or(first.size),
        mode: then.mode.or(first.mode),
        uid: then.uid.or(first.uid),
        gid: then.gid.or(first.gid),
        accessed: then.accessed.or(first.accessed),
        modified: then.modified.or(first.modified),
    }
}

fn apply(attr: &mut Attr, set: &SetAttr) {
    attr.mode = set.mode.unwrap_or(attr.mode);
    if let Some(SetTime::To(time)) = set.accessed {
        attr.accessed = time;
    }
    if let Some(SetTime::To(time)) = set.modified {
        attr.modified = time;
    }
    attr.changed = now();
}

impl Node {
    fn new_file(&self) -> MutexGuard<'_, Option<Box<New>>> {
        self.new.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// This open made it, as it was asked for then.
    pub(in crate::fs) fn is_new(&self, maker: &Arc<OpenFile>, asked: Instant) {
        let attr = maker.file.opened_attr();
        let (maker, by_root) = (Arc::downgrade(maker), attr.uid == 0);
        let new = New { maker, attr, asked, by_root, later: None, number: 0, over: false };
        *self.new_file() = Some(Box::new(new));
        self.may_be_new.store(true, Ordering::Release);
    }

    pub(in crate::fs) fn may_be_new(&self) -> bool {
        self.may_be_new.load(Ordering::Acquire)
    }

    /// What is set of it from now on is told to the server at once.
    pub(in crate::fs) fn is_new_no_more(&self) {
        if !self.may_be_new() {
            return;
        }
        let mut new = self.new_file();
        if let Some(new) = new.as_deref_mut() {
            new.over = true;
        }
        self.end_new(new);
    }

    fn end_new(&self, mut new: MutexGuard<'_, Option<Box<New>>>) {
        if new.as_deref().is_some_and(|new| new.over && new.later.is_none()) {
            *new = None;
            self.may_be_new.store(false, Ordering::Release);
        }
    }

    /// It was written up to there; `None`: it is not known how far.
    pub(in crate::fs) fn is_written_to(&self, end: Option<u64>) {
        if !self.may_be_new() {
            return;
        }
        match (self.new_file().as_deref_mut(), end) {
            (Some(new), Some(end)) => new.attr.size = new.attr.size.max(end),
            (Some(new), None) => new.over = true,
            (None, _) => {}
        }
    }

    /// The server set something, and answered this.
    pub(in crate::fs) fn is_set(&self, attr: &Attr, asked: Instant) {
        if self.may_be_new()
            && let Some(new) = self.new_file().as_deref_mut()
            && new.later.is_none()
        {
            (new.attr, new.asked) = (*attr, asked);
        }
    }

    /// Keeps what is to be set, if that can wait: how it is then, and whether it is the first.
    /// What is known of it is believed for `ttl`.
    pub(in crate::fs) fn set_later(
        &self,
        (session, uid): (Session, u32),
        set: &SetAttr,
        ttl: Duration,
    ) -> Option<(Attr, bool)> {
        let mut new = self.new_file();
        let new = new.as_deref_mut().filter(|new| !new.over && new.asked.elapsed() < ttl)?;
        let others = new.later.as_ref().is_some_and(|later| later.uid != uid);
        let is = (new.attr.mode, new.attr.uid, new.attr.gid);
        let may = if uid == 0 && new.by_root { new.attr.uid } else { uid };
        if others || !can_wait(may, set, is) || new.maker.strong_count() == 0 {
            return None;
        }
        apply(&mut new.attr, set);
        new.number += 1;
        let first = new.later.is_none();
        let before = new.later.take().map(|later| later.set).unwrap_or_default();
        new.later = Some(Later { session, uid, set: both(&before, set) });
        self.has_later.store(true, Ordering::Release);
        Some((new.attr, first))
    }

    /// Whether something is to be set.
    pub(in crate::fs) fn has_later(&self) -> bool {
        self.has_later.load(Ordering::Acquire)
    }

    /// Who is told of what is to be set.
    pub(in crate::fs) fn maker(&self) -> Option<Arc<OpenFile>> {
        self.new_file().as_deref()?.maker.upgrade()
    }

    /// What is to be set, until it [is done](Self::did).
    pub(in crate::fs) fn due(&self) -> Option<Due> {
        let new = self.new_file();
        let new = new.as_deref()?;
        Some(Due { later: new.later.clone()?, number: new.number })
    }

    /// The server set what was due, and answered this; `None`: it failed. False: more is due.
    pub(in crate::fs) fn did(&self, due: &Due, answer: Option<(Attr, Instant)>) -> bool {
        let mut guard = self.new_file();
        let Some(new) = guard.as_deref_mut().filter(|new| new.number == due.number) else {
            return false;
        };
        match answer {
            Some((attr, asked)) => (new.attr, new.asked) = (attr, asked),
            None => new.over = true,
        }
        let was_due = new.later.take().is_some();
        self.has_later.store(false, Ordering::Release);
        self.end_new(guard);
        was_due
    }
}

#[cfg(test)]
mod tests {
    use dafs_protocol::Timestamp;

    use super::*;

    const OWNER: u32 = 7;

    fn can(mode: u32, set: &SetAttr) -> bool {
        can_wait(OWNER, set, (mode, OWNER, 8))
    }

    #[test]
    fn what_takes_nothing_from_anybody_can_wait() {
        let time = SetTime::To(Timestamp { seconds: 1, nanoseconds: 2 });
        let set = SetAttr { modified: Some(time), ..SetAttr::default() };
        assert!(can(0o600, &set));
        assert!(can(0o600, &SetAttr { mode: Some(0o1644), ..set }));
        assert!(can(0o600, &SetAttr { uid: Some(OWNER), gid: Some(8), ..set }));
        assert!(!can_wait(0, &set, (0o600, OWNER, 8)), "not the owner");
        assert!(!can(0o604, &SetAttr { mode: Some(0o600), ..set }));
        assert!(!can(0o600, &SetAttr { mode: Some(0o4700), ..set }));
        assert!(!can(0o2600, &SetAttr { mode: Some(0o600), ..set }));
        assert!(!can(0o600, &SetAttr { uid: Some(0), ..set }));
        assert!(!can(0o600, &SetAttr { gid: Some(0), ..set }));
        assert!(!can(0o600, &SetAttr { size: Some(0), ..set }));
        assert!(!can(0o600, &SetAttr { accessed: Some(SetTime::Now), ..set }));
    }

    #[test]
    fn the_later_of_two_values_is_set() {
        let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
        let owner = SetAttr { uid: Some(7), ..SetAttr::default() };
        let set = both(&both(&mode(0o600), &owner), &mode(0o644));
        assert_eq!(set, SetAttr { uid: Some(7), ..mode(0o644) });
    }
}
