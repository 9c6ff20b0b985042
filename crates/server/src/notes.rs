//! Notes of what becomes of changes that must not be done twice, for the time after the end of
//! this process: its next run answers its clients from them ([`Fate`]).
//!
//! A file has a head, and places for sessions. A place has a record of whose it is, and one for
//! each slot: the last request there that had such a change, begun or done. A record is written as
//! a whole and in its place, so that what is there is true whenever the process ends. Nothing is
//! synced: with the machine the notes are gone, and the next run of the machine drops them.
//!
//! Where a request changes names once, what it is about to do stands beside the record that it was
//! begun ([`Intent`]). The next server looks, before it serves anybody, whether it was done.

mod intent;
mod record;
mod store;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use dafs_protocol::{Fate, OpResult, Operation, Outcome, SessionId, SlotId, WriteVerifier};
use rustc_hash::FxHashMap;

use crate::locks::Client;
use crate::planted::{Defect, planted};
use intent::{INTENT_BYTES, Noted};
pub(crate) use intent::{Intent, Look, Name};
use record::{Found, Head, Note, Owner, RECORD_BYTES};
pub(crate) use store::FileNotes;
pub use store::{MemoryNotes, NoteStore};

/// Where each record begins: with its intent it crosses no page, so that it is written as a whole.
const SLOT_BYTES: usize = 1024;

/// Leases for which notes of an ended session are kept.
const KEPT_LEASES: u32 = 20;

