//! What system tests share: the built binary, servers as real processes, trees to compare.

#![deny(unsafe_code)]

pub mod acceptance;
pub mod client;
pub mod closing;
pub mod dice;
pub mod fresh;
pub mod in_process;
pub mod machine;
pub mod marked;
pub mod marks;
pub mod memory;
pub mod mounted;
mod near;
pub mod pinning;
pub mod random;
pub mod relay;
pub mod resized;
pub mod served;
#[allow(unsafe_code)]
pub mod sys;
pub mod tree;
pub mod wire;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

pub use fresh::FreshDir;
pub use mounted::Place;
pub use served::Served;

/// A limit of time, `DAFS_TEST_PATIENCE` times as long: for debug builds, and machines that are
/// busy with other things.
pub fn patient(limit: Duration) -> Duration {
    let times = std::env::var("DAFS_TEST_PATIENCE").ok().and_then(|times| times.parse().ok());
    limit * times.unwrap_or(1)
}

/// Whether a skipped test is a failure: `CI` is set to something, so this machine must allow all.
pub fn must_try_all() -> bool {
    std::env::var_os("CI").is_some_and(|set| !set.is_empty() && set != "0")
}

/// The same server by TCP, for figures that are about TCP; other targets stay as they are.
pub fn by_tcp(target: &str) -> String {
    let is_plain = target.starts_with("dafs://") && !target.contains('?');
    if is_plain { format!("{target}?transport=tcp") } else { target.to_owned() }
}

/// The binary under test: `DAFS_BIN`, or the release build of this workspace.
pub fn binary() -> PathBuf {
    if let Some(path) = std::env::var_os("DAFS_BIN") {
        return path.into();
    }
    let mut path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    path.pop();
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| path.join("target"), Into::into);
    target.join("release/dafs")
}

/// A command of the binary, with nothing on its standard input. It marks free memory and looks for
/// that as this process does, or not at all ([`served::as_in_use`]).
pub fn command<S: AsRef<OsStr>>(args: &[S]) -> Command {
    let mut command = Command::new(binary());
    command.args(args).stdin(Stdio::null());
    command.env(dafs_fabric::poison::VARIABLE, served::marks());
    command
}

/// Runs the binary to its end.
///
/// # Panics
/// When it cannot be started.
pub fn run<S: AsRef<OsStr>>(args: &[S]) -> Output {
    command(args).output().expect("the dafs binary is built: cargo build --release -p dafs-cli")
}

/// Runs the binary, which must succeed; its standard output.
///
/// # Panics
/// When it fails.
pub fn run_ok<S: AsRef<OsStr>>(args: &[S]) -> String {
    let output = run(args);
    let errors = String::from_utf8_lossy(&output.stderr);
    let shown: Vec<_> = args.iter().map(|arg| arg.as_ref().to_string_lossy()).collect();
    assert!(output.status.success(), "dafs {}: {} {errors}", shown.join(" "), output.status);
    String::from_utf8_lossy(&output.stdout).into_owned()
}
