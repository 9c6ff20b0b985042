//! Who reads a server's cache by itself, and for whom the server copies.

mod common;

use std::fs::File;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Server, Temporary, good, is_root, path};
use dafs_client::{OpenOptions, Session, SessionOptions, Url};
use dafs_fabric::Provider;
use dafs_fabric_shm::ShmProvider;
use dafs_fabric_tcp::TcpProvider;

const BYTES: usize = 8 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

fn contents() -> Vec<u8> {
    (0..BYTES as u32 / 4).flat_map(|word| word.wrapping_mul(0x9e37_79b9).to_le_bytes()).collect()
}

fn serving() -> Server {
    serving_with(&[])
}

fn serving_with(options: &[&str]) -> Server {
    // A part of it is what one client may hold.
    let server = Server::start(&[&["--arena", "512m"], options].concat());
    std::fs::write(server.file("file"), contents()).expect("written");
    File::open(server.file("file")).and_then(|file| file.sync_all()).expect("sync");
    good(&["cat", &server.at("file?transport=tcp")]);
    server
}

/// A number of the admin port.
fn number(server: &Server, key: &str) -> u64 {
    let shown = good(&["status", "--json", &server.url]);
    let status: serde_json::Value = serde_json::from_str(&shown).expect("an object");
    status["counters"][key].as_u64().unwrap_or_else(|| panic!("no {key} in {shown}"))
}

/// Reads all of a file by shared memory, so often, into memory that is this process's alone.
fn read(url: &str, times: usize) -> Vec<u8> {
    let url = Url::parse(url).expect("a URL");
    let networks: Vec<Arc<dyn Provider>> =
        vec![Arc::new(TcpProvider::default()), Arc::new(ShmProvider::new())];
    let options = SessionOptions::from_url(&url).expect("options");
    let (session, path) = Session::connect_url(networks, &url, options).expect("a session");
    let file = session.open(&path, OpenOptions::read()).expect("a file");
    let mut bytes = vec![0; BYTES];
    for _ in 0..times {
        bytes.fill(0);
        assert_eq!(file.read_at(&mut bytes, 0).expect("read"), BYTES);
        assert!(bytes == contents());
    }
    bytes
}

/// Bytes that the server copies while `read` reads all of the file.
fn copied(server: &Server, read: impl FnOnce()) -> u64 {
    let before = number(server, "copied_bytes");
    read();
    number(server, "copied_bytes") - before
}

#[test]
fn the_servers_own_user_reads_the_cache_by_itself() {
    let server = serving();
    let url = server.at("file?transport=shm");
    let by_server = copied(&server, || drop(read(&url, 3)));
    assert!(by_server < BYTES as u64, "{by_server}");
}

/// What other processes of this program do.
#[test]
fn reads_for_another_test() {
    let Ok(url) = std::env::var("DAFS_TEST_READ") else { return };
    println!("begun");
    read(
        &url,
        std::env::var("DAFS_TEST_TIMES").map_or(1, |times| times.parse().expect("a number")),
    );
}

fn reader(program: &std::path::Path, url: &str) -> Command {
    let mut command = Command::new(program);
    command.args(["--exact", "reads_for_another_test", "--nocapture"]).env("DAFS_TEST_READ", url);
    command
}

#[test]
fn for_others_the_server_copies() {
    if !is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let server = serving_with(&["--optimistic-scope", "root"]);
    let temporary = Temporary::new();
    let program = program_for_others(&temporary);
    let url = server.at("file?transport=shm&server_uid=0");
    let by_server = copied(&server, || {
        run_as_other(reader(&program, &url));
    });
    assert!(by_server >= BYTES as u64, "{by_server}");
}

#[test]
fn a_cache_that_is_not_shared_is_copied_by_the_server() {
    let temporary = Temporary::new();
    let (config, directory) = (temporary.join("config"), temporary.join("served"));
    let text = format!("shared_cache = false\n[[export]]\nname = \"x\"\npath = {directory:?}\n");
    std::fs::create_dir(&directory).expect("directory");
    std::fs::write(&config, text).expect("written");
    let config = path(&config).to_owned();
    let export = format!("y={}", path(&directory));
    let server =
        Server::start_in(temporary, directory, &["--config", &config, "--export", &export]);
    std::fs::write(server.file("file"), contents()).expect("written");
    let url = server.at("file?transport=shm");
    let by_server = copied(&server, || drop(read(&url, 1)));
    assert!(by_server >= BYTES as u64, "{by_server}");
}

