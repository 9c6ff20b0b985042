//! `dafs bench raw shm`: two processes, and what each row tells.

mod common;

use std::process::{Command, Stdio};

use serde_json::Value;

fn shm(arguments: &[&str]) -> (String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_dafs"))
        .args(["bench", "raw", "shm", "--footprint", "4m", "--seconds", "0.02"])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{errors}");
    (out, errors)
}

#[test]
fn every_row_tells_what_was_measured_and_where() {
    let (out, notices) = shm(&["--json"]);
    let rows: Vec<Value> =
        out.lines().map(|line| serde_json::from_str(line).expect("an object")).collect();
    for row in &rows {
        let number = |field: &str| row[field].as_f64().unwrap_or_else(|| panic!("{field}: {row}"));
        for field in ["ops", "ops_per_s", "bytes_per_s", "p50_us", "client_cpu_us_per_op"] {
            assert!(number(field) > 0.0, "{field}: {row}");
        }
        assert!(number("p50_us") <= number("p99_us") && number("p99_us") <= number("p999_us"));
        assert_eq!(number("footprint"), f64::from(4 << 20));
        for field in ["client_huge_pages", "server_huge_pages"] {
            assert!((0.0..=1.0).contains(&number(field)), "{field}: {row}");
        }
        assert_eq!(row["transport"], "raw-shm");
        // The server's figures are there exactly where it has a part.
        assert_eq!(row["server_cpu_us_per_op"].is_null(), row["wait"].is_null(), "{row}");
        assert_eq!(row["piece"].is_null(), row["op"] != "bounce", "{row}");
    }
    let names = ["ping", "copy", "mapped", "stream", "write", "bounce", "memcpy", "sum"];
    let calls = ["vm-readv", "vm-writev", "mem-pread", "mem-pwrite"];
    for name in names.into_iter().chain(calls) {
        let is_told = calls.contains(&name) && notices.contains(&format!("{name}: not measured"));
        assert!(is_told || rows.iter().any(|row| row["op"] == name), "{name}: {notices}");
    }
}

#[test]
fn the_table_names_footprint_pages_and_cpus() {
    let (out, _) = shm(&["--op", "ping,bounce", "--depth", "1", "--size", "256k", "--cpus", "0,0"]);
    let lines: Vec<&str> = out.lines().collect();
    assert!(lines.first().is_some_and(|line| line.starts_with("footprint 4m, in huge pages:")));
    let columns = |line: &&str| line.split_whitespace().count();
    assert_eq!(lines.len(), 2 + 2 + 4, "{out}");
    assert!(lines[2..4].iter().all(|line| line.contains(" 0,0 ") && columns(line) == 13), "{out}");
    assert!(lines[4].starts_with("bounce 64k "), "{out}");
}

/// What a server on this host has is lent, copied by this process, or by both.
#[test]
fn reads_go_where_they_are_told_to() {
    let server = common::Server::start(&["--arena", "512m"]);
    let url = server.at("?transport=shm");
    let row = |memory: &str, path: &str| -> Value {
        let size = ["--size", "256k", "--depth", "2", "--file-size", "4m", "--wait", "sleeping"];
        let how =
            ["--op", "read", "--memory", memory, "--path", path, "--seconds", "0.05", "--json"];
        let out = common::good(&[&["bench", "io", &url][..], &size, &how].concat());
        serde_json::from_str(&out).expect("an object")
    };
    let direct = ["shared", "private", "bounce", "lent"].map(|memory| (memory, "rpc-direct"));
    for (memory, path) in direct.into_iter().chain([("shared", "rpc-inline")]) {
        let row = row(memory, path);
        let copies = |side: &str| row[format!("{side}_copies_per_byte")].as_f64().expect("told");
        let both = (copies("server").round(), copies("client").round());
        let expected = match memory {
            _ if path == "rpc-inline" => (1.0, 1.0),
            "shared" => (1.0, 0.0),
            "private" => (0.0, 1.0),
            "bounce" => (1.0, 1.0),
            _ => (0.0, 0.0),
        };
        assert_eq!(both, expected, "{memory}: {row}");
        assert!(row["ratio"].as_f64().is_some_and(|ratio| ratio > 0.0), "{memory}: {row}");
    }
}
