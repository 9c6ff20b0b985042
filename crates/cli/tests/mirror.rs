//! `dafs mirror` and `dafs diff` with a real server.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use common::tree::{assert_same, make_tree, no_leftovers, snapshot};
use common::{Server, Temporary, bad, binary, good, interrupt, is_root, json, path, text};

/// Mirrors; what it says it did: files, directories made, removed, updated.
fn mirror(arguments: &[&str]) -> [u64; 4] {
    let done = json(&good(&[&["mirror", "--json"], arguments].concat()));
    assert_eq!(done[0]["failed"], 0);
    ["files", "made_directories", "removed", "updated"]
        .map(|name| done[0][name].as_u64().expect("a number"))
}

fn assert_nothing_to_do(from: &str, to: &str) {
    assert_eq!(mirror(&[from, to]), [0; 4]);
    assert_eq!(good(&["diff", "--checksum", from, to]), "");
}

/// Changes some of everything in what [`make_tree`] made.
fn change(root: &Path) {
    let at = |name: &str| root.join(name);
    fs::write(at("a/f10"), "changed").expect("file");
    fs::write(at("a/f11"), vec![1; 11 * 97]).expect("the same size");
    fs::remove_file(at("a/f12")).expect("removed");
    fs::rename(at("a/f13"), at("a/b/renamed")).expect("renamed");
    fs::rename(at("odd"), at("odder")).expect("renamed");
    fs::remove_dir_all(at("a/b/c")).expect("removed");
    fs::remove_file(at("a/f14")).expect("removed");
    fs::create_dir(at("a/f14")).expect("a directory in the place of a file");
    fs::write(at("a/f14/inside"), "x").expect("file");
    fs::remove_dir(at("empty")).expect("removed");
    symlink("a", at("empty")).expect("a link in the place of a directory");
    fs::set_permissions(at("a/f15"), fs::Permissions::from_mode(0o640)).expect("mode");
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
    File::open(at("a/f16")).expect("open").set_modified(old).expect("time");
    // One name of a file that had two is another file now, with the same size.
    fs::remove_file(at("a/b/large")).expect("removed");
    fs::write(at("a/b/large"), vec![9; 5_000_001]).expect("file");
    fs::hard_link(at("a/f17"), at("a/b/linked")).expect("link");
    let _ = fs::remove_file(at("dangling"));
    symlink("elsewhere", at("dangling")).expect("symlink");
}

#[test]
fn a_changed_tree_is_made_equal_in_each_direction() {
    let temporary = Temporary::new();
    let (server, other) = (Server::start(&[]), Server::start(&[]));
    let source = temporary.join("source");
    make_tree(&source);
    let (near, back) = (path(&source), temporary.join("back"));
    for changed in [false, true] {
        if changed {
            change(&source);
        }
        let differs = common::dafs(&["diff", near, &server.at("tree")]);
        assert_eq!(differs.status.code(), Some(1));
        mirror(&[near, &server.at("tree")]);
        assert_same(&server.file("tree"), &source);
        assert_nothing_to_do(near, &server.at("tree"));
        mirror(&[&server.at("tree"), &other.at("tree")]);
        assert_same(&other.file("tree"), &source);
        assert_nothing_to_do(&server.at("tree"), &other.at("tree"));
        mirror(&[&other.at("tree"), path(&back)]);
        assert_same(&back, &source);
        assert_nothing_to_do(&other.at("tree"), path(&back));
    }
    // Within one server, and its whole export.
    mirror(&[&server.at("tree"), &server.at("copy")]);
    assert_same(&server.file("copy"), &source);
    mirror(&[near, &other.url]);
    assert_same(&other.directory, &source);
    no_leftovers(&server.directory);
}