/// The notes of a server.
pub(crate) struct Notes {
    file: Arc<NoteFile>,
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
struct NoteFile {
    store: Box<dyn NoteStore>,
    slots: u16,
    /// It cannot be written: nobody may rely on it.
    broken: AtomicBool,
    places: Mutex<Places>,
}

#[derive(Default)]
struct Places {
    free: Vec<u32>,
    /// Places so far.
    count: u32,
}

/// A place in the file; free again when nobody has it any more.
struct Place {
    file: Arc<NoteFile>,
    number: u32,
}

/// Where the notes of one session go.
pub(crate) struct SessionNotes {
    place: Arc<Place>,
    session: SessionId,
    client: Client,
}

impl Notes {
    /// With the notes of former servers, where they are of the same run of the machine.
    /// `places_max` bounds the sessions, alive and former; each has at most `slots`. Looks, while
    /// nobody else changes anything, what became of changes that were begun.
    pub(crate) fn load(
        store: Box<dyn NoteStore>,
        verifier: WriteVerifier,
        slots: u16,
        places_max: usize,
        lease: Duration,
        look: Look<'_>,
    ) -> Notes {
        let machine = verifier.0.first_chunk().copied().unwrap_or_default();
        let (broken, places) = (AtomicBool::new(false), Mutex::default());
        let file = Arc::new(NoteFile { store, slots, broken, places });
        let notes = Notes {
            file,
            places_max: u32::try_from(places_max).unwrap_or(u32::MAX),
            kept: lease * KEPT_LEASES,
            former: Mutex::default(),
        };
        let head = Head { machine, slots };
        if let Err(error) = notes.read_file(head, look) {
            notes.file.give_up(&error);
        }
        notes
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
            let place = Arc::new(Place { file: self.file.clone(), number });
            let Found::Record(mut owner) = Owner::decode(&self.file.record(place.start())?) else {
                continue;
            };
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

    /// A session begins. `None`: nothing can be noted of it.
    pub(crate) fn enter(&self, session: SessionId, client: Client) -> Option<SessionNotes> {
        if self.file.is_broken() {
            return None;
        }
        let mut former = self.former();
        former.expire(self.file.store.now().saturating_sub(self.kept));
        let place = self.take_place().or_else(|| {
            former.forget_oldest();
            self.take_place()
        })?;
        drop(former);
        let notes = SessionNotes { place: Arc::new(place), session, client };
        notes.write_owner(0).then_some(notes)
    }

    fn take_place(&self) -> Option<Place> {
        let mut places = self.file.places();
        let number = places.free.pop().or_else(|| {
            let number = places.count;
            places.count = (number < self.places_max).then_some(number + 1)?;
            Some(number)
        })?;
        Some(Place { file: self.file.clone(), number })
    }

    /// A session has ended, and its client may ask for it.
    pub(crate) fn keep(&self, notes: &SessionNotes) {
        let now = self.file.store.now();
        if notes.write_owner(milliseconds(now).max(1)) {
            self.former().add(now, notes.session, notes.client, notes.place.clone());
        }
    }

    /// What became of a request of a session that has ended, as far as `client` may know.
    pub(crate) fn fate(
        &self,
        client: Client,
        session: SessionId,
        slot: SlotId,
        sequence: u32,
    ) -> Fate {
        let former = self.former();
        let known = former.sessions.get(&session).filter(|former| former.client == client);
        let Some(place) = known.map(|former| former.place.clone()) else { return Fate::Unknown };
        drop(former);
        let Some(at) = place.slot(slot).filter(|_| !self.file.is_broken()) else {
            return Fate::Unknown;
        };
        match self.file.record(at).map(|bytes| Note::decode(&bytes)) {
            Ok(Found::Nothing) => Fate::NotBegun,
            // Left by who had the place before.
            Ok(Found::Record(note)) if note.session != session => Fate::NotBegun,
            Ok(Found::Record(note)) if planted(Defect::NoteOfAnySequence) => note.fate,
            Ok(Found::Record(note)) if note.sequence == sequence => note.fate,
            Ok(Found::Record(note)) if is_older(note.sequence, sequence) => Fate::NotBegun,
            _ => Fate::Unknown,
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

    fn forget_oldest(&mut self) {
        if let Some((_, session)) = self.order.pop_front() {
            self.sessions.remove(&session);
        }
    }
}

impl SessionNotes {
    /// The first change of a request is about to be made. `intent`: what it will do, if that is
    /// the only one of so many operations.
    pub(crate) fn begun(&self, slot: SlotId, sequence: u32, intent: Option<(usize, Intent)>) {
        let done = Fate::Done { operations: 1, status: Ok(()), value: 0, created: true };
        let fate = if planted(Defect::NotedBeforeDone) { done } else { Fate::Begun };
        let note = Note { session: self.session, sequence, fate };
        let intent = intent.and_then(|(operations, intent)| {
            let operations = u16::try_from(operations).ok()?;
            Noted { session: self.session, sequence, operations, intent }.encode()
        });
        let mut both = [0; RECORD_BYTES + INTENT_BYTES];
        let (record, rest) = both.split_at_mut(RECORD_BYTES);
        record.copy_from_slice(&note.encode()); // not payload: records of fixed size
        // Without one, none of an earlier run of this request stays.
        rest.copy_from_slice(&intent.unwrap_or([0; INTENT_BYTES])); // not payload: as above
        if let Some(at) = self.place.slot(slot) {
            self.place.file.write(at, &both);
        }
    }

    /// A request ran to its end; its reply has not left yet.
    pub(crate) fn done(&self, slot: SlotId, sequence: u32, fate: Fate) {
        self.write(slot, Note { session: self.session, sequence, fate });
    }

    /// The client has ended the session: it asks for nothing.
    pub(crate) fn forget(&self) {
        self.place.file.write(self.place.start(), &[0; RECORD_BYTES]);
    }

    fn write(&self, slot: SlotId, note: Note) {
        if let Some(at) = self.place.slot(slot) {
            self.place.file.write(at, &note.encode());
        }
    }

    fn write_owner(&self, ended: u64) -> bool {
        let owner = Owner { session: self.session, client: self.client, ended };
        self.place.file.write(self.place.start(), &owner.encode())
    }
}

impl NoteFile {
    fn place_bytes(&self) -> u64 {
        (u64::from(self.slots) + 1) * SLOT_BYTES as u64
    }

    fn record(&self, at: u64) -> std::io::Result<record::Bytes> {
        let mut bytes = [0; RECORD_BYTES];
        self.store.read(at, &mut bytes)?;
        Ok(bytes)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> bool {
        if self.is_broken() {
            return false;
        }
        let written = self.store.write(at, bytes);
        written.map_err(|error| self.give_up(&error)).is_ok()
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
        SLOT_BYTES as u64 + u64::from(self.number) * self.file.place_bytes()
    }

    fn slot(&self, slot: SlotId) -> Option<u64> {
        let below = slot.0 < self.file.slots;
        below.then(|| self.start() + (u64::from(slot.0) + 1) * SLOT_BYTES as u64)
    }

    /// Notes of what was begun what became of it, where that can be seen.
    fn resolve(&self, session: SessionId, look: Look<'_>) -> std::io::Result<()> {
        let store = &self.file.store;
        let mut all = vec![0; usize::try_from(self.file.place_bytes()).unwrap_or(0)];
        store.read(self.start(), &mut all)?;
        let (records, _) = all.as_chunks::<SLOT_BYTES>();
        let Some((_owner, slots)) = records.split_first() else { return Ok(()) };
        for (slot, bytes) in (0..).map(SlotId).zip(slots) {
            let Some((record, rest)) = bytes.split_first_chunk() else { continue };
            let Some(intent) = rest.first_chunk() else { continue };
            let Found::Record(note) = Note::decode(record) else { continue };
            let Found::Record(noted) = Noted::decode(intent) else { continue };
            let is_its = (noted.session, noted.sequence) == (session, note.sequence);
            if note.session != session || note.fate != Fate::Begun || !is_its {
                continue;
            }
            let (Some(fate), Some(at)) = (noted.fate(look), self.slot(slot)) else { continue };
            let record = match fate {
                // As if nothing had been asked.
                Fate::NotBegun => [0; RECORD_BYTES],
                fate => Note { fate, ..note }.encode(),
            };
            store.write(at, &record)?;
        }
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.file.places().free.push(self.number);
    }
}

/// As it is told of a chain that ran to its end.
pub(crate) fn fate_of(operations: &[Operation<'_>], results: &[OpResult]) -> Fate {
    let done = operations
        .iter()
        .zip(results)
        .filter_map(|(operation, result)| result.as_ref().ok().filter(|_| operation.is_noted()));
    let number = |outcome: &Outcome| match outcome {
        Outcome::Written { offset, .. } => Some(*offset),
        Outcome::Found { attr, .. } | Outcome::Attributes { attr } => Some(attr.inode),
        Outcome::Opened { attr, .. } => Some(attr.inode),
        _ => None,
    };
    let made = |outcome: &Outcome| matches!(outcome, Outcome::Opened { created: true, .. });
    let succeeded = results.iter().take_while(|result| result.is_ok()).count();
    Fate::Done {
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
