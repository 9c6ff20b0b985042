//! Which other users read what of a server's cache by themselves: what everybody may open, and each what is his own.

mod common;

use std::fs::File as LocalFile;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{FileExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{Server, Temporary, good, is_root, path};
use dafs_client::{File, Lent, OpenOptions, Session, SessionOptions, Url};
use dafs_fabric::Provider;
use dafs_fabric_shm::ShmProvider;
use dafs_fabric_tcp::TcpProvider;
use dafs_protocol::SetAttr;

const PAGE: usize = 4096;
const PAGES: usize = 64;
const LENT_PAGES: usize = 4;
const ONE: u32 = 54_321;
const OTHER: u32 = 54_322;

fn connect(url: &str) -> Session {
    let url = Url::parse(url).expect("a URL");
    let networks: Vec<Arc<dyn Provider>> =
        vec![Arc::new(TcpProvider::default()), Arc::new(ShmProvider::new())];
    let options = SessionOptions::from_url(&url).expect("options");
    Session::connect_url(networks, &url, options).expect("a session").0
}

/// A page of a mark: 16 bytes, and dots.
fn page(mark: &str) -> Vec<u8> {
    let mut page = vec![b'.'; PAGE];
    page[..16].copy_from_slice(format!("{mark:<16}").as_bytes());
    page
}

/// Pages that begin with a mark, in all memory of this process that it shares with others.
fn mapped(mark: &str) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("mappings");
    let memory = LocalFile::open("/proc/self/mem").expect("memory");
    let mark = format!("{mark:<16}");
    let (mut found, mark, mut pages) = (0, mark.as_bytes(), vec![0; 64 * PAGE]);
    for line in maps.lines().filter(|line| line.contains("memfd:")) {
        let (range, rest) = line.split_once(' ').expect("a range");
        // What it may write is its own: what it has read legitimately is there.
        if !rest.starts_with("r--") {
            continue;
        }
        let (start, end) = range.split_once('-').expect("two ends");
        let [start, end] =
            [start, end].map(|text| u64::from_str_radix(text, 16).expect("an address"));
        for at in (start..end).step_by(pages.len()) {
            let seen = &mut pages[..usize::try_from(end - at).expect("few").min(64 * PAGE)];
            if let Err(error) = memory.read_exact_at(seen, at) {
                panic!("{line} at {at:x}: {error}");
            }
            found += seen.chunks(PAGE).filter(|page| page.starts_with(mark)).count();
        }
    }
    found
}

/// Reads all of a file page by page, three times: how many of them needed no server, and what its first page says.
fn read(session: &Session, file: &File) -> (u64, String) {
    let mut seen = vec![0; PAGE];
    let before = session.info().optimistic.hits;
    for _ in 0..3 {
        for at in (0..PAGES).rev() {
            file.read_at(&mut seen, (at * PAGE) as u64).expect("read");
        }
    }
    let mark = String::from_utf8_lossy(&seen[..16]).trim_end().to_owned();
    (session.info().optimistic.hits - before, mark)
}

/// What another user's program does, by lines that it is told.
#[test]
fn acts_for_another_test() {
    let Ok(url) = std::env::var("DAFS_TEST_ACT") else { return };
    let session = connect(&url);
    let mut files: Vec<(String, File)> = Vec::new();
    let mut lents = Vec::new();
    for line in std::io::stdin().lines() {
        let line = line.expect("a line");
        let (what, name) = line.split_once(' ').unwrap_or((&line, ""));
        let known = || files.iter().find(|(known, _)| known == name).map(|(_, file)| file);
        let answer = match what {
            "open" => match session.open(name.as_bytes(), OpenOptions::read()) {
                Ok(file) => {
                    files.push((name.to_owned(), file));
                    "ok".into()
                }
                Err(error) => format!("refused: {error}"),
            },
            "close" => {
                files.retain(|(known, _)| known != name);
                "ok".into()
            }
            "read" => {
                let (hits, mark) = read(&session, known().expect("open"));
                format!("{hits} {mark}")
            }
            "mapped" => mapped(name).to_string(),
            "lend" => {
                lents.push(known().expect("open").lend(0, LENT_PAGES * PAGE).expect("lent"));
                "ok".into()
            }
            "lent" => {
                let first = lents.first().and_then(|lent: &Lent| lent.pieces().next());
                first.expect("lent")[..16].escape_ascii().to_string()
            }
            "go-on-reading" => {
                let (session, file) = (session.clone(), known().expect("open").clone());
                std::thread::spawn(move || {
                    loop {
                        read(&session, &file);
                    }
                });
                "ok".into()
            }
            _ => panic!("{line}"),
        };
        // Behind what the test harness has written on the line.
        println!("\n= {answer}");
    }
}

