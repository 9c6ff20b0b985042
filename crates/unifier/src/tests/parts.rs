//! One promise at a time.

use std::sync::Arc;
use std::time::Duration;

use dafs_protocol::{Attr, CommitLevel, Status};

use super::disk::{Disk, Handle, Task, run};
use super::{VERIFIER, bytes, config, fill, land, open, read, unifier, write, writer};
use crate::{Config, Opening, Unifier, WriterId};
use dafs_fabric::Arena;

const MIB: usize = 1 << 20;

#[test]
fn a_cached_mebibyte_is_few_spans() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![5; 3 * MIB]);
    let unifier = unifier(16 * MIB);
    let cached = open(&unifier, &file);
    run(&disk, async move {
        assert_eq!(read(&cached, 0, MIB).await, vec![5; MIB]);
        let lease = cached.try_read(0, MIB).expect("cached");
        assert!(lease.spans().len() <= 16, "{} spans", lease.spans().len());
        write(&cached, MIB as u64, &vec![6; MIB], 1).await;
        let lease = cached.try_read(MIB as u64, MIB).expect("cached");
        assert!(lease.spans().len() <= 16, "{} spans", lease.spans().len());
        assert!(cached.try_read(2 * MIB as u64, MIB).is_none());
    });
    assert_eq!(file.state().reads, 1);
}

#[test]
fn concurrent_misses_share_one_fill() {
    let disk = Disk::new(1, 100);
    let file = disk.file(1, (0..100u8).cycle().take(60_000).collect());
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    let reader = |offset| {
        let cached = cached.clone();
        Task::new(async move { read(&cached, offset, 5000).await })
    };
    let mut readers = [reader(0), reader(4096), reader(30_000)];
    assert!(readers.iter_mut().all(|reader| reader.poll().is_none()));
    assert_eq!(disk.waiting(), 1);
    assert!(disk.complete_one());
    for reader in &mut readers {
        assert_eq!(reader.poll().expect("filled").len(), 5000);
    }
    assert_eq!((file.state().reads, unifier.stats().filled_bytes), (1, 61_440));
}

#[test]
fn a_writer_does_not_wait_for_a_reader_nor_change_what_it_has() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 10_000]);
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    let lease = run(&disk, {
        let cached = cached.clone();
        async move { cached.read(0, 10_000).await.unwrap() }
    });
    let mut reservation = cached.try_reserve(0, 8192).expect("room");
    land(&mut reservation, &[2; 8192]);
    let committed = cached.try_commit_write(reservation, writer(1));
    assert!(matches!(committed, Ok(Ok(()))), "nothing to wait for");
    assert_eq!(bytes(&lease), vec![1; 10_000]);
    assert_eq!(unifier.stats().orphan_bytes, 8192);
    let now = bytes(&cached.try_read(0, 10_000).expect("cached"));
    assert_eq!((&now[..8192], &now[8192..]), (&[2; 8192][..], &[1; 1808][..]));
    drop(lease);
    assert_eq!(unifier.stats().orphan_bytes, 0);
}

#[test]
fn orphans_have_a_bound() {
    let arena = Arena::new(MIB).expect("arena");
    let limits = Config { orphan_bytes_max: 8192, ..config(MIB) };
    let unifier = Unifier::new(arena, limits, VERIFIER);
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 65_536]);
    let cached = open(&unifier, &file);
    let mut leases = Vec::new();
    run(&disk, {
        let cached = cached.clone();
        async move {
            for block in 0..3 {
                write(&cached, block * 4096, &[2; 4096], 1).await;
            }
        }
    });
    for block in 0..3 {
        leases.push(cached.try_read(block * 4096, 4096).expect("cached"));
        let mut reservation = cached.try_reserve(block * 4096, 4096).expect("room");
        land(&mut reservation, &[3; 4096]);
        assert!(matches!(cached.try_commit_write(reservation, writer(1)), Ok(Ok(()))));
    }
    assert!(cached.try_reserve(0, 4096).is_none(), "readers hold too much that was replaced");
    let waiting = cached.clone();
    let mut task = Task::new(async move { waiting.reserve(0, 4096).await.unwrap().len() });
    assert!(task.poll().is_none());
    drop(leases.pop());
    assert_eq!(task.poll(), Some(4096));
}

