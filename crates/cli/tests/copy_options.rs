//! Options of `dafs cp`: what is replaced, left out, followed, kept, and said.

mod common;

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use common::tree::{assert_same, make_tree, no_leftovers, snapshot};
use common::{Server, Temporary, bad, good, json, path, text};
use rustix::fs::XattrFlags;

fn set_time(file: &Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    File::open(file).expect("open").set_modified(time).expect("time");
}

fn put(file: PathBuf, content: &str, seconds: u64) {
    fs::write(&file, content).expect("written");
    set_time(&file, seconds);
}

fn read(file: PathBuf) -> String {
    fs::read_to_string(file).expect("there")
}

/// Names below a directory, without itself.
fn names(root: &Path) -> BTreeSet<String> {
    snapshot(root).keys().map(|name| text(name)).filter(|name| !name.is_empty()).collect()
}

fn set(strings: &[&str]) -> BTreeSet<String> {
    strings.iter().map(|string| (*string).to_owned()).collect()
}

#[test]
fn what_is_newer_or_there_at_all_is_left_alone() {
    let temporary = Temporary::new();
    let server = Server::start(&[]);
    let far = |name: &str| server.file("tree").join(name);
    let near = temporary.join("tree");
    fs::create_dir_all(&near).expect("directory");
    fs::create_dir_all(server.file("tree")).expect("directory");
    for name in ["older", "newer", "equal", "missing"] {
        put(near.join(name), "from", 1_000_000);
    }
    let reset = || {
        put(far("older"), "to", 999_999);
        put(far("newer"), "to", 1_000_001);
        put(far("equal"), "to", 1_000_000);
        let _ = fs::remove_file(far("missing"));
    };
    let what = || ["older", "newer", "equal", "missing"].map(|name| read(far(name)));
    let from = format!("{}/.", path(&near));

    reset();
    let done = json(&good(&["cp", "-r", "-u", "--json", &from, &server.at("tree")]));
    assert_eq!(what(), ["from", "to", "to", "from"]);
    assert_eq!((&done[0]["files"], &done[0]["skipped"]), (&2.into(), &2.into()));
    reset();
    let done = json(&good(&["cp", "-rn", "--json", &from, &server.at("tree")]));
    assert_eq!(what(), ["to", "to", "to", "from"]);
    assert_eq!((&done[0]["files"], &done[0]["skipped"]), (&1.into(), &3.into()));
    // Single files, and the other way.
    reset();
    good(&["cp", "-n", path(&near.join("older")), &server.at("tree/older")]);
    assert_eq!(read(far("older")), "to");
    good(&["cp", "-u", path(&near.join("older")), &server.at("tree/older")]);
    assert_eq!(read(far("older")), "from");
    good(&["cp", "-rn", &server.at("tree/."), path(&near)]);
    assert_eq!(read(near.join("newer")), "from");
    good(&["cp", "-ru", &server.at("tree/."), path(&near)]);
    assert_eq!([read(near.join("newer")), read(near.join("equal"))], ["to", "from"]);
    assert!(bad(2, &["cp", "-n", "-u", "x", &server.url]).contains("cannot be used with"));
    no_leftovers(&server.directory);
    no_leftovers(&temporary.0);
}

#[test]
fn what_matches_is_left_out() {
    let temporary = Temporary::new();
    let server = Server::start(&[]);
    let source = temporary.join("source");
    for dir in ["build/x", "a/build", "a/b"] {
        fs::create_dir_all(source.join(dir)).expect("directory");
    }
    for name in ["build/x/o", "a/build/o", "a/b/c.c", "a/b/c.o", "a/keep.o", "top.tmp", "top.c"] {
        fs::write(source.join(name), name).expect("file");
    }
    let from = path(&source);
    good(&["cp", "-r", "--exclude", "/build/", "--exclude=*.tmp", from, &server.at("one")]);
    let expected = ["a", "a/build", "a/build/o", "a/b", "a/b/c.c", "a/b/c.o", "a/keep.o", "top.c"];
    assert_eq!(names(&server.file("one")), set(&expected));
    let keep =
        ["--include", "keep.o", "--exclude", "*.o", "--exclude", "build", "--exclude", "*.tmp"];
    good(&[&["cp", "-r"], &keep[..], &[from, &server.at("two")]].concat());
    let expected = ["a", "a/b", "a/b/c.c", "a/keep.o", "top.c"];
    assert_eq!(names(&server.file("two")), set(&expected));
    let back = temporary.join("back");
    let only = ["--include", "*/", "--include", "*.c", "--exclude", "*"];
    good(&[&["cp", "-r"], &only[..], &[&server.at("one"), path(&back)]].concat());
    assert_eq!(names(&back), set(&["a", "a/b", "a/b/c.c", "a/build", "top.c"]));
}

