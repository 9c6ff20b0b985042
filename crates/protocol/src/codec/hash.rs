//! Tells a resent request from another one under the same sequence.
//!
//! Speed matters and accidents must not; against intent it need not stand, since a client that
//! makes two of its own requests collide only fools itself. Multiply and fold, as wyhash does.

const SEED: u64 = 0x9e37_79b9_7f4a_7c15;
const ODD: u64 = 0xd6e8_feb8_6659_fd93;

/// Of a request's credential and operations.
pub(super) fn hash(cred: u32, bytes: &[u8]) -> u64 {
    let length = bytes.len() as u64;
    let mut state = mix(u64::from(cred) ^ SEED, length ^ ODD);
    let (words, rest) = bytes.as_chunks::<8>();
    for word in words {
        state = mix(state ^ u64::from_le_bytes(*word), ODD) ^ state.rotate_left(29);
    }
    let last = rest.iter().rfold(0, |word, byte| word << 8 | u64::from(*byte));
    mix(state ^ last, SEED)
}

/// Of a request's credential and what its operations say, where the rest of them is the same always.
#[inline]
pub(super) fn hash_words([a, b, c]: [u64; 3]) -> u64 {
    let state = mix(a ^ SEED, ODD) ^ b;
    mix(state ^ c.rotate_left(32), SEED) ^ state
}

#[inline]
fn mix(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    (product as u64) ^ ((product >> 64) as u64)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::hash;

    #[test]
    fn every_changed_bit_changes_it() {
        let mut bytes = *b"a request of forty-two bytes, more or less";
        let mut seen = HashSet::from([hash(0, &bytes), hash(1, &bytes)]);
        for bit in 0..bytes.len() * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(seen.insert(hash(0, &bytes)), "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn zeros_at_the_end_change_it() {
        let seen: HashSet<u64> = (0..64).map(|len| hash(0, &[0; 64][..len])).collect();
        assert_eq!(seen.len(), 64);
    }
}
