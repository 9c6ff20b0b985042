//! Which files everybody may open for reading.

use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;

use dafs_store::File;
use nix::fcntl::{AT_FDCWD, RenameFlags, renameat2};

use super::*;

const ACCESS: &[u8] = b"system.posix_acl_access";

fn asked(file: &dyn File) -> bool {
    file.public_ancestors().wait().expect("yes or no").is_some()
}

/// Opens it for reading, and asks.
fn is(fs: &Fs, path: &str) -> bool {
    let opened = fs.open(path, READ).unwrap_or_else(|status| panic!("{path}: {status}"));
    asked(&*opened.file)
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("chmod");
}

/// Directories of mode 0755 and files of mode 0644, in an export of mode 0755.
fn tree(directories: &[&str], files: &[&str]) -> OnDisk {
    let made = make();
    chmod(&made.dir.0, 0o755);
    for path in directories {
        std::fs::create_dir(made.dir.join(path)).expect("mkdir");
        chmod(&made.dir.join(path), 0o755);
    }
    for path in files {
        std::fs::write(made.dir.join(path), path).expect("write");
        chmod(&made.dir.join(path), 0o644);
    }
    made
}

/// An access control list that shuts one user out and whose mode is 0755.
fn list() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] = [
        (1, 7, u32::MAX),
        (2, 0, 12_345),
        (4, 5, u32::MAX),
        (0x10, 5, u32::MAX),
        (0x20, 5, u32::MAX),
    ];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend(tag.to_le_bytes().into_iter().chain(rights.to_le_bytes()));
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[test]
fn modes_of_the_file_and_of_all_directories_count() {
    let made = tree(&["a", "a/b"], &["f", "a/b/f"]);
    let fs = Fs::new(&*made.store);
    assert!(is(&fs, "f") && is(&fs, "a/b/f"));
    let writer = fs.open("f", WRITE).expect("open");
    assert!(asked(&*writer.file), "how it was opened does not matter");
    let file = made.dir.join("a/b/f");
    for (mode, yes) in [
        (0o444, true),
        (0o7777, true),
        (0o640, false),
        (0o604, false),
        (0o600, false),
        (0o244, false),
    ] {
        chmod(&file, mode);
        match fs.open("a/b/f", READ) {
            Ok(opened) => assert_eq!(asked(&*opened.file), yes, "{mode:o}"),
            Err(status) => assert!(!yes, "{mode:o}: {status}"),
        }
    }
    chmod(&file, 0o644);
    let opened = fs.open("a/b/f", READ).expect("open").file;
    for dir in ["", "a", "a/b"] {
        let dir = made.dir.join(dir);
        for (mode, yes) in [
            (0o711, true),
            (0o1777, true),
            (0o750, false),
            (0o705, false),
            (0o700, false),
            (0o655, false),
            (0o754, false),
        ] {
            chmod(&dir, mode);
            assert_eq!(asked(&*opened), yes, "{} {mode:o}", dir.display());
        }
        chmod(&dir, 0o755);
        assert!(asked(&*opened));
    }
}

#[test]
fn access_lists_count() {
    let made = tree(&["a", "a/b"], &["a/b/f"]);
    let fs = Fs::new(&*made.store);
    chmod(&made.dir.join("a/b/f"), 0o755);
    let opened = fs.open("a/b/f", READ).expect("open").file;
    for path in ["", "a", "a/b", "a/b/f"] {
        let at = if path.is_empty() { fs.root } else { fs.handle(path) };
        match fs.store.set_xattr(&fs.caller, &at, ACCESS, &list(), 0).wait() {
            Err(Status::NotSupp) => return eprintln!("skipped: no access lists here"),
            other => assert_eq!(other, Ok(())),
        }
        let mode = std::fs::metadata(made.dir.join(path)).expect("stat").mode() & 0o777;
        assert_eq!(mode, 0o755, "the mode alone would say yes");
        assert!(!asked(&*opened), "{path}");
        fs.store.remove_xattr(&fs.caller, &at, ACCESS).wait().expect("remove");
        assert!(asked(&*opened), "{path}");
    }
    let (a, default) = (fs.handle("a"), b"system.posix_acl_default");
    fs.store.set_xattr(&fs.caller, &a, default, &list(), 0).wait().expect("a default list");
    assert!(asked(&*opened), "it is for what is made there");
    assert!(fs.open("a/new", MAKE).is_ok_and(|opened| !asked(&*opened.file)));
}

