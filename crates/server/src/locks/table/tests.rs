//! The lock manager against a model with one state for each byte, and its rules one by one.

mod wide;

use dafs_protocol::{ClientId, OwnerKey, SlotId};
use dafs_store::FileId;

use super::order::WAITER_STEPS;
use super::*;

const BYTES: u64 = 6;
const LIMITS: LockLimits =
    LockLimits { locks_per_session: 200, waits_per_session: 100, waits_per_file: 100, files: 20 };

fn table() -> LockTable {
    let mut table = LockTable::new(LIMITS, Grace::default());
    (0..4).for_each(|number| {
        table.begin_session(number, (0, SessionId([number as u8; 16])), (0, 99))
    });
    table
}

fn file(inode: u64) -> LockFile {
    LockFile { export: 0, id: FileId { device: 1, inode } }
}

fn owner(session: SessionNumber, kind: LockKind, number: u64) -> Owner {
    Owner { session, key: OwnerKey { kind, number } }
}

fn posix(session: SessionNumber) -> Owner {
    owner(session, LockKind::Posix, 1)
}

fn want(inode: u64, owner: Owner, first: u64, last: u64, exclusive: bool) -> Wanted {
    let range = LockRange::new(first, last).expect("in order");
    let place = Place::of(file(inode), owner.key.kind);
    let (state, origin) = (StateId(owner.session + 1), (SlotId(0), 1));
    Wanted { place, owner, range, exclusive, pid: 7, state, origin }
}

fn ticket(answer: Result<Locked, Status>) -> LockTicket {
    match answer {
        Ok(Locked::Waiting(ticket)) => ticket,
        other => panic!("it does not wait: {other:?}"),
    }
}

fn ends(table: &mut LockTable) -> Vec<(LockTicket, Result<(), Status>)> {
    table.take_ended().into_iter().map(|ended| (ended.ticket, ended.result)).collect()
}

const GRANTED: Result<Locked, Status> = Ok(Locked::Granted);

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
        (self.0 >> 33) % end
    }
}

type Row = [Option<bool>; BYTES as usize];

/// What the table must do, without any cleverness.
#[derive(Default)]
struct Model {
    held: BTreeMap<(Place, Owner), Row>,
    waiting: Vec<(LockTicket, Wanted)>,
    /// Opens through which owners used a place.
    used: BTreeSet<(Place, Owner, StateId)>,
}

fn bytes(range: &LockRange) -> std::ops::RangeInclusive<usize> {
    range.first() as usize..=range.last().min(BYTES - 1) as usize
}

impl Model {
    fn holders(&self, wanted: &Wanted) -> Vec<Owner> {
        let against = |(place, owner): &(Place, Owner), row: &Row| {
            let mut part = row[bytes(&wanted.range)].iter().flatten();
            *place == wanted.place
                && *owner != wanted.owner
                && part.any(|held| *held || wanted.exclusive)
        };
        let all = self.held.iter().filter(|(key, row)| against(key, row));
        all.map(|((_, owner), _)| *owner).collect()
    }

    fn earlier(&self, ticket: LockTicket, wanted: &Wanted) -> Vec<(LockTicket, Owner)> {
        let before = self.waiting.iter().take_while(|(other, _)| *other != ticket);
        let before = before.filter(|(_, o)| o.place == wanted.place && o.is_against(wanted));
        before.map(|(other, o)| (*other, o.owner)).collect()
    }

    fn waited_for(&self, from: LockTicket) -> BTreeSet<Owner> {
        let (mut owners, mut todo) = (BTreeSet::new(), vec![from]);
        while let Some(ticket) = todo.pop() {
            let Some((_, wanted)) = self.waiting.iter().find(|(t, _)| *t == ticket) else {
                continue;
            };
            let before = self.earlier(ticket, wanted).into_iter().map(|(_, owner)| owner);
            for owner in self.holders(wanted).into_iter().chain(before) {
                if owners.insert(owner) {
                    let own = self.waiting.iter().filter(|(_, w)| w.owner == owner);
                    todo.extend(own.map(|(t, _)| *t));
                }
            }
        }
        owners
    }

