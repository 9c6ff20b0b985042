//! What is logged is told, to whom it belongs, as long as it may be.

use std::sync::atomic::{AtomicBool, AtomicU64};

use dafs_protocol::{ClientId, FileHandle, Status};
use dafs_store::FileId;

use super::*;

const LEASE: Duration = Duration::from_secs(30);
const MACHINE: WriteVerifier = WriteVerifier([1; 16]);
const SLOT: SlotId = SlotId(1);

/// A file and a clock, over servers.
struct World {
    store: MemoryLog,
    seconds: Arc<AtomicU64>,
}

impl World {
    fn new() -> World {
        let seconds = Arc::new(AtomicU64::new(1000));
        let clock = seconds.clone();
        let now = move || Duration::from_secs(clock.load(Ordering::Relaxed));
        World { store: MemoryLog::new(Arc::new(now)), seconds }
    }

    fn server(&self, places: usize) -> IntentLog {
        IntentLog::load(Box::new(self.store.clone()), MACHINE, 2, places, LEASE, &|_| None)
    }

    fn pass(&self, time: Duration) {
        self.seconds.fetch_add(time.as_secs(), Ordering::Relaxed);
    }
}

fn client(number: u8) -> Client {
    Client { id: ClientId([number; 16]), uid: 0 }
}

fn session(number: u8) -> SessionId {
    SessionId([number; 16])
}

/// Session and client of the same number.
fn enter(intent_log: &IntentLog, number: u8) -> SessionLog {
    intent_log.enter(session(number), client(number), usize::MAX).expect("there is room")
}

fn ask(intent_log: &IntentLog, number: u8, sequence: u32) -> RequestOutcome {
    intent_log.request_outcome(client(number), session(number), SLOT, sequence)
}

fn done(value: u64) -> RequestOutcome {
    RequestOutcome::Done { operations: 2, status: Err(Status::Exist), value, created: false }
}

#[test]
fn a_later_server_tells_what_was_noted() {
    let world = World::new();
    let first = world.server(4);
    let intent_log = enter(&first, 1);
    intent_log.begun(SLOT, 7, None);
    intent_log.done(SLOT, 7, done(5));
    intent_log.begun(SlotId(0), 3, None);
    // It is not told of a session that lives.
    assert_eq!(ask(&first, 1, 7), RequestOutcome::Unknown);
    drop((intent_log, first));
    for restart in 0..3 {
        let later = world.server(4);
        assert_eq!(ask(&later, 1, 7), done(5), "restart {restart}");
        assert_eq!(ask(&later, 1, 8), RequestOutcome::NotBegun);
        assert_eq!(ask(&later, 1, 6), RequestOutcome::Unknown, "its reply was taken, nobody asks");
        let of =
            |slot, sequence| later.request_outcome(client(1), session(1), SlotId(slot), sequence);
        assert_eq!(
            (of(0, 3), of(0, 4), of(2, 1)),
            (RequestOutcome::Begun, RequestOutcome::NotBegun, RequestOutcome::Unknown)
        );
    }
}

#[test]
fn a_slot_without_notes_began_nothing() {
    let world = World::new();
    drop(enter(&world.server(4), 1));
    assert_eq!(ask(&world.server(4), 1, 1), RequestOutcome::NotBegun);
}

#[test]
fn sequences_go_round() {
    let world = World::new();
    enter(&world.server(4), 1).begun(SLOT, u32::MAX, None);
    let later = world.server(4);
    assert_eq!(ask(&later, 1, u32::MAX), RequestOutcome::Begun);
    assert_eq!(ask(&later, 1, 0), RequestOutcome::NotBegun);
    assert_eq!(ask(&later, 1, u32::MAX - 1), RequestOutcome::Unknown);
}

#[test]
fn strangers_learn_nothing() {
    let world = World::new();
    enter(&world.server(4), 1).begun(SLOT, 1, None);
    let later = world.server(4);
    assert_eq!(later.request_outcome(client(2), session(1), SLOT, 1), RequestOutcome::Unknown);
    let other_user = Client { uid: 5, ..client(1) };
    assert_eq!(later.request_outcome(other_user, session(1), SLOT, 1), RequestOutcome::Unknown);
    assert_eq!(later.request_outcome(client(1), session(2), SLOT, 1), RequestOutcome::Unknown);
    assert_eq!(ask(&later, 1, 1), RequestOutcome::Begun);
}

