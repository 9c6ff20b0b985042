//! Mounts with `uring=on`. Needs root and a kernel with FUSE over io_uring.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Mounted, Server, Temporary, dafs, path, program, text};
use switched_on::{SwitchedOff, SwitchedOn};

#[path = "../../fuse/tests/common/switched_on.rs"]
mod switched_on;

const ON: &[&str] = &["-o", "uring=on"];

/// Programs that hang fail their test, and hold up nobody.
fn within(seconds: u64, dir: &Path, script: &str) -> String {
    let script = format!("cd {} && {script}", path(dir));
    let limit = seconds.to_string();
    let output = Command::new("timeout").args(["-k", "1", &limit, "sh", "-ec", &script]).output();
    let output = output.expect("timeout");
    assert!(output.status.success(), "{script}: {}{}", output.status, text(&output.stderr));
    text(&output.stdout)
}

/// Where both are there.
fn mounted(server: &Server, options: &[&str]) -> Option<(SwitchedOn, Mounted)> {
    let on = SwitchedOn::new().inspect_err(|why| println!("{why}")).ok()?;
    let mount = Mounted::new(server, options)?;
    assert!(is_served_by_rings(mount.path()), "the device is used");
    Some((on, mount))
}

/// The process that serves a mount.
fn process_of(dir: &Path) -> Option<u32> {
    let is_it = |pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        line.contains(&format!(" {} ", path(dir))) && line.contains("--background")
    };
    let processes = fs::read_dir("/proc").expect("/proc").flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.find(is_it)
}

/// After a call, one of its threads has an entry of a ring.
fn is_served_by_rings(dir: &Path) -> bool {
    within(20, dir, "ls >/dev/null");
    let pid = process_of(dir).expect("it is served");
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).expect("alive").flatten();
    let mut names = tasks.filter_map(|task| fs::read_to_string(task.path().join("comm")).ok());
    names.any(|name| name.trim_end() == "fuse-ring")
}

#[test]
fn where_it_is_switched_off_a_mount_that_must_have_it_says_what_to_do() {
    let _off = match SwitchedOff::new() {
        Ok(off) => off,
        Err(why) => return println!("{why}"),
    };
    let at = Temporary::new();
    let refused = dafs(&["mount", "-o", "uring=on", "dafs://127.0.0.1:1/", path(&at.0)]);
    assert_eq!(refused.status.code(), Some(1));
    let said = text(&refused.stderr);
    assert!(said.contains("echo Y > /sys/module/fuse/parameters/enable_uring"), "{said}");

    let server = Server::start(&[]);
    let Some(mount) = Mounted::new(&server, &["-o", "uring=auto"]) else { return };
    assert!(!is_served_by_rings(mount.path()));
    within(20, mount.path(), "echo data > f && test $(cat f) = data");
}

