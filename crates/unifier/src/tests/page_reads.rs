//! Reads of one page whose end is told: each thing that can meet the page while it is read in.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use dafs_protocol::Status;

use super::disk::{Disk, DiskFile, Rng, Task, run};
use super::*;

const PAGE: u64 = 4096;
/// Where a read is not sequential.
const AT: u64 = 40 * PAGE;

/// A file of sevens on a disk that answers when it is told to.
fn cold() -> (Arc<Disk>, Arc<DiskFile>, Arc<Unifier>, Arc<CachedFile>) {
    let disk = Disk::new(1, 100);
    let file = disk.file(1, vec![7; 64 * PAGE as usize]);
    let unifier = unifier(4 << 20);
    let cached = open(&unifier, &file);
    (disk, file, unifier, cached)
}

/// The bytes that came, or how else it ended; `None`: it has not.
fn end(told: &Told, number: usize) -> Option<Result<Vec<u8>, Option<Status>>> {
    told.take(number).map(|end| match end {
        PageEnd::Here(page) => Ok(bytes(&page.into_read(false))),
        PageEnd::Failed(status) => Err(Some(status)),
        PageEnd::Again => Err(None),
    })
}

#[test]
fn who_asked_is_told_with_the_page() {
    let (disk, _file, unifier, cached) = cold();
    let told = Told::default();
    assert!(told.read(&cached, AT + 100, 50, 3));
    assert_eq!((disk.waiting(), end(&told, 3)), (1, None));
    disk.complete_first();
    assert_eq!(end(&told, 3), Some(Ok(vec![7; 50])));
    assert!(!told.read(&cached, AT, PAGE as usize, 4), "it is there");
    assert!(cached.try_read(AT, PAGE as usize).is_some());
    let stats = unifier.stats();
    assert_eq!((stats.misses, stats.hits, stats.fills), (1, 1, 1));
}

#[test]
fn a_disk_that_answers_at_once_has_told_before_the_call_returns() {
    let disk = Disk::new(1, 0);
    let cached = open(&unifier(4 << 20), &disk.file(1, vec![7; 64 * PAGE as usize]));
    let told = Told::default();
    assert!(told.read(&cached, AT, PAGE as usize, 0));
    assert_eq!(end(&told, 0), Some(Ok(vec![7; PAGE as usize])));
}

#[test]
fn what_needs_more_than_a_page_is_not_begun() {
    let (disk, _file, _unifier, cached) = cold();
    let told = Told::default();
    for (offset, len) in [(AT + 1, PAGE as usize), (AT, 0), (64 * PAGE, 1), (0, PAGE as usize)] {
        assert!(!told.read(&cached, offset, len, 0), "{offset} {len}");
    }
    assert_eq!(disk.waiting(), 0);
}

#[test]
fn what_is_written_meanwhile_is_to_be_read_again() {
    let (disk, _file, _unifier, cached) = cold();
    let told = Told::default();
    assert!(told.read(&cached, AT, PAGE as usize, 0));
    fill(&cached, AT, PAGE as usize, 9);
    disk.complete_first();
    assert_eq!(end(&told, 0), Some(Err(None)));
    let lease = cached.try_read(AT, PAGE as usize).expect("it was written");
    assert_eq!(bytes(&lease), [9; PAGE as usize]);
}

#[test]
fn what_is_written_later_is_not_seen() {
    let (disk, _file, _unifier, cached) = cold();
    let told = Told::default();
    assert!(told.read(&cached, AT, PAGE as usize, 0));
    disk.complete_first();
    // The end waits for who takes it, and holds the page.
    fill(&cached, AT, PAGE as usize, 9);
    assert_eq!(end(&told, 0), Some(Ok(vec![7; PAGE as usize])));
    let lease = cached.try_read(AT, PAGE as usize).expect("it was written");
    assert_eq!(bytes(&lease), [9; PAGE as usize]);
}

#[test]
fn a_page_that_cannot_be_read_is_asked_for_once() {
    let (disk, file, unifier, cached) = cold();
    file.state().bad = Some(AT..AT + PAGE);
    let told = Told::default();
    assert!(told.read(&cached, AT, PAGE as usize, 0));
    disk.complete_first();
    assert_eq!(end(&told, 0), Some(Err(Some(Status::Io))));
    assert_eq!((disk.waiting(), unifier.stats().fills), (0, 1));
    file.state().bad = None;
    assert!(told.read(&cached, AT, PAGE as usize, 1), "the next one asks again");
    disk.complete_first();
    assert_eq!(end(&told, 1), Some(Ok(vec![7; PAGE as usize])));
}

