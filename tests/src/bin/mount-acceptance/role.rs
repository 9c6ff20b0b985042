//! Processes of this binary beside itself, where many clients must be many processes.

use std::ffi::OsString;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use dafs_tests::patient;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

/// What a role does with its arguments; what it says goes to its standard output.
pub(crate) type Role = fn(&Path, &[u64]) -> Result<String, String>;

/// A running role.
pub(crate) struct Player {
    process: Child,
    said: Option<JoinHandle<String>>,
}

/// Starts `mount-acceptance --role NAME DIRECTORY NUMBERS…`.
pub(crate) fn play(name: &str, dir: &Path, numbers: &[u64]) -> Player {
    let mut args: Vec<OsString> = vec!["--role".into(), name.into(), dir.into()];
    args.extend(numbers.iter().map(|number| number.to_string().into()));
    let own = std::env::current_exe().expect("its own path");
    // A shell without job control lets what it starts with `&` ignore SIGINT.
    let mut command = Command::new("env");
    command.arg("--default-signal=INT").arg(own);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped());
    let mut process = command.spawn().expect("itself again");
    let mut out = process.stdout.take().expect("piped");
    let said = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = out.read_to_string(&mut text);
        text.trim_end().to_string()
    });
    Player { process, said: Some(said) }
}

impl Player {
    /// Waits for its end; what it said, or what went wrong.
    pub(crate) fn end(&mut self, limit: Duration) -> Result<String, String> {
        let Some(status) = self.ended(patient(limit)) else {
            self.kill();
            return Err(format!("no end after {limit:?}"));
        };
        let said = self.said.take().expect("asked once").join().expect("a reader of a pipe");
        match status.code() {
            Some(0) => Ok(said),
            Some(_) if !said.is_empty() => Err(said),
            _ => Err(format!("ended with {status}")),
        }
    }

    /// How it ended, if it does within so long a time.
    pub(crate) fn ended(&mut self, limit: Duration) -> Option<ExitStatus> {
        let start = Instant::now();
        loop {
            match self.process.try_wait().expect("wait") {
                Some(status) => return Some(status),
                None if start.elapsed() >= limit => return None,
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        }
    }

    /// Where in the kernel its threads are, as far as the system tells.
    pub(crate) fn waits_in(&self) -> String {
        let tasks = format!("/proc/{}/task", self.process.id());
        let tasks = std::fs::read_dir(tasks).into_iter().flatten().flatten();
        let told = |task: &Path, what: &str| {
            std::fs::read_to_string(task.join(what)).unwrap_or_default().trim().replace('\n', " ")
        };
        let tasks = tasks.map(|task| {
            let (stat, stack) = (told(&task.path(), "stat"), told(&task.path(), "stack"));
            let state = stat.rsplit_once(") ").map_or("", |(_, rest)| &rest[..1]).to_owned();
            format!("{state} {} {stack}", told(&task.path(), "wchan"))
        });
        tasks.collect::<Vec<_>>().join("; ")
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.process.id()).expect("a pid"));
        let _ = nix::sys::signal::kill(pid, signal);
    }

    fn kill(&mut self) {
        let _ = (self.process.kill(), self.process.wait());
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Waits for all; what each said.
pub(crate) fn all_end(players: &mut [Player], limit: Duration) -> Result<Vec<String>, String> {
    players.iter_mut().map(|player| player.end(limit)).collect()
}

/// The same clock in all processes of this machine, in nanoseconds.
pub(crate) fn now() -> u64 {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("a clock");
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}
