//! The store over a directory of this host: the suite in all its ways of working, and what only
//! it can do. The cases for several users run as root only.

#[path = "posix/everybody.rs"]
mod everybody;
#[path = "posix/local.rs"]
mod local;
#[path = "../../store/tests/suite/mod.rs"]
mod suite;

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dafs_protocol::{CreateMode, FileKind, OpenFlags, SetAttr, Status};
use dafs_store::Disk;
use dafs_store::Store;
use dafs_store_posix::{HandleKey, PosixOptions, PosixStore, ThreadRing};
use suite::{BOTH, Fs, MAKE, READ, WRITE, error, read, user, write};

const KEY: HandleKey = HandleKey([7; 16]);

/// A directory that goes with its owner.
struct Temporary(PathBuf);

impl Temporary {
    fn new() -> Temporary {
        Temporary::below(&std::env::temp_dir())
    }

    fn below(parent: &Path) -> Temporary {
        let dir = tempfile::Builder::new().prefix("dafs-store-").tempdir_in(parent);
        let dir = dir.expect("a new directory").keep();
        std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o777)).expect("chmod");
        Temporary(dir)
    }

    fn join(&self, path: &str) -> PathBuf {
        self.0.join(path)
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).expect("nobody else uses it");
    }
}

struct OnDisk {
    store: Arc<PosixStore>,
    dir: Temporary,
}

impl suite::Made for OnDisk {
    fn store(&self) -> &dyn Store {
        &*self.store
    }

    fn switches(&self) -> bool {
        self.store.can_switch()
    }
}

fn options() -> PosixOptions {
    PosixOptions { key: Some(KEY), ..PosixOptions::default() }
}

fn open(dir: &Path, options: PosixOptions) -> Arc<PosixStore> {
    PosixStore::open(dir, options).expect("the store opens")
}

fn made(options: PosixOptions) -> OnDisk {
    let dir = Temporary::new();
    OnDisk { store: open(&dir.0, options), dir }
}

fn make() -> OnDisk {
    made(options())
}

store_suite!(make, rights);

mod walked_by_hand {
    use super::*;

    fn make() -> OnDisk {
        made(PosixOptions { kernel_walk: false, ..options() })
    }

    store_suite!(make, rights);
}

mod with_handles_of_a_table {
    use super::*;

    fn make() -> OnDisk {
        made(PosixOptions { kernel_handles: false, ..options() })
    }

    store_suite!(make, rights);
}

mod in_the_calling_thread {
    use super::*;

    fn make() -> OnDisk {
        made(PosixOptions { inline_metadata: true, inline_write_bytes: 1 << 20, ..options() })
    }

    store_suite!(make, rights);
}

mod with_one_thread_for_all {
    use super::*;

    fn make() -> OnDisk {
        made(PosixOptions { threads_min: 1, threads_max: 1, inline_write_bytes: 0, ..options() })
    }

    store_suite!(make, rights);
}

mod directly_in_the_pool {
    use super::*;

    fn make() -> OnDisk {
        made(PosixOptions { disk: Disk::Auto, ..options() })
    }

    store_suite!(make, rights);
}

mod directly_by_a_ring {
    use super::*;

    /// The ring of the thread of a case.
    struct WithRing {
        made: OnDisk,
        _ring: Option<ThreadRing>,
    }

    impl suite::Made for WithRing {
        fn store(&self) -> &dyn Store {
            self.made.store()
        }

        fn switches(&self) -> bool {
            self.made.switches()
        }
    }

    fn make() -> WithRing {
        let made = made(PosixOptions { disk: Disk::Auto, ..options() });
        let _ring = made.store.is_direct().then(|| ThreadRing::open().expect("a ring"));
        WithRing { made, _ring }
    }

    store_suite!(make, rights);
}

mod in_memory_of_the_host {
    use super::*;

    fn make() -> OnDisk {
        let memory = Path::new("/dev/shm");
        let parent = if memory.is_dir() { memory.into() } else { std::env::temp_dir() };
        let dir = Temporary::below(&parent);
        OnDisk { store: open(&dir.0, options()), dir }
    }

    store_suite!(make, rights);
}

