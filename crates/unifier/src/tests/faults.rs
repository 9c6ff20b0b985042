//! A disk that fails: in places, for want of space, or for a while.

use std::ops::Range;
use std::time::Duration;

use dafs_protocol::{CommitLevel, Status};

use super::disk::{Disk, Handle, Task, run};
use super::*;
use crate::Reader;

const MIB: usize = 1 << 20;
const BLOCK: u64 = 4096;

fn block_bytes(blocks: Range<u64>) -> Range<u64> {
    blocks.start * BLOCK..blocks.end * BLOCK
}

async fn commit(file: &Arc<CachedFile>, by: u64) -> Result<(), Status> {
    file.commit(WriterId(by), 0, 0, CommitLevel::Data).await.map(|_| ())
}

/// What a write of one block says.
async fn try_write(file: &Arc<CachedFile>, block: u64, byte: u8, by: u64) -> Result<(), Status> {
    let mut reservation = file.reserve(block * BLOCK, BLOCK as usize).await?;
    land(&mut reservation, &[byte; BLOCK as usize]);
    file.commit_write(reservation, writer(by)).await
}

#[test]
fn a_write_whose_data_did_not_come_whole_is_refused() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 8192]);
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    let refused = |landed: usize| {
        let cached = cached.clone();
        run(&disk, async move {
            let mut reservation = cached.reserve(100, 5000).await.expect("room");
            reservation.landed(landed);
            cached.commit_write(reservation, writer(1)).await
        })
    };
    assert_eq!(refused(4999), Err(Status::ServerFault));
    assert_eq!(refused(0), Err(Status::ServerFault));
    assert_eq!(unifier.stats().short_writes, 2);
    let bytes = run(&disk, async move {
        let bytes = read(&cached, 0, 8192).await;
        cached.close(WriterId(1)).await.expect("close");
        bytes
    });
    assert_eq!((bytes, file.state().data.clone()), (vec![1; 8192], vec![1; 8192]));
}

#[test]
fn a_read_is_not_failed_by_bytes_that_it_does_not_need() {
    let disk = Disk::new(1, 50);
    let file = disk.file(1, vec![1; 64 * BLOCK as usize]);
    file.state().bad = Some(block_bytes(5..6));
    let unifier = unifier(4 * MIB);
    let cached = open(&unifier, &file);
    run(&disk, async move {
        // Sequential from the beginning on: whole clusters are read in.
        for block in (0..5).chain(6..64) {
            assert_eq!(read(&cached, block * BLOCK, 4096).await, [1; 4096], "{block}");
        }
        let refused = cached.read(5 * BLOCK, 4096).await.map(|lease| lease.len());
        assert_eq!(refused, Err(Status::Io));
        let refused = cached.read(4 * BLOCK, 3 * 4096).await.map(|lease| lease.len());
        assert_eq!(refused, Err(Status::Io));
        // The others stay.
        assert_eq!(read(&cached, 6 * BLOCK, 8 * 4096).await, [1; 8 * 4096]);
    });
}

#[test]
fn an_error_ahead_of_a_reader_is_not_its_own() {
    let disk = Disk::new(1, 100);
    let file = disk.file(1, vec![1; 256 * BLOCK as usize]);
    file.state().bad = Some(block_bytes(70..71));
    let unifier = unifier(8 * MIB);
    let cached = open(&unifier, &file);
    run(&disk, async move {
        let mut reader = Reader::default();
        for block in (0..256).step_by(2).filter(|block| *block != 70) {
            let there = cached.try_read(block * BLOCK, 8192).is_some();
            cached.read_ahead(&mut reader, block * BLOCK, 8192, there);
            assert_eq!(read(&cached, block * BLOCK, 8192).await, [1; 8192], "{block}");
        }
        assert!(cached.read(70 * BLOCK, 8192).await.is_err());
    });
    assert_eq!(unifier.stats().orphan_bytes, 0);
}

#[test]
fn pieces_of_a_list_beside_a_bad_one_are_read() {
    let disk = Disk::new(1, 50);
    let file = disk.file(1, vec![1; 64 * BLOCK as usize]);
    // In a hole between two pieces, which is read in with them.
    file.state().bad = Some(block_bytes(2..3));
    let unifier = unifier(4 * MIB);
    let cached = open(&unifier, &file);
    run(&disk, async move {
        let pieces = [(0, 4096), (4 * BLOCK, 4096), (8 * BLOCK, 4096)];
        cached.prefetch_list(&pieces);
        for (offset, len) in pieces {
            assert_eq!(read(&cached, offset, len).await, [1; 4096]);
        }
    });
}