    fn is_deadlock(&self, wanted: &Wanted) -> bool {
        let (mut seen, mut todo) = (BTreeSet::new(), self.holders(wanted));
        while let Some(owner) = todo.pop() {
            if owner == wanted.owner {
                return true;
            }
            if owner.is_posix() && seen.insert(owner) {
                let waits = self.waiting.iter().filter(|(_, w)| w.owner == owner);
                todo.extend(waits.flat_map(|(_, w)| self.holders(w)));
            }
        }
        false
    }

    fn set(&mut self, wanted: &Wanted) {
        assert_eq!(self.holders(wanted), [], "two owners of one byte");
        let row = self.held.entry((wanted.place, wanted.owner)).or_default();
        row[bytes(&wanted.range)].fill(Some(wanted.exclusive));
        self.used.insert((wanted.place, wanted.owner, wanted.state));
    }

    fn clear(&mut self, place: Place, owner: Owner, range: &LockRange) {
        if let Some(row) = self.held.get_mut(&(place, owner)) {
            row[bytes(range)].fill(None);
        }
        self.tidy();
    }

    fn tidy(&mut self) {
        self.held.retain(|_, row| row.iter().any(Option::is_some));
        let (held, waiting) = (&self.held, &self.waiting);
        self.used.retain(|(place, owner, _)| {
            let waits = |(_, w): &(LockTicket, Wanted)| w.owner == *owner && w.place == *place;
            held.contains_key(&(*place, *owner)) || waiting.iter().any(waits)
        });
    }

    /// Ends owners in places; their waits must be told so, unless the session is gone.
    fn drop_owners(&mut self, ends: impl Fn(Place, Owner) -> bool) -> BTreeSet<LockTicket> {
        self.held.retain(|(place, owner), _| !ends(*place, *owner));
        self.used.retain(|(place, owner, _)| !ends(*place, *owner));
        let gone = self.waiting.iter().filter(|(_, w)| ends(w.place, w.owner));
        let gone: BTreeSet<_> = gone.map(|(ticket, _)| *ticket).collect();
        gone
    }

    /// Takes over what the table said has ended; `failed`: tickets that ended without success.
    fn take(&mut self, table: &mut LockTable, mut failed: BTreeSet<LockTicket>) {
        for (ticket, result) in ends(table) {
            let at = self.waiting.iter().position(|(t, _)| *t == ticket).expect("ends once");
            if failed.remove(&ticket) {
                assert!(result.is_err());
                self.waiting.remove(at);
                continue;
            }
            assert_eq!(result, Ok(()));
            let wanted = self.waiting.remove(at).1;
            self.set(&wanted);
        }
        assert!(failed.is_empty(), "not told of their end: {failed:?}");
        self.tidy();
    }

    fn check(&self, table: &LockTable) {
        let mut held: BTreeMap<(Place, Owner), Row> = BTreeMap::new();
        for (place, locks) in &table.places {
            for lock in locks.held.iter() {
                let row = held.entry((*place, lock.owner)).or_default();
                row[bytes(&lock.range)].fill(Some(lock.exclusive));
            }
        }
        assert_eq!(held, self.held);
        let waiting: Vec<_> = table.waiters.keys().copied().collect();
        let mut expected: Vec<_> = self.waiting.iter().map(|(ticket, _)| *ticket).collect();
        expected.sort();
        assert_eq!(waiting, expected);
        for (ticket, wanted) in &self.waiting {
            // Who holds nothing and waits once is waited for by those behind it only, who pass it.
            let blocks = self.held.keys().any(|(_, owner)| *owner == wanted.owner)
                || self.waiting.iter().filter(|(_, w)| w.owner == wanted.owner).count() > 1;
            let passes =
                |v: &(LockTicket, Owner)| blocks && self.waited_for(v.0).contains(&wanted.owner);
            let stays = !self.holders(wanted).is_empty()
                || !self.earlier(*ticket, wanted).iter().all(passes);
            assert!(stays, "{wanted:?} could go on");
        }
        for (number, session) in &table.sessions {
            let is_waiting = |w: &&Waiter| w.wanted.owner.session == *number;
            assert_eq!(session.waits, table.waiters.values().filter(is_waiting).count());
        }
    }
}

