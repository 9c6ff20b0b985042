//! A mount for the time of a test, and a file system that blocks.

#![allow(dead_code, reason = "each test program uses a part")]

mod switched_on;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use dafs_fabric::mem::Buffer;
use dafs_fuse::kernel::{
    Answer, Caller, FileSystem, InitOptions, Mount, MountError, MountOptions, Notifier, Op,
    ServeOptions, Unmount, Uring, abi, is_interrupted, serve, unmount,
};
use dafs_fuse::null::NullFs;
use switched_on::SwitchedOn;

/// Where not, says so. To be kept while something is mounted.
pub fn can_mount(uring: Uring) -> Option<Option<SwitchedOn>> {
    let can = Path::new("/proc/self").exists() && is_root() && can_try();
    if !can {
        println!("skipped: needs root, /dev/fuse and the right to mount");
        return None;
    }
    if uring == Uring::Off {
        return Some(None);
    }
    SwitchedOn::new().map(Some).inspect_err(|why| println!("{why}")).ok()
}

/// Containers have root and the device, and forbid to mount.
fn can_try() -> bool {
    let dir = new_directory();
    let mount = Mount::new(&dir, &how());
    let can = mount.is_ok_and(|(mount, _)| mount.end().expect("unmounted"));
    let _ = std::fs::remove_dir(&dir);
    can
}

fn how() -> MountOptions {
    MountOptions { source: "null".into(), ..MountOptions::default() }
}

fn new_directory() -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    tempfile::Builder::new()
        .prefix("dafs-fuse-")
        .permissions(PermissionsExt::from_mode(0o755))
        .tempdir()
        .expect("a new directory")
        .keep()
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|meta| meta.uid() == 0)
}

/// A mount in a directory of its own, gone at the end.
pub struct Mounted {
    mount: Mount,
    server: Option<JoinHandle<std::io::Result<()>>>,
    release: Option<Arc<TestFs>>,
    guard: Guard,
}

/// Ends a mount that hangs, so that its test fails and holds up nobody.
struct Guard {
    has_ended_it: Arc<AtomicBool>,
    /// Dropped at the end.
    _done: Sender<()>,
}

const PATIENCE: Duration = Duration::from_secs(100);

impl Guard {
    fn of(dir: PathBuf, blocks: Option<Arc<TestFs>>) -> Guard {
        let has_ended_it = Arc::new(AtomicBool::new(false));
        let (_done, is_done) = channel();
        let ends = has_ended_it.clone();
        std::thread::spawn(move || {
            if is_done.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
                eprintln!("{} hangs: ended by force", dir.display());
                ends.store(true, Ordering::SeqCst);
                // It may be mounted nowhere any more, and calls be left all the same.
                blocks.inspect(|fs| fs.release());
                let _ = unmount(&dir, Unmount { lazy: true, force: true });
            }
        });
        Guard { has_ended_it, _done }
    }
}

impl Mounted {
    pub fn new<F: FileSystem>(fs: F, options: &ServeOptions) -> Mounted {
        Mounted::start(Arc::new(fs), options)
    }

    pub fn shared(fs: &Arc<TestFs>, options: &ServeOptions) -> Mounted {
        Mounted::guarded(fs.clone(), options, Some(fs.clone()))
    }

    pub fn start<F: FileSystem>(fs: Arc<F>, options: &ServeOptions) -> Mounted {
        Mounted::guarded(fs, options, None)
    }

    fn guarded<F: FileSystem>(
        fs: Arc<F>,
        options: &ServeOptions,
        release: Option<Arc<TestFs>>,
    ) -> Mounted {
        let dir = new_directory();
        let (mount, channel) = Mount::new(&dir, &how()).expect("mount");
        let options = options.clone();
        let server = std::thread::spawn(move || serve(&channel, fs, &options));
        let guard = Guard::of(mount.dir().to_owned(), release.clone());
        Mounted { mount, server: Some(server), release, guard }
    }

    pub fn dir(&self) -> &Path {
        self.mount.dir()
    }

    /// It hung.
    pub fn is_ended_by_guard(&self) -> bool {
        self.guard.has_ended_it.load(Ordering::SeqCst)
    }

    pub fn join(&self, name: &str) -> PathBuf {
        self.dir().join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Some(fs) = &self.release {
            fs.release();
        }
        match unmount(self.dir(), Unmount { lazy: true, force: std::thread::panicking() }) {
            Ok(()) | Err(MountError::NotMounted) => {}
            Err(error) => panic!("unmount: {error}"),
        }
        let served = self.server.take().expect("once").join().expect("no panic");
        served.expect("ended by the unmount");
        std::fs::remove_dir(self.dir()).expect("nothing is mounted there any more");
    }
}

