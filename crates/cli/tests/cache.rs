//! `dafs cache` and `dafs top` against a real server.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use std::fs::File;

use common::{Server, Temporary, bad, dafs_as, good, is_root, json, text};

/// A served tree of three files, of which one was read.
fn served() -> Server {
    let server = Server::start(&["--datapath", "unifier"]);
    std::fs::create_dir(server.file("d")).expect("directory");
    for (name, bytes) in [("d/read", 200_000), ("d/cold", 100_000), ("top", 300_000)] {
        std::fs::write(server.file(name), vec![1; bytes]).expect("written");
        // What is not on disk may change unseen, and is read again by the next open.
        File::open(server.file(name)).and_then(|file| file.sync_all()).expect("sync");
    }
    good(&["cat", &server.at("d/read")]);
    server
}

fn cached(server: &Server, path: &str) -> Vec<(String, u64)> {
    let shown = json(&good(&["cache", "show", "--json", &server.at(path)]));
    let each = |file: &serde_json::Value| {
        (
            file["url"].as_str().expect("a URL").to_owned(),
            file["cached_bytes"].as_u64().expect("bytes"),
        )
    };
    shown.iter().map(each).collect()
}

#[test]
fn what_is_cached_is_shown_of_files_and_trees() {
    let server = served();
    assert_eq!(cached(&server, ""), [(server.at("d/read"), 200_704)]);
    assert_eq!(cached(&server, "d/cold"), [(server.at("d/cold"), 0)], "it was asked for");
    let all = json(&good(&["cache", "show", "--json", "--all", "--ranges", &server.at("d")]));
    assert_eq!(all.len(), 2);
    let read = all.iter().find(|file| file["size"] == 200_000).expect("the file read");
    assert_eq!(
        read["ranges"],
        serde_json::json!([{"offset": 0, "bytes": 200_704, "dirty": false}])
    );
    let table = good(&["cache", "show", "--ranges", &server.at("")]);
    assert!(
        table.contains("196K") && table.contains(" 100 ") && table.contains("0-200704"),
        "{table}"
    );
    let said = bad(1, &["cache", "show", &server.at("none")]);
    assert!(said.contains("none: no such file or directory"), "{said}");
}

#[test]
fn looking_and_dropping_make_the_server_remember_nothing() {
    let server = served();
    let files =
        || json(&good(&["status", "--json", &server.url]))[0]["counters"]["cached_files"].clone();
    let before = files();
    good(&["cache", "show", "--all", &server.at("")]);
    good(&["cache", "drop", &server.at("")]);
    assert_eq!(files(), before);
    assert_eq!(cached(&server, ""), []);
}

#[test]
fn dropped_bytes_are_told() {
    let server = served();
    let dropped = json(&good(&["cache", "drop", "--json", &server.at("")]));
    assert_eq!(dropped.len(), 1);
    // Where no system tells whether a mapping was written, the open has dropped them.
    let system = rustix::fs::statfs(&server.directory).expect("there").f_type;
    let is_told = !matches!(system, 0x0102_1994 | 0x794c_7630);
    assert_eq!(dropped[0]["dropped_bytes"], if is_told { 200_704 } else { 0 });
    assert!(good(&["cache", "drop", &server.at("")]).contains("0 dropped"));
    assert_eq!(good(&["cat", &server.at("d/read")]).len(), 200_000, "the file is as it was");
}

