//! The whole client and the whole server in one thread, over a simulated network with faults,
//! checked against a model of what a file system is.
//!
//! One seed decides everything: devices, limits, calls, faults and the order of all that happens.
//! The clock is virtual. [`run`] runs one seed and says what is wrong, if anything is.

#![forbid(unsafe_code)]

mod cache;
mod calls;
mod checker;
mod client;
mod data;
mod faults;
mod file_names;
mod finish;
mod held;
mod hits;
mod loans;
mod lockers;
mod locks;
mod model;
mod name_workload;
mod networks;
mod plan;
#[cfg(feature = "planted")]
pub mod planted;
mod race;
mod races;
mod records;
mod report;
mod server;
mod sim;
mod slot;
mod storage;
mod wake;

pub use plan::Devices;
pub use report::{FAULTS, Report};

use std::panic::{AssertUnwindSafe, catch_unwind};

/// Runs a seed on these devices. With `trace` every step is told on standard error.
///
/// # Errors
/// What is wrong, for people.
pub fn run(seed: u64, devices: Devices, trace: bool) -> Result<Report, String> {
    let run = || sim::Sim::new(seed, devices, trace)?.run();
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(result) => result,
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            Err(format!("panic: {}", text.unwrap_or("of an unknown kind")))
        }
    }
}
