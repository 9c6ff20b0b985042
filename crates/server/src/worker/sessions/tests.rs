//! Who reads the cache by himself sees that his session has ended, whatever ended it.

use std::sync::atomic::{AtomicU64, Ordering as Order};

use dafs_fabric::mem::{Life, LifeWord};
use dafs_fabric::sim::{SimConfig, SimNet};
use dafs_fabric::{Address, Arena, Domain, Words};
use dafs_message::{ConnOptions, Node, NodeConfig};
use dafs_protocol::{LIFE_SERVER, LIFE_SESSIONS, SlotId, Timestamp, WriteVerifier};
use dafs_store::memory::MemoryStore;
use dafs_unifier::{DomainId, Policy, Unifier};

use super::*;
use crate::clients::MemoryRecords;
use crate::config::Optimistic;
use crate::exports::{Export, Exports};
use crate::optimistic::{Shown, ShownCaches};
use crate::paths::DataPath;
use crate::shared::{Shared, SharedOptions};
use crate::worker::TIMER;

const ARENA_BYTES: usize = 16 << 20;
const DOMAIN: DomainId = DomainId::FIRST;

fn cache() -> (Arc<Unifier>, Shown) {
    let arena = Arena::new(ARENA_BYTES).expect("memory");
    let entries = Arena::new(Unifier::entries_bytes(ARENA_BYTES)).expect("memory");
    let life = Life::begin(&entries, LIFE_SERVER, LIFE_SESSIONS).expect("begins");
    let config = dafs_unifier::Config {
        entries: Some(entries),
        ..dafs_unifier::Config::new(ARENA_BYTES, Arc::new(Timestamp::default))
    };
    let unifier = Unifier::new(arena.clone(), config, WriteVerifier([7; 16]));
    let shown = Shown::new(&arena, &unifier, (Some(life), 1)).expect("entries");
    (unifier, shown)
}

fn shared() -> Arc<Shared> {
    let (unifier, shown) = cache();
    let export = Export {
        name: String::new(),
        store: Arc::new(MemoryStore::new()),
        read_only: false,
        policy: Policy::Lru,
        data_path: DataPath::Unifier,
        path: "memory".into(),
        domain: DOMAIN,
        share_cache: false,
        optimistic: Optimistic::Trusted,
    };
    let next = AtomicU64::new(1);
    Shared::new(SharedOptions {
        exports: Exports::new(vec![export]),
        unifier: Arc::new(unifier.into()),
        shown: ShownCaches::new(vec![Some(shown)]),
        scopes: None,
        page_cache: None,
        arena_bytes: ARENA_BYTES,
        limits: Limits::default(),
        key: None,
        own: Identity::root(),
        intent_log: None,
        end_mark: None,
        numbers: None,
        recorder: None,
        records: Box::<MemoryRecords>::default(),
        entropy: Box::new(move |bytes| {
            let number = next.fetch_add(1, Order::Relaxed).to_le_bytes();
            bytes.iter_mut().zip(number.into_iter().cycle()).for_each(|(to, from)| *to = from);
        }),
        process_stats: Box::new(|| (0, 0)),
        addresses: Vec::new(),
        same_host: None,
        stopwatch: Box::new(|| Duration::ZERO),
        thread_time: Box::new(|| Duration::ZERO),
    })
}

/// Workers whose time a test decides.
struct World {
    shared: Arc<Shared>,
    workers: Vec<Worker>,
    /// What clients map.
    words: Words,
    /// A connection that nobody hears.
    connection: ConnId,
    now: Duration,
}

impl World {
    fn new() -> World {
        let shared = shared();
        let net = SimNet::new(SimConfig::new(1));
        let node = |number| {
            let domain = Domain::open(&net.provider(number)).expect("a device");
            Node::new(domain, NodeConfig::default()).expect("a node")
        };
        let workers = (0..2u16).map(|number| Worker::new(number, node(1), shared.clone()));
        let workers = workers.collect();
        let nowhere = Address::parse("sim://9").expect("an address");
        let connection =
            node(2).connect(&nowhere, &[], ConnOptions::default()).expect("begins to connect");
        let words = Words::new(&shared.shown(DOMAIN).expect("shown").entries);
        World { shared, workers, words, connection, now: Duration::ZERO }
    }

