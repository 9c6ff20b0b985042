//! Shared memory between a server and clients that are in other namespaces, or mean harm.

mod common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use common::{Server, Temporary, binary, good, is_root, json, path, program, text};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const DAFS: &str = env!("CARGO_BIN_EXE_dafs");
const NOBODY: &str = "65534";

/// `unshare` with these options works here; else says that the test is left out.
fn can_unshare(options: &[&str]) -> bool {
    let can = program("unshare", &[options, &["true"]].concat()).is_some();
    if !can {
        println!("skipped: needs the right to make namespaces: unshare {}", options.join(" "));
    }
    can
}

/// One ping in namespaces of its own, by JSON.
fn ping_in(namespaces: &[&str], url: &str) -> Output {
    let mut command = Command::new("unshare");
    command.args(namespaces).args([DAFS, "ping", "-c", "1", "--json", url]);
    command.env(dafs_fabric::poison::VARIABLE, "0").output().expect("unshare")
}

fn transport_in(namespaces: &[&str], url: &str) -> String {
    let output = ping_in(namespaces, url);
    assert!(output.status.success(), "{namespaces:?} {url}: {}", text(&output.stderr));
    json(&text(&output.stdout))[0]["transport"].as_str().expect("a name").into()
}

/// A directory with sockets, and a URL by which no network is needed.
fn sockets() -> (Temporary, String) {
    let sockets = Temporary::new();
    let url = format!("dafs+shm://{}/shm.sock//", path(&sockets.0));
    (sockets, url)
}

#[test]
fn clients_in_other_namespaces_come_by_shared_memory() {
    let (sockets, by_path) = sockets();
    let server = Server::start(&["--local-socket", path(&sockets.0)]);
    let shm = server.at("?transport=shm");
    let processes = ["-m", "-p", "-f", "--mount-proc"];
    let users = ["-U", "-r"];
    if can_unshare(&processes) {
        assert_eq!(transport_in(&processes, &shm), "shm");
    }
    if can_unshare(&users) {
        assert_eq!(transport_in(&users, &shm), "shm");
        // Whatever he is called there.
        assert_eq!(transport_in(&["-U", "--map-user=1000"], &shm), "shm");
    }
    // No address leads there, but a path that both see.
    let all = [&users[..], &processes, &["-n"]].concat();
    if can_unshare(&all) {
        assert_eq!(transport_in(&all, &by_path), "shm");
        let said = text(&ping_in(&all, &shm).stderr);
        assert!(said.contains("cannot connect"), "{said}");
    }
}

/// A client that has no /proc tells of its memory all the same, which the server reads and writes.
#[test]
fn clients_without_proc_come_by_shared_memory() {
    if !can_unshare(&["-m"]) {
        return;
    }
    let server = Server::start(&[]);
    let from = server.directory.parent().expect("a directory").join("from");
    let data: Vec<u8> = (0..3 << 20).map(|at: u32| (at % 251) as u8).collect();
    std::fs::write(&from, &data).expect("file");
    let without = |arguments: &[&str]| {
        let mut command = Command::new("timeout");
        command.args(["60", "unshare", "-m", "sh", "-c"]);
        command.args(["mount -t tmpfs none /proc && exec \"$@\"", "sh", DAFS]);
        command.args(arguments).env(dafs_fabric::poison::VARIABLE, "0");
        let output = command.output().expect("timeout");
        let said = text(&output.stderr);
        assert!(output.status.success() && said.is_empty(), "{arguments:?}: {:.500}", said);
        output.stdout
    };
    let url = server.at("copy?transport=shm");
    without(&["cp", path(&from), &url]);
    assert!(std::fs::read(server.file("copy")).expect("there") == data);
    assert!(without(&["cat", &url]) == data);
}

/// Who has no number in a namespace cannot be told from others there.
#[test]
fn users_without_a_number_are_refused() {
    if !can_unshare(&["-U"]) {
        return;
    }
    let (sockets, by_path) = sockets();
    let server = Server::start(&["--local-socket", path(&sockets.0)]);
    for url in [&server.url, &server.at("?transport=shm"), &by_path] {
        let output = ping_in(&["-U"], url);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{url}: {said}");
        assert!(said.contains("has no number in this user namespace (uid "), "{said}");
        assert!(said.contains("?server_uid="), "{said}");
    }
    drop(server);
    // The other way round: the server knows none of its clients.
    let inside = Inside::start(&["-U"], &["--local-socket", path(&sockets.0)]);
    for url in [&inside.url, &by_path] {
        let output = common::dafs(&["ping", "-c", "1", url]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(3), "{url}: {said}");
        assert!(said.contains("has no number in the server's user namespace"), "{said}");
    }
}

