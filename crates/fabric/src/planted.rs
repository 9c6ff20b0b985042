//! Defects on purpose. The simulation plants one at a time and must find each; without the
//! feature `planted` there is no code for them.

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[cfg_attr(not(feature = "planted"), allow(dead_code))]
pub enum Defect {
    /// Pages are given back to the system while a device holds them.
    PinnedPagesGivenBack = 1,
    /// A message comes before the data that goes together with it.
    MessageBeforeItsData,
}

#[cfg(feature = "planted")]
mod chosen {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::Defect;

    static CHOSEN: AtomicU32 = AtomicU32::new(0);

    impl Defect {
        /// All of them.
        pub const ALL: [Defect; 2] = [Defect::PinnedPagesGivenBack, Defect::MessageBeforeItsData];
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
