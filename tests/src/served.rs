//! A server process.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dafs_fabric::poison;
use nix::sys::signal::{Signal, kill};
use nix::sys::statfs::{FUSE_SUPER_MAGIC, statfs};
use nix::unistd::Pid;

use crate::{command, marked, sys};

/// See [`as_in_use`].
static AS_IN_USE: AtomicBool = AtomicBool::new(false);

/// From now on (or not any more) servers of this process do not mark their free memory, as they do
/// otherwise, whatever the environment says, and nobody looks for that: for times and memory that
/// are measured. Each bar begins without.
pub fn as_in_use(yes: bool) {
    AS_IN_USE.store(yes, Ordering::Relaxed);
    poison::look_at_data(!yes);
}

/// How servers, and who reads from them, mark free memory: for `DAFS_POISON`.
pub(crate) fn marks() -> &'static str {
    if AS_IN_USE.load(Ordering::Relaxed) { "0" } else { marked::pattern() }
}

/// `dafs serve` as a process of its own, on a free port of loopback, killed when dropped.
#[derive(Debug)]
pub struct Served {
    child: Child,
    /// As printed, ending in `/`.
    pub url: String,
    /// The served directory.
    pub dir: PathBuf,
    args: Vec<String>,
    /// What is served was not looked at since the start, and free memory is marked.
    unlooked: bool,
}

impl Served {
    /// Serves `dir` with further arguments, or what they name by `--export`.
    ///
    /// # Panics
    /// When it does not start within ten seconds.
    pub fn start(dir: &Path, args: &[&str]) -> Served {
        Served::start_with_env(dir, args, &[])
    }

    /// As [`start`](Self::start), with environment variables.
    ///
    /// # Panics
    /// As `start`.
    pub fn start_with_env(dir: &Path, args: &[&str], env: &[(&str, &Path)]) -> Served {
        let args = args.iter().map(ToString::to_string).collect();
        Served::start_at(dir, "tcp://127.0.0.1:0", args, env)
    }

    fn start_at(dir: &Path, listen: &str, args: Vec<String>, env: &[(&str, &Path)]) -> Served {
        let mut all = vec!["serve".to_string(), "--listen".into(), listen.into()];
        all.extend(args.iter().cloned());
        all.extend(wanted_by_environment(&args));
        if !args.iter().any(|arg| arg == "--state") {
            let user = nix::unistd::geteuid();
            let state = std::env::temp_dir().join(format!("dafs-tests-state-{user}"));
            all.extend(["--state".into(), state.display().to_string()]);
        }
        if !args.iter().any(|arg| arg == "--export") {
            all.push(dir.display().to_string());
        }
        let mut command = command(&all);
        if let Some(library) = std::env::var_os("DAFS_TEST_SERVE_PRELOAD") {
            command.env("LD_PRELOAD", library);
        }
        let mut child = command
            .envs(env.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::inherit())
            .spawn()
            .expect("the dafs binary is built: cargo build --release -p dafs-cli");
        let out = child.stdout.take().expect("piped");
        let mut lines = BufReader::new(out).lines();
        let url = lines.next().and_then(Result::ok).unwrap_or_default();
        assert!(url.starts_with("dafs://") && url.ends_with('/'), "first line of serve: '{url}'");
        // Keeps reading, so that the server never meets a closed pipe.
        std::thread::spawn(move || lines.for_each(drop));
        let unlooked = !AS_IN_USE.load(Ordering::Relaxed);
        Served { child, url, dir: dir.to_path_buf(), args, unlooked }
    }

    /// The URL of a path below the served directory (plain characters only), with the options
    /// that `DAFS_TEST_OPTIONS` names (`?rdma_read=off`), so that whole suites run with them.
    pub fn at(&self, path: &str) -> String {
        let options = std::env::var("DAFS_TEST_OPTIONS").unwrap_or_default();
        format!("{}{path}{options}", self.url)
    }

    /// The process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// How the process ended, if it did.
    pub fn ended(&mut self) -> Option<std::process::ExitStatus> {
        self.child.try_wait().ok().flatten()
    }

