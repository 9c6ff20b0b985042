//! `dafs version`: what this is.

use serde::Serialize;

use crate::failure::Failure;
use crate::output::Output;

/// Of which sources this was built; the build script finds out.
const COMMIT: &str = env!("DAFS_BUILD_COMMIT");

/// Print version and build of this program.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  dafs version\n  dafs version --json | jq -r .version")]
pub struct Args {
    /// One JSON object.
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Version {
    version: &'static str,
    /// As git tells it; `unknown` where the build could not tell.
    commit: &'static str,
    profile: &'static str,
    architecture: &'static str,
    transports: &'static [&'static str],
    /// What says who users, groups and hosts are.
    names: &'static str,
}

/// Runs the command.
///
/// # Errors
/// Standard output's.
pub fn run(args: &Args) -> Result<(), Failure> {
    let version = Version {
        version: env!("CARGO_PKG_VERSION"),
        commit: COMMIT,
        profile: if cfg!(debug_assertions) { "debug" } else { "release" },
        architecture: std::env::consts::ARCH,
        transports: crate::provider::SCHEMES,
        names: dafs_names::SOURCE,
    };
    let mut out = Output::new();
    if args.json {
        out.json(&version)?;
    } else {
        out.line(&format!(
            "dafs {} (commit {}, {}, {}; transports: {}; users and hosts from {})",
            version.version,
            version.commit,
            version.profile,
            version.architecture,
            version.transports.join(", "),
            version.names
        ))?;
    }
    Ok(out.flush()?)
}
