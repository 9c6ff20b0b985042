//! Walking scatter/gather lists without starting over.

use dafs_fabric::{SgList, Span};

/// Lets go what is in a list: one by one, as there are few.
#[inline]
pub fn let_go(list: &mut SgList) {
    while list.pop().is_some() {}
}

/// A place in a scatter/gather list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cursor {
    index: usize,
    offset: usize,
}

impl Cursor {
    /// The place `len` bytes into `list`.
    pub fn at(list: &[Span], len: usize) -> Cursor {
        let mut cursor = Cursor::default();
        cursor.walk(list, len, |_, _, _| {});
        cursor
    }

    /// Bytes of `list` before this place.
    pub fn passed(&self, list: &[Span]) -> usize {
        list.iter().take(self.index).map(Span::len).sum::<usize>() + self.offset
    }

    /// Calls `piece` with span, offset and length for each piece of the next `len` bytes and
    /// moves past them. Returns how many there were, fewer than `len` where the list ends.
    pub fn walk<'a>(
        &mut self,
        list: &'a [Span],
        len: usize,
        mut piece: impl FnMut(&'a Span, usize, usize),
    ) -> usize {
        let mut left = len;
        while left > 0 {
            let Some(span) = list.get(self.index) else { break };
            let take = left.min(span.len() - self.offset);
            if take > 0 {
                piece(span, self.offset, take);
                left -= take;
                self.offset += take;
            }
            if self.offset == span.len() {
                self.index += 1;
                self.offset = 0;
            }
        }
        len - left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dafs_fabric::Arena;

    #[test]
    fn pieces_follow_each_other() {
        let arena = Arena::new(4096).expect("arena");
        let list = [arena.span(0, 3), arena.span(10, 0), arena.span(20, 5)];
        let mut cursor = Cursor::default();
        let mut seen = Vec::new();
        assert_eq!(cursor.walk(&list, 2, |s, o, l| seen.push((s.len(), o, l))), 2);
        assert_eq!(cursor.walk(&list, 4, |s, o, l| seen.push((s.len(), o, l))), 4);
        assert_eq!(seen, [(3, 0, 2), (3, 2, 1), (5, 0, 3)]);
        assert_eq!(cursor, Cursor::at(&list, 6));
        assert_eq!((cursor.passed(&list), Cursor::default().passed(&list)), (6, 0));
        assert_eq!(cursor.walk(&list, 100, |_, _, _| {}), 2);
        assert_eq!(cursor.walk(&list, 1, |_, _, _| panic!("the list has ended")), 0);
    }
}