/// Another user's program.
struct Actor {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Actor {
    fn new(program: &std::path::Path, server: &Server, uid: u32) -> Actor {
        let mut command = Command::new(program);
        command.args(["--exact", "acts_for_another_test", "--nocapture"]);
        command.env("DAFS_TEST_ACT", server.at("?transport=shm&server_uid=0"));
        command.uid(uid).gid(uid).current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("starts");
        let to = child.stdin.take().expect("a pipe");
        let from = BufReader::new(child.stdout.take().expect("a pipe"));
        Actor { child, to, from }
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.to, "{line}").expect("told");
        let mut answer = String::new();
        loop {
            answer.clear();
            assert!(self.from.read_line(&mut answer).expect("a line") > 0, "it has ended: {line}");
            if let Some(answer) = answer.strip_prefix("= ") {
                return answer.trim_end().to_owned();
            }
        }
    }

    fn mapped(&mut self, mark: &str) -> usize {
        self.ask(&format!("mapped {mark}")).parse().expect("a number")
    }

    /// How many reads of a file needed no server, and what it says.
    fn read(&mut self, name: &str) -> (u64, String) {
        let answer = self.ask(&format!("read {name}"));
        let (hits, mark) = answer.split_once(' ').expect("two words");
        (hits.parse().expect("a number"), mark.to_owned())
    }

    fn signal(&self, signal: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args([signal, &pid]).status().expect("kill").success());
    }

    fn open(&mut self, name: &str) {
        assert_eq!(self.ask(&format!("open {name}")), "ok", "{name}");
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

struct Stage {
    server: Server,
    program: std::path::PathBuf,
    _temporary: Temporary,
}

/// A directory of root that all may search, with these files: name, owner and mode. Each says its name.
fn stage(files: &[(&str, u32, u32)], options: &[&str]) -> Stage {
    let temporary = Temporary::new();
    let directory = temporary.join("served");
    std::fs::create_dir(&directory).expect("directory");
    for (name, uid, mode) in files {
        let file = directory.join(name);
        std::fs::create_dir_all(file.parent().expect("a directory")).expect("directories");
        std::fs::write(&file, page(name).repeat(PAGES)).expect("written");
        LocalFile::open(&file).and_then(|file| file.sync_all()).expect("sync");
        chown(&file, Some(*uid), Some(*uid)).expect("an owner");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(*mode)).expect("a mode");
    }
    let for_program = Temporary::new();
    let program = for_program.join("actor");
    std::fs::copy(std::env::current_exe().expect("a program"), &program).expect("a copy");
    for path in [&temporary.0, &directory, &for_program.0, &program] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("a mode");
    }
    let options = [&["--arena", "128m"], options].concat();
    let server = Server::start_in(temporary, directory, &options);
    Stage { server, program, _temporary: for_program }
}

impl Stage {
    fn actor(&self, uid: u32) -> Actor {
        Actor::new(&self.program, &self.server, uid)
    }
}

const SET: [(&str, u32, u32); 6] = [
    ("public", 0, 0o644),
    ("mine", ONE, 0o600),
    ("theirs", OTHER, 0o600),
    ("roots", 0, 0o600),
    ("not-for-group", 0, 0o604),
    ("private/public", 0, 0o644),
];

