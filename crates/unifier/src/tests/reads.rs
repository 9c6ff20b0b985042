//! Reads of a page that the cache lacks.

use dafs_protocol::Status;

use super::disk::{Disk, DiskFile, Task};
use super::*;
use crate::{HeldPage, PageLook, PinnedPages};

const PAGE: u64 = 4096;
/// Where a read is not sequential.
const AT: u64 = 40 * PAGE;

/// A file of zeros on a disk that answers when it is told to.
fn cold() -> (Arc<Disk>, Arc<DiskFile>, Arc<Unifier>, Arc<CachedFile>) {
    let disk = Disk::new(1, 100);
    let file = disk.file(1, vec![0; 64 * PAGE as usize]);
    let unifier = unifier(4 << 20);
    let cached = open(&unifier, &file);
    (disk, file, unifier, cached)
}

/// Whether it was coming, and the first byte.
fn task(cached: &Arc<CachedFile>) -> Task<Result<(bool, u8), Status>> {
    let cached = cached.clone();
    Task::new(async move {
        let lease = cached.read(AT, PAGE as usize).await?;
        Ok((lease.was_coming(), bytes(&lease)[0]))
    })
}

#[test]
fn a_read_says_whether_what_it_asked_for_was_coming() {
    let (disk, _file, unifier, cached) = cold();
    let (mut first, mut second) = (task(&cached), task(&cached));
    assert!(first.poll().is_none() && second.poll().is_none());
    assert_eq!(disk.waiting(), 1, "it is asked for once");
    disk.complete_first();
    assert_eq!((first.poll(), second.poll()), (Some(Ok((false, 0))), Some(Ok((true, 0)))));
    assert_eq!(task(&cached).poll(), Some(Ok((true, 0))));
    let stats = unifier.stats();
    assert_eq!((stats.misses, stats.hits, stats.fills), (2, 1, 1));
}

#[test]
fn what_is_written_while_a_page_is_read_in_stays() {
    let (disk, _file, _unifier, cached) = cold();
    let mut reader = task(&cached);
    assert!(reader.poll().is_none());
    fill(&cached, AT, PAGE as usize, 7);
    disk.complete_first();
    assert_eq!(reader.poll(), Some(Ok((false, 7))));
}

#[test]
fn a_page_that_cannot_be_read_is_asked_for_once() {
    let (disk, file, unifier, cached) = cold();
    file.state().bad = Some(AT..AT + PAGE);
    let mut reader = task(&cached);
    assert!(reader.poll().is_none());
    disk.complete_first();
    assert_eq!(reader.poll(), Some(Err(Status::Io)));
    assert_eq!((disk.waiting(), unifier.stats().fills), (0, 1));
}

#[test]
fn a_reader_that_goes_away_leaves_the_page_to_others() {
    let (disk, _file, unifier, cached) = cold();
    let mut reader = task(&cached);
    assert!(reader.poll().is_none());
    drop(reader);
    disk.complete_first();
    assert_eq!(task(&cached).poll(), Some(Ok((true, 0))));
    assert_eq!((unifier.stats().fills, unifier.stats().orphan_bytes), (1, 0));
}

#[test]
fn behind_the_end_of_a_file_nothing_is_asked_for() {
    let disk = Disk::new(1, 100);
    let cached = open(&unifier(4 << 20), &disk.file(1, vec![0; 5000]));
    let mut task = Task::new(async move {
        let lease = cached.read(6000, 100).await?;
        Ok::<_, Status>((lease.len(), lease.end_of_file()))
    });
    assert_eq!(task.poll(), Some(Ok((0, true))));
    assert_eq!(disk.waiting(), 0);
}

/// Pages of a file, as many as the cache has, each read in alone: in frames that are split.
fn crowded() -> (Arc<Unifier>, Arc<CachedFile>, u64) {
    let pages = (1 << 20) / PAGE;
    let disk = Disk::new(1, 0);
    let data: Vec<u8> = (0..2 * pages * PAGE).map(|at| (at / PAGE) as u8).collect();
    let file = disk.file(1, data);
    let unifier = unifier(1 << 20);
    let cached = open(&unifier, &file);
    for number in 0..pages {
        // No read follows the one before.
        let block = number * 7 % pages;
        assert_eq!(one(&cached, block), block as u8);
    }
    assert_eq!(unifier.stats().resident_bytes, 1 << 20);
    (unifier, cached, pages)
}

/// The first byte of a block.
fn one(cached: &Arc<CachedFile>, block: u64) -> u8 {
    let lease = lease(cached, block);
    assert!(bytes(&lease).iter().all(|byte| *byte == bytes(&lease)[0]));
    bytes(&lease)[0]
}

fn lease(cached: &Arc<CachedFile>, block: u64) -> PinnedRead {
    let cached = cached.clone();
    let mut task = Task::new(async move { cached.read(block * PAGE, PAGE as usize).await });
    task.poll().expect("the disk answers at once").expect("read")
}

#[test]
fn a_page_takes_the_place_of_one() {
    let (unifier, cached, pages) = crowded();
    let before = unifier.stats();
    for block in (pages..2 * pages).rev().step_by(3) {
        assert_eq!(one(&cached, block), block as u8);
    }
    let (stats, reads) = (unifier.stats(), pages.div_ceil(3));
    assert_eq!(stats.resident_bytes, 1 << 20);
    assert_eq!(stats.evicted_bytes - before.evicted_bytes, reads * PAGE);
    assert_eq!(stats.misses - before.misses, reads);
}

#[test]
fn what_is_held_or_dirty_gives_its_place_to_nobody() {
    let (_unifier, cached, pages) = crowded();
    // Those that would go first.
    let held: Vec<_> = (0..8).map(|number| lease(&cached, number * 7)).collect();
    fill(&cached, 8 * 7 * PAGE, PAGE as usize, 0xaa);
    for block in (pages..2 * pages).rev().step_by(3) {
        assert_eq!(one(&cached, block), block as u8);
    }
    for (number, lease) in held.iter().enumerate() {
        assert!(bytes(lease).iter().all(|byte| *byte == number as u8 * 7));
    }
    assert_eq!(one(&cached, 8 * 7), 0xaa);
}

#[test]
fn pages_that_are_held_together_stay_together() {
    let (_unifier, cached, pages) = crowded();
    let (_other, elsewhere, _) = crowded();
    let look =
        |cached: &Arc<CachedFile>, number: u64, then: &mut dyn FnMut(HeldPage<'_>)| match cached
            .try_read_page(number * 7 * PAGE, PAGE as usize)
        {
            PageLook::Held(page) => then(page),
            _ => panic!("{number} is cached"),
        };
    let (mut held, mut spans) = (PinnedPages::default(), Vec::new());
    // More of those that would go first than have room in place.
    (0..12).for_each(|number| look(&cached, number, &mut |page| spans.push(held.keep(page))));
    look(&elsewhere, 0, &mut |page| assert!(!held.takes(&page), "of another cache"));
    let all_others = || {
        for block in (pages..2 * pages).rev() {
            assert_eq!(one(&cached, block), block as u8);
        }
    };
    all_others();
    let mut first = [0];
    for (number, span) in spans.iter().enumerate() {
        span.copy_to(0, &mut first);
        assert_eq!(first[0], number as u8 * 7);
    }
    let is_there = |number: u64| cached.try_read(number * 7 * PAGE, PAGE as usize).is_some();
    assert!((0..12).all(is_there));
    drop((held, spans));
    all_others();
    all_others();
    assert!((0..12).any(|number| !is_there(number)), "nobody holds them any more");
}