#[test]
fn a_part_of_a_block_that_cannot_be_read_in_fails_that_write_alone() {
    let disk = Disk::new(1, 50);
    let file = disk.file(1, vec![1; 64 * BLOCK as usize]);
    file.state().bad = Some(block_bytes(5..6));
    let unifier = unifier(4 * MIB);
    let cached = open(&unifier, &file);
    let dirty = {
        let cached = cached.clone();
        run(&disk, async move {
            let mut reservation = cached.reserve(5 * BLOCK + 1, 10).await.unwrap();
            land(&mut reservation, &[2; 10]);
            let refused = cached.commit_write(reservation, writer(1)).await;
            assert_eq!(refused, Err(Status::Io));
            assert_eq!(cached.take_error(WriterId(1)), None);
            // Its neighbour in the same cluster.
            write(&cached, 4 * BLOCK + 1, &[2; 10], 1).await;
        });
        unifier.stats().dirty_bytes
    };
    assert_eq!(dirty, BLOCK);
    run(&disk, async move { cached.close(WriterId(1)).await.unwrap() });
    assert_eq!(file.state().data[4 * BLOCK as usize + 1..][..10], [2; 10]);
}

#[test]
fn what_was_given_up_is_not_in_the_file_any_more() {
    let disk = Disk::new(1, 50);
    let full = disk.file(1, vec![7; 2 * BLOCK as usize]);
    let fine = disk.file(2, Vec::new());
    let unifier = unifier(MIB);
    let (stuck, cached) = (open(&unifier, &full), open(&unifier, &fine));
    full.state().size_max = Some(2 * BLOCK);
    let lost = stuck.clone();
    run(&disk, async move {
        for block in 2..100 {
            write(&lost, block * BLOCK, &[1; 4096], 1).await;
        }
        for at in 0..10 {
            write(&cached, at * 50 * BLOCK, &[2; 50 * 4096], 2).await;
        }
        cached.close(WriterId(2)).await.unwrap();
    });
    assert!(unifier.stats().lost_bytes > 0);
    // As long as the disk has it, for those who have it open and for the next.
    assert_eq!(stuck.size(), 2 * BLOCK);
    let told = run(&disk, {
        let stuck = stuck.clone();
        async move { stuck.close(WriterId(1)).await }
    });
    assert_eq!(told, Err(Status::NoSpc));
    let again = open(&unifier, &full);
    assert_eq!(again.size(), 2 * BLOCK);
    assert_eq!(run(&disk, async move { read(&again, 0, 3 * 4096).await }), [7; 2 * 4096]);
}

/// A file whose block 5 was written, and could not be written back.
fn one_failed(disk: &Arc<Disk>) -> (Arc<Unifier>, Arc<DiskFile>, Arc<CachedFile>) {
    let file = disk.file(1, vec![7; 64 * BLOCK as usize]);
    file.state().bad = Some(block_bytes(5..6));
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    let written = cached.clone();
    run(disk, async move {
        write(&written, 5 * BLOCK, &[1; 4096], 1).await;
        assert_eq!(written.flush().await, Err(Status::Io));
    });
    (unifier, file, cached)
}

#[test]
fn what_was_not_tried_yet_is_not_given_up_with_what_failed() {
    let disk = Disk::new(1, 50);
    let (unifier, file, written) = one_failed(&disk);
    run(&disk, async move {
        assert_eq!(written.take_error(WriterId(1)), Some(Status::Io));
        write(&written, 6 * BLOCK, &[2; 4096], 1).await;
        assert_eq!(written.give_up(), Some(1));
        assert_eq!(written.take_error(WriterId(1)), Some(Status::Io));
        written.close(WriterId(1)).await.unwrap();
    });
    assert_eq!(file.state().data[6 * BLOCK as usize..][..4096], [2; 4096]);
    assert_eq!(unifier.stats().lost_bytes, BLOCK);
}

#[test]
fn nothing_is_given_up_of_a_file_that_is_being_changed() {
    let disk = Disk::new(1, 100);
    let (_unifier, _, cached) = one_failed(&disk);
    let cut = cached.clone();
    let mut cut = Task::new(async move { cut.truncate(32 * BLOCK, false).await });
    assert!(cut.poll().is_none());
    assert_eq!(cached.give_up(), None);
    while cut.poll().is_none() {
        assert!(disk.complete_one());
    }
    assert_eq!(cached.give_up(), Some(1));
}

