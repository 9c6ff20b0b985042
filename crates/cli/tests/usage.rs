//! The binary without a server: arguments, exit codes, messages.

use std::net::TcpListener;
use std::process::{Command, Output};

fn dafs(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_dafs")).args(arguments).output().expect("runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A URL at which nobody listens.
fn nobody() -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    format!("dafs://{}/x", listener.local_addr().expect("address"))
}

#[test]
fn wrong_usage_exits_with_2_and_says_why() {
    for (arguments, message) in [
        (&["ls"][..], "required"),
        (&["ls", "/tmp"], "must begin with dafs://"),
        (&["ls", "dafs://[::1/x"], "']' is missing"),
        (&["ls", "dafs://h:99999/"], "'99999' is no port"),
        (&["stat", "dafs:///x"], "no host"),
        (&["cat", "dafs://h/%zz"], "'%'"),
        (&["ls", "dafs://localhost/?colour=red"], "unknown option 'colour'"),
        (&["cp", "a"], "2"),
        (&["cp", "a", "b"], "one side must be a URL"),
        (&["cp", "-", "-"], "only one URL can go to -"),
        (&["cp", "a", "-", "dafs://localhost/"], "- can only go to one URL"),
        (&["chmod", "999", "dafs://localhost/x"], "'999' is no mode"),
        (&["ln", "-s", "dafs://h/x", "dafs://h/y"], "says a path"),
        (&["find", "--larger", "many", "dafs://h/"], "expected a size"),
        (&["ls", "--retry", "soon", "dafs://h/"], "expected a time"),
        (&["bench", "raw", "tcp", "--size", "x"], "expected a size"),
        (&["bench", "raw", "tcp", "--depth", "0"], "depth 1 to"),
        (&["bench", "raw", "tcp", "--op", "ping"], "ping is for shm"),
        (&["bench", "raw", "shm", "--op", "read"], "read is not for shm"),
        (
            &["bench", "raw", "shm", "--footprint", "1m", "--op", "copy", "--size", "2m"],
            "the footprint",
        ),
        (&["nonsense"], "unrecognized"),
    ] {
        let output = dafs(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(message), "{arguments:?}: {error}");
        assert!(output.stdout.is_empty(), "{arguments:?} printed data");
    }
}

#[test]
fn a_refused_connection_exits_with_3_at_once() {
    let url = nobody();
    let started = std::time::Instant::now();
    for arguments in [
        &["ls", &url][..],
        &["stat", &url],
        &["cp", "/etc/hostname", &url],
        &["cp", &url, "/tmp"],
        &["rm", "-r", &url],
        &["ping", &url],
        &["status", &url],
    ] {
        let output = dafs(arguments);
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{arguments:?}: {error}");
        let start = format!("dafs {}: {url}: ", arguments[0]);
        assert!(error.starts_with(&start), "{arguments:?}: {error}");
        assert_eq!(error.lines().count(), 1, "{arguments:?}: {error}");
    }
    assert!(started.elapsed() < std::time::Duration::from_secs(20), "not tried again");
}

#[test]
fn help_goes_to_standard_output() {
    for arguments in [&["--help"][..], &["cp", "--help"], &["bench", "raw", "--help"]] {
        let output = dafs(arguments);
        assert!(output.status.success(), "{arguments:?}");
        assert!(text(&output.stdout).contains("Examples:"), "{arguments:?}");
    }
}

#[test]
fn the_version_is_printed_as_text_and_as_json() {
    let version = env!("CARGO_PKG_VERSION");
    assert!(text(&dafs(&["version"]).stdout).starts_with(&format!("dafs {version} ")));
    let json = text(&dafs(&["version", "--json"]).stdout);
    let object: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(object["version"], version);
}

