//! What others do to a file meanwhile: local programs, and other sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use dafs_protocol::{CommitLevel, Status, Timestamp};

use super::disk::{Disk, Handle, run};
use super::{land, open, read, unifier, unifier_with, write, writer};
use crate::{Config, Opening, WriterId};

const MIB: usize = 1 << 20;

#[test]
fn what_others_wrote_into_a_new_file_stays_when_its_maker_comes_late() {
    for flushed in [false, true] {
        let disk = Disk::new(1, 0);
        let file = disk.file(1, Vec::new());
        let unifier = unifier(MIB);
        // Made, and not yet told to the cache.
        let (mark, attr) = (unifier.mark(), file.attr_now());
        let other = open(&unifier, &file);
        let late = file.clone();
        let maker = run(&disk, async move {
            write(&other, 0, &[5; 5000], 1).await;
            if flushed {
                other.flush().await.expect("flush");
            }
            let handle = Arc::new(Handle(late));
            let maker = unifier.open(mark, WriterId(2), handle, &attr, Opening::Created);
            assert_eq!(read(&maker, 0, 9000).await, vec![5; 5000], "flushed: {flushed}");
            other.close(WriterId(1)).await.expect("close");
            maker
        });
        run(&disk, async move { maker.close(WriterId(2)).await }).expect("close");
        assert_eq!(file.state().data, vec![5; 5000], "flushed: {flushed}");
    }
}

#[test]
fn a_new_file_has_nothing_of_the_one_that_had_its_number() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 5000]);
    let unifier = unifier(MIB);
    let old = open(&unifier, &file);
    run(&disk, async move {
        read(&old, 0, 5000).await;
        old.close(WriterId(1)).await.expect("close");
    });
    // The same size, so that only its being new tells.
    let mark = unifier.mark();
    file.state().data = vec![2; 5000];
    let handle = Arc::new(Handle(file.clone()));
    let new = unifier.open(mark, WriterId(1), handle, &file.attr_now(), Opening::Created);
    let bytes = run(&disk, async move { read(&new, 0, 5000).await });
    assert_eq!(bytes, vec![2; 5000]);
}

#[test]
fn another_birth_is_another_file_however_late_the_answer() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 5000]);
    let unifier = unifier(MIB);
    let born = |seconds| {
        file.state().created = Some(Timestamp { seconds, nanoseconds: 0 });
        file.attr_now()
    };
    let handle = || Arc::new(Handle(file.clone()));
    // The new file is asked for before the last write to the old one, which had its number.
    let mark = unifier.mark();
    let old = unifier.open(mark, WriterId(1), handle(), &born(1), Opening::Existing);
    run(&disk, async move {
        write(&old, 0, &[1; 6000], 1).await;
        old.close(WriterId(1)).await.expect("close");
    });
    file.change(Vec::new());
    let new = unifier.open(mark, WriterId(1), handle(), &born(2), Opening::Created);
    assert_eq!(new.size(), 0);
}

/// Births are counted by ticks of a clock, in one of which a number can be used again.
#[test]
fn another_generation_is_another_file_born_in_the_same_tick() {
    for opening in [Opening::Created, Opening::Existing, Opening::Truncated] {
        let disk = Disk::new(1, 0);
        let file = disk.file(1, vec![1; 5000]);
        let unifier = unifier(MIB);
        file.state().created = Some(Timestamp { seconds: 1, nanoseconds: 0 });
        file.state().generation = Some(1);
        let mark = unifier.mark();
        let old = open(&unifier, &file);
        run(&disk, async move {
            write(&old, 0, &[1; 6000], 1).await;
            old.close(WriterId(1)).await.expect("close");
        });
        file.change(Vec::new());
        file.state().generation = Some(2);
        let handle = Arc::new(Handle(file.clone()));
        let new = unifier.open(mark, WriterId(1), handle, &file.attr_now(), opening);
        assert_eq!(new.size(), 0, "{opening:?}");
        run(&disk, async move {
            write(&new, 0, &[2; 10], 1).await;
            new.close(WriterId(1)).await.expect("close");
        });
        assert_eq!(file.state().data, [2; 10], "{opening:?}");
    }
}

