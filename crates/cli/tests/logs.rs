//! Where servers and mounts log, and how.

mod common;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use common::{Mounted, Server, Temporary, bad, good, json, path, text};

/// Waits until the file has the words.
fn wait_for(file: &Path, words: &str) -> String {
    let start = Instant::now();
    loop {
        let log = fs::read_to_string(file).unwrap_or_default();
        if log.contains(words) {
            return log;
        }
        assert!(start.elapsed() < Duration::from_secs(60), "no '{words}' in: {log}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_server_logs_to_a_file_in_either_form() {
    let logs = Temporary::new();
    let file = logs.join("log");
    let mut server = Server::start(&["--log-file", path(&file), "--log", "info"]);
    good(&["ls", &server.url]);
    let log = wait_for(&file, "session created");
    assert!(!log.contains('\u{1b}'), "no colours in a file: {log}");
    assert_eq!(server.interrupt(), Some(0));
    let file = logs.join("json");
    let options = ["--log-file", path(&file), "--log-format", "json", "--log", "info"];
    let server = Server::start(&options);
    good(&["ls", &server.url]);
    let log = wait_for(&file, "session created");
    let whole = &log[..log.rfind('\n').expect("a line") + 1];
    assert!(
        json(whole).iter().all(|line| line["level"].is_string() && line["timestamp"].is_string())
    );
}

#[test]
fn a_log_that_cannot_be_is_refused() {
    let served = Temporary::new();
    let at = path(&served.0);
    let said = bad(1, &["serve", "--log-file", "/nonexistent/log", at]);
    assert!(said.contains("log file /nonexistent/log: no such file"), "{said}");
    // A pipe that nobody reads.
    let pipe = served.join("pipe");
    assert!(common::program("mkfifo", &[path(&pipe)]).is_some());
    let said = bad(1, &["serve", "--log-file", path(&pipe), at]);
    assert!(said.contains("pipe: no such device or address"), "{said}");
    let said = bad(2, &["serve", "--log", "dafs_server=loud", at]);
    assert!(said.contains("expected error, warn, info, debug, trace"), "{said}");
    let mut command = common::binary();
    command.args(["serve", at]).env("DAFS_LOG", "dafs_server=loud");
    assert_eq!(command.output().expect("runs").status.code(), Some(2));
}

#[test]
fn a_mount_in_the_background_logs_and_is_listed() {
    let logs = Temporary::new();
    let file = logs.join("log");
    let mut server = Server::start(&[]);
    let Some(mounted) = Mounted::new(&server, &["--log-file", path(&file)]) else { return };
    let line = format!("{} on {} (", server.url, path(mounted.path()));
    let list = good(&["mount"]);
    assert!(list.lines().any(|shown| shown.starts_with(&line)), "{list}");
    let rows = json(&good(&["mount", "--json"]));
    assert!(rows.iter().any(|row| row["directory"] == path(mounted.path())));
    server.crash_and_restart();
    fs::write(mounted.join("x"), "x").expect("write");
    let log = wait_for(&file, "connected again");
    assert!(log.contains("lost tcp://"), "{log}");
}

#[test]
fn options_of_mounts_are_taught() {
    let help = good(&["mount", "--help"]);
    for part in
        ["attr_timeout=TIME", "(1s)", "key_file=FILE", "server_uid=", "as in a URL: adaptive"]
    {
        assert!(help.contains(part), "{part}: {help}");
    }
    for (option, said) in [
        ("frob", "no such option; there are hard, soft"),
        ("timeo=soon", "expected a time, as timeo=30"),
        (
            "key_file=/none",
            "key file /none (--key-file, -o key_file=, DAFS_KEY_FILE): no such file",
        ),
        ("wait=fast", "expected adaptive, polled or sleeping"),
    ] {
        let output = common::dafs(&["mount", "-o", option, "dafs://127.0.0.1:1/", "/"]);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{option}: {error}");
        assert!(error.contains(said), "{option}: {error}");
    }
    assert!(bad(2, &["mount", "dafs://127.0.0.1:1/"]).contains("<DIR>"), "a directory is missing");
}
