//! Defects on purpose. The simulation plants one at a time and must find each, but for those of
//! local programs, which the bars of the mount find in a real server; without the
//! feature `planted` there is no code for them.

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[cfg_attr(not(feature = "planted"), allow(dead_code))]
pub enum Defect {
    /// Eviction takes dirty pages as if they were clean.
    DirtyBlockEvicted = 1,
    /// What was read in replaces what was written meanwhile.
    LateFillWins,
    /// A reservation that is dropped (the transfer died) is installed all the same.
    DeadLandingInstalled,
    /// A writer overwrites a page that a reader holds.
    CopyOnWriteSkipped,
    /// Attributes of files with dirty data are the store's.
    SizeOverlayIgnored,
    /// COMMIT answers before the data is synced.
    CommitBeforeSync,
    /// A failed write-back counts as done.
    ErrorSwallowed,
    /// The last page keeps its tail when a file is cut.
    CutTailKept,
    /// What lies in a fresh page beyond the bytes written is taken for the file's.
    StaleTailOfWrite,
    /// What lies in a fresh page beyond the bytes read in is taken for the file's.
    StaleTailOfFill,
    /// CLOSE writes nothing back.
    CloseWithoutFlush,
    /// Advice drops what is not written back yet.
    DirtyBlockDropped,
    /// A page may have no more than four million readers.
    ReadersCountedIn22Bits,
    /// What a slot meant is retired when the slot is used again, not when that ends.
    RetiredWhenUsedAgain,
    /// What a slot meant that readers hold is retired when they do not any more.
    RetiredBehindReaders,
    /// All bytes of a file's last block are told to be the file's.
    ValidTooLong,
    /// What a local program changes after a write-back is taken for the server's own change.
    LocalChangeTakenForOurs,
    /// What a local program stores by a mapping, and what leaves no trace in the times, is not
    /// looked for.
    LocalStoresNotSought,
}

#[cfg(feature = "planted")]
mod chosen {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::Defect;

    static CHOSEN: AtomicU32 = AtomicU32::new(0);

    impl Defect {
        /// Those that local programs show: the bars of the mount must find them.
        pub const LOCAL: [Defect; 2] =
            [Defect::LocalChangeTakenForOurs, Defect::LocalStoresNotSought];

        /// Those that the simulation finds.
        pub const ALL: [Defect; 15] = [
            Defect::DirtyBlockEvicted,
            Defect::LateFillWins,
            Defect::DeadLandingInstalled,
            Defect::CopyOnWriteSkipped,
            Defect::SizeOverlayIgnored,
            Defect::CommitBeforeSync,
            Defect::ErrorSwallowed,
            Defect::CutTailKept,
            Defect::StaleTailOfWrite,
            Defect::StaleTailOfFill,
            Defect::CloseWithoutFlush,
            Defect::DirtyBlockDropped,
            Defect::RetiredWhenUsedAgain,
            Defect::RetiredBehindReaders,
            Defect::ValidTooLong,
        ];
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