#[test]
fn raw_sockets_are_measured_between_two_processes() {
    let output = dafs(&[
        "bench",
        "raw",
        "tcp",
        "--op",
        "read,write",
        "--size",
        "4k",
        "--depth",
        "1,4",
        "--wait",
        "sleeping",
        "--file-size",
        "1m",
        "--seconds",
        "0.05",
        "--json",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let rows: Vec<serde_json::Value> = text(&output.stdout)
        .lines()
        .map(|line| serde_json::from_str(line).expect("an object per line"))
        .collect();
    assert_eq!(rows.len(), 4);
    for row in rows {
        assert_eq!(row["size"], 4096);
        assert!(row["ops"].as_u64().expect("a number") > 0);
        assert!(row["server_cpu_us_per_op"].as_f64().expect("measured") > 0.0);
        assert!(row["server_copies_per_byte"].is_null(), "not measured is null");
    }
}

#[test]
fn the_fabric_is_measured_between_two_processes() {
    let output = dafs(&[
        "bench",
        "fabric",
        "dafs://localhost/",
        "--size",
        "4k",
        "--depth",
        "4",
        "--wait",
        "sleeping",
        "--file-size",
        "1m",
        "--seconds",
        "0.05",
        "--json",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let out = text(&output.stdout);
    let ops: Vec<String> = out
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).expect("an object per line"))
        .map(|row| {
            assert!(row["ops"].as_u64().expect("a number") > 0);
            assert!(row["ratio"].as_f64().expect("measured") > 0.0);
            row["op"].as_str().expect("text").to_owned()
        })
        .collect();
    assert_eq!(ops, ["send", "rdma-read", "rdma-write"]);
    assert_eq!(dafs(&["bench", "fabric", "dafs://example.org/"]).status.code(), Some(2));
}

#[test]
fn a_directory_that_is_not_there_cannot_be_served() {
    let missing = "/nonexistent/directory";
    let output = dafs(&["serve", "--listen", "tcp://127.0.0.1:0", missing]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains(missing));
    let output = dafs(&["serve", "--listen", "tcp://0.0.0.0:0", "/tmp"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("--key-file"));
    assert_eq!(dafs(&["serve"]).status.code(), Some(2));
}

#[test]
fn unknown_keys_of_a_configuration_are_errors() {
    let file = std::env::temp_dir().join(format!("dafs-config-{}.toml", std::process::id()));
    std::fs::write(&file, "colour = \"red\"\n").expect("written");
    let output = dafs(&["serve", "--config", file.to_str().expect("UTF-8")]);
    std::fs::remove_file(&file).expect("removed");
    assert_eq!(output.status.code(), Some(2));
    assert!(text(&output.stderr).contains("colour"), "{}", text(&output.stderr));
}

#[test]
fn what_is_wrong_with_an_address_is_said_with_its_cure() {
    let holder = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let taken = holder.local_addr().expect("address").to_string();
    let serve = |listen: &str, more: &[&str]| {
        let output = dafs(&[&["serve", "--arena", "16m", "--listen", listen], more].concat());
        (output.status.code(), text(&output.stderr))
    };
    let (code, said) = serve(&taken, &["/tmp"]);
    assert!(said.contains("`dafs status` shows") && said.contains("any free port"), "{said}");
    assert_eq!(code, Some(1));
    let (code, said) = serve(&taken, &["/nonexistent/directory"]);
    assert!(said.contains("/nonexistent/directory: no such file"), "{said}");
    assert_eq!((code, said.lines().count()), (Some(1), 1));
    drop(holder);
    assert!(serve("0.0.0.0:0", &["/tmp"]).1.contains("--key-file"));
    for wrong in ["nowhere", "shm:nowhere", "shm:@00"] {
        assert!(serve(wrong, &["/tmp"]).1.contains("expected tcp://HOST:PORT or unix:/path"));
    }
    for directory in ["unix:/tmp", "shm:/tmp"] {
        assert!(serve(directory, &["/tmp"]).1.contains("what is there is no socket"));
    }
}

#[test]
fn the_environment_names_a_key_and_an_option_wins() {
    let run = |option: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dafs"));
        command.args([&["ls"], option, &["dafs://127.0.0.1:1/"]].concat());
        let output = command.env("DAFS_KEY_FILE", "/of/environment").output().expect("runs");
        assert_eq!(output.status.code(), Some(2));
        text(&output.stderr)
    };
    assert!(run(&[]).contains("key file /of/environment (--key-file"));
    assert!(run(&["--key-file", "/of/option"]).contains("key file /of/option (--key-file"));
    let said = dafs(&["serve", "--key-file", "/none", "/tmp"]);
    assert!(text(&said.stderr).contains("key file /none (--key-file, key_file): "));
}
