//! What is cached, prefetch and its bounds, and the unit.

use std::sync::Arc;

use dafs_protocol::{CacheHint, CachedRange};

use super::disk::{Disk, run};
use super::{open, read, unifier, write};

const MIB: usize = 1 << 20;
const PAGE: u64 = 4096;

fn range(first: u64, pages: u64, dirty: bool) -> CachedRange {
    CachedRange { offset: first * PAGE, len: pages * PAGE, dirty }
}

#[test]
fn a_query_tells_what_is_cached_and_what_is_dirty() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![5; 1_000_000]);
    let unifier = unifier(8 * MIB);
    let cached = open(&unifier, &file);
    assert_eq!(cached.query(0, 0, 100).ranges, []);
    let user = cached.clone();
    run(&disk, async move {
        read(&user, 500_000, 100).await;
        write(&user, 20 * PAGE, &[6; 2 * 4096], 1).await;
        write(&user, 22 * PAGE, &[6; 4096], 1).await;
    });
    let all = cached.query(0, 0, 100);
    assert_eq!(all.ranges, [range(20, 3, true), range(122, 1, false)]);
    assert_eq!((all.info.clean_bytes, all.info.dirty_bytes), (PAGE, 3 * PAGE));
    assert_eq!((all.info.size, all.info.next), (1_000_000, None));
    // Pages that the range touches, and no others.
    assert_eq!(cached.query(21 * PAGE + 1, 1, 100).ranges, [range(21, 1, true)]);
    assert_eq!(cached.query(23 * PAGE, 99 * PAGE, 100).ranges, []);
    assert_eq!(cached.query(u64::MAX, 0, 100).ranges, []);
    // Too many ranges: the rest is asked for again.
    let first = cached.query(0, 0, 1);
    assert_eq!((first.ranges.len(), first.info.next), (1, Some(122 * PAGE)));
    assert_eq!(first.info.clean_bytes, 0, "sums are of what was looked at");
    assert_eq!(cached.query(122 * PAGE, 0, 1).info.next, None);
}

#[test]
fn slots_are_those_whose_entries_name_the_blocks() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![5; 1_000_000]);
    let unifier = unifier(8 * MIB);
    let cached = open(&unifier, &file);
    assert_eq!(cached.slots(0, 1000).1, []);
    let user = cached.clone();
    run(&disk, async move {
        read(&user, 200_000, 300_000).await;
        write(&user, 60 * PAGE, &[6; 2 * 4096], 1).await;
        write(&user, 10 * PAGE, &[6; 1], 1).await;
    });
    let (number, slots) = cached.slots(3, 1000);
    let told: Vec<u64> =
        (3..).zip(&slots).filter_map(|(block, slot)| slot.map(|_| block)).collect();
    assert_eq!(told, [10].into_iter().chain(48..=127).collect::<Vec<_>>());
    for (block, slot) in (3..).zip(&slots) {
        let Some(slot) = slot else { continue };
        let (_, meaning) = cached.core().pool.entry(*slot as usize);
        assert_eq!((meaning.file, meaning.block), (number, block));
    }
    assert_eq!(cached.slots(48, 5).1, slots[45..50]);
    assert_eq!((cached.slots(128, 9).1, cached.slots(60, 0).1), (vec![], vec![]));
    assert_eq!(cached.slots(u64::MAX, 9).1, []);
}

#[test]
fn a_query_looks_at_a_part_of_a_large_file() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, Vec::new());
    let unifier = unifier(64 * MIB);
    let cached = open(&unifier, &file);
    let user = cached.clone();
    let clusters = 4100;
    run(&disk, async move {
        for cluster in 0..clusters {
            write(&user, cluster * 16 * PAGE, &[1; 4096], 1).await;
        }
    });
    let first = cached.query(0, 0, usize::MAX);
    assert_eq!(first.ranges.len(), 4096);
    let next = first.info.next.expect("it goes on");
    let rest = cached.query(next, 0, usize::MAX);
    assert_eq!((rest.ranges.len(), rest.info.next), (4, None));
}

