//! A mount through the kernel's FUSE: directories of this machine that other programs use.
//!
//! [`kernel`] speaks the kernel's protocol and knows nothing of DAFS: it mounts, reads requests
//! from `/dev/fuse`, calls a [`FileSystem`](kernel::FileSystem) and writes its answers.
//! [`null`] is a file system with one file of zeros: what the kernel and the loop cost alone.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

pub mod fs;
pub mod kernel;
pub mod null;
#[cfg_attr(not(feature = "planted"), allow(unreachable_pub))]
mod planted;
mod sys;

#[cfg(feature = "planted")]
pub use planted::{Defect, plant};
