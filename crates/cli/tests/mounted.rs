//! What programs see through a mount, beside what they see in the exported directory itself.

mod common;

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, ErrorKind, Write};
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use common::{FileSystem, Mounted, Server, Temporary, path, program};
use dafs_client::{OpenOptions, Session, SessionOptions, Url};
use dafs_fabric_tcp::TcpProvider;

fn shell(dir: &Path, script: &str) -> String {
    let script = format!("cd {} && {script}", path(dir));
    program("sh", &["-c", &script]).unwrap_or_else(|| panic!("failed: {script}"))
}

#[test]
fn a_default_list_replaces_the_umask() {
    let server = Server::start(&[]);
    let Some(mount) = Mounted::new(&server, &[]) else { return };
    for dir in ["mounted", "itself"] {
        fs::create_dir(server.file(dir)).expect("mkdir");
    }
    let make = |dir: &Path, umask: &str| {
        let make = "touch f; mkdir d s; chmod g+s s; mkfifo p; touch d/g; mkdir s/t";
        shell(dir, &format!("umask {umask}; {make}"));
        let list = "stat -c '%n %a' f d p d/g s s/t; rm -r f d p s";
        shell(dir, list)
    };
    let both = |umask| {
        let itself = make(&server.file("itself"), umask);
        assert_eq!(make(&mount.join("mounted"), umask), itself);
        itself
    };
    assert!(both("027").contains("f 640\n"));
    assert!(both("0").contains("f 666\n"));
    for dir in ["mounted", "itself"] {
        let list = "u::rwx,g::rwx,o::r-x,m::rwx,u:12345:rwx";
        let set = program("setfacl", &["-d", "-m", list, path(&server.file(dir))]);
        if set.is_none() {
            return println!("skipped: no setfacl, or no lists on this file system");
        }
    }
    assert!(both("077").contains("f 664\n"));
    assert!(both("0").contains("f 664\n"));
    assert_eq!(fs::metadata(mount.path()).expect("stat").mode() & 0o777, 0o755);
}

/// As git makes its objects: who made a file may write it, whatever its mode, also when the server
/// was another one in between.
#[test]
fn a_file_made_read_only_is_written_over_a_restart() {
    let mut server = Server::start(&[]);
    let Some(mount) = Mounted::new(&server, &[]) else { return };
    fs::set_permissions(mount.path(), Permissions::from_mode(0o777)).expect("chmod");
    let script = "umask 0333 && exec 3>f && echo one >&3 && echo made && read go && echo two >&3";
    let mut writer = Command::new("sh");
    writer.args(["-c", script]).current_dir(mount.path()).uid(12_345).gid(12_345);
    let mut writer = writer.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("sh");
    let mut said = String::new();
    BufReader::new(writer.stdout.take().expect("piped")).read_line(&mut said).expect("a line");
    assert_eq!(said, "made\n");
    server.crash_and_restart();
    writer.stdin.take().expect("piped").write_all(b"go\n").expect("it waits");
    assert!(writer.wait().expect("it ends").success());
    assert_eq!(fs::read(mount.join("f")).expect("read"), b"one\ntwo\n");
    assert_eq!(fs::metadata(server.file("f")).expect("stat").mode() & 0o777, 0o444);
}

/// `O_TRUNC` where a file is opened for reading: it is cut, unless it is a program that runs.
#[test]
fn a_running_program_is_not_cut() {
    let server = Server::start(&[]);
    let Some(mount) = Mounted::new(&server, &[]) else { return };
    let (sleep, other) = (mount.join("sleep"), mount.join("other"));
    let bytes = fs::copy("/bin/sleep", &sleep).expect("copy");
    fs::copy("/bin/sleep", &other).expect("copy");
    let cut = |file| fs::OpenOptions::new().read(true).custom_flags(libc::O_TRUNC).open(file);
    let mut program = Command::new(&sleep).arg("1000").spawn().expect("it is run");
    let refused = cut(&sleep).map(drop).map_err(|error| error.kind());
    let (length, ended) = (fs::metadata(server.file("sleep")), program.try_wait());
    program.kill().expect("it runs");
    program.wait().expect("it ends");
    assert_eq!(refused, Err(ErrorKind::ExecutableFileBusy));
    assert_eq!(length.expect("stat").len(), bytes);
    assert_eq!(ended.expect("it is ours"), None);
    for file in [&sleep, &other] {
        drop(cut(file).expect("nobody runs it"));
        assert_eq!(fs::metadata(file).expect("stat").len(), 0);
    }
}

