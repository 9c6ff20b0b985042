//! `dafs cp` with a real server.

mod common;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::tree::{assert_same, make_tree, no_leftovers, snapshot};
use common::{Server, Temporary, bad, dafs_as, good, interrupt, is_root, json, path, text};

#[test]
fn a_tree_is_the_same_there_and_back_and_on_the_server() {
    let temporary = Temporary::new();
    let source = temporary.join("source");
    make_tree(&source);
    let entries = snapshot(&source).len() as u64;
    let server = Server::start(&[]);
    let summary = json(&good(&["cp", "-r", "--json", path(&source), &server.at("tree")]));
    assert_same(&server.file("tree"), &source);
    assert_eq!(summary[0]["files"].as_u64(), Some(entries - 7));
    assert_eq!(summary[0]["directories"], 7);

    let back = temporary.join("back");
    good(&["cp", "-r", "--sync", &server.at("tree"), path(&back)]);
    assert_same(&back, &source);

    good(&["cp", "-r", &server.at("tree"), &server.at("second")]);
    assert_same(&server.file("second"), &source);

    // Onto what is there: into it, and over it.
    good(&["cp", "-r", path(&source), &server.at("tree")]);
    assert_same(&server.file("tree/source"), &source);
    let closed = server.file("tree/source/closed");
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o755)).expect("mode");
    good(&["rm", "-r", &server.at("tree/source")]);
    good(&["cp", "-r", &format!("{}/.", path(&source)), &server.at("tree")]);
    assert_same(&server.file("tree"), &source);
    good(&["cp", "-r", &server.at("tree/."), path(&back)]);
    assert_same(&back, &source);
}

#[test]
fn single_files_go_where_cp_would_put_them() {
    let temporary = Temporary::new();
    let (one, two) = (temporary.join("one"), temporary.join("two"));
    fs::write(&one, "one").expect("file");
    fs::write(&two, "two").expect("file");
    let server = Server::start(&[]);
    let served = |name: &str| fs::read_to_string(server.file(name)).expect("there");
    good(&["cp", path(&one), &server.url]);
    assert_eq!(served("one"), "one");
    good(&["cp", path(&two), &server.at("one")]);
    assert_eq!(served("one"), "two");
    fs::create_dir(server.file("dir")).expect("directory");
    good(&["cp", path(&one), path(&two), &server.at("dir/")]);
    assert_eq!(served("dir/one") + &served("dir/two"), "onetwo");
    good(&["cp", &server.at("dir/one"), path(&two)]);
    assert_eq!(fs::read_to_string(&two).expect("there"), "one");
    symlink("real", server.file("link")).expect("symlink");
    good(&["cp", path(&one), &server.at("link")]);
    assert_eq!(served("real"), "one", "an existing symlink is kept");

    assert!(bad(1, &["cp", path(&one), &server.at("new/")]).contains("new"));
    assert!(bad(1, &["cp", path(&one), path(&two), &server.at("one")]).contains("not a directory"));
    assert!(bad(1, &["cp", path(&temporary.0), &server.at("x")]).contains("is a directory"));
    assert!(bad(1, &["cp", &server.at("dir"), "/tmp"]).contains("is a directory"));
    let inside = bad(1, &["cp", "-r", &server.at("dir"), &server.at("dir/x")]);
    assert!(inside.contains("into itself"), "{inside}");
    // Also where the server serves it.
    let local = path(&server.directory).to_owned();
    let inside = bad(1, &["cp", "-r", &local, &server.at("dir")]);
    assert!(inside.contains("into itself"), "{inside}");
    let null = fs::metadata("/dev/null").expect("there").mode();
    good(&["cp", &server.at("one"), "/dev/null"]);
    assert_eq!(fs::metadata("/dev/null").expect("still there").mode(), null);
}

#[test]
fn what_cannot_be_copied_is_named_and_the_rest_is_copied() {
    let temporary = Temporary::new();
    let source = temporary.join("source");
    fs::create_dir_all(source.join("dir")).expect("directory");
    fs::write(source.join("dir/inside"), "x").expect("file");
    for name in ["good", "taken"] {
        fs::write(source.join(name), name).expect("file");
    }
    let server = Server::start(&[]);
    fs::create_dir_all(server.file("source/taken")).expect("directory");
    fs::write(server.file("source/dir"), "a file").expect("file");
    let said = bad(1, &["cp", "-r", path(&source), &server.url]);
    assert_eq!(said.lines().count(), 2, "{said}");
    assert!(said.contains(&format!("dafs cp: {}: ", server.at("source/taken"))), "{said}");
    assert!(said.contains(&format!("dafs cp: {}: cannot overwrite", server.at("source/dir"))));
    assert_eq!(fs::read_to_string(server.file("source/good")).expect("copied"), "good");
    let missing = temporary.join("missing");
    let said = bad(1, &["cp", path(&missing), path(&source.join("good")), &server.url]);
    assert!(said.contains("missing: no such file or directory"), "{said}");
    assert!(server.file("good").exists());
    no_leftovers(&server.directory);
}