#[test]
fn an_orderly_end_is_forgotten_and_others_are_kept_for_a_time() {
    let world = World::new();
    let server = world.server(4);
    let (destroyed, expired) = (enter(&server, 1), enter(&server, 2));
    destroyed.begun(SLOT, 1, None);
    expired.begun(SLOT, 1, None);
    destroyed.forget();
    server.keep(&expired);
    assert_eq!(
        (ask(&server, 1, 1), ask(&server, 2, 1)),
        (RequestOutcome::Unknown, RequestOutcome::Begun)
    );
    world.pass(LEASE * (KEPT_LEASES - 1));
    let later = world.server(4);
    assert_eq!(
        (ask(&later, 1, 1), ask(&later, 2, 1)),
        (RequestOutcome::Unknown, RequestOutcome::Begun)
    );
    world.pass(LEASE * 2);
    drop(enter(&later, 3));
    assert_eq!(ask(&later, 2, 1), RequestOutcome::Unknown);
    assert_eq!(ask(&world.server(4), 2, 1), RequestOutcome::Unknown);
}

#[test]
fn time_counts_from_the_end_of_the_first_server() {
    let world = World::new();
    enter(&world.server(4), 1).begun(SLOT, 1, None);
    for _ in 0..4 {
        assert_eq!(ask(&world.server(4), 1, 1), RequestOutcome::Begun);
        world.pass(LEASE * KEPT_LEASES / 4);
    }
    world.pass(LEASE);
    assert_eq!(ask(&world.server(4), 1, 1), RequestOutcome::Unknown);
}

#[test]
fn another_run_of_the_machine_drops_all() {
    let world = World::new();
    enter(&world.server(4), 1).begun(SLOT, 1, None);
    let machine = WriteVerifier([2; 16]);
    let other = IntentLog::load(Box::new(world.store.clone()), machine, 2, 4, LEASE, &|_| None);
    assert_eq!(ask(&other, 1, 1), RequestOutcome::Unknown);
    assert_eq!(ask(&world.server(4), 1, 1), RequestOutcome::Unknown, "they are gone");
}

#[test]
fn another_number_of_slots_drops_all() {
    let world = World::new();
    enter(&world.server(4), 1).begun(SLOT, 1, None);
    let wider = IntentLog::load(Box::new(world.store.clone()), MACHINE, 3, 4, LEASE, &|_| None);
    assert_eq!(ask(&wider, 1, 1), RequestOutcome::Unknown);
}

#[test]
fn damage_is_not_taken_for_a_note_or_for_none() {
    let world = World::new();
    let server = world.server(4);
    enter(&server, 1).begun(SLOT, 1, None);
    let record = RECORD_BYTES as u64;
    for at in 0..record {
        let later = world.server(4);
        let slot = 3 * SLOT_BYTES as u64 + at;
        let mut byte = [0];
        world.store.read(slot, &mut byte).expect("read");
        world.store.write(slot, &[!byte[0]]).expect("write");
        assert_eq!(
            (ask(&later, 1, 1), ask(&later, 1, 2)),
            (RequestOutcome::Unknown, RequestOutcome::Unknown)
        );
        world.store.write(slot, &byte).expect("write");
        assert_eq!(ask(&later, 1, 1), RequestOutcome::Begun);
    }
    world.store.write(SLOT_BYTES as u64 + 20, &[0xee]).expect("write");
    assert_eq!(ask(&world.server(4), 1, 1), RequestOutcome::Unknown, "whose it is was damaged");
}

#[test]
fn places_are_bounded_and_the_oldest_go_first() {
    let world = World::new();
    let server = world.server(3);
    for number in 1..=3 {
        let intent_log = enter(&server, number);
        intent_log.begun(SLOT, 1, None);
        server.keep(&intent_log);
        world.pass(Duration::from_secs(1));
    }
    let later = world.server(3);
    let living: Vec<_> = (4..=6).map(|number| enter(&later, number)).collect();
    assert!((1..=3).all(|number| ask(&later, number, 1) == RequestOutcome::Unknown));
    assert!(later.enter(session(7), client(7), 9).is_none(), "all places have sessions that live");
    drop(living);
    // What others left in a place is nobody's.
    let heir = enter(&later, 8);
    later.keep(&heir);
    assert_eq!(ask(&later, 8, 1), RequestOutcome::NotBegun);
    let most = (1 + 3 * 3) * SLOT_BYTES;
    assert!(world.store.bytes().expect("length") <= most as u64);
}

