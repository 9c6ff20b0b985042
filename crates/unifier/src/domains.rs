//! Cache domains: memory for file data that is apart, each with an index and segments of its own.
//!
//! Who may read the memory of a domain by himself reads all that is in it. So a file is in one
//! domain at a time, and memory of a domain never becomes another's: it goes back to the system, as
//! zeros come from there. What all take together has one bound. Each domain has a part of it, which
//! grows where data had to go for other data, and where others leave theirs unused.

use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::Thread;
use std::time::Duration;

use dafs_fabric::Words;
use dafs_fabric::mem::PAGE_BYTES;
use dafs_protocol::{Attr, Status, WriteVerifier};
use dafs_store::{File, FileId};

use crate::file::CachedFile;
use crate::job::wait_all;
use crate::unifier::HoldPermit;
use crate::wait::locked;
use crate::{AccessedBits, CacheStats, Mark, Opening, Unifier, WriterId};

/// What one look moves from a domain to another, as a part of all.
const STEP_PART: u64 = 16;

/// Which of the [`CacheDomains`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct DomainId(pub usize);

impl DomainId {
    /// The first: what belongs to no other.
    pub const FIRST: DomainId = DomainId(0);
}

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
    all: Box<[CacheDomain]>,
    /// What all of them may take.
    budget: Mutex<Budget>,
    /// Held while a file comes to a domain, so that it is in no other.
    coming: Mutex<()>,
}

struct Budget {
    bytes: u64,
    /// What each had evicted when it was looked at last.
    evicted: Box<[u64]>,
}

impl CacheDomains {
    /// These, which take at most so many bytes together and begin with equal parts of them.
    ///
    /// # Panics
    /// Without a domain.
    pub fn new(bytes: u64, all: Vec<CacheDomain>) -> Arc<CacheDomains> {
        assert!(!all.is_empty(), "a cache has a domain");
        let evicted = all.iter().map(|_| 0).collect();
        let domains = CacheDomains {
            all: all.into(),
            budget: Mutex::new(Budget { bytes, evicted }),
            coming: Mutex::default(),
        };
        if domains.all.len() > 1 {
            let part = bytes / domains.all.len() as u64;
            for domain in &domains.all {
                domain.unifier.resize(part);
            }
        }
        Arc::new(domains)
    }