#[test]
fn standard_streams_are_files_too() {
    let server = Server::start(&[]);
    let data: Vec<u8> = (0..3_000_001u32).map(|i| (i % 251) as u8).collect();
    let mut child = Command::new(env!("CARGO_BIN_EXE_dafs"))
        .args(["cp", "-", &server.at("stream")])
        .stdin(Stdio::piped())
        .spawn()
        .expect("starts");
    child.stdin.take().expect("piped").write_all(&data).expect("taken");
    assert!(child.wait().expect("ends").success());
    assert!(fs::read(server.file("stream")).expect("there") == data);
    let out = common::dafs(&["cp", &server.at("stream"), "-"]);
    assert!(out.stdout == data);
    let out = common::dafs(&["cat", &server.at("stream"), &server.at("stream")]);
    assert!(out.stdout == [&data[..], &data[..]].concat());
    assert!(bad(1, &["cat", &server.at("missing")]).contains("no such file"));
}

#[test]
fn a_file_larger_than_the_cache_arrives_whole() {
    let temporary = Temporary::new();
    let server = Server::start(&["--arena", "16m"]);
    let source = temporary.join("source");
    let mut file = File::create(&source).expect("file");
    for block in 0..40u8 {
        file.write_all(&vec![block; 1 << 20]).expect("written");
    }
    drop(file);
    good(&["cp", path(&source), &server.at("large")]);
    let back = temporary.join("back");
    good(&["cp", &server.at("large"), path(&back)]);
    let mut copy = File::open(&back).expect("open");
    let mut piece = vec![0; 1 << 20];
    for block in 0..40u8 {
        copy.read_exact(&mut piece).expect("long enough");
        assert!(piece.iter().all(|byte| *byte == block), "block {block}");
    }
    assert_eq!(copy.read(&mut piece).expect("read"), 0);
}