struct Game {
    table: LockTable,
    model: Model,
    random: Random,
    kinds: Vec<LockKind>,
    single: bool,
}

impl Game {
    fn new(seed: u64, kinds: &[LockKind], single: bool) -> Game {
        let (table, model) = (table(), Model::default());
        Game { table, model, random: Random(seed), kinds: kinds.to_vec(), single }
    }

    fn owner(&mut self) -> Owner {
        let kind = self.kinds[self.random.below(self.kinds.len() as u64) as usize];
        owner(self.random.below(4), kind, self.random.below(2))
    }

    fn wanted(&mut self) -> Wanted {
        let owner = self.owner();
        let (a, b) = (self.random.below(BYTES), self.random.below(BYTES));
        let (first, last) = match owner.key.kind {
            LockKind::Whole => (0, u64::MAX),
            _ => (a.min(b), a.max(b)),
        };
        let mut wanted = want(self.random.below(3), owner, first, last, self.random.below(2) == 0);
        wanted.state = StateId(self.random.below(2) + 1);
        wanted
    }

    fn waits(&self, owner: Owner) -> bool {
        self.model.waiting.iter().any(|(_, w)| w.owner == owner)
    }

    fn lock(&mut self) {
        let wanted = self.wanted();
        if self.single && self.waits(wanted.owner) {
            return;
        }
        let wait = self.random.below(3) > 0;
        if wanted.place.whole {
            let before = self.model.held.get(&(wanted.place, wanted.owner));
            if before.is_some_and(|row| row[0] != Some(wanted.exclusive)) {
                self.model.clear(wanted.place, wanted.owner, &wanted.range);
            }
        }
        let free = self.model.holders(&wanted).is_empty();
        let deadlock = wanted.owner.is_posix() && self.model.is_deadlock(&wanted);
        match self.table.lock(wanted, wait) {
            Ok(Locked::Granted) => self.model.set(&wanted),
            Ok(Locked::Waiting(ticket)) => {
                assert!(wait && (free || !deadlock), "a deadlock was not seen");
                self.model.waiting.push((ticket, wanted));
                self.model.used.insert((wanted.place, wanted.owner, wanted.state));
            }
            Err(Status::Again) => assert!(!wait && !free),
            Err(Status::Deadlock) => assert!(wait && deadlock && !free, "no deadlock"),
            Err(other) => panic!("{other:?}"),
        }
        self.model.take(&mut self.table, BTreeSet::new());
    }

    fn step(&mut self) {
        match self.random.below(24) {
            0..14 => self.lock(),
            14..18 => {
                let wanted = self.wanted();
                self.table.unlock(wanted.place, wanted.owner, wanted.range).expect("room");
                self.model.clear(wanted.place, wanted.owner, &wanted.range);
                self.model.take(&mut self.table, BTreeSet::new());
            }
            18 => self.cancel(),
            19..21 => {
                let owner = self.owner();
                self.table.release(owner);
                let gone = self.model.drop_owners(|_, other| other == owner);
                self.model.take(&mut self.table, gone);
            }
            21..23 => self.close(),
            _ => {
                let number = self.random.below(4);
                self.table.end_session(number);
                let gone = self.model.drop_owners(|_, owner| owner.session == number);
                self.model.waiting.retain(|(ticket, _)| !gone.contains(ticket));
                self.table.begin_session(number, (0, SessionId([number as u8; 16])), (0, 99));
                self.model.take(&mut self.table, BTreeSet::new());
            }
        }
        self.model.check(&self.table);
        self.confirm();
    }

    fn cancel(&mut self) {
        let ticket = LockTicket(self.random.below(self.table.next_ticket) + 1);
        let session = self.random.below(4);
        let at =
            self.model.waiting.iter().position(|(t, w)| *t == ticket && w.owner.session == session);
        assert_eq!(self.table.cancel(session, ticket).is_ok(), at.is_some());
        at.map(|at| self.model.waiting.remove(at));
        self.model.take(&mut self.table, BTreeSet::new());
    }