    /// All, by their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &CacheDomain> {
        self.all.iter()
    }

    /// As [`Unifier::add_accessed`], of this domain.
    pub fn add_accessed(
        &self,
        domain: DomainId,
        bits: Words,
        of: (u32, usize),
    ) -> Option<AccessedBits> {
        self.all.get(domain.0)?.unifier.add_accessed(bits, of)
    }

    fn first(&self) -> &Unifier {
        &self.all[DomainId::FIRST.0].unifier
    }

    fn has_one(&self) -> bool {
        self.all.len() == 1
    }

    /// See [`Unifier::mark`].
    pub fn mark(&self) -> Mark {
        self.first().mark()
    }

    /// As [`Unifier::open`], in this domain, or where it is open already: a file is in one domain as
    /// long as somebody has it open, or some of it is to be written. Otherwise what another domain
    /// has of it is dropped. An unknown domain is the first.
    pub fn open(
        &self,
        domain: DomainId,
        mark: Mark,
        writer: WriterId,
        file: Arc<dyn File>,
        attr: &Attr,
        opening: Opening,
    ) -> Arc<CachedFile> {
        if self.has_one() {
            return self.all[0].unifier.open(mark, writer, file, attr, opening);
        }
        let domain = if domain.0 < self.all.len() { domain } else { DomainId::FIRST };
        let _coming = locked(&self.coming);
        let place = self.place(domain, file.id());
        self.all[place.0].unifier.open(mark, writer, file, attr, opening)
    }

    /// Where a file is from now on that is to be in this domain.
    fn place(&self, wanted: DomainId, id: FileId) -> DomainId {
        for (number, domain) in self.all.iter().enumerate() {
            if number != wanted.0 && domain.unifier.find(id).is_some() {
                domain.unifier.forget(id);
                if domain.unifier.find(id).is_some() {
                    return DomainId(number);
                }
            }
        }
        wanted
    }

    /// See [`Unifier::find`].
    pub fn find(&self, id: FileId) -> Option<Arc<CachedFile>> {
        self.all.iter().find_map(|domain| domain.unifier.find(id))
    }

    /// See [`Unifier::overlay`].
    pub fn overlay(&self, mark: Mark, attr: &mut Attr) {
        self.all.iter().for_each(|domain| domain.unifier.overlay(mark, attr));
    }

    /// See [`Unifier::look`].
    pub fn look(&self, mark: Mark, attr: &Attr) {
        self.all.iter().for_each(|domain| domain.unifier.look(mark, attr));
    }

    /// See [`Unifier::note`].
    pub fn note(&self, mark: Mark, attr: &Attr) {
        self.all.iter().for_each(|domain| domain.unifier.note(mark, attr));
    }

    /// See [`Unifier::note_unmodified`].
    pub fn note_unmodified(&self, mark: Mark, attr: &Attr) {
        self.all.iter().for_each(|domain| domain.unifier.note_unmodified(mark, attr));
    }

    /// See [`Unifier::forget`].
    pub fn forget(&self, id: FileId) {
        self.all.iter().for_each(|domain| domain.unifier.forget(id));
    }

    /// See [`Unifier::verifier`].
    #[inline]
    pub fn verifier(&self) -> WriteVerifier {
        self.first().verifier()
    }

    /// See [`Unifier::has_lost`].
    pub fn has_lost(&self) -> bool {
        self.all.iter().any(|domain| domain.unifier.has_lost())
    }

    /// See [`Unifier::hold_permit`]. One for all: who holds data of one domain may wait for another.
    pub async fn hold_permit(&self) -> HoldPermit<'_> {
        self.first().hold_permit().await
    }

    /// Counters and sizes of all together. What one domain leaves to the others is not given back.
    pub fn stats(&self) -> CacheStats {
        let mut sum = CacheStats::default();
        self.all.iter().for_each(|domain| sum.add(&domain.stats()));
        let unused = sum.decommitted_bytes;
        let spare: u64 = self.all.iter().skip(1).map(|one| one.unifier.arena_bytes()).sum();
        CacheStats { decommitted_bytes: unused.saturating_sub(spare), ..sum }
    }

    /// See [`Unifier::resize`]: of all together. Each has less, or more, in proportion to what it has.
    pub fn resize(&self, bytes: u64) -> u64 {
        if self.has_one() {
            return self.first().resize(bytes);
        }
        let mut budget = locked(&self.budget);
        let most = self.all.iter().map(|domain| domain.unifier.arena_bytes()).max().unwrap_or(0);
        budget.bytes = bytes.min(most);
        let now: u64 = self.all.iter().map(CacheDomain::bytes).sum();
        let part = |domain: &CacheDomain| scale(domain.bytes(), (budget.bytes, now.max(1)));
        let wished: Vec<u64> = self.all.iter().map(part).collect();
        // First who is to have less, as all together never are to have more.
        let mut taken = now;
        for less in [true, false] {
            for (domain, wished) in self.all.iter().zip(&wished) {
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
        let shrinks = self.all.iter().any(|domain| domain.unifier.shrinks_to().is_some());
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
        let wants = self.wants(&mut budget);
        let fair = budget.bytes / self.all.len() as u64;
        let step = (budget.bytes / STEP_PART).max(PAGE_BYTES as u64);
        let mut takers: Vec<usize> = (0..self.all.len()).filter(|at| wants[*at]).collect();
        // Who has least first.
        takers.sort_by_key(|at| self.all[*at].bytes());
        for taker in takers {
            let has = self.all[taker].bytes();
            let lacks = fair.saturating_sub(has);
            let gives = |at: &usize| {
                let giver = &self.all[*at];
                let beyond = lacks.min(giver.bytes().saturating_sub(fair));
                let unused = if wants[*at] { 0 } else { giver.unused() };
                unused.max(beyond).min(step)
            };
            let givers = (0..self.all.len()).filter(|at| *at != taker);
            let Some(giver) = givers.max_by_key(gives) else { continue };
            self.hand_over(giver, taker, gives(&giver), &budget);
        }
    }

    /// Which had to evict since this was asked last.
    fn wants(&self, budget: &mut Budget) -> Vec<bool> {
        let each = self.all.iter().zip(&mut budget.evicted);
        let more = |(domain, before): (&CacheDomain, &mut u64)| {
            let now = domain.stats().evicted_bytes;
            std::mem::replace(before, now) < now
        };
        each.map(more).collect()
    }

    fn hand_over(&self, giver: usize, taker: usize, bytes: u64, budget: &MutexGuard<'_, Budget>) {
        if bytes == 0 {
            return;
        }
        let (giver, taker) = (&self.all[giver], &self.all[taker]);
        giver.unifier.resize(giver.bytes().saturating_sub(bytes));
        // What is dirty or held goes later, or not at all.
        let taken: u64 = self.all.iter().map(CacheDomain::bytes).sum();
        let room = budget.bytes.saturating_sub(taken);
        taker.unifier.resize(taker.bytes() + room.min(bytes));
    }

    /// See [`Unifier::give_back_again`].
    pub fn give_back_again(&self) -> usize {
        self.all.iter().map(|domain| domain.unifier.give_back_again()).sum()
    }

    /// See [`Unifier::prefault`].
    pub fn prefault(&self, thread: &Thread, goes_on: impl Fn() -> bool) {
        for domain in &self.all {
            domain.unifier.prefaulted_by(thread.clone());
        }
        // By turns: none waits until all others have enough.
        let some = |domain: &CacheDomain| domain.unifier.prefault_some();
        while goes_on() && self.all.iter().filter(|domain| some(domain)).count() > 0 {}
    }

    /// See [`Unifier::write_back_due`].
    pub fn write_back_due(&self, now: Duration) -> bool {
        // Each is told the time.
        self.all.iter().filter(|domain| domain.unifier.write_back_due(now)).count() > 0
    }

    /// See [`Unifier::is_half_dirty`].
    #[inline]
    pub fn is_half_dirty(&self) -> bool {
        self.all.iter().any(|domain| domain.unifier.is_half_dirty())
    }

    /// See [`Unifier::write_back`].
    pub async fn write_back(&self, now: Duration) {
        // All are begun before one is waited for.
        let begin = |domain: &CacheDomain| domain.unifier.begin_write_back(now);
        let flushes: Vec<_> = self.all.iter().flat_map(begin).collect();
        // Failures are told to the files' writers.
        let _ = wait_all(&flushes).await;
    }

    /// See [`Unifier::flush_all`].
    pub async fn flush_all(&self) -> Vec<(FileId, Status)> {
        let mut failed = Vec::new();
        for domain in &self.all {
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
            all: Box::new([CacheDomain::new("all", unifier)]),
            budget: Mutex::new(Budget { bytes, evicted: Box::new([0]) }),
            coming: Mutex::default(),
        }
    }
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
