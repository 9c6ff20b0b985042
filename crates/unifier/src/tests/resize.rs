//! A cache that gives memory back, and lists that are read in at once.

use super::disk::{Disk, run};
use super::{open, read, shrinking, unifier, write};
use crate::Reader;

const MIB: usize = 1 << 20;
const PAGE: usize = 4096;

#[test]
fn a_cache_gives_memory_back_and_takes_it_again() {
    let disk = Disk::new(1, 0);
    let data: Vec<u8> = (0..8 * MIB).map(|at| (at / PAGE) as u8).collect();
    let file = disk.file(1, data.clone());
    let unifier = shrinking(8 * MIB);
    let cached = open(&unifier, &file);
    let user = cached.clone();
    run(&disk, async move {
        for at in (0..7 * MIB).step_by(MIB) {
            read(&user, at as u64, MIB).await;
        }
    });
    assert!(unifier.stats().resident_bytes >= 7 << 20);
    let now = unifier.resize(3 << 20);
    assert_eq!((now, unifier.stats().decommitted_bytes), (3 << 20, 5 << 20));
    assert!(unifier.stats().resident_bytes <= 3 << 20);
    // It works as before, in less room.
    let user = cached.clone();
    let all = run(&disk, async move {
        let mut all = Vec::new();
        for at in (0..8 * MIB).step_by(MIB / 2) {
            all.extend(read(&user, at as u64, MIB / 2).await);
        }
        all
    });
    assert!(all == data);
    assert!(unifier.stats().resident_bytes <= 3 << 20);
    assert_eq!(unifier.resize(u64::MAX), 8 << 20);
    assert_eq!(unifier.stats().decommitted_bytes, 0);
    let user = cached.clone();
    run(&disk, async move {
        for at in (0..7 * MIB).step_by(MIB) {
            read(&user, at as u64, MIB).await;
        }
    });
    assert!(unifier.stats().resident_bytes >= 7 << 20, "all of it is used again");
}

#[test]
fn a_quarter_stays_and_what_is_dirty_stays() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, Vec::new());
    let unifier = shrinking(8 * MIB);
    let cached = open(&unifier, &file);
    assert_eq!(unifier.resize(0), 2 << 20);
    assert_eq!(unifier.resize(u64::MAX), 8 << 20);
    let user = cached.clone();
    run(&disk, async move {
        for at in 0..3 {
            write(&user, at * MIB as u64, &vec![7; MIB], 1).await;
        }
    });
    assert_eq!(unifier.resize(0), 4 << 20, "dirty data keeps its memory, and readers some");
    let user = cached.clone();
    run(&disk, async move { user.flush().await }).expect("flush");
    assert_eq!(unifier.resize(0), 2 << 20);
    let user = cached.clone();
    let seen = run(&disk, async move { read(&user, 3 * MIB as u64 - 10, 10).await });
    assert_eq!(seen, [7; 10]);
}

#[test]
fn writers_leave_room_for_readers_in_a_small_cache() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![5; 4 * MIB]);
    let unifier = shrinking(8 * MIB);
    let cached = open(&unifier, &file);
    assert_eq!(unifier.resize(0), 2 << 20);
    // Their data has not come, so that nothing can be written back.
    let reserve = |at: usize| cached.try_reserve((at * 16 * PAGE) as u64, 16 * PAGE);
    let reserved: Vec<_> = (0..64).map_while(reserve).collect();
    assert_eq!(reserved.len() * 16 * PAGE, 3 * MIB / 2);
    assert!(cached.try_reserve(0, PAGE).is_none());
    let user = cached.clone();
    assert_eq!(run(&disk, async move { read(&user, 0, MIB / 4).await }), vec![5; MIB / 4]);
    unifier.resize(u64::MAX);
    assert!(cached.try_reserve(0, MIB).is_some(), "the cache is large again");
}

#[test]
fn a_list_is_read_in_at_once_with_small_holes() {
    let disk = Disk::new(1, 100);
    let file = disk.file(1, vec![5; 4 * MIB]);
    let unifier = unifier(64 * MIB);
    let cached = open(&unifier, &file);
    // Every other page, and pages far from each other.
    let near: Vec<_> = (0..32u64).map(|at| (at * 2 * PAGE as u64, PAGE)).collect();
    let far: Vec<_> = (1..11u64).map(|at| (at * 300_000, 10)).collect();
    cached.prefetch_list(&near);
    cached.prefetch_list(&far);
    assert_eq!(disk.waiting(), 1 + 10, "all are asked for before one has come");
    let user = cached.clone();
    run(&disk, async move {
        for (at, len) in near.into_iter().chain(far) {
            read(&user, at, len).await;
        }
    });
    assert_eq!(file.state().reads, 11);
    cached.prefetch_list(&[(0, PAGE), (300_000, 5), (5 << 20, 7)]);
    assert_eq!(disk.waiting(), 0, "all is there");
}

#[test]
fn a_sequential_reader_finds_what_it_asks_for() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![5; 4 * MIB]);
    let unifier = unifier(64 * MIB);
    let cached = open(&unifier, &file);
    let user = cached.clone();
    let missed = run(&disk, async move {
        let (mut reader, mut missed) = (Reader::default(), 0);
        for at in (0..4 * MIB as u64).step_by(64 << 10) {
            let there = user.try_read(at, 64 << 10).is_some();
            missed += u32::from(!there);
            read(&user, at, 64 << 10).await;
            user.read_ahead(&mut reader, at, 64 << 10, there);
        }
        missed
    });
    assert!(missed <= 2, "{missed} reads had to wait");
    assert_eq!(unifier.stats().filled_bytes, 4 << 20, "each byte was read once");
}