/// A server in namespaces of its own.
struct Inside {
    server: Child,
    url: String,
    _temporary: Temporary,
}

impl Inside {
    fn start(namespaces: &[&str], options: &[&str]) -> Inside {
        let temporary = Temporary::new();
        std::fs::create_dir(temporary.join("served")).expect("directory");
        std::fs::write(temporary.join("served/file"), "contents").expect("file");
        let mut command = Command::new("unshare");
        command.args(namespaces).arg(DAFS).args(["serve", "--arena", "64m", "--state"]);
        command.arg(temporary.join("state")).args(options);
        if !options.contains(&"--listen") {
            command.args(["--listen", "tcp://127.0.0.1:0"]);
        }
        let mut server =
            command.arg(temporary.join("served")).stdout(Stdio::piped()).spawn().expect("starts");
        let mut url = String::new();
        let out = server.stdout.as_mut().expect("piped");
        BufReader::new(out).read_line(&mut url).expect("the URL is the first line");
        Inside { server, url: url.trim_end().into(), _temporary: temporary }
    }

    /// The abstract names that begin so in its network namespace.
    fn names(&self, beginning: &str) -> Vec<String> {
        let table = std::fs::read_to_string(format!("/proc/{}/net/unix", self.server.id()));
        let names = table.expect("/proc");
        let last = names.lines().filter_map(|line| line.split_whitespace().last());
        last.filter_map(|name| name.strip_prefix('@'))
            .filter(|name| name.starts_with(beginning))
            .map(str::to_owned)
            .collect()
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

/// A program of nobody's, in Python.
struct Nobody {
    program: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Nobody {
    fn start(script: &str, arguments: &[&str]) -> Nobody {
        let mut command = nobody_who_says(script);
        command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = command.spawn().expect("setpriv");
        let input = program.stdin.take().expect("piped");
        let output = BufReader::new(program.stdout.take().expect("piped"));
        Nobody { program, input, output }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).expect("it says");
        line.trim_end().into()
    }

    fn tell(&mut self, line: &str) {
        self.input.write_all(format!("{line}\n").as_bytes()).expect("it listens");
    }
}

impl Drop for Nobody {
    fn drop(&mut self) {
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

fn nobody_who_says(script: &str) -> Command {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "python3", "-c", script]);
    // Not one of root's own.
    command.env("PATH", "/usr/bin:/bin").current_dir("/");
    command
}

fn can_be_nobody() -> bool {
    let can = is_root() && nobody_who_says("").output().is_ok_and(|out| out.status.success());
    if !can {
        println!("skipped: needs root, setpriv and python3");
    }
    can
}

/// A server that is not on this network's host tells where it is found by shared memory, and somebody else
/// has that name here: he learns nothing, and the session stays where it is.
#[test]
fn a_name_that_somebody_else_has_is_not_believed() {
    if !can_unshare(&["-n"]) || !can_be_nobody() {
        return;
    }
    let sockets = Temporary::new();
    let listen = format!("unix:{}/elsewhere.sock", path(&sockets.0));
    let server = Inside::start(&["-n"], &["--listen", &listen]);
    let url = format!("dafs+unix://{}/elsewhere.sock//", path(&sockets.0));
    let first = |url: &str| json(&good(&["ping", "-c", "1", "--json", url]))[0].clone();
    let alone = first(&url);
    assert_eq!(alone["transport"], "unix");
    assert!(alone["why_not_nearer"].as_str().is_some_and(|why| why.starts_with("shm: ")));
    let [name] = <[String; 1]>::try_from(server.names("dafs-")).expect("one name");
    const SQUATTER: &str = "import socket, sys\n\
        s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
        s.bind('\\0' + sys.argv[1]); s.listen(); s.setblocking(False)\n\
        print('listens', flush=True); sys.stdin.readline(); heard = b''\n\
        try:\n\
        \x20   while True: heard += s.accept()[0].recv(4096)\n\
        except BlockingIOError: pass\n\
        print(len(heard), flush=True)";
    let mut squatter = Nobody::start(SQUATTER, &[&name]);
    assert_eq!(squatter.line(), "listens");
    // A machine that is busy may not look within the time that is given to it.
    let is_seen = (0..50).any(|_| {
        let beside = first(&url);
        assert_eq!(beside["transport"], "unix");
        let why = beside["why_not_nearer"].as_str().expect("a reason");
        why.contains("is of uid 65534, who is neither root nor you")
    });
    assert!(is_seen, "nobody looked whose it is");
    let file = url.strip_suffix('/').map(|url| format!("{url}/file")).expect("a URL");
    assert_eq!(good(&["cat", &file]), "contents");
    squatter.tell("what was heard?");
    assert_eq!(squatter.line(), "0");
}

/// A mount whose program can be stopped.
struct Mount {
    program: Child,
    at: Temporary,
}

impl Mount {
    /// `None`, and says so, where it cannot be.
    fn new(server: &Server) -> Option<Mount> {
        let at = Temporary::new();
        let mut command = binary();
        command.args(["mount", "--foreground", &server.url, path(&at.0)]);
        let mut program = command.stdout(Stdio::null()).spawn().expect("starts");
        let device =
            |at: &Path| std::os::unix::fs::MetadataExt::dev(&at.metadata().expect("there"));
        let above = device(at.0.parent().expect("a parent"));
        let start = std::time::Instant::now();
        while device(&at.0) == above {
            if program.try_wait().expect("a child").is_some() {
                println!("skipped: needs root, /dev/fuse and the right to mount");
                return None;
            }
            if start.elapsed() > std::time::Duration::from_secs(60) {
                let _ = program.kill();
                let _ = program.wait();
                panic!("dafs mount neither mounts nor ends");
            }
            std::thread::yield_now();
        }
        Some(Mount { program, at })
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.program.id()).expect("a pid"));
        kill(pid, signal).expect("it runs");
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.signal(Signal::SIGCONT);
        let _ = common::dafs(&["umount", "--force", path(&self.at.0)]);
        let _ = self.program.kill();
        let _ = self.program.wait();
    }
}