/// What `filefrag` says of the extents of a file, without its name and flags that come and go.
fn blocks(file: &Path) -> Option<(String, bool)> {
    let said = program("filefrag", &["-v", path(file)])?;
    let line = said.lines().find(|line| line.trim_start().starts_with("0:"))?.to_owned();
    let physical = line.split(':').nth(2)?.trim().to_owned();
    Some((physical, line.contains("shared")))
}

#[test]
fn copies_share_their_blocks_where_the_file_system_can() {
    let Some(disk) = FileSystem::sharing_blocks() else { return };
    let served = disk.path().join("served");
    fs::create_dir(&served).expect("directory");
    let server = Server::start_in(Temporary::new(), served, &[]);
    let Some(mount) = Mounted::new(&server, &[]) else { return };
    let bytes: Vec<u8> = (0..1u32 << 20).map(|n| (n ^ n >> 11) as u8).collect();
    fs::write(mount.join("a"), &bytes).expect("write");
    shell(mount.path(), "cp a b && sync b");
    assert_eq!(fs::read(mount.join("b")).expect("read"), bytes);

    let url = Url::parse(&server.url).expect("URL");
    let provider = Arc::new(TcpProvider::default());
    let (session, _) =
        Session::connect_url(provider, &url, SessionOptions::default()).expect("session");
    let from =
        session.open(b"a", OpenOptions { read: true, ..OpenOptions::default() }).expect("open");
    let new = OpenOptions { write: true, create: true, ..OpenOptions::default() };
    let to = session.open(b"c", new).expect("open");
    from.clone_range(0, &to, 0, 0).expect("clone");
    assert_eq!(fs::read(mount.join("c")).expect("read"), bytes);

    let Some(a) = blocks(&server.file("a")) else { return println!("skipped: no filefrag") };
    assert!(a.1, "{a:?}");
    assert_eq!(blocks(&server.file("b")), Some(a.clone()));
    assert_eq!(blocks(&server.file("c")), Some(a));
    // One's own bytes all the same.
    shell(mount.path(), "printf new | dd of=b conv=notrunc status=none && sync b");
    assert_eq!(fs::read(mount.join("a")).expect("read"), bytes);
    assert_eq!(fs::read(server.file("b")).expect("read")[..3], *b"new");
}