#[test]
fn handles_survive_the_store() {
    let first = make();
    let fs = Fs::new(&*first.store);
    fs.mkdir("d");
    let (d, f) = (fs.handle("d"), fs.file("d/f", b"x"));
    let gone = fs.file("gone", b"");
    fs.remove("gone", false).expect("remove");
    let again = open(&first.dir.0, options());
    if !again.handles_survive() {
        assert_eq!(error(again.attr(&fs.caller, &f).wait()), Status::Stale);
        return eprintln!("skipped: no kernel handles here");
    }
    assert_eq!(again.attr(&fs.caller, &f).wait().expect("attr").size, 1);
    let found = again.lookup(&fs.caller, &d, b"f", true).wait().expect("lookup");
    assert_eq!(found.handle, f);
    assert_eq!(Fs::new(&*again).root, fs.root);
    assert_eq!(error(again.attr(&fs.caller, &gone).wait()), Status::Stale);
    fs.rename("d/f", "elsewhere").expect("rename");
    assert_eq!(again.attr(&fs.caller, &f).wait().expect("a handle is no name").size, 1);
}

/// A listing goes on after a restart, and while names that were listed are removed.
#[test]
fn listings_survive_the_store() {
    let first = make();
    let fs = Fs::new(&*first.store);
    let d = fs.mkdir("d");
    let name = |number: usize| format!("{number:0255}");
    for number in 0..600 {
        fs.file(&format!("d/{}", name(number)), b"");
    }
    let again = open(&first.dir.0, options());
    if !again.handles_survive() {
        return eprintln!("skipped: no kernel handles here");
    }
    let (mut seen, mut cookie) = (std::collections::BTreeSet::new(), 0);
    for round in 0.. {
        let store = if round % 2 == 0 { &first.store } else { &again };
        let page = store.read_dir(&fs.caller, &d, cookie, 65_536, true, true).wait().expect("page");
        assert!(page.end || page.entries.len() > 100, "{} entries", page.entries.len());
        for entry in page.entries {
            let attr = entry.attr.expect("attributes");
            let by_handle = store.attr(&fs.caller, &entry.handle.expect("a handle")).wait();
            assert_eq!(by_handle.expect("a good one").inode, attr.inode);
            cookie = entry.cookie;
            let text = String::from_utf8(entry.name).expect("digits");
            fs.remove(&format!("d/{text}"), false).expect("remove");
            assert!(seen.insert(text), "listed twice");
        }
        if page.end {
            break;
        }
    }
    assert_eq!(seen, (0..600).map(name).collect());
    let page =
        again.read_dir(&fs.caller, &d, 0, 65_536, true, true).wait().expect("from the start");
    assert!(page.entries.is_empty() && page.end);
}

#[test]
fn handles_are_good_for_one_export_and_key() {
    let (one, other) = (make(), make());
    let (fs, theirs) = (Fs::new(&*one.store), Fs::new(&*other.store));
    let f = fs.file("f", b"x");
    assert_eq!(error(theirs.store.attr(&fs.caller, &f).wait()), Status::BadHandle);
    assert_eq!(error(theirs.store.attr(&fs.caller, &fs.root).wait()), Status::BadHandle);
    let rekeyed = open(&one.dir.0, PosixOptions { key: Some(HandleKey([8; 16])), ..options() });
    assert_eq!(error(rekeyed.attr(&fs.caller, &f).wait()), Status::BadHandle);
}

/// A bounded table: what falls out is stale, never something else.
#[test]
fn a_full_table_forgets() {
    let made = made(PosixOptions { kernel_handles: false, objects_max: 16, ..options() });
    let fs = Fs::new(&*made.store);
    let handles: Vec<_> = (0..100).map(|i| fs.file(&format!("f{i}"), b"x")).collect();
    let mut good = 0;
    for (i, handle) in handles.iter().enumerate() {
        match fs.store.attr(&fs.caller, handle).wait() {
            Ok(attr) => {
                assert_eq!(attr.inode, fs.attr(&format!("f{i}")).inode);
                good += 1;
            }
            Err(status) => assert_eq!(status, Status::Stale),
        }
    }
    assert!((1..=32).contains(&good), "{good}");
    assert_eq!(fs.store.root(&fs.caller).wait().expect("never forgotten").handle, fs.root);
}

