//! Large copies to memory that this processor does not read next.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m128i, _mm_sfence, _mm_stream_si128};

use super::{Piece, Span, copied, copy_payload};

/// Of a cache, and of what is stored past it at a time.
const LINE_BYTES: usize = 64;

impl Span {
    /// As [`copy_piece`](Self::copy_piece), past the caches where the processor can: for many bytes that another one
    /// reads next, or nobody soon. Lines that the other one has are not fetched from it to be written over, which
    /// can take several times as long as the copy.
    ///
    /// # Panics
    /// When they do not fit.
    pub fn stream_piece(&self, offset: usize, from: Piece<'_>) {
        assert!(offset <= self.len && from.len() <= self.len - offset, "copy outside of the span");
        // SAFETY: inside the span, as just checked.
        let to = unsafe { self.as_mut_ptr().add(offset) };
        // SAFETY: both ranges are mapped: the span has one, and what has the other is borrowed.
        unsafe { stream_payload(from.as_ptr(), to, from.len()) };
    }
}

/// As `copy_payload`, past the caches.
///
/// # Safety
/// As there.
unsafe fn stream_payload(from: *const u8, to: *mut u8, len: usize) {
    let before = to.align_offset(LINE_BYTES).min(len);
    let lines = if cfg!(target_arch = "x86_64") { (len - before) / LINE_BYTES } else { 0 };
    let after = before + lines * LINE_BYTES;
    // SAFETY: the first bytes of both.
    unsafe { copy_payload(from, to, before) };
    let (middle, middle_to) = (from.wrapping_add(before), to.wrapping_add(before));
    // SAFETY: so many lines of both, and of the second the beginning of one.
    unsafe { stream_lines(middle, middle_to, lines) };
    // SAFETY: what is left of both.
    unsafe { copy_payload(from.wrapping_add(after), to.wrapping_add(after), len - after) };
}

/// # Safety
/// As of `copy_payload`, for so many lines; `to` is at the beginning of one.
#[cfg(target_arch = "x86_64")]
unsafe fn stream_lines(from: *const u8, to: *mut u8, lines: usize) {
    copied::add(lines * LINE_BYTES);
    let from: *const [__m128i; 4] = from.cast();
    let to: *mut [__m128i; 4] = to.cast();
    for line in 0..lines {
        let (from, to) = (from.wrapping_add(line), to.wrapping_add(line).cast::<__m128i>());
        // SAFETY: a line of those that are mapped, of which any bytes are such words.
        let words = unsafe { from.read_unaligned() };
        for (at, word) in words.into_iter().enumerate() {
            // SAFETY: sixteen bytes of a line that is mapped, at a multiple of sixteen.
            unsafe { _mm_stream_si128(to.wrapping_add(at), word) };
        }
    }
    // What was stored so is seen before what is stored next, as all else is.
    // SAFETY: each x86-64 has it.
    unsafe { _mm_sfence() };
}

/// # Safety
/// There are none.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream_lines(_: *const u8, _: *mut u8, lines: usize) {
    debug_assert_eq!(lines, 0, "such processors copy as ever");
}

#[cfg(test)]
mod tests {
    use crate::mem::{Arena, copied_bytes};

    #[test]
    fn a_streamed_copy_is_a_copy_wherever_it_begins_and_ends() {
        let (from, to) = (Arena::new(4096).expect("memory"), Arena::new(4096).expect("memory"));
        let (from, to) = (from.span(0, 4096), to.span(0, 4096));
        let bytes: Vec<u8> = (0..4096u32).map(|at| (at * 7 % 251) as u8).collect();
        from.copy_from(0, &bytes);
        for (start, offset, len) in [
            (0, 0, 4096),
            (1, 0, 640),
            (0, 1, 640),
            (5, 63, 130),
            (9, 64, 63),
            (3, 100, 20),
            (7, 7, 0),
        ] {
            to.zero();
            let before = copied_bytes();
            to.stream_piece(offset, from.piece().expect("memory").part(start, len));
            assert!(copied_bytes() - before >= len as u64, "counted");
            let mut got = vec![0; 4096];
            to.copy_to(0, &mut got);
            let mut all = vec![0; 4096];
            all[offset..offset + len].copy_from_slice(&bytes[start..start + len]);
            assert!(got == all, "{start} {offset} {len}");
        }
    }

    #[test]
    #[should_panic(expected = "outside of the span")]
    fn a_streamed_copy_stays_inside() {
        let arena = Arena::new(4096).expect("memory");
        arena.span(0, 128).stream_piece(64, arena.piece(1024, 65));
    }
}
