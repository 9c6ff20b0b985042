//! Latencies, kept in buckets of at most 1.6 % width.

use std::time::Duration;

/// Buckets per power of two.
const SUB: usize = 64;
const SUB_BITS: u32 = SUB.trailing_zeros();
/// Powers of two above [`SUB`]: up to 2^42 ns, more than an hour.
const POWERS: usize = 36;

/// Counts of latencies in nanoseconds. Recording never allocates.
#[derive(Debug, Clone)]
pub struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Histogram {
        Histogram::new()
    }
}

impl Histogram {
    /// Empty.
    pub fn new() -> Histogram {
        Histogram { counts: vec![0; SUB * (POWERS + 1)], total: 0 }
    }

    /// Counts one latency.
    pub fn record(&mut self, latency: Duration) {
        let ns = u64::try_from(latency.as_nanos()).unwrap_or(u64::MAX);
        let index = Histogram::index(ns).min(self.counts.len() - 1);
        if let Some(count) = self.counts.get_mut(index) {
            *count += 1;
            self.total += 1;
        }
    }

    /// Adds all counts of another one.
    pub fn merge(&mut self, other: &Histogram) {
        for (to, from) in self.counts.iter_mut().zip(&other.counts) {
            *to += from;
        }
        self.total += other.total;
    }

    /// How many were counted.
    pub fn len(&self) -> u64 {
        self.total
    }

    /// True when nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// The latency in microseconds that `share` (0 to 1) of all do not exceed; `None` when
    /// nothing was counted.
    pub fn quantile_us(&self, share: f64) -> Option<f64> {
        if self.total == 0 {
            return None;
        }
        let wanted = ((self.total as f64 * share).ceil() as u64).clamp(1, self.total);
        let mut seen = 0;
        let index = self.counts.iter().position(|count| {
            seen += count;
            seen >= wanted
        })?;
        Some(Histogram::middle_ns(index) / 1000.0)
    }

    fn index(ns: u64) -> usize {
        if ns < SUB as u64 {
            return ns as usize;
        }
        let power = ns.ilog2() - SUB_BITS;
        let sub = (ns >> power) as usize - SUB;
        // Below 2 * SUB each nanosecond has its bucket; above, `power` bits are dropped.
        SUB + power as usize * SUB + sub
    }

    fn middle_ns(index: usize) -> f64 {
        if index < SUB {
            return index as f64;
        }
        let power = (index / SUB - 1) as u32;
        let low = ((SUB + index % SUB) as u64) << power;
        low as f64 + ((1u64 << power) - 1) as f64 / 2.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_two_percent() {
        let mut histogram = Histogram::new();
        for us in 1..=1000 {
            histogram.record(Duration::from_micros(us));
        }
        let p50 = histogram.quantile_us(0.5).expect("some");
        let p99 = histogram.quantile_us(0.99).expect("some");
        assert!((p50 - 500.0).abs() < 10.0, "{p50}");
        assert!((p99 - 990.0).abs() < 20.0, "{p99}");
        assert_eq!(histogram.len(), 1000);
    }

    #[test]
    fn nothing_has_no_quantile() {
        assert_eq!(Histogram::new().quantile_us(0.5), None);
    }

    #[test]
    fn the_longest_time_is_counted_in_the_last_bucket() {
        let mut histogram = Histogram::new();
        histogram.record(Duration::MAX);
        assert!(histogram.quantile_us(1.0).expect("some") > 3.6e9);
    }

    #[test]
    fn buckets_are_contiguous() {
        for ns in 1..100_000u64 {
            let (before, this) = (Histogram::index(ns - 1), Histogram::index(ns));
            assert!(this == before || this == before + 1, "{ns}");
        }
    }
}