#[test]
fn links_are_followed_where_asked_for() {
    let temporary = Temporary::new();
    let server = Server::start(&[]);
    let source = temporary.join("source");
    fs::create_dir_all(source.join("dir")).expect("directory");
    fs::write(source.join("dir/file"), "x").expect("file");
    symlink("dir/file", source.join("to-file")).expect("symlink");
    symlink("dir", source.join("to-dir")).expect("symlink");
    good(&["cp", "-rL", path(&source), &server.at("tree")]);
    for name in ["to-file", "to-dir/file", "dir/file"] {
        let meta = fs::symlink_metadata(server.file("tree").join(name)).expect("there");
        assert!(meta.is_file(), "{name}");
    }
    // A copy at the server is followed within the export.
    symlink("tree/to-dir", server.file("top")).expect("symlink");
    good(&["cp", "-a", "-L", &server.at("top"), path(&temporary.join("back"))]);
    assert_eq!(names(&temporary.join("back")), set(&["file"]));
    symlink("..", source.join("dir/up")).expect("symlink");
    symlink("nowhere", source.join("dangling")).expect("symlink");
    let said = bad(1, &["cp", "-rL", path(&source), &server.at("again")]);
    assert!(said.contains("leads back to a directory"), "{said}");
    assert!(said.contains("dangling: no such file"), "{said}");
    assert!(server.file("again/to-file").exists());
}

