//! Bar 1: the two commands of the README in a fresh clone.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use dafs_tests::Served;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::{Line, Mode};

pub(crate) fn first_byte(mode: Mode) -> Vec<Line> {
    let mut lines = vec![after_build()];
    if mode.long {
        lines.push(fresh_clone());
    }
    lines
}

fn directory_with_a_file() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("tempdir");
    std::fs::write(dir.path().join("hello"), b"hello\n").expect("write");
    dir
}

fn after_build() -> Line {
    let dir = directory_with_a_file();
    let start = Instant::now();
    dafs_tests::served::as_in_use(true);
    let server = Served::start(dir.path(), &[]);
    let text = dafs_tests::run_ok(&["cat", &server.at("hello")]);
    let seconds = start.elapsed().as_secs_f64();
    Line::new("start", "first byte served after the build", "< 5 s")
        .measured(format!("{seconds:.2} s"), text == "hello\n" && seconds < 5.0)
}

fn repository() -> PathBuf {
    let mut path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    path.pop();
    path
}

/// Clones what is committed, builds and serves by the README's command. The registry cache of
/// cargo is used; nothing else of this machine's builds is.
fn fresh_clone() -> Line {
    let line = Line::new("start", "`make serve DIR=…` in a fresh clone", "works as written");
    let clone = tempfile::tempdir().expect("tempdir");
    let status =
        Command::new("git").args(["clone", "-q"]).arg(repository()).arg(clone.path()).status();
    if !status.is_ok_and(|status| status.success()) {
        return line.skipped("no git repository here");
    }
    let start = Instant::now();
    match serve_once(clone.path()) {
        Ok(()) => line.measured(
            format!("served, {:.0} s with the build", start.elapsed().as_secs_f64()),
            true,
        ),
        Err(error) => line.measured(error, false),
    }
}

fn serve_once(clone: &Path) -> Result<(), String> {
    let dir = directory_with_a_file();
    let mut make = Command::new("make")
        .current_dir(clone)
        .args(["serve", &format!("DIR={}", dir.path().display())])
        .arg("ARGS=--listen tcp://127.0.0.1:0")
        .env_remove("CARGO_TARGET_DIR")
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|error| error.to_string())?;
    let out = make.stdout.take().ok_or("no output")?;
    let url = BufReader::new(out)
        .lines()
        .map_while(Result::ok)
        .find(|line| line.starts_with("dafs://"))
        .ok_or("no URL was printed")?;
    let dafs = clone.join("target/release/dafs");
    let cat = Command::new(dafs).args(["cat", &format!("{url}hello")]).output();
    let served = cat.is_ok_and(|output| output.stdout == b"hello\n");
    let pid = i32::try_from(make.id()).map_err(|error| error.to_string())?;
    // `make` execs the server in a shell of its own; Ctrl-C goes to both.
    let children = Command::new("pkill").args(["-INT", "-P", &pid.to_string()]).status();
    let _ = (kill(Pid::from_raw(pid), Signal::SIGINT), children, make.wait());
    if served { Ok(()) } else { Err("the file was not served".into()) }
}