    /// Sends a signal.
    ///
    /// # Panics
    /// When the process is gone.
    pub fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.child.id()).expect("a pid"));
        kill(pid, signal).expect("the server runs");
    }

    /// kill -9, and waits for the end.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Ctrl-C, and waits for the end.
    ///
    /// # Panics
    /// When it does not end well within 40 seconds, or free memory is in the served files.
    pub fn stop(&mut self) {
        let status = self.end();
        assert!(status.success(), "serve ended with {status}");
    }

    /// As [`stop`](Self::stop), where the disk may not have taken all that was written: that is
    /// failure 1.
    ///
    /// # Panics
    /// As `stop`, on other failures.
    pub fn stop_with_losses(&mut self) {
        let status = self.end();
        assert!(matches!(status.code(), Some(0 | 1)), "serve ended with {status}");
    }

    fn end(&mut self) -> ExitStatus {
        self.signal(Signal::SIGINT);
        let start = Instant::now();
        loop {
            match self.child.try_wait().expect("wait") {
                Some(status) => break self.look().map_or(status, |found| panic!("{found}")),
                None if start.elapsed() > Duration::from_secs(40) => panic!("serve does not end"),
                None => std::thread::sleep(Duration::from_millis(10)),
            }
        }
    }

    /// Looks at what was served, once after each end, for memory that nobody filled.
    fn look(&mut self) -> Option<String> {
        // A file system that a test makes may stand still.
        let is_asked = std::mem::take(&mut self.unlooked)
            && statfs(&self.dir).is_ok_and(|found| found.filesystem_type() != FUSE_SUPER_MAGIC);
        is_asked.then(|| marked::found_in(&self.dir, sys::after_the_end)).flatten()
    }

    /// Starts again on the same port, after [`kill`](Self::kill) or [`stop`](Self::stop).
    pub fn restart(&mut self) {
        let authority = self.url.trim_start_matches("dafs://").trim_end_matches('/');
        let listen = format!("tcp://{authority}");
        // Nobody looks while another server writes there.
        self.unlooked = false;
        *self = Served::start_at(&self.dir.clone(), &listen, self.args.clone(), &[]);
    }

    /// The most resident memory so far (shared memory included), in bytes.
    pub fn peak_resident_bytes(&self) -> u64 {
        status_field(self.child.id(), "VmHWM:").unwrap_or(0) * 1024
    }

    /// Resident memory of its own now, in bytes: nothing that it shares with others.
    pub fn own_bytes(&self) -> u64 {
        status_field(self.child.id(), "RssAnon:").unwrap_or(0) * 1024
    }

    /// Resident memory now, in bytes.
    pub fn resident_bytes(&self) -> u64 {
        status_field(self.child.id(), "VmRSS:").unwrap_or(0) * 1024
    }
}

/// What `DAFS_TEST_SERVE` holds (`--datapath mmap --policy mq`), so that whole suites run with
/// it: options with a value each, without those that a test gives itself.
fn wanted_by_environment(given: &[String]) -> Vec<String> {
    let text = std::env::var("DAFS_TEST_SERVE").unwrap_or_default();
    let words: Vec<&str> = text.split_whitespace().collect();
    let wanted = words.chunks(2).filter(|pair| !given.iter().any(|arg| arg == pair[0]));
    wanted.flatten().map(ToString::to_string).collect()
}

fn status_field(pid: u32, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

impl Drop for Served {
    fn drop(&mut self) {
        self.kill();
        if !std::thread::panicking()
            && let Some(found) = self.look()
        {
            panic!("{found}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nothing(_: &std::fs::File, _: u64) -> Vec<u8> {
        Vec::new()
    }

    #[test]
    fn free_memory_is_found_in_files_and_behind_their_ends() {
        marked::pattern();
        let Some(digits) = poison::digits() else {
            return println!("skipped: DAFS_POISON says that nothing is marked");
        };
        let pattern: Vec<u8> = (0..digits.len())
            .step_by(2)
            .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits"))
            .collect();
        let dir = tempfile::tempdir().expect("tempdir");
        std::fs::create_dir(dir.path().join("below")).expect("mkdir");
        let file = dir.path().join("below/file");
        // Over the end of what is read at a time, and from any byte of the pattern on.
        let mut bytes = vec![1; (1 << 20) - 50];
        std::fs::write(&file, &bytes).expect("write");
        assert_eq!(marked::found_in(dir.path(), nothing), None);
        let behind = |_: &std::fs::File, len: u64| {
            assert_eq!(len, (1 << 20) - 50);
            pattern.clone()
        };
        assert!(marked::found_in(dir.path(), behind).is_some_and(|text| text.contains("after")));
        bytes.extend(pattern[33..].iter().chain(&pattern));
        bytes.resize(2 << 20, 1);
        std::fs::write(&file, &bytes).expect("write");
        assert!(marked::found_in(dir.path(), nothing).is_some_and(|text| text.contains("file")));
    }
}