#[test]
fn what_is_written_wins_over_a_late_fill() {
    let disk = Disk::new(3, 100);
    let file = disk.file(1, vec![1; 65_536]);
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    let reader = cached.clone();
    let mut reader = Task::new(async move { read(&reader, 0, 65_536).await });
    assert!(reader.poll().is_none());
    // Written, flushed and evicted or not: the fill has asked the store before.
    let mut reservation = cached.try_reserve(4096, 4096).expect("room");
    land(&mut reservation, &[2; 4096]);
    assert!(matches!(cached.try_commit_write(reservation, writer(1)), Ok(Ok(()))));
    assert!(disk.complete_one());
    let seen = reader.poll().expect("filled");
    assert_eq!((seen[4095], seen[4096], seen[8191], seen[8192]), (1, 2, 2, 1));
}

#[test]
fn bytes_beyond_the_end_are_zero() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 5000]);
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    run(&disk, {
        let cached = cached.clone();
        async move {
            assert_eq!(read(&cached, 0, 9000).await, [1; 5000]);
            // A hole between the old end and the write, in the same and in other blocks.
            write(&cached, 20_000, &[2; 10], 1).await;
            let mut want = vec![1; 5000];
            want.resize(20_000, 0);
            want.extend_from_slice(&[2; 10]);
            assert_eq!(read(&cached, 0, 30_000).await, want);
            cached.truncate(4500, false).await.unwrap();
            cached.truncate(6000, false).await.unwrap();
            want.truncate(4500);
            want.resize(6000, 0);
            assert_eq!(read(&cached, 0, 30_000).await, want);
            cached.close(WriterId(1)).await.unwrap();
        }
    });
    assert_eq!(file.state().data.len(), 6000);
}

#[test]
fn a_reservation_that_is_dropped_leaves_nothing() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 4096]);
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    let mut reservation = cached.try_reserve(0, 4096).expect("room");
    land(&mut reservation, &[9; 4096]);
    drop(reservation);
    assert_eq!(unifier.stats().dirty_bytes, 0);
    assert_eq!(run(&disk, async move { read(&cached, 0, 4096).await }), [1; 4096]);
}

#[test]
fn a_late_error_is_told_once_to_each_who_wrote() {
    let disk = Disk::new(1, 50);
    let file = disk.file(1, Vec::new());
    let unifier = unifier(MIB);
    let (first, second) = (open(&unifier, &file), open(&unifier, &file));
    let background = unifier.clone();
    let on_disk = file.clone();
    run(&disk, async move {
        write(&first, 0, &[1; 4096], 1).await;
        write(&second, 4096, &[2; 4096], 2).await;
        on_disk.state().write_error = Some(Status::NoSpc);
        background.write_back(Duration::from_secs(60)).await;
        // By a write; the next one is taken again.
        let mut reservation = first.reserve(0, 10).await.unwrap();
        land(&mut reservation, &[3; 10]);
        assert_eq!(first.commit_write(reservation, writer(1)).await, Err(Status::NoSpc));
        assert_eq!(first.take_error(WriterId(1)), None);
        // By COMMIT, which tries again and fails again; the others know already.
        let refused = second.commit(WriterId(2), 0, 0, CommitLevel::File).await;
        assert_eq!(refused.map(|_| ()), Err(Status::NoSpc));
        assert_eq!(second.take_error(WriterId(2)), None);
        assert_eq!(first.take_error(WriterId(1)), None);
        // With space again nothing is lost.
        on_disk.state().write_error = None;
        second.commit(WriterId(2), 0, 0, CommitLevel::File).await.unwrap();
        second.close(WriterId(2)).await.unwrap();
        first.close(WriterId(1)).await.unwrap();
    });
    assert_eq!(file.state().synced, [[1; 4096], [2; 4096]].concat());
}

#[test]
fn close_tells_of_what_is_lost() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![7; 100]);
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    file.state().write_error = Some(Status::Io);
    let outcome = run(&disk, async move {
        write(&cached, 0, &[1; 4096], 1).await;
        cached.close(WriterId(1)).await
    });
    assert_eq!(outcome, Err(Status::Io));
    let stats = unifier.stats();
    assert_eq!((stats.dirty_bytes, stats.resident_bytes, stats.lost_bytes), (0, 0, 4096));
    // What is there now is the store's.
    let cached = open(&unifier, &file);
    assert_eq!(run(&disk, async move { read(&cached, 0, 4096).await }), [7; 100]);
}

#[test]
fn data_that_cannot_be_written_does_not_stop_other_writers() {
    let disk = Disk::new(1, 50);
    let full = disk.file(1, Vec::new());
    let fine = disk.file(2, Vec::new());
    let unifier = unifier(MIB);
    let (stuck, cached) = (open(&unifier, &full), open(&unifier, &fine));
    full.state().write_error = Some(Status::NoSpc);
    let blocked = stuck.clone();
    run(&disk, async move {
        for block in 0..100 {
            write(&blocked, block * 4096, &[1; 4096], 1).await;
        }
        for at in 0..10 {
            write(&cached, at * 50 * 4096, &[2; 50 * 4096], 2).await;
        }
        cached.close(WriterId(2)).await.unwrap();
    });
    assert_eq!(stuck.take_error(WriterId(1)), Some(Status::NoSpc));
    assert_eq!(fine.state().data, vec![2; 500 * 4096]);
    assert!(unifier.stats().lost_bytes > 0);
}

