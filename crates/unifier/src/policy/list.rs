//! Lists over numbered units, each unit in one list at most.

/// The neighbours of each unit, as numbers plus 1; 0: none. Zeros, so that an unused one takes no
/// memory.
pub(crate) struct Links(Box<[[u32; 2]]>);

/// One list, the longest untouched first.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct List {
    first: u32,
    last: u32,
    len: u32,
}

impl Links {
    pub(crate) fn new(units: usize) -> Links {
        assert!(units < u32::MAX as usize, "numbers of units have 32 bits");
        Links(vec![[0; 2]; units].into_boxed_slice())
    }

    fn of(&mut self, place: u32) -> &mut [u32; 2] {
        &mut self.0[place as usize - 1]
    }
}

impl List {
    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn first(&self) -> Option<u32> {
        self.first.checked_sub(1)
    }

    pub(crate) fn push(&mut self, links: &mut Links, unit: u32) {
        let place = unit + 1;
        *links.of(place) = [self.last, 0];
        match self.last {
            0 => self.first = place,
            last => links.of(last)[1] = place,
        }
        self.last = place;
        self.len += 1;
    }

    /// Takes a unit out that is in this list.
    pub(crate) fn take(&mut self, links: &mut Links, unit: u32) {
        let [before, after] = std::mem::take(links.of(unit + 1));
        match before {
            0 => self.first = after,
            before => links.of(before)[1] = after,
        }
        match after {
            0 => self.last = before,
            after => links.of(after)[0] = before,
        }
        self.len -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_leave_from_any_place() {
        let mut links = Links::new(4);
        let mut list = List::default();
        for unit in 0..4 {
            list.push(&mut links, unit);
        }
        list.take(&mut links, 1);
        list.take(&mut links, 3);
        list.push(&mut links, 1);
        let mut order = Vec::new();
        while let Some(unit) = list.first() {
            order.push(unit);
            list.take(&mut links, unit);
        }
        assert_eq!((order, list.len()), (vec![0, 2, 1], 0));
        list.push(&mut links, 3);
        assert_eq!(list.first(), Some(3));
    }
}
