//! What is remembered of units that are gone (Qout of the multi-queue algorithm).

use super::Key;

/// Places that one key can have.
const WAYS: usize = 4;

/// How often units were used that are gone, by a tag of what they held. A tag has few places;
/// the oldest of them is forgotten for a new one. Two keys of one tag are taken for one, which
/// is rare and harms little.
pub(crate) struct Ghosts {
    /// Tag and count of uses, the newest of a set first; tag 0: none.
    sets: Box<[[[u32; 2]; WAYS]]>,
}

/// Never 0.
pub(crate) fn tag(key: Key) -> u32 {
    let mut hash = key.file.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ key.block;
    hash = (hash ^ hash >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ hash >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    ((hash ^ hash >> 31) as u32).max(1)
}

impl Ghosts {
    /// Remembers at least so many.
    pub(crate) fn new(count: usize) -> Ghosts {
        let sets = count.div_ceil(WAYS).max(1);
        Ghosts { sets: vec![[[0; 2]; WAYS]; sets].into_boxed_slice() }
    }

    fn set(&mut self, tag: u32) -> &mut [[u32; 2]; WAYS] {
        let index = (u64::from(tag) * self.sets.len() as u64) >> 32;
        &mut self.sets[index as usize]
    }

    pub(crate) fn remember(&mut self, tag: u32, uses: u32) {
        let set = self.set(tag);
        let old = set.iter().position(|ghost| ghost[0] == tag).unwrap_or(WAYS - 1);
        set[..=old].rotate_right(1);
        set[0] = [tag, uses];
    }

    /// Its uses, which are forgotten; 0 when nothing is known.
    pub(crate) fn recall(&mut self, tag: u32) -> u32 {
        let set = self.set(tag);
        let Some(at) = set.iter().position(|ghost| ghost[0] == tag) else { return 0 };
        let uses = set[at][1];
        set[at..].rotate_left(1);
        set[WAYS - 1] = [0; 2];
        uses
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_of_a_set_is_forgotten() {
        let mut ghosts = Ghosts::new(1);
        for tag in 1..=5 {
            ghosts.remember(tag, 10 * tag);
        }
        assert_eq!(ghosts.recall(1), 0);
        ghosts.remember(2, 7);
        assert_eq!((ghosts.recall(2), ghosts.recall(2)), (7, 0));
        ghosts.remember(6, 60);
        assert_eq!([3, 4, 5, 6].map(|tag| ghosts.recall(tag)), [30, 40, 50, 60]);
    }
}