/// Also where the kernel takes the file to be longer than it is: it was cut behind the mount.
#[test]
fn a_copy_within_a_file_does_not_go_on_with_its_own_bytes() {
    let server = Server::start(&[]);
    let Some(mount) = Mounted::new(&server, &[]) else { return };
    let url = Url::parse(&server.url).expect("URL");
    let provider = Arc::new(TcpProvider::default());
    let options = SessionOptions::default();
    let (other, _) = Session::connect_url(provider, &url, options).expect("session");
    let script = "import os, sys
f = os.open('f', os.O_RDWR)
print(os.fstat(f).st_size, flush=True)
sys.stdin.readline()
print(os.copy_file_range(f, f, 1000, 0, 1000))
print(os.fstat(f).st_size)";
    for by_a_client in [true, false] {
        fs::write(server.file("f"), [7; 1000]).expect("write");
        let mut copies = Command::new("python3");
        copies.args(["-c", script]).current_dir(mount.path());
        let copies = copies.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let Ok(mut copies) = copies else { return println!("skipped: no python3") };
        let mut said = BufReader::new(copies.stdout.take().expect("piped")).lines();
        let mut next = || said.next().expect("a line").expect("read");
        assert_eq!(next(), "1000");
        if by_a_client {
            let write = OpenOptions { write: true, ..OpenOptions::default() };
            other.open(b"f", write).expect("open").set_len(50).expect("cut");
        } else {
            let file = File::options().write(true).open(server.file("f"));
            file.expect("open").set_len(50).expect("cut");
        }
        copies.stdin.take().expect("piped").write_all(b"go\n").expect("it waits");
        assert_eq!((&*next(), &*next()), ("50", "1050"), "{by_a_client}");
        assert!(copies.wait().expect("it ends").success());
        let is = [vec![7; 50], vec![0; 950], vec![7; 50]].concat();
        assert_eq!(fs::read(server.file("f")).expect("read"), is, "{by_a_client}");
        assert_eq!(fs::read(mount.join("f")).expect("read"), is, "{by_a_client}");
    }
}

/// Runs a script in a directory as a user, failed or not.
fn run_as(user: u32, dir: &Path, script: &str) -> String {
    let user = user.to_string();
    let script = format!("cd {}; {script}", path(dir));
    let who = ["--reuid", &user, "--regid", &user, "--clear-groups", "sh", "-c", &script];
    let output = std::process::Command::new("setpriv").args(who).output().expect("setpriv");
    let exit = if output.status.success() { "" } else { "failed " };
    format!("{exit}{}", common::text(&output.stdout))
}

#[test]
fn privileges_of_a_file_end_as_on_a_disk() {
    const OWNER: u32 = 12_345;
    let server = Server::start(&[]);
    let Some(mount) = Mounted::new(&server, &[]) else { return };
    if program("xfs_io", &["-V"]).is_none() {
        return println!("skipped: no xfs_io");
    }
    for dir in ["mounted", "itself"] {
        fs::create_dir(server.file(dir)).expect("mkdir");
        shell(&server.file(dir), "chmod 777 . && head -c 20000 /dev/zero > source");
    }
    let changes = [
        "printf x > f",
        "printf x >> f",
        "xfs_io -c 'pwrite 5 10' f > /dev/null",
        "xfs_io -d -c 'pwrite 0 4096' f > /dev/null",
        "xfs_io -c 'mmap 0 4096' -c 'mwrite 0 10' -c msync f > /dev/null",
        "truncate -s 5 f",
        "truncate -s 50000 f",
        "truncate -s 10000 f",
        "xfs_io -c 'truncate 7' f",
        "xfs_io -c 'falloc 0 50000' f",
        "xfs_io -c 'falloc -k 0 50000' f",
        "xfs_io -c 'fpunch 0 4096' f",
        "xfs_io -c 'copy_range -l 8192 source' f",
        "dd if=source of=f conv=notrunc bs=1k count=3 status=none",
        "chown : f",
        "chgrp 12345 f",
        "chown 12345 f",
        "touch f",
    ];
    let all_of = |dir: &Path| {
        let mut out = Vec::new();
        for user in [0, OWNER, 12_346] {
            for mode in ["6777", "2777", "4666", "6755", "777"] {
                for change in changes {
                    // The kernel does not say that it is refused.
                    if user == 12_346 && change.starts_with("chown :") {
                        continue;
                    }
                    let make = format!(
                        "rm -f f; head -c 10000 /dev/zero > f; chown {OWNER}:{OWNER} f; chmod {mode} f"
                    );
                    shell(dir, &make);
                    let result = run_as(user, dir, change);
                    let is = shell(dir, "stat -c '%a %s %u:%g' f");
                    out.push(format!("{user} {mode} {change}: {result}{is}"));
                }
            }
        }
        out
    };
    let itself = all_of(&server.file("itself"));
    let mounted = all_of(&mount.join("mounted"));
    assert!(itself.iter().any(|line| line == "12346 6777 truncate -s 5 f: 777 5 12345:12345\n"));
    // A store by a mapping ends them as any other write: on a disk it does not.
    let ended = |line: &str| {
        [": 6", ": 4", ": 2"].iter().fold(line.to_owned(), |line, mode| line.replace(mode, ": "))
    };
    let same = |mounted: &str, itself: &str| {
        mounted == itself || (itself.contains("mwrite") && mounted == ended(itself))
    };
    let differ = mounted.iter().zip(&itself).filter(|(mounted, itself)| !same(mounted, itself));
    let differ: Vec<_> = differ.collect();
    assert!(differ.is_empty(), "{differ:#?}");
}

