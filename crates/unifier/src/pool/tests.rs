//! Slots are given out, held and let go.

use super::*;
use crate::policy::shares::Share;
use crate::policy::{Key, Origin};

fn pool(frames: usize) -> Pool {
    Pool::new(Arena::new(frames * FRAME_SLOTS * PAGE_BYTES).expect("arena"), None, (1, None, false))
}

#[test]
fn no_memory_comes_ahead_of_use_while_it_is_short() {
    let pool = pool(64);
    assert!(pool.prefault());
    assert_eq!(pool.decommit(), Decommit::Done);
    assert!(!pool.prefault());
}

#[test]
fn aligned_runs_get_whole_adjacent_frames() {
    let pool = pool(4);
    let pages = pool.allocate(16, 40).expect("space");
    assert_eq!(units(&pages).count(), 2 + 8);
    let indices: Vec<usize> = pages.iter().map(|page| page.index()).collect();
    assert_eq!(indices, (0..40).collect::<Vec<_>>());
    assert_eq!(pool.used_slots(), 40);
}

#[test]
fn nothing_is_taken_when_not_all_fits() {
    let pool = pool(2);
    assert!(pool.allocate(0, 33).is_none());
    assert_eq!(pool.used_slots(), 0);
    let pages = pool.allocate(1, 32).expect("all slots, one by one");
    assert_eq!(units(&pages).count(), 16 + 1);
}

#[test]
fn a_split_frame_becomes_whole_again() {
    let pool = pool(1);
    for _ in 0..3 {
        let pages = pool.allocate(3, 16).expect("sixteen singles");
        units(&pages).for_each(|unit| pool.unpin(unit));
        let pages = pool.allocate(0, 16).expect("a frame");
        assert_eq!(units(&pages).count(), 1);
        units(&pages).for_each(|unit| pool.unpin(unit));
    }
    assert_eq!(pool.used_slots(), 0);
    assert!(pool.free().partial.len() <= 1, "lists do not grow");
}

#[test]
fn an_orphan_is_counted_until_its_reader_leaves() {
    let pool = pool(1);
    let page = pool.allocate(0, 1).expect("space")[0];
    pool.map(page, 1);
    pool.unmap(page);
    assert_eq!((pool.orphan_slots(), pool.used_slots()), (1, 1));
    pool.unpin(page);
    assert_eq!((pool.orphan_slots(), pool.used_slots()), (0, 0));
}

#[test]
fn millions_may_read_one_page_at_a_time() {
    let pool = pool(1);
    let page = pool.allocate(0, 1).expect("space")[0];
    pool.map(page, 1);
    let readers = (1 << 22) + 5;
    (0..readers).for_each(|_| pool.pin(page, true));
    assert_eq!(pool.uses(page), readers + 1);
    pool.unmap(page);
    (0..readers).for_each(|_| pool.unpin(page));
    assert_eq!((pool.orphan_slots(), pool.used_slots()), (1, 1), "its maker holds it");
    pool.unpin(page);
    assert_eq!((pool.orphan_slots(), pool.used_slots()), (0, 0));
}

#[test]
fn a_page_used_more_often_than_can_be_counted_is_used_lately() {
    let pool = pool(1);
    let pages = keep(&pool, 1, 2, Share::Lru);
    units(&pages).for_each(|unit| pool.unpin(unit));
    let first = pages[0];
    // As after so many reads, of which the policy has been told now and then.
    for _ in 0..4 {
        pool.users[first.index()].fetch_add(USE << (USE_BITS - 2), Ordering::Relaxed);
        pool.free().shares.tell(first.index() as u32, pool.uses(first));
    }
    assert_eq!(pool.uses(first), 1, "counted anew");
    let second = pages[1];
    pool.pin(second, true);
    pool.unpin(second);
    pool.free().shares.tell(second.index() as u32, pool.uses(second));
    pool.pin(first, true);
    pool.unpin(first);
    assert_eq!(victims(&pool, false), [second.index()], "the first was used since");
}

fn victims(pool: &Pool, frames: bool) -> Vec<usize> {
    let mut search = Search::default();
    let mut found = Victims::new();
    pool.next_victims(&mut search, frames, &mut found);
    found.iter().map(|victim| victim.0.index()).collect()
}

