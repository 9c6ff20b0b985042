//! What a file may hold after the server was killed: what a sync confirmed, and over it whatever
//! was written, or cut, since.

/// The byte of a write at an offset: of another write it is another one, but by chance.
pub(crate) fn byte(write: u64, offset: u64) -> u8 {
    let mixed = (write << 32 ^ offset).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 56) as u8
}

/// The bytes of a write.
pub(crate) fn bytes(write: u64, offset: u64, len: u64) -> Vec<u8> {
    (offset..offset + len).map(|at| byte(write, at)).collect()
}

/// A change that may have been made.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Change {
    /// Of the bytes `offset..end`.
    Write { write: u64, offset: u64, end: u64 },
    /// To so many bytes.
    Cut { size: u64 },
}

/// One file, as its only writer knows it.
#[derive(Debug, Default)]
pub(crate) struct Written {
    /// As of the last sync.
    confirmed: Vec<u8>,
    /// Since then, in order.
    pending: Vec<Change>,
}

impl Written {
    /// Its size when all that is pending has been done.
    pub(crate) fn size(&self) -> u64 {
        self.pending.iter().fold(self.confirmed.len() as u64, |size, change| match change {
            Change::Write { end, .. } => size.max(*end),
            Change::Cut { size } => *size,
        })
    }

    /// To be told before it is asked for.
    pub(crate) fn begins(&mut self, change: Change) {
        self.pending.push(change);
    }

    /// All that is pending is safe.
    pub(crate) fn synced(&mut self) {
        for change in std::mem::take(&mut self.pending) {
            match change {
                Change::Write { write, offset, end } => {
                    let size = self.confirmed.len().max(end as usize);
                    self.confirmed.resize(size, 0);
                    let bytes = bytes(write, offset, end - offset);
                    self.confirmed[offset as usize..end as usize].copy_from_slice(&bytes);
                }
                Change::Cut { size } => self.confirmed.resize(size as usize, 0),
            }
        }
    }

    /// Whether the file can be like this.
    ///
    /// # Errors
    /// What cannot be.
    pub(crate) fn check(&self, found: &[u8]) -> Result<(), String> {
        let (mut least, mut size) = (self.confirmed.len() as u64, self.confirmed.len() as u64);
        let mut most = size;
        for change in &self.pending {
            size = match change {
                Change::Write { end, .. } => size.max(*end),
                Change::Cut { size } => *size,
            };
            (least, most) = (least.min(size), most.max(size));
        }
        let len = found.len() as u64;
        if !(least..=most).contains(&len) {
            return Err(format!("{len} bytes long, not {least} to {most}"));
        }
        let is_confirmed = |at: usize, byte: u8| self.confirmed.get(at) == Some(&byte);
        // Beyond the least size there may be a hole: what was not synced is kept in any order.
        let is_hole = |at: usize, byte: u8| byte == 0 && at as u64 >= least;
        let wrong = found.iter().enumerate().find(|&(at, &byte)| {
            !is_confirmed(at, byte) && !is_hole(at, byte) && !self.is_pending(at as u64, byte)
        });
        match wrong {
            Some((at, byte)) => Err(format!(
                "byte {at} of {len} is {byte}, confirmed {:?}, pending {:?}",
                self.confirmed.get(at),
                self.pending
            )),
            None => Ok(()),
        }
    }

    fn is_pending(&self, at: u64, found: u8) -> bool {
        self.pending.iter().any(|change| match *change {
            Change::Write { write, offset, end } => {
                (offset..end).contains(&at) && byte(write, at) == found
            }
            Change::Cut { .. } => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(changes: &[Change]) -> Written {
        let mut written = Written::default();
        changes.iter().for_each(|change| written.begins(*change));
        written.synced();
        written
    }

    #[test]
    fn what_was_confirmed_must_be_there() {
        let written = after(&[Change::Write { write: 1, offset: 0, end: 100 }]);
        let good = bytes(1, 0, 100);
        assert_eq!(written.check(&good), Ok(()));
        assert!(written.check(&good[..99]).is_err());
        let mut longer = good.clone();
        longer.resize(4096, 0);
        assert!(written.check(&longer).is_err(), "a block's end is not the file's");
        let mut other = good;
        other[50] ^= 1;
        assert!(written.check(&other).is_err());
    }

    #[test]
    fn what_is_pending_may_be_there() {
        let mut written = after(&[Change::Write { write: 1, offset: 0, end: 100 }]);
        written.begins(Change::Write { write: 2, offset: 50, end: 150 });
        let old = bytes(1, 0, 100);
        let mut new = old.clone();
        new.truncate(50);
        new.extend(bytes(2, 50, 100));
        assert_eq!(written.check(&old), Ok(()));
        assert_eq!(written.check(&new), Ok(()));
        assert_eq!(written.check(&new[..120]), Ok(()));
        new[10] ^= 1;
        assert!(written.check(&new).is_err());
        assert_eq!(written.size(), 150);
    }

    #[test]
    fn cuts_leave_zeros() {
        let mut written = after(&[Change::Write { write: 1, offset: 0, end: 100 }]);
        written.begins(Change::Cut { size: 10 });
        written.begins(Change::Write { write: 2, offset: 20, end: 30 });
        let mut found = bytes(1, 0, 10);
        assert_eq!(written.check(&found), Ok(()));
        found.resize(20, 0);
        found.extend(bytes(2, 20, 10));
        assert_eq!(written.check(&found), Ok(()));
        found[5] = !found[5];
        assert!(written.check(&found).is_err());
    }
}