/// Files whose file system is a program that answers nothing any more: to ask about one, or to close it,
/// takes for ever.
#[test]
fn descriptors_that_answer_nothing_hold_up_nobody() {
    if !can_be_nobody() {
        return;
    }
    let stopped = Server::start(&[]);
    std::fs::write(stopped.file("file"), vec![7; 1 << 20]).expect("file");
    let Some(mount) = Mount::new(&stopped) else { return };
    let (sockets, by_path) = sockets();
    let mut server = Server::start(&["--local-socket", path(&sockets.0)]);
    const SENDER: &str = "import os, socket, sys\n\
        file = os.open(sys.argv[1], os.O_RDWR)\n\
        print('open', flush=True); sys.stdin.readline()\n\
        for count in range(40):\n\
        \x20   s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n\
        \x20   s.connect(sys.argv[2])\n\
        \x20   try:\n\
        \x20       s.send(b'\\x01DAFSshm3' + bytes(16)); s.recv(4096)\n\
        \x20       socket.send_fds(s, [b'\\x06'], [file] * (1 + count % 4))\n\
        \x20       s.recv(4096)\n\
        \x20   except OSError: pass\n\
        print('refused', flush=True); sys.stdin.readline()";
    std::fs::set_permissions(
        stopped.file("file"),
        std::os::unix::fs::PermissionsExt::from_mode(0o666),
    )
    .expect("chmod");
    let (file, socket) = (mount.at.join("file"), sockets.join("shm.sock"));
    let mut sender = Nobody::start(SENDER, &[path(&file), path(&socket)]);
    assert_eq!(sender.line(), "open");
    mount.signal(Signal::SIGSTOP);
    sender.tell("go on");
    assert_eq!(sender.line(), "refused");
    // Others go on, also by shared memory, and new ones come.
    for url in [&server.url, &by_path, &server.at("?transport=tcp")] {
        good(&["ping", "-c", "1", url]);
    }
    mount.signal(Signal::SIGCONT);
    assert_eq!(server.interrupt(), Some(0));
}
