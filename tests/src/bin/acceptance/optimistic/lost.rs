//! How long it takes until a user who reads a file without the server has lost it, when its mode or owner changes.

use std::fs::{Permissions, copy, set_permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use dafs_client::{OpenOptions, Session};
use dafs_protocol::SetAttr;
use dafs_tests::Served;
use dafs_tests::client::{session, session_by_shm};

use crate::{Line, Mode};

/// The first argument of the other user's program.
pub(crate) const MODE: &str = "--loses-a-file";
const USER: u32 = 54_321;
const BLOCK: usize = 4096;
const BLOCKS: usize = 64;
const NAME: &[u8] = b"file";

/// Opens the file, reads it, or closes it, as it is told; of reads it says how many needed no server, and the first byte.
pub(crate) fn run(url: &str) -> ExitCode {
    let Ok(session) = session_by_shm(url, |_| {}) else { return ExitCode::FAILURE };
    let mut file = None;
    for line in std::io::stdin().lines().map_while(Result::ok) {
        match line.as_str() {
            "open" => file = session.open(NAME, OpenOptions::read()).ok(),
            "close" => file = None,
            _ => {}
        }
        let (mut into, before) = ([0; BLOCK], session.info().optimistic.hits);
        let mut read = |block: usize| {
            let file = file.as_ref()?;
            file.read_at(&mut into, (block * BLOCK) as u64).ok()
        };
        // What it asks for at first it is told of then.
        let count = (0..3 * BLOCKS).filter_map(|number| read(number % BLOCKS)).count();
        println!("{} {count} {}", session.info().optimistic.hits - before, into[0]);
    }
    ExitCode::SUCCESS
}

struct Loser {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Loser {
    fn start(program: &std::path::Path, url: &str) -> Loser {
        let mut command = Command::new(program);
        command.args([MODE, url]).uid(USER).gid(USER).current_dir("/");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().expect("it starts");
        let to = child.stdin.take().expect("piped");
        let from = BufReader::new(child.stdout.take().expect("piped"));
        Loser { child, to, from }
    }

    /// Reads that needed no server, reads, and what they saw.
    fn ask(&mut self, what: &str) -> Result<(u64, usize, u8), String> {
        let mut line = String::new();
        writeln!(self.to, "{what}").map_err(|error| error.to_string())?;
        self.from.read_line(&mut line).map_err(|error| error.to_string())?;
        let mut words = line.split_whitespace();
        let mut next = || words.next().ok_or_else(|| format!("the other user's program: '{line}'"));
        let numbers = (next()?.parse(), next()?.parse(), next()?.parse());
        let (Ok(hits), Ok(reads), Ok(byte)) = numbers else { return Err(line) };
        Ok((hits, reads, byte))
    }
}

impl Drop for Loser {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn lost(mode: Mode) -> Vec<Line> {
    let line =
        Line::new("lost", "a file whose mode or owner changes", "no read of it without the server");
    if !nix::unistd::geteuid().is_root() {
        return vec![line.skipped("needs root")];
    }
    let dir = tempfile::tempdir().expect("tempdir");
    let (path, program) = (dir.path().join("file"), dir.path().join("program"));
    std::fs::write(&path, vec![1; BLOCKS * BLOCK]).expect("write");
    copy(std::env::current_exe().expect("this program"), &program).expect("a copy");
    for path in [dir.path(), &program] {
        set_permissions(path, Permissions::from_mode(0o755)).expect("a mode");
    }
    chown(&path, Some(USER), Some(USER)).expect("an owner");
    dafs_tests::served::as_in_use(true);
    let server = Served::start(dir.path(), &["--arena", "128m"]);
    let root = session(&server.at(""));
    let mut loser = Loser::start(&program, &server.at("?server_uid=0"));
    let outcome = rounds(&root, &mut loser, mode.pick(100, 2000));
    let longest = Line::new("lost", "how long the change takes", "≤ 10 ms").timing();
    match outcome {
        Ok((mut taken, reads)) => {
            taken.sort();
            let (median, last) = (taken[taken.len() / 2], taken[taken.len() - 1]);
            let measured = format!("median {median:.2?}, longest {last:.2?} of {}", taken.len());
            let none = format!("none in {reads} reads after {} changes", taken.len());
            vec![
                line.measured(none, true),
                longest.measured(measured, last <= Duration::from_millis(10)),
            ]
        }
        Err(error) => vec![line.measured(error, false)],
    }
}

/// How long each change took, and how many reads there were after them.
fn rounds(
    root: &Session,
    loser: &mut Loser,
    count: usize,
) -> Result<(Vec<Duration>, usize), String> {
    let failed = |error: dafs_client::Error| error.to_string();
    let set = |uid: u32, mode: u32| {
        let set = SetAttr { mode: Some(mode), uid: Some(uid), ..SetAttr::default() };
        root.set_attr(NAME, set, false).map_err(failed)
    };
    let (mut taken, mut reads) = (Vec::new(), 0);
    for round in 0..count {
        // What everybody may open, or what is its own; it loses that by the mode, or by the owner.
        let (uid, of_all) = if round % 2 == 0 { (0, 0o644) } else { (USER, 0o600) };
        set(uid, of_all)?;
        let seen = loser.ask("open")?;
        if seen.0 < BLOCKS as u64 {
            return Err(format!("it is not read without the server: {seen:?}"));
        }
        let begin = Instant::now();
        set(0, 0o600)?;
        taken.push(begin.elapsed());
        let (now, options) = (round as u8 | 1, OpenOptions { write: true, ..OpenOptions::read() });
        let file = root.open(NAME, options).map_err(failed)?;
        file.write_at(&[now; BLOCKS * BLOCK], 0).map_err(failed)?;
        let after = loser.ask("read")?;
        if after != (0, 3 * BLOCKS, now) {
            return Err(format!(
                "change {round}: without the server, reads, what: {after:?}, not {now}"
            ));
        }
        reads += after.1;
        loser.ask("close")?;
    }
    Ok((taken, reads))
}
