//! What is done with what is there already.

use dafs_protocol::{Attr, FileKind};

use super::filter::Filter;
use super::like::Like;

/// What may be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Replace {
    /// Everything.
    #[default]
    Always,
    /// Nothing.
    Never,
    /// What was modified before the original.
    Older,
    /// What differs in type, size or time.
    Changed,
}

/// How a copy is made.
#[derive(Debug, Clone, Default)]
pub struct Rules {
    /// What may be replaced.
    pub replace: Replace,
    /// Files of the same size are compared byte by byte; copies are read back.
    pub checksum: bool,
    /// Extended attributes and access control lists are kept.
    pub xattrs: bool,
    /// Symlinks of the origin are followed.
    pub follow: bool,
    /// What the origin lacks is removed.
    pub delete: bool,
    /// What is in the way of something of another type is removed.
    pub clear: bool,
    /// Nothing is changed.
    pub dry_run: bool,
    /// Each thing is named.
    pub verbose: bool,
    /// On disk before it gets its name.
    pub sync: bool,
    /// What is left out.
    pub filter: Filter,
    /// Threads that copy; 0: as many as usual.
    pub transfers: usize,
}

/// What is known of the place that something goes to.
#[derive(Debug, Clone, Copy)]
pub enum There {
    /// Nothing, and nothing need be.
    Unknown,
    /// There is no such name.
    Missing,
    /// This.
    Is(Attr),
}

impl There {
    /// What is there, if that is known.
    pub fn attr(&self) -> Option<&Attr> {
        match self {
            There::Is(attr) => Some(attr),
            _ => None,
        }
    }
}

/// What is to be done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is copied.
    Copy,
    /// It gets owner, mode and times of the original.
    Dress,
    /// It is as it should be.
    Same,
    /// It is left alone, whatever it is.
    Keep,
    /// The bytes are to be compared.
    Compare,
}

impl Rules {
    /// True when it must be known what is there.
    pub fn ask(&self) -> bool {
        self.replace != Replace::Always || self.checksum || self.delete || self.dry_run
    }

    /// True when something may take the place of what is `there`.
    pub fn may_replace(&self, there: &There) -> bool {
        match self.replace {
            Replace::Always | Replace::Changed => true,
            Replace::Older => matches!(there, There::Is(_)),
            Replace::Never => false,
        }
    }

    /// What is to be done with something that is no directory.
    pub fn judge(&self, like: &Like, there: &There) -> Verdict {
        let There::Is(at) = there else { return Verdict::Copy };
        let is_file = like.attr.kind == FileKind::File && at.kind == FileKind::File;
        let compare = self.checksum && is_file && at.size == like.attr.size;
        match self.replace {
            Replace::Never => Verdict::Keep,
            Replace::Older if at.modified >= like.attr.modified => Verdict::Keep,
            Replace::Always | Replace::Older if compare => Verdict::Compare,
            Replace::Always | Replace::Older => Verdict::Copy,
            Replace::Changed if compare => Verdict::Compare,
            Replace::Changed if looks_same(&like.attr, at) => self.dressed(like, at),
            Replace::Changed => Verdict::Copy,
        }
    }

    /// Of something with the right content.
    pub fn dressed(&self, like: &Like, at: &Attr) -> Verdict {
        let is_program = like.attr.kind == FileKind::File && like.mode & 0o6000 != 0;
        if like.is_like(at) {
            Verdict::Same
        } else if is_program && like.owner.is_some_and(|owner| owner != (at.uid, at.gid)) {
            // What somebody else wrote is not made a program of this owner's.
            Verdict::Copy
        } else {
            Verdict::Dress
        }
    }
}

/// As far as can be told without reading.
fn looks_same(attr: &Attr, at: &Attr) -> bool {
    attr.kind == at.kind
        && match attr.kind {
            FileKind::File | FileKind::Symlink => {
                attr.size == at.size && attr.modified == at.modified
            }
            FileKind::CharDevice | FileKind::BlockDevice => attr.rdev == at.rdev,
            _ => true,
        }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::copy::like::attr_of;

    #[test]
    fn rules_say_what_is_done_with_what_is_there() {
        let mut attr = attr_of(&std::fs::metadata("/proc/self/exe").expect("a file"));
        attr.modified.seconds = 100;
        let like = Like::new(&attr, 0);
        let (mut newer, mut older, mut other) = (attr, attr, attr);
        newer.modified.seconds += 1;
        older.modified.seconds -= 1;
        other.mode ^= 1;
        let verdict = |replace, checksum, at| {
            Rules { replace, checksum, ..Rules::default() }.judge(&like, &There::Is(at))
        };
        for (replace, checksum, at, expected) in [
            (Replace::Always, false, attr, Verdict::Copy),
            (Replace::Always, true, attr, Verdict::Compare),
            (Replace::Never, false, older, Verdict::Keep),
            (Replace::Older, false, older, Verdict::Copy),
            (Replace::Older, false, attr, Verdict::Keep),
            (Replace::Older, true, newer, Verdict::Keep),
            (Replace::Changed, false, attr, Verdict::Same),
            (Replace::Changed, false, newer, Verdict::Copy),
            (Replace::Changed, true, attr, Verdict::Compare),
            (Replace::Changed, false, other, Verdict::Dress),
        ] {
            assert_eq!(verdict(replace, checksum, at), expected, "{replace:?} {checksum}");
        }
        let mut program = like;
        program.mode |= 0o4000;
        let mut others = attr;
        others.uid = 12_345;
        let rules = Rules { replace: Replace::Changed, ..Rules::default() };
        assert_eq!(rules.judge(&program, &There::Is(attr)), Verdict::Dress);
        assert_eq!(rules.judge(&program, &There::Is(others)), Verdict::Copy);
        assert_eq!(rules.judge(&like, &There::Is(others)), Verdict::Dress);
        let rules = Rules { replace: Replace::Never, ..Rules::default() };
        assert_eq!(rules.judge(&like, &There::Missing), Verdict::Copy);
        assert!(!rules.may_replace(&There::Missing));
    }
}
