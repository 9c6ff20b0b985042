//! A client that works until it is killed: this program again.

use std::collections::VecDeque;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};

use dafs_client::OpenOptions;
use dafs_tests::client::session_by_shm;
use dafs_tests::sys::fork_one_that_keeps_everything;
use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

/// The first argument of such a process begins so.
pub(crate) const MODE: &str = "--shm-victim";
const WITH_CHILD: &str = "--shm-victim-with-child";
const BYTES: usize = 256 << 10;
/// Loans that it holds.
const LENT: usize = 3;

/// Reads and writes until it is killed, or its server is gone.
pub(crate) fn run(mode: &str, url: &str) -> ExitCode {
    let Ok(session) = session_by_shm(url, |_| {}) else { return ExitCode::FAILURE };
    let name = format!("victim-{}", std::process::id() % 64);
    let options = OpenOptions { read: true, write: true, create: true, ..OpenOptions::default() };
    let Ok(file) = session.open(name.as_bytes(), options) else { return ExitCode::FAILURE };
    let mut own = vec![5; BYTES];
    let Ok(shared) = session.buffer(BYTES) else { return ExitCode::FAILURE };
    let shared = shared.post();
    let mut lent = VecDeque::new();
    for round in 0.. {
        let at = round % 16 * BYTES as u64;
        let done = file.write_at(&own, at).and_then(|_| file.read_at(&mut own, at));
        // Into memory that the server reaches as it is, too.
        let read = file.read_span_at(shared.span(), at);
        // And where the server has it: some of that is held when the end comes.
        let loan = file.lend(at, BYTES).map(|loan| lent.push_back(loan));
        if done.and(read).is_err() || loan.is_err() {
            return ExitCode::FAILURE;
        }
        if lent.len() > LENT {
            lent.pop_front();
        }
        if round == 0 && mode == WITH_CHILD && fork_one_that_keeps_everything().is_err() {
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// Such a process, and its child.
pub(crate) struct Victim(Child);

impl Victim {
    pub(crate) fn start(url: &str, with_child: bool) -> Victim {
        // Others are to wait for a server, not for a processor.
        let mut command = Command::new("nice");
        command.args(["-n", "19"]).arg(std::env::current_exe().expect("this program"));
        command.arg(if with_child { WITH_CHILD } else { MODE }).arg(url).process_group(0);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        Victim(command.spawn().expect("it starts"))
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(i32::try_from(self.0.id()).expect("a pid"))
    }

    /// It alone, not its child.
    pub(crate) fn signal(&self, signal: Signal) {
        // It may have ended already.
        let _ = kill(self.pid(), signal);
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = killpg(self.pid(), Signal::SIGKILL);
        let _ = self.0.wait();
    }
}
