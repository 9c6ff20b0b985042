//! Where a file ends, which the entries of its blocks tell as well.

use smallvec::SmallVec;

use super::{CachedFile, Inner};
use crate::pool::{FRAME_SLOTS, Page, SLOT};

impl CachedFile {
    /// The file ends there for readers. What the entries of its blocks say of its end, and is so no more, is
    /// retired, then published anew.
    pub(crate) fn set_size(&self, inner: &mut Inner, size: u64) {
        let old = std::mem::replace(&mut inner.size, size);
        // Behind the old end nothing was published, and all before both ends is as it was.
        let (first, behind) = (old.min(size) / SLOT, old.div_ceil(SLOT));
        if old == size || first >= behind {
            return;
        }
        let clusters = first / FRAME_SLOTS as u64..=(behind - 1) / FRAME_SLOTS as u64;
        let mut retired: SmallVec<[(Page, u64); 1]> = SmallVec::new();
        for (number, cluster) in inner.blocks.clusters.range(clusters) {
            for (page, block) in cluster.pages.iter().zip(number * FRAME_SLOTS as u64..) {
                let ends_elsewhere = (first..behind).contains(&block) && !page.is_none();
                if ends_elsewhere && self.core().pool.retire(*page) {
                    retired.push((*page, block));
                }
            }
        }
        for (page, block) in retired {
            self.core().pool.publish(page, (self.number(), size), block);
        }
    }
}
