//! What readers read by themselves stays where it is used, beside a scan.

use std::sync::Arc;

use dafs_fabric::mem::PAGE_BYTES;
use dafs_fabric::{Arena, Words};

use super::disk::{Disk, run};
use super::{config, open, read, unifier_with};
use crate::{AccessedBits, CachedFile, Config, Policy, Unifier};

const SLOTS: usize = 256;
const HOT: usize = SLOTS / 2;
const ALL: (u32, usize) = (1, AccessedBits::MAX);

fn unifier_of(policy: Policy) -> Arc<Unifier> {
    let arena_bytes = SLOTS * PAGE_BYTES;
    unifier_with(arena_bytes, Config { policy, ..config(arena_bytes) })
}

fn read_block(disk: &Disk, file: &Arc<CachedFile>, block: usize) {
    let file = file.clone();
    let work = async move { read(&file, (block * PAGE_BYTES) as u64, PAGE_BYTES).await };
    assert_eq!(run(disk, work).len(), PAGE_BYTES);
}

fn cached(file: &CachedFile) -> usize {
    file.slots(0, HOT).1.iter().flatten().count()
}

/// Sets the bits of all the slots that have blocks of the file.
fn access(file: &CachedFile, bits: &Words) {
    for slot in file.slots(0, HOT).1.into_iter().flatten() {
        bits.set_bits(slot as usize / 64, 1 << (slot % 64));
    }
}

/// How much of a hot file stays that is read beside a scan of eight times the cache.
fn hot_beside_scan(policy: Policy, is_told: bool) -> usize {
    let unifier = unifier_of(policy);
    let memory = Arena::new(PAGE_BYTES).expect("memory");
    let told = is_told.then(|| unifier.add_accessed(Words::new(&memory), ALL).expect("room"));
    let bits = Words::new(&memory);
    let disk = Disk::new(1, 0);
    let file = |inode| open(&unifier, &disk.file(inode, vec![7; 8 * SLOTS * PAGE_BYTES]));
    let (hot, scanned) = (file(1), file(2));
    (0..HOT).for_each(|block| read_block(&disk, &hot, block));
    for number in 0..8 * SLOTS {
        if number % 32 == 0 {
            access(&hot, &bits);
        }
        read_block(&disk, &scanned, number * 7919 % (8 * SLOTS));
    }
    drop(told);
    cached(&hot)
}

#[test]
fn what_is_read_without_a_word_stays_beside_a_scan() {
    for policy in [Policy::Lru, Policy::MultiQueue] {
        let (told, untold) = (hot_beside_scan(policy, true), hot_beside_scan(policy, false));
        assert!(told >= HOT * 95 / 100, "{policy:?}: {told} of {HOT}");
        assert!(untold < HOT / 2, "{policy:?}: {untold} of {HOT}");
    }
}

#[test]
fn who_sets_all_bits_for_ever_keeps_nobody_out() {
    let unifier = unifier_of(Policy::Lru);
    let memory = Arena::new(PAGE_BYTES).expect("memory");
    let _told = unifier.add_accessed(Words::new(&memory), ALL).expect("room");
    let theirs = Words::new(&memory);
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| {
            let disk = Disk::new(1, 0);
            let file = open(&unifier, &disk.file(1, vec![7; 4 * SLOTS * PAGE_BYTES]));
            (0..4 * SLOTS).for_each(|block| read_block(&disk, &file, block));
        });
        while !reads.is_finished() {
            (0..SLOTS / 64).for_each(|word| theirs.set_bits(word, u64::MAX));
        }
        reads.join().expect("nobody waits for ever");
    });
    assert!(unifier.stats().evicted_bytes >= (2 * SLOTS * PAGE_BYTES) as u64);
}

#[test]
fn too_few_bits_are_refused() {
    let arena_bytes = 64 * 1024 * PAGE_BYTES;
    let unifier = unifier_with(arena_bytes, config(arena_bytes));
    let page = || Words::new(&Arena::new(PAGE_BYTES).expect("memory"));
    assert!(unifier.add_accessed(page(), ALL).is_none(), "there are twice as many slots");
}