#[test]
fn each_maps_what_everybody_may_open_and_what_is_his() {
    if !is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let stage = stage(&SET, &[]);
    std::fs::set_permissions(stage.server.file("private"), PermissionsExt::from_mode(0o700))
        .expect("a mode");
    let (mut one, mut other) = (stage.actor(ONE), stage.actor(OTHER));
    let root = connect(&stage.server.at("?transport=shm"));
    let open = |name: &str| root.open(name.as_bytes(), OpenOptions::read()).expect("open");
    let roots: Vec<File> = ["roots", "not-for-group", "private/public"].map(open).into();
    roots.iter().for_each(|file| drop(read(&root, file)));
    for (actor, own) in [(&mut one, "mine"), (&mut other, "theirs")] {
        for name in ["public", own] {
            actor.open(name);
            let (hits, mark) = actor.read(name);
            assert!(hits >= 100 && mark == name, "{name}: {hits}, {mark}");
        }
        assert!(actor.ask("open roots").starts_with("refused"));
    }
    for (actor, own, not) in [(&mut one, "mine", "theirs"), (&mut other, "theirs", "mine")] {
        assert!(actor.mapped("public") >= PAGES && actor.mapped(own) >= PAGES);
        for name in [not, "roots", "not-for-group", "private/public"] {
            assert_eq!(actor.mapped(name), 0, "{name}");
        }
    }
    // Root, who may open all, reads all by himself.
    for name in ["public", "mine", "theirs"] {
        let (hits, mark) = read(&root, &open(name));
        assert!(hits >= 100 && mark == name, "{name}: {hits}, {mark}");
    }
    let all = ["public", "mine", "theirs", "roots", "not-for-group", "private/public"];
    assert!(all.iter().all(|name| mapped(name) >= PAGES));
    let shown = good(&["status", "--json", &stage.server.url]);
    assert!(
        shown.contains("files that everybody may read") && shown.contains("files of user 54321")
    );
}

/// A worker that has just opened files for one user makes memory for the next one as well.
#[test]
fn who_comes_later_maps_his_own_too() {
    if !is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let stage = stage(&SET, &[]);
    for (uid, own) in [(ONE, "mine"), (OTHER, "theirs")] {
        let mut actor = stage.actor(uid);
        for name in [own, "public"] {
            actor.open(name);
            let (hits, mark) = actor.read(name);
            assert!(hits >= 100 && mark == name, "{name}: {hits}, {mark}");
        }
        // The last that it does.
        assert!(actor.ask("open roots").starts_with("refused"));
    }
}

/// What is written to a file after others lost it is in no memory that they map, though they had it open, and it
/// was open all the time by who writes; nor what was there. Who has it open reads on, by the server.
#[test]
fn who_loses_a_file_maps_nothing_of_it() {
    if !is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let names = ["mode", "owner", "list", "moved", "unlinked", "directory/file", "renamed/file"];
    let files: Vec<_> = names.map(|name| (name, 0, 0o644)).into();
    let stage = stage(&[&files[..], &[("private/none", 0, 0o644)]].concat(), &[]);
    std::fs::set_permissions(stage.server.file("private"), PermissionsExt::from_mode(0o700))
        .expect("a mode");
    let mut one = stage.actor(ONE);
    // Somebody who has nothing open, and maps what everybody may read.
    let mut other = stage.actor(OTHER);
    let url = stage.server.at("?transport=tcp");
    let root = connect(&url);
    for name in names {
        one.open(name);
        let (hits, mark) = one.read(name);
        assert!(hits >= 100 && mark == name, "{name}: {hits}, {mark}");
        assert!(other.mapped(name) >= PAGES, "{name}");
        let file = root
            .open(name.as_bytes(), OpenOptions { write: true, ..OpenOptions::read() })
            .expect("open");
        // Some of it is not written back yet when it happens.
        file.write_at(&page("before"), 0).expect("written");
        let at = |name: &str| stage.server.at(&format!("{name}?transport=tcp"));
        match name {
            "mode" => drop(good(&["chmod", "640", &at(name)])),
            "owner" => {
                // To be the owner's alone takes both, and each by itself.
                drop(good(&["chown", "54322:54322", &at(name)]));
                drop(good(&["chmod", "600", &at(name)]));
            }
            "list" => {
                let list = access_list_of(ONE);
                root.set_xattr(name.as_bytes(), b"system.posix_acl_access", &list, 0)
                    .expect("a list");
            }
            "moved" => drop(good(&["mv", &at(name), &at("private/moved")])),
            "unlinked" => drop(good(&["rm", &at(name)])),
            "directory/file" => drop(good(&["chmod", "700", &at("directory")])),
            _ => drop(good(&["mv", &at("renamed"), &at("private/renamed")])),
        }
        for actor in [&mut one, &mut other] {
            let (of_it, before) = (actor.mapped(name), actor.mapped("before"));
            assert_eq!((of_it, before), (0, 0), "{name}");
        }
        file.write_at(&page("secret").repeat(PAGES), 0).expect("written");
        for actor in [&mut one, &mut other] {
            assert_eq!(actor.mapped("secret"), 0, "{name}");
        }
        let (hits, mark) = one.read(name);
        assert!(hits == 0 && mark == "secret", "{name}: {hits}, {mark}");
        assert_eq!((one.mapped("secret"), other.mapped("secret")), (0, 0), "{name}");
        one.ask(&format!("close {name}"));
        drop(file);
    }
}