/// The store's times may stand still while a file changes twice.
#[test]
fn each_change_is_another_one_whatever_the_clock_of_the_store() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 5000]);
    let ticks = AtomicI64::new(10);
    let clock =
        move || Timestamp { seconds: ticks.fetch_add(1, Ordering::Relaxed), nanoseconds: 0 };
    let config = Config::new(MIB, Arc::new(clock));
    let unifier = unifier_with(MIB, config);
    let change_after_close = |byte| {
        let cached = open(&unifier, &file);
        run(&disk, async move {
            write(&cached, 0, &[byte; 5000], 1).await;
            cached.close(WriterId(1)).await.expect("close");
        });
        file.state().times = 5;
        let (mark, mut attr) = (unifier.mark(), file.attr_now());
        unifier.overlay(mark, &mut attr);
        attr.change
    };
    let first = change_after_close(2);
    assert!(change_after_close(3) > first);
}

#[test]
fn a_local_change_before_a_write_of_ours_is_seen_after_it() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 12_288]);
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    let local = file.clone();
    run(&disk, async move {
        read(&cached, 0, 12_288).await;
        local.change(vec![2; 12_288]);
        write(&cached, 0, &[3; 4096], 1).await;
        cached.close(WriterId(1)).await.expect("close");
    });
    let again = open(&unifier, &file);
    let bytes = run(&disk, async move { read(&again, 4096, 8192).await });
    assert_eq!(bytes, vec![2; 8192]);
}

#[test]
fn a_local_change_before_new_attributes_of_ours_is_seen_after_them() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 5000]);
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    run(&disk, async move {
        read(&cached, 0, 5000).await;
        cached.close(WriterId(1)).await.expect("close");
    });
    file.change(vec![2; 5000]);
    unifier.look(unifier.mark(), &file.attr_now());
    let mark = unifier.mark();
    file.change(vec![2; 5000]); // the times of our own change
    unifier.note(mark, &file.attr_now());
    let again = open(&unifier, &file);
    assert_eq!(run(&disk, async move { read(&again, 0, 5000).await }), vec![2; 5000]);
}

/// A rename, say, changes neither size nor time of data.
#[test]
fn a_local_write_beside_a_change_of_names_of_ours_is_seen_after_it() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 5000]);
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    run(&disk, {
        let cached = cached.clone();
        async move {
            read(&cached, 0, 5000).await;
        }
    });
    unifier.look(unifier.mark(), &file.attr_now());
    // As long as before, between the look and the change.
    file.change(vec![2; 5000]);
    let mark = unifier.mark();
    let mut attr = file.attr_now();
    attr.changed.seconds += 1; // our own change
    unifier.note_unmodified(mark, &attr);
    let bytes = run(&disk, {
        let cached = cached.clone();
        async move { read(&cached, 0, 5000).await }
    });
    assert_eq!(bytes, vec![2; 5000]);
    // And without a local write nothing is read again.
    let reads = file.state().reads;
    attr.changed.seconds += 1;
    unifier.note_unmodified(unifier.mark(), &attr);
    assert_eq!(run(&disk, async move { read(&cached, 0, 5000).await }), vec![2; 5000]);
    assert_eq!(file.state().reads, reads);
}

#[test]
fn who_opens_a_file_that_takes_time_keeps_nobody_else_waiting() {
    let disk = Disk::new(1, 0);
    let (busy, other) = (disk.file(1, vec![1; 5000]), disk.file(2, vec![1; 5000]));
    let config = Config { closed_files_max: 0, ..super::config(MIB) };
    let unifier = unifier_with(MIB, config);
    let cached = open(&unifier, &busy);
    let dropping = cached.lock();
    std::thread::scope(|scope| {
        let opener = scope.spawn(|| open(&unifier, &busy));
        while cached.opens_coming() == 0 {
            std::thread::yield_now();
        }
        let (done, is_done) = std::sync::mpsc::channel();
        scope.spawn({
            let (unifier, other) = (&unifier, &other);
            move || done.send(open(unifier, other))
        });
        let patience = std::time::Duration::from_secs(30);
        let opened = is_done.recv_timeout(patience);
        drop(dropping);
        assert!(opened.is_ok(), "the table of files is locked meanwhile");
        assert!(Arc::ptr_eq(&opener.join().expect("open"), &cached));
    });
}

#[test]
fn a_file_that_is_about_to_be_opened_is_not_forgotten() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 5000]);
    let unifier = unifier_with(MIB, Config { closed_files_max: 0, ..super::config(MIB) });
    let cached = open(&unifier, &file);
    cached.comes();
    run(&disk, {
        let cached = cached.clone();
        async move { cached.close(WriterId(1)).await }
    })
    .expect("close");
    unifier.forget(cached.id());
    assert!(unifier.find(cached.id()).is_some_and(|found| Arc::ptr_eq(&found, &cached)));
}

