//! Which of the violations of peers are told in the log: some of each origin, and some in all, in
//! a minute. All are counted.

use std::time::Duration;

use rustc_hash::FxHashMap;

use super::crowd::Origin;

const WINDOW: Duration = Duration::from_secs(60);
/// Lines of one origin, and in all.
const LINES_OF_ONE: u32 = 4;
const LINES: u32 = 32;

#[derive(Debug, Default)]
pub(super) struct Complaints {
    /// Since when these are counted.
    since: Duration,
    lines: u32,
    of: FxHashMap<Option<Origin>, u32>,
    withheld: u64,
}

impl Complaints {
    /// Whether one more is told; `None`: of an unknown origin.
    pub(super) fn may_report(&mut self, origin: Option<Origin>) -> bool {
        let may = self.lines < LINES && {
            let of = self.of.entry(origin).or_default();
            *of += 1;
            *of <= LINES_OF_ONE
        };
        self.lines += u32::from(may);
        self.withheld += u64::from(!may);
        may
    }

    /// When a minute is over: how many were not told in it. The next one begins.
    pub(super) fn end_window(&mut self, now: Duration) -> Option<u64> {
        if now.saturating_sub(self.since) < WINDOW {
            return None;
        }
        let withheld = self.withheld;
        *self = Complaints { since: now, ..Complaints::default() };
        (withheld > 0).then_some(withheld)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crowd_of_violations_takes_few_lines() {
        let mut complaints = Complaints::default();
        let mut told = |uid: u32, times: u32| {
            let origin = Some(Origin::User(uid));
            (0..times).filter(|_| complaints.may_report(origin)).count()
        };
        assert_eq!((told(7, 1000), told(8, 2)), (LINES_OF_ONE as usize, 2));
        let all: usize = (100..1000).map(|uid| told(uid, 2)).sum();
        assert_eq!(all, LINES as usize - LINES_OF_ONE as usize - 2);
        assert!(complaints.of.len() <= LINES as usize, "nor memory");
        assert_eq!(complaints.end_window(WINDOW / 2), None);
        let withheld = 1000 + 2 + 1800 - u64::from(LINES);
        assert_eq!(complaints.end_window(WINDOW), Some(withheld));
        assert_eq!(complaints.end_window(WINDOW * 3), None, "nothing was withheld");
        assert!(complaints.may_report(Some(Origin::User(7))));
    }
}
