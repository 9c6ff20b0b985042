//! Who may hold which lock, and who believes to.
//!
//! A client believes in a lock from the answer that grants it until it asks to give it up or is
//! told that it is lost. A lock that another was given meanwhile is *overtaken*: its client may
//! not have heard that its lease ended, but must not get an answer any more that only who has the
//! lock should get.

use std::time::Duration;

use dafs_protocol::{LockKind, OwnerKey};

use super::{Moment, Span};

/// Parts of a file that are locked apart.
pub const CELLS: usize = 12;

/// Whose lock: an owner of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asker {
    /// The client.
    pub who: usize,
    /// Its owner.
    pub key: OwnerKey,
}

/// What is locked: a place is one of the two worlds of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Want {
    /// Which file.
    pub file: usize,
    /// The whole file, or cells of it.
    pub whole: bool,
    /// The first cell.
    pub first: usize,
    /// The last cell.
    pub last: usize,
    /// Shared with nobody.
    pub exclusive: bool,
}

impl Want {
    fn is_against(&self, other: &Want) -> bool {
        (self.file, self.whole) == (other.file, other.whole)
            && self.first <= other.last
            && other.first <= self.last
            && (self.exclusive || other.exclusive)
    }
}

/// A lock that was asked for, from then on until it certainly is not held any more.
#[derive(Debug, Clone)]
struct Request {
    id: u64,
    asker: Asker,
    want: Want,
    wait: bool,
    start: Moment,
    answered: Option<Moment>,
    /// It is not held, and will not be.
    over: Option<Moment>,
    /// Nobody waits for the answer.
    given_up: bool,
    /// When somebody last stood against it.
    blocked_at: Duration,
}

impl Request {
    fn is_against(&self, other: &Request) -> bool {
        self.asker != other.asker && self.want.is_against(&other.want)
    }

    /// It may have been held, or waited for, in this span.
    fn is_within(&self, span: Span) -> bool {
        self.start < span.end && self.over.is_none_or(|over| over > span.start)
    }

    /// Somebody waits for it.
    fn waits(&self) -> bool {
        self.wait && self.answered.is_none() && !self.given_up
    }
}

/// What an owner believes to hold in a place.
#[derive(Debug, Clone)]
struct Belief {
    asker: Asker,
    file: usize,
    whole: bool,
    /// Exclusive or not.
    cells: [Option<bool>; CELLS],
    /// The newest part of it.
    since: Moment,
    /// In which session of the client it certainly was held.
    session: u64,
    /// Another was given it, or saw that it was free.
    overtaken: Option<Moment>,
}

impl Belief {
    fn is_against(&self, asker: Asker, want: &Want) -> bool {
        let cells = self.cells.iter().take(want.last + 1).skip(want.first);
        self.asker != asker
            && (self.file, self.whole) == (want.file, want.whole)
            && cells.flatten().any(|exclusive| *exclusive || want.exclusive)
    }
}

/// All locks.
#[derive(Debug, Default)]
pub struct Locks {
    requests: Vec<Request>,
    beliefs: Vec<Belief>,
    /// Clients that died, and when their locks are gone.
    dead: Vec<(Duration, usize)>,
    /// When waits were looked at last.
    checked_at: Duration,
}

/// Between two looks at those who wait.
const CHECK_EVERY: Duration = Duration::from_millis(20);

impl Locks {
    /// A lock is asked for.
    pub fn ask(&mut self, id: u64, asker: Asker, want: Want, wait: bool, at: (Moment, Duration)) {
        self.requests.push(Request {
            id,
            asker,
            want,
            wait,
            start: at.0,
            answered: None,
            over: None,
            given_up: false,
            blocked_at: at.1,
        });
        for belief in self.beliefs_in(asker, &want) {
            let converts = want.whole && belief.cells[0].is_some_and(|held| held != want.exclusive);
            for cell in &mut belief.cells[want.first..=want.last] {
                // A lock of the whole file is given up first; another becomes a shared one.
                *cell = cell.filter(|_| !converts).map(|held| held && want.exclusive);
            }
        }
        self.forget_empty();
    }

    fn beliefs_in(&mut self, asker: Asker, want: &Want) -> impl Iterator<Item = &mut Belief> {
        let (file, whole) = (want.file, want.whole);
        self.beliefs.iter_mut().filter(move |belief| {
            belief.asker == asker && (belief.file, belief.whole) == (file, whole)
        })
    }

    fn forget_empty(&mut self) {
        self.beliefs.retain(|belief| belief.cells.iter().any(Option::is_some));
    }

    fn request(&mut self, id: u64) -> Option<&mut Request> {
        self.requests.iter_mut().find(|request| request.id == id)
    }

