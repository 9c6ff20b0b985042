//! A server of this binary, over a directory of its own, perhaps in a memory cgroup.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use dafs_server::DataPath;

use super::cgroup::Cgroup;
use crate::failure::{Cause, Failure};

/// Runs until it is dropped; then it, its directory and its cgroup are removed.
pub struct Served {
    child: Child,
    pub url: String,
    directory: PathBuf,
    // After the process: a cgroup is removed when it is empty.
    _cgroup: Option<Cgroup>,
}

/// How to start one.
pub struct Start<'a> {
    /// Below this directory.
    pub parent: &'a Path,
    pub path: DataPath,
    pub arena_bytes: u64,
    /// Where the unifier's files are cached too, see `dafs serve --disk`.
    pub disk: &'a str,
    pub cgroup: Option<Cgroup>,
}

impl Served {
    pub fn start(start: Start<'_>) -> Result<Served, Failure> {
        let name = format!(".dafs-bench-unifier-{}-{}", std::process::id(), start.path);
        let directory = start.parent.join(name);
        let about = |error| Failure::about(directory.display(), Cause::Local(error));
        let (files, state) = (directory.join("files"), directory.join("state"));
        std::fs::create_dir_all(&files).map_err(about)?;
        let cleaner = Remove(&directory);
        std::fs::create_dir_all(&state).map_err(about)?;
        let mut command = command(start.cgroup.as_ref()).map_err(about)?;
        command
            .args(["serve", "--listen", "tcp://127.0.0.1:0", "--datapath", start.path.name()])
            .args(["--disk", start.disk])
            .args(["--workers", "1", "--arena", &start.arena_bytes.to_string(), "--state"])
            .args([&state, &files])
            .stdin(Stdio::null())
            .stdout(Stdio::piped());
        let mut child = command.spawn().map_err(about)?;
        let mut url = String::new();
        if let Some(out) = child.stdout.take() {
            let mut lines = BufReader::new(out);
            lines.read_line(&mut url).map_err(about)?;
            // Keeps reading, so that the server never meets a closed pipe.
            std::thread::spawn(move || lines.lines().for_each(drop));
        }
        std::mem::forget(cleaner);
        let url = url.trim_end().to_owned();
        let served = Served { child, url, directory, _cgroup: start.cgroup };
        if served.url.is_empty() {
            return Err(Failure::about("", Cause::from("the server did not start")));
        }
        Ok(served)
    }

    /// Nanoseconds of CPU time so far, of all its threads.
    pub fn cpu_ns(&self) -> Option<u64> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).ok()?;
        let of_task = |task: std::fs::DirEntry| -> Option<u64> {
            let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
            text.split_whitespace().next()?.parse().ok()
        };
        Some(tasks.flatten().filter_map(of_task).sum())
    }

    /// Bytes that it made the system read from disks so far.
    pub fn disk_bytes(&self) -> Option<u64> {
        let text = std::fs::read_to_string(format!("/proc/{}/io", self.child.id())).ok()?;
        let line = text.lines().find_map(|line| line.strip_prefix("read_bytes:"))?;
        line.trim().parse().ok()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // Nobody wants its data any more: no flush.
        let _ = self.child.kill();
        let _ = self.child.wait();
        drop(Remove(&self.directory));
    }
}

struct Remove<'a>(&'a Path);

impl Drop for Remove<'_> {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(self.0);
    }
}

/// This binary; in a cgroup from its first instruction.
fn command(cgroup: Option<&Cgroup>) -> std::io::Result<Command> {
    let program = std::env::current_exe()?;
    let Some(cgroup) = cgroup else { return Ok(Command::new(program)) };
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(cgroup.processes()).arg(program);
    Ok(command)
}