#[test]
fn only_what_differs_is_touched() {
    let temporary = Temporary::new();
    let server = Server::start(&[]);
    let source = temporary.join("source");
    make_tree(&source);
    let to = server.at("tree");
    mirror(&[path(&source), &to]);
    let inode = |name: &str| fs::metadata(server.file("tree").join(name)).expect("there").ino();
    let before = ["a/f20", "a/f15", "a/large"].map(inode);
    fs::set_permissions(source.join("a/f15"), fs::Permissions::from_mode(0o600)).expect("mode");
    assert_eq!(mirror(&[path(&source), &to]), [0, 0, 0, 1]);
    fs::write(source.join("a/f21"), "x").expect("file");
    assert_eq!(mirror(&[path(&source), &to]), [1, 0, 0, 0]);
    assert_eq!(["a/f20", "a/f15", "a/large"].map(inode), before);
    assert_same(&server.file("tree"), &source);
    // The same size and time: only the bytes tell.
    let time = fs::metadata(source.join("a/f22")).expect("there").modified().expect("time");
    let size = fs::metadata(source.join("a/f22")).expect("there").len();
    fs::write(source.join("a/f22"), vec![0; size as usize]).expect("file");
    File::open(source.join("a/f22")).expect("open").set_modified(time).expect("time");
    assert_eq!(mirror(&[path(&source), &to]), [0; 4]);
    assert_eq!(good(&["diff", path(&source), &to]), "");
    let output = common::dafs(&["diff", "--checksum", path(&source), &to]);
    assert_eq!(text(&output.stdout), "content: a/f22\n");
    assert_eq!(mirror(&["--checksum", path(&source), &to]), [1, 0, 0, 0]);
    assert_nothing_to_do(path(&source), &to);
}

/// Root needs no mode to write into a directory: a user opens it, and closes it again.
#[test]
fn a_closed_directory_is_closed_again() {
    let temporary = Temporary::new();
    let server = Server::start(&[]);
    let source = temporary.join("source");
    fs::create_dir_all(source.join("closed")).expect("directory");
    fs::write(source.join("closed/file"), "x").expect("file");
    let closed = |dir: &Path| fs::set_permissions(dir, fs::Permissions::from_mode(0o555));
    closed(&source.join("closed")).expect("mode");
    let user = 12_345;
    if is_root() {
        for path in
            [&source, &source.join("closed"), &source.join("closed/file"), &server.directory]
        {
            std::os::unix::fs::chown(path, Some(user), Some(65_534)).expect("chown");
        }
    }
    let to = server.at("tree");
    let arguments = ["mirror", "--json", path(&source), &to];
    let mirror = || match is_root() {
        true => common::dafs_as(user, &arguments),
        false => common::dafs(&arguments),
    };
    let opened =
        |name: &str| fs::set_permissions(source.join(name), fs::Permissions::from_mode(0o755));
    for round in 0..3 {
        if round == 2 {
            opened("closed").expect("mode");
            fs::write(source.join("closed/new"), "x").expect("file");
            if is_root() {
                let new = source.join("closed/new");
                std::os::unix::fs::chown(new, Some(user), Some(65_534)).expect("chown");
            }
            closed(&source.join("closed")).expect("mode");
        }
        let output = mirror();
        assert!(output.status.success(), "{}", text(&output.stderr));
        let done = json(&text(&output.stdout));
        assert_eq!(done[0]["updated"], u64::from(round != 1), "round {round}");
        assert_same(&server.file("tree"), &source);
    }
    opened("closed").expect("mode");
    fs::remove_dir_all(source.join("closed")).expect("removed");
    assert!(mirror().status.success() && !server.file("tree/closed").exists());
}

#[test]
fn what_is_excluded_is_neither_copied_nor_removed() {
    let temporary = Temporary::new();
    let server = Server::start(&[]);
    let source = temporary.join("source");
    fs::create_dir_all(source.join("cache")).expect("directory");
    fs::write(source.join("cache/x"), "x").expect("file");
    fs::write(source.join("file"), "x").expect("file");
    let there = |name: &str| server.file("tree").join(name);
    fs::create_dir_all(there("gone/deep")).expect("directory");
    fs::create_dir_all(there("cache")).expect("directory");
    for name in ["gone/deep/keep.log", "gone/file", "cache/own", "extra"] {
        fs::write(there(name), "x").expect("file");
    }
    let options = ["--exclude", "*.log", "--exclude", "/cache/"];
    let to = server.at("tree");
    let would = good(&[&["mirror", "--dry-run"], &options[..], &[path(&source), &to]].concat());
    assert!(would.contains(&format!("removed {to}/extra\n")), "{would}");
    assert!(there("extra").exists() && !there("file").exists());
    mirror(&[&["--no-delete"], &options[..], &[path(&source), &to]].concat());
    assert!(there("extra").exists() && there("file").exists());
    mirror(&[&options[..], &[path(&source), &to]].concat());
    let found: Vec<String> = snapshot(&there("")).keys().map(|name| text(name)).collect();
    assert_eq!(
        found,
        ["", "cache", "cache/own", "file", "gone", "gone/deep", "gone/deep/keep.log"]
    );
    let same = [&["diff", "--exclude", "gone"], &options[..], &[path(&source), &to]].concat();
    assert_eq!(good(&same), "");
    mirror(&[path(&source), &to]);
    assert_same(&there(""), &source);
}