#[test]
fn a_place_is_not_given_away_while_its_session_may_still_write() {
    let world = World::new();
    let server = world.server(1);
    let intent_log = enter(&server, 1);
    server.keep(&intent_log);
    assert!(server.enter(session(2), client(2), 9).is_none());
    drop(intent_log);
    assert!(server.enter(session(2), client(2), 9).is_some());
}

/// Without room from some time on.
struct Full {
    store: MemoryLog,
    is_full: Arc<AtomicBool>,
}

impl LogStore for Full {
    fn write(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        match self.is_full.load(Ordering::Relaxed) {
            true => Err(std::io::ErrorKind::StorageFull.into()),
            false => self.store.write(offset, bytes),
        }
    }
    fn read(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        self.store.read(offset, into)
    }
    fn bytes(&self) -> std::io::Result<u64> {
        self.store.bytes()
    }
    fn clear(&self) -> std::io::Result<()> {
        self.store.clear()
    }
    fn now(&self) -> Duration {
        self.store.now()
    }
}

#[test]
fn what_could_not_be_noted_is_unknown() {
    let world = World::new();
    let is_full = Arc::new(AtomicBool::new(false));
    let store = Full { store: world.store.clone(), is_full: is_full.clone() };
    let server = IntentLog::load(Box::new(store), MACHINE, 2, 4, LEASE, &|_| None);
    let intent_log = enter(&server, 1);
    intent_log.begun(SLOT, 1, None);
    is_full.store(true, Ordering::Relaxed);
    // It will be done, and no note says so.
    intent_log.begun(SLOT, 2, None);
    assert!(server.enter(session(2), client(2), 9).is_none());
    is_full.store(false, Ordering::Relaxed);
    intent_log.begun(SLOT, 3, None);
    server.keep(&intent_log);
    assert_eq!(ask(&server, 1, 3), RequestOutcome::Unknown);
    assert_eq!(ask(&world.server(4), 1, 2), RequestOutcome::Unknown);
}

/// Of object 9: this name is to be removed.
fn removal() -> Option<(usize, Intent)> {
    let from = Name { dir: FileHandle::default(), name: b"name".to_vec() };
    Some((3, Intent::Remove { object: FileId { device: 0, inode: 9 }, from }))
}

#[test]
fn what_was_begun_is_looked_for_before_anybody_is_served() {
    let looked = |there: Option<u64>, sequence| {
        let world = World::new();
        let intent_log = enter(&world.server(4), 1);
        intent_log.begun(SLOT, 1, removal());
        let there = there.map(|inode| FileId { device: 0, inode });
        let look = move |name: &Name| (name.name == b"name").then_some(there);
        let store = Box::new(world.store.clone());
        drop(IntentLog::load(store, MACHINE, 2, 4, LEASE, &look));
        // Whoever comes later is told the same, whatever is there then.
        ask(&world.server(4), 1, sequence)
    };
    let done = RequestOutcome::Done { operations: 3, status: Ok(()), value: 0, created: false };
    assert_eq!(looked(None, 1), done);
    assert_eq!(looked(Some(9), 1), RequestOutcome::NotBegun);
    assert_eq!(looked(Some(8), 1), RequestOutcome::Begun);
    assert_eq!(looked(None, 2), RequestOutcome::NotBegun);
}

#[test]
fn an_intent_is_of_its_request() {
    let nothing = |_: &Name| Some(None);
    let world = World::new();
    let first = world.server(4);
    let intent_log = enter(&first, 1);
    intent_log.begun(SLOT, 1, removal());
    // The next request there says nothing of names.
    intent_log.begun(SLOT, 2, None);
    let other = enter(&first, 2);
    other.begun(SLOT, 1, removal());
    other.done(SLOT, 1, done(5));
    drop((intent_log, other, first));
    let later = IntentLog::load(Box::new(world.store.clone()), MACHINE, 2, 4, LEASE, &nothing);
    assert_eq!((ask(&later, 1, 2), ask(&later, 2, 1)), (RequestOutcome::Begun, done(5)));
}

#[test]
fn a_user_has_a_part_of_the_places() {
    let world = World::new();
    let server = world.server(6);
    let of = |number: u8, uid: u32| Client { uid, ..client(number) };
    let ended = |number: u8, uid: u32, most: usize| {
        let intent_log =
            server.enter(session(number), of(number, uid), most).expect("there is room");
        intent_log.begun(SLOT, 1, None);
        server.keep(&intent_log);
    };
    let knows = |number: u8, uid: u32| {
        server.request_outcome(of(number, uid), session(number), SLOT, 1) == RequestOutcome::Begun
    };
    ended(1, 8, 2);
    (2..9).for_each(|number| ended(number, 7, 2));
    assert!(knows(1, 8) && knows(7, 7) && knows(8, 7), "others, and the last of its own");
    assert!(!knows(6, 7));
    // Where all is taken, those who have the most lose their oldest.
    (10..13).for_each(|number| ended(number, 9, 6));
    ended(13, 10, 6);
    assert!(knows(1, 8) && knows(7, 7) && !knows(10, 9) && knows(11, 9));
    let alive = |number| server.enter(session(number), of(number, 11), 1);
    let first = alive(20);
    assert!(first.is_some() && alive(21).is_none(), "what lives is not forgotten");
}

