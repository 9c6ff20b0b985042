//! Options that `cp` and `mirror` have together, and what they print at the end.

use std::time::Instant;

use dafs_fabric::units::size;
use serde::Serialize;

use super::engine::Counts;
use super::filter::Filter;
use super::limit::Limit;
use super::rules::Rules;
use crate::failure::Failure;
use crate::output::Output;
use crate::{progress, text};

/// Threads that a user may ask for.
const TRANSFERS_MAX: u16 = 64;

/// How things are copied.
#[derive(Debug, clap::Args)]
pub struct Transfer {
    #[command(flatten)]
    filter: Filter,
    /// Compare files of the same size byte by byte (those that are the same get attributes only),
    /// and read back each copy before it gets its name.
    #[arg(long)]
    checksum: bool,
    /// At most so many bytes a second in all: 500k, 20m, 1g.
    #[arg(long, value_name = "RATE", value_parser = rate)]
    bwlimit: Option<u64>,
    /// Threads that copy (1 to 64, else 4); each has one large file or up to 16 small ones under way.
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u16).range(1..=i64::from(TRANSFERS_MAX)))]
    transfers: Option<u16>,
    /// Have each file on disk before it gets its name, and return when all names are.
    #[arg(long)]
    sync: bool,
    /// Change nothing; say what would be done.
    #[arg(long)]
    dry_run: bool,
    /// Print one JSON object with what was done.
    #[arg(long)]
    json: bool,
}

fn rate(text: &str) -> Result<u64, String> {
    let bytes = size(text.strip_suffix("/s").unwrap_or(text))
        .map_err(|_| "expected bytes a second, such as 500k, 20m or 1g".to_owned())?;
    if bytes == 0 { Err("0 bytes a second would never end".into()) } else { Ok(bytes) }
}

/// Whose summary it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shown {
    /// `cp`: only as JSON.
    Copy,
    /// `mirror`: a line for people, too.
    Mirror,
}

/// What was done; sizes in bytes.
#[derive(Serialize)]
struct Summary {
    files: u64,
    directories: u64,
    bytes: u64,
    made_directories: u64,
    updated: u64,
    removed: u64,
    skipped: u64,
    resumed_bytes: u64,
    failed: u64,
    seconds: f64,
}

impl Transfer {
    /// What they say.
    pub fn rules(&self) -> Rules {
        Rules {
            checksum: self.checksum,
            dry_run: self.dry_run,
            verbose: progress::is_verbose(),
            sync: self.sync,
            filter: self.filter.clone(),
            transfers: self.transfers.unwrap_or(0).into(),
            ..Rules::default()
        }
    }

    /// How fast it may be.
    pub fn limit(&self) -> Option<Limit> {
        self.bwlimit.map(Limit::new)
    }

    /// How far it is, is to be seen: what is named needs no bar beside it.
    pub fn shows_progress(&self) -> bool {
        !progress::is_verbose() && !self.dry_run
    }

    /// Prints what was done, where that is wanted.
    ///
    /// # Errors
    /// Standard output's.
    pub fn summarize(
        &self,
        counts: &Counts,
        started: Instant,
        shown: Shown,
    ) -> Result<(), Failure> {
        let summary = Summary {
            files: Counts::get(&counts.files),
            directories: Counts::get(&counts.directories),
            bytes: Counts::get(&counts.bytes),
            made_directories: Counts::get(&counts.made),
            updated: Counts::get(&counts.updated),
            removed: Counts::get(&counts.removed),
            skipped: Counts::get(&counts.skipped),
            resumed_bytes: Counts::get(&counts.resumed),
            failed: Counts::get(&counts.failed),
            seconds: started.elapsed().as_secs_f64(),
        };
        let mut out = Output::new();
        if self.json {
            out.json(&summary)?;
        } else if shown == Shown::Mirror && !progress::is_quiet() {
            out.line(&summary.text(self.dry_run))?;
        }
        Ok(out.flush()?)
    }
}

impl Summary {
    fn text(&self, dry_run: bool) -> String {
        let done = if dry_run { "would be " } else { "" };
        format!(
            "{} files {done}copied ({} bytes), {} directories made, {} names removed, {} \
             attributes changed; {} unchanged, {} failed",
            self.files,
            text::human(self.bytes),
            self.made_directories,
            self.removed,
            self.updated,
            self.skipped,
            self.failed
        )
    }
}
