//! Random changes of names and attributes by several users, done through the store and, by
//! processes of these users, directly in a twin directory: each answers alike, and both trees
//! stay alike.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;

use dafs_protocol::{
    CreateMode, FileHandle, FileKind, Identity, OpenFlags, SetAttr, SetTime, Status, Timestamp,
};
use dafs_store::{Caller, Store};
use dafs_store_posix::{HandleKey, PosixOptions, PosixStore};
use nix::errno::Errno;
use nix::fcntl::{AT_FDCWD, AtFlags, OFlag, RenameFlags, open, renameat2};
use nix::sys::stat::{self, Mode, SFlag, UtimensatFlags, utimensat};
use nix::sys::time::TimeSpec;
use nix::unistd::{AccessFlags, Gid, Uid, UnlinkatFlags, access, fchownat, linkat, unlinkat};

const WHO: &str = "DAFS_TWIN_WHO";
/// Results of a worker begin with it, to tell them from what the test harness prints.
const RESULT: &str = "result ";

/// What is done. Paths are relative to the tree.
#[derive(Debug, Clone)]
enum Step {
    Mkdir(String, u32),
    Open(String, i32, u32),
    Symlink(String, String),
    Link(String, String),
    Rename(String, String, u32),
    Remove(String, bool),
    Chmod(String, u32),
    Chown(String, u32, u32),
    Times(String, i64, i64),
    Truncate(String, u64),
    Mknod(String, u32),
    Access(String, u8),
    List(String),
}

/// Times of [`Step::Times`] other than seconds.
const OMIT: i64 = -1;
const NOW: i64 = -2;
const NOBODY: u32 = u32::MAX;

fn users() -> [Caller; 4] {
    [(0, 0, &[][..]), (12_345, 500, &[600]), (12_346, 500, &[]), (12_347, 700, &[600])]
        .map(|(uid, gid, groups)| Arc::new(Identity { uid, gid, groups: groups.to_vec() }))
}

struct Rng(u64);

impl Rng {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % bound
    }

    fn of<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.below(list.len())].clone()
    }

    fn path(&mut self) -> String {
        let name = self.of(&["a", "b", "c"]);
        match self.below(10) {
            0..5 => name.into(),
            5..9 => format!("{}/{name}", self.of(&["d", "e", "a"])),
            _ => format!("{}/{}/{name}", self.of(&["d", "e"]), self.of(&["a", "b"])),
        }
    }

    fn directory(&mut self) -> String {
        let some = ["d", "e", "a", "d/a", "e/b"];
        self.of(&some).into()
    }

    fn any(&mut self) -> String {
        if self.below(4) == 0 { self.directory() } else { self.path() }
    }

    fn step(&mut self) -> Step {
        let file_modes = [0o644, 0o600, 0o666, 0o664, 0o4755, 0o2755, 0o6777, 0o2664, 0];
        let modes = [0o755, 0o777, 0o775, 0o1777, 0o1770, 0o2775, 0o700, 0o711, 0o644, 0o6777];
        let owners = [0, 12_345, 12_346, NOBODY];
        let groups = [0, 500, 600, 700, NOBODY];
        // Nothing to set is not even looked for: one is always set, of owners as of times.
        let (time, times) = ([NOW, 1000], [OMIT, NOW, 1000, 2000]);
        match self.below(26) {
            0..3 => Step::Mkdir(self.any(), self.of(&[0o755, 0o777, 0o775, 0o1777, 0o700])),
            3..7 => {
                let access = self.of(&[0, OFlag::O_WRONLY.bits(), OFlag::O_RDWR.bits()]);
                let how = [OFlag::O_CREAT, OFlag::O_CREAT | OFlag::O_EXCL, OFlag::O_TRUNC];
                let more = self.of(&[OFlag::empty(), OFlag::O_NOFOLLOW]).bits();
                let how = self.of(&how).bits();
                Step::Open(self.path(), access | how | more, self.of(&file_modes))
            }
            7..9 => Step::Symlink(self.of(&["a", "b", "d", "a/b", "nowhere"]).into(), self.path()),
            9..11 => Step::Link(self.path(), self.path()),
            11..14 => Step::Rename(self.any(), self.any(), self.of(&[0, 0, 1, 2])),
            14..16 => Step::Remove(self.any(), self.below(3) == 0),
            16..19 => Step::Chmod(self.any(), self.of(&modes)),
            19 => Step::Chown(self.any(), self.of(&owners[..3]), self.of(&groups)),
            20 => Step::Chown(self.any(), self.of(&owners), self.of(&groups[..4])),
            21 => Step::Times(self.any(), self.of(&times), self.of(&time)),
            22 => Step::Truncate(self.any(), self.of(&[0, 5, 10_000])),
            23 => Step::Mknod(self.path(), self.of(&[SFlag::S_IFIFO, SFlag::S_IFCHR]).bits()),
            24 => Step::Access(self.any(), self.of(&[0, 1, 2, 4])),
            _ => Step::List(self.any()),
        }
    }
}

