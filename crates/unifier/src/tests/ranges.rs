//! Copies, advice, flushes: one promise at a time.

use std::sync::Arc;
use std::time::Duration;

use dafs_protocol::{CommitLevel, Status};

use super::disk::{Disk, run};
use super::{VERIFIER, land, open, read, unifier, write, writer};
use crate::{CachedFile, FilePosition, Writer, WriterId};

const MIB: usize = 1 << 20;

#[test]
fn a_flush_tells_of_late_errors_and_syncs_nothing() {
    let disk = Disk::new(1, 50);
    let file = disk.file(1, Vec::new());
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    let on_disk = file.clone();
    run(&disk, async move {
        write(&cached, 0, &[1; 10_000], 1).await;
        on_disk.state().write_error = Some(Status::NoSpc);
        let flush = || cached.commit(WriterId(1), 0, 0, CommitLevel::Flush);
        assert_eq!(flush().await.map(drop), Err(Status::NoSpc));
        // Written anew, and written back by itself: told by the next flush, also of another range.
        write(&cached, 0, &[1; 10_000], 1).await;
        unifier.write_back(Duration::from_secs(60)).await;
        let other = cached.commit(WriterId(1), 1 << 20, 10, CommitLevel::Flush).await;
        assert_eq!(other.map(drop), Err(Status::NoSpc));
        on_disk.state().write_error = None;
        assert_eq!(flush().await.map(drop), Ok(()));
        assert_eq!(on_disk.state().data, [1; 10_000]);
        cached.close(WriterId(1)).await.unwrap();
    });
    assert_eq!(file.state().syncs, 0);
}

#[test]
fn a_write_of_who_is_not_root_clears_privileges_at_once() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, Vec::new());
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    let mode = |before| {
        let (mark, mut attr) = (unifier.mark(), file.attr_now());
        attr.mode = before;
        unifier.overlay(mark, &mut attr);
        attr.mode
    };
    let write_by = |clear_privileges| {
        let cached = cached.clone();
        run(&disk, async move {
            let mut reservation = cached.reserve(0, 10).await.unwrap();
            land(&mut reservation, &[1; 10]);
            let writer = Writer { clear_privileges, ..writer(1) };
            cached.commit_write(reservation, writer).await.unwrap();
        });
    };
    write_by(false);
    assert_eq!(mode(0o6755), 0o6755, "root's write");
    write_by(true);
    assert_eq!((mode(0o6755), mode(0o2644)), (0o755, 0o644));
    run(&disk, {
        let cached = cached.clone();
        async move { cached.flush().await.unwrap() }
    });
    assert_eq!(mode(0o6755), 0o6755, "what the store says, which has seen the write");
    write_by(false);
    assert_eq!(mode(0o6755), 0o6755, "that was another write");
}

#[test]
fn a_copy_takes_dirty_pages_and_leaves_those_around_it() {
    for error in [None, Some(Status::XDev), Some(Status::NotSupp), Some(Status::Inval)] {
        let disk = Disk::new(1, 50);
        let (source, target) = (disk.file(1, vec![1; 50_000]), disk.file(2, vec![2; 60_000]));
        let unifier = unifier(MIB);
        let (from, to) = (open(&unifier, &source), open(&unifier, &target));
        source.state().copy_error = error;
        let mut want = vec![2; 60_000];
        want[30_000..50_000].fill(3);
        want[20_000..45_000].fill(1);
        want[20_000..20_100].fill(4);
        run(&disk, async move {
            read(&to, 0, 60_000).await;
            write(&from, 5000, &[4; 100], 1).await;
            write(&to, 30_000, &[3; 20_000], 1).await;
            let (from, to) = (
                FilePosition { file: from, offset: 5000 },
                FilePosition { file: to, offset: 20_000 },
            );
            let copied = CachedFile::copy_range(&from, &to, 25_000, 1 << 30, writer(1)).await;
            assert_eq!(copied, Ok(25_000));
            assert_eq!(read(&to.file, 0, 70_000).await, want);
            let end = FilePosition { offset: 49_990, ..from.clone() };
            let copied = CachedFile::copy_range(&end, &to, 100, 1 << 30, writer(1)).await;
            assert_eq!(copied, Ok(10), "the source ends");
            let end = FilePosition { offset: 50_000, ..from.clone() };
            let copied = CachedFile::copy_range(&end, &to, 100, 1 << 30, writer(1)).await;
            assert_eq!(copied, Ok(0));
            let near = FilePosition { offset: 5001, ..from.clone() };
            let copied = CachedFile::copy_range(&from, &near, 2, 1 << 30, writer(1)).await;
            assert_eq!(copied, Err(Status::Inval));
            from.file.close(WriterId(1)).await.unwrap();
            to.file.close(WriterId(1)).await.unwrap();
        });
        assert_eq!(target.state().copies > 0, error.is_none());
    }
}

