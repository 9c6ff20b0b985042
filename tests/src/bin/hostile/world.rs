//! A server, who attacks it, and what is done for attackers that they cannot do themselves.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use dafs_client::{OpenOptions, Session, SessionOptions, Url};
use dafs_fabric_tcp::TcpProvider;
use dafs_tests::Served;
use dafs_tests::marks::{Marks, full_of};
use dafs_tests::memory::{Bound, Check};
use nix::sys::signal::Signal;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, SockaddrStorage, bind, connect, setsockopt, socket, sockopt,
};

use crate::frames::target;
use crate::kinds::{self, Kind};
use crate::limits::{LEASE, configuration};

/// Bytes of the server's cache.
const ARENA: u64 = 32 << 20;
/// Connections of honest clients at a time, at most.
const HONEST: u64 = 6;
const NOBODY: u32 = 65_534;
/// A user beside nobody.
const ANOTHER: u32 = 65_533;
/// How long somebody who is served may wait, however busy the machine is.
const SERVED: Duration = Duration::from_secs(30);

pub(crate) struct World {
    work: tempfile::TempDir,
    /// Attackers come by shared memory.
    is_near: bool,
    /// This program, where everybody may run it.
    me: PathBuf,
    marks_of: u64,
    pub server: Served,
    has_buffers: bool,
    /// Of attackers at a time, at most.
    connections: u64,
    /// Of root, from the ports of others.
    taken: Vec<TcpStream>,
}

pub(crate) fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("chmod");
}

fn make(dir: &Path, marks: &Marks) {
    fs::create_dir(dir).expect("mkdir");
    mode(dir, 0o1777);
    fs::write(dir.join("data"), vec![1; 1 << 20]).expect("write");
    fs::write(dir.join("secret"), full_of(marks.secret, 100_000)).expect("write");
    mode(&dir.join("secret"), 0o600);
    std::os::unix::fs::symlink("/etc", dir.join("absolute")).expect("symlink");
    std::os::unix::fs::symlink("../../../../../etc", dir.join("escape")).expect("symlink");
}

impl World {
    /// Serves by this data path; attackers come by shared memory, or by TCP.
    pub(crate) fn start(marks_of: u64, data_path: &str, is_near: bool) -> World {
        let work = tempfile::tempdir().expect("tempdir");
        mode(work.path(), 0o755);
        let me = work.path().join("hostile");
        fs::copy(std::env::current_exe().expect("own path"), &me).expect("copy");
        let (dir, marks) = (work.path().join("served"), Marks::new(marks_of));
        make(&dir, &marks);
        let config = work.path().join("dafs.toml");
        fs::write(&config, configuration()).expect("write");
        let (config, arena) = (config.display().to_string(), ARENA.to_string());
        let sockets = work.path().join("sockets");
        fs::create_dir(&sockets).expect("mkdir");
        mode(&sockets, 0o755);
        let sockets = sockets.display().to_string();
        let mut args = vec!["--config", &config, "--arena", &arena, "--datapath", data_path];
        if is_near {
            args.extend(["--local-socket", &sockets]);
        }
        let poison = PathBuf::from(marks.poison_digits());
        let mut env = vec![(dafs_fabric::poison::VARIABLE, poison.as_path())];
        // Each of them breaks rules by the thousand.
        if std::env::var_os("DAFS_LOG").is_none() {
            env.push(("DAFS_LOG", Path::new("error")));
        }
        let server = Served::start_with_env(&dir, &args, &env);
        let (has_buffers, connections, taken) = (data_path != "unifier", 0, Vec::new());
        World { work, is_near, me, marks_of, server, has_buffers, connections, taken }
    }

    pub(crate) fn marks(&self) -> Marks {
        Marks::new(self.marks_of)
    }

    /// What the server had at most, beside what it may have had.
    pub(crate) fn memory(&self) -> Check {
        let bound = Bound::new(ARENA, self.connections + HONEST);
        let bound = if self.has_buffers { bound.with_buffers() } else { bound };
        Check::new(&self.server, if self.is_near { bound.with_rings() } else { bound })
    }

    /// Has lies of a kind told by nobody, or by this user where it is not root; what is wrong.
    pub(crate) fn tell(&mut self, kind: &Kind) -> Result<(), String> {
        let told = self.tell_as(NOBODY, kind);
        if self.server.ended().is_none() {
            self.server.signal(Signal::SIGCONT);
        }
        self.taken.clear();
        match self.server.ended() {
            // That explains all else.
            Some(status) => Err(format!("the server ended: {status}")),
            None => told,
        }
    }

    fn tell_as(&mut self, uid: u32, kind: &Kind) -> Result<(), String> {
        let mut attacker = Command::new("nice");
        let url = match self.is_near {
            true => format!("shm:{}", self.work.path().join("sockets/shm.sock").display()),
            false => self.url(),
        };
        attacker.args(["-n", "19"]).arg(&self.me).args(["--lie", kind.name, &url]);
        attacker.arg(self.marks_of.to_string()).stdin(Stdio::piped()).stdout(Stdio::piped());
        if is_root() {
            attacker.uid(uid).gid(uid);
        }
        let mut attacker = attacker.spawn().map_err(|error| format!("nice: {error}"))?;
        let told = self.listen(&mut attacker);
        let _ = attacker.kill();
        let _ = attacker.wait();
        told
    }