    /// It is held; the call was made in this session of the client.
    pub fn granted(&mut self, id: u64, end: Moment, session: u64) {
        let Some(request) = self.request(id) else { return };
        request.answered = Some(end);
        let (asker, want) = (request.asker, request.want);
        self.overtake(asker, &want, end, Moment::MAX);
        if self.beliefs_in(asker, &want).next().is_none() {
            let Want { file, whole, .. } = want;
            let cells = [None; CELLS];
            let new = Belief { asker, file, whole, cells, since: end, session, overtaken: None };
            self.beliefs.push(new);
        }
        for belief in self.beliefs_in(asker, &want) {
            belief.cells[want.first..=want.last].fill(Some(want.exclusive));
            (belief.since, belief.session) = (end, session);
        }
    }

    /// Beliefs from before `since` are of the past.
    fn overtake(&mut self, asker: Asker, want: &Want, at: Moment, since: Moment) {
        for belief in &mut self.beliefs {
            if belief.is_against(asker, want) && belief.since < since {
                belief.overtaken.get_or_insert(at);
            }
        }
    }

    /// The call failed in another way than by a conflict.
    pub fn failed(&mut self, id: u64, end: Moment) {
        if let Some(request) = self.request(id) {
            (request.answered, request.over) = (Some(end), Some(end));
        }
    }

    /// It was refused since another holds a lock against it.
    ///
    /// # Errors
    /// Nobody did.
    pub fn refused(&mut self, id: u64, end: Moment) -> Result<(), String> {
        self.failed(id, end);
        let Some(own) = self.requests.iter().find(|request| request.id == id) else {
            return Ok(());
        };
        let span = Span { start: own.start, end };
        let others = self.requests.iter().filter(|other| other.is_within(span));
        match others.filter(|other| other.is_against(own)).count() {
            0 => Err(format!("refused although nobody holds anything against it: {own:?}")),
            _ => Ok(()),
        }
    }

    /// It was refused since it would wait for ever.
    ///
    /// # Errors
    /// Nobody who stands against it waits for its owner.
    pub fn deadlock(&mut self, id: u64, end: Moment) -> Result<(), String> {
        self.failed(id, end);
        let Some(own) = self.requests.iter().find(|request| request.id == id) else {
            return Ok(());
        };
        let span = Span { start: own.start, end };
        let mut seen: Vec<Asker> = Vec::new();
        let mut todo = vec![own];
        while let Some(waiter) = todo.pop() {
            let holders = self.requests.iter().filter(|other| other.is_within(span));
            for holder in holders.filter(|other| other.is_against(waiter)) {
                if holder.asker == own.asker && holder.id != own.id {
                    return Ok(());
                }
                if seen.contains(&holder.asker) {
                    continue;
                }
                seen.push(holder.asker);
                let waits = |request: &&Request| {
                    request.asker == holder.asker && request.wait && request.is_within(span)
                };
                todo.extend(self.requests.iter().filter(waits));
            }
        }
        Err(format!("a deadlock without a circle: {own:?}"))
    }

    /// Nobody waits for the answer any more: what comes of it is given back.
    pub fn give_up(&mut self, id: u64) {
        if let Some(request) = self.request(id) {
            request.given_up = true;
        }
    }

    /// What an owner gave up is given back.
    pub fn settled(&mut self, asker: Asker, now: Moment) {
        let unsettled = |request: &&mut Request| request.asker == asker && request.given_up;
        for request in self.requests.iter_mut().filter(unsettled) {
            request.answered.get_or_insert(now);
            request.over.get_or_insert(now);
        }
    }

    /// Another client waits for a lock in a place.
    pub fn is_waited_for(&self, asker: Asker, place: &Want) -> bool {
        self.requests.iter().any(|request| {
            let there = (request.want.file, request.want.whole) == (place.file, place.whole);
            request.waits() && request.asker.who != asker.who && there
        })
    }

    /// An owner asks to give up these cells.
    pub fn give_back(&mut self, asker: Asker, want: &Want) {
        let (first, last) = (want.first, want.last);
        self.beliefs_in(asker, want).for_each(|belief| belief.cells[first..=last].fill(None));
        self.forget_empty();
    }

    /// An owner asks to give up everything.
    pub fn release(&mut self, asker: Asker) {
        self.beliefs.retain(|belief| belief.asker != asker);
    }

    /// Those that `is` names hold nothing any more in a place, or (`None`) anywhere.
    pub fn released(&mut self, asker: Asker, place: Option<&Want>, end: Moment) {
        let there = |want: &Want| {
            place.is_none_or(|place| (place.file, place.whole) == (want.file, want.whole))
        };
        let mine = |request: &&mut Request| request.asker == asker && there(&request.want);
        for request in self.requests.iter_mut().filter(mine) {
            if request.answered.is_some() {
                request.over.get_or_insert(end);
            }
        }
    }

    /// A client believes no longer to hold anything of a file.
    pub fn lost(&mut self, who: usize, file: usize) {
        self.beliefs.retain(|belief| belief.asker.who != who || belief.file != file);
    }