// One line per step, for the workers.

fn to_line(step: &Step) -> String {
    match step {
        Step::Mkdir(path, mode) => format!("mkdir {path} {mode}"),
        Step::Open(path, flags, mode) => format!("open {path} {flags} {mode}"),
        Step::Symlink(target, path) => format!("symlink {target} {path}"),
        Step::Link(from, to) => format!("link {from} {to}"),
        Step::Rename(from, to, flags) => format!("rename {from} {to} {flags}"),
        Step::Remove(path, directory) => format!("remove {path} {directory}"),
        Step::Chmod(path, mode) => format!("chmod {path} {mode}"),
        Step::Chown(path, uid, gid) => format!("chown {path} {uid} {gid}"),
        Step::Times(path, accessed, modified) => format!("times {path} {accessed} {modified}"),
        Step::Truncate(path, size) => format!("truncate {path} {size}"),
        Step::Mknod(path, kind) => format!("mknod {path} {kind}"),
        Step::Access(path, mask) => format!("access {path} {mask}"),
        Step::List(path) => format!("list {path}"),
    }
}

/// Does a line in the working directory, as this process.
fn do_line(line: &str) -> Result<(), Errno> {
    let words: Vec<&str> = line.split(' ').collect();
    let number = |at: usize| words[at].parse::<i64>().expect("a number");
    let mode = |at: usize| Mode::from_bits_truncate(number(at) as u32);
    let id = |at: usize| Some(number(at) as u32).filter(|id| *id != NOBODY);
    let path = words[1];
    match words[0] {
        "mkdir" => stat::mkdirat(AT_FDCWD, path, mode(2)),
        "open" => {
            let flags = OFlag::from_bits_retain(number(2) as i32) | OFlag::O_NONBLOCK;
            open(path, flags, mode(3)).map(drop)
        }
        "symlink" => nix::unistd::symlinkat(path, AT_FDCWD, words[2]),
        "link" => linkat(AT_FDCWD, path, AT_FDCWD, words[2], AtFlags::empty()),
        "rename" => {
            let flags = RenameFlags::from_bits_retain(number(3) as u32);
            renameat2(AT_FDCWD, path, AT_FDCWD, words[2], flags)
        }
        "remove" if words[2] == "true" => unlinkat(AT_FDCWD, path, UnlinkatFlags::RemoveDir),
        "remove" => unlinkat(AT_FDCWD, path, UnlinkatFlags::NoRemoveDir),
        "chmod" => stat::fchmodat(AT_FDCWD, path, mode(2), stat::FchmodatFlags::FollowSymlink),
        "chown" => {
            let (uid, gid) = (id(2).map(Uid::from_raw), id(3).map(Gid::from_raw));
            fchownat(AT_FDCWD, path, uid, gid, AtFlags::AT_SYMLINK_NOFOLLOW)
        }
        "times" => {
            let time = |at| match number(at) {
                OMIT => TimeSpec::UTIME_OMIT,
                NOW => TimeSpec::UTIME_NOW,
                seconds => TimeSpec::new(seconds, 7),
            };
            utimensat(AT_FDCWD, path, &time(2), &time(3), UtimensatFlags::FollowSymlink)
        }
        "truncate" => nix::unistd::truncate(path, number(2)),
        "mknod" => {
            let kind = SFlag::from_bits_retain(number(2) as u32);
            stat::mknod(path, kind, Mode::from_bits_truncate(0o640), stat::makedev(1, 3))
        }
        "access" => access(path, AccessFlags::from_bits_retain(number(2) as i32)),
        "list" => match std::fs::read_dir(path) {
            Ok(_) => Ok(()),
            Err(error) => Err(Errno::from_raw(error.raw_os_error().unwrap_or(0))),
        },
        other => panic!("{other}"),
    }
}