#[test]
fn nothing_is_removed_where_not_all_is_known() {
    if !is_root() {
        println!("skipped: only root can act as another user");
        return;
    }
    let temporary = Temporary::new();
    let server = Server::start(&[]);
    let source = temporary.join("source");
    fs::create_dir_all(source.join("closed")).expect("directory");
    fs::create_dir_all(server.file("tree/closed")).expect("directory");
    for name in ["closed/kept", "removed"] {
        fs::write(server.file("tree").join(name), "x").expect("file");
    }
    for at in [&server.file("tree"), &server.file("tree/closed")] {
        std::os::unix::fs::chown(at, Some(12_345), Some(12_345)).expect("chown");
    }
    fs::set_permissions(source.join("closed"), fs::Permissions::from_mode(0o0)).expect("mode");
    let output = common::dafs_as(12_345, &["mirror", path(&source), &server.at("tree")]);
    assert_eq!(output.status.code(), Some(1));
    let said = text(&output.stderr);
    assert!(said.contains("source/closed: permission denied"), "{said}");
    assert!(server.file("tree/closed/kept").exists() && !server.file("tree/removed").exists());
}

#[test]
fn differences_are_named_and_told_by_the_status() {
    let temporary = Temporary::new();
    let server = Server::start(&[]);
    let source = temporary.join("source");
    make_tree(&source);
    let to = server.at("tree");
    good(&["cp", "-a", path(&source), &to]);
    assert_eq!(good(&["diff", "--checksum", path(&source), &to]), "");
    change(&source);
    let output = common::dafs(&["diff", path(&source), &to]);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(1), String::new()));
    let said = text(&output.stdout);
    for line in [
        "size, time: a/f10",
        "time: a/f11",
        "only in B: a/f12",
        "only in A: a/b/renamed",
        "type: a/f14",
        "mode: a/f15",
        "type: empty",
        "only in B: odd",
    ] {
        assert!(said.lines().any(|found| found == line), "{line} not in {said}");
    }
    let quiet = common::dafs(&["diff", "-q", path(&source), &to]);
    assert_eq!((quiet.status.code(), text(&quiet.stdout)), (Some(1), String::new()));
    let lines = json(&text(&common::dafs(&["diff", "--json", path(&source), &to]).stdout));
    assert!(lines.iter().any(|line| line["path"] == "a/f10" && line["differs"][0] == "size"));
    assert!(bad(1, &["diff", path(&source), &server.at("none")]).contains("no such file"));
    bad(2, &["diff", path(&source)]);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let temporary = Temporary::new();
    let server = Server::start(&[]);
    fs::create_dir_all(server.file("a/b")).expect("directory");
    fs::write(server.file("file"), "x").expect("file");
    let near = path(&temporary.0);
    assert!(bad(1, &["mirror", &server.at("a"), &server.at("a/b")]).contains("lies within"));
    assert!(bad(1, &["mirror", &server.at("a/b"), &server.at("a")]).contains("lies within"));
    assert!(bad(1, &["mirror", &server.at("file"), near]).contains("not a directory"));
    assert!(bad(1, &["mirror", near, &server.at("file")]).contains("not a directory"));
    assert!(bad(2, &["mirror", near, "/nowhere"]).contains("one side must be a URL"));
    let itself = bad(1, &["mirror", path(&server.directory), &server.url]);
    assert!(itself.contains("is the directory that is copied"), "{itself}");
    assert!(server.file("a/b").exists() && server.file("file").exists());
}