/// One file, by direct I/O; reads and locks wait for [`release`](TestFs::release) or an interrupt.
pub struct TestFs {
    null: NullFs,
    released: AtomicBool,
    pub stuck: AtomicBool,
    pub block_flush: AtomicBool,
    /// Calls that wait.
    pub blocked: AtomicU32,
    /// Calls that were interrupted.
    pub interrupted: AtomicU32,
    pub reads: AtomicU32,
    pub lookups: AtomicU32,
    notifier: Mutex<Option<Notifier>>,
}

impl TestFs {
    pub fn new() -> Arc<TestFs> {
        Arc::new(TestFs {
            null: NullFs::new(4096, true),
            released: AtomicBool::new(false),
            stuck: AtomicBool::new(false),
            block_flush: AtomicBool::new(false),
            blocked: AtomicU32::new(0),
            interrupted: AtomicU32::new(0),
            reads: AtomicU32::new(0),
            lookups: AtomicU32::new(0),
            notifier: Mutex::new(None),
        })
    }

    pub fn release(&self) {
        self.released.store(true, Ordering::SeqCst);
    }

    pub fn notifier(&self) -> Notifier {
        self.notifier.lock().expect("lock").clone().expect("initialised")
    }

    fn block(&self) -> Option<Answer> {
        self.blocked.fetch_add(1, Ordering::SeqCst);
        while !self.released.load(Ordering::SeqCst) && !is_interrupted() {
            std::thread::sleep(Duration::from_millis(20));
        }
        self.blocked.fetch_sub(1, Ordering::SeqCst);
        if self.released.load(Ordering::SeqCst) {
            return None;
        }
        self.interrupted.fetch_add(1, Ordering::SeqCst);
        Some(Answer::Error(libc::EINTR))
    }
}

impl FileSystem for TestFs {
    fn init(&self, kernel: &mut InitOptions) {
        assert!(kernel.offered & abi::init::BIG_WRITES != 0);
        *self.notifier.lock().expect("lock") = Some(kernel.notifier());
    }

    fn call(&self, caller: &Caller, node: u64, op: Op<'_>, room: &mut Buffer) -> Answer {
        match op {
            Op::Lookup { name: b"panic" } => panic!("as the test wants"),
            Op::Lookup { .. } => {
                self.lookups.fetch_add(1, Ordering::SeqCst);
            }
            Op::Read { .. } => {
                self.reads.fetch_add(1, Ordering::SeqCst);
                if let Some(interrupted) = self.block() {
                    return interrupted;
                }
            }
            Op::Flush { .. } if self.block_flush.load(Ordering::SeqCst) => {
                return self.block().unwrap_or(Answer::Done);
            }
            Op::SetLk { wait: true, flock, .. } => {
                assert!(flock);
                return self.block().unwrap_or(Answer::Done);
            }
            Op::SetLk { .. } => {
                self.release();
                return Answer::Done;
            }
            Op::Flush { .. } => return Answer::Done,
            _ => {}
        }
        self.null.call(caller, node, op, room)
    }

    fn forget(&self, _: u64, _: u64) {}

    fn is_stuck(&self) -> bool {
        self.stuck.load(Ordering::SeqCst)
    }

    fn unmounted(&self) {}
}

/// Waits until `done`, and does not hang where that never comes.
pub fn until(done: impl Fn() -> bool) {
    for _ in 0..30_000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    panic!("it never came");
}

/// A program with paths as arguments.
pub fn child(program: &str, paths: &[&Path]) -> Child {
    let mut command = Command::new(program);
    command.args(paths).stdout(Stdio::null()).spawn().expect(program)
}

/// Reads the first page of a file. On `USR1` it prints how far it is, and goes on.
pub fn dd(path: &Path) -> Child {
    let mut command = Command::new("dd");
    command.arg(format!("if={}", path.display())).args(["of=/dev/null", "bs=4k", "count=1"]);
    command.stderr(Stdio::null()).spawn().expect("dd")
}

/// Sends a signal by name.
pub fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", name, &pid]).status().expect("kill").success());
}

/// What the kernel says a process does: `S` waits, `D` waits and cannot be interrupted.
pub fn state(child: &Child) -> char {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("alive");
    let (_, rest) = stat.rsplit_once(") ").expect("stat");
    rest.chars().next().expect("state")
}
