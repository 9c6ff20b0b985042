//! `dafs mount` alone: the mounts of this machine.

use dafs_fuse::kernel;
use serde::Serialize;

use crate::failure::Failure;
use crate::output::Output;
use crate::{place, text};

/// A mount.
#[derive(Serialize)]
struct Mounted {
    url: String,
    directory: String,
    options: String,
}

/// Prints them, one on a line.
///
/// # Errors
/// The table of mounts cannot be read, or standard output not be written.
pub fn print(json: bool) -> Result<(), Failure> {
    let table = kernel::mounted().map_err(|error| Failure::about("the table of mounts", error))?;
    let mut out = Output::new();
    for (directory, mount) in table {
        let mounted = Mounted {
            url: text::escape(&mount.source),
            directory: text::escape(&place::bytes(&directory)),
            options: text::escape(&mount.options),
        };
        if json {
            out.json(&mounted)?;
        } else {
            let Mounted { url, directory, options } = mounted;
            out.line(&format!("{url} on {directory} ({options})"))?;
        }
    }
    Ok(out.flush()?)
}
