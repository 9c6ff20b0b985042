//! Defects on purpose. The simulation, or random lies, plant one at a time and must find each;
//! without the feature `planted` there is no code for them.

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[cfg_attr(not(feature = "planted"), allow(dead_code))]
pub enum Defect {
    /// A request that is sent again is done again.
    ReplyCacheSkipped = 1,
    /// The answer to a request goes where it was sent first, not where it was sent again.
    AnswerGoesAstray,
    /// A connection that broke while its bind waited is bound all the same.
    BrokenBindCompleted,
    /// A request that is sent again twice is run twice at the same time.
    ReplayStartedTwice,
    /// Sessions of dead clients stay.
    LeaseNeverExpires,
    /// Files of ended sessions stay open.
    OpensLeaked,
    /// An append goes where the file ended when its room was reserved.
    AppendPlacedWhenReserved,
    /// Pages of a reply are let go before it has left.
    HeldTooShort,
    /// Data that did not come is written.
    BrokenTransferInstalled,
    /// A stable write of several pieces syncs the first.
    OnePieceSynced,
    /// A callback that was under way when its connection broke is not sent again.
    CallbackSentOnce,
    /// An unlock wakes nobody.
    UnlockWakesNobody,
    /// A client's first lock is granted before it is recorded.
    LockNotRecorded,
    /// Locks are granted to others while clients may reclaim theirs.
    GraceGrants,
    /// Locks are reclaimed at any time.
    ReclaimedAtAnyTime,
    /// A change is logged as done before it is.
    LoggedBeforeDone,
    /// A note is taken for that of any request of its slot.
    RecordOfAnySequence,
    /// A change that was begun is taken for done, whatever is there.
    BegunBelievedDone,
    /// Changes of one name run side by side.
    NameTurnsNotTaken,
    /// A request sent again with less data ends the fetch of the first, and what nobody filled is
    /// taken for written.
    ResentWithOtherData,
    /// A request sent again with less data goes on as the first: what stands behind that comparison
    /// finds it.
    LengthsNotCompared,
    /// What a READ holds until its reply has left is not counted, however small its pieces are.
    ReadersNotCounted,
    /// What requests hold while they wait for their peers is not counted.
    WaitsNotCounted,
    /// An end leaves the mark of one in order, although not all was written.
    VerifierKeptThoughUnwritten,
    /// The mark of an end in order stays for the server after the next one.
    EndMarkStays,
    /// A key for named references stays for ever.
    KeyNotReplaced,
    /// A named reference is good for any session that has such an open.
    SessionNotLookedAt,
}

#[cfg(feature = "planted")]
mod chosen {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::Defect;

    static CHOSEN: AtomicU32 = AtomicU32::new(0);

    impl Defect {
        /// Those that only a hostile peer finds.
        pub const OF_LIES: [Defect; 3] =
            [Defect::ResentWithOtherData, Defect::ReadersNotCounted, Defect::WaitsNotCounted];

        /// Those that the simulation finds.
        pub const ALL: [Defect; 23] = [
            Defect::ReplyCacheSkipped,
            Defect::AnswerGoesAstray,
            Defect::BrokenBindCompleted,
            Defect::ReplayStartedTwice,
            Defect::LeaseNeverExpires,
            Defect::OpensLeaked,
            Defect::AppendPlacedWhenReserved,
            Defect::HeldTooShort,
            Defect::BrokenTransferInstalled,
            Defect::OnePieceSynced,
            Defect::CallbackSentOnce,
            Defect::UnlockWakesNobody,
            Defect::LockNotRecorded,
            Defect::GraceGrants,
            Defect::ReclaimedAtAnyTime,
            Defect::LoggedBeforeDone,
            Defect::RecordOfAnySequence,
            Defect::BegunBelievedDone,
            Defect::NameTurnsNotTaken,
            Defect::VerifierKeptThoughUnwritten,
            Defect::EndMarkStays,
            Defect::KeyNotReplaced,
            Defect::SessionNotLookedAt,
        ];
    }

    /// Plants one of those that only a hostile peer finds; false: there is none of this name.
    pub fn plant_for_lies(name: &str) -> bool {
        let found = Defect::OF_LIES.into_iter().find(|defect| format!("{defect:?}") == name);
        plant(found);
        if found == Some(Defect::ReadersNotCounted) {
            dafs_unifier::plant(Some(dafs_unifier::Defect::ReadersCountedIn22Bits));
        }
        found.is_some()
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
pub(crate) use chosen::planted;
#[cfg(feature = "planted")]
pub use chosen::{plant, plant_for_lies};

#[cfg(not(feature = "planted"))]
#[inline(always)]
pub(crate) fn planted(_: Defect) -> bool {
    false
}
