//! What a call or a session can fail with.

use dafs_protocol::Status;

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server answered with an error. Nothing is wrong with the session.
    #[error("{status}")]
    Status {
        /// Its answer.
        status: Status,
        /// What it is about, where the call knows.
        path: Option<Vec<u8>>,
    },
    /// There is no connection, and none could be made in the time that was allowed.
    #[error("cannot connect: {reason}")]
    Connect {
        /// True where nobody listens at the address.
        refused: bool,
        /// For people.
        reason: String,
    },
    /// One of the two ends could not prove who it is, or may not use the export.
    #[error("{0}")]
    Auth(String),
    /// [`SessionOptions::cancel`](crate::SessionOptions::cancel) was set, or the session was
    /// closed while the call was under way.
    #[error("interrupted")]
    Interrupted,
    /// The time that the caller allowed is over.
    #[error("timed out")]
    TimedOut,
    /// An argument, an option or a URL is wrong.
    #[error("{0}")]
    Config(String),
    /// The server said something that it may not say.
    #[error("the server violated the protocol: {0}")]
    PeerProtocol(String),
    /// This machine refused memory, descriptors or the device.
    #[error("{0}")]
    Local(String),
}

/// Why a session could not be made.
pub type SessionError = Error;

/// What calls return.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// From a status, with nothing known about the path.
    pub fn from_status(status: Status) -> Error {
        Error::Status { status, path: None }
    }

    /// The server's status, where it is one.
    pub fn status(&self) -> Option<Status> {
        match self {
            Error::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// The same error, about `path`.
    #[must_use]
    pub fn with_path(self, about: &[u8]) -> Error {
        match self {
            Error::Status { status, .. } => Error::Status { status, path: Some(about.to_vec()) },
            other => other,
        }
    }

    /// The Linux errno that says the same.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Status { status, .. } => status.errno(),
            Error::Connect { refused: true, .. } => 111,
            Error::Connect { .. } => 107,
            Error::Auth(_) => 13,
            Error::Interrupted => 4,
            Error::TimedOut => 110,
            Error::Config(_) => 22,
            Error::PeerProtocol(_) => 71,
            Error::Local(_) => 12,
        }
    }

    /// How a program that fails with this should exit: 1 something failed, 2 wrong usage,
    /// 3 cannot connect or authenticate, 130 interrupted.
    pub fn exit_code(&self) -> u8 {
        match self {
            Error::Connect { .. } | Error::Auth(_) => 3,
            Error::Config(_) => 2,
            Error::Interrupted => 130,
            _ => 1,
        }
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Error {
        Error::from_status(status)
    }
}

impl From<Error> for std::io::Error {
    fn from(error: Error) -> std::io::Error {
        let kind = std::io::Error::from_raw_os_error(error.errno()).kind();
        std::io::Error::new(kind, error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_tell_how_to_exit() {
        let refused = Error::Connect { refused: true, reason: "nobody listens".into() };
        assert_eq!(refused.exit_code(), 3);
        assert_eq!(Error::Interrupted.exit_code(), 130);
        assert_eq!(Error::Config("x".into()).exit_code(), 2);
        let full = Error::from(Status::NoSpc);
        assert_eq!(full.exit_code(), 1);
        assert_eq!(full.to_string(), "no space left on device (server disk full)");
        assert_eq!(std::io::Error::from(full).kind(), std::io::ErrorKind::StorageFull);
    }
}
