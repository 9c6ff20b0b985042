//! Why a call failed: a number for the program, words for people.

use std::cell::RefCell;

use dafs_client::Error;
use dafs_protocol::Status;

/// What calls of this library return inside.
pub type Outcome<T> = Result<T, Failure>;

/// A call that failed.
#[derive(Debug, Clone)]
pub struct Failure {
    /// Positive.
    pub errno: i32,
    /// The server's status, where it is one; otherwise 0.
    pub reason: u32,
    text: Text,
}

#[derive(Debug, Clone)]
enum Text {
    /// What is wrong, and what to do.
    Plain(&'static str),
    /// As said by the client.
    Of(Box<Error>),
    /// About something with a name.
    Owned(String),
}

thread_local! {
    static LAST: RefCell<Option<Failure>> = const { RefCell::new(None) };
}

impl Failure {
    /// Of an argument, or of this library's own state.
    pub fn new(errno: i32, text: &'static str) -> Failure {
        Failure { errno, reason: 0, text: Text::Plain(text) }
    }

    /// As [`new`](Self::new), about something with a name.
    pub fn about(errno: i32, text: String) -> Failure {
        Failure { errno, reason: 0, text: Text::Owned(text) }
    }

    /// An argument that may not be so.
    pub fn invalid(text: &'static str) -> Failure {
        Failure::new(libc::EINVAL, text)
    }

    /// A pointer that must not be null.
    pub fn null(what: &str) -> Failure {
        Failure::about(libc::EINVAL, format!("{what} is a null pointer: give the address of one"))
    }

    /// The library's own fault.
    pub fn internal(text: &str) -> Failure {
        let text =
            format!("internal error: {text}; please report it with the program that showed it");
        Failure::about(libc::EIO, text)
    }

    /// The words for people.
    pub fn text(&self) -> String {
        match &self.text {
            Text::Plain(text) => (*text).into(),
            Text::Owned(text) => text.clone(),
            Text::Of(error) => told(error),
        }
    }

    /// Remembers it as this thread's last one; the number that the program gets.
    pub fn tell(self) -> i32 {
        let errno = self.errno;
        // Without a thread's memory, at its very end, nobody can ask for the words.
        let _ = LAST.try_with(|last| last.replace(Some(self)));
        -errno
    }

    /// The last one of this thread.
    pub fn last() -> Option<Failure> {
        LAST.try_with(|last| last.borrow().clone()).ok().flatten()
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let errno = match &error {
            // Nothing interrupts calls here but the end of their session, and who cancels them.
            Error::Interrupted => libc::ECANCELED,
            error => error.errno(),
        };
        let reason = error.status().map_or(0, Status::code);
        Failure { errno, reason, text: Text::Of(Box::new(error)) }
    }
}

impl From<Status> for Failure {
    fn from(status: Status) -> Failure {
        Error::from(status).into()
    }
}

/// What is wrong, and what to do about it where that is known.
fn told(error: &Error) -> String {
    let name = match error {
        Error::Status { path: Some(path), .. } => format!("'{}': ", String::from_utf8_lossy(path)),
        _ => String::new(),
    };
    match cure(error) {
        Some(cure) => format!("{name}{error}; {cure}"),
        None => format!("{name}{error}"),
    }
}

fn cure(error: &Error) -> Option<&'static str> {
    Some(match error {
        Error::Connect { refused: true, .. } => {
            "start the server (dafs serve DIRECTORY), or correct host and port of the URL"
        }
        Error::Connect { .. } => {
            "see that the server runs and is reached, or let retry_ms be longer; then open a new session"
        }
        Error::Auth(_) => "give the server's key in the options, or ask who runs it for access",
        Error::Interrupted => "the session was closed, or the call cancelled",
        Error::Status { status, .. } => match status {
            Status::WritesLost => "write again what was written since the last fsync",
            Status::OutcomeUnknown => "look at what is there, and do it again if it was not done",
            Status::LocksLost => "close the file, open it and lock it again",
            Status::Access | Status::NotAuthorized => {
                "ask the owner for access, or act as another user"
            }
            Status::Stale => "open it again by its name",
            Status::BadF => "open the file for what is to be done with it",
            _ => return None,
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_name_the_path_and_the_cure() {
        let failure = Failure::from(Error::from(Status::Access).with_path(b"a/b"));
        assert_eq!((failure.errno, failure.reason), (libc::EACCES, Status::Access.code()));
        let text = failure.text();
        assert!(text.starts_with("'a/b': permission denied; ask the owner"), "{text}");
        assert_eq!(failure.tell(), -libc::EACCES);
        assert_eq!(Failure::last().map(|last| last.errno), Some(libc::EACCES));
        assert_eq!(Failure::from(Error::Interrupted).errno, libc::ECANCELED);
    }
}
