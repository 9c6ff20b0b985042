//! What a seed decides.

use crate::random::Random;

/// Draws sizes, choices and bytes: the same ones from the same seed.
#[derive(Debug, Clone)]
pub struct Dice(Random);

impl Dice {
    /// From a seed.
    pub fn new(seed: u64) -> Dice {
        Dice(Random::new(seed))
    }

    /// Any number.
    pub fn draw(&mut self) -> u64 {
        self.0.below(u64::MAX)
    }

    /// Less than `end`, which may be 0: then 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.draw() % (end.max(1) as u64)) as usize
    }

    /// True once in so many times.
    pub fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    /// From 1 to `most`, as often small as large.
    pub fn size(&mut self, most: usize) -> usize {
        let bits = self.below(most.max(1).ilog2() as usize + 1);
        ((1 << bits) + self.below(1 << bits)).clamp(1, most.max(1))
    }

    /// One of these.
    ///
    /// # Panics
    /// When there is none.
    pub fn one<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// The place of one of these weights, each as often as it says; not all are 0.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let sum: u32 = weights.iter().sum();
        let mut rest = self.below(sum as usize) as u32;
        for (place, weight) in weights.iter().enumerate() {
            if rest < *weight {
                return place;
            }
            rest -= weight;
        }
        0
    }

    /// So many bytes.
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(len + 8);
        while bytes.len() < len {
            bytes.extend_from_slice(&self.draw().to_le_bytes());
        }
        bytes.truncate(len);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn draws_are_in_their_bounds() {
        let mut dice = Dice::new(7);
        for _ in 0..10_000 {
            assert!(dice.below(3) < 3);
            assert!((1..=1000).contains(&dice.size(1000)));
            assert!(dice.weighted(&[0, 2, 0, 1]) % 2 == 1);
        }
        assert_eq!((dice.below(0), dice.size(0), dice.bytes(13).len()), (0, 1, 13));
        assert_eq!(Dice::new(9).bytes(40), Dice::new(9).bytes(40));
        assert_ne!(Dice::new(9).draw(), Dice::new(10).draw());
    }
}