#[test]
fn an_origin_and_a_copy_that_meet_are_left_alone() {
    let server = Server::start(&[]);
    let a = server.file("a");
    let begin = || {
        let _ = fs::remove_dir_all(&a);
        fs::create_dir_all(a.join("x/b/b")).expect("directory");
        for name in ["file", "x/file", "x/b/file", "x/b/b/file"] {
            fs::write(a.join(name), name).expect("file");
        }
    };
    let other = server.url.replace("127.0.0.1", "localhost");
    for from in [path(&server.directory).to_owned() + "/", other] {
        // Within the copy: what is copied is not removed from it.
        begin();
        let said = bad(1, &["mirror", &format!("{from}a/x/b"), &server.at("a")]);
        assert!(said.contains("a/x/b: is what is copied: it is not removed"), "{said}");
        assert_eq!(fs::read(a.join("x/b/b/file")).expect("there"), b"x/b/b/file");
        assert_eq!(fs::read(a.join("file")).expect("there"), b"x/b/file");
        assert!(!a.join("x/file").exists());
        begin();
        let said = bad(1, &["mirror", &format!("{from}a/x"), &server.at("a/x/..")]);
        assert!(said.contains("is what is copied"), "{said}");
        assert!(a.join("x/b/b/file").exists());
        // Within the origin: not copied again and again.
        for command in [&["mirror"][..], &["cp", "-r"]] {
            begin();
            let to = server.at("a/x/new");
            let said = bad(1, &[command, &[&format!("{from}a"), &to]].concat());
            assert!(said.contains("a/x/new: cannot copy a directory into itself"), "{said}");
            assert_eq!(fs::read(a.join("x/new/x/b/file")).expect("there"), b"x/b/file");
            assert!(!a.join("x/new/x/new").exists());
        }
    }
}

#[test]
fn a_link_that_names_the_target_is_followed() {
    let temporary = Temporary::new();
    let server = Server::start(&[]);
    let source = temporary.join("source");
    make_tree(&source);
    fs::create_dir(server.file("tree")).expect("directory");
    symlink("tree", server.file("link")).expect("symlink");
    mirror(&[path(&source), &server.at("link")]);
    assert_same(&server.file("tree"), &source);
    assert_nothing_to_do(path(&source), &server.at("link"));
    let contents = format!("{}/.", path(&source));
    fs::set_permissions(server.file("tree/closed"), fs::Permissions::from_mode(0o755))
        .expect("mode");
    fs::remove_dir_all(server.file("tree")).expect("removed");
    fs::create_dir(server.file("tree")).expect("directory");
    good(&["cp", "-a", &contents, &server.at("link")]);
    assert_same(&server.file("tree"), &source);
}

#[test]
fn nothing_is_removed_for_an_origin_that_is_gone() {
    let temporary = Temporary::new();
    let server = Server::start(&[]);
    fs::create_dir(server.file("tree")).expect("directory");
    fs::write(server.file("tree/kept"), "x").expect("file");
    fs::create_dir(temporary.join("gone")).expect("directory");
    let output = Command::new("sh")
        .args(["-c", "cd \"$1\" && rmdir \"$1\" && exec \"$2\" mirror . \"$3\"", "sh"])
        .args([path(&temporary.join("gone")), env!("CARGO_BIN_EXE_dafs"), &server.at("tree")])
        .output()
        .expect("runs");
    assert_eq!(output.status.code(), Some(1), "{}", text(&output.stderr));
    assert!(server.file("tree/kept").exists());
}

#[test]
fn a_directory_gives_way_only_to_what_is_there() {
    if !is_root() {
        println!("skipped: only root can act as another user");
        return;
    }
    let temporary = Temporary::new();
    let server = Server::start(&[]);
    let source = temporary.join("source");
    fs::create_dir(&source).expect("directory");
    for name in ["closed", "excluded", "open"] {
        fs::create_dir_all(server.file("tree").join(name)).expect("directory");
        fs::write(server.file("tree").join(name).join("own.log"), "x").expect("file");
        fs::write(source.join(name), "x").expect("file");
    }
    fs::rename(server.file("tree/open/own.log"), server.file("tree/open/own")).expect("renamed");
    fs::rename(server.file("tree/closed/own.log"), server.file("tree/closed/own")).expect("named");
    let own = |at: &Path| std::os::unix::fs::chown(at, Some(12_345), Some(12_345)).expect("chown");
    own(&server.file("tree"));
    for name in ["closed", "excluded", "open"] {
        own(&server.file("tree").join(name));
    }
    fs::set_permissions(source.join("closed"), fs::Permissions::from_mode(0o0)).expect("mode");
    let arguments = ["mirror", "--exclude", "*.log", path(&source), &server.at("tree")];
    let output = common::dafs_as(12_345, &arguments);
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("source/closed: permission denied"), "{said}");
    assert!(said.contains("tree/excluded: what is there is not removed"), "{said}");
    assert!(server.file("tree/closed/own").exists());
    assert!(server.file("tree/excluded/own.log").exists());
    assert_eq!(fs::read(server.file("tree/open")).expect("a file"), b"x");
    no_leftovers(&server.directory);
}

