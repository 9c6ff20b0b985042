//! Blocks by number, the least recently used goes: the client's cache, with a buffer of a session for each.

use std::collections::HashMap;

use dafs_fabric::Buffer;

/// No place.
const NONE: usize = usize::MAX;

/// A fixed count of blocks, each with its data.
pub(super) struct Blocks<D = Buffer> {
    places: HashMap<u64, usize>,
    all: Vec<Block<D>>,
    newest: usize,
    oldest: usize,
}

struct Block<D> {
    key: Option<u64>,
    data: Option<D>,
    newer: usize,
    older: usize,
}

impl<D> Blocks<D> {
    /// With these buffers, all empty; at least one.
    pub(super) fn new(buffers: Vec<D>) -> Blocks<D> {
        let count = buffers.len();
        let block = |(at, data): (usize, D)| Block {
            key: None,
            data: Some(data),
            newer: if at == 0 { NONE } else { at - 1 },
            older: if at + 1 == count { NONE } else { at + 1 },
        };
        let all = buffers.into_iter().enumerate().map(block).collect();
        Blocks { places: HashMap::new(), all, newest: 0, oldest: count.saturating_sub(1) }
    }

    /// What it has of that block, which is used so.
    pub(super) fn find(&mut self, key: u64) -> Option<&D> {
        let at = *self.places.get(&key)?;
        self.use_now(at);
        self.all.get(at)?.data.as_ref()
    }

    /// The buffer of the block that was not used for longest, to be filled and [put](Self::put) back.
    pub(super) fn take(&mut self) -> Option<D> {
        let block = self.all.get_mut(self.oldest)?;
        if let Some(key) = block.key.take() {
            self.places.remove(&key);
        }
        block.data.take()
    }

    /// The block that is in the buffer that was taken.
    ///
    /// # Panics
    /// Without any blocks.
    pub(super) fn put(&mut self, key: u64, data: D) -> &D {
        let at = self.oldest;
        self.places.insert(key, at);
        self.use_now(at);
        let block = &mut self.all[at];
        block.key = Some(key);
        block.data.insert(data)
    }

    fn use_now(&mut self, at: usize) {
        if at == self.newest {
            return;
        }
        let (newer, older) = (self.all[at].newer, self.all[at].older);
        self.all[newer].older = older;
        match self.all.get_mut(older) {
            Some(block) => block.newer = newer,
            None => self.oldest = newer,
        }
        self.all[self.newest].newer = at;
        (self.all[at].newer, self.all[at].older) = (NONE, self.newest);
        self.newest = at;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(blocks: &mut Blocks, key: u64) -> bool {
        if blocks.find(key).is_some() {
            return true;
        }
        let buffer = blocks.take().expect("a buffer");
        blocks.put(key, buffer);
        false
    }

    #[test]
    fn the_least_recently_used_goes() {
        let mut blocks = Blocks::new(Buffer::many(3, 16).expect("memory"));
        assert!([1, 2, 3].iter().all(|key| !read(&mut blocks, *key)));
        assert!(read(&mut blocks, 1));
        assert!(!read(&mut blocks, 4), "in the place of 2");
        assert!(read(&mut blocks, 3) && read(&mut blocks, 1) && !read(&mut blocks, 2));
    }

    #[test]
    fn one_block_is_enough() {
        let mut blocks = Blocks::new(Buffer::many(1, 16).expect("memory"));
        assert!(!read(&mut blocks, 1) && read(&mut blocks, 1) && !read(&mut blocks, 2));
        assert!(read(&mut blocks, 2) && !read(&mut blocks, 1));
    }

    #[test]
    fn uniform_reads_hit_by_the_size_of_the_cache() {
        let mut blocks = Blocks::new(Buffer::many(50, 16).expect("memory"));
        let (mut seed, mut hits) = (1u64, 0);
        for _ in 0..20_000 {
            seed = seed
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            hits += u32::from(read(&mut blocks, (seed >> 33) % 100));
        }
        assert!((9_000..11_000).contains(&hits), "{hits}");
    }
}