/// The thread acts as whoever called it last, who may be let through where others are not.
#[test]
fn who_asks_does_not_matter() {
    let made = tree(&["open", "shut"], &["open/f", "shut/f"]);
    if !made.store.can_switch() {
        return eprintln!("skipped: needs a server that is root");
    }
    std::os::unix::fs::chown(made.dir.join("shut"), Some(12_345), Some(500)).expect("chown");
    chmod(&made.dir.join("shut"), 0o700);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            made.store.attach_thread().expect("a worker");
            let fs = Fs::new(&*made.store);
            for (uid, gid) in [(12_345, 500), (0, 0)] {
                let fs = fs.by(&user(uid, gid, &[]));
                assert!(is(&fs, "open/f") && !is(&fs, "shut/f"));
            }
            let (owner, other) = (fs.by(&user(12_345, 500, &[])), fs.by(&user(12_346, 501, &[])));
            let shut = owner.open("shut/f", READ).expect("the owner's").file;
            assert_eq!(error(other.open("shut/f", READ)), Status::Access);
            assert!(!asked(&*shut) && is(&other, "open/f"));
        });
    });
}

#[test]
fn names_may_look_like_anything() {
    let deep = (0..66).map(|depth| vec!["d"; depth].join("/")).skip(1).collect::<Vec<_>>();
    let deep = deep.iter().map(String::as_str);
    let odd = ["new\nline", "gone (deleted)", "(unreachable)", " ", "\\040", "..."];
    let made = tree(&odd.into_iter().chain(deep).collect::<Vec<_>>(), &[]);
    let fs = Fs::new(&*made.store);
    for name in odd {
        for path in [format!("{name}/f"), format!("{name}/{name}"), format!("f{name}")] {
            fs.file(&path, b"x");
            assert!(is(&fs, &path), "{path:?}");
        }
    }
    for (depth, yes) in [(64, true), (65, false)] {
        let path = format!("{}/f", vec!["d"; depth].join("/"));
        fs.file(&path, b"x");
        assert_eq!(is(&fs, &path), yes, "{depth} directories");
    }
    // Longer than any path of the kernel, and not deep.
    let name = "n".repeat(250);
    let mut dir = fs.root;
    for _ in 0..20 {
        let made =
            fs.store.create(&fs.caller, &dir, name.as_bytes(), FileKind::Directory, 0o755, 0, b"");
        dir = made.wait().expect("mkdir").handle;
    }
    let opened = fs.store.open(&fs.caller, &dir, b"f", MAKE, 0o644).wait().expect("open");
    assert!(!asked(&*opened.file), "no path leads there");
}

#[test]
fn a_file_without_a_name_is_nobodys() {
    let made = tree(&["a"], &["a/f", "a/g", "a/g (deleted)"]);
    let fs = Fs::new(&*made.store);
    let [f, g] = ["a/f", "a/g"].map(|path| fs.open(path, READ).expect("open").file);
    assert!(asked(&*f) && asked(&*g));
    for path in ["a/f", "a/g"] {
        std::fs::remove_file(made.dir.join(path)).expect("remove");
    }
    assert!(!asked(&*f));
    assert!(!asked(&*g), "what has the name that it seems to have is another file");
    std::fs::write(made.dir.join("a/f"), "new").expect("write");
    assert!(!asked(&*f), "what has its name now is another file");
    assert!(is(&fs, "a/f"));
    let unlinked = OpenFlags { unlinked: true, ..BOTH };
    match fs.store.open(&fs.caller, &fs.root, b"a", unlinked, 0o644).wait() {
        Ok(opened) => assert!(!asked(&*opened.file)),
        Err(status) => assert_eq!(status, Status::NotSupp),
    }
}

#[test]
fn the_path_found_counts_not_the_one_asked_for() {
    let made = tree(&["open", "shut"], &["open/f", "shut/f"]);
    chmod(&made.dir.join("shut"), 0o700);
    symlink("shut", made.dir.join("way in")).expect("symlink");
    symlink("../open", made.dir.join("shut/way out")).expect("symlink");
    let fs = Fs::new(&*made.store);
    assert!(!is(&fs, "way in/f"));
    assert!(is(&fs, "shut/way out/f"), "everybody has another way there");
    // By a hard link everybody may have a file that is somewhere private, too.
    std::fs::hard_link(made.dir.join("shut/f"), made.dir.join("open/same")).expect("link");
    assert!(!is(&fs, "shut/f"));
    assert!(is(&fs, "open/same"));
    // A file goes on as it is.
    let file = fs.open("open/f", READ).expect("open").file;
    std::fs::rename(made.dir.join("open/f"), made.dir.join("shut/g")).expect("rename");
    assert!(!asked(&*file));
    std::fs::rename(made.dir.join("shut/g"), made.dir.join("g")).expect("rename");
    assert!(asked(&*file));
    let (old, away) = (made.dir.0.clone(), made.dir.0.with_extension("away"));
    std::fs::rename(&old, &away).expect("the export moves");
    assert!(asked(&*file));
    std::fs::create_dir(&old).expect("mkdir");
    std::fs::rename(&away, old.join("below")).expect("to below its old place");
    assert!(asked(&*file));
    std::fs::rename(old.join("below"), &away).expect("rename");
    std::fs::remove_dir(&old).expect("rmdir");
    std::fs::rename(&away, &old).expect("and returns");
    assert!(asked(&*file));
}