#[test]
fn a_read_only_store_changes_nothing() {
    let dir = Temporary::new();
    std::fs::write(dir.join("f"), b"abc").expect("write");
    let store = open(&dir.0, PosixOptions { read_only: true, ..options() });
    let fs = Fs::new(&*store);
    assert_eq!(fs.bytes("f"), b"abc");
    let f = fs.handle("f");
    for flags in [WRITE, BOTH, MAKE, OpenFlags { truncate: true, ..READ }] {
        assert_eq!(error(fs.open("f", flags)), Status::RoFs);
    }
    let make_only = OpenFlags { create: CreateMode::Unchecked, ..READ };
    assert_eq!(error(fs.open("new", make_only)), Status::RoFs);
    assert!(fs.open("f", make_only).is_ok(), "nothing is made");
    assert_eq!(error(fs.make("d", FileKind::Directory, 0o755)), Status::RoFs);
    assert_eq!(error(fs.symlink("l", "f")), Status::RoFs);
    assert_eq!(error(fs.link("f", "g")), Status::RoFs);
    assert_eq!(error(fs.remove("f", false)), Status::RoFs);
    assert_eq!(error(fs.rename("f", "g")), Status::RoFs);
    assert_eq!(error(fs.chmod("f", 0o600)), Status::RoFs);
    assert_eq!(error(fs.store.set_xattr(&fs.caller, &f, b"user.a", b"", 0).wait()), Status::RoFs);
    assert_eq!(error(fs.store.remove_xattr(&fs.caller, &f, b"user.a").wait()), Status::RoFs);
    let opened = fs.open("f", READ).expect("open");
    assert_eq!(error(write(&*opened.file, 0, b"x")), Status::RoFs);
    assert_eq!(error(opened.file.truncate(0, true).wait()), Status::RoFs);
    assert_eq!(error(opened.file.fallocate(0, 0, 1, true).wait()), Status::RoFs);
    assert_eq!(error(opened.file.set_attr(&fs.caller, &SetAttr::default()).wait()), Status::RoFs);
    assert_eq!(fs.store.access(&fs.caller, &f, 6).wait(), Ok(4));
    assert!(fs.store.fs_attr(&fs.caller, &fs.root).wait().expect("attr").read_only);
    assert_eq!(std::fs::read_dir(&dir.0).expect("dir").count(), 1);
}

#[test]
fn what_the_kernel_knows_is_answered_at_once() {
    let made = make();
    let fs = Fs::new(&*made.store);
    let f = fs.file("f", b"x");
    let mut lookup = fs.store.lookup(&fs.caller, &fs.root, b"f", false);
    if std::fs::metadata("/proc/self").is_err() || lookup.try_take().is_none() {
        return eprintln!("skipped: no RESOLVE_CACHED here");
    }
    assert!(fs.store.attr(&fs.caller, &f).try_take().expect("at once").is_ok());
    assert!(fs.store.access(&fs.caller, &f, 7).try_take().expect("at once").is_ok());
    let opened = fs.store.open(&fs.caller, &fs.root, b"f", BOTH, 0).try_take();
    let opened = opened.expect("at once").expect("open");
    let missing = fs.store.lookup(&fs.caller, &fs.root, b"missing", false);
    drop(missing.wait());
    let mut missing = fs.store.lookup(&fs.caller, &fs.root, b"missing", false);
    // A tmpfs does not remember what it does not have.
    let on =
        nix::sys::statfs::statfs(&made.dir.join(".")).expect("a file system").filesystem_type();
    match missing.try_take() {
        None => assert_eq!(on, nix::sys::statfs::TMPFS_MAGIC),
        Some(answer) => assert_eq!(error(answer), Status::NoEnt),
    }
    assert!(opened.file.attr().try_take().is_some());
    let buffer = dafs_fabric::Buffer::new(1).expect("buffer").post();
    assert!(opened.file.write_at(0, suite::one_span(&buffer), false).try_take().is_some());
    assert!(opened.file.read_at(0, suite::one_span(&buffer)).try_take().is_some());
}

#[test]
fn changes_by_others_are_seen() {
    let made = make();
    let fs = Fs::new(&*made.store);
    let path = made.dir.join("f");
    let f = fs.file("f", b"ours");
    assert_eq!(std::fs::read(&path).expect("read"), b"ours");
    std::fs::write(&path, b"theirs, longer").expect("write");
    assert_eq!(fs.bytes("f"), b"theirs, longer");
    assert_eq!(fs.store.attr(&fs.caller, &f).wait().expect("attr").size, 14);
    std::fs::remove_file(&path).expect("remove");
    assert_eq!(error(fs.find("f")), Status::NoEnt);
    assert_eq!(error(fs.store.attr(&fs.caller, &f).wait()), Status::Stale);
    std::fs::write(&path, b"new").expect("write");
    assert_ne!(fs.handle("f"), f);
}

