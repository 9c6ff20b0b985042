//! A log of what becomes of changes that must not be done twice, for the time after the end of
//! this process: its next run answers its clients from them ([`RequestOutcome`]).
//!
//! A file has a head, and places for sessions. A place has a record of whose it is, and one for
//! each slot: the last request there that had such a change, begun or done. A record is written as
//! a whole and in its place, so that what is there is true whenever the process ends. Nothing is
//! synced: with the machine the log is gone, and the next run of the machine drops them.
//!
//! Where a request changes names once, what it is about to do stands beside the record that it was
//! begun ([`Intent`]). The next server looks, before it serves anybody, whether it was done.

mod intent;
mod record;
mod store;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dafs_protocol::{
    OpResult, Operation, Outcome, RequestOutcome, SessionId, SlotId, WriteVerifier,
};
use rustc_hash::FxHashMap;

use crate::locks::Client;
use crate::planted::{Defect, planted};
use intent::{INTENT_BYTES, Logged};
pub(crate) use intent::{Intent, Look, Name};
use record::{Found, Head, Owner, RECORD_BYTES, Record};
pub(crate) use store::LogFile;
pub use store::{LogStore, MemoryLog};

/// Where each record begins: with its intent it crosses no page, so that it is written as a whole.
const SLOT_BYTES: usize = 1024;

/// Leases for which the log of an ended session is kept.
const KEPT_LEASES: u32 = 20;

/// The log of a server.
pub(crate) struct IntentLog {
    file: Arc<Log>,
    places_max: u32,
    kept: Duration,
    former: Mutex<Former>,
}

/// Sessions that ended while their clients may want to know more.
#[derive(Default)]
struct Former {
    sessions: FxHashMap<SessionId, FormerSession>,
    /// In the order of their ends.
    order: VecDeque<(Duration, SessionId)>,
}

struct FormerSession {
    client: Client,
    place: Arc<Place>,
}

/// The file, and which of its places are in use.
struct Log {
    store: Box<dyn LogStore>,
    slots: u16,
    /// It cannot be written: nobody may rely on it.
    broken: AtomicBool,
    /// It could not be written last, and that was told.
    is_full: AtomicBool,
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    free: Vec<u32>,
    /// Places so far.
    count: u32,
    /// Those that users have.
    of_user: FxHashMap<u32, usize>,
}

impl Places {
    fn of(&self, uid: u32) -> usize {
        self.of_user.get(&uid).copied().unwrap_or(0)
    }

    /// Who has the most.
    fn greatest(&self) -> Option<u32> {
        self.of_user.iter().max_by_key(|(uid, count)| (**count, **uid)).map(|(uid, _)| *uid)
    }
}

/// A place in the file; free again when nobody has it any more.
struct Place {
    file: Arc<Log>,
    number: u32,
    /// Whose.
    uid: u32,
}

/// Where what is logged of one session goes.
pub(crate) struct SessionLog {
    place: Arc<Place>,
    session: SessionId,
    client: Client,
    gaps: Mutex<Gaps>,
}

/// What could not be written, for want of room. While there is some, nothing says whose the place
/// is: what stands in it is not believed.
#[derive(Default)]
struct Gaps {
    records: BTreeMap<u64, Vec<u8>>,
    is_hidden: bool,
}

impl IntentLog {
    /// With the log of former servers, where they are of the same run of the machine.
    /// `places_max` bounds the sessions, alive and former; each has at most `slots`. Looks, while
    /// nobody else changes anything, what became of changes that were begun.
    pub(crate) fn load(
        store: Box<dyn LogStore>,
        verifier: WriteVerifier,
        slots: u16,
        places_max: usize,
        lease: Duration,
        look: Look<'_>,
    ) -> IntentLog {
        let machine = verifier.0.first_chunk().copied().unwrap_or_default();
        let (broken, is_full, places) = Default::default();
        let file = Arc::new(Log { store, slots, broken, is_full, places });
        let intent_log = IntentLog {
            file,
            places_max: u32::try_from(places_max).unwrap_or(u32::MAX),
            kept: lease * KEPT_LEASES,
            former: Mutex::default(),
        };
        let head = Head { machine, slots };
        if let Err(error) = intent_log.read_file(head, look) {
            intent_log.file.give_up(&error);
        }
        intent_log
    }

