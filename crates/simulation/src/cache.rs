//! Advice about the cache, what it tells, and memory that becomes short.

use dafs_client::Output;
use dafs_client::core::{FileKey, Work};
use dafs_protocol::{CacheHint, CacheInfo, CachedRange, Status};

use crate::calls::{Kind, Piece};
use crate::client::Open;
use crate::data::data_place;
use crate::model::Span;
use crate::plan::DATA_FILES;
use crate::sim::Sim;

/// Advice about a range: the last is a wish alone.
const ADVICE_MAX: u64 = 5;
const PREFETCH: u8 = 3;
const DROP: u8 = 4;
const PAGE_BYTES: u64 = 4096;

impl Sim {
    /// A call about the cache of an open file.
    pub(crate) fn ask_cache(&mut self, client: usize, open: &Open) -> Result<(), String> {
        if open.write && !open.append && self.rng.below(4) == 0 {
            return self.overtake(client, open);
        }
        let whole = self.rng.below(3) == 0;
        let (offset, len) = match whole {
            true => (0, 0),
            false => (self.offset(open.file, 0), self.len()),
        };
        let file = open.key;
        let work = match self.rng.below(8) {
            0 => Work::CacheQuery { file, offset, len },
            1 => {
                let place = data_place(self.rng.index(DATA_FILES));
                Work::CacheQueryAt { place, offset, len }
            }
            _ => {
                let advice = self.rng.below(ADVICE_MAX + 1) as u8;
                let cache = self.hint();
                Work::Advise { file, offset, len, advice, cache }
            }
        };
        let of = (!matches!(work, Work::CacheQueryAt { .. })).then_some(open.file);
        self.submit_cache(client, of, work);
        Ok(())
    }

    fn submit_cache(&mut self, client: usize, file: Option<usize>, work: Work) {
        let call = self.call(client, Kind::Cache { file }, 0);
        self.clients[client].submit(call, work, None);
    }

    /// Writes whole pages that are just being read in.
    fn overtake(&mut self, client: usize, open: &Open) -> Result<(), String> {
        let len = PAGE_BYTES * self.rng.range(1, 2);
        let most = self.files[open.file].size_max().min(self.plan.file_max.saturating_sub(len));
        let offset = self.rng.below(most / PAGE_BYTES + 1) * PAGE_BYTES;
        for advice in [DROP, PREFETCH] {
            let cache = CacheHint::default();
            let work = Work::Advise { file: open.key, offset, len, advice, cache };
            self.submit_cache(client, Some(open.file), work);
        }
        self.write_pieces(client, open, vec![Piece { offset, len, change: 0 }])
    }

    /// Wishes, of which some cannot be had.
    fn hint(&mut self) -> CacheHint {
        match self.rng.below(3) {
            0 => CacheHint {
                unit: [0, 1, 4096, 20_000, 64 << 10, 1 << 20, u32::MAX][self.rng.index(7)],
                policy: self.rng.below(4) as u8,
                class: self.rng.below(5) as u8,
            },
            _ => CacheHint::default(),
        }
    }

    /// What the cache tells must be possible.
    pub(crate) fn cache_answered(
        &mut self,
        file: Option<usize>,
        output: &Output<FileKey>,
        span: Span,
    ) -> Result<(), String> {
        match output {
            Output::Advised(_) => Ok(()),
            Output::Cached { info, ranges } => {
                check_ranges(info, ranges, self.plan.arena_bytes as u64)?;
                match file {
                    Some(file) => self.files[file].check_size(info.size, span),
                    None => Ok(()),
                }
            }
            other => Err(format!("an answer of another kind: {other:?}")),
        }
    }

    /// The machine is short of memory, or not any more.
    pub(crate) fn resize_cache(&mut self) {
        if !self.plan.resizes {
            return;
        }
        if self.rng.below(12) > 0 {
            return self.host.shrink_on();
        }
        let all = self.plan.arena_bytes as u64;
        let bytes = match self.rng.below(4) {
            0 => 0,
            1 => u64::MAX,
            _ => self.rng.below(all),
        };
        let taken = self.host.resize(bytes);
        self.log(|| format!("the cache is to take {bytes} bytes: {taken:?}"));
        if taken.is_some_and(|taken| taken < all) {
            self.report.fault("memory short");
        }
    }

    /// Whether an open file may be gone for a call about the cache.
    pub(crate) fn is_cache_excused(&self, kind: &Kind, status: Status) -> bool {
        // A name that another file gets at this moment.
        matches!(kind, Kind::Cache { file: None }) && status == Status::Stale
    }
}

fn check_ranges(info: &CacheInfo, ranges: &[CachedRange], arena: u64) -> Result<(), String> {
    let wrong = |what: &str| Err(format!("cached ranges {what}: {info:?} {ranges:?}"));
    let mut end = 0;
    for range in ranges {
        if range.offset < end || range.len == 0 {
            return wrong("are out of order");
        }
        end = range.offset + range.len;
        if range.offset % PAGE_BYTES != 0 || range.len % PAGE_BYTES != 0 {
            return wrong("are not whole pages");
        }
    }
    let sum = |dirty| -> u64 {
        ranges.iter().filter(|range| range.dirty == dirty).map(|range| range.len).sum()
    };
    if (sum(false), sum(true)) != (info.clean_bytes, info.dirty_bytes) {
        return wrong("do not add up");
    }
    if info.clean_bytes + info.dirty_bytes > arena {
        return wrong("are more than there is memory");
    }
    Ok(())
}
