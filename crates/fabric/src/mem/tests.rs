//! Arenas, spans, buffers, loans.

use super::*;

#[test]
fn arena_parts_keep_the_mapping() {
    let arena = Arena::new(10_000).expect("arena");
    assert_eq!(arena.len(), 12_288);
    let span = arena.span(4096, 4096);
    drop(arena);
    span.copy_from(10, b"hello");
    let mut out = [0; 5];
    span.part(10, 5).copy_to(0, &mut out);
    assert_eq!(&out, b"hello");
}

#[test]
fn huge_pages_can_begin_where_the_arena_does() {
    for bytes in [1, 10_000, HUGE_PAGE_BYTES, 5 * HUGE_PAGE_BYTES + 1] {
        let arena = Arena::in_segments(bytes, HUGE_PAGE_BYTES).expect("arena");
        let whole = arena.span(0, arena.len());
        assert_eq!(whole.addr() as usize % HUGE_PAGE_BYTES, 0);
        assert_eq!(arena.len(), bytes.next_multiple_of(PAGE_BYTES));
        arena.populate_huge(0, arena.len());
        let last = arena.len() - 2;
        whole.copy_from(last, b"ok");
        arena.discard(last / PAGE_BYTES * PAGE_BYTES, PAGE_BYTES).expect("discard");
        let mut out = *b"ok";
        whole.copy_to(last, &mut out);
        assert_eq!(out, [0; 2], "given back");
    }
}

#[test]
#[should_panic(expected = "outside of the span")]
fn copies_are_checked() {
    let arena = Arena::new(4096).expect("arena");
    arena.span(0, 16).copy_from(12, b"hello");
}

#[test]
fn a_loan_ends_when_all_spans_are_gone() {
    let mut memory = vec![0; 100];
    lend_mut(&mut memory, |span| {
        let clone = span.part(10, 3);
        clone.copy_from(0, b"abc");
    });
    assert_eq!(&memory[10..13], b"abc");
}

#[test]
fn a_buffer_comes_back_when_no_span_is_left() {
    let posted = Buffer::new(100).expect("buffer").post();
    let span = posted.span().part(0, 10);
    let posted = posted.take_back().expect_err("a span is left");
    span.copy_from(0, b"0123456789");
    drop(span);
    let buffer = posted.take_back().expect("no span is left");
    assert_eq!(&buffer[..10], b"0123456789");
}

#[test]
#[should_panic(expected = "lent for reading")]
fn memory_lent_for_reading_is_no_target() {
    // The panic unwinds through the loan with no span left.
    lend(b"constant", |span| span.copy_from(0, b"x"));
}

#[test]
fn the_owner_of_a_span_does_not_hold_a_buffer() {
    let posted = Buffer::many(2, 5000).expect("buffers").pop().expect("two").post();
    let owner = posted.span().part(100, 10).owner().expect("a buffer");
    assert_eq!((owner.addr(), owner.len()), (posted.span().addr(), 5000));
    assert!(posted.take_back().is_ok());
    lend(b"lent", |span| assert!(span.owner().is_none()));
    let whole = Arena::new(12_288).expect("arena").span(1, 1).owner().expect("an arena");
    assert_eq!(whole.len(), 12_288);
}

#[test]
fn a_segment_is_registered_as_a_whole() {
    let arena = Arena::in_segments(5 * PAGE_BYTES, 2 * PAGE_BYTES).expect("arena");
    let owner = |at, len| {
        let owner = arena.span(at, len).owner()?;
        Some((owner.addr() - arena.span(0, 0).addr(), owner.len()))
    };
    assert_eq!(owner(5, 2 * PAGE_BYTES - 5), Some((0, 2 * PAGE_BYTES)));
    assert_eq!(owner(5, 2 * PAGE_BYTES), None);
    assert_eq!(owner(4 * PAGE_BYTES, 1), Some((4 * PAGE_BYTES as u64, PAGE_BYTES)));
    assert_eq!(owner(5 * PAGE_BYTES, 0), Some((4 * PAGE_BYTES as u64, PAGE_BYTES)));
    let part = |page: usize| arena.span(page * PAGE_BYTES, PAGE_BYTES);
    assert!(part(0).is_followed_by(&part(1)) && !part(1).is_followed_by(&part(2)));
}

#[test]
fn neighbours_are_joined() {
    let arena = Arena::new(8192).expect("arena");
    let mut a = arena.span(0, 4096);
    let b = arena.span(4096, 4096);
    assert!(a.is_followed_by(&b) && !b.is_followed_by(&a));
    a.append(&b);
    assert_eq!(a.len(), 8192);
}
