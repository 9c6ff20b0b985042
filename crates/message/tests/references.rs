//! Replies that refer to memory which the requester may read: it reads what was there when the reply was
//! given, and all is let go, whatever breaks.

mod support;

use dafs_fabric::{Arena, Readers};
use support::cache::QUOTA_BYTES;
use support::{Pair, Plan};

fn plan(seed: u64) -> Plan {
    let mut plan = Plan::new(seed);
    (plan.sim.attr.tag_match, plan.sim.attr.shared_memory) = (false, true);
    (plan.sim.attr.rdma_read, plan.sim.attr.rdma_write) = (true, true);
    plan.sim.attr.local_registration = false;
    plan.sim.attr.recoverable_access_fault = true;
    plan.data_max = 120_000;
    (plan.cached, plan.requests) = (16, [60, 60]);
    plan
}

/// Turns until nothing happens any more.
fn settle(pair: &mut Pair) {
    let mut idle = 0;
    while idle < 50 {
        let mut happened = pair.net.step();
        for side in &mut pair.sides {
            happened |= side.node.poll() > 0;
            while side.node.next_event().is_some() {}
            side.node.arm();
        }
        idle = if happened { 0 } else { idle + 1 };
    }
}

#[test]
fn data_is_read_where_it_is_and_let_go() {
    for seed in 0..12 {
        let mut pair = Pair::new(plan(seed), seed);
        pair.run();
        settle(&mut pair);
        for side in &pair.sides {
            assert_eq!(side.breaks, 0);
            let counters = side.node.stats().counters;
            assert!(counters.replies_referred > 3, "seed {seed}: {counters:?}");
            assert!(counters.replies_written > 0, "seed {seed}: {counters:?}");
            assert_eq!(counters.replies_referred, counters.references_released, "seed {seed}");
            let cache = side.cache.as_ref().expect("a cache");
            assert_eq!(cache.quota.left(), QUOTA_BYTES, "seed {seed}");
        }
    }
}

#[test]
fn who_does_not_ask_is_sent_data() {
    for seed in 0..4 {
        let mut plan = plan(seed);
        plan.options[seed as usize % 2].use_references = false;
        let mut pair = Pair::new(plan, seed);
        pair.run();
        for side in &pair.sides {
            assert_eq!(side.node.stats().counters.replies_referred, 0, "seed {seed}");
        }
    }
}

#[test]
fn nothing_is_held_after_connections_broke() {
    let (mut breaks, mut referred, mut released) = (0, 0, 0);
    for seed in 100..130 {
        let mut plan = plan(seed);
        let faults = &mut plan.sim.faults;
        faults.break_per_million = 3_000;
        faults.queue_full_per_million = 50_000;
        faults.refuse_connection_per_million = 100_000;
        faults.access_fault_per_million = if seed % 4 == 0 { 10_000 } else { 0 };
        let mut pair = Pair::new(plan, seed);
        pair.run();
        for side in &mut pair.sides {
            if let Some(conn) = side.conn {
                side.node.disconnect(conn, "the end");
            }
        }
        settle(&mut pair);
        for side in &pair.sides {
            let stats = side.node.stats();
            assert_eq!((stats.connections, stats.counters.peer_faults), (0, 0), "seed {seed}");
            let cache = side.cache.as_ref().expect("a cache");
            assert_eq!(cache.quota.left(), QUOTA_BYTES, "seed {seed}");
            breaks += side.breaks;
            referred += stats.counters.replies_referred;
            released += stats.counters.references_released;
        }
    }
    assert!(breaks > 50 && released > 200, "{breaks} breaks, {released} released");
    assert!(referred > released, "none was under way when a connection broke: {referred}");
}

