//! Runs seeds of the simulation, and finds planted defects.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use clap::Parser;
use dafs_simulation::{Devices, Report, run};

/// Runs the whole client and server in one thread, against a model file system.
#[derive(Parser)]
#[command(name = "simulate", after_help = "Example: simulate --seeds 200")]
struct Options {
    /// Run this one seed.
    #[arg(long, conflicts_with_all = ["seeds", "planted"])]
    seed: Option<u64>,
    /// Run so many seeds.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Give every seed hard devices: as little forgiven as client and server can live with.
    #[arg(long, conflicts_with = "planted")]
    hard: bool,
    /// Tell every step on standard error.
    #[arg(long)]
    trace: bool,
    /// Go on after a failure.
    #[arg(long)]
    keep_going: bool,
    /// Plant each known defect and look for it.
    #[arg(long)]
    planted: bool,
    /// With `--planted`: only defects whose names contain this.
    #[arg(long)]
    only: Option<String>,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.trace {
        tracing_subscriber::fmt()
            .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
            .with_writer(std::io::stderr)
            .without_time()
            .init();
    }
    if options.planted {
        return planted(&options);
    }
    if let Some(seed) = options.seed {
        return seeds(&options, seed, 1);
    }
    seeds(&options, options.from, options.seeds)
}

fn seeds(options: &Options, from: u64, count: u64) -> ExitCode {
    let mut total = Report::default();
    let mut failures = 0;
    let (devices, hard) =
        if options.hard { (Devices::Hard, " --hard") } else { (Devices::OfSeed, "") };
    for (number, seed) in (from..from.saturating_add(count)).enumerate() {
        match run(seed, devices, options.trace) {
            Ok(report) => total.add(&report),
            Err(why) => {
                failures += 1;
                println!("seed {seed} FAILED: {why}");
                println!("  to see it again: scripts/simulate.sh --seed {seed}{hard} --trace");
                if !options.keep_going {
                    break;
                }
            }
        }
        if number % 50 == 49 {
            println!("{} seeds, {} operations", number + 1, total.operations);
        }
    }
    for (kind, count) in &total.faults {
        println!("{count:>8} {kind}");
    }
    let kinds = total.faults.len();
    let all = if kinds == dafs_simulation::FAULTS.len() { "all " } else { "" };
    println!("{:>8} loans", total.loans);
    println!("{:>8} reads without the server, {} that had to ask", total.hits, total.misses);
    println!("{:>8} errors that had a cause; digest {:016x}", total.excused, total.digest);
    println!(
        "{count} seeds, {} operations, {} faults ({all}{kinds} kinds), {failures} failures",
        total.operations,
        total.fault_count(),
    );
    if failures == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

#[cfg(feature = "planted")]
fn planted(options: &Options) -> ExitCode {
    dafs_simulation::planted::find_all(options.only.as_deref())
}

#[cfg(not(feature = "planted"))]
fn planted(_: &Options) -> ExitCode {
    eprintln!("simulate: this build has no planted defects; use scripts/simulate.sh --planted");
    ExitCode::from(2)
}