/// Clients that are killed while they read hold nothing of the cache.
#[test]
fn killed_readers_leave_nothing_held() {
    let server = serving();
    let url = server.at("file?transport=shm");
    for round in 0..6 {
        let mut reader = reader(&std::env::current_exe().expect("a program"), &url);
        reader.env("DAFS_TEST_TIMES", "1000000").stdout(Stdio::null());
        let mut reader = reader.spawn().expect("starts");
        let (start, before) = (Instant::now(), number(&server, "read_bytes"));
        while number(&server, "read_bytes") < before + round * 3_000_000 + 1 {
            assert!(start.elapsed() < PATIENCE, "nothing is read");
        }
        reader.kill().expect("killed");
        reader.wait().expect("ends");
    }
    let start = Instant::now();
    while number(&server, "held_bytes") > 0 {
        assert!(start.elapsed() < PATIENCE, "{} bytes are held", number(&server, "held_bytes"));
    }
    let by_server = copied(&server, || drop(read(&url, 3)));
    assert!(by_server < BYTES as u64, "{by_server}");
}

const OTHER: u32 = 54_321;

/// This program, where every user may start it.
fn program_for_others(temporary: &Temporary) -> std::path::PathBuf {
    let program = temporary.join("reader");
    std::fs::copy(std::env::current_exe().expect("a program"), &program).expect("a copy");
    for path in [&temporary.0, &program] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("a mode");
    }
    program
}

/// A server of root with two exports, of which the first shares its cache.
fn two_exports(options: &[&str]) -> Server {
    let temporary = Temporary::new();
    let directory = temporary.join("served");
    let options: Vec<String> = ["open", "closed"]
        .iter()
        .flat_map(|name| {
            let served = directory.join(name);
            std::fs::create_dir_all(&served).expect("directory");
            let file = served.join("file");
            std::fs::write(&file, contents()).expect("written");
            File::open(&file).and_then(|file| file.sync_all()).expect("sync");
            ["--export".to_owned(), format!("{name}={}", path(&served))]
        })
        .chain(options.iter().map(|option| (*option).to_owned()))
        .collect();
    let mut options: Vec<&str> = options.iter().map(String::as_str).collect();
    options.extend(["--share-cache", "--optimistic-scope", "root"]);
    Server::start_in(temporary, directory, &options)
}

/// As another user.
fn run_as_other(mut command: Command) {
    command.uid(OTHER).gid(OTHER).current_dir("/");
    assert!(command.status().expect("runs").success());
}

#[test]
fn others_read_by_themselves_what_an_export_shares_and_nothing_else() {
    if !is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let server = two_exports(&["--arena", "1g"]);
    let temporary = Temporary::new();
    let program = program_for_others(&temporary);
    for name in ["open", "closed"] {
        good(&["cat", &server.at(&format!("{name}/file?transport=tcp"))]);
        let url = server.at(&format!("{name}/file?transport=shm"));
        let by_server = copied(&server, || {
            let mut reader = reader(&program, &url);
            reader.env("DAFS_TEST_TIMES", "4");
            run_as_other(reader);
        });
        // What an open found changed is read anew, and copied once.
        let (all, some) = (4 * BYTES as u64, 2 * BYTES as u64);
        let is_shared = name == "open";
        assert!(if is_shared { by_server < some } else { by_server >= all }, "{by_server}");
        // Root reads both by itself.
        let by_server = copied(&server, || drop(read(&url, 4)));
        assert!(by_server < some, "{name}: {by_server}");
    }
    let shown = good(&["status", "--json", &server.url]);
    let status: serde_json::Value = serde_json::from_str(&shown).expect("an object");
    let caches = status[0]["caches"].as_array().or_else(|| status["caches"].as_array());
    let caches = caches.expect("a list").clone();
    assert_eq!(caches.len(), 2, "{shown}");
    let number = |cache: &serde_json::Value, key: &str| cache[key].as_u64().expect("a number");
    let bytes: u64 = caches.iter().map(|cache| number(cache, "bytes")).sum();
    assert!(bytes <= 1 << 30 && caches.iter().all(|cache| number(cache, "cached_bytes") > 0));
}

const SECRET: &[u8; 16] = b"only for root...";
const PUBLIC: &[u8; 16] = b"for everybody...";
const PAGE: usize = 4096;

fn pages_of(mark: &[u8; 16]) -> Vec<u8> {
    let mut page = vec![b'.'; PAGE];
    page[..mark.len()].copy_from_slice(mark);
    page.repeat(512)
}

