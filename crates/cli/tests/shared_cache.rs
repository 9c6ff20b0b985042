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
    // A part of it is what one client may hold.
    let server = Server::start(&["--arena", "512m"]);
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
    const OTHER: u32 = 54_321;
    let server = serving();
    // Where others reach it.
    let temporary = Temporary::new();
    let program = temporary.join("reader");
    std::fs::copy(std::env::current_exe().expect("a program"), &program).expect("a copy");
    for path in [&temporary.0, &program] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("a mode");
    }
    let url = server.at("file?transport=shm&server_uid=0");
    let by_server = copied(&server, || {
        let mut reader = reader(&program, &url);
        let ended = reader.uid(OTHER).gid(OTHER).current_dir("/").status().expect("runs");
        assert!(ended.success());
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
