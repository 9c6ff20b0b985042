//! Policies against what their papers say of them, and against the optimum.

use std::collections::{BTreeSet, HashMap};

use super::disk::Rng;
use crate::policy::{Key, Lru, MultiQueue, Origin, Policy, Replacement};

/// A cache of `capacity` units that are all alike.
struct Cache<P> {
    policy: P,
    units: HashMap<u64, u32>,
    keys: Vec<Option<u64>>,
    hits: usize,
}

impl<P: Replacement> Cache<P> {
    fn new(policy: P, capacity: usize) -> Cache<P> {
        Cache { policy, units: HashMap::new(), keys: vec![None; capacity], hits: 0 }
    }

    fn access(&mut self, key: u64) -> bool {
        self.come(key, Origin::ByRead)
    }

    fn come(&mut self, key: u64, origin: Origin) -> bool {
        if let Some(&unit) = self.units.get(&key) {
            if origin == Origin::ByWrite {
                // Fresh pages take the place of the old ones.
                self.policy.remove(unit);
                self.policy.insert(unit, 1, Key { file: 1, block: key }, origin);
                return false;
            }
            self.policy.touch(unit, 1);
            self.hits += 1;
            return true;
        }
        let unit = match self.keys.iter().position(Option::is_none) {
            Some(free) if self.units.len() < self.keys.len() => free as u32,
            _ => {
                let victim = self.policy.victim().expect("it is full");
                self.policy.touch(victim, 0);
                self.policy.remove(victim);
                let old = self.keys[victim as usize].expect("a victim holds something");
                self.units.remove(&old);
                victim
            }
        };
        self.keys[unit as usize] = Some(key);
        self.units.insert(key, unit);
        self.policy.insert(unit, 1, Key { file: 1, block: key }, origin);
        false
    }

    fn hits(mut self, keys: &[u64]) -> usize {
        keys.iter().for_each(|key| {
            self.access(*key);
        });
        self.hits
    }
}

fn lru(capacity: usize, keys: &[u64]) -> usize {
    Cache::new(Lru::new(capacity), capacity).hits(keys)
}

fn multi_queue(capacity: usize, keys: &[u64]) -> usize {
    Cache::new(MultiQueue::new(capacity), capacity).hits(keys)
}

/// What is used again latest goes first (MIN: Belady 1966): no policy has more hits.
fn optimum(capacity: usize, keys: &[u64]) -> usize {
    let mut next_use = vec![usize::MAX; keys.len()];
    let mut seen: HashMap<u64, usize> = HashMap::new();
    for (at, key) in keys.iter().enumerate().rev() {
        next_use[at] = seen.insert(*key, at).unwrap_or(usize::MAX);
    }
    let mut held: HashMap<u64, usize> = HashMap::new();
    let mut order: BTreeSet<(usize, u64)> = BTreeSet::new();
    let mut hits = 0;
    for (at, key) in keys.iter().enumerate() {
        if let Some(expected) = held.remove(key) {
            order.remove(&(expected, *key));
            hits += 1;
        } else if held.len() == capacity {
            let (_, latest) = order.pop_last().expect("it is full");
            held.remove(&latest);
        }
        held.insert(*key, next_use[at]);
        order.insert((next_use[at], *key));
    }
    hits
}

/// Few keys often, many seldom: key k with a chance about as 1/k.
fn skewed(rng: &mut Rng, keys: u64, count: usize) -> Vec<u64> {
    let draw = |rng: &mut Rng| {
        let bits = 64 - (keys - 1).leading_zeros();
        let top = 1u64 << rng.below(u64::from(bits));
        (top + rng.below(top)) % keys
    };
    (0..count).map(|_| draw(rng)).collect()
}

#[test]
fn a_loop_larger_than_the_cache_gives_lru_nothing() {
    let keys: Vec<u64> = (0..20 * 101).map(|at| at % 101).collect();
    assert_eq!(lru(100, &keys), 0);
    assert_eq!(lru(101, &keys), 19 * 101);
    assert_eq!(optimum(101, &keys), 19 * 101);
    // All are used as often as the others: multi-queue cannot tell them apart either.
    assert_eq!(multi_queue(100, &keys), 0);
    assert!(optimum(100, &keys) > keys.len() * 9 / 10);
}

#[test]
fn lru_is_a_stack() {
    let mut rng = Rng::new(3);
    let keys = skewed(&mut rng, 500, 5000);
    // The distance of a use is how many other keys were used since the last of the same key.
    let mut stack: Vec<u64> = Vec::new();
    let mut distances = vec![0; 501];
    for key in &keys {
        if let Some(at) = stack.iter().position(|known| known == key) {
            distances[at] += 1;
            stack.remove(at);
        }
        stack.insert(0, *key);
    }
    for capacity in [1, 2, 10, 77, 200, 499] {
        let within: usize = distances[..capacity].iter().sum();
        assert_eq!(lru(capacity, &keys), within, "{capacity} units");
    }
    let mut small = Cache::new(Lru::new(50), 50);
    let mut large = Cache::new(Lru::new(51), 51);
    for key in &keys {
        small.access(*key);
        large.access(*key);
        assert!(small.units.keys().all(|held| large.units.contains_key(held)));
    }
}

