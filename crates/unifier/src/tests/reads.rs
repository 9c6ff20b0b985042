//! Reads of a page that the cache lacks.

use dafs_protocol::Status;

use super::disk::{Disk, DiskFile, Task};
use super::*;

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
