//! File systems of ours, mounted, and real programs that use them. Needs root and `/dev/fuse`.

mod common;

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use common::{Mounted, TestFs, can_mount, child, dd, signal, state, until};
use dafs_fuse::kernel::{MountError, ServeOptions, Unmount, Uring, is_on_mount, unmount};
use dafs_fuse::null::NullFs;

const MIB: u64 = 1 << 20;

/// Each of them, where requests come by the device, and where they come by rings.
macro_rules! by_each_way {
    ($($test:ident)*) => {
        mod by_device {
            $(#[test] fn $test() { super::$test(super::Uring::Off); })*
        }
        mod by_rings {
            $(#[test] fn $test() { super::$test(super::Uring::On); })*
        }
    };
}

by_each_way! {
    one_file_of_zeros_is_there
    nothing_is_left_of_a_mount_that_is_ended_by_force
    many_read_at_the_same_time
    a_killed_caller_ends_its_call
    a_signal_that_is_handled_ends_no_call
    a_signal_ends_a_call_that_waits_for_a_lost_server
    a_process_that_ends_does_not_wait_for_a_lost_server_to_close_files
    interrupts_reach_their_calls_when_all_threads_are_blocked
    whoever_holds_a_lock_finds_a_thread_to_give_it_back
    a_signal_ends_waiting_for_a_lock
    a_panic_answers_an_error_and_the_thread_goes_on
    the_kernel_forgets_what_it_is_told_to_forget
}

fn served(uring: Uring) -> ServeOptions {
    ServeOptions { uring, ..ServeOptions::default() }
}

fn one_file_of_zeros_is_there(uring: Uring) {
    let Some(_on) = can_mount(uring) else { return };
    let mount = Mounted::new(NullFs::new(10 * MIB + 1, false), &served(uring));
    let names: Vec<_> = fs::read_dir(mount.dir()).expect("list").flatten().collect();
    assert_eq!(names.len(), 1);
    assert_eq!(names[0].file_name(), "file");
    let path = mount.join("file");
    let meta = fs::metadata(&path).expect("stat");
    assert_eq!((meta.len(), meta.mode() & 0o7777), (10 * MIB + 1, 0o666));
    assert!(fs::metadata(mount.join("other")).is_err());
    let bytes = fs::read(&path).expect("read");
    assert_eq!(bytes.len() as u64, 10 * MIB + 1);
    assert!(bytes.iter().all(|byte| *byte == 0));
    let mut file = OpenOptions::new().write(true).open(&path).expect("open");
    file.write_all(&vec![7; 3 << 20]).expect("write");
    file.sync_all().expect("fsync");
}

fn nothing_is_left_of_a_mount_that_is_ended_by_force(uring: Uring) {
    let Some(_on) = can_mount(uring) else { return };
    let mount = Mounted::new(NullFs::new(MIB, true), &served(uring));
    let file = File::open(mount.join("file")).expect("open");
    let end = |force| unmount(mount.dir(), Unmount { lazy: false, force });
    assert!(matches!(end(false), Err(MountError::Busy)));
    assert_eq!(file.read_at(&mut [1; 10], 0).expect("it lives on"), 10);
    end(true).expect("also while a file is open");
    assert!(!is_on_mount(mount.dir()).expect("table of mounts"));
    let error = file.read_at(&mut [1; 10], 0).expect_err("it is gone");
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
    assert!(matches!(end(true), Err(MountError::NotMounted)));
}

fn many_read_at_the_same_time(uring: Uring) {
    let Some(_on) = can_mount(uring) else { return };
    let mount = Mounted::new(NullFs::new(64 * MIB, true), &served(uring));
    let path = mount.join("file");
    std::thread::scope(|scope| {
        for reader in 0..16u64 {
            let path = &path;
            scope.spawn(move || {
                let file = File::open(path).expect("open");
                let mut into = vec![1; 1 << 20];
                for at in 0..16 {
                    let offset = (reader * 16 + at) % 64 * MIB;
                    file.read_exact_at(&mut into, offset).expect("read");
                    assert!(into.iter().all(|byte| *byte == 0));
                    into.fill(1);
                }
            });
        }
    });
}

fn a_killed_caller_ends_its_call(uring: Uring) {
    let Some(_on) = can_mount(uring) else { return };
    let test = TestFs::new();
    let mount = Mounted::shared(&test, &served(uring));
    let mut reader = child("cat", &[mount.join("file").as_path()]);
    until(|| test.blocked.load(Ordering::SeqCst) == 1);
    reader.kill().expect("kill");
    reader.wait().expect("ends");
    until(|| test.interrupted.load(Ordering::SeqCst) == 1);
    assert_eq!(test.blocked.load(Ordering::SeqCst), 0);
}

fn a_signal_that_is_handled_ends_no_call(uring: Uring) {
    let Some(_on) = can_mount(uring) else { return };
    let test = TestFs::new();
    let mount = Mounted::shared(&test, &served(uring));
    let mut dd = dd(&mount.join("file"));
    until(|| test.blocked.load(Ordering::SeqCst) == 1);
    // The kernel lets it wait uninterruptibly after it has
    // sent the interrupt; then the next request comes after that.
    signal(&dd, "USR1");
    until(|| state(&dd) == 'D');
    assert!(fs::metadata(mount.join("other")).is_err());
    assert_eq!(test.blocked.load(Ordering::SeqCst), 1);
    test.release();
    assert!(dd.wait().expect("ends").success());
    assert_eq!(test.interrupted.load(Ordering::SeqCst), 0);
}

fn a_signal_ends_a_call_that_waits_for_a_lost_server(uring: Uring) {
    let Some(_on) = can_mount(uring) else { return };
    let test = TestFs::new();
    let mount = Mounted::shared(&test, &served(uring));
    let mut dd = dd(&mount.join("file"));
    until(|| test.blocked.load(Ordering::SeqCst) == 1);
    signal(&dd, "USR1");
    until(|| state(&dd) == 'D');
    // Also when the server is lost only later.
    test.stuck.store(true, Ordering::SeqCst);
    until(|| test.interrupted.load(Ordering::SeqCst) == 1);
    test.release();
    dd.wait().expect("ends");
}

fn a_process_that_ends_does_not_wait_for_a_lost_server_to_close_files(uring: Uring) {
    let Some(_on) = can_mount(uring) else { return };
    let test = TestFs::new();
    test.block_flush.store(true, Ordering::SeqCst);
    test.stuck.store(true, Ordering::SeqCst);
    let mount = Mounted::shared(&test, &served(uring));
    let mut reader = child("cat", &[mount.join("file").as_path()]);
    until(|| test.blocked.load(Ordering::SeqCst) == 1);
    reader.kill().expect("kill");
    reader.wait().expect("ends");
    until(|| test.interrupted.load(Ordering::SeqCst) == 2);
}

fn interrupts_reach_their_calls_when_all_threads_are_blocked(uring: Uring) {
    let Some(_on) = can_mount(uring) else { return };
    let test = TestFs::new();
    let mount = Mounted::shared(&test, &served(uring));
    let path = mount.join("file");
    let mut first = child("cat", &[path.as_path()]);
    until(|| test.blocked.load(Ordering::SeqCst) == 1);
    let file = Arc::new(File::open(&path).expect("open"));
    let readers: Vec<_> = (0..300)
        .map(|_| {
            let file = file.clone();
            std::thread::spawn(move || file.read_at(&mut [1; 4096], 0).expect("read"))
        })
        .collect();
    // By rings there is a thread for each; else the last one reads what cannot be done yet.
    let all = if uring == Uring::Off { 255 } else { 301 };
    until(|| test.blocked.load(Ordering::SeqCst) == all);
    first.kill().expect("kill");
    until(|| test.interrupted.load(Ordering::SeqCst) == 1);
    test.release();
    first.wait().expect("ends");
    for reader in readers {
        assert_eq!(reader.join().expect("reader"), 4096);
    }
}

fn whoever_holds_a_lock_finds_a_thread_to_give_it_back(uring: Uring) {
    let Some(_on) = can_mount(uring) else { return };
    let test = TestFs::new();
    let options = ServeOptions { threads_max: 2, threads_idle: 2, lock_waits_max: 20, uring };
    let mount = Mounted::shared(&test, &options);
    let path = mount.join("file");
    let waiters: Vec<_> = (0..20)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || File::open(path).expect("open").lock().is_ok())
        })
        .collect();
    until(|| test.blocked.load(Ordering::SeqCst) == 20);
    if uring == Uring::Off {
        // By rings each CPU has as many.
        let one_more = File::open(&path).expect("open").lock();
        assert_eq!(one_more.expect_err("too many").raw_os_error(), Some(libc::ENOLCK));
    }
    File::open(&path).expect("open").unlock().expect("unlock");
    assert!(waiters.into_iter().all(|waiter| waiter.join().expect("waiter")));
}