/// What is mounted inside of the export, until it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn new(options: &[&str], from: &Path, at: PathBuf) -> Option<Mounted> {
        let done = Command::new("mount").args(options).arg(from).arg(&at).output();
        done.is_ok_and(|output| output.status.success()).then(|| Mounted(at))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let done = Command::new("umount").arg("-l").arg(&self.0).status();
        assert!(done.is_ok_and(|status| status.success()), "{}", self.0.display());
    }
}

#[test]
fn what_is_mounted_inside_is_not_for_everybody() {
    let outside = tree(&["d"], &["f", "d/f"]);
    let made = tree(&["a", "a/bound", "a/memory"], &["a/f", "a/file"]);
    let bind = Mounted::new(&["--bind"], &outside.dir.join("d"), made.dir.join("a/bound"));
    let Some(_bind) = bind else { return eprintln!("skipped: needs the right to mount") };
    let (from, at) = (outside.dir.join("f"), made.dir.join("a/file"));
    let _file = Mounted::new(&["--bind"], &from, at).expect("a file is mounted like a directory");
    let options = ["-t", "tmpfs", "-o", "size=1m,mode=755"];
    let memory = Mounted::new(&options, Path::new("tmpfs"), made.dir.join("a/memory"));
    let _memory = memory.expect("mounted");
    std::fs::write(made.dir.join("a/memory/f"), "x").expect("write");
    let fs = Fs::new(&*made.store);
    assert!(is(&fs, "a/f"));
    for path in ["a/bound/f", "a/file", "a/memory/f"] {
        assert!(!is(&fs, path), "{path}");
    }
    // The same files by the export that they are in.
    let fs = Fs::new(&*outside.store);
    assert!(is(&fs, "d/f") && is(&fs, "f"));
}

/// Somebody who may write around a private directory puts others in its place, and symlinks to it,
/// while the file inside is asked for.
#[test]
fn no_swap_of_names_gives_a_private_file_away() {
    for (one, other) in [("top/shut", "top/open"), ("top/shut", "top/link"), ("top", "top2")] {
        let directories = ["top", "top/shut", "top/open", "top/shut/d", "top/open/d"];
        let made = tree(&directories, &["top/shut/d/f", "top/open/d/f"]);
        symlink("shut", made.dir.join("top/link")).expect("symlink");
        let second = ["top2", "top2/shut", "top2/shut/d"];
        for path in second {
            std::fs::create_dir(made.dir.join(path)).expect("mkdir");
        }
        let file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o644)
            .open(made.dir.join("top2/shut/d/f"));
        file.expect("a decoy");
        chmod(&made.dir.join("top/shut"), 0o700);
        let fs = Fs::new(&*made.store);
        let secret = fs.open("top/shut/d/f", READ).expect("open").file;
        let decoys =
            ["top/open/d/f", "top2/shut/d/f"].map(|path| fs.open(path, READ).expect("open").file);
        let [one, other] = [one, other].map(|path| made.dir.join(path));
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    renameat2(AT_FDCWD, &one, AT_FDCWD, &other, RenameFlags::RENAME_EXCHANGE)
                        .expect("swap");
                }
            });
            let mut found = 0;
            for round in 0..20_000 {
                if asked(&*secret) {
                    stop.store(true, Ordering::Relaxed);
                    panic!("given away: {} and {}", one.display(), other.display());
                }
                if round % 16 == 0 {
                    found += decoys.iter().filter(|decoy| asked(&***decoy)).count();
                }
            }
            stop.store(true, Ordering::Relaxed);
            assert!(found > 0, "some must have been in time");
        });
    }
}

#[test]
#[ignore = "a measurement"]
fn the_cost_of_asking() {
    let directories: Vec<_> = (1..=8).map(|depth| vec!["directory"; depth].join("/")).collect();
    let made = tree(&directories.iter().map(String::as_str).collect::<Vec<_>>(), &[]);
    let fs = Fs::new(&*made.store);
    for depth in [0, 1, 4, 8] {
        let path =
            vec!["directory"; depth].into_iter().chain(["file"]).collect::<Vec<_>>().join("/");
        let file = fs.open(&path, MAKE).expect("open").file;
        let time = |call: &dyn Fn()| {
            let rounds = (0..500).map(|_| {
                let start = std::time::Instant::now();
                (0..50).for_each(|_| call());
                start.elapsed().as_nanos() / 50
            });
            rounds.min().expect("some")
        };
        let ask = time(&|| assert!(asked(&*file)));
        let open = time(&|| drop(fs.open(&path, READ).expect("open")));
        println!("{depth} directories: {ask} ns, an open of an open file {open} ns");
    }
}
