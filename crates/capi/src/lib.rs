//! libdafs: sessions, files, and asynchronous reads and writes, for programs in C.
//!
//! What C sees is in `include/dafs.h`, made from the functions in `api`. Their documentation is the
//! manual: one page for each in `man`. Everything from C comes by the types of `border`, which have
//! all code that is not safe; names are what `table` knows, and never pointers.

#![deny(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod api;
#[allow(unsafe_code)]
mod border;
mod failure;
mod group;
mod object;
mod operation;
#[allow(unsafe_code)]
mod pointer;
mod process;
mod provider;
mod table;
mod types;