    fn read_file(&self, head: Head, look: Look<'_>) -> std::io::Result<()> {
        let store = &self.file.store;
        if Head::decode(&self.file.record(0)?) != Found::Record(head) {
            store.clear()?;
            return store.write(0, &head.encode());
        }
        let bytes = store.bytes()?.saturating_sub(SLOT_BYTES as u64);
        let count = bytes.div_ceil(self.file.place_bytes());
        let count = u32::try_from(count).unwrap_or(u32::MAX).min(self.places_max);
        self.file.places().count = count;
        let now = store.now();
        let mut ended = Vec::new();
        // Those that are not kept are free when they are dropped.
        for number in 0..count {
            let owner = Owner::decode(&self.file.record(self.file.start(number))?);
            let Found::Record(mut owner) = owner else {
                self.file.places().free.push(number);
                continue;
            };
            let place = Arc::new(self.file.place(number, owner.client.uid));
            if owner.ended == 0 {
                place.resolve(owner.session, look)?;
                owner.ended = milliseconds(now);
                store.write(place.start(), &owner.encode())?;
            }
            ended.push((owner, place));
        }
        ended.sort_by_key(|(owner, _)| (owner.ended, owner.session));
        let mut former = self.former();
        for (owner, place) in ended {
            former.add(Duration::from_millis(owner.ended), owner.session, owner.client, place);
        }
        former.expire(now.saturating_sub(self.kept));
        Ok(())
    }

    /// A session begins. `None`: nothing can be logged of it. Its user has at most `most` places:
    /// where these or all are taken, former sessions are forgotten, the user's, or of who has the
    /// most.
    pub(crate) fn enter(
        &self,
        session: SessionId,
        client: Client,
        most: usize,
    ) -> Option<SessionLog> {
        if self.file.is_broken() {
            return None;
        }
        let mut former = self.former();
        former.expire(self.file.store.now().saturating_sub(self.kept));
        if self.file.places().of(client.uid) >= most {
            former.forget_oldest_of(client.uid);
        }
        if self.file.places().of(client.uid) >= most {
            return None;
        }
        let place = self.take_place(client.uid).or_else(|| {
            let greatest = self.file.places().greatest();
            if !greatest.is_some_and(|uid| former.forget_oldest_of(uid)) {
                former.forget_oldest();
            }
            self.take_place(client.uid)
        })?;
        drop(former);
        let (place, gaps) = (Arc::new(place), Mutex::default());
        let intent_log = SessionLog { place, session, client, gaps };
        intent_log.write_owner(0).then_some(intent_log)
    }

    fn take_place(&self, uid: u32) -> Option<Place> {
        let mut places = self.file.places();
        let number = places.free.pop().or_else(|| {
            let number = places.count;
            places.count = (number < self.places_max).then_some(number + 1)?;
            Some(number)
        })?;
        drop(places);
        Some(self.file.place(number, uid))
    }

    /// A session has ended, and its client may ask for it.
    pub(crate) fn keep(&self, intent_log: &SessionLog) {
        let now = self.file.store.now();
        if intent_log.fill_gaps() && intent_log.write_owner(milliseconds(now).max(1)) {
            self.former().add(now, intent_log.session, intent_log.client, intent_log.place.clone());
        }
    }

    /// What became of a request of a session that has ended, as far as `client` may know.
    pub(crate) fn request_outcome(
        &self,
        client: Client,
        session: SessionId,
        slot: SlotId,
        sequence: u32,
    ) -> RequestOutcome {
        let former = self.former();
        let known = former.sessions.get(&session).filter(|former| former.client == client);
        let Some(place) = known.map(|former| former.place.clone()) else {
            return RequestOutcome::Unknown;
        };
        drop(former);
        let Some(at) = place.slot(slot).filter(|_| !self.file.is_broken()) else {
            return RequestOutcome::Unknown;
        };
        match self.file.record(at).map(|bytes| Record::decode(&bytes)) {
            Ok(Found::Nothing) => RequestOutcome::NotBegun,
            // Left by who had the place before.
            Ok(Found::Record(record)) if record.session != session => RequestOutcome::NotBegun,
            Ok(Found::Record(record)) if planted(Defect::RecordOfAnySequence) => {
                record.request_outcome
            }
            Ok(Found::Record(record)) if record.sequence == sequence => record.request_outcome,
            Ok(Found::Record(record)) if is_older(record.sequence, sequence) => {
                RequestOutcome::NotBegun
            }
            _ => RequestOutcome::Unknown,
        }
    }

