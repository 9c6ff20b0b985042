//! Connections that break at any step, and all other faults: nothing is lost, told twice, or
//! held after quiescence; and no honest peer is accused.

mod support;

use support::{Pair, Plan};

fn run(seed: u64, change: impl Fn(&mut Plan)) -> (usize, dafs_fabric::sim::FaultCounts) {
    let mut plan = Plan::new(seed);
    change(&mut plan);
    let mut pair = Pair::new(plan, seed);
    pair.run();
    assert!(!pair.sides.iter().any(|side| side.node.stats().counters.peer_faults > 0));
    // The last connections end too, and leave nothing behind.
    for side in &mut pair.sides {
        if let Some(conn) = side.conn {
            side.node.disconnect(conn, "the end");
        }
    }
    let mut idle = 0;
    while idle < 50 {
        let stepped = pair.net.step();
        for side in &mut pair.sides {
            side.node.poll();
            while side.node.next_event().is_some() {}
        }
        idle = if stepped { 0 } else { idle + 1 };
    }
    for side in &pair.sides {
        let stats = side.node.stats();
        assert_eq!((stats.connections, stats.receives_promised), (0, 0), "seed {seed}");
        assert_eq!((stats.requests_in_service, stats.requests_waiting), (0, 0), "seed {seed}");
        assert_eq!(stats.counters.peer_faults, 0);
    }
    (pair.sides.iter().map(|side| side.breaks).sum(), pair.net.fault_counts())
}

/// `count` seeds, or as many as `DAFS_SEEDS` says.
fn seeds(first: u64, count: u64) -> std::ops::Range<u64> {
    let told = std::env::var("DAFS_SEEDS").ok().and_then(|text| text.parse().ok());
    first..first + told.unwrap_or(count)
}

/// One of the ways in which data moves.
fn vary(plan: &mut Plan, seed: u64) {
    plan.sim.attr.tag_match = !seed.is_multiple_of(3);
    plan.sim.attr.rdma_read = seed.is_multiple_of(2);
    plan.sim.attr.rdma_write = seed % 4 < 2;
    plan.sim.attr.recoverable_access_fault = seed % 8 < 4;
    plan.sim.attr.local_registration = seed % 7 < 3;
    plan.sim.attr.registration_pins = seed % 7 < 2;
    for options in &mut plan.options {
        options.push_bytes = [0, 30_000, 1 << 20][seed as usize % 5 % 3];
    }
}

fn faulty(plan: &mut Plan, seed: u64) {
    vary(plan, seed);
    let faults = &mut plan.sim.faults;
    faults.break_per_million = 3_000;
    faults.queue_full_per_million = 50_000;
    faults.late_write_per_million = 500_000;
    faults.refuse_registration_per_million = 100_000;
    faults.revoke_per_million = 10_000;
    faults.access_fault_per_million = 10_000;
    faults.refuse_connection_per_million = 100_000;
}

#[test]
fn all_faults_at_once() {
    let (mut breaks, mut total) = (0, std::collections::BTreeMap::new());
    for seed in seeds(0, 80) {
        let (n, counts) = run(seed, |plan| faulty(plan, seed));
        breaks += n;
        counts.iter().for_each(|(kind, n)| *total.entry(kind).or_insert(0) += n);
    }
    assert!(breaks > 150, "{breaks}");
    for kind in ["breaks", "queue_full", "late_writes", "refused_registrations", "revoked_keys"] {
        assert!(total[kind] > 0, "no {kind}: {total:?}");
    }
}

#[test]
fn breaks_with_many_abandoned_requests() {
    for seed in seeds(1000, 25) {
        run(seed, |plan| {
            faulty(plan, seed);
            plan.abandon_percent = 50;
        });
    }
}

#[test]
fn a_slow_peer_and_few_places() {
    // 2220: a reply behind a refused write.
    for seed in seeds(2000, 15).chain([2220]) {
        run(seed, |plan| {
            faulty(plan, seed);
            plan.sim.faults.slow_node = Some(1 + (seed % 2) as u32);
            plan.node.requests_in_service_max = 3;
            plan.sim.attr.send_queue_depth = 4;
        });
    }
}