    fn pass(&mut self, later: Duration) {
        self.now += later;
        for worker in &mut self.workers {
            worker.progress(self.now);
        }
    }

    /// A session of a client, by a worker.
    fn session(&mut self, worker: usize, client: u8, attempt: u64) -> Rc<Session> {
        let attr = grants(&self.shared.limits, &self.shared.budgets.of_user(0));
        let (who, client) = (Identity::root(), (ClientId([client; 16]), attempt));
        let made = self.workers[worker].create(self.connection, who, client, attr, String::new());
        made.map(|(session, _)| session).map_err(|(_, text)| text).expect("a session")
    }

    fn told(&self, session: &Session) -> Option<LifeWord> {
        session.life_word(DOMAIN, &self.shared.shown(DOMAIN)?.life)
    }

    fn word(&self, session: &Session) -> LifeWord {
        self.told(session).expect("a word")
    }

    fn lives(&self, word: LifeWord) -> bool {
        word.is_in(&self.words)
    }

    /// The session has ended: for those who were told, and for good.
    fn assert_ended(&self, session: &Session, told: LifeWord) {
        assert!(!self.lives(told));
        assert_eq!(self.told(session), None);
    }
}

#[test]
fn a_session_has_a_word_from_its_first_use_on() {
    let mut world = World::new();
    let (one, other) = (world.session(0, 1, 0), world.session(1, 2, 0));
    let used = |world: &World| {
        LIFE_SESSIONS.filter(|at| world.words.load(*at, Order::Relaxed) != 0).count()
    };
    assert_eq!(used(&world), 0, "nobody was told");
    let word = world.word(&one);
    assert_eq!((world.word(&one), used(&world)), (word, 1), "it keeps it");
    assert!(world.lives(word) && world.word(&other) != word);
}

#[test]
fn whoever_destroys_a_session_ends_its_word() {
    for end in [End::Destroyed, End::LeaseExpired, End::Replaced, End::ShutDown] {
        let mut world = World::new();
        let (session, other) = (world.session(0, 1, 0), world.session(0, 2, 0));
        let (told, others) = (world.word(&session), world.word(&other));
        world.workers[0].destroy(session.id, end);
        world.assert_ended(&session, told);
        assert!(world.lives(others), "{end:?}");
    }
}

#[test]
fn a_session_that_is_replaced_has_ended_before_the_next_one_is_served() {
    for worker in [0, 1] {
        let mut world = World::new();
        let first = world.session(0, 1, 0);
        let told = world.word(&first);
        let next = world.session(worker, 1, 1);
        // By another worker it waits for the end of the first.
        assert_eq!(next.life.is_held_back(), worker == 1);
        assert!(next.life.is_held_back() || !world.lives(told));
        world.pass(Duration::ZERO);
        world.pass(Duration::ZERO);
        assert!(!next.life.is_held_back());
        world.assert_ended(&first, told);
        let word = world.word(&next);
        assert!(world.lives(word) && word != told);
    }
}

/// Also one that cannot be destroyed yet, as it has something under way.
#[test]
fn what_a_session_was_told_ends_with_its_lease() {
    for is_at_work in [false, true] {
        let mut world = World::new();
        let session = world.session(0, 1, 0);
        let told = world.word(&session);
        if is_at_work {
            session.slots.borrow_mut().begin(SlotId(0), 1, 0, 0);
        }
        let lease = Duration::from_secs(world.shared.limits.lease_seconds.into());
        while world.now < lease {
            assert!(world.lives(told), "{:?}", world.now);
            world.pass(TIMER);
        }
        (0..4).for_each(|_| world.pass(TIMER));
        assert!(!world.lives(told), "at work: {is_at_work}");
        let is_there = world.workers[0].session(session.id).is_some();
        assert_eq!(is_there, is_at_work);
        if is_at_work {
            session.slots.borrow_mut().abandon(SlotId(0));
            (0..2).for_each(|_| world.pass(TIMER));
        }
        world.assert_ended(&session, told);
    }
}

#[test]
fn a_worker_that_shuts_down_ends_the_words_of_its_sessions() {
    let mut world = World::new();
    let session = world.session(0, 1, 0);
    let told = world.word(&session);
    world.workers[0].shut_down();
    world.pass(Duration::ZERO);
    world.assert_ended(&session, told);
}
