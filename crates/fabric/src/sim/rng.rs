//! Random numbers that a seed decides: splitmix64.

/// A stream of random numbers. The same seed gives the same numbers on every machine.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    /// The stream of `seed`.
    pub fn new(seed: u64) -> Rng {
        Rng(seed)
    }

    /// Another stream, which depends on this one and on `stream` only.
    pub fn fork(&self, stream: u64) -> Rng {
        let mut mixed = Rng(self.0 ^ stream.wrapping_mul(0xd6e8_feb8_6659_fd93));
        mixed.next();
        Rng(mixed.next())
    }

    /// The next number.
    #[expect(clippy::should_implement_trait, reason = "an endless stream is no iterator")]
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`.
    ///
    /// # Panics
    /// When `limit` is zero.
    pub fn below(&mut self, limit: u64) -> u64 {
        assert!(limit > 0, "nothing is below zero");
        // The bias is below 2^-32 for the small limits that tests use.
        self.next() % limit
    }

    /// As [`below`](Self::below), for indices.
    ///
    /// # Panics
    /// When `limit` is zero.
    pub fn index(&mut self, limit: usize) -> usize {
        self.below(limit as u64) as usize
    }

    /// A number from `low` to `high`, both included; `low` when they are in the wrong order.
    pub fn range(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low).saturating_add(1))
    }

    /// True in `per_million` of a million cases. Draws no number when that is zero, so that a
    /// fault that is off does not change the run.
    pub fn chance(&mut self, per_million: u32) -> bool {
        per_million > 0 && self.below(1_000_000) < u64::from(per_million)
    }

    /// Heads or tails.
    pub fn coin(&mut self) -> bool {
        self.next() >> 63 == 1
    }

    /// Random bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut out = Vec::with_capacity(len + 8);
        while out.len() < len {
            out.extend_from_slice(&self.next().to_le_bytes());
        }
        out.truncate(len);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn the_seed_decides() {
        let take = |seed| (0..4).scan(Rng::new(seed), |r, _| Some(r.next())).collect::<Vec<_>>();
        assert_eq!(take(7), take(7));
        assert_ne!(take(7), take(8));
        // The reference implementation's first number for seed 0.
        assert_eq!(Rng::new(0).next(), 0xe220_a839_7b1d_cdaf);
    }

    #[test]
    fn ranges_include_both_ends() {
        let mut rng = Rng::new(1);
        let seen: std::collections::BTreeSet<u64> = (0..200).map(|_| rng.range(3, 6)).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [3, 4, 5, 6]);
        assert_eq!(rng.range(9, 2), 9);
    }

    #[test]
    fn forks_differ() {
        let rng = Rng::new(3);
        assert_ne!(rng.fork(1).next(), rng.fork(2).next());
        assert_eq!(rng.fork(1).bytes(11), rng.fork(1).bytes(11));
    }
}