#[test]
fn a_cut_at_open_that_fails_later_leaves_what_the_store_has() {
    let disk = Disk::new(1, 100);
    let file = disk.file(1, Vec::new());
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    fill(&cached, 0, 100, 1);
    let flushing = cached.clone();
    let mut flush = Task::new(async move { flushing.flush().await });
    assert!(flush.poll().is_none());
    let (mark, handle) = (unifier.mark(), Arc::new(Handle(file.clone())));
    file.change(Vec::new());
    let attr = file.attr_now();
    // While the first writes back.
    disk.complete_one();
    assert!(flush.poll().is_none());
    file.state().cut_error = Some(Status::Io);
    let again = unifier.open(mark, WriterId(2), handle, &attr, Opening::Truncated);
    assert_eq!(again.size(), 0);
    run(&disk, async move {
        again.flush().await.unwrap();
        assert_eq!(read(&again, 0, 200).await, [1; 100]);
        // What others write does not bring the empty file back.
        write(&again, 0, &[3; 10], 3).await;
        again.flush().await.unwrap();
        for who in [1, 2] {
            assert_eq!(again.take_error(WriterId(who)), Some(Status::Io), "{who}");
        }
        again.close(WriterId(1)).await.unwrap();
    });
    assert_eq!(file.state().data.len(), 100);
}

#[test]
fn what_nobody_was_to_be_told_of_does_not_keep_later_errors() {
    let disk = Disk::new(1, 50);
    let file = disk.file(1, vec![0; 64 * BLOCK as usize]);
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    run(&disk, async move {
        // Of a local writer: nobody here has written.
        file.state().sync_error = Some(Status::Io);
        assert_eq!(commit(&cached, 2).await, Err(Status::Io));
        file.state().sync_error = None;
        write(&cached, 0, &[1; 4096], 1).await;
        file.state().write_error = Some(Status::NoSpc);
        assert_eq!(cached.flush().await, Err(Status::NoSpc));
        file.state().write_error = None;
        cached.flush().await.expect("there is room again");
        assert_eq!(cached.take_error(WriterId(1)), None);
    });
}

#[test]
fn a_reader_is_not_told_of_what_others_wrote() {
    let disk = Disk::new(1, 50);
    let file = disk.file(1, Vec::new());
    let unifier = unifier(MIB);
    let written = open(&unifier, &file);
    let read_only = {
        let (mark, attr) = (unifier.mark(), file.attr_now());
        unifier.open(mark, WriterId(2), Arc::new(Handle(file.clone())), &attr, Opening::Existing)
    };
    file.state().write_error = Some(Status::NoSpc);
    run(&disk, async move {
        write(&written, 0, &[1; 4096], 1).await;
        assert_eq!(read_only.close(WriterId(2)).await, Ok(()));
        assert_eq!(written.close(WriterId(1)).await, Err(Status::NoSpc));
    });
}

#[test]
fn a_late_error_is_told_once_however_often_write_back_tries() {
    let disk = Disk::new(1, 50);
    let file = disk.file(1, vec![0; 64 * BLOCK as usize]);
    file.state().bad = Some(block_bytes(5..6));
    let unifier = unifier(4 * MIB);
    let cached = open(&unifier, &file);
    let background = unifier.clone();
    let written = cached.clone();
    run(&disk, async move {
        write(&written, 5 * BLOCK, &[1; 4096], 1).await;
        background.write_back(Duration::from_secs(60)).await;
        assert_eq!(try_write(&written, 9, 2, 1).await, Err(Status::Io));
        // The same block fails again while others are written.
        for round in 2..6 {
            assert_eq!(try_write(&written, 9 + round, 3, 1).await, Ok(()), "{round}");
            background.write_back(Duration::from_secs(60 * round)).await;
            assert_eq!(written.take_error(WriterId(1)), None, "{round}");
        }
        // It is not safe, though, and written anew it is a new error.
        assert_eq!(commit(&written, 1).await, Err(Status::Io));
        assert_eq!(written.take_error(WriterId(1)), None);
        write(&written, 5 * BLOCK, &[4; 4096], 1).await;
        background.write_back(Duration::from_secs(600)).await;
        assert_eq!(written.take_error(WriterId(1)), Some(Status::Io));
    });
    file.state().bad = None;
    run(&disk, async move { cached.close(WriterId(1)).await.unwrap() });
    let data = &file.state().data;
    assert_eq!(data[5 * BLOCK as usize..][..4096], [4; 4096]);
    assert_eq!(data[14 * BLOCK as usize..][..4096], [3; 4096]);
}