/// Pages that begin with each of the marks, in all memory of this process that it shares with others.
fn mapped_pages(marks: [&[u8; 16]; 2]) -> [usize; 2] {
    use std::os::unix::fs::FileExt;
    let maps = std::fs::read_to_string("/proc/self/maps").expect("mappings");
    let memory = File::open("/proc/self/mem").expect("memory");
    let mut found = [0; 2];
    for line in maps.lines().filter(|line| line.contains("memfd:")) {
        let (range, rest) = line.split_once(' ').expect("a range");
        assert!(rest.starts_with('r'), "{line}");
        let (start, end) = range.split_once('-').expect("two ends");
        let [start, end] =
            [start, end].map(|text| u64::from_str_radix(text, 16).expect("an address"));
        for at in (start..end).step_by(PAGE) {
            let mut seen = [0; 16];
            memory.read_exact_at(&mut seen, at).expect("mapped");
            for (count, mark) in found.iter_mut().zip(marks) {
                *count += usize::from(seen == *mark);
            }
        }
    }
    found
}

/// Opens a session as this process, reads a file that it may read, and looks at all that it has mapped.
fn mapped_after_reading(url: &str) -> [usize; 2] {
    let url = Url::parse(url).expect("a URL");
    let networks: Vec<Arc<dyn Provider>> =
        vec![Arc::new(TcpProvider::default()), Arc::new(ShmProvider::new())];
    let options = SessionOptions::from_url(&url).expect("options");
    let (session, path) = Session::connect_url(networks, &url, options).expect("a session");
    let file = session.open(&path, OpenOptions::read()).expect("a file");
    let mut bytes = vec![0; 512 * PAGE];
    for at in (0..bytes.len()).step_by(64 << 10) {
        let part = &mut bytes[at..at + (64 << 10)];
        assert_eq!(file.read_at(part, at as u64).expect("read"), part.len());
    }
    assert!(bytes == pages_of(PUBLIC));
    mapped_pages([PUBLIC, SECRET])
}

/// What another process of this program does.
#[test]
fn scans_for_another_test() {
    let Ok(url) = std::env::var("DAFS_TEST_SCAN") else { return };
    let [public, secret] = mapped_after_reading(&url);
    assert_eq!(secret, 0, "pages of an export that shares nothing");
    assert!(public >= 512, "{public} pages of the one that does");
}

/// Root has read a secret just now, which is cached, in another export that shares nothing.
#[test]
fn another_user_maps_no_page_of_an_export_that_shares_nothing() {
    if !is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let server = two_exports(&["--arena", "64m"]);
    let write = |name: &str, mark| {
        let file = server.file(name);
        std::fs::write(&file, pages_of(mark)).expect("written");
        file
    };
    let secret = write("closed/secret", SECRET);
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).expect("a mode");
    write("open/public", PUBLIC);
    let temporary = Temporary::new();
    let program = program_for_others(&temporary);
    good(&["cat", &server.at("closed/secret?transport=shm")]);
    let url = server.at("open/public?transport=shm");
    let mut scanner = Command::new(&program);
    scanner.args(["--exact", "scans_for_another_test", "--nocapture"]).env("DAFS_TEST_SCAN", &url);
    run_as_other(scanner);
    // By the same look root, who maps both, finds both.
    let [public, secret] = mapped_after_reading(&url);
    assert!(public >= 512 && secret >= 512, "{public}, {secret}");
}

/// Data comes and goes under a reader of another user, who never sees any but the file's.
#[test]
fn another_user_reads_what_is_right_while_caches_change() {
    if !is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let server = two_exports(&["--arena", "32m"]);
    for name in ["open", "closed"] {
        let file = server.file(&format!("{name}/other"));
        std::fs::write(file, vec![7; 24 << 20]).expect("written");
    }
    let temporary = Temporary::new();
    let url = server.at("open/file?transport=shm");
    let mut reader = reader(&program_for_others(&temporary), &url);
    reader.env("DAFS_TEST_TIMES", "6").uid(OTHER).gid(OTHER).current_dir("/");
    let mut reader = reader.spawn().expect("starts");
    let ended = loop {
        for name in ["open", "closed", "closed"] {
            good(&["cat", &server.at(&format!("{name}/other?transport=tcp"))]);
        }
        if let Some(ended) = reader.try_wait().expect("a child") {
            break ended;
        }
    };
    assert!(ended.success());
    assert!(number(&server, "evicted_bytes") > 0);
}