    /// Does what an attacker asks for, until it says how it ended.
    fn listen(&mut self, attacker: &mut Child) -> Result<(), String> {
        let (mut to, from) = match (attacker.stdin.take(), attacker.stdout.take()) {
            (Some(to), Some(from)) => (to, BufReader::new(from)),
            _ => return Err("no pipes".into()),
        };
        for line in from.lines() {
            let line = line.map_err(|error| error.to_string())?;
            if let Some(end) = line.strip_prefix("end ") {
                let (connections, wrong) = end.split_once(' ').unwrap_or((end, ""));
                self.note_connections(connections.parse().unwrap_or(0));
                return if wrong.is_empty() { Ok(()) } else { Err(wrong.to_string()) };
            }
            let answer = self.serve_for(&line).err().unwrap_or_else(|| "ok".to_string());
            let written = writeln!(to, "{}", answer.replace('\n', " "));
            written.map_err(|error| error.to_string())?;
        }
        Err("the attacker ended early".into())
    }

    fn note_connections(&mut self, connections: u64) {
        self.connections = self.connections.max(connections + self.taken.len() as u64);
    }

    fn serve_for(&mut self, line: &str) -> Result<(), String> {
        let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
        let number = || rest.parse::<u16>().map_err(|error| error.to_string());
        match what {
            "serve" => self.still_serves(),
            "sessions" => {
                let count = number()?;
                let url = self.url();
                (0..count).try_for_each(|_| in_time(url.clone(), |url| attempt(url).map(drop)))
            }
            "stop" => self.stand_still(),
            "wait" => {
                std::thread::sleep(Duration::from_millis(LEASE * 1500));
                Ok(())
            }
            "go" => {
                self.server.signal(Signal::SIGCONT);
                Ok(())
            }
            "take" => {
                let taken = connect_from(target(&self.server.url), number()?);
                self.taken.push(taken.map_err(|error| format!("the port: {error}"))?);
                Ok(())
            }
            "nothing" => self.is_not_there(rest),
            "beside" => {
                let kind = kinds::named(kinds::BESIDE).ok_or("no such kind")?;
                self.tell_as(ANOTHER, kind)
            }
            _ => Err(format!("nobody does '{line}'")),
        }
    }

    /// Others are served.
    pub(crate) fn still_serves(&self) -> Result<(), String> {
        in_time(self.url(), write_and_read)
    }

    fn url(&self) -> String {
        self.server.url.clone()
    }

    /// Returns when it stands still.
    fn stand_still(&self) -> Result<(), String> {
        self.server.signal(Signal::SIGSTOP);
        let tasks = format!("/proc/{}/task", self.server.pid());
        let stands = |task: fs::DirEntry| {
            let state = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            state.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T'))
        };
        while !fs::read_dir(&tasks).map_err(|e| e.to_string())?.flatten().all(stands) {
            std::thread::yield_now();
        }
        Ok(())
    }

    /// Of this name there is nothing that root made, when those who came later are served.
    fn is_not_there(&mut self, name: &str) -> Result<(), String> {
        in_time(self.url(), |url| attempt(url).map(drop))?;
        self.taken.clear();
        match fs::symlink_metadata(self.server.dir.join(name)) {
            Ok(meta) if meta.uid() == 0 => Err(format!("root made '{name}'")),
            _ => Ok(()),
        }
    }
}

/// An honest call, which may not hang.
fn in_time(url: String, call: fn(&str) -> Result<(), String>) -> Result<(), String> {
    let (done, result) = channel();
    std::thread::spawn(move || done.send(call(&url)));
    let limit = dafs_tests::patient(SERVED);
    result.recv_timeout(limit).map_err(|_| "others are not served")?
}

/// A session that is tried for once, and used.
fn attempt(url: &str) -> Result<Session, String> {
    let text = |error: &dyn std::fmt::Display| format!("another session: {error}");
    let url = Url::parse(url).map_err(|error| text(&error))?;
    let options = SessionOptions::from_url(&url).map_err(|error| text(&error))?;
    let session = Session::connect_url(Arc::new(TcpProvider::default()), &url, options);
    let (session, _) = session.map_err(|error| text(&error))?;
    session.stat(b"data").map_err(|error| text(&error))?;
    Ok(session)
}

fn write_and_read(url: &str) -> Result<(), String> {
    let session = attempt(url)?;
    let options = OpenOptions { create: true, read: true, ..OpenOptions::write() };
    let file = session.open(b"beside", options).map_err(|error| error.to_string())?;
    file.write_at(b"12345", 0).map_err(|error| error.to_string())?;
    let mut into = [0; 5];
    file.read_at(&mut into, 0).map_err(|error| error.to_string())?;
    if &into == b"12345" { Ok(()) } else { Err("what others wrote is not there".into()) }
}

/// A connection of this user from a port that was somebody else's.
fn connect_from(target: &str, port: u16) -> std::io::Result<TcpStream> {
    let to: SocketAddr = target.parse().map_err(std::io::Error::other)?;
    let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None)?;
    setsockopt(&fd, sockopt::ReuseAddr, &true)?;
    bind(fd.as_raw_fd(), &SockaddrStorage::from(SocketAddr::new(to.ip(), port)))?;
    connect(fd.as_raw_fd(), &SockaddrStorage::from(to))?;
    Ok(fd.into())
}
