//! Users, groups and hosts by name.
//!
//! The system's C library answers, as it is set up (`/etc/nsswitch.conf`). A static build has none to ask:
//! what answers there are libraries that are loaded, and those of another version end the process. It reads
//! `/etc/passwd`, `/etc/group` and `/etc/hosts` itself, and asks the name servers of `/etc/resolv.conf`
//! ([`SOURCE`] says which it is). Both read what somebody else may change at any time: nothing is kept.
//!
//! All calls block.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

#[cfg(any(test, target_feature = "crt-static"))]
mod dns;
#[cfg(any(test, target_feature = "crt-static"))]
mod files;
#[cfg(any(test, target_feature = "crt-static"))]
mod hosts;
#[cfg(target_feature = "crt-static")]
mod own;
#[cfg(not(target_feature = "crt-static"))]
mod system;

#[cfg(target_feature = "crt-static")]
pub use own::*;
#[cfg(not(target_feature = "crt-static"))]
pub use system::*;

/// A user of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// What it is called.
    pub name: String,
    /// Its number.
    pub uid: u32,
    /// The first of its groups.
    pub gid: u32,
}

/// A group of this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Group {
    /// What it is called.
    pub name: String,
    /// Its number.
    pub gid: u32,
}
