//! Cache domains: memory for file data that is apart, each with an index and segments of its own.
//!
//! Who may read the memory of a domain by himself reads all that is in it. So a file is in one
//! domain at a time, and memory of a domain never becomes another's: it goes back to the system, as
//! zeros come from there. What all take together has one bound. Each domain has a part of it, which
//! grows where data had to go for other data, and where others leave theirs unused.

use std::cmp::Reverse;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock};
use std::thread::Thread;
use std::time::Duration;

use dafs_fabric::Words;
use dafs_fabric::mem::PAGE_BYTES;
use dafs_protocol::{Attr, Status, WriteVerifier};
use dafs_store::{File, FileId};

use crate::file::CachedFile;
use crate::job::wait_all;
use crate::placement::{DomainId, DomainSet, Placement};
use crate::unifier::HoldPermit;
use crate::wait::locked;
use crate::{AccessedBits, CacheStats, Mark, Opening, Unifier, WriterId};

/// What one look moves from a domain to another, as a part of all.
const STEP_PART: u64 = 16;

/// One of the [`CacheDomains`].
pub struct CacheDomain {
    name: String,
    unifier: Arc<Unifier>,
}

impl CacheDomain {
    /// With this index and its memory. The name is for people.
    pub fn new(name: impl Into<String>, unifier: Arc<Unifier>) -> CacheDomain {
        CacheDomain { name: name.into(), unifier }
    }

    /// For people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Counters and sizes of its own.
    pub fn stats(&self) -> CacheStats {
        self.unifier.stats()
    }

    /// Bytes of memory that it may take now.
    pub fn bytes(&self) -> u64 {
        self.unifier.kept_bytes()
    }
}

/// All the domains of a server: a cache of all files, each in one of them.
pub struct CacheDomains {
    /// The first ones are there.
    all: Box<[OnceLock<CacheDomain>]>,
    /// What all of them may take.
    budget: Mutex<Budget>,
    /// Held while a file comes to a domain, so that it is in no other.
    coming: Arc<Mutex<()>>,
    /// Held by all through whom a file comes to the only domain, and by who adds another one.
    growing: RwLock<()>,
    /// Gets memory ahead of use.
    prefaulter: OnceLock<Thread>,
}

struct Budget {
    bytes: u64,
    /// What each had evicted when it was looked at last.
    evicted: Vec<u64>,
}

impl CacheDomains {
    /// No more than so many, those that [are added](Self::add) among them.
    pub const MAX: usize = u64::BITS as usize;

    /// These, which take at most so many bytes together and begin with equal parts of them. So many `more` can be
    /// added.
    ///
    /// # Panics
    /// Without a domain, or with more than [`MAX`](Self::MAX).
    pub fn new(bytes: u64, all: Vec<CacheDomain>, more: usize) -> Arc<CacheDomains> {
        let count = all.len();
        assert!(count > 0, "a cache has a domain");
        assert!(count + more <= CacheDomains::MAX, "{count} cache domains and {more} more");
        if count > 1 {
            let part = bytes / count as u64;
            all.iter().for_each(|domain| _ = domain.unifier.resize(part));
        }
        let places = all.into_iter().map(OnceLock::from);
        Arc::new(CacheDomains {
            all: places.chain((0..more).map(|_| OnceLock::new())).collect(),
            budget: Mutex::new(Budget { bytes, evicted: vec![0; count] }),
            coming: Arc::default(),
            growing: RwLock::default(),
            prefaulter: OnceLock::new(),
        })
    }