#[test]
fn who_closed_one_of_two_opens_is_told_of_lost_writes() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, Vec::new());
    let unifier = unifier(MIB);
    let (first, second) = (open(&unifier, &file), open(&unifier, &file));
    let on_disk = file.clone();
    run(&disk, async move {
        write(&first, 0, &[1; 4096], 1).await;
        second.close(WriterId(1)).await.expect("close");
        on_disk.state().sync_error = Some(Status::Io);
        assert_eq!(
            first.commit(WriterId(2), 0, 0, CommitLevel::File).await.map(|_| ()),
            Err(Status::Io)
        );
        on_disk.state().sync_error = None;
        assert_eq!(
            first.commit(WriterId(1), 0, 0, CommitLevel::File).await.map(|_| ()),
            Err(Status::Io)
        );
    });
}

#[test]
fn what_could_be_written_later_is_not_given_up() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, Vec::new());
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    let on_disk = file.clone();
    run(&disk, async move {
        write(&cached, 0, &[1; 4096], 1).await;
        on_disk.state().write_error = Some(Status::NoSpc);
        assert_eq!(cached.flush().await, Err(Status::NoSpc));
        on_disk.state().write_error = None;
        cached.flush().await.expect("there is room again");
        write(&cached, 4096, &[2; 4096], 1).await;
        assert_eq!(cached.give_up(), Some(0));
        // What cannot be written is, and its writer is told however often.
        on_disk.state().write_error = Some(Status::DQuot);
        assert_eq!(cached.flush().await, Err(Status::DQuot));
        assert_eq!(cached.take_error(WriterId(1)), Some(Status::DQuot));
        assert_eq!(cached.give_up(), Some(1));
        assert_eq!(cached.take_error(WriterId(1)), Some(Status::DQuot));
    });
}

/// The file stays open: nothing but the write-back itself can learn its own times.
#[test]
fn a_local_change_after_a_flush_is_seen_at_the_next_open() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 8192]);
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    let (local, again) = (file.clone(), unifier.clone());
    run(&disk, async move {
        write(&cached, 0, &[2; 4096], 1).await;
        cached.commit(WriterId(1), 0, 0, CommitLevel::File).await.expect("commit");
        assert_eq!(read(&cached, 4096, 4096).await, vec![1; 4096]);
        local.change(vec![3; 8192]);
        let second = open(&again, &local);
        assert_eq!(read(&second, 0, 8192).await, vec![3; 8192]);
        write(&second, 8192, &[4; 10], 2).await;
        second.commit(WriterId(2), 0, 0, CommitLevel::File).await.expect("commit");
        local.change([vec![3; 8192], vec![4; 10], vec![5; 90]].concat());
        let third = open(&again, &local);
        assert_eq!(third.size(), 8292);
        assert_eq!(read(&third, 8192, 100).await, [vec![4; 10], vec![5; 90]].concat());
    });
}

/// Between two of our own writes under way only the size tells.
#[test]
fn a_local_append_among_our_own_writes_is_seen_by_the_size() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 4096]);
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    let local = file.clone();
    run(&disk, async move {
        read(&cached, 0, 4096).await;
        write(&cached, 0, &[2; 4096], 1).await;
        // As if it came between our look and our write.
        local.state().append_at_write = Some(vec![7; 50]);
        cached.commit(WriterId(1), 0, 0, CommitLevel::File).await.expect("commit");
        assert_eq!(cached.size(), 4146);
        assert_eq!(read(&cached, 4096, 100).await, vec![7; 50]);
    });
}

#[test]
fn stores_by_a_mapping_are_seen_at_the_next_open() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 5000]);
    let unifier = unifier(MIB);
    let read_by_open = |expected: u8| {
        let cached = open(&unifier, &file);
        let bytes = run(&disk, async move {
            let bytes = read(&cached, 0, 5000).await;
            cached.close(WriterId(1)).await.expect("close");
            bytes
        });
        assert_eq!(bytes, vec![expected; 5000]);
    };
    read_by_open(1);
    file.change(vec![2; 5000]);
    file.state().unwritten = true;
    read_by_open(2);
    file.store(vec![3; 5000]);
    read_by_open(3);
    // The last one comes before the system writes the page.
    file.store(vec![4; 5000]);
    file.state().unwritten = false;
    read_by_open(4);
    let reads = file.state().reads;
    read_by_open(4);
    assert_eq!(file.state().reads, reads, "nobody can have changed it");
    file.state().tells_nothing = true;
    read_by_open(4);
    file.store(vec![5; 5000]);
    read_by_open(5);
}