#[test]
fn data_that_is_not_on_disk_yet_is_told() {
    let made = make();
    let fs = Fs::new(&*made.store);
    fs.file("f", b"ours");
    let opened = fs.open("f", BOTH).expect("open");
    opened.file.sync(false).wait().expect("sync");
    let Some(unwritten) = opened.file.has_unwritten() else {
        return eprintln!("skipped: no cachestat(2), or a file system that it tells nothing of");
    };
    assert!(!unwritten);
    // Not `std::fs::write`: ext4 begins to write out at the close of a file that was cut to
    // nothing. Others of this machine may write everything out at any time, too, so it is tried
    // more than once.
    let path = made.dir.join("f");
    let told = (0..20).any(|_| {
        let file = std::fs::File::options().write(true).open(&path).expect("open");
        std::os::unix::fs::FileExt::write_all_at(&file, b"theirs", 0).expect("write");
        opened.file.has_unwritten() == Some(true)
    });
    assert!(told);
    opened.file.sync(false).wait().expect("sync");
    assert_eq!(opened.file.has_unwritten(), Some(false));
}

/// `sub` moves in and out of the tree while its symlink up is followed.
#[test]
fn renames_lead_nobody_out() {
    for kernel_walk in [true, false] {
        let outer = Temporary::new();
        for dir in ["tree", "tree/d", "tree/d/sub", "outside"] {
            std::fs::create_dir(outer.join(dir)).expect("mkdir");
        }
        std::fs::write(outer.join("secret"), b"outside").expect("write");
        std::fs::write(outer.join("tree/secret"), b"in").expect("write");
        symlink("../../secret", outer.join("tree/d/sub/up")).expect("symlink");
        let secret = std::fs::metadata(outer.join("secret")).expect("secret").ino();
        let store = open(&outer.join("tree"), PosixOptions { kernel_walk, ..options() });
        let fs = Fs::new(&*store);
        let sub = fs.handle("d/sub");
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (inside, outside) = (outer.join("tree/d/sub"), outer.join("outside/sub"));
                while !stop.load(Ordering::Relaxed) {
                    std::fs::rename(&inside, &outside).expect("out");
                    std::fs::rename(&outside, &inside).expect("and in");
                }
            });
            let mut found = 0;
            for _ in 0..1500 {
                let answers = [
                    store.lookup(&fs.caller, &sub, b"up", false).wait(),
                    store.lookup(&fs.caller, &fs.root, b"d/sub/up", false).wait(),
                    store.lookup_parent(&fs.caller, &sub).wait(),
                ];
                for answer in answers.iter().flatten() {
                    assert_ne!(answer.attr.inode, secret, "a way out");
                    found += 1;
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert!(found > 0, "some must have been in time");
        });
        // Once it stays outside its handle is good, but no way leads up from there.
        std::fs::rename(outer.join("tree/d/sub"), outer.join("outside/sub")).expect("out");
        assert_eq!(error(store.lookup_parent(&fs.caller, &sub).wait()), Status::Stale);
        assert_eq!(error(store.lookup(&fs.caller, &sub, b"up", false).wait()), Status::Stale);
    }
}