    fn former(&self) -> MutexGuard<'_, Former> {
        self.former.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Former {
    fn add(&mut self, ended: Duration, session: SessionId, client: Client, place: Arc<Place>) {
        self.order.push_back((ended, session));
        self.sessions.insert(session, FormerSession { client, place });
    }

    /// Those that ended before.
    fn expire(&mut self, before: Duration) {
        while self.order.front().is_some_and(|(ended, _)| *ended < before) {
            self.forget_oldest();
        }
    }

    /// True where there was one.
    fn forget_oldest_of(&mut self, uid: u32) -> bool {
        let sessions = &self.sessions;
        let is_of = |session| sessions.get(session).is_some_and(|one| one.client.uid == uid);
        let Some(at) = self.order.iter().position(|(_, session)| is_of(session)) else {
            return false;
        };
        let oldest = self.order.remove(at);
        oldest.is_some_and(|(_, session)| self.sessions.remove(&session).is_some())
    }

    fn forget_oldest(&mut self) {
        if let Some((_, session)) = self.order.pop_front() {
            self.sessions.remove(&session);
        }
    }
}

impl SessionLog {
    /// The first change of a request is about to be made. `intent`: what it will do, if that is
    /// the only one of so many operations.
    pub(crate) fn begun(&self, slot: SlotId, sequence: u32, intent: Option<(usize, Intent)>) {
        let done = RequestOutcome::Done { operations: 1, status: Ok(()), value: 0, created: true };
        let request_outcome =
            if planted(Defect::LoggedBeforeDone) { done } else { RequestOutcome::Begun };
        let begun = Record { session: self.session, sequence, request_outcome };
        let intent = intent.and_then(|(operations, intent)| {
            let operations = u16::try_from(operations).ok()?;
            Logged { session: self.session, sequence, operations, intent }.encode()
        });
        let mut both = [0; RECORD_BYTES + INTENT_BYTES];
        let (record, rest) = both.split_at_mut(RECORD_BYTES);
        record.copy_from_slice(&begun.encode()); // not payload: records of fixed size
        // Without one, none of an earlier run of this request stays.
        rest.copy_from_slice(&intent.unwrap_or([0; INTENT_BYTES])); // not payload: as above
        self.write(slot, &both);
    }

    /// A request ran to its end; its reply has not left yet.
    pub(crate) fn done(&self, slot: SlotId, sequence: u32, request_outcome: RequestOutcome) {
        self.write(slot, &Record { session: self.session, sequence, request_outcome }.encode());
    }

    /// The client has ended the session: it asks for nothing.
    pub(crate) fn forget(&self) {
        self.place.file.overwrite(self.place.start(), &[0; RECORD_BYTES]);
    }

    fn write(&self, slot: SlotId, record: &[u8]) {
        let Some(at) = self.place.slot(slot) else { return };
        let mut gaps = self.gaps();
        if self.place.file.write(at, record) {
            gaps.records.remove(&at);
            self.fill(&mut gaps);
            return;
        }
        gaps.records.insert(at, record.to_vec()); // not payload: a record of fixed size
        if !gaps.is_hidden {
            self.forget();
            gaps.is_hidden = true;
        }
    }

    /// Tries again what could not be written. True: all is there.
    fn fill_gaps(&self) -> bool {
        let mut gaps = self.gaps();
        self.fill(&mut gaps);
        !gaps.is_hidden
    }

    fn fill(&self, gaps: &mut Gaps) {
        if !gaps.is_hidden {
            return;
        }
        gaps.records.retain(|at, record| !self.place.file.write(*at, record));
        gaps.is_hidden = !(gaps.records.is_empty() && self.write_owner(0));
    }

    fn gaps(&self) -> MutexGuard<'_, Gaps> {
        self.gaps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write_owner(&self, ended: u64) -> bool {
        let owner = Owner { session: self.session, client: self.client, ended };
        self.place.file.write(self.place.start(), &owner.encode())
    }
}

impl Log {
    fn place_bytes(&self) -> u64 {
        (u64::from(self.slots) + 1) * SLOT_BYTES as u64
    }

    fn start(&self, place: u32) -> u64 {
        SLOT_BYTES as u64 + u64::from(place) * self.place_bytes()
    }

    /// A place that is free, for a user.
    fn place(self: &Arc<Self>, number: u32, uid: u32) -> Place {
        *self.places().of_user.entry(uid).or_default() += 1;
        Place { file: self.clone(), number, uid }
    }

    fn record(&self, at: u64) -> std::io::Result<record::Bytes> {
        let mut bytes = [0; RECORD_BYTES];
        self.store.read(at, &mut bytes)?;
        Ok(bytes)
    }