    /// A client has closed a file.
    pub fn closed(&mut self, who: usize, file: usize, end: Moment) {
        self.lost(who, file);
        let mine = |request: &&mut Request| request.asker.who == who && request.want.file == file;
        for request in self.requests.iter_mut().filter(mine) {
            request.answered.get_or_insert(end);
            request.over.get_or_insert(end);
        }
    }

    /// A client died; its locks are gone at this time.
    pub fn died(&mut self, who: usize, until: Duration) {
        self.beliefs.retain(|belief| belief.asker.who != who);
        let mine = |request: &&mut Request| request.asker.who == who;
        self.requests.iter_mut().filter(mine).for_each(|request| request.given_up = true);
        self.dead.push((until, who));
    }

    /// An owner has something to give up.
    pub fn has_any(&self, asker: Asker) -> bool {
        self.requests
            .iter()
            .any(|request| request.asker == asker && request.over.is_none() && !request.given_up)
    }

    /// Where an owner has something to give up.
    pub fn first_of(&self, asker: Asker) -> Option<Want> {
        let mine = |request: &&Request| request.asker == asker && request.over.is_none();
        self.requests.iter().find(mine).map(|request| request.want)
    }

    /// Somebody looked and found nothing against this lock.
    pub fn seen_free(&mut self, asker: Asker, want: &Want, span: Span) {
        self.overtake(asker, want, span.end, span.start);
    }

    /// Somebody looked and found a lock of this owner key against it.
    ///
    /// # Errors
    /// There can be none.
    pub fn seen_held(
        &self,
        asker: Asker,
        want: &Want,
        key: OwnerKey,
        span: Span,
    ) -> Result<(), String> {
        let fits = |request: &&Request| {
            request.asker != asker
                && request.asker.key == key
                && request.want.is_against(want)
                && request.is_within(span)
        };
        match self.requests.iter().find(fits) {
            Some(_) => Ok(()),
            None => Err(format!("a lock of {key:?} that nobody can hold, against {want:?}")),
        }
    }

    /// A call of a client that began then was answered in this session.
    ///
    /// # Errors
    /// In this session it held a lock that another was given before the call began.
    pub fn session_lives(&self, who: usize, start: Moment, session: u64) -> Result<(), String> {
        let wrong = |belief: &&Belief| {
            belief.asker.who == who
                && belief.session == session
                && belief.overtaken.is_some_and(|at| at < start)
        };
        match self.beliefs.iter().find(wrong) {
            None => Ok(()),
            Some(belief) => Err(format!("its session lives, its lock is another's: {belief:?}")),
        }
    }

    /// A call about an open file, that began then, was done.
    ///
    /// # Errors
    /// The client should have been told that it lost a lock.
    pub fn worked(&self, who: usize, file: usize, start: Moment) -> Result<(), String> {
        let wrong = |belief: &&Belief| {
            let mine = belief.asker.who == who && belief.file == file;
            mine && belief.overtaken.is_some_and(|at| at < start)
        };
        match self.beliefs.iter().find(wrong) {
            None => Ok(()),
            Some(belief) => Err(format!("it was not told that a lock is lost: {belief:?}")),
        }
    }

    /// Looks at those who wait.
    ///
    /// # Errors
    /// One waits for so long although nobody stands against it.
    pub fn check_waits(
        &mut self,
        now: (Moment, Duration),
        patience: Duration,
    ) -> Result<(), String> {
        if now.1.saturating_sub(self.checked_at) < CHECK_EVERY {
            return Ok(());
        }
        self.checked_at = now.1;
        let gone = self.dead.extract_if(.., |(until, _)| *until <= now.1);
        for (_, who) in gone.collect::<Vec<_>>() {
            let mine = |request: &&mut Request| request.asker.who == who;
            for request in self.requests.iter_mut().filter(mine) {
                request.over.get_or_insert(now.0);
            }
        }
        let open = self.requests.iter().filter(|request| request.over.is_none());
        let open: Vec<Request> = open.cloned().collect();
        // What blocks: held, or soon to be decided, or waiting for one that blocks.
        let mut blocking: Vec<&Request> = open.iter().filter(|request| !request.waits()).collect();
        let mut waiting: Vec<&Request> = open.iter().filter(|request| request.waits()).collect();
        loop {
            let is_blocked =
                |waiter: &&mut &Request| blocking.iter().any(|other| other.is_against(waiter));
            let more: Vec<&Request> = waiting.extract_if(.., |w| is_blocked(&w)).collect();
            if more.is_empty() {
                break;
            }
            blocking.extend(more);
        }
        for blocked in blocking {
            if let Some(request) = self.request(blocked.id) {
                request.blocked_at = now.1;
            }
        }
        let late = |waiter: &&&Request| now.1.saturating_sub(waiter.blocked_at) > patience;
        match waiting.iter().find(late) {
            Some(waiter) => {
                Err(format!("nobody holds anything against it, yet it waits: {waiter:?}"))
            }
            None => Ok(()),
        }
    }
}

/// The key of an owner.
pub fn key(kind: LockKind, number: u64) -> OwnerKey {
    OwnerKey { kind, number }
}