/// The process of a user, started by the test below.
#[test]
#[ignore = "a worker of the test below"]
fn worker() {
    let Ok(caller) = std::env::var(WHO) else { return };
    let ids: Vec<u32> = caller.split(':').map(|id| id.parse().expect("a number")).collect();
    let groups: Vec<Gid> = ids[2..].iter().copied().map(Gid::from_raw).collect();
    stat::umask(Mode::empty());
    nix::unistd::setgroups(&groups).expect("setgroups");
    let (uid, gid) = (Uid::from_raw(ids[0]), Gid::from_raw(ids[1]));
    nix::unistd::setresgid(gid, gid, gid).expect("setresgid");
    nix::unistd::setresuid(uid, uid, uid).expect("setresuid");
    for line in std::io::stdin().lines() {
        let errno = do_line(&line.expect("a line")).err().map_or(0, |errno| errno as i32);
        println!("{RESULT}{errno}");
    }
}

struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Worker {
    fn start(caller: &Identity, dir: &Path) -> Worker {
        let ids = [caller.uid, caller.gid].into_iter().chain(caller.groups.iter().copied());
        let ids: Vec<String> = ids.map(|id| id.to_string()).collect();
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--ignored", "--exact", "worker", "--nocapture"])
            .env(WHO, ids.join(":"))
            .current_dir(dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("a worker");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("piped"));
        Worker { child, input, output }
    }

    fn run(&mut self, step: &Step) -> i32 {
        let input = self.input.as_mut().expect("until the end");
        writeln!(input, "{}", to_line(step)).expect("the worker reads");
        loop {
            let mut line = String::new();
            assert!(self.output.read_line(&mut line).expect("a line") > 0, "the worker ended");
            if let Some((_, errno)) = line.trim_end().split_once(RESULT) {
                return errno.parse().expect("a number");
            }
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// Does a step through the store, as a client does.
struct Through<'a> {
    store: &'a dyn Store,
    caller: &'a Caller,
    root: FileHandle,
}

impl Through<'_> {
    fn find(&self, path: &str, no_follow: bool) -> Result<FileHandle, Status> {
        let found =
            self.store.lookup(self.caller, &self.root, path.as_bytes(), no_follow).wait()?;
        Ok(found.handle)
    }

    fn parent<'p>(&self, path: &'p str) -> Result<(FileHandle, &'p [u8]), Status> {
        match path.rsplit_once('/') {
            Some((dir, name)) => {
                // A walk asks for the right to search the last directory, too.
                self.find(&format!("{dir}/."), false)?;
                Ok((self.find(dir, false)?, name.as_bytes()))
            }
            None => Ok((self.root, path.as_bytes())),
        }
    }

    fn set(&self, path: &str, no_follow: bool, set: SetAttr) -> Result<(), Status> {
        let handle = self.find(path, no_follow)?;
        self.store.set_attr(self.caller, &handle, &set).wait().map(drop)
    }

    fn create(
        &self,
        path: &str,
        kind: FileKind,
        mode: u32,
        rdev: u64,
        target: &str,
    ) -> Result<(), Status> {
        let (dir, name) = self.parent(path)?;
        let target = target.as_bytes();
        self.store.create(self.caller, &dir, name, kind, mode, rdev, target).wait().map(drop)
    }

    fn open(&self, path: &str, flags: i32, mode: u32) -> Result<(), Status> {
        let flags = OFlag::from_bits_retain(flags);
        let access = flags & OFlag::O_ACCMODE;
        let create = match (flags.contains(OFlag::O_CREAT), flags.contains(OFlag::O_EXCL)) {
            (false, _) => CreateMode::No,
            (true, false) => CreateMode::Unchecked,
            (true, true) => CreateMode::Exclusive,
        };
        let flags = OpenFlags {
            read: access != OFlag::O_WRONLY,
            write: access != OFlag::O_RDONLY,
            create,
            truncate: flags.contains(OFlag::O_TRUNC),
            append: false,
            no_follow: flags.contains(OFlag::O_NOFOLLOW),
            unlinked: false,
            again: false,
        };
        self.store.open(self.caller, &self.root, path.as_bytes(), flags, mode).wait().map(drop)
    }

    fn run(&self, step: &Step) -> Result<(), Status> {
        let none = SetAttr::default();
        match step {
            Step::Mkdir(path, mode) => self.create(path, FileKind::Directory, *mode, 0, ""),
            Step::Open(path, flags, mode) => self.open(path, *flags, *mode),
            Step::Symlink(target, path) => self.create(path, FileKind::Symlink, 0, 0, target),
            Step::Mknod(path, kind) if *kind == SFlag::S_IFIFO.bits() => {
                self.create(path, FileKind::Fifo, 0o640, 0, "")
            }
            Step::Mknod(path, _) => {
                self.create(path, FileKind::CharDevice, 0o640, stat::makedev(1, 3), "")
            }
            Step::Link(from, to) => {
                let from = self.find(from, true)?;
                let (dir, name) = self.parent(to)?;
                self.store.link(self.caller, &from, &dir, name).wait().map(drop)
            }
            Step::Rename(from, to, flags) => {
                let ((from_dir, from), (to_dir, to)) = (self.parent(from)?, self.parent(to)?);
                let (no_replace, exchange) = (*flags == 1, *flags == 2);
                let rename = self.store.rename(
                    self.caller,
                    &from_dir,
                    from,
                    &to_dir,
                    to,
                    (no_replace, exchange, false),
                );
                rename.wait()
            }
            Step::Remove(path, directory) => {
                let (dir, name) = self.parent(path)?;
                self.store.remove(self.caller, &dir, name, *directory).wait()
            }
            Step::Chmod(path, mode) => self.set(path, false, SetAttr { mode: Some(*mode), ..none }),
            Step::Chown(path, uid, gid) => {
                let id = |id: u32| Some(id).filter(|id| *id != NOBODY);
                self.set(path, true, SetAttr { uid: id(*uid), gid: id(*gid), ..none })
            }
            Step::Times(path, accessed, modified) => {
                let time = |time| match time {
                    OMIT => None,
                    NOW => Some(SetTime::Now),
                    seconds => Some(SetTime::To(Timestamp { seconds, nanoseconds: 7 })),
                };
                let (accessed, modified) = (time(*accessed), time(*modified));
                self.set(path, false, SetAttr { accessed, modified, ..none })
            }
            Step::Truncate(path, size) => {
                self.set(path, false, SetAttr { size: Some(*size), ..none })
            }
            Step::Access(path, mask) => {
                let handle = self.find(path, false)?;
                let granted = self.store.access(self.caller, &handle, *mask).wait()?;
                if granted == *mask { Ok(()) } else { Err(Status::Access) }
            }
            Step::List(path) => {
                let handle = self.find(path, false)?;
                self.store.read_dir(self.caller, &handle, 0, 65_536, true, true).wait().map(drop)
            }
        }
    }
}

