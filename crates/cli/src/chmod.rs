//! `dafs chmod`: changes permission bits.

use dafs_protocol::{Attr, FileKind, SetAttr};

use crate::connect::{ConnectArgs, Connections, Remote};
use crate::failure::{self, Failure};
use crate::output;
use crate::sys;
use crate::tree::{Event, Node, Walk};

/// Change permission bits.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs chmod 640 dafs://localhost/notes.txt\n  \
    dafs chmod -R u=rwX,go-w dafs://localhost/photos")]
pub struct Args {
    /// Directories and all that is below them.
    #[arg(short = 'R', long)]
    recursive: bool,
    /// Octal, or as in u+x,go-w,a=rX.
    #[arg(value_name = "MODE", allow_hyphen_values = true)]
    mode: String,
    #[command(flatten)]
    connect: ConnectArgs,
    /// What to change.
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    let change = Change::parse(&args.mode)
        .ok_or_else(|| Failure::usage(format!("'{}' is no mode", args.mode)))?;
    let connections = Connections::new(&args.connect);
    for url in &args.urls {
        let changed = connections.remote(url).and_then(|remote| {
            if args.recursive { all(&change, &remote) } else { one(&change, &remote) }
        });
        match changed {
            Err(failure) if failure.code == failure::FAILED => failure::report(&failure),
            other => other?,
        }
    }
    Ok(())
}

fn one(change: &Change, remote: &Remote) -> Result<(), Failure> {
    let path = &remote.path;
    let attr = remote.session.stat(path).map_err(|error| remote.failure(path, error))?;
    apply(change, remote, path, &attr)
}

fn all(change: &Change, remote: &Remote) -> Result<(), Failure> {
    let mut walk = Walk::new(remote, usize::MAX)?;
    while let Some(event) = walk.next()? {
        // Directories when entered: the new bits may be needed to enter them.
        let Event::Entry(Node { path, attr, .. }) = event else { continue };
        if attr.kind == FileKind::Symlink {
            continue;
        }
        if let Err(failure) = apply(change, remote, &path, &attr) {
            failure::report(&failure);
        }
    }
    Ok(())
}

fn apply(change: &Change, remote: &Remote, path: &[u8], attr: &Attr) -> Result<(), Failure> {
    let mode = change.apply(attr.mode, attr.kind == FileKind::Directory);
    if mode == attr.mode {
        return Ok(());
    }
    let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
    remote.session.set_attr(path, set, false).map_err(|error| remote.failure(path, error))?;
    output::done(|| format!("{}: {:04o}, was {:04o}", remote.name(path), mode, attr.mode))
}

/// Permission bits in octal.
pub fn octal(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode) if mode <= 0o7777 && !text.starts_with('+') => Ok(mode),
        _ => Err("expected an octal number up to 7777".into()),
    }
}

/// A mode as given on the command line.
#[derive(Debug, PartialEq, Eq)]
enum Change {
    Set(u32),
    Clauses(Vec<Clause>),
}

/// `go-w`: for whom, what is done, and with which bits.
#[derive(Debug, PartialEq, Eq)]
struct Clause {
    /// 0o700 user, 0o070 group, 0o007 others.
    who: u32,
    what: u8,
    /// As for others: r 4, w 2, x 1.
    bits: u32,
    /// `X`: x for directories and for what has an x already.
    search: bool,
    set_id: bool,
    sticky: bool,
}

impl Change {
    fn parse(text: &str) -> Option<Change> {
        if text.bytes().all(|b| b.is_ascii_digit()) {
            return octal(text).ok().map(Change::Set);
        }
        let mask = sys::umask();
        let mut clauses = Vec::new();
        for part in text.split(',') {
            let at = part.find(['+', '-', '='])?;
            let (who, rest) = part.split_at(at);
            let mut classes = 0;
            for c in who.chars() {
                classes |= match c {
                    'u' => 0o700,
                    'g' => 0o070,
                    'o' => 0o007,
                    'a' => 0o777,
                    _ => return None,
                };
            }
            let who = if who.is_empty() { 0o777 & !mask } else { classes };
            clauses.push(Clause::parse(who, rest)?);
        }
        Some(Change::Clauses(clauses))
    }

    fn apply(&self, mode: u32, directory: bool) -> u32 {
        match self {
            Change::Set(mode) => *mode,
            Change::Clauses(clauses) => {
                clauses.iter().fold(mode, |mode, clause| clause.apply(mode, directory))
            }
        }
    }
}

impl Clause {
    fn parse(who: u32, text: &str) -> Option<Clause> {
        let (what, letters) = text.as_bytes().split_first()?;
        let mut clause =
            Clause { who, what: *what, bits: 0, search: false, set_id: false, sticky: false };
        for letter in letters {
            match letter {
                b'r' => clause.bits |= 4,
                b'w' => clause.bits |= 2,
                b'x' => clause.bits |= 1,
                b'X' => clause.search = true,
                b's' => clause.set_id = true,
                b't' => clause.sticky = true,
                _ => return None,
            }
        }
        Some(clause)
    }

    fn apply(&self, mode: u32, directory: bool) -> u32 {
        let execute = self.search && (directory || mode & 0o111 != 0);
        let bits = self.bits | u32::from(execute);
        let mut changed = (bits * 0o111) & self.who;
        if self.set_id {
            changed |= if self.who & 0o700 != 0 { 0o4000 } else { 0 };
            changed |= if self.who & 0o070 != 0 { 0o2000 } else { 0 };
        }
        if self.sticky {
            changed |= 0o1000;
        }
        match self.what {
            b'+' => mode | changed,
            b'-' => mode & !changed,
            _ => (mode & !self.who) | changed,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_understood() {
        for (text, before, directory, after) in [
            ("640", 0o777, false, 0o640),
            ("4755", 0o644, false, 0o4755),
            ("u+x", 0o644, false, 0o744),
            ("go-w", 0o666, false, 0o644),
            ("a=rX", 0o600, false, 0o444),
            ("a=rX", 0o600, true, 0o555),
            ("a=rX", 0o700, false, 0o555),
            ("u=rwx,go=rx", 0o000, false, 0o755),
            ("u+s,+t", 0o755, true, 0o5755),
            ("o=", 0o777, false, 0o770),
        ] {
            let change = Change::parse(text).expect(text);
            assert_eq!(change.apply(before, directory), after, "{text}");
        }
    }

    #[test]
    fn other_words_are_no_modes() {
        for text in ["", "8", "17777", "u", "u+q", "z+r", "u+x,", "+99"] {
            assert_eq!(Change::parse(text), None, "{text}");
        }
    }
}
