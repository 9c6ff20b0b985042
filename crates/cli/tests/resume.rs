//! Copies of large files that were broken off, and go on.

mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant, SystemTime};

use common::{Server, Temporary, binary, good, interrupt, json, path};

const MIB: usize = 1 << 20;
/// Of the file that is copied.
const BYTES: usize = 48 * MIB;
/// Noted after so many.
const NOTED: u64 = 16 << 20;

/// A server that notices soon that a client is dead, and its configuration.
fn server() -> (Server, String) {
    server_with_lease(2)
}

fn server_with_lease(seconds: u32) -> (Server, String) {
    let temporary = Temporary::new();
    let served = temporary.join("served");
    fs::create_dir(&served).expect("directory");
    let config = temporary.join("config.toml");
    fs::write(&config, format!("[limits]\nlease_seconds = {seconds}\n")).expect("file");
    let config = path(&config).to_owned();
    (Server::start_in(temporary, served, &["--config", &config]), config)
}

fn make_large(at: &Path) {
    let mut file = File::create(at).expect("file");
    for number in 0..BYTES / MIB {
        let piece: Vec<u8> = (0..MIB).map(|i| (i * 31 + number * 7 + (i >> 8)) as u8).collect();
        file.write_all(&piece).expect("written");
    }
}

fn assert_same_file(a: &Path, b: &Path) {
    assert!(fs::read(a).expect("there") == fs::read(b).expect("there"), "other bytes");
    let (a, b) = (fs::metadata(a).expect("there"), fs::metadata(b).expect("there"));
    assert_eq!((a.mode(), a.mtime(), a.mtime_nsec()), (b.mode(), b.mtime(), b.mtime_nsec()));
    assert_eq!(a.len(), b.len());
}

/// The incomplete copy in a directory, if there is one.
fn part(dir: &Path) -> Option<PathBuf> {
    let names = fs::read_dir(dir).expect("readable").map(|entry| entry.expect("entry").path());
    names.into_iter().find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with(".dafs-part-")
    })
}

/// How far the incomplete copy surely is.
fn noted(dir: &Path) -> u64 {
    let mut room = [0; 200];
    let Some(part) = part(dir) else { return 0 };
    let Ok(bytes) = rustix::fs::getxattr(&part, "user.dafs.partial", &mut room[..]) else {
        return 0;
    };
    let record = String::from_utf8_lossy(&room[..bytes]).into_owned();
    record.split(' ').nth(2).and_then(|offset| offset.parse().ok()).unwrap_or(0)
}