/// An access control list: user 1234 may read.
fn acl() -> Vec<u8> {
    let entries: [(u16, u16, u32); 5] =
        [(1, 7, u32::MAX), (2, 4, 1234), (4, 4, u32::MAX), (16, 4, u32::MAX), (32, 0, u32::MAX)];
    let mut bytes = 2u32.to_le_bytes().to_vec();
    for (tag, mode, id) in entries {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(mode.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

fn xattr(file: &Path, name: &str) -> Option<Vec<u8>> {
    let mut room = vec![0; 4096];
    let bytes = rustix::fs::getxattr(file, name, &mut room[..]).ok()?;
    room.truncate(bytes);
    Some(room)
}

#[test]
fn attributes_and_access_lists_are_kept_both_ways() {
    const ACL: &str = "system.posix_acl_access";
    let temporary = Temporary::new();
    let server = Server::start(&[]);
    let source = temporary.join("source");
    fs::create_dir_all(source.join("dir")).expect("directory");
    fs::write(source.join("small"), "x").expect("file");
    fs::write(source.join("plain"), "x").expect("file");
    fs::write(source.join("large"), vec![7; 300_000]).expect("file");
    let set = |name: &str, key: &str, value: &[u8]| {
        rustix::fs::setxattr(source.join(name), key, value, XattrFlags::empty()).is_ok()
    };
    if !set("small", "user.one", b"first") || !set("small", ACL, &acl()) {
        println!("skipped: the file system of temporary files has no extended attributes");
        return;
    }
    assert!(set("large", "user.two", &[0, 255, 10]) && set("dir", "user.three", b""));
    assert!(set("dir", "system.posix_acl_default", &acl()));
    let look = |root: &Path| {
        [
            xattr(&root.join("small"), "user.one"),
            xattr(&root.join("small"), ACL),
            xattr(&root.join("large"), "user.two"),
            xattr(&root.join("dir"), "user.three"),
            xattr(&root.join("dir"), "system.posix_acl_default"),
        ]
    };
    let expected = look(&source);
    assert!(expected.iter().all(Option::is_some));
    good(&["cp", "-a", path(&source), &server.at("tree")]);
    assert_eq!(look(&server.file("tree")), expected);
    assert_same(&server.file("tree"), &source);
    let back = temporary.join("back");
    good(&["cp", "-rp", &server.at("tree"), path(&back)]);
    assert_eq!(look(&back), expected);
    assert_same(&back, &source);
    good(&["cp", "-r", path(&source), &server.at("without")]);
    assert_eq!(look(&server.file("without")), [const { None }; 5]);
}

#[test]
fn no_access_list_comes_from_where_a_copy_is_put() {
    const ACCESS: &str = "system.posix_acl_access";
    const DEFAULT: &str = "system.posix_acl_default";
    let temporary = Temporary::new();
    let server = Server::start(&[]);
    let (source, back) = (temporary.join("source"), temporary.join("back"));
    fs::create_dir_all(source.join("dir")).expect("directory");
    for (name, bytes) in [("small", 1), ("large", 300_000), ("dir/file", 1)] {
        fs::write(source.join(name), vec![b'x'; bytes]).expect("file");
    }
    fs::create_dir_all(server.file("tree/old")).expect("directory");
    fs::create_dir(&back).expect("directory");
    for dir in [&server.directory, &server.file("tree"), &back] {
        if rustix::fs::setxattr(dir, DEFAULT, &acl(), XattrFlags::empty()).is_err() {
            println!("skipped: the file system of temporary files has no extended attributes");
            return;
        }
    }
    let bare = |root: &Path| {
        for name in ["small", "large", "dir", "dir/file"] {
            assert_eq!(xattr(&root.join(name), ACCESS), None, "{name}");
        }
        assert_eq!(xattr(&root.join("dir"), DEFAULT), None);
        assert_same(root, &source);
    };
    good(&["cp", "-a", path(&source), &server.at("copy")]);
    bare(&server.file("copy"));
    good(&["mirror", "-q", path(&source), &server.at("tree")]);
    bare(&server.file("tree"));
    good(&["mirror", "-q", &server.at("tree"), path(&back)]);
    bare(&back);
    good(&["cp", "-p", path(&source.join("small")), &server.at("file")]);
    assert_eq!(xattr(&server.file("file"), ACCESS), None);
}

#[test]
fn a_dry_run_says_what_a_run_does_and_does_nothing() {
    let temporary = Temporary::new();
    let server = Server::start(&[]);
    let source = temporary.join("source");
    make_tree(&source);
    let to = server.at("tree");
    let would = good(&["cp", "-r", "--dry-run", path(&source), &to]);
    assert_eq!(names(&server.directory), set(&[]));
    let done = good(&["cp", "-rv", path(&source), &to]);
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<BTreeSet<_>>();
    assert_eq!(lines(&would), lines(&done));
    assert!(done.contains("source/odd/new\\nline -> dafs://"), "{done}");
    assert_same(&server.file("tree"), &source);
    // What is there is merged into.
    fs::write(source.join("a/new"), "x").expect("file");
    let would = good(&["cp", "-rn", "--dry-run", &format!("{}/.", path(&source)), &to]);
    assert!(would.contains("a/new -> ") && !would.contains("a/f1 -> "), "{would}");
    assert!(!server.file("tree/a/new").exists());
}

#[test]
fn files_with_the_same_bytes_are_not_copied_again() {
    let temporary = Temporary::new();
    let server = Server::start(&[]);
    let source = temporary.join("source");
    fs::create_dir_all(&source).expect("directory");
    put(source.join("same"), "content", 1_000_000);
    put(source.join("changed"), "content", 1_000_000);
    fs::write(source.join("large"), vec![3; 2_500_000]).expect("file");
    good(&["cp", "-r", "--checksum", path(&source), &server.at("tree")]);
    assert_same(&server.file("tree"), &source);
    let inode = |name: &str| fs::metadata(server.file("tree").join(name)).expect("there").ino();
    let before = ["same", "changed", "large"].map(inode);
    // Another time with the same bytes; other bytes with the same size and time.
    set_time(&server.file("tree/same"), 5);
    put(server.file("tree/changed"), "CONTENT", 1_000_000);
    let from = format!("{}/.", path(&source));
    let done = json(&good(&["cp", "-r", "--checksum", "--json", &from, &server.at("tree")]));
    assert_same(&server.file("tree"), &source);
    let after = ["same", "changed", "large"].map(inode);
    assert_eq!([before[0], before[2]], [after[0], after[2]]);
    assert_ne!(before[1], after[1]);
    let count = |name: &str| done[0][name].as_u64();
    assert_eq!((count("files"), count("updated"), count("skipped")), (Some(1), Some(1), Some(1)));
}

#[test]
fn options_of_the_way_do_not_change_what_arrives() {
    let temporary = Temporary::new();
    let server = Server::start(&[]);
    let source = temporary.join("source");
    make_tree(&source);
    for (number, options) in [
        &["--transfers", "1", "--bwlimit", "1g/s"][..],
        &["--transfers", "16", "--sync", "-q"],
        &["-a", "--checksum"],
    ]
    .iter()
    .enumerate()
    {
        let name = format!("tree{number}");
        good(&[&["cp", "-r"], *options, &[path(&source), &server.at(&name)]].concat());
        assert_same(&server.file(&name), &source);
        let back = temporary.join(&name);
        good(&[&["cp", "-r"], *options, &[&server.at(&name), path(&back)]].concat());
        assert_same(&back, &source);
    }
    for (option, value) in [("--bwlimit", "0"), ("--bwlimit", "x"), ("--transfers", "0")] {
        bad(2, &["cp", option, value, "x", &server.url]);
    }
}

#[test]
fn one_name_cannot_be_given_to_two() {
    let temporary = Temporary::new();
    let server = Server::start(&[]);
    for dir in ["a", "b"] {
        fs::create_dir(temporary.join(dir)).expect("directory");
        fs::write(temporary.join(dir).join("same"), dir).expect("file");
    }
    let (a, b) = (temporary.join("a/same"), temporary.join("b/same"));
    let said = bad(2, &["cp", path(&a), path(&b), &server.url]);
    assert!(said.contains("a/same") && said.contains("would get the same name"), "{said}");
    assert_eq!(names(&server.directory), set(&[]), "nothing is done before");
    // Contents of directories are merged.
    let (a, b) = (temporary.join("a/."), temporary.join("b/."));
    good(&["cp", "-r", path(&a), path(&b), &server.url]);
    assert_eq!(read(server.file("same")), "b");
}

#[test]
fn a_link_at_the_target_leads_nowhere() {
    let temporary = Temporary::new();
    let server = Server::start(&[]);
    fs::create_dir_all(server.file("tree/dir")).expect("directory");
    fs::write(server.file("tree/dir/file"), "new").expect("file");
    fs::write(server.file("tree/other"), "new").expect("file");
    let (target, outside) = (temporary.join("target"), temporary.join("outside"));
    fs::create_dir_all(target.join("tree")).expect("directory");
    fs::create_dir(&outside).expect("directory");
    fs::write(outside.join("file"), "old").expect("file");
    symlink(&outside, target.join("tree/dir")).expect("symlink");
    let said = bad(1, &["cp", "-r", &server.at("tree"), path(&target)]);
    assert!(said.contains("tree/dir: cannot overwrite a non-directory"), "{said}");
    assert_eq!(read(outside.join("file")), "old");
    assert_eq!(read(target.join("tree/other")), "new");
}

#[test]
fn messages_name_what_failed() {
    let temporary = Temporary::new();
    let mut server = Server::start(&[]);
    fs::write(server.file("file"), "x").expect("file");
    let near = temporary.join("near");
    fs::write(&near, "x").expect("file");
    fs::set_permissions(&near, fs::Permissions::from_mode(0o600)).expect("mode");
    let url = server.at("no\x1b[31m\u{202e}thing");
    let said = bad(1, &["cp", &url, path(&temporary.0)]);
    assert!(said.contains("/no%1B") && said.contains("no such file"), "{said}");
    assert!(!said.contains('\x1b') && !said.contains('\u{202e}'), "{said:?}");
    let said = bad(1, &["cp", path(&temporary.join("a\x1b[31m\u{202e}b")), &server.url]);
    assert!(said.contains("a\\x1b[31m") && !said.contains('\u{202e}'), "{said:?}");
    server.interrupt();
    assert!(bad(3, &["cp", &server.at("file"), path(&near)]).contains(&server.at("file")));
    let usage = bad(2, &["cp"]);
    assert!(usage.contains("dafs cp [OPTIONS] FROM... TO"), "{usage}");
}