    /// All, by their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &CacheDomain> {
        self.all.iter().map_while(OnceLock::get)
    }

    fn all(&self) -> Vec<&CacheDomain> {
        self.iter().collect()
    }

    /// One more, which is made once others have left it the [least](Unifier::least_bytes_of) that it always keeps;
    /// it gets more as it evicts. `None`: there are enough, or others have no room for it now.
    ///
    /// # Errors
    /// Those of who makes it.
    pub fn add<E>(
        &self,
        least: u64,
        make: impl FnOnce() -> Result<CacheDomain, E>,
    ) -> Result<Option<DomainId>, E> {
        let mut budget = locked(&self.budget);
        let free = self.all.iter().enumerate().find(|(_, at)| at.get().is_none());
        let Some((number, place)) = free.filter(|_| self.make_room(least, &budget)) else {
            return Ok(None);
        };
        let domain = make()?;
        // Some keep whole segments.
        let takes = domain.unifier.resize(0);
        if takes > least && !self.make_room(takes, &budget) {
            return Ok(None);
        }
        if let Some(thread) = self.prefaulter.get() {
            domain.unifier.prefaulted_by(thread.clone());
        }
        budget.evicted.push(0);
        // Who found that there was one domain has opened there what he opens.
        let _growing = self.growing.write().unwrap_or_else(PoisonError::into_inner);
        // Nobody else adds any: the budget is locked.
        let is_added = place.set(domain).is_ok();
        Ok(is_added.then_some(DomainId(number)))
    }

    /// The others leave so many bytes, those first who do not use what they have. False: they cannot, for now.
    fn make_room(&self, bytes: u64, budget: &MutexGuard<'_, Budget>) -> bool {
        let taken = || self.iter().map(CacheDomain::bytes).sum::<u64>();
        let lacks = || (taken() + bytes).saturating_sub(budget.bytes);
        let least: u64 = self.iter().map(|domain| domain.unifier.least_bytes()).sum();
        if least + bytes > budget.bytes {
            // Nobody loses what is cached for nothing.
            return false;
        }
        let mut givers = self.all();
        givers.sort_by_key(|giver| Reverse((giver.unused(), giver.bytes())));
        for giver in givers {
            match lacks() {
                0 => break,
                bytes => _ = giver.unifier.resize(giver.bytes().saturating_sub(bytes)),
            }
        }
        lacks() == 0
    }

    /// As [`Unifier::add_accessed`], of this domain.
    pub fn add_accessed(
        &self,
        domain: DomainId,
        bits: Words,
        of: (u32, usize),
    ) -> Option<AccessedBits> {
        self.at(domain)?.unifier.add_accessed(bits, of)
    }

    fn at(&self, domain: DomainId) -> Option<&CacheDomain> {
        self.all.get(domain.0)?.get()
    }

    pub(crate) fn first(&self) -> &Arc<Unifier> {
        &self.at(DomainId::FIRST).expect("a cache has a domain").unifier
    }

    fn has_one(&self) -> bool {
        self.at(DomainId(1)).is_none()
    }

    /// See [`Unifier::mark`].
    pub fn mark(&self) -> Mark {
        self.first().mark()
    }

    /// As [`Unifier::open`], in the domain where it is to be, or where it is open already: a file is in one domain
    /// as long as somebody has it open, or some of it is to be written. Otherwise what another domain has of it is
    /// dropped. An unknown domain is the first. Who finds it where it is [barred](Placement::barred)
    /// [moves it out](Self::move_out).
    pub fn open(
        &self,
        place: Placement,
        mark: Mark,
        writer: WriterId,
        file: Arc<dyn File>,
        attr: &Attr,
        opening: Opening,
    ) -> Arc<CachedFile> {
        let growing = self.growing.read().unwrap_or_else(PoisonError::into_inner);
        if self.has_one() {
            let (cached, recut) = self.first().begin_open(mark, writer, file, attr, opening);
            drop(growing);
            self.first().end_open(recut);
            return cached;
        }
        drop(growing);
        let coming = locked(&self.coming);
        let domain = self.at(self.place(place, mark, file.id()));
        let unifier = domain.map_or(self.first(), |domain| &domain.unifier);
        let (cached, recut) = unifier.begin_open(mark, writer, file, attr, opening);
        drop(coming);
        unifier.end_open(recut);
        cached
    }

    /// Where a file is from now on that is about to be opened.
    fn place(&self, place: Placement, mark: Mark, id: FileId) -> DomainId {
        if let Some(known) = self.domain_with(id) {
            let is_wished = place.wished.is_none_or(|wished| wished == known);
            if is_wished && !place.barred.contains(known) {
                return known;
            }
            // Who has changed it since it was looked at tells what it is like now.
            if self.find(id).is_some_and(|file| file.has_changed_since(mark)) {
                return known;
            }
            self.forget(id);
            if let Some(still) = self.domain_with(id) {
                return still;
            }
        }
        place.wished.unwrap_or_default()
    }

    fn domain_with(&self, id: FileId) -> Option<DomainId> {
        self.iter().position(|domain| domain.unifier.find(id).is_some()).map(DomainId)
    }

    /// In which domain a file is, now.
    pub fn domain_of(&self, file: &CachedFile) -> Option<DomainId> {
        self.iter().position(|domain| domain.unifier.has(file)).map(DomainId)
    }

    /// What is cached of a file, and what is read and written from now on, is to be in the first domain, also if it
    /// is open: what is dirty is written back, and all its pages are dropped.
    ///
    /// # Errors
    /// The store's: it stays where it is.
    pub async fn move_out(&self, file: &Arc<CachedFile>) -> Result<(), Status> {
        self.first().take(file, &self.coming).await
    }

    /// Nothing of this file is to be in these domains: if it is open, it is [moved out](Self::move_out).
    ///
    /// # Errors
    /// As there.
    pub async fn bar(&self, id: FileId, from: DomainSet) -> Result<(), Status> {
        let barred = self.iter().enumerate().skip(1).filter(|(at, _)| from.contains(DomainId(*at)));
        for (_, domain) in barred {
            domain.unifier.forget(id);
            if let Some(file) = domain.unifier.find(id) {
                self.move_out(&file).await?;
            }
        }
        Ok(())
    }

    /// As [`bar`](Self::bar), of all files that are in this domain to which the [way](CachedFile::note_ancestors) leads through
    /// this directory, or is not known, but for those that are open and by now
    /// [for everybody](dafs_store::File::public_ancestors).
    ///
    /// # Errors
    /// As there, of the first file of which that failed. All others are elsewhere.
    pub async fn bar_below(&self, dir: FileId, domain: DomainId) -> Result<(), Status> {
        let Some(from) = self.at(domain).filter(|_| domain != DomainId::FIRST) else {
            return Ok(());
        };
        let mut outcome = Ok(());
        let below = from.unifier.files().into_iter().filter(|file| file.is_below(dir));
        for file in below {
            from.unifier.forget(file.id());
            if from.unifier.find(file.id()).is_some() && !file.is_for_everybody().await {
                outcome = outcome.and(self.move_out(&file).await);
            }
        }
        outcome
    }

    /// See [`Unifier::find`].
    pub fn find(&self, id: FileId) -> Option<Arc<CachedFile>> {
        self.iter().find_map(|domain| domain.unifier.find(id))
    }

    /// See [`Unifier::overlay`].
    pub fn overlay(&self, mark: Mark, attr: &mut Attr) {
        self.iter().for_each(|domain| domain.unifier.overlay(mark, attr));
    }

    /// See [`Unifier::look`].
    pub fn look(&self, mark: Mark, attr: &Attr) {
        self.iter().for_each(|domain| domain.unifier.look(mark, attr));
    }

    /// See [`Unifier::note`].
    pub fn note(&self, mark: Mark, attr: &Attr) {
        self.iter().for_each(|domain| domain.unifier.note(mark, attr));
    }

    /// See [`Unifier::note_unmodified`].
    pub fn note_unmodified(&self, mark: Mark, attr: &Attr) {
        self.iter().for_each(|domain| domain.unifier.note_unmodified(mark, attr));
    }

    /// See [`Unifier::forget`].
    pub fn forget(&self, id: FileId) {
        self.iter().for_each(|domain| domain.unifier.forget(id));
    }

    /// See [`Unifier::verifier`].
    #[inline]
    pub fn verifier(&self) -> WriteVerifier {
        self.first().verifier()
    }

    /// See [`Unifier::has_lost`].
    pub fn has_lost(&self) -> bool {
        self.iter().any(|domain| domain.unifier.has_lost())
    }

    /// See [`Unifier::hold_permit`]. One for all: who holds data of one domain may wait for another.
    pub async fn hold_permit(&self) -> HoldPermit<'_> {
        self.first().hold_permit().await
    }

    /// Counters and sizes of all together. What one domain leaves to the others is not given back.
    pub fn stats(&self) -> CacheStats {
        let mut sum = CacheStats::default();
        self.iter().for_each(|domain| sum.add(&domain.stats()));
        let unused = sum.decommitted_bytes;
        let spare: u64 = self.iter().skip(1).map(|one| one.unifier.arena_bytes()).sum();
        CacheStats { decommitted_bytes: unused.saturating_sub(spare), ..sum }
    }

    /// See [`Unifier::resize`]: of all together. Each has less, or more, in proportion to what it has.
    pub fn resize(&self, bytes: u64) -> u64 {
        // Until the end: who adds a domain takes from the others what it is to have.
        let mut budget = locked(&self.budget);
        if self.has_one() {
            budget.bytes = bytes.min(self.first().arena_bytes());
            return self.first().resize(bytes);
        }
        let most = self.iter().map(|domain| domain.unifier.arena_bytes()).max().unwrap_or(0);
        budget.bytes = bytes.min(most);
        let now: u64 = self.iter().map(CacheDomain::bytes).sum();
        let part = |domain: &CacheDomain| scale(domain.bytes(), (budget.bytes, now.max(1)));
        let wished: Vec<u64> = self.iter().map(part).collect();
        // First who is to have less, as all together never are to have more.
        let mut taken = now;
        for less in [true, false] {
            for (domain, wished) in self.iter().zip(&wished) {
                let before = domain.bytes();
                if (*wished < before) == less {
                    let others = taken - before;
                    let room = budget.bytes.saturating_sub(others);
                    taken = others + domain.unifier.resize((*wished).min(room));
                }
            }
        }
        taken
    }

    /// See [`Unifier::shrinks_to`].
    pub fn shrinks_to(&self) -> Option<u64> {
        if self.has_one() {
            return self.first().shrinks_to();
        }
        let shrinks = self.iter().any(|domain| domain.unifier.shrinks_to().is_some());
        shrinks.then(|| locked(&self.budget).bytes)
    }

    /// Gives a domain that had to evict since the last call something of what others do not use, and,
    /// as long as it has less than its equal part, of what others have beyond theirs. To be called a
    /// few times a second.
    pub fn balance(&self) {
        if self.has_one() {
            return;
        }
        let mut budget = locked(&self.budget);
        let all = self.all();
        let wants = wants(&all, &mut budget);
        let fair = budget.bytes / all.len() as u64;
        let step = (budget.bytes / STEP_PART).max(PAGE_BYTES as u64);
        let mut takers: Vec<usize> = (0..all.len()).filter(|at| wants[*at]).collect();
        // Who has least first.
        takers.sort_by_key(|at| all[*at].bytes());
        for taker in takers {
            let has = all[taker].bytes();
            let lacks = fair.saturating_sub(has);
            let gives = |at: &usize| {
                let giver = all[*at];
                let beyond = lacks.min(giver.bytes().saturating_sub(fair));
                let unused = if wants[*at] { 0 } else { giver.unused() };
                unused.max(beyond).min(step)
            };
            let givers = (0..all.len()).filter(|at| *at != taker);
            let Some(giver) = givers.max_by_key(gives) else { continue };
            self.hand_over((all[giver], all[taker]), gives(&giver), &budget);
        }
    }

    fn hand_over(
        &self,
        (giver, taker): (&CacheDomain, &CacheDomain),
        bytes: u64,
        budget: &MutexGuard<'_, Budget>,
    ) {
        if bytes == 0 {
            return;
        }
        giver.unifier.resize(giver.bytes().saturating_sub(bytes));
        // What is dirty or held goes later, or not at all.
        let taken: u64 = self.iter().map(CacheDomain::bytes).sum();
        let room = budget.bytes.saturating_sub(taken);
        taker.unifier.resize(taker.bytes() + room.min(bytes));
    }

    /// See [`Unifier::give_back_again`].
    pub fn give_back_again(&self) -> usize {
        self.iter().map(|domain| domain.unifier.give_back_again()).sum()
    }

    /// See [`Unifier::prefault`].
    pub fn prefault(&self, thread: &Thread, goes_on: impl Fn() -> bool) {
        let _ = self.prefaulter.set(thread.clone());
        for domain in self.iter() {
            domain.unifier.prefaulted_by(thread.clone());
        }
        // By turns: none waits until all others have enough.
        let some = |domain: &CacheDomain| domain.unifier.prefault_some();
        while goes_on() && self.iter().filter(|domain| some(domain)).count() > 0 {}
    }

    /// See [`Unifier::write_back_due`].
    pub fn write_back_due(&self, now: Duration) -> bool {
        // Each is told the time.
        self.iter().filter(|domain| domain.unifier.write_back_due(now)).count() > 0
    }

    /// See [`Unifier::is_half_dirty`].
    #[inline]
    pub fn is_half_dirty(&self) -> bool {
        self.iter().any(|domain| domain.unifier.is_half_dirty())
    }

    /// See [`Unifier::write_back`].
    pub async fn write_back(&self, now: Duration) {
        // All are begun before one is waited for.
        let begin = |domain: &CacheDomain| domain.unifier.begin_write_back(now);
        let flushes: Vec<_> = self.iter().flat_map(begin).collect();
        // Failures are told to the files' writers.
        let _ = wait_all(&flushes).await;
    }

    /// See [`Unifier::flush_all`].
    pub async fn flush_all(&self) -> Vec<(FileId, Status)> {
        let mut failed = Vec::new();
        for domain in self.iter() {
            failed.extend(domain.unifier.flush_all().await);
        }
        failed
    }
}

