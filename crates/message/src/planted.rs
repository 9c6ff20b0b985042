//! Defects on purpose. The simulation plants one at a time and must find each; without the
//! feature `planted` there is no code for them.

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
#[cfg_attr(not(feature = "planted"), allow(dead_code))]
pub enum Defect {
    /// Credits are given back twice.
    CreditGivenTwice = 1,
    /// Credits of requests whose data nobody fetched are not given back.
    CreditLost,
    /// A reply is sent although its data was perhaps refused.
    ReplyBeforeData,
    /// A receive that a connection broke off with is posted again at once.
    CaughtReceiveReused,
    /// Quiescence is told when a connection breaks, while it may still touch memory.
    QuiescentTooEarly,
    /// What a reply refers to is given back when the reply leaves.
    ReferenceEndsEarly,
    /// What is lent is given back when the connection is quiescent.
    LoanEndsWithConnection,
}

#[cfg(feature = "planted")]
mod chosen {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::Defect;

    static CHOSEN: AtomicU32 = AtomicU32::new(0);

    impl Defect {
        /// All of them.
        pub const ALL: [Defect; 7] = [
            Defect::CreditGivenTwice,
            Defect::CreditLost,
            Defect::ReplyBeforeData,
            Defect::CaughtReceiveReused,
            Defect::QuiescentTooEarly,
            Defect::ReferenceEndsEarly,
            Defect::LoanEndsWithConnection,
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