    /// False: there is no room now, or nothing can be written any more.
    fn write(&self, at: u64, bytes: &[u8]) -> bool {
        if self.is_broken() {
            return false;
        }
        let written = self.store.write(at, bytes);
        if let Err(error) = &written
            && !self.is_full.swap(true, Ordering::Relaxed)
        {
            tracing::warn!(%error, "some of what becomes of changes cannot be noted now");
        }
        if written.is_ok() {
            self.is_full.store(false, Ordering::Relaxed);
        }
        written.is_ok()
    }

    /// Of what was written before, which takes no room.
    fn overwrite(&self, at: u64, bytes: &[u8]) {
        if !self.is_broken()
            && let Err(error) = self.store.write(at, bytes)
        {
            self.give_up(&error);
        }
    }

    fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// What is not complete must not be believed: without a head nothing is.
    fn give_up(&self, error: &std::io::Error) {
        self.broken.store(true, Ordering::Relaxed);
        tracing::warn!(%error, "what becomes of changes cannot be noted");
        if let Err(error) = self.store.clear() {
            tracing::error!(%error, "notes that are not complete cannot be dropped");
        }
    }

    fn places(&self) -> MutexGuard<'_, Places> {
        self.places.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Place {
    fn start(&self) -> u64 {
        self.file.start(self.number)
    }

    fn slot(&self, slot: SlotId) -> Option<u64> {
        let below = slot.0 < self.file.slots;
        below.then(|| self.start() + (u64::from(slot.0) + 1) * SLOT_BYTES as u64)
    }

    /// A log of what was begun what became of it, where that can be seen.
    fn resolve(&self, session: SessionId, look: Look<'_>) -> std::io::Result<()> {
        let store = &self.file.store;
        let mut all = vec![0; usize::try_from(self.file.place_bytes()).unwrap_or(0)];
        store.read(self.start(), &mut all)?;
        let (records, _) = all.as_chunks::<SLOT_BYTES>();
        let Some((_owner, slots)) = records.split_first() else { return Ok(()) };
        for (slot, bytes) in (0..).map(SlotId).zip(slots) {
            let Some((record, rest)) = bytes.split_first_chunk() else { continue };
            let Some(intent) = rest.first_chunk() else { continue };
            let Found::Record(record) = Record::decode(record) else { continue };
            let Found::Record(logged) = Logged::decode(intent) else { continue };
            let is_its = (logged.session, logged.sequence) == (session, record.sequence);
            if record.session != session
                || record.request_outcome != RequestOutcome::Begun
                || !is_its
            {
                continue;
            }
            let (Some(request_outcome), Some(at)) = (logged.request_outcome(look), self.slot(slot))
            else {
                continue;
            };
            let record = match request_outcome {
                // As if nothing had been asked.
                RequestOutcome::NotBegun => [0; RECORD_BYTES],
                request_outcome => Record { request_outcome, ..record }.encode(),
            };
            store.write(at, &record)?;
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut places = self.file.places();
        places.free.push(self.number);
        if let Some(count) = places.of_user.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                places.of_user.remove(&self.uid);
            }
        }
    }
}

/// What a change made or set is told. (A removal and a rename answer what lost its last name.)
fn tells(operation: &Operation<'_>) -> bool {
    let removes = matches!(operation, Operation::Remove { .. } | Operation::Rename { .. });
    operation.is_logged() && !removes
}

/// As it is told of a chain that ran to its end.
pub(crate) fn request_outcome_of(
    operations: &[Operation<'_>],
    results: &[OpResult],
) -> RequestOutcome {
    let done = operations
        .iter()
        .zip(results)
        .filter_map(|(operation, result)| result.as_ref().ok().filter(|_| tells(operation)));
    let number = |outcome: &Outcome| match outcome {
        Outcome::Written { offset, .. } => Some(*offset),
        Outcome::Found { attr, .. } | Outcome::Attributes { attr } => Some(attr.inode),
        Outcome::Opened { attr, .. } => Some(attr.inode),
        _ => None,
    };
    let made = |outcome: &Outcome| matches!(outcome, Outcome::Opened { created: true, .. });
    let succeeded = results.iter().take_while(|result| result.is_ok()).count();
    RequestOutcome::Done {
        operations: u16::try_from(succeeded).unwrap_or(u16::MAX),
        status: results.iter().find_map(|result| result.as_ref().err()).map_or(Ok(()), |s| Err(*s)),
        value: done.clone().filter_map(number).next_back().unwrap_or(0),
        created: done.clone().any(made),
    }
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// As the sequences of a slot go round.
fn is_older(sequence: u32, than: u32) -> bool {
    (1..1 << 31).contains(&than.wrapping_sub(sequence))
}
