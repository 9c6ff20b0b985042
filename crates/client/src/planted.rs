//! Defects on purpose. The simulation plants one at a time and must find each; without the
//! feature `planted` there is no code for them.

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[cfg_attr(not(feature = "planted"), allow(dead_code))]
pub enum Defect {
    /// After a break a request is sent again as a new one, so that it may be done twice.
    ResentAsNew = 1,
    /// After a restart of the server a change whose answer was lost is asked for again.
    OutcomeGuessed,
    /// Writes that went down with a server are not told.
    LostWritesForgotten,
    /// A commit is taken to cover the writes that were acknowledged while it was under way.
    CommitCoversLaterWrites,
    /// After a restart any file under the name is taken for the one that was open.
    ReopenedByNameAlone,
    /// A sync is taken to cover the writes that were acknowledged while it was under way.
    SyncCoversLaterWrites,
    /// A callback that overtook the reply it refers to is taken to be about nothing.
    CallbackTakenEarly,
    /// What a call may have unlocked is reclaimed after a restart.
    UnlockedReclaimed,
    /// Locks are not reclaimed after a restart, and nobody is told.
    LocksForgotten,
    /// Writes that were kept are not written again.
    KeptForgotten,
    /// What a kept write has replaced of an older one is written again in its place.
    KeptReplaced,
    /// What is kept is written again past a later cut.
    KeptUncut,
    /// What a dead server's memory says is believed.
    ServerLifeNotLookedAt,
    /// What was told in a session is believed when that has ended.
    SessionLifeNotLookedAt,
}

#[cfg(feature = "planted")]
mod chosen {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::Defect;

    static CHOSEN: AtomicU32 = AtomicU32::new(0);

    impl Defect {
        /// All of them.
        pub const ALL: [Defect; 14] = [
            Defect::ResentAsNew,
            Defect::OutcomeGuessed,
            Defect::LostWritesForgotten,
            Defect::CommitCoversLaterWrites,
            Defect::ReopenedByNameAlone,
            Defect::SyncCoversLaterWrites,
            Defect::CallbackTakenEarly,
            Defect::UnlockedReclaimed,
            Defect::LocksForgotten,
            Defect::KeptForgotten,
            Defect::KeptReplaced,
            Defect::KeptUncut,
            Defect::ServerLifeNotLookedAt,
            Defect::SessionLifeNotLookedAt,
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