/// Many files, so that a mirror can be broken off in the middle.
fn make_many(root: &Path) {
    for dir in 0..20 {
        let at = root.join(format!("d{dir}"));
        fs::create_dir_all(at.join("sub")).expect("directory");
        for file in 0..40 {
            fs::write(at.join(format!("f{file}")), vec![file; 2000]).expect("file");
        }
        fs::hard_link(at.join("f0"), at.join("sub/link")).expect("link");
        symlink("f1", at.join("sub/symlink")).expect("symlink");
        fs::write(at.join("large"), vec![dir; 1 << 20]).expect("file");
    }
}

/// Waits until so many directories are there, for a minute.
fn wait_for(at: &Path, wanted: usize) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while fs::read_dir(at).map_or(0, Iterator::count) < wanted {
        assert!(Instant::now() < deadline, "no progress");
        std::thread::yield_now();
    }
}

#[test]
fn a_mirror_that_was_killed_is_finished_by_the_next() {
    let temporary = Temporary::new();
    let server = Server::start(&[]);
    let (source, back) = (temporary.join("source"), temporary.join("back"));
    make_many(&source);
    for (from, to, at) in [
        (path(&source).to_owned(), server.at("tree"), server.file("tree")),
        (server.at("tree"), path(&back).to_owned(), back.clone()),
    ] {
        for (wanted, kill) in [(4, true), (10, false), (15, true)] {
            let mut child = binary()
                .args(["mirror", "-q", &from, &to])
                .stderr(Stdio::null())
                .spawn()
                .expect("starts");
            wait_for(&at, wanted);
            if kill {
                child.kill().expect("kill");
            } else {
                interrupt(&child);
            }
            child.wait().expect("ends");
        }
        mirror(&[&from, &to]);
        assert_same(&at, &source);
        assert_nothing_to_do(&from, &to);
        no_leftovers(&at);
    }
}

#[test]
fn a_mirror_goes_on_when_its_server_is_killed() {
    let temporary = Temporary::new();
    let source = temporary.join("source");
    make_many(&source);
    let mut server = Server::start(&[]);
    let child = Command::new(env!("CARGO_BIN_EXE_dafs"))
        .args(["mirror", "-q", path(&source), &server.at("tree")])
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    for wanted in [3, 8] {
        wait_for(&server.file("tree"), wanted);
        server.crash_and_restart();
    }
    let output = child.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_same(&server.file("tree"), &source);
    assert_nothing_to_do(path(&source), &server.at("tree"));
}

#[test]
fn a_link_put_into_the_target_is_replaced_not_followed() {
    let temporary = Temporary::new();
    let server = Server::start(&[]);
    fs::create_dir_all(server.file("tree/dir")).expect("directory");
    fs::write(server.file("tree/dir/file"), "new").expect("file");
    let (target, outside) = (temporary.join("target"), temporary.join("outside"));
    fs::create_dir(&target).expect("directory");
    fs::create_dir(&outside).expect("directory");
    fs::write(outside.join("file"), "old").expect("file");
    fs::write(outside.join("other"), "old").expect("file");
    symlink(&outside, target.join("dir")).expect("symlink");
    mirror(&[&server.at("tree"), path(&target)]);
    assert_same(&target, &server.file("tree"));
    let kept = snapshot(&outside).len();
    assert_eq!(kept, 3, "what lies outside is left alone");
    assert_eq!(fs::read_to_string(outside.join("file")).expect("there"), "old");
}
