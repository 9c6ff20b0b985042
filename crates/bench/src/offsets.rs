//! Where in a file the next operation is.

/// Offsets of pieces of equal size, one after the other or at random.
#[derive(Debug, Clone)]
pub(crate) struct Offsets {
    pieces: u64,
    size: u64,
    random: bool,
    position: u64,
    seed: u64,
}

impl Offsets {
    /// Pieces of `size` in `total` bytes; at least one.
    pub(crate) fn new(total: u64, size: u64, random: bool) -> Offsets {
        let pieces = (total / size.max(1)).max(1);
        Offsets { pieces, size, random, position: 0, seed: 0x9e37_79b9_7f4a_7c15 }
    }

    /// The same pieces, beginning elsewhere: for several that work side by side.
    pub(crate) fn part(&self, number: u64, of: u64) -> Offsets {
        let seed = self.seed.wrapping_mul(2 * number + 1) | 1;
        Offsets { position: self.pieces * number / of.max(1), seed, ..self.clone() }
    }

    /// The next one.
    pub(crate) fn next(&mut self) -> u64 {
        let piece = if self.random {
            // xorshift64: cheap, and good enough to defeat caches.
            self.seed ^= self.seed << 13;
            self.seed ^= self.seed >> 7;
            self.seed ^= self.seed << 17;
            self.seed % self.pieces
        } else {
            self.position += 1;
            (self.position - 1) % self.pieces
        };
        piece * self.size
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_stay_inside_and_wrap() {
        let mut sequential = Offsets::new(10, 4, false);
        let seen: Vec<u64> = (0..3).map(|_| sequential.next()).collect();
        assert_eq!(seen, [0, 4, 0]);
        let mut random = Offsets::new(1 << 20, 4096, true);
        let seen: std::collections::HashSet<u64> = (0..1000).map(|_| random.next()).collect();
        assert!(seen.len() > 200 && seen.iter().all(|o| o % 4096 == 0 && *o < 1 << 20));
    }
}