#[test]
fn what_cannot_be_copied_is_told() {
    let disk = Disk::new(1, 0);
    let (source, target) = (disk.file(1, vec![1; 50_000]), disk.file(2, vec![2; 10]));
    let unifier = unifier(MIB);
    let (from, to) = (open(&unifier, &source), open(&unifier, &target));
    source.state().copy_error = Some(Status::NoSpc);
    run(&disk, async move {
        let (from, to) =
            (FilePosition { file: from, offset: 0 }, FilePosition { file: to, offset: 0 });
        let copied = CachedFile::copy_range(&from, &to, 100, 1 << 30, writer(1)).await;
        assert_eq!(copied, Err(Status::NoSpc));
        assert_eq!(read(&to.file, 0, 100).await, [2; 10]);
    });
}

#[test]
fn what_is_prefetched_is_there_for_who_reads() {
    let disk = Disk::new(1, 100);
    let file = disk.file(1, vec![5; 200_000]);
    let unifier = unifier(8 * MIB);
    let cached = open(&unifier, &file);
    cached.prefetch(0, 0);
    assert_eq!(disk.waiting(), 1);
    assert!(disk.complete_one());
    let reader = cached.clone();
    run(&disk, async move {
        assert_eq!(read(&reader, 100_000, 5000).await, [5; 5000]);
    });
    assert_eq!(file.state().reads, 1);
    assert!(cached.try_read(0, 200_000).is_some());
    cached.prefetch(1 << 40, 10);
    cached.prefetch(0, 200_000);
    assert_eq!((disk.waiting(), file.state().reads), (0, 1), "nothing is left to read");
}

#[test]
fn advice_drops_whole_clean_pages_only() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![5; 100_000]);
    let unifier = unifier(8 * MIB);
    let cached = open(&unifier, &file);
    let reader = cached.clone();
    run(&disk, async move {
        read(&reader, 0, 100_000).await;
        write(&reader, 40_960, &[6; 4096], 1).await;
    });
    cached.drop_clean(4000, 60_000);
    assert!(cached.try_read(0, 4096).is_some() && cached.try_read(61_440, 38_560).is_some());
    assert!(cached.try_read(4096, 1).is_none() && cached.try_read(61_439, 1).is_none());
    assert!(cached.try_read(40_960, 4096).is_some(), "dirty");
    cached.drop_clean(0, 0);
    assert!(cached.try_read(0, 1).is_none() && cached.try_read(99_999, 1).is_none());
    let reader = cached.clone();
    let bytes = run(&disk, async move { read(&reader, 40_000, 2000).await });
    assert_eq!(bytes, [[5; 960].as_slice(), &[6; 1040]].concat());
}

#[test]
fn dirty_data_has_extents() {
    let disk = Disk::new(1, 50);
    let file = disk.file(1, Vec::new());
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    run(&disk, async move {
        write(&cached, 0, &[1; 5000], 1).await;
        let extents = cached.extents(0, 1 << 30, 10).await.unwrap();
        assert_eq!(extents.list.iter().map(|extent| extent.len).sum::<u64>(), 5000);
    });
}

#[test]
fn a_failed_sync_is_told_to_who_changed_data_in_the_store() {
    let disk = Disk::new(1, 0);
    let (source, file) = (disk.file(1, vec![1; 8192]), disk.file(2, vec![2; 8192]));
    let unifier = unifier(MIB);
    let (from, first) = (open(&unifier, &source), open(&unifier, &file));
    run(&disk, async move {
        let at = |file: &Arc<CachedFile>| FilePosition { file: file.clone(), offset: 0 };
        for change in 0..3 {
            let by = 10 + change;
            let (from, to) = (at(&from), at(&first));
            match change {
                0 => assert_eq!(CachedFile::copy_range(&from, &to, 9, 0, writer(by)).await, Ok(9)),
                1 => CachedFile::clone_range(&from, &to, 9, writer(by)).await.unwrap(),
                _ => first.fallocate(3, 0, 9, writer(by)).await.unwrap(),
            }
            file.state().sync_error = Some(Status::Io);
            let commit = |by| first.commit(WriterId(by), 0, 0, CommitLevel::Data);
            assert_eq!(commit(2).await, Err(Status::Io));
            // The system has told.
            file.state().sync_error = None;
            assert_eq!(commit(by).await, Err(Status::Io), "{change}");
            assert_eq!(commit(by).await, Ok(VERIFIER));
        }
    });
}