/// The numbers that a directory lists for itself and for the one above.
fn dots(dir: &Path) -> Option<Vec<u64>> {
    let arguments = ["-v", "-e", "trace=getdents64", "-o", "/dev/stdout", "ls", "-a", path(dir)];
    let said = program("strace", &arguments)?;
    let number = |name: &str| {
        let entry = said.split("{d_ino=").find(|entry| entry.contains(name))?;
        entry.split(',').next()?.parse().ok()
    };
    Some(vec![number("d_name=\".\"")?, number("d_name=\"..\"")?])
}

#[test]
fn directories_list_the_numbers_that_they_have() {
    let server = Server::start(&[]);
    let Some(mount) = Mounted::new(&server, &[]) else { return };
    fs::create_dir_all(mount.join("a/b")).expect("mkdir");
    fs::write(mount.join("a/b/f"), b"x").expect("write");
    let number = |path: &Path| fs::symlink_metadata(path).expect("stat").ino();
    let (root, a, b) = (number(mount.path()), number(&mount.join("a")), number(&mount.join("a/b")));
    if program("strace", &["-V"]).is_none() {
        return println!("skipped: no strace");
    }
    assert_eq!(dots(&mount.join("a/b")), Some(vec![b, a]));
    assert_eq!(dots(&mount.join("a")), Some(vec![a, root]));
    assert_eq!(dots(mount.path()), Some(vec![root, root]));
    let listed = fs::read_dir(mount.join("a/b")).expect("list").next().expect("one");
    assert_eq!(listed.expect("entry").ino(), number(&mount.join("a/b/f")));
}