/// Everything below a directory that does not depend on the time.
fn tree(dir: &Path) -> Vec<(PathBuf, String)> {
    let mut all = Vec::new();
    let mut rest = vec![dir.to_path_buf()];
    while let Some(at) = rest.pop() {
        for entry in std::fs::read_dir(&at).expect("root reads all") {
            let path = entry.expect("entry").path();
            let meta = std::fs::symlink_metadata(&path).expect("attributes");
            // Set by a step, or the time of the test.
            let times = [meta.atime(), meta.mtime()].map(|time| time.min(10_000));
            let size = if meta.is_dir() { 0 } else { meta.size() };
            let text = format!(
                "{:o} {}:{} links {} size {size} device {:x} times {times:?}",
                meta.mode(),
                meta.uid(),
                meta.gid(),
                meta.nlink(),
                meta.rdev()
            );
            if meta.is_dir() {
                rest.push(path.clone());
            }
            all.push((path.strip_prefix(dir).expect("below").into(), text));
        }
    }
    all.sort();
    all
}

/// What both sides are not asked to do alike: opening what is no regular file is nothing of the
/// store, and who may make a file where one is, in a sticky directory, is asked where the call
/// is made (fs.protected_regular).
fn is_for_both(step: &Step, dir: &Path) -> bool {
    let Step::Open(path, flags, _) = step else { return true };
    let path = dir.join(path);
    let special = std::fs::metadata(&path)
        .is_ok_and(|meta| meta.file_type().is_fifo() || meta.file_type().is_char_device());
    let sticky = path.parent().and_then(|parent| std::fs::metadata(parent).ok());
    let sticky = sticky.is_some_and(|meta| meta.mode() & 0o1000 != 0);
    let creates = flags & OFlag::O_CREAT.bits() != 0 && flags & OFlag::O_EXCL.bits() == 0;
    !(special || sticky && creates)
}