#[test]
fn no_policy_is_above_the_optimum() {
    for seed in 0..20 {
        let mut rng = Rng::new(seed);
        let universe = 50 + rng.below(400);
        let keys = skewed(&mut rng, universe, 3000);
        let capacity = 1 + rng.below(universe) as usize;
        let most = optimum(capacity, &keys);
        for policy in Policy::ALL {
            let hits = match policy {
                Policy::Lru => lru(capacity, &keys),
                Policy::MultiQueue => multi_queue(capacity, &keys),
            };
            assert!(hits <= most, "seed {seed}: {} has {hits} of {most}", policy.name());
            assert!(hits > 0);
        }
    }
}

/// The published result: what a first cache lets through has its uses far apart, and of those
/// the ones that come often are worth keeping.
#[test]
fn below_another_cache_multi_queue_is_above_lru() {
    for seed in 0..5 {
        let mut rng = Rng::new(seed);
        let all = skewed(&mut rng, 4096, 200_000);
        let mut first = Cache::new(Lru::new(256), 256);
        let misses: Vec<u64> = all.into_iter().filter(|key| !first.access(*key)).collect();
        for capacity in [256, 512, 1024] {
            let (own, other) = (multi_queue(capacity, &misses), lru(capacity, &misses));
            assert!(own > other, "seed {seed}, {capacity} units: mq {own}, lru {other}");
        }
    }
}

#[test]
fn a_scan_leaves_what_is_used_often() {
    let mut rng = Rng::new(9);
    let hot = 400;
    let mut keys: Vec<u64> = (0..8 * hot).map(|_| rng.below(hot)).collect();
    let warm = keys.len();
    for scanned in 0..10_000 {
        keys.push(1 << 20 | scanned);
        keys.push(rng.below(hot));
    }
    let of_hot = |mut hits: Box<dyn FnMut(u64) -> bool>| {
        let mut count = 0;
        for (at, key) in keys.iter().enumerate() {
            count += usize::from(hits(*key) && at >= warm);
        }
        count as f64 / 10_000.0
    };
    let mut queues = Cache::new(MultiQueue::new(500), 500);
    let mut list = Cache::new(Lru::new(500), 500);
    let queues = of_hot(Box::new(move |key| queues.access(key)));
    let list = of_hot(Box::new(move |key| list.access(key)));
    assert!(queues > 0.99, "{queues}");
    assert!(list < 0.8, "{list}");
}

#[test]
fn what_is_gone_is_remembered() {
    let mut policy = MultiQueue::new(2);
    let key = |block| Key { file: 1, block };
    assert_eq!(policy.insert(0, 1, key(5), Origin::ByRead), 1);
    policy.touch(0, 6);
    policy.remove(0);
    assert_eq!(policy.insert(1, 1, key(5), Origin::ByRead), 8);
    assert_eq!(policy.insert(0, 1, key(6), Origin::ByRead), 1);
    assert_eq!(policy.victim(), Some(0), "used less");
    policy.touch(0, 20);
    assert_eq!(policy.victim(), Some(1), "used less now");
}

/// What was used often and is not any more goes in the end.
#[test]
fn what_is_not_used_any_more_ages() {
    let mut cache = Cache::new(MultiQueue::new(16), 16);
    for _ in 0..1000 {
        cache.access(1);
    }
    let mut rounds = 0;
    for key in 2.. {
        cache.access(key);
        if !cache.units.contains_key(&1) {
            break;
        }
        rounds += 1;
        assert!(rounds < 10_000, "it stays for ever");
    }
    assert!(rounds > 16, "it stayed longer than others");
}

/// What is read once in a while stays beside a stream of writes.
#[test]
fn writes_displace_at_most_writes_where_they_have_their_part() {
    let mut cache = Cache::new(MultiQueue::new(64), 64);
    let mut hits = 0;
    for round in 0..100 {
        for key in 0..200 {
            cache.come(1000 + round * 200 + key, Origin::ByWrite);
        }
        hits += (0..20).filter(|key| cache.access(*key)).count();
    }
    assert!(hits >= 20 * 98, "{hits} of 2000");
}

/// What was read once and is written over and over since, through a cache that it does not fit
/// into, is worth less than what is read for the first time.
#[test]
fn reads_of_what_is_only_written_since_are_forgotten() {
    // Units of 16 slots: more are remembered than there are.
    let mut cache = Cache::new(MultiQueue::new(16 * 64), 64);
    let file = 1000..1250;
    for _ in 0..4 {
        file.clone().for_each(|key| {
            cache.access(key);
        });
    }
    let mut hits = 0;
    for round in 0..40 {
        file.clone().for_each(|key| {
            cache.come(key, Origin::ByWrite);
        });
        if round >= 10 {
            let all = (0..20).filter(|key| cache.access(*key)).count();
            hits += if round >= 15 { all } else { 0 };
        }
    }
    assert!(hits >= 450, "{hits} of 500");
}

/// What was written stays until it is read, if that is soon.
#[test]
fn what_was_just_written_is_found() {
    let mut cache = Cache::new(MultiQueue::new(64), 64);
    (0..1000).for_each(|key| {
        cache.access(key);
    });
    for round in 0..100 {
        let first = 10_000 + round * 10;
        (first..first + 10).for_each(|key| {
            cache.come(key, Origin::ByWrite);
        });
        assert!((first..first + 10).all(|key| cache.access(key)), "{round}");
    }
}

/// What was written and is not asked for goes when others are read in.
#[test]
fn what_was_only_written_does_not_stay_for_ever() {
    let mut cache = Cache::new(MultiQueue::new(64), 64);
    (0..64).for_each(|key| {
        cache.come(key, Origin::ByWrite);
    });
    let hits = (0..300).filter(|nth| cache.access(100 + nth % 60)).count();
    assert_eq!(hits, 240, "all but the first time");
}
