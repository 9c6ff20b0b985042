//! Programs in C, compiled against the library and run against a server.

mod build;
mod served;

use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};

use dafs_server::Optimistic;

use build::{Build, installed_examples, run};
use served::Served;

#[test]
fn sizes_offsets_and_numbers_stay() {
    run(&mut Build::test("layout").command());
}

#[test]
fn names_directories_attributes_and_locks() {
    let served = Served::start();
    run(Build::test("names").command().arg(served.url()));
}

#[test]
fn reads_and_writes_that_block() {
    let served = Served::start();
    run(Build::test("data").command().args([&served.url(), "shm"]));
}

#[test]
fn the_same_by_tcp() {
    let served = Served::start();
    let url = served.tcp_url();
    run(Build::test("data").command().args([&url, "tcp"]));
    for name in ["names", "groups", "ends"] {
        run(Build::test(name).command().arg(&url));
    }
    let told = run(Build::test("fsx").command().args([&url, "file", "500", "1"]));
    assert!(told.starts_with("end 500 0 0 0 0 "), "{told}");
}

#[test]
fn shared_memory_is_found_and_used() {
    let served = Served::start();
    run(Build::test("shared").command().arg(served.unix_url()));
}

/// More of it in the long run of all tests.
fn hits() -> String {
    std::env::var("DAFS_TEST_HISTORY_HITS").unwrap_or_else(|_| "5000".into())
}

#[test]
fn what_is_read_without_the_server_is_what_was_acknowledged() {
    let served = Served::start_with(Optimistic::Both);
    let build = Build::test("optimistic");
    for (url, transport) in [(served.url(), "shm"), (served.tcp_url(), "tcp")] {
        run(build.command().args([&url, transport, &hits()]));
    }
}

/// A writer that says too early that it has written makes reads stale by what is told: the judge is not blind.
#[test]
fn a_read_older_than_what_was_acknowledged_is_found() {
    let served = Served::start_with(Optimistic::Both);
    let build = Build::test("optimistic");
    let mut command = build.command();
    command.args([&served.url(), "shm", "1000000000", "early"]);
    let told = command.output().expect("the program");
    assert_eq!(told.status.code(), Some(3), "{}", String::from_utf8_lossy(&told.stderr));
}

#[test]
fn groups_of_asynchronous_operations() {
    let served = Served::start();
    run(Build::test("groups").command().arg(served.url()));
}

#[test]
fn wrong_use_is_told_and_never_hangs() {
    let served = Served::start();
    run(Build::test("wrong").command().arg(served.url()).arg(served.directory()));
}

#[test]
fn what_ends_while_something_is_under_way_is_told() {
    let served = Served::start();
    run(Build::test("ends").command().arg(served.url()));
}

#[test]
fn a_server_that_ends_is_an_error_in_time() {
    let mut served = Served::start();
    let build = Build::test("dead");
    let mut command = build.command();
    command.arg(served.url()).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().expect("the program");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let first = lines.next().and_then(Result::ok);
    served.stop();
    let stdin = child.stdin.take();
    let told = stdin.map(|mut stdin| stdin.write_all(b"gone\n"));
    let rest = lines.next().and_then(Result::ok);
    let status = child.wait().expect("its end");
    assert_eq!(first.as_deref(), Some("ready"));
    assert!(told.is_some_and(|told| told.is_ok()) && rest.is_some(), "{rest:?}");
    assert!(status.success(), "{status}");
}

/// What the examples print, with a file that is there.
fn example(name: &str, arguments: &[&str]) -> String {
    let served = Served::start();
    std::fs::write(served.directory().join("words"), "some words\n".repeat(1000)).expect("a file");
    let build = Build::example(name);
    let mut command = build.command();
    command.arg(served.url()).args(arguments);
    run(&mut command)
}

#[test]
fn the_examples_do_what_they_say() {
    let copied = example("copy", &["words", "copied"]);
    assert_eq!(copied, "11000 bytes\n");
    let listed = example("list", &[""]);
    assert!(listed.contains("11000  words\n"), "{listed}");
    let sum = example("sum", &["words"]);
    let bytes: u64 = "some words\n".repeat(1000).bytes().map(u64::from).sum();
    assert_eq!(sum, format!("{bytes}\n"));
}

#[test]
fn the_examples_are_made_with_an_installed_library() {
    let served = Served::start();
    std::fs::write(served.directory().join("words"), "ab").expect("a file");
    let directory = installed_examples();
    let mut sum = Command::new(directory.path().join("sum"));
    let told = run(sum.env("LD_LIBRARY_PATH", directory.path()).args([&served.url(), "words"]));
    assert_eq!(told, "195\n");
}

#[test]
fn sanitizers_find_nothing() {
    for name in ["data", "groups"] {
        let served = Served::start();
        run(Build::sanitized(name).command().args([&served.url(), "shm"]));
    }
    let served = Served::start();
    let build = Build::sanitized("wrong");
    run(build.command().arg(served.url()).arg(served.directory()).arg("few"));
    let served = Served::start();
    run(Build::sanitized("ends").command().arg(served.url()).arg("few"));
}

#[test]
fn the_program_of_the_page_compiles() {
    let page = include_str!("../../../../docs/c.md");
    let code = page.split("```c\n").nth(1).and_then(|rest| rest.split("```").next());
    let directory = tempfile::tempdir().expect("a directory");
    let source = directory.path().join("page.c");
    std::fs::write(&source, code.expect("a program")).expect("written");
    Build::of(&source);
}

/// Whether valgrind is installed; CI has all.
fn has_valgrind() -> bool {
    let found = Command::new("valgrind").arg("--version").output().is_ok();
    assert!(
        found || std::env::var_os("CI").is_none(),
        "valgrind is missing: scripts/setup.sh test"
    );
    found
}

#[test]
fn valgrind_finds_nothing() {
    if !has_valgrind() {
        return println!("skipped: no valgrind here");
    }
    let served = Served::start();
    std::fs::write(served.directory().join("words"), "some words\n").expect("a file");
    for (build, arguments) in [
        (Build::example("copy"), ["words", "copied"].as_slice()),
        (Build::example("list"), &[""]),
        (Build::example("sum"), &["words"]),
    ] {
        run(build.under_valgrind().arg(served.url()).args(arguments));
    }
}

#[test]
fn valgrind_finds_nothing_in_wrong_use() {
    if !has_valgrind() {
        return println!("skipped: no valgrind here");
    }
    let served = Served::start();
    let build = Build::test("wrong");
    run(build.under_valgrind().arg(served.url()).arg(served.directory()).arg("few"));
    let served = Served::start();
    run(Build::test("ends").under_valgrind().arg(served.url()).arg("few"));
}

#[test]
fn random_operations_are_those_of_a_model() {
    let served = Served::start();
    let build = Build::test("fsx");
    let told = run(build.command().args([&served.url(), "file", "3000", "1"]));
    // No loss, nothing unknown, different or written again.
    assert!(told.starts_with("end 3000 0 0 0 0 "), "{told}");
}