/// A list by which this user may not read, in a file that all others may.
fn access_list_of(denied: u32) -> Vec<u8> {
    let (own, user, group, mask, others) = (1, 2, 4, 16, 32);
    let entry = |tag: u16, rights: u16, id: u32| {
        [&tag.to_le_bytes()[..], &rights.to_le_bytes(), &id.to_le_bytes()].concat()
    };
    let none = u32::MAX;
    let entries = [
        entry(own, 6, none),
        entry(user, 0, denied),
        entry(group, 4, none),
        entry(mask, 4, none),
        entry(others, 4, none),
    ];
    [vec![2u32.to_le_bytes().to_vec()], entries.to_vec()].concat().concat()
}

/// A local program takes a file from all others: that is noticed when somebody opens it.
#[test]
fn what_a_local_program_does_is_noticed_at_the_next_open() {
    if !is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let stage = stage(&SET, &[]);
    let (mut one, mut other) = (stage.actor(ONE), stage.actor(OTHER));
    for name in ["public", "mine"] {
        one.open(name);
        assert!(one.read(name).0 >= 100, "{name}");
    }
    std::fs::set_permissions(stage.server.file("public"), PermissionsExt::from_mode(0o600))
        .expect("a mode");
    chown(stage.server.file("mine"), Some(OTHER), Some(OTHER)).expect("an owner");
    let root = connect(&stage.server.at("?transport=tcp"));
    for name in ["public", "mine"] {
        let file = root
            .open(name.as_bytes(), OpenOptions { write: true, ..OpenOptions::read() })
            .expect("open");
        file.write_at(&page("secret").repeat(PAGES), 0).expect("written");
        for actor in [&mut one, &mut other] {
            assert_eq!((actor.mapped("secret"), actor.mapped(name)), (0, 0), "{name}");
        }
        assert_eq!(one.read(name), (0, "secret".into()));
    }
}

#[test]
fn a_server_may_keep_it_all_for_root_or_show_it_all() {
    if !is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    for (scope, public, secret) in [("root", false, false), ("export", true, true)] {
        let stage = stage(&SET, &["--optimistic-scope", scope]);
        let mut one = stage.actor(ONE);
        good(&["cat", &stage.server.at("roots?transport=tcp")]);
        one.open("public");
        let (hits, mark) = one.read("public");
        assert!((hits >= 100) == public && mark == "public", "{scope}: {hits}");
        assert_eq!(
            (one.mapped("public") > 0, one.mapped("roots") > 0),
            (public, secret),
            "{scope}"
        );
    }
    let refused = common::dafs(&["serve", path(&Temporary::new().0), "--optimistic-scope", "all"]);
    assert_eq!(refused.status.code(), Some(2));
}

fn of_mode(mode: u32) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

/// A file is taken from others and given to them again, again and again, while one of them opens and reads it: what
/// is written only while nobody else may open it is never where they map it.
#[test]
fn what_is_written_while_others_may_not_open_it_is_never_mapped() {
    if !is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    const FLIPS: u32 = 24;
    let stage = stage(&[("file", 0, 0o644)], &[]);
    let (mut one, mut other) = (stage.actor(ONE), stage.actor(OTHER));
    let root = connect(&stage.server.at("?transport=tcp"));
    let options = OpenOptions { write: true, ..OpenOptions::read() };
    let mut late = 0;
    for flip in 0..FLIPS {
        one.open("file");
        let (hits, mark) = one.read("file");
        assert!(hits >= 100 && mark == "file", "it is where they map it: {hits}, {mark}");
        let is_written = AtomicBool::new(false);
        let written = std::thread::scope(|scope| {
            let flipper = scope.spawn(|| {
                // Open before it is taken, or only then.
                let before = (flip % 2 == 0).then(|| root.open(b"file", options).expect("open"));
                root.set_attr(b"file", of_mode(0o600), false).expect("a mode");
                let file = before.unwrap_or_else(|| root.open(b"file", options).expect("open"));
                file.write_at(&page("secret").repeat(PAGES), 0).expect("written");
                is_written.store(true, Ordering::SeqCst);
                file
            });
            // It opens it at any time of that; at the end it may not.
            while !is_written.load(Ordering::SeqCst) && !flipper.is_finished() {
                if one.ask("open file") == "ok" {
                    late += 1;
                }
                one.read("file");
            }
            flipper.join().expect("flipped")
        });
        for actor in [&mut one, &mut other] {
            assert_eq!(actor.mapped("secret"), 0, "{flip}");
        }
        // Who has it open reads it, by the server: that is not a place which others map either.
        assert_eq!(one.read("file"), (0, "secret".into()));
        for actor in [&mut one, &mut other] {
            assert_eq!(actor.mapped("secret"), 0, "{flip}");
        }
        one.ask("close file");
        written.write_at(&page("file").repeat(PAGES), 0).expect("written");
        drop(written);
        root.set_attr(b"file", of_mode(0o644), false).expect("a mode");
    }
    println!("{late} opens in {FLIPS} changes");
}

