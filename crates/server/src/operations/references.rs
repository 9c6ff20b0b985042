//! Telling clients of this host where blocks are in the cache, so that they read them by themselves, and others by
//! what they read open files without a request.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use dafs_fabric::{Rkey, mem};
use dafs_protocol::{LifeWord, Outcome, ReferenceInfo, StateId, Status, encode_references};

use super::file::readable;
use crate::chain::Chain;
use crate::config::Optimistic;
use crate::context::Action;
use crate::metrics;
use crate::named::Capability;

impl Chain {
    /// Where `count` blocks of a file are, from block `first` on. What the client reads then he says by the bits of
    /// `accessed`, if that is a key.
    ///
    /// # Errors
    /// `NotSupp`: of this file nobody is told, or not this client, who may not map the cache.
    pub(crate) fn references(
        &mut self,
        state: StateId,
        (first, count): (u64, u32),
        accessed: Rkey,
    ) -> Result<Outcome, Status> {
        let state = self.state(state)?;
        let open = readable(&self.session, state)?;
        let shared = self.context.shared.clone();
        let export = shared.exports.iter().nth(open.export_number().into());
        let optimistic = export.map_or(Optimistic::Off, |export| export.optimistic);
        let is_cached = open.file.cached().is_some();
        let takes_names = self.session.mappable.takes_names(self.conn());
        if is_cached && optimistic.gives_names() && takes_names {
            return self.named_reference(state);
        }
        let may = optimistic.tells_places();
        let file = open.file.cached().filter(|_| may).ok_or(Status::NotSupp)?;
        let shown = file.entries().and_then(|entries| shared.shown.with(entries));
        let (domain, shown) = shown.ok_or(Status::NotSupp)?;
        let keys = self.session.mappable.keys(self.conn(), domain);
        let Some([cache, entries]) = keys else {
            let (session, conn) = (self.session.clone(), self.conn());
            if session.mappable.has_looked(conn, domain) {
                return Err(Status::NotSupp);
            }
            self.context.actions.borrow_mut().push_back(Action::LookAgain { session, conn });
            return Err(Status::Delay);
        };
        let session = self.session.life_word(domain, &shown.life).ok_or(Status::NotSupp)?;
        if accessed != Rkey(0) && !self.session.heeds(domain) {
            let (session, conn) = (self.session.clone(), self.conn());
            let heed = Action::Heed { session, conn, domain, accessed };
            self.context.actions.borrow_mut().push_back(heed);
        }
        let (number, slots) = file.slots(first, count as usize);
        if !file.entries().is_some_and(|now| Arc::ptr_eq(now, &shown.entries)) {
            // It has moved: these are slots of who knows where.
            return Err(Status::NotSupp);
        }
        let bytes = self.put_list(&slots, |slot, out| encode_references([*slot], out))?;
        let told = slots.iter().flatten().count() as u64;
        shared.counters.references_told.fetch_add(told, Ordering::Relaxed);
        metrics::count(&self.session.counters.own_reads.references_told, told);
        let word = |word: mem::LifeWord| LifeWord {
            number: u32::try_from(word.number).unwrap_or(u32::MAX),
            value: word.value,
        };
        Ok(Outcome::References(ReferenceInfo {
            bytes,
            epoch: shown.epoch,
            file: number,
            cache: cache.0,
            entries: entries.0,
            server: word(shown.life.server()),
            session: word(session),
        }))
    }

    /// By what all of an open file is read without a request.
    fn named_reference(&self, state: StateId) -> Result<Outcome, Status> {
        let capability = Capability::whole(state, self.session.number());
        let named = self.context.named_key.borrow().seal(&capability).ok_or(Status::NotSupp)?;
        self.context.shared.counters.named_told.fetch_add(1, Ordering::Relaxed);
        metrics::count(&self.session.counters.own_reads.references_told, 1);
        Ok(Outcome::Named(named))
    }
}
