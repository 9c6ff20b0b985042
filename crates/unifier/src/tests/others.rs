//! What others do to a file meanwhile: local programs, and other sessions.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use dafs_protocol::{CommitLevel, Status, Timestamp};

use super::disk::{Disk, Handle, run};
use super::{open, read, unifier, unifier_with, write};
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
