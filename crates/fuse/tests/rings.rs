//! Mounts whose requests come by rings. Needs root and a kernel with FUSE over io_uring.

mod common;

use std::collections::HashSet;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::Duration;

use common::{Mounted, TestFs, can_mount, child, until};
use dafs_fabric::mem::Buffer;
use dafs_fuse::kernel::{
    Answer, Caller, FileSystem, InitOptions, MAX_WRITE, MountError, Op, ServeOptions, Unmount,
    Uring, unmount,
};
use dafs_fuse::null::NullFs;

fn by_rings() -> ServeOptions {
    ServeOptions { uring: Uring::On, ..ServeOptions::default() }
}

/// A file of zeros, and who was asked for it.
struct Seen {
    null: NullFs,
    by: Mutex<HashSet<(ThreadId, Option<String>)>>,
    /// Of memory for data.
    bytes_max: usize,
}

impl Seen {
    fn new(bytes_max: usize) -> Arc<Seen> {
        Arc::new(Seen { null: NullFs::new(1 << 20, true), by: Mutex::default(), bytes_max })
    }

    fn threads(&self, name: &str) -> usize {
        let by = self.by.lock().expect("lock");
        by.iter().filter(|(_, of)| of.as_deref() == Some(name)).count()
    }
}

impl FileSystem for Seen {
    fn init(&self, kernel: &mut InitOptions) {
        self.null.init(kernel);
    }

    fn call(&self, caller: &Caller, node: u64, op: Op<'_>, room: &mut Buffer) -> Answer {
        let thread = std::thread::current();
        self.by.lock().expect("lock").insert((thread.id(), thread.name().map(str::to_owned)));
        self.null.call(caller, node, op, room)
    }

    fn buffer(&self, bytes: usize) -> io::Result<Buffer> {
        let is_for_data = bytes == MAX_WRITE as usize;
        let bytes = if is_for_data { bytes.min(self.bytes_max) } else { bytes };
        Buffer::new(bytes).map_err(io::Error::other)
    }

    fn forget(&self, _: u64, _: u64) {}

    fn is_stuck(&self) -> bool {
        false
    }

    fn unmounted(&self) {}
}

#[test]
fn requests_come_by_rings_to_as_many_threads_as_there_are_calls() {
    let Some(_on) = can_mount(Uring::On) else { return };
    let seen = Seen::new(usize::MAX);
    let mount = Mounted::start(seen.clone(), &by_rings());
    let file = File::open(mount.join("file")).expect("open");
    for _ in 0..1000 {
        assert_eq!(file.read_at(&mut [1; 4096], 0).expect("read"), 4096);
    }
    assert_eq!(seen.threads("fuse"), 0, "threads of the device");
    let queues = std::thread::available_parallelism().expect("known").get();
    // One of each queue, and one for what the kernel does beside that.
    let threads = seen.threads("fuse-ring");
    assert!((1..=2 * queues).contains(&threads), "{threads} threads for one call at a time");
}

/// The kernel then takes no more of them, and may ask by the device or by those that it has.
#[test]
fn a_mount_goes_on_where_the_kernel_refuses_entries() {
    let Some(_on) = can_mount(Uring::On) else { return };
    let seen = Seen::new(64 << 10);
    let mount = Mounted::start(seen.clone(), &by_rings());
    let file = File::open(mount.join("file")).expect("open");
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..100 {
                    assert_eq!(file.read_at(&mut [1; 4096], 0).expect("read"), 4096);
                }
            });
        }
    });
    assert!(fs::metadata(mount.join("other")).is_err());
}

#[test]
fn without_rings_the_device_is_used_where_that_is_enough() {
    let Some(_) = can_mount(Uring::Off) else { return };
    let seen = Seen::new(usize::MAX);
    let options = ServeOptions { uring: Uring::Auto, ..ServeOptions::default() };
    let mount = Mounted::start(seen.clone(), &options);
    fs::read(mount.join("file")).expect("read");
    assert!(seen.threads("fuse") + seen.threads("fuse-ring") > 0);
}

#[test]
fn an_end_by_force_ends_calls_that_the_file_system_has() {
    let Some(_on) = can_mount(Uring::On) else { return };
    let test = TestFs::new();
    let mount = Mounted::shared(&test, &by_rings());
    let file = Arc::new(File::open(mount.join("file")).expect("open"));
    let readers: Vec<_> = (0..20)
        .map(|_| {
            let file = file.clone();
            std::thread::spawn(move || file.read_at(&mut [1; 4096], 0))
        })
        .collect();
    until(|| test.blocked.load(Ordering::SeqCst) == 20);
    unmount(mount.dir(), Unmount { lazy: false, force: true }).expect("also in use");
    for reader in readers {
        let error = reader.join().expect("no panic").expect_err("it was ended");
        let errno = error.raw_os_error();
        assert!(matches!(errno, Some(libc::ECONNABORTED | libc::ENOTCONN)), "{error}");
    }
    assert!(!mount.is_ended_by_guard(), "calls were left after an end by force");
    assert_eq!(test.blocked.load(Ordering::SeqCst), 20, "the file system still has them");
    let gone = unmount(mount.dir(), Unmount::default());
    assert!(matches!(gone, Err(MountError::NotMounted)));
}

/// On the CPU where all of these run, so that all their requests are in one queue.
fn on_first_cpu(program: &str, arguments: &[&str]) -> Child {
    let mut command = Command::new("taskset");
    command.args(["-c", "0", program]).args(arguments);
    command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("taskset")
}

#[test]
fn calls_of_one_cpu_that_wait_for_locks_hold_up_no_others() {
    let Some(_on) = can_mount(Uring::On) else { return };
    let test = TestFs::new();
    let options = ServeOptions { lock_waits_max: 40, ..by_rings() };
    let mount = Mounted::shared(&test, &options);
    let path = mount.join("file");
    let path = path.to_str().expect("UTF-8");
    let waiters: Vec<Child> = (0..40).map(|_| on_first_cpu("flock", &[path, "true"])).collect();
    until(|| test.blocked.load(Ordering::SeqCst) == 40);
    let mut one_more = on_first_cpu("flock", &[path, "true"]);
    assert!(!one_more.wait().expect("ends").success(), "too many wait");
    let mut look = on_first_cpu("ls", &["-l", path]);
    assert!(look.wait().expect("ends").success(), "another call goes on");
    let mut last = waiters.into_iter();
    let mut killed = last.next().expect("a waiter");
    killed.kill().expect("kill");
    killed.wait().expect("ends");
    until(|| test.interrupted.load(Ordering::SeqCst) == 1);
    // Gives the lock back without waiting, from the same CPU.
    let mut unlock = on_first_cpu("flock", &["--nonblock", path, "true"]);
    assert!(unlock.wait().expect("ends").success());
    for mut waiter in last {
        assert!(waiter.wait().expect("ends").success());
    }
}

/// Also where the kernel sends no INTERRUPT: the request is on its way to its thread just then.
#[test]
fn a_caller_that_is_killed_at_any_moment_ends_its_call() {
    let Some(_on) = can_mount(Uring::On) else { return };
    let test = TestFs::new();
    let mount = Mounted::shared(&test, &by_rings());
    let path = mount.join("file");
    let begun = |i: u64| {
        let reader = child("cat", &[path.as_path()]);
        std::thread::sleep(Duration::from_micros(i * 40));
        reader
    };
    for mut reader in (0..100).map(begun) {
        reader.kill().expect("kill");
        reader.wait().expect("ends");
    }
    until(|| test.blocked.load(Ordering::SeqCst) == 0);
}