/// Of every export, not of the first only.
#[test]
fn directories_of_all_exports_can_be_synced() {
    let temporary = Temporary::new();
    let (one, two) = (temporary.join("one"), temporary.join("two"));
    for directory in [&one, &two] {
        std::fs::create_dir_all(directory.join("inner")).expect("directory");
    }
    let exports = [format!("one={}", one.display()), format!("two={}", two.display())];
    let options = ["--export", &exports[0], "--export", &exports[1]];
    let server = Server::start_in(temporary, one, &options);
    let Some(mount) = Mounted::new(&server, &[]) else { return };
    for name in ["one", "two", "one/inner", "two/inner"] {
        let directory = std::fs::File::open(mount.join(name)).expect("open");
        directory.sync_all().unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

fn signal(server: &Server, name: &str) {
    let pid = server.child.id().to_string();
    program("kill", &["-s", name, &pid]).expect("the server runs");
}

#[test]
fn callers_that_are_killed_end_while_the_server_does_not_answer() {
    let server = Server::start(&[]);
    let Some(mount) = Mounted::new(&server, &["-o", "attr_timeout=0,entry_timeout=0"]) else {
        return;
    };
    fs::write(mount.join("f"), b"x").expect("write");
    signal(&server, "STOP");
    let start = |number: usize| {
        let mut stat = std::process::Command::new("stat");
        let name = mount.join(&format!("none-{number}"));
        stat.arg(name).stderr(std::process::Stdio::null()).spawn().expect("stat")
    };
    let mut callers: Vec<_> = (0..100).map(start).collect();
    let in_call = |caller: &std::process::Child| {
        let stack = format!("/proc/{}/wchan", caller.id());
        fs::read_to_string(stack).is_ok_and(|at| at.contains("request_wait"))
    };
    for _ in 0..2000 {
        if callers.iter().all(in_call) {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(callers.iter().all(in_call), "calls that wait for a server that is stopped");
    for caller in &mut callers {
        caller.kill().expect("kill");
    }
    for _ in 0..6000 {
        callers.retain_mut(|caller| caller.try_wait().expect("wait").is_none());
        if callers.is_empty() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    signal(&server, "CONT");
    assert!(callers.is_empty(), "{} wait", callers.len());
    assert_eq!(fs::read(mount.join("f")).expect("the mount lives"), b"x");
}

/// In a process of its own: each that a test starts closes what it inherited.
const CLOSES: &str = "import os, signal, sys, threading, time\n\
    path, server = sys.argv[1], int(sys.argv[2])\n\
    file = os.open(path, os.O_CREAT | os.O_WRONLY)\n\
    other = os.dup(file)\n\
    # The first one is flushed with its request.\n\
    os.write(file, b'ke')\n\
    os.write(file, b'pt')\n\
    os.kill(server, signal.SIGSTOP)\n\
    tasks = f'/proc/{server}/task'\n\
    state = lambda task: open(f'{tasks}/{task}/stat').read().rsplit(') ', 1)[1][0]\n\
    while any(state(task) != 'T' for task in os.listdir(tasks)): pass\n\
    closers = [threading.Thread(target=os.close, args=[fd]) for fd in (file, other)]\n\
    for closer in closers: closer.start()\n\
    at = lambda closer: open(f'/proc/self/task/{closer.native_id}/wchan').read()\n\
    def is_there(closer):\n\
    \x20   try: return 'request_wait' in at(closer)\n\
    \x20   except OSError: return True\n\
    limit = time.time() + 10\n\
    while not all(is_there(closer) for closer in closers) and time.time() < limit: pass\n\
    # That nothing ends can only be watched for a while.\n\
    time.sleep(0.5)\n\
    print(sum(closer.is_alive() for closer in closers), 'wait')\n\
    os.kill(server, signal.SIGCONT)\n\
    for closer in closers: closer.join()\n";

/// What was written before a close is safe when it returns, also where another close of the same
/// open is at it.
#[test]
fn no_close_of_an_open_returns_before_its_flush() {
    let server = Server::start(&[]);
    let Some(mount) = Mounted::new(&server, &[]) else { return };
    let pid = server.child.id().to_string();
    let Some(said) = program("python3", &["-c", CLOSES, path(&mount.join("f")), &pid]) else {
        return println!("skipped: no python3");
    };
    assert_eq!(said.trim(), "2 wait");
    assert_eq!(fs::read(server.file("f")).expect("read"), b"kept");
}

/// Told at once, and nothing is changed: as on the disk.
#[test]
fn a_write_beyond_the_largest_file_is_refused() {
    let server = Server::start(&[]);
    let Some(mount) = Mounted::new(&server, &[]) else { return };
    let largest =
        |dir: &Path| File::create(dir.join("f")).and_then(|file| file.set_len(i64::MAX as u64));
    if largest(&server.file("")).is_ok() {
        return println!("skipped: the file system there takes files of any size");
    }
    for dir in [mount.path().to_owned(), server.file("")] {
        let file = File::create(dir.join("f")).expect("create");
        let far = i64::MAX as u64 - 10;
        let refused = file.write_at(b"far", far).map_err(|error| error.kind());
        assert_eq!(refused, Err(ErrorKind::FileTooLarge), "{}", dir.display());
        file.write_all_at(b"x", 0).expect("write");
        drop(file);
        assert_eq!(fs::read(dir.join("f")).expect("read"), b"x");
    }
}
