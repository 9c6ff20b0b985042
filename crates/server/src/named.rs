//! Named references: what a client holds of an open file, and shows at each read of it, as a network card of
//! \[ODAFS\] 4.1 would look at a capability.
//!
//! It says for which open of which session it is, and of which blocks, under a code (SipHash-2-4 of 128 bits) of a key
//! that this worker alone has, made anew now and then: one that a client changed, or that another client, another
//! server or a former key made, is refused. What it says is not remembered anywhere: the open itself is looked up at each
//! read, so that a close, or the end of a session, ends it at once and costs nothing.

use std::cell::Cell;
use std::hash::Hasher;
use std::time::Duration;

use dafs_protocol::{NamedReference, StateId};
use siphasher::sip128::{Hasher128, SipHasher24};

use crate::planted::{Defect, planted};

/// How long a key is used.
pub(crate) const KEY_LIFE: Duration = Duration::from_secs(3600);
/// Bytes of what it says, and of all.
const SAID_BYTES: usize = 36;
const BYTES: usize = SAID_BYTES + 16;
/// What clients show.
pub(crate) type Name = [u8; BYTES];
/// Names whose code was right that are remembered, by the place of their open.
const KNOWN: usize = 16;
/// Of a block.
const BLOCK_BYTES: u64 = dafs_fabric::mem::PAGE_BYTES as u64;

/// For which reads it is good.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Capability {
    /// The open, of which no other has the number in its session.
    pub state: StateId,
    /// The session's number, which no other of this server has.
    pub session: u64,
    pub first_block: u64,
    pub blocks: u64,
}

impl Capability {
    /// For all of a file.
    pub(crate) fn whole(state: StateId, session: u64) -> Capability {
        Capability { state, session, first_block: 0, blocks: u64::MAX }
    }

    /// It is for these bytes, too.
    #[inline]
    pub(crate) fn covers(&self, offset: u64, len: u32) -> bool {
        let Some(end) = offset.checked_add(len.into()) else { return false };
        let last = self.first_block.saturating_add(self.blocks);
        end <= i64::MAX as u64
            && offset / BLOCK_BYTES >= self.first_block
            && end.div_ceil(BLOCK_BYTES) <= last
    }
}

/// The key, and its number.
pub(crate) struct NamedKey {
    number: u32,
    hasher: SipHasher24,
    since: Duration,
    /// Some that it has made, and opened lately: the code of each need not be computed for every read.
    known: [Cell<Name>; KNOWN],
}

impl NamedKey {
    /// One of these random bytes.
    pub(crate) fn new(random: [u8; 16]) -> NamedKey {
        let hasher = SipHasher24::new_with_key(&random);
        NamedKey { number: 1, hasher, since: Duration::ZERO, known: NamedKey::none_known() }
    }

    fn none_known() -> [Cell<Name>; KNOWN] {
        std::array::from_fn(|_| Cell::new([0; BYTES]))
    }

    /// It has been used for long enough.
    pub(crate) fn is_old(&self, now: Duration) -> bool {
        now.saturating_sub(self.since) >= KEY_LIFE
    }

    /// Another one takes its place: all that it made is refused from now on.
    pub(crate) fn replace(&mut self, random: [u8; 16], now: Duration) {
        self.since = now;
        if !planted(Defect::KeyNotReplaced) {
            // No name has the number 0, which stands in places where none is known.
            self.number = self.number.checked_add(1).unwrap_or(1);
            self.known = NamedKey::none_known();
            self.hasher = SipHasher24::new_with_key(&random);
        }
    }

    #[inline]
    fn code(&self, said: &[u8]) -> u128 {
        let mut hasher = self.hasher;
        hasher.write(said);
        hasher.finish128().as_u128()
    }

    /// What the client is told.
    pub(crate) fn seal(&self, capability: &Capability) -> Option<NamedReference> {
        let Capability { state, session, first_block, blocks } = *capability;
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend(self.number.to_le_bytes());
        [state.0, session, first_block, blocks].iter().for_each(|n| bytes.extend(n.to_le_bytes()));
        bytes.extend(self.code(&bytes).to_le_bytes());
        NamedReference::new(&bytes)
    }

    /// Its code is right; in constant time, too.
    #[inline(never)]
    fn is_made_here(&self, bytes: &Name) -> bool {
        let code = u128::from_le_bytes(field(bytes, SAID_BYTES));
        self.code(&bytes[..SAID_BYTES]) ^ code == 0
    }

    /// What it says, if this key made it.
    #[inline]
    pub(crate) fn open(&self, bytes: &Name) -> Option<Capability> {
        let number = u32::from_le_bytes(field(bytes, 0));
        let known = &self.known[usize::from(bytes[4]) % KNOWN];
        if number != self.number {
            return None;
        }
        if !is_same(bytes, &known.get()) {
            if !self.is_made_here(bytes) {
                return None;
            }
            known.set(*bytes);
        }
        Some(Capability {
            state: StateId(u64::from_le_bytes(field(bytes, 4))),
            session: u64::from_le_bytes(field(bytes, 12)),
            first_block: u64::from_le_bytes(field(bytes, 20)),
            blocks: u64::from_le_bytes(field(bytes, 28)),
        })
    }
}

