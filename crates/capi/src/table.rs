//! Handles: numbers that name what a program has open.
//!
//! A handle is 64 bits: what it names, the generation of processes (by fork) that made it, how often
//! its place was used, and the place. No place is used again under the same number, so that a handle
//! that was closed never names anything else. Looking one up takes the lock of its place alone,
//! shared, for some instructions; nothing is held while a call runs.

use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

use crate::border;
use crate::failure::{Failure, Outcome};
use crate::object::Object;
use crate::process::{forked, generation};

const PLACES_OF_CHUNK: usize = 1 << 10;
const CHUNKS_MAX: usize = 1 << 10;
const GENERATIONS_MAX: u32 = (1 << 24) - 1;
/// Processes of which each is a child of the one before, none of them by exec.
const FORKS_MAX: usize = 255;

/// One for each generation of processes: locks of the parent's may be held for ever in a child.
static TABLES: [OnceLock<Table>; FORKS_MAX] = [const { OnceLock::new() }; FORKS_MAX];

struct Table {
    chunks: Box<[OnceLock<Box<[Place]>>]>,
    free: Mutex<Free>,
}

struct Free {
    places: Vec<usize>,
    /// Places from here on were never used.
    next: usize,
}

#[derive(Default)]
struct Place(RwLock<Entry>);

#[derive(Default)]
struct Entry {
    generation: u32,
    object: Option<Object>,
}

fn too_many_forks() -> Failure {
    Failure::new(libc::ECHILD, "too many forks without exec: run the program anew by exec")
}

fn table() -> Outcome<&'static Table> {
    let table = TABLES.get(generation()).ok_or_else(too_many_forks)?;
    Ok(table.get_or_init(|| {
        border::prepare(forked);
        let chunks = (0..CHUNKS_MAX).map(|_| OnceLock::new()).collect();
        Table { chunks, free: Mutex::new(Free { places: Vec::new(), next: 0 }) }
    }))
}

