//! A server whose messages nobody can read any more ends as any other: nothing acknowledged is lost.

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::{Temporary, path, program};
use dafs_client::{File as Remote, OpenOptions, Session, SessionOptions, Url};
use dafs_fabric_tcp::TcpProvider;

const BYTES: usize = 3 << 20;

/// What a server needs to be started, and where its file is.
struct Place {
    temporary: Temporary,
}

impl Place {
    fn new() -> Place {
        let temporary = Temporary::new();
        std::fs::create_dir(temporary.join("served")).expect("directory");
        Place { temporary }
    }

    fn serve(&self) -> Command {
        let mut command = common::binary();
        command.args(["serve", "--arena", "64m", "--listen", "tcp://127.0.0.1:0", "--state"]);
        command.arg(self.temporary.join("state")).arg(self.temporary.join("served"));
        command
    }

    fn bytes_on_disk(&self) -> usize {
        std::fs::read(self.temporary.join("served/file")).expect("the file").len()
    }
}

fn url_of(child: &mut Child) -> String {
    let mut url = String::new();
    BufReader::new(child.stdout.as_mut().expect("piped")).read_line(&mut url).expect("a URL");
    url.trim_end().to_owned()
}

/// Writes and neither flushes nor closes.
fn write_unflushed(url: &str) -> (Session, Remote) {
    let url = Url::parse(url).expect("a URL");
    let options = SessionOptions::from_url(&url).expect("options");
    let session = Session::connect_url(Arc::new(TcpProvider::new()), &url, options).expect("up").0;
    let file =
        session.open(b"/file", OpenOptions { create: true, ..OpenOptions::write() }).expect("open");
    file.write_at(&vec![7; BYTES], 0).expect("write");
    (session, file)
}

fn signal(pid: u32, name: &str) {
    let done = Command::new("kill").args([name, &pid.to_string()]).status().expect("kill");
    assert!(done.success());
}

#[test]
fn an_orderly_end_flushes_though_nobody_reads_its_messages() {
    for name in ["-HUP", "-INT", "-TERM"] {
        for full in [false, true] {
            let place = Place::new();
            let stderr = if full {
                Stdio::from(File::options().write(true).open("/dev/full").expect("/dev/full"))
            } else {
                Stdio::piped()
            };
            let mut child =
                place.serve().stdout(Stdio::piped()).stderr(stderr).spawn().expect("starts");
            let url = url_of(&mut child);
            let _open = write_unflushed(&url);
            // The readers are gone.
            drop((child.stdout.take(), child.stderr.take()));
            signal(child.id(), name);
            assert_eq!(child.wait().expect("ends").code(), Some(0), "{name} full {full}");
            assert_eq!(place.bytes_on_disk(), BYTES, "{name} full {full}");
        }
    }
}