#[test]
fn prefetches_together_take_no_more_than_one_read() {
    let disk = Disk::new(1, 100);
    let unifier = unifier(16 * MIB);
    let files: Vec<_> = (1..=4).map(|id| disk.file(id, vec![5; 2 * MIB])).collect();
    let cached: Vec<_> = files.iter().map(|file| open(&unifier, file)).collect();
    // An eighth of the arena: what one read may take.
    assert_eq!(cached[0].prefetch(0, MIB as u64), MIB as u64);
    assert_eq!(cached[1].prefetch(0, MIB as u64), MIB as u64);
    assert_eq!(cached[2].prefetch(0, MIB as u64), 0, "no room while those are under way");
    assert_eq!(unifier.stats().resident_bytes, 2 * MIB as u64);
    while disk.complete_one() {}
    assert_eq!(cached[2].prefetch(0, MIB as u64), MIB as u64);
    // What is there is told without reading.
    assert_eq!(cached[0].prefetch(0, 100), 100);
    assert_eq!(cached[0].prefetch(2 * MIB as u64, 100), 0, "at the end");
}

#[test]
fn a_prefetch_that_ends_is_there_at_once() {
    let disk = Disk::new(1, 100);
    let unifier = unifier(16 * MIB);
    let file = disk.file(1, vec![5; MIB]);
    let cached = open(&unifier, &file);
    cached.prefetch(0, MIB as u64);
    assert!(cached.is_coming(0, 2 * MIB), "to the end");
    assert!(cached.try_read(0, MIB).is_none());
    while disk.complete_one() {}
    assert!(cached.try_read(0, MIB).is_some());
    assert!(!unifier.write_back_due(std::time::Duration::ZERO));
    assert!(cached.is_coming(0, MIB), "it has come");
    cached.drop_clean(PAGE, PAGE);
    assert!(cached.is_coming(0, 4096) && !cached.is_coming(0, 4097));
}

#[test]
fn a_prefetch_of_a_cache_that_is_gone_ends() {
    let disk = Disk::new(1, 100);
    let unifier = unifier(16 * MIB);
    let file = disk.file(1, vec![5; MIB]);
    let cached = open(&unifier, &file);
    cached.prefetch(0, MIB as u64);
    drop((unifier, cached));
    disk.forget_all();
    assert_eq!(Arc::strong_count(&file), 1, "nothing keeps the file");
}

#[test]
fn dropping_tells_how_much_and_leaves_what_is_dirty() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![5; 16 * 4096]);
    let unifier = unifier(8 * MIB);
    let cached = open(&unifier, &file);
    let user = cached.clone();
    run(&disk, async move {
        read(&user, 0, 16 * 4096).await;
        write(&user, 0, &[6; 4096], 1).await;
    });
    assert_eq!(cached.drop_clean(0, 4 * PAGE), 3 * PAGE);
    assert_eq!(cached.drop_clean(0, 0), 12 * PAGE);
    assert_eq!(cached.query(0, 0, 9).ranges, [range(0, 1, true)]);
}

#[test]
fn a_wished_unit_is_what_is_read_in() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![5; 4 * MIB]);
    let unifier = unifier(64 * MIB);
    let cached = open(&unifier, &file);
    let wish = |unit| cached.wish(CacheHint { unit, ..CacheHint::default() }).unit;
    assert_eq!(wish(0), 0);
    for (wished, taken) in [(1, 4 << 10), (5000, 8 << 10), (u32::MAX, 1 << 20)] {
        assert_eq!(wish(wished), taken);
    }
    assert_eq!(wish(0), 1 << 20, "0 leaves it as it is");
    let user = cached.clone();
    run(&disk, async move { read(&user, 1_500_000, 10).await });
    assert_eq!(cached.query(0, 0, 9).ranges, [range(256, 256, false)]);
    cached.drop_clean(0, 0);
    wish(4 << 10);
    let user = cached.clone();
    // At the start, where reads are taken for sequential.
    run(&disk, async move { read(&user, 0, 10).await });
    assert_eq!(cached.query(0, 0, 9).ranges, [range(0, 1, false)]);
}
