//! Waits that end without an answer, and what must be true then.

use std::sync::MutexGuard;
use std::time::{Duration, Instant};

use dafs_protocol::OwnerKey;

use super::{Inner, State};
use crate::core::{Cancelled, Owner};
use crate::error::{Error, Result};
use crate::interrupt::{Interrupt, Until};

/// How long a call that is given up waits for its answer before its connection is broken, where
/// the network may still use memory that the caller lent.
const PATIENCE: Duration = Duration::from_millis(250);
/// Between looks at whether that memory is free.
const SLICE: Duration = Duration::from_millis(5);

impl Inner {
    /// The calls of a sink are given up: returns when nobody has memory that was lent to them,
    /// and the server does not queue them for locks, as far as it can be asked in time. Their
    /// answers may have come meanwhile.
    pub(crate) fn give_up<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        sink: usize,
    ) -> MutexGuard<'a, State> {
        let patience = Instant::now() + PATIENCE;
        loop {
            let over = Instant::now() >= patience;
            match state.core.cancel(Owner(sink)) {
                Cancelled::Free => return state,
                Cancelled::Waiting if over || !state.core.is_connected() => return state,
                // What they hold is free when the connection is quiescent.
                Cancelled::Lent if over => state.core.break_links_of(Owner(sink)),
                Cancelled::Waiting | Cancelled::Lent => {}
            }
            let want = state.sink(sink).done.len() + state.sink(sink).outstanding;
            state = self.wait(state, sink, want, Until::deadline(Instant::now() + SLICE));
        }
    }

    /// Lets some time go by, in which others are driven.
    ///
    /// # Errors
    /// [`Error::Interrupted`].
    pub(crate) fn pause(&self, time: Duration) -> Result<()> {
        let watched = Interrupt::watched();
        let deadline = Some(Instant::now() + time);
        let mut state = self.lock();
        let sink = state.take_sink(false);
        let until = Until { deadline, interrupt: watched.as_deref() };
        state = self.wait(state, sink, usize::MAX, until);
        state.drop_sink(sink);
        let interrupted = watched.is_some_and(|watched| watched.is_fired());
        if interrupted { Err(Error::Interrupted) } else { Ok(()) }
    }

    /// Waits until the locks of an owner are what its calls answered: those of calls that were
    /// given up may still have to be given back.
    ///
    /// # Errors
    /// [`Error::Interrupted`].
    pub(crate) fn settle_owner(&self, owner: OwnerKey) -> Result<()> {
        let mut state = self.lock();
        if !state.core.gives_back(owner) {
            return Ok(());
        }
        let watched = Interrupt::watched();
        let interrupt = watched.as_deref();
        let sink = state.take_sink(false);
        while state.core.gives_back(owner) && !interrupt.is_some_and(Interrupt::is_fired) {
            let deadline = Some(Instant::now() + SLICE);
            state = self.wait(state, sink, usize::MAX, Until { deadline, interrupt });
        }
        let settled = !state.core.gives_back(owner);
        state.drop_sink(sink);
        if settled { Ok(()) } else { Err(Error::Interrupted) }
    }
}
