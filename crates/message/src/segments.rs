//! Operations on lists of memory segments.

use dafs_fabric::{SgList, Span, sg_bytes};
use smallvec::SmallVec;

/// Lets go what is in a list; most often there is nothing.
#[inline]
pub fn let_go<A: smallvec::Array>(list: &mut SmallVec<A>) {
    // One by one: there are few.
    while list.pop().is_some() {}
}

/// Joins neighbours, so that lists stay short.
#[inline]
pub fn join(list: &mut SgList) {
    match list.as_slice() {
        [] => {}
        [one] if !one.is_empty() => {}
        _ => join_some(list),
    }
}

fn join_some(list: &mut SgList) {
    let neighbours = list.iter().zip(list.iter().skip(1)).any(|(a, b)| a.is_followed_by(b));
    if !neighbours && !list.iter().any(Span::is_empty) {
        return;
    }
    let mut joined = SgList::new();
    for span in list.drain(..) {
        match joined.last_mut() {
            _ if span.is_empty() => {}
            Some(last) if last.is_followed_by(&span) => last.append(&span),
            _ => joined.push(span),
        }
    }
    *list = joined;
}

/// The bytes `offset .. offset + len` of what `list` covers, as far as it does.
pub fn cut(list: &[Span], offset: usize, len: usize) -> SgList {
    let mut out = SgList::new();
    let (mut skip, mut left) = (offset, len);
    for span in list {
        if left == 0 {
            break;
        }
        if skip >= span.len() {
            skip -= span.len();
            continue;
        }
        let take = left.min(span.len() - skip);
        out.push(span.part(skip, take));
        (skip, left) = (0, left - take);
    }
    out
}

/// The list without what lies behind its first `len` bytes.
pub fn truncate(list: SgList, len: usize) -> SgList {
    if sg_bytes(&list) == len { list } else { cut(&list, 0, len) }
}

/// Copies payload to what `list` covers from `offset` on; what does not fit is left out.
pub fn copy_in(list: &[Span], offset: usize, mut from: &[u8]) {
    let mut skip = offset;
    for span in list {
        if skip >= span.len() {
            skip -= span.len();
            continue;
        }
        let (now, rest) = from.split_at(from.len().min(span.len() - skip));
        span.copy_from(skip, now);
        (skip, from) = (0, rest);
        if from.is_empty() {
            break;
        }
    }
}

/// Copies a span of payload to what `list` covers from `offset` on; what does not fit is left
/// out.
pub fn copy_span_in(list: &[Span], offset: usize, from: &Span) {
    let (mut skip, mut done) = (offset, 0);
    for span in list {
        if done == from.len() {
            break;
        }
        if skip >= span.len() {
            skip -= span.len();
            continue;
        }
        let take = (from.len() - done).min(span.len() - skip);
        span.copy_span(skip, &from.part(done, take));
        (skip, done) = (0, done + take);
    }
}

#[cfg(test)]
mod tests {
    use dafs_fabric::Arena;

    use super::*;

    #[test]
    fn lists_are_joined_and_cut() {
        let arena = Arena::new(8192).expect("arena");
        let mut joined: SgList = [(0, 10), (10, 5), (100, 0), (15, 1), (40, 4)]
            .map(|(at, len)| arena.span(at, len))
            .into_iter()
            .collect();
        join(&mut joined);
        assert_eq!(joined.iter().map(Span::len).collect::<Vec<_>>(), [16, 4]);
        let part = cut(&joined, 14, 4);
        assert_eq!(part.iter().map(Span::len).collect::<Vec<_>>(), [2, 2]);
        assert_eq!(part[0].addr(), arena.span(14, 1).addr());
        assert_eq!(sg_bytes(&cut(&joined, 19, 100)), 1);
        assert_eq!(sg_bytes(&truncate(joined, 17)), 17);
    }

    #[test]
    fn payload_is_copied_across_segments() {
        let arena = Arena::new(8192).expect("arena");
        let list = [arena.span(100, 3), arena.span(0, 2), arena.span(200, 9)];
        copy_in(&list, 2, b"abcdef");
        let mut out = [0; 3];
        list[2].part(0, 3).copy_to(0, &mut out);
        assert_eq!(&out, b"def");
        let from = arena.span(4096, 4);
        from.copy_from(0, b"wxyz");
        copy_span_in(&list, 1, &from);
        let mut out = [0; 2];
        list[1].copy_to(0, &mut out);
        assert_eq!(&out, b"yz");
    }
}