#[test]
fn read_errors_reach_all_who_wait_and_leave_nothing() {
    let disk = Disk::new(1, 100);
    let file = disk.file(1, vec![1; 8192]);
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    file.state().read_error = Some(Status::Io);
    let reader = || {
        let cached = cached.clone();
        Task::new(async move { cached.read(0, 8192).await.map(|lease| lease.len()) })
    };
    let mut readers = [reader(), reader()];
    assert!(readers.iter_mut().all(|reader| reader.poll().is_none()));
    assert!(disk.complete_one());
    assert!(readers.iter_mut().all(|reader| reader.poll() == Some(Err(Status::Io))));
    drop(readers);
    assert_eq!(unifier.stats().resident_bytes, 0);
    file.state().read_error = None;
    assert_eq!(run(&disk, async move { read(&cached, 0, 8192).await }), [1; 8192]);
}

#[test]
fn a_failed_sync_is_told_to_all_who_wrote() {
    let disk = Disk::new(1, 50);
    let file = disk.file(1, Vec::new());
    let unifier = unifier(MIB);
    let (first, second) = (open(&unifier, &file), open(&unifier, &file));
    file.state().sync_error = Some(Status::Io);
    let on_disk = file.clone();
    run(&disk, async move {
        write(&first, 0, &[1; 10], 1).await;
        write(&second, 10, &[1; 10], 2).await;
        assert_eq!(first.commit(WriterId(1), 0, 0, CommitLevel::Data).await, Err(Status::Io));
        on_disk.state().sync_error = None;
        assert_eq!(first.commit(WriterId(1), 0, 0, CommitLevel::Data).await, Ok(VERIFIER));
        assert_eq!(second.commit(WriterId(2), 0, 0, CommitLevel::Data).await, Err(Status::Io));
        assert_eq!(second.commit(WriterId(2), 0, 0, CommitLevel::Data).await, Ok(VERIFIER));
    });
}

#[test]
fn commits_share_a_sync_that_began_after_them() {
    let disk = Disk::new(1, 100);
    let file = disk.file(1, Vec::new());
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    let commit = |cached: &Arc<crate::CachedFile>| {
        let cached = cached.clone();
        Task::new(async move { cached.commit(WriterId(1), 0, 0, CommitLevel::File).await })
    };
    let mut first = commit(&cached);
    assert!(first.poll().is_none());
    // These come while that one is under way.
    let mut others: Vec<_> = (0..5).map(|_| commit(&cached)).collect();
    assert!(others.iter_mut().all(|other| other.poll().is_none()));
    assert!(disk.complete_one());
    assert_eq!(first.poll(), Some(Ok(VERIFIER)));
    assert!(others.iter_mut().all(|other| other.poll().is_none()));
    assert!(disk.complete_one());
    assert!(others.iter_mut().all(|other| other.poll() == Some(Ok(VERIFIER))));
    assert_eq!(file.state().syncs, 2);
}

#[test]
fn pages_stay_after_close_until_somebody_else_changes_the_file() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 10_000]);
    let unifier = unifier(MIB);
    let session = |data: Option<u8>| {
        let (cached, disk) = (open(&unifier, &file), disk.clone());
        run(&disk, async move {
            if let Some(byte) = data {
                write(&cached, 0, &[byte; 4096], 1).await;
            }
            let seen = read(&cached, 0, 20_000).await;
            cached.close(WriterId(1)).await.unwrap();
            seen
        })
    };
    session(Some(2));
    let reads = file.state().reads;
    // Our own write-back has changed the times: that is no change by somebody else.
    assert_eq!(session(None)[0], 2);
    assert_eq!(file.state().reads, reads);
    file.change(vec![3; 12_000]);
    assert_eq!(session(None), [3; 12_000]);
    // The server's own SETATTR neither.
    let reads = file.state().reads;
    let mark = unifier.mark();
    file.change(vec![3; 12_000]);
    unifier.note(mark, &file.attr_now());
    session(None);
    assert_eq!(file.state().reads, reads);
}