/// A mount's kernel keeps data of files that look as they did.
#[test]
fn a_file_with_pages_of_others_looks_changed_at_each_open() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 5000]);
    let ticks = AtomicI64::new(10);
    let clock =
        move || Timestamp { seconds: ticks.fetch_add(1, Ordering::Relaxed), nanoseconds: 0 };
    let unifier = unifier_with(MIB, Config::new(MIB, Arc::new(clock)));
    let change_at_open = || {
        let cached = open(&unifier, &file);
        let (mark, mut attr) = (unifier.mark(), file.attr_now());
        cached.overlay(mark, &mut attr);
        run(&disk, async move { cached.close(WriterId(1)).await }).expect("close");
        attr.change
    };
    let settled = change_at_open();
    assert_eq!(change_at_open(), settled, "nobody can have changed it");
    file.state().unwritten = true;
    let dirty = change_at_open();
    assert!(dirty > settled && change_at_open() > dirty);
    // The last store may have come before the system wrote the page.
    file.state().unwritten = false;
    let last = change_at_open();
    assert!(last > dirty);
    assert_eq!(change_at_open(), last);
}

/// A buffered store leaves them behind with every write.
#[test]
fn pages_that_are_unwritten_by_our_own_writes_stay() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 8192]);
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    let (local, again) = (file.clone(), unifier.clone());
    run(&disk, async move {
        read(&cached, 0, 8192).await;
        write(&cached, 0, &[2; 4096], 1).await;
        cached.commit(WriterId(1), 0, 0, CommitLevel::File).await.expect("commit");
        local.state().unwritten = true;
        let reads = local.state().reads;
        for _ in 0..3 {
            let second = open(&again, &local);
            assert_eq!(read(&second, 4096, 4096).await, vec![1; 4096]);
        }
        assert_eq!(local.state().reads, reads);
        // Somebody else's first store changes the times.
        local.change([vec![2; 4096], vec![3; 4096]].concat());
        let third = open(&again, &local);
        assert_eq!(read(&third, 4096, 4096).await, vec![3; 4096]);
        local.store([vec![2; 4096], vec![4; 4096]].concat());
        let fourth = open(&again, &local);
        assert_eq!(read(&fourth, 4096, 4096).await, vec![4; 4096]);
    });
}

#[test]
fn an_older_answer_does_not_undo_a_newer_one() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 100]);
    let unifier = unifier(MIB);
    let (mark, before) = (unifier.mark(), file.attr_now());
    file.change(vec![2; 200]);
    let new = open(&unifier, &file);
    let handle = Arc::new(Handle(file.clone()));
    let late = unifier.open(mark, WriterId(1), handle, &before, Opening::Existing);
    assert_eq!((new.size(), late.size()), (200, 200));
}

/// As pages of a mapping that are written after somebody else cut the file.
#[test]
fn a_write_within_the_file_does_not_extend_it() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 12_288]);
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    let on_disk = file.clone();
    run(&disk, async move {
        cached.truncate(5000, false).await.expect("cut");
        for (offset, len) in [(0, 12_288), (4096, 4096), (5000, 10), (8192, 4096)] {
            let mut reservation = cached.reserve(offset, len).await.expect("room");
            land(&mut reservation, &vec![2; len]);
            cached.commit_within(reservation, writer(1)).await.expect("write");
            assert_eq!(cached.size(), 5000);
        }
        assert_eq!(read(&cached, 0, 12_288).await, vec![2; 5000]);
        cached.flush().await.expect("flush");
        assert_eq!(on_disk.state().data, vec![2; 5000]);
        cached.truncate(8192, false).await.expect("longer");
        assert_eq!(read(&cached, 4096, 4096).await, [vec![2; 904], vec![0; 3192]].concat());
    });
}

#[test]
fn who_writes_beyond_the_largest_file_is_told_at_once() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![1; 100]);
    file.state().end_max = Some(20_000);
    let unifier = unifier(MIB);
    let cached = open(&unifier, &file);
    run(&disk, async move {
        assert_eq!(cached.reserve(1 << 44, 10).await.map(drop), Err(Status::FBig));
        assert!(cached.try_reserve(19_999, 2).is_none());
        assert_eq!(
            (cached.size(), cached.reserve(19_999, 2).await.map(drop)),
            (100, Err(Status::FBig))
        );
        write(&cached, 19_990, &[2; 10], 1).await;
        let mut reservation = cached.reserve_append(0).await.expect("nothing");
        land(&mut reservation, &[]);
        cached.append(reservation, writer(1)).await.expect("nothing");
        assert_eq!(cached.reserve_append(1).await.map(drop), Err(Status::FBig));
        assert_eq!(cached.size(), 20_000);
    });
}
