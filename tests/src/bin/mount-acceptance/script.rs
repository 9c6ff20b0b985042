//! Programs and the scripts in tests/suites, run with a limit of time.
//!
//! A script says on its standard output what is to happen: `restart` and `crash` end the server
//! (in order, by kill -9) and start it again while the script goes on; the last other line is
//! what it measured. What its programs print goes to standard error.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use dafs_tests::mounted::Ending;
use dafs_tests::{Place, patient};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::Mode;

/// The root of this repository.
pub(crate) fn root() -> PathBuf {
    if let Some(copy) = std::env::var_os("DAFS_TEST_TREE") {
        return copy.into();
    }
    let mut path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    path.pop();
    path
}

/// Where scripts/setup.sh installs programs.
pub(crate) fn tool(name: &str) -> PathBuf {
    root().join("target/tools/bin").join(name)
}

/// What a program printed, both ways, and whether it succeeded.
pub(crate) struct Printed {
    pub ok: bool,
    pub text: String,
}

impl Printed {
    /// The end of what was printed, for people.
    pub(crate) fn end(&self) -> String {
        let lines: Vec<&str> = self.text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(3)..].join(" / ")
    }
}

/// A program on its own, with all its children.
struct Group(Child);

impl Group {
    fn kill(&mut self) {
        let pid = i32::try_from(self.0.id()).expect("a pid");
        let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
        let _ = self.0.wait();
    }
}

/// Runs a program in a group of its own; `meanwhile` is called with each line of its output, or
/// about every 50 ms without one, until it ends.
///
/// # Errors
/// It cannot be started, or does not end in time; then its group is killed.
fn run_with(
    mut command: Command,
    log: &Path,
    limit: Duration,
    mut meanwhile: impl FnMut(Option<String>),
) -> Result<bool, String> {
    let errors = File::create(log).map_err(|error| error.to_string())?;
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(errors);
    let name = command.get_program().to_string_lossy().into_owned();
    let mut group = Group(command.spawn().map_err(|error| format!("{name}: {error}"))?);
    let out = group.0.stdout.take().expect("piped");
    let (lines, said) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            let _ = lines.send(line);
        }
    });
    let (start, limit) = (Instant::now(), patient(limit));
    loop {
        match said.recv_timeout(Duration::from_millis(50)) {
            Ok(line) => meanwhile(Some(line)),
            Err(RecvTimeoutError::Timeout) => meanwhile(None),
            Err(RecvTimeoutError::Disconnected) => break,
        }
        if start.elapsed() > limit {
            group.kill();
            return Err(format!("{name}: no end after {limit:?}"));
        }
    }
    let status = group.0.wait().map_err(|error| error.to_string())?;
    // Whoever it left behind.
    group.kill();
    Ok(status.success())
}

/// Runs a program to its end; the server of `place` ends and starts again `restarts` times
/// meanwhile, `every` so often.
pub(crate) fn program(
    place: &mut Place,
    command: Command,
    limit: Duration,
    (restarts, every, ending): (u32, Duration, Ending),
) -> Result<(Printed, u32), String> {
    let log = place.beside().join("log");
    let mut text = String::new();
    let mut done = 0;
    let mut last = Instant::now();
    let ok = run_with(command, &log, limit, |line| {
        if let Some(line) = line {
            text.push_str(&line);
            text.push('\n');
        }
        if done < restarts && last.elapsed() >= every {
            place.restart(ending);
            done += 1;
            last = Instant::now();
        }
    })?;
    text.push_str(&std::fs::read_to_string(&log).unwrap_or_default());
    Ok((Printed { ok, text }, done))
}

/// Runs `tests/suites/NAME DIRECTORY ARGS…`; answers its last line, with how often the server
/// was restarted.
///
/// # Errors
/// The end of what it printed when it fails.
pub(crate) fn suite(
    place: &mut Place,
    mode: Mode,
    name: &str,
    args: &[&Path],
    disturbed: bool,
) -> Result<String, String> {
    let mut command = Command::new("bash");
    command.arg(root().join("tests/suites").join(name)).arg(place.path()).args(args);
    command.env("SUITE_SIZE", mode.pick("short", "long")).env("SUITE_BESIDE", place.beside());
    command.env("SUITE_DISTURBED", if disturbed { "yes" } else { "" });
    let log = place.beside().join("log");
    let (mut restarts, mut kills, mut last) = (0, 0, String::new());
    let limit = Duration::from_secs(mode.pick(100, 3600));
    let ok = run_with(command, &log, limit, |line| match line.as_deref() {
        None => {}
        Some("restart") => {
            place.restart(Ending::Orderly);
            restarts += 1;
        }
        Some("crash") => {
            place.restart(Ending::Killed);
            kills += 1;
        }
        Some(text) => last = text.to_string(),
    });
    let text = std::fs::read_to_string(&log).unwrap_or_default();
    match ok {
        Ok(true) if restarts + kills == 0 => Ok(last),
        Ok(true) => Ok(format!("{last}, {restarts} restarts, {kills} kills")),
        Ok(false) => Err(Printed { ok: false, text }.end()),
        Err(error) => Err(format!("{error}: {}", Printed { ok: false, text }.end())),
    }
}
