//! The functions that programs call.
//!
//! Their documentation is the manual: the first line says what a function is for, the rest is its page.

#[allow(unsafe_code, reason = "names that C knows")]
mod data;
#[allow(unsafe_code, reason = "names that C knows")]
mod directory;
#[allow(unsafe_code, reason = "names that C knows")]
mod error;
#[allow(unsafe_code, reason = "names that C knows")]
mod file;
#[allow(unsafe_code, reason = "names that C knows")]
mod group;
#[allow(unsafe_code, reason = "names that C knows")]
mod loan;
#[allow(unsafe_code, reason = "names that C knows")]
mod lock;
#[allow(unsafe_code, reason = "names that C knows")]
mod memory;
#[allow(unsafe_code, reason = "names that C knows")]
mod name;
mod record;
#[allow(unsafe_code, reason = "names that C knows")]
mod session;
