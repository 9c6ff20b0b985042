//! What goes wrong, as people read it: `dafs cp: dafs://h/x: no space left on device`.

use std::fmt;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use dafs_client::Error;
use dafs_protocol::Status;

use crate::interrupt::{self, INTERRUPTED};
use crate::progress;

/// Something failed.
pub const FAILED: u8 = 1;
/// Wrong usage.
pub const USAGE: u8 = 2;
/// Cannot connect or authenticate.
pub const CONNECT: u8 = 3;
/// A server met a defect of its own.
pub const PANICKED: u8 = 101;
/// Nobody reads standard output any more: as a program ended by SIGPIPE.
pub const PIPE: u8 = 141;

static COMMAND: OnceLock<&'static str> = OnceLock::new();
static WORST: AtomicU8 = AtomicU8::new(0);

/// A failure with what it is about.
#[derive(Debug, Clone)]
pub struct Failure {
    /// A URL, a path, or empty.
    pub about: String,
    /// What happened.
    pub text: String,
    /// How the program should exit if nothing worse happens.
    pub code: u8,
}

impl Failure {
    /// The user asked for something impossible.
    pub fn usage(text: impl Into<String>) -> Failure {
        Failure { about: String::new(), text: text.into(), code: USAGE }
    }

    /// Exit status 1 without a word: what there is to say is said.
    pub fn silent() -> Failure {
        Failure { about: String::new(), text: String::new(), code: FAILED }
    }

    /// Something about `about` failed.
    pub fn about(about: impl fmt::Display, error: impl Into<Cause>) -> Failure {
        let cause = error.into();
        Failure { about: about.to_string(), text: cause.text(), code: cause.code() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.about.is_empty() {
            write!(f, "{}: ", self.about)?;
        }
        f.write_str(&self.text)
    }
}

/// An error of either side.
#[derive(Debug)]
pub enum Cause {
    /// Of this machine.
    Local(io::Error),
    /// Of the session or the server.
    Remote(Error),
    /// Decided here.
    Text(String),
    /// The user wants to stop.
    Interrupted,
}

impl Cause {
    /// The Linux errno that says the same; 0 where there is none.
    pub fn errno(&self) -> i32 {
        match self {
            Cause::Local(error) => error.raw_os_error().unwrap_or(0),
            Cause::Remote(error) => error.errno(),
            Cause::Text(_) => 0,
            Cause::Interrupted => libc::EINTR,
        }
    }

    /// True when the session is of no use any more, and whoever has more to do should not try.
    pub fn is_final(&self) -> bool {
        match self {
            Cause::Remote(error) => error.exit_code() != FAILED,
            Cause::Interrupted => true,
            _ => false,
        }
    }

    /// True when a server was lost and looked for in vain, for as long as the user allows.
    pub fn is_lost(&self) -> bool {
        matches!(self, Cause::Remote(error) if error.exit_code() == CONNECT)
    }

    /// True when the server restarted and nobody knows whether it was done: what can be done
    /// twice should be done again.
    pub fn is_lost_by_restart(&self) -> bool {
        match self {
            Cause::Remote(error) => {
                matches!(error.status(), Some(Status::OutcomeUnknown | Status::WritesLost))
            }
            _ => false,
        }
    }

    /// As people read it.
    pub fn text(&self) -> String {
        match self {
            Cause::Local(error) => io_text(error),
            Cause::Remote(error) => error.to_string(),
            Cause::Text(text) => text.clone(),
            Cause::Interrupted => "interrupted".into(),
        }
    }

    fn code(&self) -> u8 {
        match self {
            Cause::Local(error) if error.kind() == io::ErrorKind::BrokenPipe => PIPE,
            Cause::Local(_) | Cause::Text(_) => FAILED,
            Cause::Remote(error) => error.exit_code(),
            Cause::Interrupted => INTERRUPTED,
        }
    }
}

impl From<io::Error> for Cause {
    fn from(error: io::Error) -> Cause {
        Cause::Local(error)
    }
}

impl From<Error> for Cause {
    fn from(error: Error) -> Cause {
        match error {
            Error::Interrupted => Cause::Interrupted,
            error => Cause::Remote(error),
        }
    }
}

impl From<&str> for Cause {
    fn from(text: &str) -> Cause {
        Cause::Text(text.into())
    }
}

impl From<String> for Cause {
    fn from(text: String) -> Cause {
        Cause::Text(text)
    }
}

/// Standard output failed.
impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::about("standard output", error)
    }
}

/// The system's words in lower case, without the number.
fn io_text(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or(&text);
    let mut chars = text.chars();
    match (error.raw_os_error(), chars.next()) {
        (Some(_), Some(first)) => first.to_lowercase().chain(chars).collect(),
        _ => text.to_owned(),
    }
}

/// Without the numbers that Rust adds to the system's words.
pub fn without_numbers(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut clean = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((number, rest)) if number.bytes().all(|b| b.is_ascii_digit()) => clean += rest,
            _ => clean = clean + " (os error " + part,
        }
    }
    clean
}

/// The command for messages.
pub fn set_command(name: &'static str) {
    let _ = COMMAND.set(name);
}

/// Tells the user, and remembers it for the exit code. What follows from an interrupt is not
/// told: the user knows.
pub fn report(failure: &Failure) {
    let interrupted = interrupt::requested() && !interrupt::is_the_way_to_end();
    let silent = failure.about.is_empty() && failure.text.is_empty();
    if failure.code != PIPE && !interrupted && !silent {
        let command = COMMAND.get().copied().unwrap_or("");
        progress::message(&without_numbers(&format!("dafs {command}: {failure}")));
    }
    WORST.fetch_max(failure.code, Ordering::Relaxed);
}

/// Reports a failure, if it is one, and tells how to exit.
pub fn exit_code(result: Result<(), Failure>) -> u8 {
    if let Err(failure) = &result {
        report(failure);
    }
    if interrupt::requested() && !interrupt::is_the_way_to_end() {
        return INTERRUPTED;
    }
    WORST.load(Ordering::Relaxed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_errors_read_as_a_part_of_a_sentence() {
        let error = io::Error::from_raw_os_error(libc::ENOSPC);
        let failure = Failure::about("/tmp/x", error);
        assert_eq!(failure.to_string(), "/tmp/x: no space left on device");
        assert_eq!(failure.code, FAILED);
    }

    #[test]
    fn numbers_of_errors_are_left_out() {
        let text = "a (os error 2): b (os error 98) (os error x) c (os error 1";
        assert_eq!(without_numbers(text), "a: b (os error x) c (os error 1");
    }

    #[test]
    fn refused_connections_have_a_code_of_their_own() {
        let refused = Error::Connect { refused: true, reason: "nobody listens".into() };
        assert_eq!(Failure::about("dafs://h/", refused).code, CONNECT);
        assert_eq!(Failure::usage("no").code, USAGE);
    }
}