impl Table {
    fn place(&self, index: usize) -> Option<&Place> {
        self.chunks.get(index / PLACES_OF_CHUNK)?.get()?.get(index % PLACES_OF_CHUNK)
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Free> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn take_place(&self) -> Option<(usize, &Place)> {
        let index = {
            let mut free = self.free();
            match free.places.pop() {
                Some(index) => index,
                None => {
                    let index = free.next;
                    let chunk = self.chunks.get(index / PLACES_OF_CHUNK)?;
                    chunk.get_or_init(|| (0..PLACES_OF_CHUNK).map(|_| Place::default()).collect());
                    free.next += 1;
                    index
                }
            }
        };
        Some((index, self.place(index)?))
    }
}

impl Place {
    fn read(&self) -> std::sync::RwLockReadGuard<'_, Entry> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> std::sync::RwLockWriteGuard<'_, Entry> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn handle_of(kind: u64, fork: usize, generation: u32, index: usize) -> u64 {
    kind << 56 | (fork as u64) << 48 | u64::from(generation) << 24 | index as u64
}

/// The place and the generation of a handle of this process.
fn parts(handle: u64) -> Outcome<(usize, u32)> {
    let fork = (handle >> 48 & 0xff) as usize;
    if handle >> 56 != 0 && fork < generation() {
        return Err(Failure::new(
            libc::ECHILD,
            "the handle is of the process that forked this one: open a session of its own here",
        ));
    }
    if fork > generation() {
        // Of a child, or never given out.
        return Err(bad_handle());
    }
    let generation = u32::try_from(handle >> 24 & 0xff_ffff).unwrap_or(0);
    Ok(((handle & 0xff_ffff) as usize, generation))
}

/// That a handle names nothing (any more), or something else.
pub fn bad_handle() -> Failure {
    Failure::new(
        libc::EBADF,
        "the handle is of nothing that is open, or of another kind: it was closed, or never given out",
    )
}

/// Gives an object a handle.
///
/// # Errors
/// `EMFILE`.
pub fn insert(object: Object) -> Outcome<u64> {
    let full = || Failure::new(libc::EMFILE, "too many handles: close those that are not needed");
    let (index, place) = table()?.take_place().ok_or_else(full)?;
    let kind = object.kind();
    let mut entry = place.write();
    entry.generation += 1;
    entry.object = Some(object);
    Ok(handle_of(kind, generation(), entry.generation, index))
}

/// What `pick` takes of the object that a handle names.
///
/// # Errors
/// `EBADF`; `ECHILD` for a handle of the process that forked this one.
#[inline]
pub fn get<T>(handle: u64, pick: impl FnOnce(&Object) -> Option<T>) -> Outcome<T> {
    let (index, generation) = parts(handle)?;
    let place = table()?.place(index).ok_or_else(bad_handle)?;
    let entry = place.read();
    match &entry.object {
        Some(object) if entry.generation == generation && object.kind() == handle >> 56 => {
            pick(object).ok_or_else(bad_handle)
        }
        _ => Err(bad_handle()),
    }
}

/// What `pick` takes of all objects.
///
/// # Errors
/// Those of [`insert`].
pub fn all<T>(pick: impl FnMut(&Object) -> Option<T>) -> Outcome<Vec<T>> {
    let table = table()?;
    let used = table.free().next;
    let places = (0..used).filter_map(|index| table.place(index));
    let mut pick = pick;
    Ok(places.filter_map(|place| place.read().object.as_ref().and_then(&mut pick)).collect())
}

/// Takes a handle back, where `may` has nothing against it.
///
/// # Errors
/// As [`get`], and those of `may`; then it stays.
pub fn remove<T>(handle: u64, may: impl FnOnce(&Object) -> Outcome<T>) -> Outcome<T> {
    let (index, generation) = parts(handle)?;
    let table = table()?;
    let place = table.place(index).ok_or_else(bad_handle)?;
    let mut entry = place.write();
    let object = match &entry.object {
        Some(object) if entry.generation == generation && object.kind() == handle >> 56 => object,
        _ => return Err(bad_handle()),
    };
    let taken = may(object)?;
    let object = entry.object.take();
    let used_up = entry.generation == GENERATIONS_MAX;
    drop(entry);
    // Not under the lock: what ends here may call a server.
    drop(object);
    if !used_up {
        table.free().places.push(index);
    }
    Ok(taken)
}

/// Takes back all handles whose object `is` one of those.
///
/// # Errors
/// None but of [`insert`].
pub fn remove_all(mut is: impl FnMut(&Object) -> bool) -> Outcome<()> {
    let table = table()?;
    let used = table.free().next;
    for (index, place) in (0..used).filter_map(|index| Some((index, table.place(index)?))) {
        let mut entry = place.write();
        if entry.object.as_ref().is_some_and(&mut is) {
            let object = entry.object.take();
            let used_up = entry.generation == GENERATIONS_MAX;
            drop(entry);
            drop(object);
            if !used_up {
                table.free().places.push(index);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::MemoryObject;

    fn memory() -> Object {
        Object::Memory(MemoryObject::of(dafs_fabric::Arena::new(100).expect("memory")))
    }

    fn look(handle: u64) -> Result<(), i32> {
        get(handle, |_| Some(())).map_err(|failure| failure.errno)
    }

    #[test]
    fn a_handle_that_was_closed_names_nothing_again() {
        let mut seen = std::collections::HashSet::new();
        for _ in 0..3 * PLACES_OF_CHUNK {
            let handle = insert(memory()).expect("room");
            assert!(seen.insert(handle) && handle > 0 && handle >> 63 == 0);
            assert_eq!(look(handle), Ok(()));
            remove(handle, |_| Ok(())).expect("open");
            assert_eq!(look(handle), Err(libc::EBADF));
            assert_eq!(remove(handle, |_| Ok(())).map_err(|f| f.errno), Err(libc::EBADF));
        }
    }

    #[test]
    fn what_was_never_given_out_is_refused() {
        let handle = insert(memory()).expect("room");
        let child = handle | 1 << 48;
        for bad in [0, 1, u64::MAX, handle ^ 1 << 56, handle ^ 1 << 24, handle | 0xff_ffff, child] {
            assert_eq!(look(bad), Err(libc::EBADF), "{bad:#x}");
        }
        assert_eq!(look(handle), Ok(()));
    }
}