fn run(seed: u64, steps: usize) {
    let outer = tempfile::tempdir().expect("a directory");
    let dirs = ["store", "twin"].map(|name| outer.path().join(name));
    std::fs::set_permissions(outer.path(), PermissionsExt::from_mode(0o755)).expect("chmod");
    for dir in &dirs {
        std::fs::create_dir(dir).expect("mkdir");
        std::fs::set_permissions(dir, PermissionsExt::from_mode(0o777)).expect("chmod");
    }
    let options = PosixOptions { key: Some(HandleKey([7; 16])), ..PosixOptions::default() };
    let store = PosixStore::open(&dirs[0], options).expect("the store opens");
    if !store.can_switch() {
        return eprintln!("skipped: needs root");
    }
    let users = users();
    let mut workers = users.clone().map(|caller| Worker::start(&caller, &dirs[1]));
    let root = store.root(&users[0]).wait().expect("root").handle;
    let mut rng = Rng(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut done = 0;
    let first = ["d", "e", "d/a", "e/b"].map(|path| Step::Mkdir(path.into(), 0o777));
    for number in 0..steps {
        let (step, user) = match first.get(number) {
            Some(step) => (step.clone(), 0),
            None => (rng.step(), rng.below(4)),
        };
        if !is_for_both(&step, &dirs[1]) {
            continue;
        }
        let want = workers[user].run(&step);
        let got = Through { store: &*store, caller: &users[user], root }.run(&step);
        let what = format!("seed {seed}, step {number}: {step:?} by {}", users[user].uid);
        assert_eq!(got.map_or_else(Status::errno, |()| 0), want, "{what}: {got:?}");
        let (ours, theirs) = (tree(&dirs[0]), tree(&dirs[1]));
        let differ = ours.iter().zip(&theirs).find(|(ours, theirs)| ours != theirs);
        assert_eq!((differ, ours.len()), (None, theirs.len()), "{what}");
        done += usize::from(want == 0);
    }
    assert!(done > steps / 20, "seed {seed}: most steps fail: {done} of {steps} did not");
}

#[test]
fn the_store_answers_as_the_local_system() {
    let seeds = std::env::var("DAFS_TWIN_SEEDS").ok().and_then(|text| text.parse().ok());
    (1..=seeds.unwrap_or(8)).for_each(|seed| run(seed, 400));
}