#[test]
fn the_end_of_its_terminal_is_an_orderly_end() {
    let place = Place::new();
    let command = place.serve();
    let words = std::iter::once(command.get_program())
        .chain(command.get_args())
        .map(|word| path(Path::new(word)).to_owned());
    let line = format!("exec {}", words.collect::<Vec<_>>().join(" "));
    let mut terminal = Command::new("script")
        .args(["-qfec", &line, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("script(1)");
    let url = url_of(&mut terminal);
    let _open = write_unflushed(&url);
    let parent = terminal.id().to_string();
    let children = Command::new("pgrep").args(["-P", &parent]).output().expect("pgrep");
    let server = String::from_utf8(children.stdout).expect("text").trim().to_owned();
    assert!(Path::new("/proc").join(&server).exists() && !server.is_empty(), "{server}");
    terminal.kill().expect("kill");
    terminal.wait().expect("ends");
    let start = Instant::now();
    while Path::new("/proc").join(&server).exists() {
        assert!(start.elapsed() < Duration::from_secs(20), "the server goes on");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(place.bytes_on_disk(), BYTES);
}

#[test]
fn a_server_without_streams_serves_and_ends_in_order() {
    let place = Place::new();
    let socket = place.temporary.join("socket");
    let serve = place.serve();
    let words: Vec<_> = serve.get_args().map(|word| path(Path::new(word)).to_owned()).collect();
    let listen = format!("unix:{}", path(&socket));
    let words = words.iter().map(|word| if word.starts_with("tcp:") { &listen } else { word });
    let mut command = Command::new("sh");
    // Closed, rather than what nobody reads: what is opened next gets their numbers.
    command.args(["-c", "exec \"$@\" <&- >&- 2>&-", "sh"]).arg(serve.get_program()).args(words);
    let mut child = command.spawn().expect("starts");
    let start = Instant::now();
    while !socket.exists() {
        assert_eq!(child.try_wait().expect("wait"), None, "it ended");
        assert!(start.elapsed() < Duration::from_secs(20), "it does not listen");
        std::thread::sleep(Duration::from_millis(10));
    }
    let _open = write_unflushed(&format!("dafs+unix://{}//", path(&socket)));
    signal(child.id(), "-TERM");
    assert_eq!(child.wait().expect("ends").code(), Some(0));
    assert_eq!(std::fs::read(place.temporary.join("served/file")).expect("read"), vec![7; BYTES]);
    let names = std::fs::read_dir(place.temporary.join("served")).expect("list").count();
    assert_eq!(names, 1, "what it says is in no file");
}

#[test]
fn a_server_started_with_nohup_stays() {
    let place = Place::new();
    let serve = place.serve();
    let mut command = Command::new("nohup");
    command.arg(serve.get_program()).args(serve.get_args());
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("starts");
    let url = url_of(&mut child);
    signal(child.id(), "-HUP");
    let (session, file) = write_unflushed(&url);
    file.commit().expect("a server that is there");
    drop((file, session));
    signal(child.id(), "-INT");
    assert_eq!(child.wait().expect("ends").code(), Some(0));
}

/// What cannot be logged is counted, and the thread that logs goes on.
#[test]
fn a_log_that_cannot_be_written_ends_nothing() {
    let place = Place::new();
    let full = File::options().write(true).open("/dev/full").expect("/dev/full");
    let mut command = place.serve();
    command.env("DAFS_LOG", "debug").stdout(Stdio::piped()).stderr(full);
    let mut child = command.spawn().expect("starts");
    let url = url_of(&mut child);
    let address = url.trim_start_matches("dafs://").trim_end_matches('/');
    for _ in 0..3 {
        let mut junk = std::net::TcpStream::connect(address).expect("connect");
        std::io::Write::write_all(&mut junk, &[0x5a; 400]).expect("write");
        let _ = junk.read(&mut [0; 16]);
    }
    let (session, file) = write_unflushed(&url);
    file.commit().expect("it serves");
    drop((file, session));
    let status = common::dafs(&["status", "--json", &url]);
    let status: serde_json::Value = serde_json::from_slice(&status.stdout).expect("JSON");
    let text = status.to_string();
    let lost = text.split("\"lost_log_lines\":").nth(1).expect("a counter");
    assert!(!lost.starts_with('0'), "{text}");
    signal(child.id(), "-INT");
    assert_eq!(child.wait().expect("ends").code(), Some(0));
}

/// EFBIG for who wrote, and nothing else: the limit is the server's, the signal would be too.
#[test]
fn a_limit_of_file_sizes_is_an_error_of_who_writes() {
    let place = Place::new();
    let serve = place.serve();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -f 1024; exec \"$@\"", "sh"]);
    command.arg(serve.get_program()).args(serve.get_args());
    let mut child = command.stdout(Stdio::piped()).spawn().expect("starts");
    let url = url_of(&mut child);
    let parsed = Url::parse(&url).expect("a URL");
    let options = SessionOptions::from_url(&parsed).expect("options");
    let provider = Arc::new(TcpProvider::new());
    let session = Session::connect_url(provider, &parsed, options).expect("up").0;
    let file =
        session.open(b"/file", OpenOptions { create: true, ..OpenOptions::write() }).expect("open");
    let error = file.write_at(&vec![1; 2 << 20], 0).expect_err("at once, not when it is flushed");
    assert_eq!(error.errno(), libc::EFBIG, "{error}");
    drop((file, session));
    assert!(common::dafs(&["ls", &url]).status.success());
    signal(child.id(), "-INT");
    let status = child.wait().expect("ends");
    assert_eq!((status.signal(), status.code()), (None, Some(0)));
}

#[test]
fn what_the_last_flush_cannot_write_is_told() {
    let place = Place::new();
    let served = place.temporary.join("served");
    let small = ["-t", "tmpfs", "-o", "size=1m", "tmpfs", path(&served)];
    if program("mount", &small).is_none() {
        return println!("skipped: needs root, and the right to mount");
    }
    let mut serve = place.serve();
    serve.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = serve.spawn().expect("starts");
    let url = url_of(&mut child);
    let _open = write_unflushed(&url);
    signal(child.id(), "-TERM");
    let output = child.wait_with_output().expect("ends");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("an open file could not be written; the log names it"), "{said}");
    let inode = {
        use std::os::unix::fs::MetadataExt;
        std::fs::metadata(place.temporary.join("served/file")).expect("the file").ino()
    };
    program("umount", &["-l", path(&served)]);
    assert!(said.contains(&format!("inode={inode}")), "{said}");
}
