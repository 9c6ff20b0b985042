//! All ways in which data moves, over a network that reorders all it may.

mod support;

use support::{Pair, Plan};

use dafs_message::{ConnOptions, Counters};

/// Runs one combination and returns the counters of both sides.
fn run(seed: u64, change: impl Fn(&mut Plan)) -> [Counters; 2] {
    let mut plan = Plan::new(seed);
    change(&mut plan);
    let mut pair = Pair::new(plan, seed);
    pair.run();
    for side in &pair.sides {
        assert_eq!(side.breaks, 0, "seed {seed}");
        assert_eq!(side.node.stats().requests_in_service, 0);
    }
    [0, 1].map(|i| pair.sides[i].node.stats().counters)
}

fn both(plan: &mut Plan, change: impl Fn(&mut ConnOptions)) {
    plan.options.iter_mut().for_each(change);
}

#[test]
fn tagged_with_byte_credits() {
    for seed in 0..10 {
        for side in run(seed, |_| {}) {
            assert!(side.data_pushed > 0 && side.data_inline > 0 && side.data_none > 0);
            assert!(side.replies_tagged > 0 && side.discarded_bytes > 0);
            assert_eq!(side.data_read + side.data_pieces + side.replies_inline, 0);
            assert_eq!(side.replies_written + side.replies_pieces, 0);
        }
    }
}

#[test]
fn tagged_with_few_byte_credits() {
    let mut stalls = 0;
    for seed in 0..10 {
        for side in run(seed, |plan| both(plan, |o| o.push_bytes = 20_000)) {
            assert!(side.data_pushed > 0 && side.data_granted > 0);
            stalls += side.push_stalls;
        }
    }
    assert!(stalls > 0);
}

#[test]
fn tagged_without_byte_credits() {
    for seed in 0..10 {
        for side in run(seed, |plan| both(plan, |o| o.push_bytes = 0)) {
            assert!(side.data_pushed == 0 && side.data_granted > 0);
        }
    }
}

#[test]
fn read_and_write() {
    for seed in 0..10 {
        for side in run(seed, |plan| plan.sim.attr.tag_match = false) {
            assert!(side.data_read > 0 && side.replies_written > 0 && side.replies_inline > 0);
            assert_eq!(side.data_pushed + side.data_granted + side.replies_tagged, 0);
        }
    }
}

#[test]
fn pieces_and_write() {
    for seed in 0..10 {
        let sides = run(seed, |plan| {
            plan.sim.attr.tag_match = false;
            both(plan, |o| o.use_rdma_read = false);
        });
        for side in sides {
            assert!(side.data_pieces > 0 && side.replies_written > 0 && side.data_read == 0);
        }
    }
}

#[test]
fn pieces_only() {
    for (seed, area) in (0..9).zip([None, Some(4096), Some(0)].into_iter().cycle()) {
        let sides = run(seed, |plan| {
            plan.sim.attr.tag_match = false;
            plan.sim.attr.rdma_read = false;
            plan.sim.attr.write_before_send = false;
            plan.node.data_area_bytes = area;
        });
        for side in sides {
            assert!(side.data_pieces > 0 && side.replies_pieces > 0);
            assert_eq!(side.data_read + side.replies_written, 0);
        }
    }
}

#[test]
fn who_connects_without_tags_decides_for_both() {
    for seed in 0..6 {
        let sides = run(seed, |plan| plan.options[1].use_tagged = false);
        for side in sides {
            assert!(side.data_read > 0 && side.data_pushed + side.replies_tagged == 0);
        }
    }
}

#[test]
fn refused_registrations_fall_back_to_copies() {
    for seed in 0..6 {
        let sides = run(seed, |plan| {
            plan.sim.attr.tag_match = false;
            plan.sim.faults.refuse_registration_per_million = 500_000;
        });
        assert!(sides.iter().all(|s| s.data_read > 0 && s.data_pieces > 0), "seed {seed}");
    }
}

#[test]
fn full_queues_only_delay() {
    for seed in 0..12 {
        let sides = run(seed, |plan| {
            plan.sim.attr.tag_match = seed % 2 == 0;
            plan.sim.attr.rdma_read = seed % 4 < 2;
            plan.sim.attr.send_queue_depth = if seed % 3 == 0 { 2 } else { 256 };
            plan.sim.faults.queue_full_per_million = 300_000;
        });
        assert!(sides.iter().any(|s| s.queue_full > 0));
    }
}

#[test]
fn large_and_odd() {
    for seed in 0..4 {
        run(seed, |plan| {
            plan.requests = [6, 6];
            plan.data_max = 4 << 20;
            plan.sim.attr.tag_match = seed % 2 == 0;
            plan.sim.attr.rdma_read = seed / 2 == 0;
            plan.sim.attr.rdma_write = seed / 2 == 0;
        });
    }
}

#[test]
fn few_requests_in_service() {
    for seed in 0..6 {
        run(seed, |plan| {
            plan.node.requests_in_service_max = 2;
            both(plan, |o| o.push_bytes = [0, 30_000, 1 << 20][seed as usize % 3]);
        });
    }
}

#[test]
fn one_credit_is_enough() {
    for seed in 0..6 {
        run(seed, |plan| {
            both(plan, |o| (o.credits, o.requests_max) = (1, 1));
            plan.sim.attr.tag_match = seed % 2 == 0;
        });
    }
}
