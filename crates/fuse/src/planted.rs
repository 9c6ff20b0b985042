//! Defects on purpose, as in the other crates: a test plants one in a process and must find it;
//! without the feature `planted` there is no code for them.

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[cfg_attr(not(feature = "planted"), allow(dead_code))]
pub enum Defect {
    /// What others read below a direct write that is under way stays in the kernel's cache.
    OldBelowDirectWrite = 1,
    /// A page of a mapping makes a file longer that another mount has cut.
    MappedPageExtends,
}

#[cfg(feature = "planted")]
mod chosen {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::Defect;

    static CHOSEN: AtomicU32 = AtomicU32::new(0);

    impl Defect {
        /// All of them.
        pub const ALL: [Defect; 2] = [Defect::OldBelowDirectWrite, Defect::MappedPageExtends];
    }

    /// Plants one in this process, or none.
    pub fn plant(defect: Option<Defect>) {
        CHOSEN.store(defect.map_or(0, |defect| defect as u32), Ordering::Relaxed);
    }

    pub(crate) fn planted(defect: Defect) -> bool {
        CHOSEN.load(Ordering::Relaxed) == defect as u32
    }
}

#[cfg(feature = "planted")]
pub use chosen::plant;
#[cfg(feature = "planted")]
pub(crate) use chosen::planted;

#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) fn planted(_: Defect) -> bool {
    false
}
