//! Numbers of objects: one of a kind in all that is served, the same after a restart.
//!
//! A file system tells its objects apart by their inode numbers, and several file systems are not
//! told apart by them. So the upper half of an inode number, of one file system, has a *place*,
//! which no other has: place and lower half are the number. Places are given by chance (a hash) and
//! then looked for until one is free; which were given is kept in a file, where there is one, so
//! that the order in which they are asked for does not matter in the next run.

use std::cell::Cell;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::io::{self, Read, Write};
use std::sync::{Mutex, MutexGuard, PoisonError};

use dafs_protocol::{NUMBER_TOP, ObjectId, Outcome, Status};
use dafs_store::FileId;
use rustc_hash::{FxHashMap, FxHashSet};

use crate::exports::Exports;

/// Places that there are, and how many are given at most: that one is free is found at once.
const PLACES: u32 = 1 << 24;
const GIVEN_MAX: usize = 1 << 20;
/// Of a record: file system, upper half, place, checksum.
const RECORD_BYTES: usize = 24;
/// Of the virtual directory of all exports, which is in no file system.
const NOWHERE: u32 = 0;

/// The upper half of an inode number, of a file system.
type Segment = (u64, u32);

/// Of everything that is served.
#[derive(Debug)]
pub(crate) struct Numbers {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Devices of this host, and which of them has what clients are told.
    file_systems: FxHashMap<u64, Known>,
    devices: FxHashMap<u64, u64>,
    places: FxHashMap<Segment, u32>,
    given: FxHashSet<u32>,
    kept: Option<File>,
}

/// The file system on a device.
#[derive(Debug, Clone, Copy, Default)]
struct Known {
    identity: u64,
    /// What clients are told: its identity, unless another device has that.
    told: u64,
    /// Up to date when so many were met.
    met: u64,
}

/// What a worker asked for last: most objects are of one file system.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct LastNumber {
    device: u64,
    /// Up to date when so many were met.
    met: u64,
    segment: Segment,
    place: u32,
}

impl Numbers {
    /// Goes on from what is in the file; keeps nothing without one.
    pub(crate) fn load(kept: Option<File>) -> Numbers {
        let mut table = Table::default();
        table.devices.insert(0, 0);
        table.file_systems.insert(0, Known { met: u64::MAX, ..Known::default() });
        table.give((0, 0), NOWHERE);
        if let Some(file) = kept {
            match table.read(&file) {
                Ok(()) => table.kept = Some(file),
                Err(error) => warn(&error),
            }
        }
        Numbers { table: Mutex::new(table) }
    }

    /// Makes the attributes that an operation answers good for clients.
    ///
    /// # Errors
    /// RESOURCE: no place is left.
    pub(crate) fn assign(
        &self,
        exports: &Exports,
        last: &Cell<LastNumber>,
        outcome: &mut Outcome,
    ) -> Result<(), Status> {
        let Some(attr) = outcome.attr_mut() else { return Ok(()) };
        let id = self.of(exports, last, FileId { device: attr.device, inode: attr.inode })?;
        (attr.device, attr.number) = (id.device, id.number);
        Ok(())
    }

    /// What clients are told of an object of this host.
    ///
    /// # Errors
    /// RESOURCE: no place is left.
    pub(crate) fn of(
        &self,
        exports: &Exports,
        last: &Cell<LastNumber>,
        file: FileId,
    ) -> Result<ObjectId, Status> {
        let (high, low) = ((file.inode >> 32) as u32, file.inode & u64::from(u32::MAX));
        let (mut known, met) = (last.get(), exports.file_systems_met());
        let is_it = (known.device, known.segment.1, known.met) == (file.device, high, met);
        if known.place == NOWHERE || !is_it {
            known = self.look(exports, (file.device, high), met)?;
            last.set(known);
        }
        let number = NUMBER_TOP << 56 | u64::from(known.place) << 32 | low;
        Ok(ObjectId { inode: file.inode, device: known.segment.0, number })
    }