#[test]
fn two_who_ask_for_one_page_get_it_by_one_call() {
    let (disk, _file, unifier, cached) = cold();
    let told = Told::default();
    assert!(told.read(&cached, AT, PAGE as usize, 0));
    assert!(!told.read(&cached, AT, PAGE as usize, 1), "it is being read in");
    let second = cached.clone();
    let mut second = Task::new(async move { read(&second, AT, PAGE as usize).await });
    assert!(second.poll().is_none());
    disk.complete_first();
    assert_eq!(second.poll(), Some(vec![7; PAGE as usize]));
    assert_eq!(end(&told, 0), Some(Ok(vec![7; PAGE as usize])));
    assert_eq!((unifier.stats().fills, unifier.stats().orphan_bytes), (1, 0));
}

#[test]
fn who_asks_after_one_that_went_away_gets_what_it_began() {
    let (disk, _file, unifier, cached) = cold();
    let told = Told::default();
    let first = cached.clone();
    let mut first = Task::new(async move { read(&first, AT, PAGE as usize).await });
    assert!(first.poll().is_none());
    assert!(!told.read(&cached, AT, PAGE as usize, 0));
    drop(first);
    disk.complete_first();
    assert!(cached.try_read(AT, PAGE as usize).is_some());
    assert_eq!(unifier.stats().orphan_bytes, 0);
}

#[test]
fn a_cut_waits_for_the_page_and_takes_it_away() {
    let (disk, _file, unifier, cached) = cold();
    let told = Told::default();
    assert!(told.read(&cached, AT, PAGE as usize, 0));
    let file = cached.clone();
    let mut cut = Task::new(async move { file.truncate(PAGE, false).await });
    assert!(cut.poll().is_none());
    assert!(!told.read(&cached, AT + PAGE, PAGE as usize, 1), "a change is under way");
    disk.complete_first();
    while cut.poll().is_none() {
        assert!(cut.is_woken() || disk.complete_one(), "the cut waits for ever");
    }
    assert_eq!(end(&told, 0), Some(Ok(vec![7; PAGE as usize])), "as it was before the cut");
    assert_eq!(cached.size(), PAGE);
    assert!(!told.read(&cached, AT, PAGE as usize, 0), "behind the end");
    assert_eq!(unifier.stats().orphan_bytes, 0, "who was told let it go");
}

#[test]
fn a_file_that_is_closed_meanwhile_has_told() {
    let (disk, _file, _unifier, cached) = cold();
    let told = Told::default();
    assert!(told.read(&cached, AT, PAGE as usize, 0));
    let file = cached.clone();
    run(&disk, async move { file.close(WriterId(1)).await }).expect("close");
    while disk.complete_one() {}
    assert_eq!(end(&told, 0), Some(Ok(vec![7; PAGE as usize])));
    assert!(!told.read(&cached, AT + PAGE, PAGE as usize, 0), "it is not open");
}

#[test]
fn the_end_of_the_cache_is_told() {
    let (disk, _file, unifier, cached) = cold();
    let told = Told::default();
    assert!(told.read(&cached, AT, PAGE as usize, 0));
    drop((cached, unifier));
    disk.complete_first();
    assert_eq!(end(&told, 0), Some(Err(None)));
}

/// The blocks of these are read in this order, by turns of the file: no read follows the one before.
fn nth_block(number: u64) -> u64 {
    (number * 7 + 3) % ((1 << 20) / PAGE)
}

/// A cache that is full of pages of two files, each read in alone.
fn crowded() -> (Arc<Disk>, Arc<Unifier>, [Arc<CachedFile>; 2], u64) {
    let pages = (1 << 20) / PAGE;
    let disk = Disk::new(1, 0);
    let data: Vec<u8> = (0..2 * pages * PAGE).map(|at| (at / PAGE) as u8).collect();
    let unifier = unifier(1 << 20);
    let files = [1, 2].map(|inode| open(&unifier, &disk.file(inode, data.clone())));
    let told = Told::default();
    for number in 0..pages {
        let (file, block) = (&files[number as usize % 2], nth_block(number));
        assert!(told.read(file, block * PAGE, PAGE as usize, 0));
        assert_eq!(end(&told, 0), Some(Ok(vec![block as u8; PAGE as usize])));
    }
    assert_eq!(unifier.stats().resident_bytes, 1 << 20);
    (disk, unifier, files, pages)
}

