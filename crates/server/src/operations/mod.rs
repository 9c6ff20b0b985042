//! What requests ask for, by what it is about. Each file has the handlers of its operations, which
//! the chain of a request calls one after the other.

mod cache;
pub(crate) mod file;
mod list;
mod lock;
mod name;
mod range;
mod references;
mod write;
