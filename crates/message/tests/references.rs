//! Replies that refer to memory which the requester may read: it reads what was there when the reply was
//! given, and all is let go, whatever breaks.

mod support;

use support::{Pair, Plan, QUOTA_BYTES};

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