impl CacheDomain {
    /// What it has and does not use, beyond what it always keeps.
    fn unused(&self) -> u64 {
        let used = self.stats().resident_bytes.max(self.unifier.least_bytes());
        self.bytes().saturating_sub(used)
    }
}

impl From<Arc<Unifier>> for CacheDomains {
    /// One domain of all files.
    fn from(unifier: Arc<Unifier>) -> CacheDomains {
        let bytes = unifier.arena_bytes();
        CacheDomains {
            all: Box::new([OnceLock::from(CacheDomain::new("all", unifier))]),
            budget: Mutex::new(Budget { bytes, evicted: vec![0] }),
            coming: Arc::default(),
            growing: RwLock::default(),
            prefaulter: OnceLock::new(),
        }
    }
}

/// Which had to evict since this was asked last.
fn wants(all: &[&CacheDomain], budget: &mut Budget) -> Vec<bool> {
    let each = all.iter().zip(&mut budget.evicted);
    let more = |(domain, before): (&&CacheDomain, &mut u64)| {
        let now = domain.stats().evicted_bytes;
        // Who waits for room evicts nothing.
        std::mem::replace(before, now) < now || domain.unifier.is_waited_for()
    };
    each.map(more).collect()
}

impl CacheStats {
    fn add(&mut self, other: &CacheStats) {
        self.hits += other.hits;
        self.misses += other.misses;
        self.resident_bytes += other.resident_bytes;
        self.decommitted_bytes += other.decommitted_bytes;
        self.decommits_refused += other.decommits_refused;
        self.registrations_refused += other.registrations_refused;
        self.dirty_bytes += other.dirty_bytes;
        self.dirty_bytes_max += other.dirty_bytes_max;
        self.orphan_bytes += other.orphan_bytes;
        self.evicted_bytes += other.evicted_bytes;
        self.fills += other.fills;
        self.filled_bytes += other.filled_bytes;
        self.write_backs += other.write_backs;
        self.written_bytes += other.written_bytes;
        self.write_errors += other.write_errors;
        self.lost_bytes += other.lost_bytes;
        self.short_writes += other.short_writes;
        self.files += other.files;
    }
}

/// `bytes` times a fraction.
fn scale(bytes: u64, (part, of): (u64, u64)) -> u64 {
    let scaled = u128::from(bytes) * u128::from(part) / u128::from(of.max(1));
    u64::try_from(scaled).unwrap_or(u64::MAX)
}
