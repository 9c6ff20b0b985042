//! The side of an attacker: a process of its own, without rights and at the lowest priority. What
//! it wants of somebody else, it has the other process do.

use std::io::Write;
use std::process::ExitCode;

use dafs_tests::marks::Marks;

use crate::frames;
use crate::kinds;

/// What an attacker has.
pub(crate) struct Attack {
    pub url: String,
}

impl Attack {
    /// Has the other process do something, and waits for it.
    pub(crate) fn ask(&self, what: &str) -> Result<(), String> {
        tell(what)?;
        let mut answer = String::new();
        std::io::stdin().read_line(&mut answer).map_err(|error| error.to_string())?;
        match answer.trim_end() {
            "ok" => Ok(()),
            "" => Err("nobody answers".into()),
            wrong => Err(wrong.into()),
        }
    }
}

fn tell(line: &str) -> Result<(), String> {
    let mut out = std::io::stdout();
    let written = writeln!(out, "{}", line.replace('\n', " ")).and_then(|()| out.flush());
    written.map_err(|error| error.to_string())
}

/// Runs the kind of this name to its end. Last it says how many connections it had at a time, and
/// what is wrong.
pub(crate) fn run(name: &str, url: &str, marks_of: &str) -> ExitCode {
    frames::look_for(Marks::new(marks_of.parse().unwrap_or(0)));
    let Some(kind) = kinds::named(name) else { return ExitCode::from(2) };
    let result = (kind.lie)(&Attack { url: url.into() });
    let result = result.and(match frames::seen() {
        Some(what) => Err(format!("seen: {what}")),
        None => Ok(()),
    });
    let wrong = result.err().unwrap_or_default();
    match tell(&format!("end {} {wrong}", frames::connections())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}