    fn close(&mut self) {
        let (session, state) = (self.random.below(4), StateId(self.random.below(2) + 1));
        let (inode, last) = (self.random.below(3), self.random.below(2) == 0);
        self.table.close(session, file(inode), state, last);
        let used = self.model.used.clone();
        let gone = self.model.drop_owners(|place, owner| {
            let through = |s: &StateId| used.contains(&(place, owner, *s));
            let others = [StateId(1), StateId(2)].into_iter().filter(|s| *s != state);
            let only = through(&state) && !others.clone().any(|s| through(&s));
            place.file == file(inode)
                && owner.session == session
                && (last || (!owner.is_posix() && only))
        });
        self.model.used.retain(|(place, owner, s)| {
            owner.is_posix() || place.file != file(inode) || owner.session != session || *s != state
        });
        self.model.take(&mut self.table, gone);
    }

    /// Sessions tell that they know.
    fn confirm(&mut self) {
        let all = self.table.sessions.iter();
        let all = all.flat_map(|(n, s)| s.unreported.keys().map(|ticket| (*n, *ticket)));
        for (session, ticket) in all.collect::<Vec<_>>() {
            self.table.confirmed(session, ticket, true);
        }
    }
}

#[test]
fn it_does_what_single_bytes_do() {
    let all = [LockKind::Posix, LockKind::Ofd, LockKind::Whole];
    for seed in 0..60 {
        let mut game = Game::new(seed, &all, seed % 2 == 0);
        (0..700).for_each(|_| game.step());
    }
}

#[test]
fn posix_owners_with_one_wait_each_never_stand_still() {
    for seed in 0..150 {
        let mut game = Game::new(seed, &[LockKind::Posix], true);
        (0..120).for_each(|_| game.step());
        while !game.model.waiting.is_empty() {
            let before = game.model.waiting.len();
            let holders: BTreeSet<Owner> =
                game.model.held.keys().map(|(_, owner)| *owner).collect();
            for owner in holders {
                if !game.waits(owner) {
                    game.table.release(owner);
                    let gone = game.model.drop_owners(|_, other| other == owner);
                    game.model.take(&mut game.table, gone);
                    game.model.check(&game.table);
                }
            }
            assert!(game.model.waiting.len() < before, "all stand still");
        }
    }
}

#[test]
fn nothing_is_left_when_all_sessions_have_ended() {
    let all = [LockKind::Posix, LockKind::Ofd, LockKind::Whole];
    for seed in 0..40 {
        let mut game = Game::new(seed, &all, false);
        (0..200).for_each(|_| game.step());
        (0..4).for_each(|number| game.table.end_session(number));
        let table = &game.table;
        assert!(table.places.is_empty() && table.waiters.is_empty() && table.sessions.is_empty());
        assert!(table.of_owner.is_empty() && table.holds_in.is_empty());
    }
}

#[test]
fn waiters_come_in_their_order_and_readers_together() {
    let mut table = table();
    assert_eq!(table.lock(want(1, posix(0), 0, 9, true), true), GRANTED);
    let reader = ticket(table.lock(want(1, posix(1), 0, 9, false), true));
    let writer = ticket(table.lock(want(1, posix(2), 0, 9, true), true));
    let late = ticket(table.lock(want(1, posix(3), 0, 9, false), true));
    let all = LockRange::ALL;
    table.unlock(want(1, posix(0), 0, 9, true).place, posix(0), all).expect("held");
    assert_eq!(ends(&mut table), [(reader, Ok(()))], "the second reader stands behind the writer");
    table.unlock(want(1, posix(1), 0, 9, true).place, posix(1), all).expect("held");
    assert_eq!(ends(&mut table), [(writer, Ok(()))]);
    table.end_session(2);
    assert_eq!(ends(&mut table), [(late, Ok(()))]);
}