/// In constant time: all of their differences, not the first one.
#[inline(always)]
pub(crate) fn is_same(a: &Name, b: &Name) -> bool {
    let words = (0..BYTES - 8).step_by(8).chain([BYTES - 8]);
    let word = |bytes, at| u64::from_le_bytes(field(bytes, at));
    let differences = words.fold(0, |sum, at| sum | (word(a, at) ^ word(b, at)));
    // Else the compiler would end it at the first one.
    std::hint::black_box(differences) == 0
}

#[inline(always)]
fn field<const N: usize>(bytes: &Name, at: usize) -> [u8; N] {
    let mut field = [0; N];
    field.copy_from_slice(&bytes[at..at + N]); // not payload: a name
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> NamedKey {
        NamedKey::new([7; 16])
    }

    /// As it comes.
    fn open(key: &NamedKey, name: &[u8]) -> Option<Capability> {
        key.open(name.try_into().ok()?)
    }

    fn sealed(key: &NamedKey, state: u64, session: u64) -> Vec<u8> {
        let whole = Capability::whole(StateId(state), session);
        key.seal(&whole).expect("it fits").as_bytes().to_vec()
    }

    #[test]
    fn what_was_sealed_opens_and_nothing_else() {
        let key = key();
        let good = sealed(&key, 5, 9);
        (0..2).for_each(|_| {
            assert_eq!(open(&key, &good), Some(Capability::whole(StateId(5), 9)));
        });
        for bit in 0..good.len() * 8 {
            let mut bad = good.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(open(&key, &bad), None, "bit {bit}");
        }
        for len in 0..good.len() {
            assert_eq!(open(&key, &good[..len]), None);
        }
        assert_eq!(open(&key, &[&good[..], &[0]].concat()), None);
    }

    /// A million of each (fewer where they are slow): pairs of bits, fields of one in another, codes of another, random ones.
    #[test]
    fn forged_ones_are_refused() {
        let (key, other) = (key(), NamedKey::new([8; 16]));
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        let mut next = move || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random
        };
        let fields = [0..4, 4..12, 12..20, 20..28, 28..36, 36..52];
        let rounds = if cfg!(debug_assertions) { 100_000 } else { 1_000_000 };
        for round in 0..rounds {
            let good = sealed(&key, round, round % 7);
            let with = |change: &dyn Fn(&mut Vec<u8>)| {
                let mut bad = good.clone();
                change(&mut bad);
                (bad != good).then_some(bad)
            };
            let (first, second) = (next() as usize % 416, next() as usize % 416);
            let another = sealed(&key, next(), round % 7);
            let range = fields[next() as usize % fields.len()].clone();
            let noise = [next(), next()].map(u64::to_le_bytes).concat();
            let forged = [
                with(&|bad| {
                    bad[first / 8] ^= 1 << (first % 8);
                    bad[second / 8] ^= 1 << (second % 8);
                }),
                with(&|bad| bad[range.clone()].copy_from_slice(&another[range.clone()])),
                with(&|bad| bad[36..].copy_from_slice(&noise)),
                with(&|bad| bad.swap(4 + first % 8, 12 + second % 8)),
                Some(sealed(&other, round, round % 7)),
            ];
            for bad in forged.into_iter().flatten() {
                assert_eq!(open(&key, &bad), None, "{bad:?}");
            }
        }
    }

    #[test]
    fn a_former_key_opens_nothing() {
        let mut key = key();
        let old = sealed(&key, 1, 1);
        assert!(!key.is_old(KEY_LIFE - Duration::from_nanos(1)) && key.is_old(KEY_LIFE));
        key.replace([9; 16], KEY_LIFE);
        assert!(open(&key, &old).is_none() && !key.is_old(KEY_LIFE));
        assert!(open(&key, &sealed(&key, 1, 1)).is_some());
        // The same bytes with the new number.
        let mut renamed = old;
        renamed[0] += 1;
        assert_eq!(open(&key, &renamed), None);
    }

    #[test]
    fn only_its_blocks_are_covered() {
        let part = Capability { first_block: 2, blocks: 3, ..Capability::whole(StateId(1), 1) };
        let covers = |offset, len| part.covers(offset, len);
        assert!(covers(8192, 1) && covers(8192, 3 * 4096) && covers(20479, 1));
        assert!(!covers(8191, 1) && !covers(8191, 2) && !covers(20479, 2) && !covers(20480, 1));
        let whole = Capability::whole(StateId(1), 1);
        assert!(whole.covers(0, 0) && whole.covers(i64::MAX as u64 - 1, 1));
        assert!(!whole.covers(i64::MAX as u64, 1) && !whole.covers(u64::MAX, 1));
    }
}