/// Without room for more than there is, from some time on.
struct NoMore(Full);

impl LogStore for NoMore {
    fn write(&self, offset: u64, bytes: &[u8]) -> std::io::Result<()> {
        let is_more = offset + bytes.len() as u64 > self.0.store.bytes()?;
        match is_more && self.0.is_full.load(Ordering::Relaxed) {
            true => Err(std::io::ErrorKind::StorageFull.into()),
            false => self.0.store.write(offset, bytes),
        }
    }
    fn read(&self, offset: u64, into: &mut [u8]) -> std::io::Result<()> {
        self.0.read(offset, into)
    }
    fn bytes(&self) -> std::io::Result<u64> {
        self.0.bytes()
    }
    fn clear(&self) -> std::io::Result<()> {
        self.0.clear()
    }
    fn now(&self) -> Duration {
        self.0.now()
    }
}

#[test]
fn notes_go_on_when_there_is_room_again() {
    let world = World::new();
    let is_full = Arc::new(AtomicBool::new(false));
    let store = NoMore(Full { store: world.store.clone(), is_full: is_full.clone() });
    let server = IntentLog::load(Box::new(store), MACHINE, 2, 4, LEASE, &|_| None);
    let at = |slot, number, sequence| {
        world.server(4).request_outcome(client(number), session(number), slot, sequence)
    };
    let later = |number, sequence| at(SlotId(0), number, sequence);
    let (old, new) = (enter(&server, 1), enter(&server, 2));
    old.begun(SlotId(0), 1, None);
    new.begun(SlotId(0), 1, None);
    is_full.store(true, Ordering::Relaxed);
    new.begun(SLOT, 1, None);
    // Of this one nothing is told: what was begun there would be taken for not begun.
    new.begun(SlotId(0), 2, None);
    assert_eq!((later(2, 1), later(2, 2)), (RequestOutcome::Unknown, RequestOutcome::Unknown));
    // Others have what they need.
    old.begun(SlotId(0), 2, None);
    assert_eq!((later(1, 2), later(1, 3)), (RequestOutcome::Begun, RequestOutcome::NotBegun));
    assert!(server.enter(session(3), client(3), 9).is_none(), "no room for one more");
    is_full.store(false, Ordering::Relaxed);
    new.done(SlotId(0), 2, done(7));
    assert_eq!(later(2, 2), done(7));
    assert_eq!((at(SLOT, 2, 1), at(SLOT, 2, 2)), (RequestOutcome::Begun, RequestOutcome::NotBegun));
    assert!(server.enter(session(3), client(3), 9).is_some());
}

/// A small file is made under a temporary name and renamed over another: what the rename answers of
/// that one is not what was made.
#[test]
fn a_fate_tells_what_was_made_and_not_what_was_replaced() {
    let attr = |inode| dafs_protocol::Attr { inode, ..crate::exports::Exports::virtual_attr() };
    let dir = FileHandle::default();
    let flags = dafs_protocol::OpenFlags {
        read: false,
        write: true,
        create: dafs_protocol::CreateMode::Unchecked,
        truncate: true,
        append: false,
        no_follow: false,
        unlinked: false,
        again: false,
    };
    let open = Operation::Open { dir, path: b"new", flags, mode: 0, cache: Default::default() };
    let rename = Operation::Rename {
        from_dir: dir,
        from: b"new",
        to_dir: dir,
        to: b"old",
        no_replace: false,
        exchange: false,
        whiteout: false,
    };
    let opened = Outcome::Opened {
        handle: dir,
        state: dafs_protocol::StateId(1),
        attr: attr(23),
        created: true,
    };
    let request_outcome = request_outcome_of(
        &[open, rename],
        &[Ok(opened), Ok(Outcome::Attributes { attr: attr(41) })],
    );
    let made = RequestOutcome::Done { operations: 2, status: Ok(()), value: 23, created: true };
    assert_eq!(request_outcome, made);
}
