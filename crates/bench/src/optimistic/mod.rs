//! `bench optimistic`: the experiments of \[ODAFS\] 5, and what limits their gain (4.2.2), on a server of today:
//! reads that ask the server beside reads that do not.
//!
//! Ways are measured by turns, each with a session of its own, so that all meet the same machine. The client's
//! block cache is the benchmark's own.

mod bare;
mod blocks;
mod limits;
mod place;
mod postmark;
mod response;
mod revoke;
mod row;
mod stream;
mod stretch;
mod translations;
mod two;

use std::io;
use std::str::FromStr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::raw::Raw;
use crate::raw::shm::Shm;
use crate::wait::Wait;
use stretch::Time;

pub use place::{Connect, Place, Way, Wish};
pub use row::Row;

/// One table or figure of the paper, or one limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)] // see `ALL`, and the help of the command
pub enum Experiment {
    Table2,
    Table3,
    Figure3,
    Figure6,
    Figure6Opens,
    Figure7,
    ClientCache,
    ServerCache,
    NotExported,
    Writes,
    TranslationCache,
    Revoke,
}

impl Experiment {
    /// All, in their order.
    pub const ALL: [(Experiment, &str); 12] = [
        (Experiment::Table2, "table-2"),
        (Experiment::Table3, "table-3"),
        (Experiment::Figure3, "figure-3"),
        (Experiment::Figure6, "figure-6"),
        (Experiment::Figure6Opens, "figure-6-opens"),
        (Experiment::Figure7, "figure-7"),
        (Experiment::ClientCache, "limit-client-cache"),
        (Experiment::ServerCache, "limit-server-cache"),
        (Experiment::NotExported, "limit-not-exported"),
        (Experiment::Writes, "limit-writes"),
        (Experiment::TranslationCache, "limit-translation-cache"),
        (Experiment::Revoke, "revoke"),
    ];
}

impl FromStr for Experiment {
    type Err = String;
    fn from_str(text: &str) -> Result<Experiment, String> {
        let found = Experiment::ALL.iter().find(|(_, name)| *name == text);
        found.map(|(experiment, _)| *experiment).ok_or_else(|| {
            let names = Experiment::ALL.map(|(_, name)| name).join(", ");
            format!("'{text}' is not one of {names}")
        })
    }
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct OptimisticOptions {
    /// Which.
    pub experiments: Vec<Experiment>,
    /// How both ends wait, in table 3 and figure 6; the first one in the sweeps of limits.
    pub waits: Vec<Wait>,
    /// Bytes of the large file: the server must have room for it in its cache.
    pub file_bytes: u64,
    /// Files of PostMark.
    pub files: usize,
    /// Percent of them that the client's cache finds, in figure 6.
    pub percents: Vec<u64>,
    /// Time of one row, all its stretches together.
    pub time: Duration,
    /// The processor of the two clients of figure 7; the first that this process may use.
    pub cpu: Option<usize>,
    /// Figure 7 once more, with such a link.
    pub link_bytes_per_s: Option<u64>,
}

/// The bare mechanism of a transport.
#[derive(Debug)]
pub enum Bare {
    /// Plain sockets.
    Sockets(Raw),
    /// Two rings and a copy by the other process.
    Shm(Shm),
}

/// Who is told what goes on.
pub struct Told<'a> {
    /// For a moment: what is being done.
    pub say: &'a (dyn Fn(&str) + Sync),
    /// For good: what was left out, and why.
    pub note: &'a (dyn Fn(&str) + Sync),
}

struct Bench<'a> {
    place: &'a Place,
    options: &'a OptimisticOptions,
    told: &'a Told<'a>,
    stop: &'a AtomicBool,
}

impl<'a> Bench<'a> {
    fn say(&self, text: &str) {
        (self.told.say)(&format!("{}: {text}", self.place.transport()));
    }

    fn note(&self, text: &str) {
        (self.told.note)(&format!("{}: {text}", self.place.transport()));
    }

    fn is_over(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn row(&self, experiment: &'static str) -> Row {
        Row::none(experiment, self.place.transport(), Way::Optimistic.name())
    }

    /// Of one stretch, of so many in a row.
    fn time(&self, stretches: u32) -> Time<'a> {
        Time { time: self.options.time / stretches, stop: self.stop }
    }

    fn wait(&self) -> Wait {
        self.options.waits.first().copied().unwrap_or(Wait::Polled)
    }
}

/// Measures at `place`, in whose directory all files lie; each row is given to `put` as soon as it is there.
///
/// # Errors
/// The server's, the bare mechanism's, or those of `put`.
pub fn run(
    place: &Place,
    mut bare: Option<Bare>,
    options: &OptimisticOptions,
    told: &Told<'_>,
    stop: &AtomicBool,
    put: &mut dyn FnMut(&Row) -> io::Result<()>,
) -> io::Result<()> {
    let bench = Bench { place, options, told, stop };
    let mut put = |row: Row| put(&row);
    for experiment in &options.experiments {
        if bench.is_over() {
            break;
        }
        match experiment {
            Experiment::Table2 => bare::run(&bench, bare.as_mut(), &mut put)?,
            Experiment::Table3 => response::run(&bench, &mut put)?,
            Experiment::Figure3 => stream::run(&bench, &mut put)?,
            Experiment::Figure6 => postmark::figure(&bench, false, &mut put)?,
            Experiment::Figure6Opens => postmark::figure(&bench, true, &mut put)?,
            Experiment::Figure7 => two::run(&bench, &mut put)?,
            Experiment::ClientCache => postmark::few_remote(&bench, &mut put)?,
            Experiment::ServerCache => limits::server_cache(&bench, &mut put)?,
            Experiment::NotExported => postmark::not_exported(&bench, &mut put)?,
            Experiment::Writes => limits::writes(&bench, &mut put)?,
            Experiment::TranslationCache => limits::translation_cache(&bench, &mut put)?,
            Experiment::Revoke => revoke::run(&bench, &mut put)?,
        }
    }
    Ok(())
}