#[test]
fn advice_reads_in_and_tells_what_was_taken() {
    let server = served();
    let url = server.at("top");
    let taken =
        json(&good(&["cache", "advise", "--prefetch", "all", "--unit", "64k", "--json", &url]));
    assert_eq!(
        (&taken[0]["prefetched_bytes"], &taken[0]["unit"]),
        (&300_000.into(), &65_536.into())
    );
    // Begun before it was answered; the reader waits for it.
    good(&["cat", &url]);
    assert_eq!(cached(&server, "top"), [(url.clone(), 303_104)]);
    let shown = json(&good(&["cache", "show", "--json", &url]));
    assert_eq!(shown[0]["unit"], 65_536);
    let kept = good(&["cache", "advise", "--policy", "mq", "--class", "low", &url]);
    assert!(kept.contains("policy mq, class low"), "{kept}");
    let part = good(&["cache", "advise", "--prefetch", "4k-12k", &server.at("d/cold")]);
    assert!(part.contains("8.0K read in"), "{part}");
    let tree = good(&["cache", "advise", "--prefetch", "all", &server.at("d")]);
    assert_eq!(tree.lines().count(), 2, "{tree}");
    for wrong in [&["--unit", "3k"][..], &["--policy", "fifo"], &["--prefetch", "9k-1k"], &[]] {
        let arguments = [&["cache", "advise", &url][..], wrong].concat();
        bad(2, &arguments);
    }
}

#[test]
fn more_than_the_server_may_read_ahead_at_once_is_read_in_parts() {
    let server = Server::start(&["--datapath", "unifier", "--arena", "16m"]);
    std::fs::write(server.file("f"), vec![1; 6 << 20]).expect("written");
    let taken = json(&good(&["cache", "advise", "--prefetch", "all", "--json", &server.at("f")]));
    assert_eq!(taken[0]["prefetched_bytes"], 6 << 20);
}

#[test]
fn others_see_only_what_they_may_read() {
    if !is_root() {
        println!("skipped: needs root");
        return;
    }
    let server = served();
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
    std::fs::set_permissions(server.file("d/read"), mode).expect("chmod");
    for command in [&["show"][..], &["drop"], &["advise", "--prefetch", "all"]] {
        let output = dafs_as(12_345, &[&["cache"], command, &[&server.at("d/read")]].concat());
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{command:?}: {said}");
        assert!(said.contains("permission denied"), "{command:?}: {said}");
    }
    assert_eq!(cached(&server, "d/read").len(), 1, "still cached");
}

/// The system tells the owner of a file, and root, what others stored in it: the server asks as itself.
#[test]
fn opens_by_others_leave_what_is_cached() {
    if !is_root() {
        return println!("skipped: needs root");
    }
    let server = served();
    for _ in 0..3 {
        let output = dafs_as(65_534, &["cat", &server.at("d/read")]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        let output = dafs_as(65_534, &["explain", "--json", &server.at("d/read")]);
        let told = &json(&text(&output.stdout))[0];
        assert_eq!(told["cached_bytes"], 200_704, "{told}");
    }
}

/// The number of the admin port of a server.
fn port(server: &Server) -> String {
    let shown = good(&["status", &server.url]);
    let line = shown.lines().next().expect("a line");
    let address = line.rsplit("http://").next().expect("an address");
    address.trim_end_matches('/').rsplit(':').next().expect("a port").to_owned()
}

#[test]
fn top_prints_one_sample() {
    let server = served();
    let port = port(&server);
    let (done, url) = (AtomicBool::new(false), server.at("top"));
    let seen = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                good(&["cat", &url]);
            }
        });
        let seen = json(&good(&["top", "--json", "--interval", "1s", &port]));
        done.store(true, Ordering::Relaxed);
        seen
    });
    let rates = &seen[0];
    assert_eq!(rates["pid"], server.child.id());
    assert!(rates["requests"].as_f64() > Some(0.0), "{rates}");
    assert!(rates["dirty_bytes_max"].as_u64() > Some(0), "{rates}");
    assert_eq!(rates["arena_bytes"], 64 << 20);
    let lines = good(&["top", "--once", "--interval", "100ms", &format!("127.0.0.1:{port}")]);
    assert!(lines.starts_with("dafs ") && lines.contains("requests "), "{lines}");
    let said = bad(2, &["top", &port]);
    assert!(said.contains("no terminal"), "{said}");
    bad(2, &["top", "--interval", "1ms", &port]);
}

