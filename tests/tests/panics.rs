//! A thread of a real server that panics ends it, at once and with status 101. What makes it panic
//! is a write into memory that is free: by this test, past the server.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use dafs_client::{OpenOptions, Session};
use dafs_tests::client::session_with;

/// What the server fills free memory with.
const MARK: [u8; 64] = *b"nobody fills this, so nobody reads it and nobody writes to it ..";
const MIB: usize = 1 << 20;
const PAGE_BYTES: usize = 4096;
const PANICKED: i32 = 101;
/// Until what was removed is free; until the server has ended.
const PATIENCE: Duration = Duration::from_secs(20);

/// Memory of a process that may be written, and has no file but one in memory: addresses of the beginning and
/// the end.
fn own_memory(pid: u32) -> Vec<(u64, u64)> {
    let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
    let address = |text: &str| u64::from_str_radix(text, 16).ok();
    let range = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let (range, is_own) = match words[..] {
            [range, "rw-p", _, _, "0"] => (range, true),
            [range, "rw-s", _, _, _, name, ..] => (range, name.starts_with("/memfd:dafs")),
            _ => return None,
        };
        if !is_own {
            return None;
        }
        let (from, to) = range.split_once('-')?;
        Some((address(from)?, address(to)?))
    };
    maps.lines().filter_map(range).collect()
}

/// Changes a byte of each page that is free; how many there are.
fn write_into_free_memory(pid: u32, memory: &File) -> std::io::Result<usize> {
    let (mut bytes, free) = (vec![0; MIB], MARK.repeat(PAGE_BYTES / MARK.len()));
    let mut count = 0;
    for (from, to) in own_memory(pid) {
        for at in (from..to).step_by(MIB) {
            let len = bytes.len().min((to - at) as usize);
            // What is not mapped any more is not free memory of the server's.
            if memory.read_exact_at(&mut bytes[..len], at).is_err() {
                continue;
            }
            for (page, here) in bytes[..len].chunks_exact(PAGE_BYTES).enumerate() {
                if here == free {
                    memory.write_all_at(&[1], at + (page * PAGE_BYTES) as u64 + 100)?;
                    count += 1;
                }
            }
        }
    }
    Ok(count)
}

fn serve(dir: &Path, state: &Path) -> (Child, String) {
    let (dir, state) = (dir.display().to_string(), state.display().to_string());
    let args = ["serve", "--listen", "tcp://127.0.0.1:0", "--arena", "16m", "--state", &state];
    let mut serve = dafs_tests::command(&args);
    let digits: String = MARK.iter().map(|byte| format!("{byte:02x}")).collect();
    serve.arg(&dir).env("DAFS_POISON", digits).env("DAFS_LOG", "error");
    let serve = serve.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = serve.spawn().expect("the dafs binary is built");
    let mut url = String::new();
    let mut out = BufReader::new(server.stdout.take().expect("piped"));
    out.read_line(&mut url).expect("a URL");
    // Keeps reading, so that the server never meets a closed pipe.
    std::thread::spawn(move || out.lines().for_each(drop));
    (server, url.trim_end().to_string())
}

/// Has the server use memory, and free it.
fn use_memory(session: &Session) {
    let options = OpenOptions { create: true, ..OpenOptions::write() };
    let file = session.open(b"large", options).expect("open");
    for at in 0..6 {
        file.write_at(&vec![2; MIB], (at * MIB) as u64).expect("write");
    }
    drop(file);
    session.remove(b"large").expect("remove");
}

#[test]
fn a_thread_that_panics_ends_the_server() {
    let work = tempfile::tempdir().expect("tempdir");
    let (dir, state) = (work.path().join("served"), work.path().join("state"));
    std::fs::create_dir(&dir).expect("mkdir");
    std::fs::write(dir.join("data"), vec![1; 14 * MIB]).expect("write");
    let (mut server, url) = serve(&dir, &state);
    let path = format!("/proc/{}/mem", server.id());
    let memory = std::fs::OpenOptions::new().read(true).write(true).open(&path);
    let session = session_with(&url, |options| options.retry = Duration::ZERO);
    let file = session.open(b"data", OpenOptions::read()).expect("open");
    use_memory(&session);
    let start = Instant::now();
    let mut written = Ok(0);
    while matches!(written, Ok(0)) && start.elapsed() < dafs_tests::patient(PATIENCE) {
        written = memory.as_ref().map_err(ToString::to_string).and_then(|memory| {
            write_into_free_memory(server.id(), memory).map_err(|error| error.to_string())
        });
    }
    if let Err(reason) = written {
        let _ = server.kill();
        let _ = server.wait();
        println!("skipped: {path}: {reason}");
        return;
    }
    // Where only the thread ends, and not the server, nobody answers.
    let (done, read) = channel();
    std::thread::spawn(move || {
        let mut into = vec![0; MIB];
        let mut read = |at| file.read_at(&mut into, (at * MIB) as u64).map(drop);
        let _ = done.send((0..14).try_for_each(&mut read).is_err());
        drop(session);
    });
    let has_failed = read.recv_timeout(dafs_tests::patient(PATIENCE));
    if has_failed != Ok(true) {
        server.kill().expect("kill");
    }
    let output = server.wait_with_output().expect("its end");
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(has_failed, Ok(true), "{written:?} pages were written: {said}");
    assert_eq!(output.status.code(), Some(PANICKED), "{said}");
    for part in ["free memory was written", "a thread panicked; ending without a flush"] {
        assert!(said.contains(part), "'{part}' is not said: {said}");
    }
}
