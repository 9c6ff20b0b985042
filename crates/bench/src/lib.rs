//! Benchmarks that come with DAFS: of files on any target, of the fabric, of plain sockets.
//!
//! * [`io`]: operations on files of a server or a local directory, one row per point.
//! * [`postmark`]: many small files, as mail servers have.
//! * [`target`]: what those two measure.
//! * [`optimistic`]: reads that ask the server beside reads that do not, as in \[ODAFS\].
//! * [`fabric`]: sends, RDMA reads and RDMA writes, below the file system.
//! * [`raw`]: plain sockets without any DAFS code, the yardstick of the same run.
//! * [`raw::shm`]: bare shared memory, the yardstick of two processes on one host.
//! * [`store`]: files of this host without a network, and memory alone.
//! * [`null`]: a mount without files, the yardstick of mounts.
//!
//! Every measurement is a [`Point`], printed as a row of a table or as one JSON object. What
//! could not be measured is null, never zero.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]
#![deny(missing_docs)]

pub mod fabric;
mod histogram;
pub mod io;
pub mod null;
mod offsets;
pub mod optimistic;
mod point;
pub mod postmark;
pub mod raw;
mod slice;
pub mod store;
mod sys;
pub mod target;
mod wait;

pub use histogram::Histogram;
pub use point::{Point, Report, size_text};
pub use slice::{Slice, median};
pub use sys::{allowed_cpus, pin_to_cpu, process_cpu_ns};
pub use wait::{UnknownWait, Wait};
