//! What nobody without rights may see: eight bytes each, of which the server's free memory, root's
//! files and their names are full.

use crate::dice::Dice;

/// Bytes of a mark.
pub const MARK: usize = 8;

const WHAT: [&str; 4] =
    ["memory that nobody filled", "root's secret", "what root writes", "names that root reads"];

/// Where a mark stands; see `WHAT`.
#[derive(Debug, Clone)]
pub struct Marks {
    /// In memory that nobody filled: the server's `DAFS_POISON`.
    pub poison: [u8; MARK],
    /// In a file that only root may read.
    pub secret: [u8; MARK],
    /// In what root's client writes.
    pub honest: [u8; MARK],
    /// In names of root's directory: letters.
    pub name: [u8; MARK],
}

impl Marks {
    /// From a seed.
    pub fn new(seed: u64) -> Marks {
        let mut dice = Dice::new(!seed);
        let mut mark = || dice.draw().to_le_bytes();
        let (poison, secret, honest) = (mark(), mark(), mark());
        let name = mark().map(|byte| b'A' + byte % 26);
        Marks { poison, secret, honest, name }
    }

    /// For `DAFS_POISON`.
    pub fn poison_digits(&self) -> String {
        let mark: String = self.poison.iter().map(|byte| format!("{byte:02x}")).collect();
        mark.repeat(dafs_fabric::poison::PATTERN_BYTES / MARK)
    }

    /// What is in these bytes and may not be: a run of twice its length cannot be without it.
    pub fn found_in(&self, bytes: &[u8]) -> Option<&'static str> {
        let marks = [&self.poison, &self.secret, &self.honest, &self.name];
        let is_in = |mark: &[u8; MARK]| memchr::memmem::find(bytes, mark).is_some();
        marks.iter().zip(WHAT).find_map(|(mark, what)| is_in(mark).then_some(what))
    }
}

/// A mark again and again.
pub fn full_of(mark: [u8; MARK], len: usize) -> Vec<u8> {
    mark.iter().copied().cycle().take(len).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_found_at_any_byte() {
        let marks = Marks::new(3);
        for (mark, what) in [(marks.poison, WHAT[0]), (marks.secret, WHAT[1])] {
            for from in 0..MARK {
                let run = full_of(mark, 4 * MARK);
                let seen = [&[0; 5], &run[from..from + 2 * MARK - 1], &[0; 5]].concat();
                assert_eq!(marks.found_in(&seen), Some(what));
            }
        }
        assert_eq!(marks.found_in(&Dice::new(3).bytes(1 << 20)), None);
        assert_eq!(marks.poison_digits().len(), 128);
    }
}
