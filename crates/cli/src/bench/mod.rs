//! `dafs bench`: measurements, as a part of the product.

mod fabric;
mod io;
mod optimistic;
mod plot;
mod postmark;
mod raw;
mod table;
mod target;
mod unifier;

use std::time::Duration;

use clap::Subcommand;
use dafs_fabric::units::duration;

use crate::failure::Failure;

/// Measure files, reads without the server, the fabric, plain sockets, or the server's data paths.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs bench io dafs://localhost/ --op read --size 4k,1m --depth 1,8\n  \
    dafs bench io /mnt/nfs --op read,stat,create\n  \
    dafs bench postmark dafs://localhost/ --size 4k,16k\n  \
    dafs bench fabric --op rdma-read --size 4k,1m --depth 1,8\n  \
    dafs bench raw tcp --size 4k,1m --depth 1,8\n  \
    dafs bench unifier /srv/scratch --plot /tmp/plots\n  \
    dafs bench optimistic dafs://localhost/ --plots /tmp/plots\n\n\
    Each prints a table, or with --json one object per row; see dafs bench io --help for what\n\
    the fields mean.")]
pub struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, Subcommand)]
enum What {
    Io(io::Args),
    Postmark(postmark::Args),
    Optimistic(optimistic::Args),
    Fabric(fabric::Args),
    Raw(raw::Args),
    Unifier(unifier::Args),
    /// The other process of `fabric`.
    #[command(hide = true)]
    FabricPeer,
    /// The other process of `raw`.
    #[command(hide = true)]
    RawPeer {
        /// Where to connect to.
        address: String,
    },
    /// The other process of `raw shm`.
    #[command(hide = true)]
    RawShmPeer,
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    match &args.what {
        What::Io(args) => io::run(args),
        What::Postmark(args) => postmark::run(args),
        What::Optimistic(args) => optimistic::run(args),
        What::Fabric(args) => fabric::run(args),
        What::FabricPeer => fabric::peer(),
        What::Raw(args) => raw::run(args),
        What::Unifier(args) => unifier::run(args),
        What::RawPeer { address } => raw::peer(address),
        What::RawShmPeer => raw::shm_peer(),
    }
}

/// This process's CPU and the other one's.
/// Two CPUs, as `0,1`.
fn pins(text: &str) -> Result<(usize, usize), String> {
    let cpus = text.split_once(',').map(|(own, peer)| (own.trim().parse(), peer.trim().parse()));
    match cpus {
        Some((Ok(own), Ok(peer))) => Ok((own, peer)),
        _ => Err("two CPUs are needed, as 0,1".into()),
    }
}

fn pin(cpu: Option<usize>) -> Result<(), Failure> {
    match cpu {
        Some(cpu) => {
            dafs_bench::pin_to_cpu(cpu).map_err(|error| Failure::about(format!("CPU {cpu}"), error))
        }
        None => Ok(()),
    }
}

fn time(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if time.is_zero() { Err("must be positive".into()) } else { Ok(time) }
}
