//! Exceptions: what went wrong, with errno and name, and what to do about it.

use dafs_client::Error;
use dafs_protocol::Status;
use pyo3::exceptions::{PyOSError, PyValueError};
use pyo3::prelude::*;

use crate::path;

/// The `OSError` that says the same, of the subclass that belongs to its number.
pub fn raise(py: Python<'_>, error: &Error, about: Option<&[u8]>) -> PyErr {
    let about = match error {
        Error::Status { path: Some(path), .. } => Some(about.unwrap_or(path)),
        _ => about,
    };
    let text = match cure(error) {
        Some(cure) => format!("{error}: {cure}"),
        None => error.to_string(),
    };
    match about.map(|about| path::text(py, about)) {
        Some(Ok(name)) => PyOSError::new_err((error.errno(), text, name.unbind())),
        Some(Err(error)) => error,
        None => PyOSError::new_err((error.errno(), text)),
    }
}

/// What its user can do, where the error alone does not say it.
fn cure(error: &Error) -> Option<&'static str> {
    Some(match error {
        Error::Connect { refused: true, .. } => {
            "nobody listens there; start a server with 'dafs serve DIR', or look at host and port"
        }
        Error::Connect { .. } => {
            "look whether the server runs; retry=TIME says how long to wait for it"
        }
        Error::Auth(_) => "give key_file= or key=, the same as the server's",
        Error::Interrupted => "the session was closed while the call waited",
        Error::Status { status, .. } => match status {
            Status::WritesLost => {
                "write again what was written since the last flush or fsync that succeeded"
            }
            Status::OutcomeUnknown => "look whether it was done before doing it again",
            Status::LocksLost => "open the file again",
            Status::NotAuthorized => "connect with the key of the server, key_file= or key=",
            _ => return None,
        },
        _ => return None,
    })
}

/// For objects that were closed, as `io` has it.
pub fn closed(what: &str) -> PyErr {
    PyValueError::new_err(format!("I/O operation on closed {what}"))
}

/// For objects of a parent process.
pub fn forked(about: Option<&[u8]>, py: Python<'_>) -> PyErr {
    let text = "the session belongs to the parent process: connect again after a fork";
    match about.and_then(|about| path::text(py, about).ok()) {
        Some(name) => PyOSError::new_err((libc::ECHILD, text, name.unbind())),
        None => PyOSError::new_err((libc::ECHILD, text)),
    }
}