#[test]
fn a_holder_passes_those_who_wait_for_it() {
    let mut table = table();
    assert_eq!(table.lock(want(1, posix(0), 0, 9, false), true), GRANTED);
    let writer = ticket(table.lock(want(1, posix(1), 0, 9, true), true));
    assert_eq!(table.lock(want(1, posix(0), 5, 20, true), true), GRANTED);
    // Over another: 2 stands behind the writer only; 0 then waits for what 2 holds.
    assert_eq!(table.lock(want(2, posix(2), 0, 0, true), true), GRANTED);
    assert_eq!(table.lock(want(1, posix(0), 0, 20, false), true), GRANTED);
    let reader = ticket(table.lock(want(1, posix(2), 0, 9, false), true));
    let round = ticket(table.lock(want(2, posix(0), 0, 0, true), true));
    assert_eq!(ends(&mut table), [(reader, Ok(()))], "it would wait for ever");
    table.end_session(2);
    assert_eq!(ends(&mut table), [(round, Ok(()))]);
    table.end_session(0);
    assert_eq!(ends(&mut table), [(writer, Ok(()))]);
}

#[test]
fn deadlocks_are_found_for_posix_owners_only() {
    for kind in [LockKind::Posix, LockKind::Ofd, LockKind::Whole] {
        let mut table = table();
        for number in 0..3 {
            let own = want(number, owner(number, kind, 1), 0, u64::MAX, true);
            assert_eq!(table.lock(own, true), GRANTED);
        }
        for number in 0..2 {
            ticket(table.lock(want(number + 1, owner(number, kind, 1), 0, u64::MAX, true), true));
        }
        let last = table.lock(want(0, owner(2, kind, 1), 0, u64::MAX, true), true);
        match kind {
            LockKind::Posix => assert_eq!(last, Err(Status::Deadlock)),
            _ => assert!(matches!(last, Ok(Locked::Waiting(_)))),
        }
        assert_eq!(table.stats().deadlocks, u64::from(kind == LockKind::Posix));
    }
}

#[test]
fn a_grant_that_the_session_does_not_know_is_free_again() {
    let mut table = table();
    assert_eq!(table.lock(want(1, posix(0), 0, 9, true), true), GRANTED);
    let first = ticket(table.lock(want(1, posix(1), 0, 9, true), true));
    let second = ticket(table.lock(want(1, posix(2), 0, 9, true), true));
    table.end_session(0);
    assert_eq!(ends(&mut table), [(first, Ok(()))]);
    table.confirmed(2, first, false);
    assert_eq!(ends(&mut table), [], "it is not its ticket");
    table.confirmed(1, first, false);
    assert_eq!(ends(&mut table), [(second, Ok(()))]);
}

#[test]
fn limits_hold() {
    let mut table = LockTable::new(
        LockLimits { locks_per_session: 10, waits_per_session: 3, waits_per_file: 4, files: 5 },
        Grace::default(),
    );
    (0..4).for_each(|number| table.begin_session(number, (0, SessionId::default()), (0, 99)));
    let held =
        (0..20).filter(|n| table.lock(want(1, posix(0), n * 2, n * 2, true), false) == GRANTED);
    let held = held.count();
    assert!((5..=10).contains(&held), "{held}");
    assert_eq!(table.lock(want(1, posix(0), 0, 0, true), false), Err(Status::Resource));
    assert_eq!(table.lock(want(2, posix(1), 0, 100, true), false), GRANTED);
    let place = want(2, posix(1), 0, 0, true).place;
    let cut = |table: &mut LockTable, n: u64| {
        table.unlock(place, posix(1), LockRange::new(n * 2 + 1, n * 2 + 1).expect("range"))
    };
    assert!((0..40).any(|n| cut(&mut table, n) == Err(Status::Resource)), "pieces without end");
    let waits = (0..9).filter(|_| table.lock(want(1, posix(2), 0, 0, true), true).is_ok()).count();
    assert_eq!(waits, 3);
    let waits = (0..9).filter(|_| table.lock(want(1, posix(3), 0, 0, true), true).is_ok()).count();
    assert_eq!(waits, 1, "of one file");
    table.end_session(0);
    // Three waits of 2 and one of 3 are over, and nobody confirmed it.
    assert_eq!(ends(&mut table).len(), 3);
    assert_eq!(table.lock(want(2, posix(2), 50, 50, true), true), Err(Status::Resource));
    let files = (10..30).filter(|n| table.lock(want(*n, posix(3), 0, 0, true), false).is_ok());
    assert_eq!(files.count(), 3);
}