/// More users than there are caches of users' own files read what everybody may open, who comes last, too.
#[test]
fn who_comes_late_maps_what_everybody_may_open() {
    if !is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    const USERS: u32 = 9;
    let last = ONE + USERS - 1;
    let stage = stage(&[("public", 0, 0o644), ("own", last, 0o600)], &[]);
    let come = |user| {
        let mut actor = stage.actor(ONE + user);
        actor.open("public");
        actor
    };
    let mut actors: Vec<Actor> = (0..USERS).map(come).collect();
    let late = actors.last_mut().expect("some");
    late.open("own");
    for (name, by_itself) in [("public", true), ("own", false)] {
        let (hits, mark) = late.read(name);
        assert!((hits >= 100) == by_itself && mark == name, "{name}: {hits}, {mark}");
    }
    assert!(actors.iter_mut().all(|actor| actor.mapped("own") == 0));
}

/// What everybody may open all the same stays where they map it, whatever becomes of other directories.
#[test]
fn directories_of_others_take_nothing_from_what_everybody_may_open() {
    if !is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let stage = stage(&[("public", 0, 0o644), ("directory/file", 0, 0o644)], &[]);
    let mut one = stage.actor(ONE);
    let root = connect(&stage.server.at("?transport=tcp"));
    for name in ["public", "directory/file"] {
        one.open(name);
        assert!(one.read(name).0 >= 100, "{name}");
    }
    root.mkdir(b"own", 0o755).expect("a directory");
    root.set_attr(b"own", of_mode(0o700), false).expect("a mode");
    root.rename(b"own", b"directory/own").expect("renamed");
    assert!(one.mapped("public") >= PAGES && one.mapped("directory/file") >= PAGES);
    assert!(one.read("public").0 >= 100);
    // Also what nobody has open.
    one.ask("close public");
    root.rename(b"directory/own", b"own").expect("renamed");
    root.set_attr(b"own", of_mode(0o755), false).expect("a mode");
    root.set_attr(b"own", of_mode(0o700), false).expect("a mode");
    root.remove_dir(b"own").expect("removed");
    assert!(one.mapped("public") >= PAGES);
    // But what is below.
    root.set_attr(b"directory", of_mode(0o700), false).expect("a mode");
    assert_eq!((one.mapped("directory/file"), one.read("directory/file").0), (0, 0));
    assert!(one.mapped("public") >= PAGES);
}

/// Nobody waits for a program that stands still in the midst of its own reads, nor for what it was lent.
#[test]
fn a_program_that_stands_still_holds_up_no_change() {
    if !is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let stage = stage(&SET, &[]);
    let (mut one, mut other) = (stage.actor(ONE), stage.actor(OTHER));
    let root = connect(&stage.server.at("?transport=tcp"));
    for name in ["public", "mine"] {
        one.open(name);
        assert!(one.read(name).0 >= 100, "{name}");
    }
    one.ask("lend public");
    one.ask("go-on-reading mine");
    one.signal("-STOP");
    for (name, mode) in [("public", 0o600), ("mine", 0)] {
        root.set_attr(name.as_bytes(), of_mode(mode), false).expect("a mode");
        let options = OpenOptions { write: true, ..OpenOptions::read() };
        let file = root.open(name.as_bytes(), options).expect("open");
        file.write_at(&page("secret").repeat(PAGES), 0).expect("written");
        file.commit().expect("committed");
        // As it was before: all could read it then.
        let lent = if name == "public" { LENT_PAGES } else { 0 };
        assert_eq!((other.mapped(name), other.mapped("secret")), (lent, 0), "{name}");
    }
    one.signal("-CONT");
    assert!(one.ask("lent").starts_with("public"));
    assert_eq!(one.mapped("secret"), 0);
    for name in ["public", "mine"] {
        assert_eq!(one.read(name).1, "secret", "{name}");
    }
    assert_eq!(one.mapped("secret"), 0);
}