fn a_signal_ends_waiting_for_a_lock(uring: Uring) {
    let Some(_on) = can_mount(uring) else { return };
    let test = TestFs::new();
    let mount = Mounted::shared(&test, &served(uring));
    let mut waiter =
        Command::new("flock").arg(mount.join("file")).arg("true").spawn().expect("flock");
    until(|| test.blocked.load(Ordering::SeqCst) == 1);
    signal(&waiter, "TERM");
    assert!(!waiter.wait().expect("ends").success());
    until(|| test.interrupted.load(Ordering::SeqCst) == 1);
}

fn a_panic_answers_an_error_and_the_thread_goes_on(uring: Uring) {
    let Some(_on) = can_mount(uring) else { return };
    let test = TestFs::new();
    let mount = Mounted::shared(&test, &served(uring));
    for _ in 0..20 {
        let error = fs::metadata(mount.join("panic")).expect_err("it panics");
        assert_eq!(error.raw_os_error(), Some(libc::EIO));
    }
    assert!(fs::metadata(mount.join("file")).is_ok());
}

fn the_kernel_forgets_what_it_is_told_to_forget(uring: Uring) {
    let Some(_on) = can_mount(uring) else { return };
    let test = TestFs::new();
    test.release();
    let mount = Mounted::shared(&test, &served(uring));
    let mut file = File::open(mount.join("file")).expect("open");
    file.read_exact(&mut [1; 4096]).expect("read");
    let reads = test.reads.load(Ordering::SeqCst);
    let again = || file.read_at(&mut [1; 4096], 0).expect("read");
    again();
    let direct = test.reads.load(Ordering::SeqCst);
    assert_eq!(direct, reads + 1, "direct I/O is never kept");
    let notifier = test.notifier();
    let unknown = notifier.inval_inode(77, 0, 0).expect_err("no such node");
    assert_eq!(unknown.raw_os_error(), Some(libc::ENOENT));
    notifier.inval_inode(2, 0, 0).expect("known");
    let lookups = test.lookups.load(Ordering::SeqCst);
    assert!(fs::metadata(mount.join("file")).is_ok());
    assert_eq!(test.lookups.load(Ordering::SeqCst), lookups, "the name is kept");
    notifier.inval_entry(1, b"file").expect("known");
    assert!(fs::metadata(mount.join("file")).is_ok());
    assert_eq!(test.lookups.load(Ordering::SeqCst), lookups + 1);
}
