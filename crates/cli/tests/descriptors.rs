//! Programs that have no descriptor left say so, and a server goes on when it has some again.

mod common;

use std::fs;
use std::process::{Command, Output};

use common::{Server, Temporary, path, program, text};

const LIMIT: &str = "no descriptor is left (RLIMIT_NOFILE, ulimit -n)";
/// With more than that, all goes well.
const ENOUGH: usize = 40;

/// Two names for it: beside its TCP port, and by shared memory.
fn urls(server: &Server, sockets: &Temporary) -> [String; 2] {
    let url = format!("{}?local={}", server.url, path(&sockets.0));
    [format!("{url}&transport=tcp"), format!("{url}&transport=shm")]
}

fn started(sockets: &Temporary) -> Server {
    let server = Server::start(&["--local-socket", path(&sockets.0)]);
    fs::write(server.file("f"), "text").expect("write");
    server
}

fn says(output: &Output) -> String {
    format!("{}{}", text(&output.stdout), text(&output.stderr))
}

#[test]
fn a_client_without_descriptors_names_the_limit() {
    let sockets = Temporary::new();
    let server = started(&sockets);
    for url in urls(&server, &sockets) {
        let mut refused = 0;
        for most in 8..ENOUGH {
            let script = format!("ulimit -n {most}; exec timeout 20 \"$0\" cat \"$1/f\"");
            let (path, options) = url.split_once('?').expect("it has options");
            let script = script.replace("$1/f", "$1f?$2");
            let mut client = Command::new("sh");
            client.args(["-c", &script, env!("CARGO_BIN_EXE_dafs"), path, options]);
            let output = client.output().expect("sh");
            let said = says(&output);
            if !output.status.success() {
                refused += 1;
                assert!(said.contains(LIMIT), "{most} by {url}: {said}");
            }
            assert!(!said.contains("violated"), "{most} by {url}: {said}");
        }
        assert!(refused > 0 && refused < ENOUGH - 8, "{refused} by {url}");
    }
}

/// The number from which on a process has no descriptor any more, if it may have so many more.
fn first_beyond(pid: u32, more: usize) -> usize {
    let there = fs::read_dir(format!("/proc/{pid}/fd")).expect("it runs");
    let there: Vec<usize> = there
        .map(|fd| fd.expect("read").file_name().into_string().expect("a number"))
        .map(|fd| fd.parse().expect("a number"))
        .collect();
    (0..).filter(|number| !there.contains(number)).nth(more).expect("endless")
}

#[test]
fn a_server_without_descriptors_says_so_and_goes_on_with_new_ones() {
    let sockets = Temporary::new();
    let server = started(&sockets);
    let pid = server.child.id();
    let limits = |soft: &str| {
        let pid = pid.to_string();
        program("prlimit", &["--pid", &pid, &format!("--nofile={soft}:")]).is_some()
    };
    let Some(before) =
        program("prlimit", &["--pid", &pid.to_string(), "--nofile", "-o", "SOFT", "--noheadings"])
    else {
        return println!("skipped: no prlimit");
    };
    for url in urls(&server, &sockets) {
        let (at, options) = url.split_once('?').expect("it has options");
        let file = format!("{at}f?{options}");
        let cat = || {
            let mut client = Command::new("timeout");
            client.args(["20", env!("CARGO_BIN_EXE_dafs"), "cat", &file]).output().expect("timeout")
        };
        for more in 0..3 {
            assert!(limits(&first_beyond(pid, more).to_string()));
            let output = cat();
            assert!(limits(before.trim()));
            let said = says(&output);
            if more == 0 || !output.status.success() {
                assert!(said.contains(&format!("{LIMIT}\n")), "{more} by {url}: {said}");
            }
            assert!(!said.contains("violated"), "{more} by {url}: {said}");
            let output = cat();
            assert!(output.status.success(), "{more} by {url}: {}", says(&output));
        }
    }
}
