//! Flushes that meet others at work on the same file.

use std::time::Duration;

use dafs_protocol::{CommitLevel, Status};

use super::disk::{Disk, Task};
use super::*;

const MIB: usize = 1 << 20;
const BLOCK: u64 = 4096;

/// Goes on until the task ends, or nothing does.
fn finish<T>(disk: &Disk, task: &mut Task<T>) -> T {
    loop {
        if let Some(value) = task.poll() {
            return value;
        }
        assert!(task.is_woken() || disk.complete_one(), "waits for ever");
    }
}

#[test]
fn a_flush_tells_of_what_the_write_back_of_another_could_not_write() {
    let disk = Disk::new(1, 100);
    let file = disk.file(1, vec![0; 64 * BLOCK as usize]);
    file.state().bad = Some(0..1);
    let unifier = unifier(4 * MIB);
    let (cached, other) = (open(&unifier, &file), open(&unifier, &file));
    // Pieces of their own: the first eight are under way at a time.
    (0..16).for_each(|nth| fill(&cached, 2 * nth * BLOCK, 4096, 1));
    let background = unifier.clone();
    let mut first = Task::new(async move { background.write_back(Duration::from_secs(60)).await });
    assert!(first.poll().is_none());
    // The attributes before the first change.
    disk.complete_first();
    assert!(first.poll().is_none());
    assert_eq!(disk.waiting(), 8);
    let commit = |offset: u64| {
        let other = other.clone();
        Task::new(async move { other.commit(WriterId(2), offset, 0, CommitLevel::Flush).await })
    };
    let mut second = commit(0);
    assert!(second.poll().is_none());
    assert_eq!(disk.waiting(), 16);
    // The bad block, by the first, while the second waits for writes of its own.
    disk.complete_first();
    assert!(first.poll().is_none());
    assert_eq!(finish(&disk, &mut second).map(drop), Err(Status::Io));
    // What lies beside it was written.
    assert_eq!(finish(&disk, &mut commit(BLOCK)).map(drop), Ok(()));
}

#[test]
fn a_write_that_lands_while_the_last_close_flushes_is_written_too() {
    for is_longer in [false, true] {
        let disk = Disk::new(1, 100);
        let file = disk.file(1, vec![0; 2 * MIB]);
        let unifier = unifier(16 * MIB);
        let cached = open(&unifier, &file);
        fill(&cached, MIB as u64, MIB / 2, 1);
        // Its data is on its way when the file is closed.
        let offset = if is_longer { 2 * MIB as u64 - BLOCK } else { 0 };
        let mut reservation = cached.try_reserve(offset, MIB).expect("room");
        let closing = cached.clone();
        let mut close = Task::new(async move { closing.close(WriterId(1)).await });
        assert!(close.poll().is_none());
        disk.complete_first();
        assert!(close.poll().is_none());
        // Behind that write, or before the attributes after it.
        if is_longer {
            disk.complete_first();
            assert!(close.poll().is_none());
        }
        land(&mut reservation, &vec![2; MIB]);
        assert!(matches!(cached.try_commit_write(reservation, writer(1)), Ok(Ok(()))));
        assert_eq!(finish(&disk, &mut close), Ok(()));
        let data = file.state().data.clone();
        assert_eq!(data.len(), if is_longer { 3 * MIB - BLOCK as usize } else { 2 * MIB });
        assert!(data[offset as usize..][..MIB].iter().all(|byte| *byte == 2));
        assert!(data[MIB..3 * MIB / 2].iter().all(|byte| *byte == 1));
        assert_eq!(unifier.stats().dirty_bytes, 0);
        unifier.forget(file.attr_id());
        assert_eq!(unifier.stats().files, 0);
    }
}

#[test]
fn a_disk_that_hangs_does_not_stop_the_write_back_of_others() {
    let (hung, fine) = (Disk::of_device(2, 1, 100), Disk::new(1, 0));
    let unifier = unifier(4 * MIB);
    let stuck: Vec<_> = (0..20).map(|inode| hung.file(inode, Vec::new())).collect();
    let file = fine.file(1, Vec::new());
    for file in &stuck {
        fill(&open(&unifier, file), 0, 4096, 1);
    }
    let cached = open(&unifier, &file);
    fill(&cached, 0, 4096, 2);
    let begin = |seconds: u64| {
        let unifier = unifier.clone();
        assert!(unifier.write_back_due(Duration::from_secs(seconds)));
        Task::new(async move { unifier.write_back(Duration::from_secs(seconds)).await })
    };
    let mut first = begin(60);
    assert!(first.poll().is_none());
    assert_eq!(file.state().data, [2; 4096]);
    assert!(!unifier.write_back_due(Duration::from_secs(70)), "as many hang as may");
    // What is written meanwhile does not wait for the first either.
    fill(&cached, 0, 4096, 3);
    assert!(begin(120).poll().is_some());
    assert_eq!(file.state().data, [3; 4096]);
    finish(&hung, &mut first);
    assert!(stuck.iter().all(|file| file.state().data == [1; 4096]), "when it works again");
}

#[test]
fn what_is_written_while_its_file_is_written_back_is_so_after_that() {
    let disk = Disk::new(1, 100);
    let file = disk.file(1, Vec::new());
    let unifier = unifier(4 * MIB);
    let cached = open(&unifier, &file);
    fill(&cached, 4096, 4096, 1);
    let background = unifier.clone();
    let seconds = Duration::from_secs;
    let mut first = Task::new(async move { background.write_back(seconds(60)).await });
    assert!(first.poll().is_none());
    disk.complete_first();
    assert!(first.poll().is_none());
    fill(&cached, 0, 4096, 2);
    assert!(!unifier.write_back_due(seconds(120)), "a file is written in large pieces");
    finish(&disk, &mut first);
    assert_eq!(file.state().writes, [(4096, 4096), (0, 4096)]);
    // What cannot be written is not tried all the time.
    file.state().write_error = Some(Status::NoSpc);
    fill(&cached, 0, 4096, 3);
    let background = unifier.clone();
    let mut second = Task::new(async move { background.write_back(seconds(180)).await });
    finish(&disk, &mut second);
    assert!(!unifier.write_back_due(seconds(240)));
    assert_eq!(cached.take_error(WriterId(1)), Some(Status::NoSpc));
}