    fn look(
        &self,
        exports: &Exports,
        (device, high): (u64, u32),
        met: u64,
    ) -> Result<LastNumber, Status> {
        let known = self.table().file_systems.get(&device).copied();
        let known = known.filter(|known| known.met >= met);
        let told = known.map_or_else(|| self.ask(exports, device, met), |known| known.told);
        let segment = (told, high);
        let place = self.table().place(segment)?;
        Ok(LastNumber { device, met, segment, place })
    }

    /// What clients are told of a device, asked anew.
    fn ask(&self, exports: &Exports, device: u64, met: u64) -> u64 {
        let found = exports.file_system(device).map(|found| found.identity);
        let before = || self.table().file_systems.get(&device).map(|known| known.identity);
        let identity = found.or_else(before).unwrap_or_else(|| mixed(&[device]));
        let other = self.table().devices.get(&identity).copied();
        // It may be here again, on another device.
        let is_free = other.is_some_and(|other| other != device && exports.is_unmounted(other));
        let mut table = self.table();
        if let Some(other) = other.filter(|_| is_free) {
            table.leave(other);
        }
        table.meet(device, identity, met)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Two devices at a time are two file systems, though one be a copy of the other.
    fn meet(&mut self, device: u64, identity: u64, met: u64) -> u64 {
        // Another worker may have asked later and been faster.
        if let Some(known) = self.file_systems.get_mut(&device)
            && (known.identity == identity || known.met > met)
        {
            known.met = known.met.max(met);
            return known.told;
        }
        self.leave(device);
        let mut told = identity;
        while *self.devices.entry(told).or_insert(device) != device {
            told = mixed(&[told]);
        }
        self.file_systems.insert(device, Known { identity, told, met });
        told
    }

    /// A device is no more, or another file system.
    fn leave(&mut self, device: u64) {
        if let Some(known) = self.file_systems.remove(&device) {
            self.devices.remove(&known.told);
        }
    }

    fn place(&mut self, segment: Segment) -> Result<u32, Status> {
        if let Some(place) = self.places.get(&segment) {
            return Ok(*place);
        }
        if self.given.len() >= GIVEN_MAX {
            return Err(Status::Resource);
        }
        let mut place = mixed(&[segment.0, segment.1.into()]) as u32 % PLACES;
        while self.given.contains(&place) {
            place = (place + 1) % PLACES;
        }
        self.give(segment, place);
        self.keep(segment, place);
        Ok(place)
    }

    /// False where either has another already.
    fn give(&mut self, segment: Segment, place: u32) -> bool {
        match self.places.entry(segment) {
            Entry::Vacant(vacant) if self.given.insert(place) => {
                vacant.insert(place);
                true
            }
            _ => false,
        }
    }

    fn keep(&mut self, segment: Segment, place: u32) {
        let Some(mut file) = self.kept.as_ref() else { return };
        // A file system has a first segment once: that one is worth waiting for the disk.
        let sync = |file: &File| if segment.1 == 0 { file.sync_data() } else { Ok(()) };
        let written = file.write_all(&record(segment, place)); // not payload: a record
        if let Err(error) = written.and_then(|()| sync(file)) {
            warn(&error);
            self.kept = None;
        }
    }

    /// Reads up to what is not whole, and cuts that off.
    fn read(&mut self, mut file: &File) -> io::Result<()> {
        let mut bytes = Vec::new();
        file.take((GIVEN_MAX * RECORD_BYTES) as u64).read_to_end(&mut bytes)?;
        let mut good = 0;
        for raw in bytes.as_chunks().0 {
            match parse(raw) {
                Some((segment, place)) if self.give(segment, place) => good += RECORD_BYTES,
                _ => break,
            }
        }
        file.set_len(good as u64)?;
        io::Seek::seek(&mut file, io::SeekFrom::End(0)).map(drop)
    }
}

fn warn(error: &io::Error) {
    tracing::warn!(%error, "numbers of files may be others after a restart");
}

/// SplitMix64 over all of them.
fn mixed(words: &[u64]) -> u64 {
    words.iter().fold(0, |sum, word| {
        let z = (sum ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}

fn record(segment: Segment, place: u32) -> [u8; RECORD_BYTES] {
    let second = u64::from(segment.1) << 32 | u64::from(place);
    let mut bytes = [0; RECORD_BYTES];
    let words = [segment.0, second, mixed(&[segment.0, second])];
    for (slot, byte) in bytes.iter_mut().zip(words.iter().flat_map(|word| word.to_le_bytes())) {
        *slot = byte;
    }
    bytes
}

fn parse(raw: &[u8; RECORD_BYTES]) -> Option<(Segment, u32)> {
    let (words, _) = raw.as_chunks::<8>();
    let word = |at: usize| words.get(at).map(|bytes| u64::from_le_bytes(*bytes));
    let segment = (word(0)?, (word(1)? >> 32) as u32);
    let place = word(1)? as u32;
    (record(segment, place) == *raw && place < PLACES).then_some((segment, place))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(path: &std::path::Path) -> File {
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).open(path).expect("open")
    }

    #[test]
    fn places_that_collide_are_others_and_stay_so() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("numbers");
        let first = (1, 0);
        // Another segment with the same natural place.
        let natural = |segment: Segment| mixed(&[segment.0, segment.1.into()]) as u32 % PLACES;
        let second = (2..).map(|fs| (fs, 7)).find(|other| natural(*other) == natural(first));
        let second = second.expect("one in 16 million");
        let place = |numbers: &Numbers, segment| numbers.table().place(segment).expect("free");
        let numbers = Numbers::load(Some(open(&path)));
        let (a, b) = (place(&numbers, first), place(&numbers, second));
        assert_eq!((a, b), (natural(first), natural(first) + 1));
        let numbers = Numbers::load(Some(open(&path)));
        assert_eq!((place(&numbers, second), place(&numbers, first)), (b, a), "other order");
        let without = Numbers::load(None);
        assert_eq!(place(&without, second), a, "by chance only");
    }

    #[test]
    fn what_is_not_whole_is_cut_off() {
        let dir = tempfile::tempdir().expect("tempdir");
        let path = dir.path().join("numbers");
        let numbers = Numbers::load(Some(open(&path)));
        let places: Vec<u32> =
            (0..3).map(|fs| numbers.table().place((fs + 5, 0)).expect("free")).collect();
        let mut bytes = std::fs::read(&path).expect("kept");
        assert_eq!(bytes.len(), 3 * RECORD_BYTES);
        bytes[RECORD_BYTES + 3] ^= 1;
        std::fs::write(&path, &bytes).expect("write");
        let numbers = Numbers::load(Some(open(&path)));
        assert_eq!(numbers.table().places.get(&(5, 0)), places.first());
        assert_eq!(numbers.table().places.get(&(6, 0)), None);
        numbers.table().place((9, 0)).expect("free");
        assert_eq!(std::fs::read(&path).expect("kept").len(), 2 * RECORD_BYTES);
    }

    #[test]
    fn a_copy_of_a_file_system_is_another() {
        let numbers = Numbers::load(None);
        let meet = |device, file_system| numbers.table().meet(device, file_system, 1);
        assert_eq!((meet(1, 77), meet(1, 77)), (77, 77));
        assert_ne!(meet(2, 77), 77);
        assert_ne!(meet(3, 77), meet(2, 77));
        // Another file system has the first device, and the first one is on another.
        assert_eq!((meet(1, 78), meet(4, 77), meet(1, 78)), (78, 77, 78));
        // Whoever asked before that is told what is there now.
        assert_eq!(numbers.table().meet(1, 77, 0), 78);
    }
}