#[test]
fn the_grace_period_is_for_those_who_had_locks() {
    let clients = [1, 2].map(|n| Client { id: ClientId([n; 16]), uid: 5 });
    let stranger = Client { uid: 6, ..clients[0] };
    let recorded = BTreeSet::from(clients);
    let mut table = LockTable::new(LIMITS, Grace::after(Some(&recorded)));
    (0..4).for_each(|number| {
        table.begin_session(number, (0, SessionId([number as u8; 16])), (0, 99))
    });
    assert_eq!(table.reclaim(want(1, posix(3), 0, 0, true), &stranger), Err(Status::NoGrace));
    assert_eq!(table.reclaim(want(1, posix(0), 0, 9, true), &clients[0]), GRANTED);
    assert_eq!(table.reclaim(want(1, posix(1), 5, 9, true), &clients[1]), Err(Status::Again));
    let tried = ticket(table.lock(want(1, posix(2), 0, 0, true), false));
    let waits = ticket(table.lock(want(1, posix(3), 0, 0, true), true));
    let free = ticket(table.lock(want(2, posix(3), 0, 0, true), false));
    assert_eq!(
        table.test(want(2, posix(2), 0, 0, true).place, posix(2), LockRange::ALL, true),
        Err(Status::Grace)
    );
    assert!(!table.grace.complete(&clients[0]));
    assert_eq!(table.reclaim(want(3, posix(0), 0, 9, true), &clients[0]), Err(Status::NoGrace));
    assert_eq!(ends(&mut table), []);
    assert!(table.grace.complete(&clients[1]));
    table.end_grace();
    assert_eq!(ends(&mut table), [(tried, Err(Status::Again)), (free, Ok(()))]);
    assert_eq!(table.reclaim(want(3, posix(1), 0, 9, true), &clients[1]), Err(Status::NoGrace));
    table.end_session(0);
    assert_eq!(ends(&mut table), [(waits, Ok(()))]);
}

#[test]
fn a_server_that_ends_gives_nothing_away() {
    let mut table = table();
    assert_eq!(table.lock(want(1, posix(0), 0, 9, true), true), GRANTED);
    ticket(table.lock(want(1, posix(1), 0, 9, true), true));
    table.stop();
    table.end_session(0);
    ticket(table.lock(want(2, posix(1), 0, 9, true), false));
    assert_eq!(ends(&mut table), []);
}

#[test]
fn a_user_has_locks_of_a_part_of_the_files_only() {
    let mut table = LockTable::new(LIMITS, Grace::default());
    for (number, user) in [(0, (7, 3)), (1, (7, 3)), (2, (8, 3)), (3, (0, 20))] {
        table.begin_session(number, (0, SessionId::default()), user);
    }
    let lock = |table: &mut LockTable, file, session| {
        table.lock(want(file, posix(session), 0, 0, false), true)
    };
    let first: Vec<_> = (0..5).map(|file| lock(&mut table, file, file % 2).is_ok()).collect();
    assert_eq!(first, [true, true, true, false, false], "its sessions together");
    assert_eq!(lock(&mut table, 1, 1), GRANTED, "it has this one");
    assert_eq!(lock(&mut table, 9, 2), GRANTED, "another user");
    table.release(posix(0));
    assert_eq!(lock(&mut table, 4, 1), GRANTED);
    assert!((10..30).filter(|file| lock(&mut table, *file, 3).is_ok()).count() > 3);
    (0..4).for_each(|number| table.end_session(number));
    assert!(table.places_of.is_empty());
}