/// Names are swapped between files, directories and symlinks that lead out.
#[test]
fn swapped_symlinks_lead_nobody_out() {
    let outer = Temporary::new();
    std::fs::create_dir_all(outer.join("tree/dir")).expect("mkdir");
    std::fs::write(outer.join("tree/dir/f"), b"in").expect("write");
    std::fs::write(outer.join("f"), b"outside").expect("write");
    symlink("../..", outer.join("tree/link")).expect("symlink");
    let secret = std::fs::metadata(outer.join("f")).expect("f").ino();
    let store = open(&outer.join("tree"), options());
    let (fs, stop) = (Fs::new(&*store), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mover = Fs::new(&*store);
            while !stop.load(Ordering::Relaxed) {
                mover.rename_with("dir", "link", false, true).expect("swap");
            }
        });
        for _ in 0..3000 {
            if let Ok(opened) = fs.open("dir/f", READ) {
                assert_ne!(opened.attr.inode, secret, "a way out");
                assert_eq!(read(&*opened.file, 0, 10).expect("read"), b"in");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
}

/// /dev has other file systems below it, and devices that must never be opened.
#[test]
fn other_file_systems_below_the_root() {
    let (dev, memory) = (Path::new("/dev"), Path::new("/dev/shm"));
    let devices = [dev, memory].map(|path| std::fs::metadata(path).map(|m| m.dev()).ok());
    if devices[1].is_none() || devices[0] == devices[1] {
        return eprintln!("skipped: /dev/shm is no file system of its own");
    }
    let inside = Temporary::below(memory);
    std::fs::write(inside.join("f"), b"x").expect("write");
    let store = open(dev, options());
    let fs = Fs::new(&*store);
    let path = inside.join("f");
    let path = path.strip_prefix(dev).expect("below").to_str().expect("text");
    let found = fs.find(path).expect("across the mount");
    assert_eq!(found.attr.device, std::fs::metadata(inside.join("f")).expect("f").dev());
    assert_eq!(fs.store.attr(&fs.caller, &found.handle).wait(), Ok(found.attr));
    assert_eq!(fs.bytes(path), b"x");
    let shm = fs.handle("shm");
    let up = fs.store.lookup_parent(&fs.caller, &shm).wait().expect("back over the mount");
    assert_eq!(up.handle, fs.root);
    let opened = fs.open(path, BOTH).expect("open");
    opened.file.sync(false).wait().expect("sync");
    assert_eq!(opened.file.has_unwritten(), None, "memory is never written to a disk");
    store.sync_fs().wait().expect("all of them");
    // A new store has not met that file system yet: its handles are stale, never another file.
    let again = open(dev, options());
    let status = error(again.attr(&fs.caller, &found.handle).wait());
    assert_eq!(status, Status::Stale);
    let walked = Fs::new(&*again).find(path).expect("walked again");
    assert!(walked.handle == found.handle || !again.handles_survive());
    for device in ["null", "zero", "tty", "console"] {
        match fs.open(device, BOTH).map(|_| ()) {
            Err(Status::BadType | Status::NoEnt) => {}
            other => panic!("{device}: {other:?}"),
        }
    }
}

/// A name that is taken away anywhere frees the space when the last open ends.
#[test]
fn removed_files_free_their_space() {
    let made = make();
    let fs = Fs::new(&*made.store);
    let opened = fs.open("f", MAKE).expect("open");
    write(&*opened.file, 0, &[1; 100_000]).expect("write");
    fs.remove("f", false).expect("remove");
    drop(opened);
    fs.file("g", b"x");
    fs.store.attr(&fs.caller, &fs.handle("g")).wait().expect("attr");
    fs.remove("g", false).expect("remove");
    // The close may be under way in the pool still.
    let mine = made.dir.0.to_str().expect("text").to_owned();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    loop {
        fs.store.fs_attr(&fs.caller, &fs.root).wait().expect("attr");
        let open = std::fs::read_dir("/proc/self/fd").expect("fds").filter_map(|entry| {
            let target = std::fs::read_link(entry.ok()?.path()).ok()?;
            target.to_str().filter(|t| t.starts_with(&mine) && t.contains("(deleted)")).map(drop)
        });
        if open.count() == 0 {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "a descriptor keeps what is deleted");
    }
}

/// `created` is told to exactly one of those who make the same file at once.
#[test]
fn a_file_is_made_once() {
    let made = make();
    let fs = Fs::new(&*made.store);
    for round in 0..50 {
        let name = format!("f{round}");
        let opens: Vec<_> = (0..8)
            .map(|_| fs.store.open(&fs.caller, &fs.root, name.as_bytes(), MAKE, 0o644))
            .collect();
        let opened: Vec<_> = opens.into_iter().map(|o| o.wait().expect("open")).collect();
        assert_eq!(opened.iter().filter(|o| o.created).count(), 1);
        assert!(opened.windows(2).all(|pair| Arc::ptr_eq(&pair[0].file, &pair[1].file)));
    }
}

#[test]
fn what_cannot_be_served_is_told() {
    let dir = Temporary::new();
    std::fs::write(dir.join("f"), b"").expect("write");
    for path in ["f", "missing"] {
        let error = PosixStore::open(&dir.join(path), options()).expect_err("no directory");
        assert!(error.to_string().contains(path), "{error}");
    }
}

/// A write-back that ends setuid undoes no change of the mode that its owner makes meanwhile.
#[test]
fn the_end_of_setuid_undoes_no_other_change() {
    let made = made(PosixOptions { inline_write_bytes: 1 << 20, ..options() });
    let fs = Fs::new(&*made.store);
    let file = fs.open("f", MAKE).expect("open").file;
    let path = made.dir.join("f");
    let chmod = |mode| {
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("chmod");
    };
    let mode = || std::fs::metadata(&path).expect("stat").mode() & 0o7777;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                file.truncate(0, true).wait().expect("truncate");
            }
        });
        for _ in 0..20_000 {
            chmod(0o4755);
            chmod(0o700);
            let seen = [mode(), mode(), mode()];
            if seen != [0o700; 3] {
                stop.store(true, Ordering::Relaxed);
                panic!("{seen:?}");
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    for (before, after) in [(0o6755, 0o755), (0o2767, 0o767)] {
        chmod(before);
        file.truncate(0, true).wait().expect("truncate");
        assert_eq!(mode(), after);
    }
}
