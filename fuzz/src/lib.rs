//! What the fuzzers run, one function for each target: bytes of a stranger in, no panic out.
//!
//! A decoder must also agree with its encoder: what it accepts can be encoded, and means the same
//! when it is decoded again.

#[path = "../../crates/protocol/tests/generate/mod.rs"]
mod generate;
mod message;
mod tcp;

use dafs_protocol::*;
use generate::Random;

/// A target: its name, what it does with bytes, and a message to start from.
pub struct Target {
    /// As the binary.
    pub name: &'static str,
    /// Panics where it finds a defect.
    pub run: fn(&[u8]),
    /// A well-formed input.
    pub seed: fn(&mut Random) -> Vec<u8>,
}

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "request", run: request, seed: generate::request_bytes },
    Target { name: "reply", run: reply, seed: reply_seed },
    Target { name: "setup", run: setup, seed: setup_seed },
    Target { name: "dir_entries", run: dir_entries, seed: dir_entries_seed },
    Target { name: "cached_ranges", run: cached_ranges, seed: cached_ranges_seed },
    Target { name: "tcp_frames", run: tcp::run, seed: tcp::seed },
    Target { name: "message_headers", run: message::run, seed: message::seed },
];

/// `count` well-formed inputs of a target, always the same ones.
pub fn seeds(target: &Target, count: usize) -> Vec<Vec<u8>> {
    let mut random = Random(0x5eed);
    (0..count).map(|_| (target.seed)(&mut random)).collect()
}

/// Requests as a server gets them.
pub fn request(bytes: &[u8]) {
    let Ok(request) = decode_request(bytes) else { return };
    assert!((1..=CHAIN_MAX).contains(&request.operations.len()));
    let sum = |of: fn(&Operation<'_>) -> Option<u64>| {
        request.operations.iter().map(|op| of(op).expect("bytes")).sum::<u64>()
    };
    assert!(sum(|op| op.request_data_bytes()) <= DATA_BYTES_MAX as u64);
    assert!(sum(|op| op.reply_data_bytes()) <= DATA_BYTES_MAX as u64);
    let mut again = vec![];
    encode_request(&request.head, &request.operations, &mut again).expect("encode");
    let second = decode_request(&again).expect("decode again");
    assert_eq!(second.head, request.head);
    assert_eq!(second.operations.as_slice(), request.operations.as_slice());
}

/// Replies as a client gets them.
pub fn reply(bytes: &[u8]) {
    let Ok(reply) = decode_reply(bytes) else { return };
    let mut again = vec![];
    encode_reply(&reply, &mut again);
    assert!(again.len() <= REPLY_BYTES_MAX);
    assert_eq!(decode_reply(&again).expect("decode again"), reply);
}

fn reply_seed(random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![];
    encode_reply(&generate::reply(random), &mut bytes);
    bytes
}

/// Set-up messages of both directions.
pub fn setup(bytes: &[u8]) {
    if let Ok(message) = decode_setup_request(bytes) {
        let mut again = vec![];
        encode_setup_request(&message, &mut again);
        assert_eq!(decode_setup_request(&again).expect("decode again"), message);
    }
    if let Ok(message) = decode_setup_reply(bytes) {
        let mut again = vec![];
        encode_setup_reply(&message, &mut again);
        assert_eq!(decode_setup_reply(&again).expect("decode again"), message);
    }
}

fn setup_seed(random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![];
    match random.bool() {
        true => encode_setup_request(&generate::setup_request(random), &mut bytes),
        false => encode_setup_reply(&generate::setup_reply(random), &mut bytes),
    }
    bytes
}

/// READDIR's data as a client gets it.
pub fn dir_entries(bytes: &[u8]) {
    let Ok(entries) = decode_dir_entries(bytes) else { return };
    let mut again = vec![];
    for entry in &entries {
        assert!(!entry.name.is_empty() && !entry.name.contains(&b'/'));
        let before = again.len();
        encode_dir_entry(entry, &mut again);
        assert_eq!(again.len() - before, dir_entry_bytes(entry));
    }
    assert_eq!(decode_dir_entries(&again).expect("decode again"), entries);
}

fn dir_entries_seed(random: &mut Random) -> Vec<u8> {
    let mut bytes = vec![];
    for _ in 0..=random.below(4) {
        encode_dir_entry(&random.entry(), &mut bytes);
    }
    bytes
}

/// CACHE_QUERY's data as a client gets it.
pub fn cached_ranges(bytes: &[u8]) {
    let Ok(ranges) = decode_cached_ranges(bytes) else { return };
    let mut again = vec![];
    ranges.iter().for_each(|range| encode_cached_range(range, &mut again));
    assert_eq!(again, bytes);
}

fn cached_ranges_seed(random: &mut Random) -> Vec<u8> {
    let (mut bytes, mut offset) = (vec![], 0);
    for _ in 0..random.below(9) {
        offset += random.below(1 << 40);
        let len = 1 + random.below(1 << 40);
        encode_cached_range(&CachedRange { offset, len, dirty: random.bool() }, &mut bytes);
        offset += len;
    }
    bytes
}

/// Changes `bytes` as line noise, a broken peer or a clever one would.
pub fn mutate(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..=random.below(4) {
        let at = random.below(bytes.len() as u64 + 1) as usize;
        match random.below(7) {
            0 => {
                if let Some(byte) = bytes.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
            1 => bytes.truncate(at),
            2 => bytes.insert(at, random.bits() as u8),
            3 => bytes.extend(random.bytes(16)),
            4 => {
                let from = random.below(other.len() as u64 + 1) as usize;
                bytes.truncate(at);
                bytes.extend_from_slice(&other[from..]);
            }
            5 if at < bytes.len() => drop(bytes.remove(at)),
            _ => number(bytes, at, random),
        }
    }
}

/// Puts a number that sits on some edge at `at`.
fn number(bytes: &mut [u8], at: usize, random: &mut Random) {
    let edges =
        [0, 1, 0x7f, 0xff, 0x7fff, 0xffff, 0x7fff_ffff, 0xffff_ffff, u64::MAX >> 1, u64::MAX];
    let value = edges[random.below(edges.len() as u64) as usize].to_le_bytes();
    let width = 1 << random.below(4);
    for (to, from) in bytes.iter_mut().skip(at).zip(&value[..width]) {
        *to = *from;
    }
}

pub use generate::Random as Dice;
pub use message::run as message_headers;
pub use tcp::run as tcp_frames;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seeds_are_accepted_by_their_decoders() {
        let accepted: [fn(&[u8]) -> bool; 5] = [
            |bytes| decode_request(bytes).is_ok(),
            |bytes| decode_reply(bytes).is_ok(),
            |bytes| decode_setup_request(bytes).is_ok() || decode_setup_reply(bytes).is_ok(),
            |bytes| decode_dir_entries(bytes).is_ok(),
            |bytes| decode_cached_ranges(bytes).is_ok(),
        ];
        for (target, accepts) in TARGETS.iter().zip(accepted) {
            assert!(seeds(target, 100).iter().all(|seed| accepts(seed)), "{}", target.name);
        }
    }
}
