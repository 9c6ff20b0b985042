//! `variants`: without RDMA read; two users at once; local programs beside.

use std::fs;
use std::os::unix::process::CommandExt;
use std::process::Command;

use dafs_client::OpenOptions;
use dafs_tests::client::session;
use dafs_tests::{Served, binary, run_ok, tree};

use crate::{Line, Mode, copies, direct, faults};

pub(crate) fn all(mode: Mode) -> Vec<Line> {
    let mut lines = vec![without_rdma_read(mode)];
    lines.push(two_users());
    lines.push(local_programs());
    lines
}

/// The other bars' bodies again, in a process of their own with `?rdma_read=off`.
fn without_rdma_read(mode: Mode) -> Line {
    // What `trees` and `direct` say of memory and copies is the unifier's.
    let options = std::env::var("DAFS_TEST_SERVE").unwrap_or_default();
    let bars = if options.contains("--datapath") { "faults" } else { "trees,direct,faults" };
    let line = Line::new("variants", &format!("bars {bars} with ?rdma_read=off"), "pass");
    let me = std::env::current_exe().expect("own path");
    let mut again = Command::new(me);
    again.args(["--only", bars]).env("DAFS_TEST_OPTIONS", "?rdma_read=off");
    if mode.long {
        again.arg("--long");
    }
    let _ = (copies::trees, direct::counts, faults::kills);
    let output = again.output().expect("run");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let missed = text.lines().find(|line| line.ends_with("MISS")).unwrap_or("all pass");
    line.measured(missed.split_whitespace().collect::<Vec<_>>().join(" "), output.status.success())
}

fn two_users() -> Line {
    let line =
        Line::new("variants", "two users with different rights at once", "each sees its own");
    if !nix::unistd::geteuid().is_root() {
        return line.skipped("needs root");
    }
    let work = tempfile::tempdir().expect("tempdir");
    let dafs = work.path().join("dafs");
    fs::copy(binary(), &dafs).expect("copy");
    let dir = work.path().join("served");
    fs::create_dir(&dir).expect("mkdir");
    let users = [11_111u32, 22_222];
    for uid in users {
        let path = dir.join(format!("of-{uid}"));
        fs::write(&path, format!("{uid}")).expect("write");
        std::os::unix::fs::chown(&path, Some(uid), Some(uid)).expect("chown");
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o600);
        fs::set_permissions(&path, mode).expect("chmod");
    }
    for path in [work.path(), &dafs, &dir] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(path, mode).expect("chmod");
    }
    let server = Served::start(&dir, &[]);
    let cat = |who: u32, whose: u32| {
        let mut command = Command::new(&dafs);
        command.args(["cat", &server.at(&format!("of-{whose}"))]).uid(who).gid(who);
        let output = command.output().expect("run");
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let mut wrong = 0;
    std::thread::scope(|scope| {
        let runs: Vec<_> = (0..8)
            .map(|i| {
                let (who, other) = (users[i % 2], users[(i + 1) % 2]);
                scope.spawn(move || {
                    cat(who, who) == (Some(0), who.to_string())
                        && cat(who, other) == (Some(1), String::new())
                })
            })
            .collect();
        wrong = runs
            .into_iter()
            .filter(|_| true)
            .map(|run| run.join())
            .filter(|ok| !matches!(ok, Ok(true)))
            .count();
    });
    line.measured(format!("{wrong} of 8 wrong"), wrong == 0)
}

fn local_programs() -> Line {
    let dir = tempfile::tempdir().expect("tempdir");
    let source = tempfile::NamedTempFile::new().expect("tempfile");
    let data = tree::pattern(1, 3_000_001);
    fs::write(source.path(), &data).expect("write");
    let server = Served::start(dir.path(), &[]);
    run_ok(&["cp", &source.path().display().to_string(), &server.at("file")]);
    let seen = fs::read(dir.path().join("file")).expect("read");
    let first = seen == data;
    let session = session(&server.at(""));
    let read = || {
        let file = session.open(b"file", OpenOptions::read()).expect("open");
        let mut into = vec![0; 4_000_000];
        let n = file.read_at(&mut into, 0).expect("read");
        into.truncate(n);
        into
    };
    let second = read() == data;
    // A local change of the same length, a longer and a shorter one: each seen at the next open.
    let mut third = true;
    for (seed, len) in [(2, 3_000_001), (3, 3_500_000), (4, 100)] {
        let changed = tree::pattern(seed, len);
        fs::write(dir.path().join("file"), &changed).expect("write");
        third &= read() == changed;
    }
    Line::new("variants", "local cat after dafs cp; local changes at the next open", "same bytes")
        .measured(format!("{first} {second} {third}"), first && second && third)
}