/// A copy that has noted how far it is, and is slow enough to be met in the middle.
fn begin(from: &str, to: &str, dir: &Path) -> Child {
    let mut child = binary()
        .args(["cp", "--bwlimit", "8m", from, to])
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    let deadline = Instant::now() + Duration::from_secs(60);
    while noted(dir) < NOTED {
        let ended = child.try_wait().expect("known");
        assert!(ended.is_none() && Instant::now() < deadline, "no part is noted: {ended:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
    child
}

fn kill(mut child: Child) {
    child.kill().expect("kill");
    child.wait().expect("ends");
}

/// Copies; how many bytes an earlier copy had left.
fn resumed(from: &str, to: &str) -> u64 {
    let done = json(&good(&["cp", "--json", from, to]));
    assert_eq!(done[0]["files"], 1);
    done[0]["resumed_bytes"].as_u64().expect("a number")
}

/// False, and says so, where files have no extended attributes.
fn has_attributes(dir: &Path) -> bool {
    let file = dir.join("attributes");
    fs::write(&file, "").expect("file");
    let flags = rustix::fs::XattrFlags::empty();
    let set = rustix::fs::setxattr(&file, "user.x", b"x", flags).is_ok();
    fs::remove_file(&file).expect("removed");
    if !set {
        println!("skipped: the file system of temporary files has no extended attributes");
    }
    set
}

#[test]
fn a_killed_copy_is_gone_on_with_in_both_directions() {
    let temporary = Temporary::new();
    if !has_attributes(&temporary.0) {
        return;
    }
    let (mut server, config) = server();
    let (source, back) = (temporary.join("source"), temporary.join("back"));
    make_large(&source);
    kill(begin(path(&source), &server.at("copy"), &server.directory));
    assert!(!server.file("copy").exists());
    let bytes = resumed(path(&source), &server.at("copy"));
    assert!((NOTED..BYTES as u64).contains(&bytes), "{bytes}");
    assert_same_file(&server.file("copy"), &source);
    assert_eq!(part(&server.directory), None);

    fs::create_dir(&back).expect("directory");
    kill(begin(&server.at("copy"), path(&back.join("copy")), &back));
    let bytes = resumed(&server.at("copy"), path(&back.join("copy")));
    assert!((NOTED..BYTES as u64).contains(&bytes), "{bytes}");
    assert_same_file(&back.join("copy"), &source);
    assert_eq!(part(&back), None);

    // The server ends with the client: what was noted is in the system's hands.
    let child = begin(path(&source), &server.at("again"), &server.directory);
    server.child.kill().expect("kill");
    kill(child);
    server.crash_and_restart_with(&["--config", &config]);
    let bytes = resumed(path(&source), &server.at("again"));
    assert!((NOTED..BYTES as u64).contains(&bytes), "{bytes}");
    assert_same_file(&server.file("again"), &source);
}

#[test]
fn an_interrupted_copy_is_gone_on_with_where_it_was() {
    let temporary = Temporary::new();
    if !has_attributes(&temporary.0) {
        return;
    }
    let (server, _) = server();
    let source = temporary.join("source");
    make_large(&source);
    let mut child = begin(path(&source), &server.at("copy"), &server.directory);
    interrupt(&child);
    assert_eq!(child.wait().expect("ends").code(), Some(130));
    let far = noted(&server.directory);
    assert!(far >= NOTED);
    assert_eq!(resumed(path(&source), &server.at("copy")), far);
    assert_same_file(&server.file("copy"), &source);
    assert_eq!(part(&server.directory), None);
}

#[test]
fn a_part_of_another_original_is_of_no_use() {
    let temporary = Temporary::new();
    if !has_attributes(&temporary.0) {
        return;
    }
    let ((server, _), back) = (server(), temporary.join("back"));
    fs::create_dir(&back).expect("directory");
    make_large(&server.file("source"));
    kill(begin(&server.at("source"), path(&back.join("copy")), &back));
    // Another one of the same size.
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    let mut file = File::options().write(true).open(server.file("source")).expect("open");
    file.write_all(&[255; MIB]).expect("written");
    file.set_modified(time).expect("time");
    drop(file);
    assert_eq!(resumed(&server.at("source"), path(&back.join("copy"))), 0);
    assert_same_file(&back.join("copy"), &server.file("source"));
    assert_eq!(part(&back), None);
    // And of the same time.
    kill(begin(&server.at("source"), path(&back.join("copy")), &back));
    let mut file = File::options().write(true).open(server.file("source")).expect("open");
    file.write_all(&[254; MIB]).expect("written");
    file.set_modified(time).expect("time");
    drop(file);
    assert_eq!(resumed(&server.at("source"), path(&back.join("copy"))), 0);
    assert_same_file(&back.join("copy"), &server.file("source"));
    // A mirror removes what is a part of nothing that is there.
    fs::create_dir(server.file("tree")).expect("directory");
    fs::rename(server.file("source"), server.file("tree/source")).expect("renamed");
    let other = back.join(".dafs-part-0123456789abcdef");
    // One that lies in the origin is not copied.
    fs::write(server.file("tree/.dafs-part-0123456789abcdef"), "x").expect("file");
    fs::write(&other, "x").expect("file");
    good(&["mirror", "-q", &server.at("tree"), path(&back)]);
    assert!(!other.exists() && !back.join("copy").exists());
    assert_same_file(&back.join("source"), &server.file("tree/source"));
}

#[test]
fn who_puts_something_in_the_place_of_a_part_gets_nothing() {
    let temporary = Temporary::new();
    let (server, _) = server();
    let (back, outside) = (temporary.join("back"), temporary.join("outside"));
    fs::create_dir(&back).expect("directory");
    make_large(&server.file("source"));
    let target = back.join("copy");
    // Where the part would be: found by a copy that is broken off.
    let name = {
        let child = binary()
            .args(["cp", "--bwlimit", "8m", &server.at("source"), path(&target)])
            .stderr(Stdio::null())
            .spawn()
            .expect("starts");
        let deadline = Instant::now() + Duration::from_secs(60);
        let name = loop {
            assert!(Instant::now() < deadline, "no part came");
            if let Some(part) = part(&back) {
                break part;
            }
            std::thread::yield_now();
        };
        kill(child);
        name
    };
    fs::remove_file(&name).expect("removed");
    fs::write(&outside, "old").expect("file");
    symlink(&outside, &name).expect("symlink");
    assert_eq!(resumed(&server.at("source"), path(&target)), 0);
    assert_same_file(&target, &server.file("source"));
    assert_eq!(fs::read_to_string(&outside).expect("there"), "old");
    // One that others can read, or write.
    fs::remove_file(&name).expect("removed");
    fs::write(&name, "").expect("file");
    fs::set_permissions(&name, fs::Permissions::from_mode(0o666)).expect("mode");
    assert_eq!(resumed(&server.at("source"), path(&target)), 0);
    assert_same_file(&target, &server.file("source"));
    assert_eq!(fs::metadata(&name).expect("left alone").len(), 0);
}

#[test]
fn two_copies_do_not_write_the_same_part() {
    let temporary = Temporary::new();
    let (server, _) = server();
    let source = temporary.join("source");
    make_large(&source);
    let start = |to: &str, from: &str| {
        binary().args(["cp", from, to]).stderr(Stdio::null()).spawn().expect("starts")
    };
    let back = temporary.join("back");
    for (from, to, at) in [
        (path(&source).to_owned(), server.at("copy"), server.file("copy")),
        (server.at("copy"), path(&back).to_owned(), back.clone()),
    ] {
        let mut children = [start(&to, &from), start(&to, &from), start(&to, &from)];
        for child in &mut children {
            assert_eq!(child.wait().expect("ends").code(), Some(0));
        }
        assert_same_file(&at, &source);
    }
    assert_eq!(part(&server.directory), None);
    assert_eq!(part(&temporary.0), None);
}

#[test]
fn a_copy_waits_for_another_one_no_longer_than_for_a_dead_one() {
    let temporary = Temporary::new();
    // Long enough for one that lives, on a machine with much to do.
    let (server, _) = server_with_lease(5);
    let source = temporary.join("source");
    make_large(&source);
    let start = |options: &[&str]| {
        let mut command = binary();
        command.arg("cp").args(options).args([path(&source), &server.at("copy")]);
        command.stderr(Stdio::piped()).spawn().expect("starts")
    };
    let mut first = start(&["--bwlimit", "64k"]);
    let deadline = Instant::now() + Duration::from_secs(60);
    while part(&server.directory).is_none() {
        assert!(Instant::now() < deadline, "no part came");
        std::thread::yield_now();
    }
    let waits = |child: &mut Child| {
        let mut said = BufReader::new(child.stderr.take().expect("piped"));
        let mut line = String::new();
        said.read_line(&mut line).expect("a line");
        assert!(line.contains("is being written by another copy"), "{line}");
        said
    };
    let mut second = start(&[]);
    let _said = waits(&mut second);
    interrupt(&second);
    assert_eq!(second.wait().expect("ends").code(), Some(130));
    // What goes on for longer lives: the file is copied beside it, and that is told once.
    let mut third = start(&[]);
    let said = waits(&mut third);
    assert_eq!(third.wait().expect("ends").code(), Some(0));
    assert_eq!(said.lines().count(), 0);
    assert_same_file(&server.file("copy"), &source);
    // One that ends lets the next one in.
    let mut fourth = start(&[]);
    let said = waits(&mut fourth);
    assert!(first.try_wait().expect("known").is_none());
    kill(first);
    assert_eq!(fourth.wait().expect("ends").code(), Some(0));
    assert_eq!(said.lines().count(), 0);
    assert_same_file(&server.file("copy"), &source);
    assert_eq!(part(&server.directory), None);
}