#[test]
fn blocks_beside_a_bad_one_are_written() {
    let disk = Disk::new(1, 50);
    let file = disk.file(1, vec![0; 256 * BLOCK as usize]);
    file.state().bad = Some(block_bytes(77..78));
    let unifier = unifier(8 * MIB);
    let cached = open(&unifier, &file);
    run(&disk, async move {
        write(&cached, 0, &[1; 256 * 4096], 1).await;
        assert_eq!(commit(&cached, 1).await, Err(Status::Io));
        assert_eq!(cached.close(WriterId(1)).await, Err(Status::Io));
    });
    let wrong = file.state().data.chunks(4096).position(|block| block != [1; 4096]);
    assert_eq!(wrong, Some(77));
    assert_eq!(file.state().data[78 * 4096..], [1; 178 * 4096]);
    assert_eq!(unifier.stats().lost_bytes, 4096);
}

#[test]
fn a_disk_that_takes_nothing_is_not_asked_block_by_block() {
    for full in [false, true] {
        let disk = Disk::new(1, 50);
        let file = disk.file(1, vec![0; 256 * BLOCK as usize]);
        match full {
            true => file.state().size_max = Some(0),
            false => file.state().bad = Some(0..u64::MAX),
        }
        let unifier = unifier(8 * MIB);
        let cached = open(&unifier, &file);
        run(&disk, async move {
            write(&cached, 0, &[1; 256 * 4096], 1).await;
            assert!(commit(&cached, 1).await.is_err());
        });
        let tries = file.state().tries;
        assert!(tries <= if full { 1 } else { 32 }, "{tries}");
    }
}

#[test]
fn a_range_that_is_written_is_safe_whatever_fails_elsewhere() {
    let disk = Disk::new(1, 50);
    let file = disk.file(1, vec![0; 64 * BLOCK as usize]);
    let other = disk.file(2, Vec::new());
    let unifier = unifier(4 * MIB);
    let (cached, fine) = (open(&unifier, &file), open(&unifier, &other));
    file.state().bad = Some(block_bytes(40..41));
    run(&disk, async move {
        write(&cached, 40 * BLOCK, &[1; 4096], 1).await;
        write(&fine, 0, &[2; 4096], 1).await;
        // The same session, another file.
        assert_eq!(commit(&cached, 1).await, Err(Status::Io));
        assert_eq!(commit(&fine, 1).await, Ok(()));
        assert_eq!(fine.close(WriterId(1)).await, Ok(()));
    });
    assert_eq!(other.state().synced, [2; 4096]);
}

#[test]
fn where_data_lies_is_told_also_of_what_cannot_be_written() {
    let disk = Disk::new(1, 50);
    let file = disk.file(1, Vec::new());
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    file.state().write_error = Some(Status::NoSpc);
    run(&disk, async move {
        write(&cached, 0, &[1; 8192], 1).await;
        use dafs_store::SeekKind;
        assert_eq!(cached.seek(4096, SeekKind::Data).await, Ok(Some(4096)));
        assert_eq!(cached.seek(4096, SeekKind::Hole).await, Ok(Some(8192)));
        assert_eq!(cached.seek(8192, SeekKind::Data).await, Ok(None));
        assert_eq!(cached.seek(8192, SeekKind::Hole).await, Ok(None));
    });
}

#[test]
fn waiters_behind_a_full_disk_are_served_whoever_goes_away() {
    let disk = Disk::new(3, 100);
    let full = disk.file(1, Vec::new());
    let fine = disk.file(2, Vec::new());
    let unifier = unifier(MIB);
    let (stuck, cached) = (open(&unifier, &full), open(&unifier, &fine));
    full.state().write_error = Some(Status::NoSpc);
    let mut block = 0;
    while let Some(mut reservation) = stuck.try_reserve(block * BLOCK, 4096) {
        land(&mut reservation, &[1; 4096]);
        assert!(matches!(stuck.try_commit_write(reservation, writer(1)), Ok(Ok(()))));
        block += 1;
    }
    // The first in line has begun to write back; it is gone before that fails.
    let waiting = stuck.clone();
    let mut first = Task::new(async move { waiting.reserve(0, 4096).await.map(|_| ()) });
    assert!(first.poll().is_none());
    let mut second = Task::new(async move { try_write(&cached, 0, 2, 2).await });
    assert!(second.poll().is_none());
    drop(first);
    loop {
        if let Some(outcome) = second.poll() {
            assert_eq!(outcome, Ok(()));
            break;
        }
        assert!(second.is_woken() || disk.complete_one(), "waits for ever");
    }
}
