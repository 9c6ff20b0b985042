//! Commands whose output or messages go nowhere: they end with a status that is documented.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::OpenOptionsExt;
use std::process::{Command, Stdio};

use common::{Server, Temporary, path, text};

/// A command, and how it ends where its output can be written.
struct Case {
    arguments: Vec<String>,
    code: i32,
    /// Something goes to standard output.
    prints: bool,
}

fn case(code: i32, prints: bool, arguments: &[&str]) -> Case {
    Case { arguments: arguments.iter().map(|text| (*text).to_owned()).collect(), code, prints }
}

/// One of each command, good, and some that fail.
fn cases(server: &Server, temporary: &Temporary) -> Vec<Case> {
    let at = |name: &str| server.at(name);
    let (file, dir, none) = (at("file"), at("dir"), at("none"));
    let (new, moved, link) = (at("new"), at("moved"), at("link"));
    let here = path(&temporary.0).to_owned();
    let local = format!("{here}/copy");
    let bench = ["bench", "raw", "tcp", "--op", "read", "--size", "4k", "--depth", "1"];
    let bench = [&bench[..], &["--wait", "sleeping", "--file-size", "1m"]].concat();
    let config = ["config", "new", "--directory", &here];
    vec![
        case(0, true, &["--help"]),
        case(0, true, &["--version"]),
        case(0, true, &["help", "mount"]),
        case(2, false, &["nonsense"]),
        case(0, true, &["version", "--json"]),
        case(0, true, &["completion", "bash"]),
        case(0, false, &["man-pages", &here]),
        case(0, true, &[&config[..], &["a", &here]].concat()),
        case(0, true, &["config", "reference"]),
        case(0, true, &["serve", "--check-config", &here]),
        case(1, false, &["serve", "--listen", "127.0.0.1:0", "/none"]),
        case(2, false, &["mount", "-o", "frob", &file, &here]),
        case(1, false, &["umount", &here]),
        case(0, true, &["ls", "-l", &server.url]),
        case(1, false, &["ls", &none]),
        case(0, false, &["cp", &file, &local]),
        case(0, true, &["cp", "--json", &file, &local]),
        case(0, true, &["cat", &file]),
        case(1, false, &["cat", &none]),
        case(0, true, &["head", &file]),
        case(0, true, &["tail", &file]),
        case(0, true, &["stat", &file]),
        case(0, true, &["touch", "-v", &new]),
        case(0, true, &["mv", "-v", &new, &moved]),
        case(0, true, &["ln", "-s", "-v", "file", &link]),
        case(0, true, &["rm", "-v", &moved, &link]),
        case(0, true, &["mkdir", "-v", &new]),
        case(0, true, &["rm", "-r", "-v", &new]),
        case(0, false, &["chmod", "600", &file]),
        case(1, false, &["chown", "1", &none]),
        case(0, true, &["find", &server.url]),
        case(0, true, &["du", &dir]),
        case(0, true, &["df", &server.url]),
        case(0, false, &["flush", &server.url]),
        case(0, false, &["sync", &server.url]),
        case(0, true, &["ping", "-c", "1", &server.url]),
        case(0, true, &["status", &server.url]),
        case(0, true, &["top", "--once", "--interval", "100ms", &server.url]),
        case(2, false, &["top", "--interval", "1ms"]),
        case(0, true, &["cache", "show", &server.url]),
        case(0, true, &["cache", "drop", &dir]),
        case(0, true, &[&bench[..], &["--seconds", "0.02"]].concat()),
        case(3, false, &["ls", "dafs+unix:///none/socket//"]),
    ]
}

/// Runs each case with streams made by `streams`.
fn run(mut streams: impl FnMut(&mut Command), expected: impl Fn(&Case) -> i32) {
    let server = Server::start(&[]);
    fs::write(server.file("file"), "text\n").expect("file");
    fs::create_dir(server.file("dir")).expect("directory");
    let temporary = Temporary::new();
    for case in cases(&server, &temporary) {
        let mut command = common::binary();
        command
            .args(&case.arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped());
        streams(&mut command);
        let output = command.output().expect("runs");
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(expected(&case)), "{:?}: {said}", case.arguments);
        assert!(!said.contains("panicked"), "{:?}: {said}", case.arguments);
    }
}

fn full() -> File {
    File::options().write(true).open("/dev/full").expect("/dev/full")
}

#[test]
fn each_command_does_its_work_where_all_is_well() {
    run(|_| {}, |case| case.code);
}

#[test]
fn output_on_a_full_disk_is_a_failure() {
    let expected = |case: &Case| if case.prints { 1 } else { case.code };
    run(
        |command| {
            command.stdout(full());
        },
        expected,
    );
}

#[test]
fn output_that_nobody_reads_ends_as_by_a_broken_pipe() {
    let expected = |case: &Case| if case.prints { 141 } else { case.code };
    run(
        |command| {
            let (reader, writer) = std::io::pipe().expect("pipe");
            drop(reader);
            command.stdout(writer);
        },
        expected,
    );
}

#[test]
fn messages_that_cannot_be_written_change_nothing() {
    run(
        |command| {
            command.stderr(full());
        },
        |case| case.code,
    );
    run(
        |command| {
            let (reader, writer) = std::io::pipe().expect("pipe");
            drop(reader);
            command.stderr(writer);
        },
        |case| case.code,
    );
}

#[test]
fn a_terminal_that_is_gone_is_a_stream_that_cannot_be_written() {
    let expected = |case: &Case| if case.prints { 1 } else { case.code };
    run(
        |command| {
            let (out, err) = (dead_terminal(), dead_terminal());
            command.stdout(out).stderr(err);
        },
        expected,
    );
}

/// The end of a terminal that programs have, when the other one is closed: in programs that other tests start
/// meanwhile, too.
fn dead_terminal() -> File {
    use nix::fcntl::OFlag;
    use nix::pty;
    let flags = OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
    let master = pty::posix_openpt(flags).expect("a terminal");
    pty::grantpt(&master).expect("granted");
    pty::unlockpt(&master).expect("unlocked");
    let name = pty::ptsname_r(&master).expect("a name");
    let mut options = File::options();
    options.read(true).write(true).custom_flags(OFlag::O_NOCTTY.bits());
    options.open(name).expect("the other end")
}

#[test]
fn streams_that_are_closed_are_as_good_as_none() {
    let server = Server::start(&[]);
    fs::write(server.file("file"), "text\n").expect("file");
    for (code, arguments) in [
        (0, ["ls", server.url.as_str()]),
        (0, ["cat", &server.at("file")]),
        (1, ["cat", &server.at("none")]),
        (2, ["help", "nonsense"]),
    ] {
        let mut shell = Command::new("sh");
        shell.args(["-c", "exec \"$@\" <&- >&- 2>&-", "sh", env!("CARGO_BIN_EXE_dafs")]);
        let status = shell.args(arguments).status().expect("sh");
        assert_eq!(status.code(), Some(code), "{arguments:?}");
    }
    assert_eq!(fs::read(server.file("file")).expect("read"), b"text\n");
}