/// Each line of it is another kind of request.
const PROGRAMS: &str = r"mkdir d
    cd d
    echo one > f; ln f g; ln -s f s; test $(cat s) = one
    mv g h; mkfifo p; chmod 600 h; touch -d @7 h; truncate -s 100000 h
    dd if=/dev/urandom of=data bs=1M count=20 status=none; cp data copy; cmp data copy
    dd if=data of=direct bs=1M oflag=direct iflag=direct status=none; cmp data direct
    dd if=data of=small bs=4k count=500 oflag=direct,append conv=notrunc status=none
    cmp -n 2048000 data small; sync small; df . > /dev/null
    mkdir many; for i in $(seq 200); do echo $i > many/$i; done; test $(ls many | wc -l) = 200
    tar cf many.tar many; mkdir out; tar xf many.tar -C out; diff -r many out/many
    flock f true; fallocate -l 1M room; find . > /dev/null; rm -r many out p s
    cd ..
    sha256sum d/* | sort";

#[test]
fn programs_see_the_same_by_rings_as_in_the_directory_itself() {
    let server = Server::start(&[]);
    let Some((_on, mount)) = mounted(&server, ON) else { return };
    let by_mount = within(100, mount.path(), PROGRAMS);
    assert_eq!(by_mount, within(100, &server.directory, "sha256sum d/* | sort"));
    let modes = "cd d && stat -c '%n %a %s %h %Y' h f";
    assert_eq!(within(20, mount.path(), modes), within(20, &server.directory, modes));
}

#[test]
fn many_write_and_read_at_once() {
    let server = Server::start(&[]);
    let Some((_on, mount)) = mounted(&server, ON) else { return };
    std::thread::scope(|scope| {
        for writer in 0..16u8 {
            let at = mount.join(&format!("f{writer}"));
            scope.spawn(move || {
                let file = File::create_new(&at).expect("open");
                let back_by = File::open(&at).expect("open");
                for round in 0..8u64 {
                    let bytes = vec![writer ^ round as u8; 300_000];
                    file.write_all_at(&bytes, round * 300_000).expect("write");
                    let mut back = vec![0; 300_000];
                    back_by.read_exact_at(&mut back, round * 300_000).expect("read");
                    assert!(back == bytes, "file {writer}, round {round}");
                }
                file.sync_all().expect("sync");
            });
        }
    });
    for writer in 0..16u8 {
        let bytes = fs::read(server.file(&format!("f{writer}"))).expect("read");
        let all = bytes.chunks(300_000).zip(0u8..);
        assert!(all.count() == 8, "whole");
        for (chunk, round) in bytes.chunks(300_000).zip(0u8..) {
            assert!(chunk.iter().all(|byte| *byte == writer ^ round));
        }
    }
}

/// Its threads stand still when this returns, or go on.
fn stop(server: &Server, name: &str) {
    let pid = server.child.id().to_string();
    program("kill", &["-s", name, &pid]).expect("the server runs");
    let stands_still = |task: &fs::DirEntry| {
        let line = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        line.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('T'))
    };
    let tasks = || fs::read_dir(format!("/proc/{pid}/task")).expect("it runs").flatten();
    assert!(name != "STOP" || soon(|| tasks().all(|task| stands_still(&task))), "it is stopped");
}

/// Looks at names that the server is to be asked for.
fn callers(mount: &Mounted, count: usize) -> Vec<Child> {
    let start = |number: usize| {
        let mut stat = Command::new("stat");
        stat.arg(mount.join(&format!("none-{number}")));
        stat.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("stat")
    };
    let callers: Vec<Child> = (0..count).map(start).collect();
    let in_call = |caller: &Child| {
        let at = fs::read_to_string(format!("/proc/{}/wchan", caller.id()));
        at.is_ok_and(|at| at.contains("request_wait"))
    };
    assert!(soon(|| callers.iter().all(in_call)), "calls that wait for a server that is stopped");
    callers
}

fn soon(mut done: impl FnMut() -> bool) -> bool {
    let begin = Instant::now();
    while begin.elapsed() < Duration::from_secs(40) {
        if done() {
            return true;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

fn all_end(callers: &mut Vec<Child>) -> bool {
    soon(|| {
        callers.retain_mut(|caller| caller.try_wait().expect("wait").is_none());
        callers.is_empty()
    })
}

#[test]
fn callers_that_are_killed_end_while_the_server_does_not_answer() {
    let server = Server::start(&[]);
    let options = ["-o", "uring=on,attr_timeout=0,entry_timeout=0"];
    let Some((_on, mount)) = mounted(&server, &options) else { return };
    stop(&server, "STOP");
    let mut callers = callers(&mount, 100);
    callers.iter_mut().for_each(|caller| caller.kill().expect("kill"));
    let ended = all_end(&mut callers);
    stop(&server, "CONT");
    assert!(ended, "{} wait", callers.len());
    within(20, mount.path(), "echo x > f");
}

#[test]
fn a_mount_whose_process_is_killed_ends_all_calls() {
    let server = Server::start(&[]);
    let Some((_on, mount)) = mounted(&server, ON) else { return };
    stop(&server, "STOP");
    let mut callers = callers(&mount, 50);
    let pid = process_of(mount.path()).expect("it is served");
    program("kill", &["-s", "KILL", &pid.to_string()]).expect("it runs");
    let ended = all_end(&mut callers);
    stop(&server, "CONT");
    assert!(ended, "{} wait", callers.len());
    let error = fs::metadata(mount.join("f")).expect_err("nobody serves it");
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
    assert!(soon(|| process_of(mount.path()).is_none()), "nothing is left of the process");
}

#[test]
fn an_unmount_by_force_ends_all_calls_and_the_process() {
    let server = Server::start(&[]);
    let Some((_on, mount)) = mounted(&server, ON) else { return };
    stop(&server, "STOP");
    let mut callers = callers(&mount, 50);
    let output = dafs(&["umount", "--force", path(mount.path())]);
    let ended = all_end(&mut callers);
    stop(&server, "CONT");
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(ended, "{} wait", callers.len());
    assert!(soon(|| process_of(mount.path()).is_none()), "the process ends");
    // It is gone; its guard unmounts another one.
    let at = path(mount.path());
    program(env!("CARGO_BIN_EXE_dafs"), &["mount", &server.url, at]).expect("mounted again");
}

#[test]
fn a_mount_that_is_in_use_ends_with_its_last_user() {
    let server = Server::start(&[]);
    let Some((_on, mount)) = mounted(&server, ON) else { return };
    let file = File::create(mount.join("f")).expect("open");
    let output = dafs(&["umount", "--lazy", path(mount.path())]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    file.write_all_at(b"still there", 0).expect("write");
    file.sync_all().expect("sync");
    assert_eq!(fs::read(server.file("f")).expect("read"), b"still there");
    assert!(process_of(mount.path()).is_some());
    drop(file);
    assert!(soon(|| process_of(mount.path()).is_none()), "the process ends");
    let at = path(mount.path());
    program(env!("CARGO_BIN_EXE_dafs"), &["mount", &server.url, at]).expect("mounted again");
}
