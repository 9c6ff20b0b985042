//! `dafs umount`: ends a mount, also when its process or its server is gone.

use std::path::PathBuf;

use dafs_fuse::kernel::{Unmount, unmount};

use crate::failure::Failure;

/// End a mount.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs umount /mnt/data\n  \
    dafs umount --lazy /mnt/data         detach it now; it ends with its last user\n  \
    dafs umount --force /mnt/data        all calls fail, nothing is left of it")]
pub struct Args {
    /// Detach it if it is in use; it ends when nobody uses it any more.
    #[arg(short, long)]
    lazy: bool,
    /// Calls under way fail, and it is gone, also if it is in use.
    #[arg(short, long)]
    force: bool,
    /// Where it is mounted.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Runs the command.
///
/// # Errors
/// It is not mounted, or in use.
pub fn run(args: &Args) -> Result<(), Failure> {
    let how = Unmount { lazy: args.lazy, force: args.force };
    unmount(&args.directory, how)
        .map_err(|error| Failure::about(args.directory.display(), error.to_string()))
}