#[test]
fn a_local_change_does_not_take_dirty_data() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 12_288]);
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    run(&disk, {
        let cached = cached.clone();
        async move {
            read(&cached, 0, 12_288).await;
            write(&cached, 4096, &[2; 4096], 1).await;
        }
    });
    file.change(vec![3; 12_288]);
    open(&unifier, &file);
    let seen = run(&disk, async move { read(&cached, 0, 12_288).await });
    assert_eq!(seen, [[3; 4096], [2; 4096], [3; 4096]].concat());
}

#[test]
fn attributes_show_what_the_store_does_not_have() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 10]);
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    run(&disk, {
        let cached = cached.clone();
        async move { write(&cached, 0, &[2; 9000], 1).await }
    });
    let (mark, before) = (unifier.mark(), file.attr_now());
    let mut attr = before;
    unifier.overlay(mark, &mut attr);
    assert_eq!((attr.size, attr.allocated), (9000, 12_288));
    assert!(attr.modified > before.modified && attr.change > before.change);
    run(&disk, async move { cached.close(WriterId(1)).await.unwrap() });
    // Asked before the write-back, corrected after it. The change stays the one that was told.
    let change = attr.change;
    let mut attr = before;
    unifier.overlay(mark, &mut attr);
    assert_eq!(attr, Attr { accessed: before.accessed, change, ..file.attr_now() });
}

#[test]
fn a_writer_waits_at_the_dirty_bound_and_goes_on_by_write_back() {
    let disk = Disk::new(1, 100);
    let file = disk.file(1, Vec::new());
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    let mut block = 0;
    while let Some(mut reservation) = cached.try_reserve(block * 4096, 4096) {
        land(&mut reservation, &[1; 4096]);
        assert!(matches!(cached.try_commit_write(reservation, writer(1)), Ok(Ok(()))));
        block += 1;
    }
    assert_eq!(unifier.stats().dirty_bytes, MIB as u64 / 2);
    assert!(unifier.write_back_due(Duration::ZERO));
    let waiting = cached.clone();
    let mut task = Task::new(async move { waiting.reserve(0, 4096).await.unwrap().len() });
    assert!(task.poll().is_none());
    // It asks for the attributes first.
    for _ in 0..2 {
        assert_eq!(disk.waiting(), 1, "the waiter has begun to write back");
        assert!(disk.complete_one());
        while task.is_woken() {
            if let Some(len) = task.poll() {
                assert_eq!(len, 4096);
                return;
            }
        }
    }
    panic!("the waiter was not woken");
}

#[test]
fn write_back_takes_what_is_old_in_the_order_of_offsets() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, Vec::new());
    let unifier = unifier(16 * MIB);
    let cached = open(&unifier, &file);
    let background = unifier.clone();
    let on_disk = file.clone();
    run(&disk, async move {
        for block in [9, 3, 1, 2, 600, 8] {
            write(&cached, block * 4096, &[1; 4096], 1).await;
        }
        background.write_back(Duration::from_secs(4)).await;
        assert!(on_disk.state().writes.is_empty(), "not old yet");
        background.write_back(Duration::from_secs(5)).await;
    });
    let writes = [(4096, 12_288), (32_768, 8192), (600 * 4096, 4096)];
    assert_eq!(file.state().writes, writes);
    assert_eq!(unifier.stats().dirty_bytes, 0);
}

#[test]
fn closed_files_are_forgotten_beyond_their_bound() {
    let disk = Disk::new(1, 0);
    let limits = Config { closed_files_max: 3, ..config(MIB) };
    let unifier = Unifier::new(Arena::new(MIB).expect("arena"), limits, VERIFIER);
    for inode in 0..20 {
        let file = disk.file(inode, vec![1; 100]);
        let cached = open(&unifier, &file);
        run(&disk, async move {
            read(&cached, 0, 100).await;
            cached.close(WriterId(1)).await.unwrap();
        });
        assert_eq!(Arc::strong_count(&file), 1, "the store's file is let go");
    }
    assert_eq!((unifier.stats().files, unifier.stats().resident_bytes), (3, 3 * 4096));
}

#[test]
fn a_cut_at_open_comes_after_writes_under_way() {
    let disk = Disk::new(1, 100);
    let file = disk.file(1, Vec::new());
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    fill(&cached, 0, 100, 1);
    let flushing = cached.clone();
    let mut flush = Task::new(async move { flushing.flush().await });
    assert!(flush.poll().is_none());
    let mark = unifier.mark();
    file.change(Vec::new());
    let attr = file.attr_now();
    let again =
        unifier.open(mark, WriterId(1), Arc::new(Handle(file.clone())), &attr, Opening::Truncated);
    assert_eq!(again.size(), 0);
    let cutting = again.clone();
    run(&disk, async move { cutting.cut_at_open().await });
    assert_eq!(file.state().data, [], "not even what was written late");
    run(&disk, async move {
        write(&again, 0, &[2; 10], 1).await;
        again.close(WriterId(1)).await.unwrap();
    });
    assert_eq!(file.state().data, [2; 10]);
}