#[test]
fn a_page_takes_the_place_of_one_of_its_file_or_another() {
    let (_disk, unifier, files, pages) = crowded();
    let (before, told) = (unifier.stats(), Told::default());
    for (at, block) in (pages..2 * pages).rev().step_by(3).enumerate() {
        // Twice in a row, so that both kinds come.
        assert!(told.read(&files[at / 2 % 2], block * PAGE, PAGE as usize, at));
        assert_eq!(end(&told, at), Some(Ok(vec![block as u8; PAGE as usize])));
    }
    let (stats, reads) = (unifier.stats(), pages.div_ceil(3));
    assert_eq!(stats.resident_bytes, 1 << 20);
    assert_eq!(stats.evicted_bytes - before.evicted_bytes, reads * PAGE);
    assert_eq!(stats.misses - before.misses, reads);
}

#[test]
fn what_is_held_or_dirty_gives_its_place_to_nobody() {
    let (_disk, _unifier, files, pages) = crowded();
    // Those that would go first; the even ones are of the first file.
    let held: Vec<_> = (0..8)
        .map(|number| {
            let file = &files[number as usize % 2];
            file.try_read(nth_block(number) * PAGE, PAGE as usize).expect("it is there")
        })
        .collect();
    fill(&files[0], nth_block(8) * PAGE, PAGE as usize, 0xaa);
    let told = Told::default();
    for (at, block) in (pages..2 * pages).rev().step_by(3).enumerate() {
        if !told.read(&files[0], block * PAGE, PAGE as usize, at) {
            continue;
        }
        assert_eq!(end(&told, at), Some(Ok(vec![block as u8; PAGE as usize])));
    }
    for (number, lease) in held.iter().enumerate() {
        assert!(bytes(lease).iter().all(|byte| *byte == nth_block(number as u64) as u8));
    }
    let dirty =
        files[0].try_read(nth_block(8) * PAGE, PAGE as usize).expect("it is not written yet");
    assert_eq!(bytes(&dirty), [0xaa; PAGE as usize]);
}

#[test]
fn where_all_is_held_nothing_is_begun() {
    let (_disk, _unifier, files, pages) = crowded();
    let held: Vec<_> = (0..pages)
        .map(|number| {
            let file = &files[number as usize % 2];
            file.try_read(nth_block(number) * PAGE, PAGE as usize).expect("it is there")
        })
        .collect();
    let told = Told::default();
    assert!(!told.read(&files[0], (pages + 1) * PAGE, PAGE as usize, 0));
    drop(held);
    assert!(told.read(&files[0], (pages + 1) * PAGE, PAGE as usize, 0));
}

/// Each block holds its number, until it is cut off and zeros come.
#[test]
fn threads_read_what_others_write_and_cut() {
    let blocks = 512;
    let disk = Disk::new(1, 70);
    let file = disk.file(1, vec![1; blocks * PAGE as usize]);
    let unifier = unifier(256 * 1024);
    let cached = open(&unifier, &file);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                if !disk.complete_one() {
                    thread::yield_now();
                }
            }
        });
        let readers: Vec<_> = (1..3)
            .map(|seed| {
                let cached = &cached;
                scope.spawn(move || {
                    let (mut rng, told, mut here) = (Rng::new(seed), Told::default(), 0);
                    // Until enough came: most are not begun, since a change is under way.
                    while here < 200 {
                        let block = rng.below(blocks as u64);
                        if !told.read(cached, block * PAGE, PAGE as usize, 0) {
                            thread::yield_now();
                            continue;
                        }
                        let end = loop {
                            match end(&told, 0) {
                                Some(end) => break end,
                                None => thread::yield_now(),
                            }
                        };
                        if let Ok(bytes) = end {
                            here += 1;
                            assert!(bytes.iter().all(|byte| *byte == bytes[0]), "torn");
                        }
                    }
                })
            })
            .collect();
        let mut rng = Rng::new(9);
        while readers.iter().any(|reader| !reader.is_finished()) {
            let block = rng.below(blocks as u64 / 2) * PAGE;
            // Where there is room at once.
            if let Some(mut reservation) = cached.try_reserve(block, PAGE as usize) {
                land(&mut reservation, &[rng.below(255) as u8; PAGE as usize]);
                drop(cached.try_commit_write(reservation, writer(1)));
            }
            let cached = cached.clone();
            let (unifier, size) = (unifier.clone(), blocks as u64 * PAGE / (1 + rng.below(2)));
            super::threads::block_on(async move {
                cached.flush().await.expect("flush");
                cached.truncate(size, false).await.expect("cut");
                unifier.write_back(std::time::Duration::ZERO).await;
            });
        }
        done.store(true, Ordering::Relaxed);
        readers.into_iter().for_each(|reader| reader.join().expect("reader"));
    });
    drop(cached);
    while disk.complete_one() {}
    assert_eq!(unifier.stats().orphan_bytes, 0);
}