/// Maps and lists all of these.
fn keep(pool: &Pool, block: u64, count: usize, share: Share) -> Pages {
    let pages = pool.allocate(block, count).expect("space");
    for (index, page) in pages.iter().enumerate() {
        pool.map(page.unit(), 1);
        pool.publish(*page, (5, u64::MAX), block + index as u64);
    }
    pool.list(&pages, share, Key { file: 5, block }, Origin::ByWrite);
    pages
}

#[test]
fn a_page_used_lately_gets_another_round() {
    let pool = pool(1);
    let pages = keep(&pool, 1, 2, Share::Lru);
    assert!(victims(&pool, false).is_empty(), "pinned by their maker");
    units(&pages).for_each(|unit| pool.unpin(unit));
    let first = pages[0];
    pool.pin(first, true);
    pool.unpin(first);
    assert_eq!(victims(&pool, false), [pages[1].index()], "the other was used");
    assert_eq!(victims(&pool, false), [first.index()]);
}

#[test]
fn whoever_holds_more_gives_up() {
    let pool = pool(2);
    let often = keep(&pool, 1, 10, Share::MultiQueue);
    let lately = keep(&pool, 101, 12, Share::Lru);
    let low = keep(&pool, 201, 1, Share::Low);
    let high = keep(&pool, 301, 9, Share::High);
    for pages in [&high, &often, &lately, &low] {
        units(pages).for_each(|unit| pool.unpin(unit));
    }
    let mut gone = Vec::new();
    for _ in 0..24 {
        let unit = Page(victims(&pool, false)[0] as u32);
        let of = [&low, &lately, &often, &high].iter().position(|pages| pages.contains(&unit));
        gone.push(of.expect("one of them"));
        pool.unmap(unit);
    }
    assert_eq!(gone[..3], [0, 1, 1]);
    assert_ne!(gone[3], gone[4], "both held as much");
    assert_eq!(gone.iter().position(|of| *of == 3), Some(23), "high goes last");
    let more = keep(&pool, 401, 8, Share::High);
    let other = keep(&pool, 501, 12, Share::Lru);
    units(&more).chain(units(&other)).for_each(|unit| pool.unpin(unit));
    let next = Page(victims(&pool, false)[0] as u32);
    assert!(other.contains(&next), "half of the arena is high");
    keep(&pool, 601, 1, Share::High);
    let next = Page(victims(&pool, false)[0] as u32);
    assert!(high.contains(&next), "more than half of the arena is high");
}

#[test]
fn a_split_frame_goes_as_a_whole_where_frames_are_wanted() {
    let pool = pool(2);
    let old = keep(&pool, 1, 16, Share::Lru);
    let new = keep(&pool, 101, 8, Share::Lru);
    units(&old).chain(units(&new)).for_each(|unit| pool.unpin(unit));
    assert_eq!(victims(&pool, true).len(), 16);
    pool.pin(old[3], true);
    pool.unpin(old[3]);
    assert_eq!(victims(&pool, true).len(), 8, "the older of the frames that nobody used");
    assert_eq!(victims(&pool, true).len(), 1, "a neighbour was used");
}

/// Who gives frames back, and who takes them again, may be two threads.
#[test]
fn frames_that_are_used_again_do_not_go() {
    let pool = pool(8);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    while pool.decommit() == Decommit::Done {}
                    pool.recommit(8);
                }
            });
        }
        for _ in 0..2000 {
            let Some(pages) = pool.allocate(0, FRAME_SLOTS) else {
                std::thread::yield_now();
                continue;
            };
            let span = pool.span(pages[0].index() * PAGE_BYTES, PAGE_BYTES);
            span.copy_from(0, &[7; PAGE_BYTES]);
            std::thread::yield_now();
            let mut seen = [0; PAGE_BYTES];
            span.copy_to(0, &mut seen);
            units(&pages).for_each(|unit| pool.unpin(unit));
            if seen != [7; PAGE_BYTES] {
                over.store(true, Ordering::Relaxed);
                panic!("it went while it was used");
            }
        }
        over.store(true, Ordering::Relaxed);
    });
    pool.recommit(8);
    assert_eq!((pool.decommitted(), pool.used_slots(), pool.free_frames()), (0, 0, 8));
}
