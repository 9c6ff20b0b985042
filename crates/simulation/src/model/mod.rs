//! What the file system must look like, from what was asked and answered.

pub mod file;
pub mod locks;
pub mod names;

/// A point in the order of all submissions and answers. Two that differ are never equal.
pub type Moment = u64;

/// From the submission of a call to its answer.
#[derive(Debug, Clone, Copy)]
pub struct Span {
    /// Submitted.
    pub start: Moment,
    /// Answered.
    pub end: Moment,
}