/// By which the peer reads it: the address of what it may read, and no other memory's.
#[test]
fn a_peer_may_be_told_where_it_reads_by_itself() {
    for shared in [true, false] {
        let mut plan = plan(5);
        plan.sim.attr.shared_memory = shared;
        let mut pair = Pair::new(plan, 5);
        pair.run();
        for side in &pair.sides {
            let whole = side.cache.as_ref().expect("a cache").whole();
            let conn = side.conn.expect("connected");
            let remote = side.node.readable_by(conn, &whole);
            assert_eq!(remote.is_some(), shared, "{remote:?}");
            let other = Arena::for_readers(4096, 4096, Readers::Own).expect("memory").span(0, 4096);
            assert_eq!(side.node.readable_by(conn, &other), None);
            let Some(remote) = remote else { continue };
            assert_eq!((remote.addr, remote.len as usize), (whole.addr(), whole.len()));
            let part = side.node.readable_by(conn, &whole.part(8, 5)).expect("a part of it");
            assert_eq!((part.rkey, part.addr, part.len), (remote.rkey, whole.addr() + 8, 5));
        }
        let [one, _] = &mut pair.sides;
        let (conn, whole) = (one.conn.expect("connected"), one.cache.as_ref().expect("it").whole());
        one.node.disconnect(conn, "the end");
        settle(&mut pair);
        assert_eq!(pair.sides[0].node.readable_by(conn, &whole), None);
    }
}

/// Turns until nothing happens any more, and what comes is handled.
fn go_on(pair: &mut Pair) {
    let mut idle = 0;
    while idle < 50 {
        let mut happened = pair.net.step();
        for side in &mut pair.sides {
            happened |= side.node.poll() > 0;
            side.handle_events();
            side.node.arm();
        }
        idle = if happened { 0 } else { idle + 1 };
    }
}

fn lending(seed: u64) -> Plan {
    Plan { lend_percent: 60, ..plan(seed) }
}

/// All was returned: the caches are whole again, and turned to garbage what nobody reads.
fn assert_all_is_back(pair: &Pair, seed: u64) {
    for side in &pair.sides {
        let cache = side.cache.as_ref().expect("a cache");
        let left = (cache.quota.left(), cache.quota.left_to_lend());
        assert_eq!(left, (QUOTA_BYTES, QUOTA_BYTES), "seed {seed}");
        assert_eq!(cache.free(), 16, "seed {seed}");
        assert!(!side.node.has_lent(), "seed {seed}");
    }
}

#[test]
fn what_is_lent_stays_until_it_is_returned() {
    let mut lent = 0;
    for seed in 200..208 {
        let mut pair = Pair::new(lending(seed), seed);
        pair.run();
        go_on(&mut pair);
        for side in &mut pair.sides {
            side.look_at_loans();
            lent += side.lent;
            side.loans.clear();
        }
        go_on(&mut pair);
        assert_all_is_back(&pair, seed);
        for side in &pair.sides {
            let counters = side.node.stats().counters;
            assert_eq!(counters.replies_referred, counters.references_released, "seed {seed}");
        }
    }
    assert!(lent > 100, "{lent} lent");
}

/// And holds up no connection.
#[test]
fn what_is_lent_outlives_connections() {
    let (mut breaks, mut lent, mut held) = (0, 0, 0);
    for seed in 300..316 {
        let mut plan = lending(seed);
        let faults = &mut plan.sim.faults;
        faults.break_per_million = 3_000;
        faults.queue_full_per_million = 50_000;
        faults.access_fault_per_million = if seed % 4 == 0 { 10_000 } else { 0 };
        let mut pair = Pair::new(plan, seed);
        pair.run();
        for side in &mut pair.sides {
            if let Some(conn) = side.conn {
                side.node.disconnect(conn, "the end");
            }
        }
        go_on(&mut pair);
        for side in &mut pair.sides {
            assert_eq!(side.node.stats().connections, 0, "seed {seed}");
            side.look_at_loans();
            (breaks, lent, held) =
                (breaks + side.breaks, lent + side.lent, held + side.loans.len());
            side.loans.clear();
        }
        go_on(&mut pair);
        assert_all_is_back(&pair, seed);
    }
    assert!(breaks > 50 && lent > 200 && held > 20, "{breaks} breaks, {lent} lent, {held} held");
}