/// Runs `dafs top` on a terminal of its own; what it wrote there, and its exit code.
fn on_a_terminal(port: &str, end: impl FnOnce(&mut std::process::Child)) -> (String, Option<i32>) {
    let temporary = Temporary::new();
    let log = temporary.join("terminal");
    let command = format!(
        "stty rows 40 cols 120; exec {} top --interval 100ms {port}",
        env!("CARGO_BIN_EXE_dafs")
    );
    let mut script = Command::new("script");
    script.args(["-q", "-e", "-f", "-c", &command]).arg(&log);
    script.stdin(Stdio::piped()).stdout(Stdio::null());
    let mut child = script.spawn().expect("script, of bsdutils, starts");
    let start = Instant::now();
    loop {
        let seen = std::fs::read(&log).unwrap_or_default();
        if text(&seen).contains("sessions") {
            break;
        }
        let is_late = start.elapsed() > Duration::from_secs(60);
        assert!(child.try_wait().expect("script").is_none() && !is_late, "{}", text(&seen));
        std::thread::yield_now();
    }
    end(&mut child);
    let code = child.wait().expect("ends").code();
    (text(&std::fs::read(&log).expect("a log")), code)
}

#[test]
fn top_gives_the_terminal_back() {
    let server = served();
    let port = port(&server);
    let press = |keys: &'static [u8]| {
        move |child: &mut std::process::Child| {
            let stdin = child.stdin.as_mut().expect("piped");
            stdin.write_all(keys).expect("pressed");
            stdin.flush().expect("pressed");
        }
    };
    for keys in [&b"s ?q"[..], b"\x03"] {
        let (written, code) = on_a_terminal(&port, press(keys));
        assert_eq!(code, Some(0), "{written}");
        let enter = written.find("\u{1b}[?1049h").expect("takes the screen");
        assert!(Some(enter) < written.rfind("\u{1b}[?1049l"), "gives it back");
    }
}

/// An HTTP request by hand.
fn http(port: &str, request: &str) -> String {
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("connects");
    stream.write_all(request.as_bytes()).expect("asked");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("answered");
    text(&answer)
}

#[test]
fn the_admin_port_answers_browsers_of_this_machine_alone() {
    let server = served();
    let port = port(&server);
    let get = |path: &str, host: &str| {
        http(&port, &format!("GET {path} HTTP/1.1\r\nAccept: */*\r\nHost: {host}\r\n\r\n"))
    };
    for path in ["/", "/status", "/metrics"] {
        let answer = get(path, &format!("127.0.0.1:{port}"));
        assert!(answer.starts_with("HTTP/1.1 200"), "{path}: {answer}");
        assert!(answer.contains("default-src 'none'") && answer.contains("nosniff"), "{answer}");
        // A name of a stranger that was made to lead here.
        let refused = get(path, "evil.example:80");
        assert!(refused.starts_with("HTTP/1.1 403") && !refused.contains("dafs"), "{refused}");
    }
    assert!(get("/none", "localhost").starts_with("HTTP/1.1 404"));
    for method in ["POST", "PUT", "DELETE", "OPTIONS"] {
        let answer = http(&port, &format!("{method} /status HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        assert!(answer.starts_with("HTTP/1.1 405"), "{method}: {answer}");
    }
    let endless = format!("GET / HTTP/1.1\r\nX: {}", "x".repeat(20 << 10));
    let mut stream = TcpStream::connect(format!("127.0.0.1:{port}")).expect("connects");
    let _ = stream.write_all(endless.as_bytes());
    // Who connects and says nothing keeps nobody waiting.
    let _silent: Vec<TcpStream> = (0..5)
        .map(|_| TcpStream::connect(format!("127.0.0.1:{port}")).expect("connects"))
        .collect();
    assert!(get("/status", "localhost").starts_with("HTTP/1.1 200"));
}
