//! A pattern in free memory, to find out who uses what is not his.
//!
//! Switched on, free pages and buffers are filled with 64 bytes again and again, other ones in each
//! run, and must hold them still when they are given out: a write into free memory, also by a disk
//! or a network, is a panic, which ends a server. Whoever meets the pattern in data has been given
//! what nobody filled. Switched off, which is the rule, each place costs a branch.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::mem::Span;

/// Bytes after which the pattern begins anew.
pub const PATTERN_BYTES: usize = 64;

/// As many as are compared at a time.
const STEP_BYTES: usize = 4096;

/// The environment variable that switches it on: `1` for a random pattern, or the pattern as
/// 128 hexadecimal digits; `0` or empty for off.
pub const VARIABLE: &str = "DAFS_POISON";

/// The pattern, written often enough that a step may begin at any byte of it.
static PATTERN: OnceLock<Box<[u8]>> = OnceLock::new();

/// See [`look_at_data`].
static LOOKS: AtomicBool = AtomicBool::new(true);

/// Switches it on for the rest of the process. Memory that was free before is not known to hold
/// the pattern: to be called before there is any. True the first time.
pub fn switch_on(pattern: [u8; PATTERN_BYTES]) -> bool {
    let often = pattern.iter().copied().cycle().take(STEP_BYTES + PATTERN_BYTES);
    PATTERN.set(often.collect()).is_ok()
}

/// Switches it on if the environment says so; what it says that cannot be.
///
/// # Errors
/// The value, which is neither a switch nor a pattern.
pub fn switch_by_environment(random: impl FnOnce(&mut [u8])) -> Result<(), String> {
    let value = std::env::var(VARIABLE).unwrap_or_default();
    match value.as_str() {
        "" | "0" => return Ok(()),
        "1" => {
            let mut pattern = [0; PATTERN_BYTES];
            random(&mut pattern);
            switch_on(pattern);
        }
        digits => {
            let wrong = || format!("{VARIABLE}: expected 0, 1 or 128 hexadecimal digits");
            switch_on(parse(digits).ok_or_else(wrong)?);
        }
    }
    Ok(())
}

fn parse(digits: &str) -> Option<[u8; PATTERN_BYTES]> {
    let mut pattern = [0; PATTERN_BYTES];
    if digits.len() != 2 * PATTERN_BYTES || !digits.is_ascii() {
        return None;
    }
    for (at, byte) in pattern.iter_mut().enumerate() {
        *byte = u8::from_str_radix(digits.get(2 * at..2 * at + 2)?, 16).ok()?;
    }
    Some(pattern)
}

/// It is switched on.
#[inline]
pub fn is_on() -> bool {
    PATTERN.get().is_some()
}

/// As hexadecimal digits, while it is switched on.
pub fn digits() -> Option<String> {
    let pattern = PATTERN.get()?.get(..PATTERN_BYTES)?;
    Some(pattern.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// The bytes that free memory has from this address on.
fn from_address(pattern: &[u8], addr: u64, len: usize) -> Option<&[u8]> {
    let at = (addr % PATTERN_BYTES as u64) as usize;
    pattern.get(at..at + len)
}

/// Marks memory as free.
#[inline]
pub fn fill(span: &Span) {
    if let Some(pattern) = PATTERN.get() {
        steps(span, |at, len| {
            let bytes = from_address(pattern, span.addr() + at as u64, len);
            bytes.inspect(|bytes| span.write_message(at, bytes));
        });
    }
}

/// Free memory is given out: it holds the pattern still.
///
/// # Panics
/// When it does not.
#[inline]
pub fn check(span: &Span, what: &str) {
    if let Some(pattern) = PATTERN.get() {
        let addr = span.addr();
        verify(span, what, |at, len| from_address(pattern, addr + at as u64, len));
    }
}

/// Memory that was never used, or was given back to the system, is given out: it is zero, or was
/// filled before.
///
/// # Panics
/// When it is neither.
#[inline]
pub fn check_unused(span: &Span, what: &str) {
    if !is_on() {
        return;
    }
    let mut first = Vec::new();
    span.read_message(span.len().min(1), &mut first);
    match first.first() {
        Some(0) => verify(span, what, |_, len| [0; STEP_BYTES].get(..len)),
        _ => check(span, what),
    }
}

fn steps(span: &Span, mut step: impl FnMut(usize, usize)) {
    let mut at = 0;
    while at < span.len() {
        let len = (span.len() - at).min(STEP_BYTES);
        step(at, len);
        at += len;
    }
}

fn verify<'a>(span: &Span, what: &str, expected: impl Fn(usize, usize) -> Option<&'a [u8]>) {
    let mut bytes = Vec::with_capacity(STEP_BYTES);
    steps(span, |at, len| {
        span.part(at, len).read_message(len, &mut bytes);
        if expected(at, len) != Some(bytes.as_slice()) {
            let different = |(index, byte): (usize, &u8)| {
                expected(at, len).and_then(|bytes| bytes.get(index)) != Some(byte)
            };
            let first = bytes.iter().enumerate().position(different).unwrap_or(0);
            panic!("{what}: free memory was written, {} bytes from its beginning", at + first);
        }
    });
}

/// The pattern is in these bytes.
pub fn is_in(bytes: &[u8]) -> bool {
    // A quarter of it: what is left of a longer run at both ends is not looked for.
    const PART: usize = PATTERN_BYTES / 4;
    let Some(part) = PATTERN.get().and_then(|pattern| pattern.get(..PART)) else { return false };
    memchr::memmem::find(bytes, part).is_some()
}

/// Whether [`check_data`] looks: a program that measures times leaves it out for a while.
pub fn look_at_data(yes: bool) {
    LOOKS.store(yes, Ordering::Relaxed);
}

/// Bytes for a program that reads data: somebody filled them.
///
/// # Panics
/// When nobody did.
#[inline]
pub fn check_data(span: &Span, what: &str) {
    if !is_on() || !LOOKS.load(Ordering::Relaxed) {
        return;
    }
    let mut bytes = Vec::new();
    span.read_message(span.len(), &mut bytes);
    if is_in(&bytes) {
        panic!("{what}: what nobody filled was read");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Arena;

    #[test]
    fn free_memory_holds_the_pattern_from_any_byte_on() {
        let digits_of: String = (0..64).map(|byte| format!("{:02x}", byte * 3 + 1)).collect();
        switch_on(parse(&digits_of).expect("a pattern"));
        assert_eq!(digits(), Some(digits_of));
        let arena = Arena::new(20_000).expect("arena");
        check_unused(&arena.span(0, 20_000), "fresh");
        for (offset, len) in [(0, 20_000), (1, 1), (63, 9000), (4095, 0)] {
            let span = arena.span(offset, len);
            fill(&span);
            check(&span, "filled");
            // Parts of it are as the whole.
            if len > 70 {
                check(&span.part(7, 60), "a part");
            }
        }
        let mut bytes = Vec::new();
        arena.span(63, 100).read_message(100, &mut bytes);
        assert!(is_in(&bytes));
        assert!(!is_in(&[0; 1000]));
    }

    #[test]
    fn what_is_no_pattern_is_refused() {
        assert_eq!(parse("12"), None);
        assert_eq!(parse(&"g".repeat(128)), None);
        assert_eq!(parse(&"é".repeat(64)), None);
        assert!(parse(&"0f".repeat(64)).is_some());
    }
}