#[test]
fn an_interrupted_copy_exits_with_130_and_leaves_nothing() {
    let server = Server::start(&[]);
    let mut child = Command::new(env!("CARGO_BIN_EXE_dafs"))
        .args(["cp", "-", &server.at("never")])
        .stdin(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut input = child.stdin.take().expect("piped");
    input.write_all(&[7; 100_000]).expect("taken");
    // It has begun when its temporary file is there.
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while snapshot(&server.directory).len() < 2 {
        assert!(std::time::Instant::now() < deadline, "no temporary file came");
        std::thread::yield_now();
    }
    interrupt(&child);
    assert_eq!(child.wait().expect("ends").code(), Some(130));
    assert_eq!(snapshot(&server.directory).len(), 1, "only the root is left");
    drop(input);
}

/// Copies `from`, giving a lost server a second; kills it when the copy has begun. How often it
/// was looked for until the copy gave up.
fn attempts_after_a_loss(from: &str) -> usize {
    let mut server = Server::start(&[]);
    let mut child = Command::new(env!("CARGO_BIN_EXE_dafs"))
        .args(["cp", "--retry", "1s", from, &server.at("never?connections=1")])
        .stdin(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    let mut input = child.stdin.take().expect("piped");
    if from == "-" {
        input.write_all(&[7; 100_000]).expect("taken");
    }
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    while snapshot(&server.directory).len() < 2 {
        assert!(std::time::Instant::now() < deadline, "no temporary file came");
        std::thread::yield_now();
    }
    server.child.kill().expect("kill");
    server.child.wait().expect("ends");
    drop(input);
    let address = server.url.trim_start_matches("dafs://").trim_end_matches('/');
    let listener = std::net::TcpListener::bind(address).expect("its port is free");
    listener.set_nonblocking(true).expect("set");
    let mut attempts = 0;
    loop {
        let ended = child.try_wait().expect("known");
        while listener.accept().is_ok() {
            attempts += 1;
        }
        if let Some(status) = ended {
            assert_eq!(status.code(), Some(3));
            return attempts;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_lost_server_is_looked_for_once() {
    let temporary = Temporary::new();
    fs::write(temporary.join("large"), vec![7; 128 << 20]).expect("file");
    for from in ["-", path(&temporary.join("large"))] {
        // At 0, 20, 60, 140, 300, 620 and 1120 ms; on a busy machine 8 were seen. Looking twice
        // would be 14.
        let attempts = attempts_after_a_loss(from);
        assert!((1..=10).contains(&attempts), "{from}: {attempts} attempts");
    }
}

#[test]
fn a_copy_survives_crashes_of_the_server() {
    let temporary = Temporary::new();
    let source = temporary.join("source");
    for dir in 0..20 {
        fs::create_dir_all(source.join(format!("d{dir}"))).expect("directory");
        for file in 0..100 {
            fs::write(source.join(format!("d{dir}/f{file}")), vec![file; 3000]).expect("file");
        }
        fs::hard_link(source.join(format!("d{dir}/f0")), source.join(format!("d{dir}/link")))
            .expect("link");
        symlink("f1", source.join(format!("d{dir}/symlink"))).expect("symlink");
        fs::write(source.join(format!("d{dir}/large")), vec![dir; 3 << 20]).expect("file");
    }
    let mut server = Server::start(&[]);
    let child = Command::new(env!("CARGO_BIN_EXE_dafs"))
        .args(["cp", "-r", path(&source), &server.at("tree")])
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    for wanted in [3, 8] {
        // In the middle: some of it is there.
        let some = || fs::read_dir(server.file("tree")).map_or(0, Iterator::count);
        let deadline = std::time::Instant::now() + Duration::from_secs(30);
        while some() < wanted {
            assert!(std::time::Instant::now() < deadline, "no progress");
            std::thread::yield_now();
        }
        server.crash_and_restart();
    }
    let output = child.wait_with_output().expect("ends");
    let said = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(said.contains("connected again"), "{said}");
    assert_same(&server.file("tree"), &source);
}

#[test]
fn a_read_only_export_takes_nothing() {
    let temporary = Temporary::new();
    let served = temporary.join("served");
    fs::create_dir(&served).expect("directory");
    fs::write(served.join("file"), "x").expect("file");
    let server = Server::start_in(temporary, served, &["--read-only"]);
    assert_eq!(good(&["cat", &server.at("file")]), "x");
    for arguments in [
        &["cp", "/etc/hostname", &server.at("new")][..],
        &["rm", &server.at("file")],
        &["mkdir", &server.at("dir")],
        &["touch", &server.at("file")],
    ] {
        let said = bad(1, arguments);
        assert!(said.contains("read-only"), "{arguments:?}: {said}");
    }
    assert_eq!(snapshot(&server.directory).len(), 2);
}

#[test]
fn other_users_get_what_they_may_and_no_more() {
    if !is_root() {
        eprintln!("skipped: only root can act as another user");
        return;
    }
    let server = Server::start(&[]);
    fs::write(server.file("secret"), "x").expect("file");
    fs::set_permissions(server.file("secret"), fs::Permissions::from_mode(0o600)).expect("mode");
    fs::create_dir(server.file("open")).expect("directory");
    fs::set_permissions(server.file("open"), fs::Permissions::from_mode(0o777)).expect("mode");
    let output = dafs_as(12_345, &["cat", &server.at("secret")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("permission denied"), "{}", text(&output.stderr));
    let output = dafs_as(12_345, &["cp", "/etc/passwd", &server.at("open/file")]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(fs::metadata(server.file("open/file")).expect("there").uid(), 12_345);
    // A source that cannot be read is named; the rest is copied.
    let temporary = Temporary::new();
    fs::write(temporary.join("closed"), "x").expect("file");
    fs::set_permissions(temporary.join("closed"), fs::Permissions::from_mode(0o000)).expect("mode");
    fs::write(temporary.join("readable"), "x").expect("file");
    let output = dafs_as(12_345, &["cp", "-r", path(&temporary.0), &server.at("open/tree")]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("closed: permission denied"));
    assert!(server.file("open/tree/readable").exists());
    no_leftovers(&server.directory);
}

/// A file system of one mebibyte, unmounted at the end.
struct Small(std::path::PathBuf);

impl Small {
    fn mount(at: &Path) -> Option<Small> {
        fs::create_dir(at).expect("directory");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"]).arg(at);
        let mounted = mount.output().is_ok_and(|output| output.status.success());
        mounted.then(|| Small(at.to_path_buf()))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_told_for_each_file() {
    let temporary = Temporary::new();
    let served = temporary.join("served");
    let Some(_mounted) = Small::mount(&served) else {
        eprintln!("skipped: only root can mount a small file system");
        return;
    };
    let source = temporary.join("source");
    fs::create_dir(&source).expect("directory");
    fs::write(source.join("large"), vec![1; 4 << 20]).expect("file");
    fs::write(source.join("small"), "x").expect("file");
    let server = Server::start_in(Temporary::new(), served, &[]);
    let said = bad(1, &["cp", "-r", path(&source), &server.at("tree")]);
    let expected = format!(
        "dafs cp: {}: no space left on device (server disk full)\n",
        server.at("tree/large")
    );
    assert_eq!(said, expected);
    assert_eq!(fs::read_to_string(server.file("tree/small")).expect("copied"), "x");
    no_leftovers(&server.directory);
}