#[test]
fn work_goes_on_when_its_caller_is_gone() {
    let disk = Disk::new(1, 100);
    let file = disk.file(1, Vec::new());
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    fill(&cached, 0, 100, 1);
    let closing = cached.clone();
    let mut close = Task::new(async move { closing.close(WriterId(1)).await });
    assert!(close.poll().is_none());
    drop(close);
    while disk.complete_one() {
        assert!(unifier.write_back_due(Duration::ZERO), "somebody must go on with it");
        let background = unifier.clone();
        run(&disk, async move { background.write_back(Duration::ZERO).await });
    }
    assert_eq!(file.state().data, [1; 100]);
    assert_eq!(Arc::strong_count(&file), 1, "closed");
}

#[test]
fn the_last_close_to_end_lets_go_and_not_the_first() {
    for seed in 0..20 {
        let disk = Disk::new(seed, 100);
        let file = disk.file(1, Vec::new());
        let unifier = unifier(MIB);
        let (first, second) = (open(&unifier, &file), open(&unifier, &file));
        let fill = |block: u64, byte: u8| {
            let mut reservation = first.try_reserve(block * 4096, 4096).expect("room");
            land(&mut reservation, &[byte; 4096]);
            assert!(matches!(first.try_commit_write(reservation, writer(2)), Ok(Ok(()))));
        };
        fill(0, 1);
        let closing = first.clone();
        let mut one = Task::new(async move { closing.close(WriterId(1)).await });
        assert!(one.poll().is_none());
        while file.state().writes.is_empty() {
            assert!(disk.complete_one() && one.poll().is_none());
        }
        // Behind the flush of the first close, and more than one flush writes at a time.
        (0..12).for_each(|block| fill(2 * block, 2));
        let mut two = Task::new(async move { second.close(WriterId(2)).await });
        let (mut first_end, mut second_end) = (None, two.poll());
        while first_end.is_none() || second_end.is_none() {
            first_end = first_end.or_else(|| one.poll());
            second_end = second_end.or_else(|| two.poll());
            let woken =
                (first_end.is_none() && one.is_woken()) || (second_end.is_none() && two.is_woken());
            let is_over = first_end.is_some() && second_end.is_some();
            assert!(is_over || woken || disk.complete_one(), "waits for ever");
        }
        assert_eq!((first_end, second_end), (Some(Ok(())), Some(Ok(()))), "seed {seed}");
        let written =
            (0..12).all(|block| file.state().data[2 * block * 4096..][..4096] == [2; 4096]);
        assert!(written, "seed {seed}");
    }
}

#[test]
fn several_pieces_are_reserved_together_or_not_at_all() {
    let disk = Disk::new(1, 100);
    let file = disk.file(1, Vec::new());
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    let pieces = [(0, 100_000), (500_000, 100_000)];
    let reserve = || {
        let cached = cached.clone();
        Task::new(async move { cached.reserve_all(&pieces).await.unwrap() })
    };
    let (mut first, mut second, mut third) = (reserve(), reserve(), reserve());
    let held = (first.poll().expect("room"), second.poll().expect("room"));
    let bytes = unifier.stats().dirty_bytes;
    assert!(third.poll().is_none());
    assert_eq!(unifier.stats().dirty_bytes, bytes, "it holds nothing while it waits");
    drop(held.0);
    assert_eq!(third.poll().expect("room").len(), 2);
    let cached = cached.clone();
    let too_much = run(&disk, async move {
        cached.reserve_all(&[(0, 200_000), (300_000, 200_000)]).await.map(|_| ())
    });
    assert_eq!(too_much, Err(Status::Inval));
}

#[test]
fn sequential_reads_stay_in_whole_frames_after_random_ones() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 16 * MIB]);
    let unifier = unifier(4 * MIB);
    let cached = open(&unifier, &file);
    run(&disk, async move {
        // Single slots everywhere: every second block.
        for nth in 0..2000 {
            read(&cached, 4096 * (2 * nth % 4095), 4096).await;
        }
        let mut spans = 0;
        for nth in 0..64 {
            let lease = cached.read(nth * 131_072, 131_072).await.unwrap();
            spans += lease.spans().len();
        }
        assert!(spans < 64 * 6, "{spans} spans for 64 reads of 32 blocks");
    });
}
