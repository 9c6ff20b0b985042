//! `dafs tail`: the end of files, and what is written behind it.

use std::collections::VecDeque;
use std::time::Duration;

use dafs_client::{File, OpenOptions};
use dafs_fabric::units::{duration, size};
use dafs_protocol::Status;

use crate::connect::{ConnectArgs, Connections, Remote};
use crate::failure::{self, Cause, Failure};
use crate::head::{PIECE_BYTES, title};
use crate::output::Output;
use crate::{interrupt, progress};

/// Print the end of files.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs tail dafs://localhost/logs/today\n  \
    dafs tail -n 100 -f dafs://localhost/logs/today\n  \
    dafs tail -c 1k dafs://localhost/disk.img | od -c\n  \
    dafs tail -n +2 dafs://localhost/table.csv           without its first line\n\n\
    -f looks again each second (--interval), until it is interrupted. It follows the name: a file\n\
    that is replaced is read from its beginning, and so is one that became shorter; one that is\n\
    away is waited for. Each of these is told.")]
pub struct Args {
    /// Lines; +NUMBER: from that line on.
    #[arg(
        short = 'n',
        long,
        value_name = "[+]NUMBER",
        default_value = "10",
        value_parser = lines,
        conflicts_with = "bytes"
    )]
    lines: From,
    /// Bytes, not lines (100, 4k, 1m); +SIZE: from that byte on, counted from 1.
    #[arg(short = 'c', long, value_name = "[+]SIZE", value_parser = bytes)]
    bytes: Option<From>,
    /// Print what is written behind the end, too, until it is interrupted.
    #[arg(short, long)]
    follow: bool,
    /// How often --follow looks, from 10ms on.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    #[command(flatten)]
    connect: ConnectArgs,
    /// What to print.
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
}

/// Where to begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum From {
    /// So many before the end.
    End(u64),
    /// At this one, counted from 1.
    Start(u64),
}

fn from(text: &str, number: impl Fn(&str) -> Result<u64, String>) -> Result<From, String> {
    match text.strip_prefix('+') {
        Some(rest) => Ok(From::Start(number(rest)?.max(1))),
        None => Ok(From::End(number(text)?)),
    }
}

fn lines(text: &str) -> Result<From, String> {
    from(text, |text| text.parse().map_err(|_| "expected a number, or + and a number".to_owned()))
}

fn bytes(text: &str) -> Result<From, String> {
    from(text, size)
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if time < Duration::from_millis(10) { Err("at least 10ms".into()) } else { Ok(time) }
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    let connections = Connections::new(&args.connect);
    let mut out = Output::new();
    let mut followed = Vec::new();
    for (index, url) in args.urls.iter().enumerate() {
        let printed = connections.remote(url).and_then(|remote| {
            title(&mut out, url, index, args.urls.len())?;
            let file = Followed::open(remote)?;
            followed.push(file);
            followed.last_mut().map_or(Ok(()), |file| file.print_end(args, &mut out))
        });
        out.flush()?;
        match printed {
            Err(failure) if failure.code == failure::FAILED => failure::report(&failure),
            other => other?,
        }
    }
    if args.follow { follow(args, &mut followed, &mut out) } else { Ok(()) }
}

/// Goes on until it is interrupted, or a server is lost for good.
fn follow(args: &Args, followed: &mut [Followed], out: &mut Output) -> Result<(), Failure> {
    let count = followed.len();
    let mut last = count.saturating_sub(1);
    if count == 0 {
        return Ok(());
    }
    loop {
        if !interrupt::sleep(args.interval) {
            return Err(Failure::about("", Cause::Interrupted));
        }
        for (index, file) in followed.iter_mut().enumerate() {
            let name = file.remote.name(&file.remote.path);
            file.print_more(
                &mut |out: &mut Output| {
                    if last == index {
                        return Ok(());
                    }
                    last = index;
                    title(out, &name, 1, count)
                },
                out,
            )?;
        }
        out.flush()?;
    }
}

/// A file of which the end is watched.
struct Followed {
    remote: Remote,
    file: File,
    /// Device and inode of `file`.
    is: (u64, u64),
    /// What is printed ends here.
    offset: u64,
    /// Nothing has its name; that was told.
    is_away: bool,
}

impl Followed {
    fn open(remote: Remote) -> Result<Followed, Failure> {
        let opened = remote.session.open(&remote.path, OpenOptions::read());
        let file = opened.map_err(|error| remote.failure(&remote.path, error))?;
        let attr = file.opened_attr();
        Ok(Followed { remote, file, is: (attr.device, attr.inode), offset: 0, is_away: false })
    }

    fn fail(&self, error: dafs_client::Error) -> Failure {
        self.remote.failure(&self.remote.path, error)
    }

    fn print_end(&mut self, args: &Args, out: &mut Output) -> Result<(), Failure> {
        let size = self.file.opened_attr().size;
        self.offset = match (args.bytes, args.lines) {
            (Some(From::End(bytes)), _) => size.saturating_sub(bytes),
            // Nothing is behind the end, however far.
            (Some(From::Start(byte)), _) => (byte - 1).min(size),
            (None, From::End(lines)) => self.last_lines(size, lines)?,
            (None, From::Start(line)) => self.line(line)?,
        };
        self.print_rest(out).map(drop)
    }

    /// Prints from where it is to the end; how much.
    fn print_rest(&mut self, out: &mut Output) -> Result<u64, Failure> {
        let mut piece = vec![0; PIECE_BYTES];
        let start = self.offset;
        loop {
            if interrupt::requested() {
                return Err(Failure::about("", Cause::Interrupted));
            }
            let read = self.file.read_at(&mut piece, self.offset).map_err(|e| self.fail(e))?;
            if read == 0 {
                return Ok(self.offset - start);
            }
            out.bytes(&piece[..read])?;
            self.offset += read as u64;
        }
    }

    /// Where the last `count` lines before `size` begin, read from the end on.
    fn last_lines(&self, size: u64, count: u64) -> Result<u64, Failure> {
        if count == 0 {
            return Ok(size);
        }
        let mut ends = 0;
        let mut end = size;
        let mut piece = vec![0; PIECE_BYTES];
        while end > 0 {
            if interrupt::requested() {
                return Err(Failure::about("", Cause::Interrupted));
            }
            let start = end.saturating_sub(PIECE_BYTES as u64);
            let wanted = usize::try_from(end - start).unwrap_or(PIECE_BYTES);
            let read = self.file.read_at(&mut piece[..wanted], start).map_err(|e| self.fail(e))?;
            for (at, byte) in piece[..read].iter().enumerate().rev() {
                let after = start + at as u64 + 1;
                // The end of the last line begins no other.
                if *byte != b'\n' || after == size {
                    continue;
                }
                ends += 1;
                if ends == count {
                    return Ok(after);
                }
            }
            end = start;
        }
        Ok(0)
    }

    /// Where line `number` begins, counted from 1; the end where there are fewer.
    fn line(&self, number: u64) -> Result<u64, Failure> {
        let mut piece = vec![0; PIECE_BYTES];
        let (mut line, mut offset) = (1, 0);
        while line < number {
            if interrupt::requested() {
                return Err(Failure::about("", Cause::Interrupted));
            }
            let read = self.file.read_at(&mut piece, offset).map_err(|error| self.fail(error))?;
            if read == 0 {
                break;
            }
            let mut rest: VecDeque<u64> = newlines(&piece[..read]).collect();
            while line < number {
                let Some(at) = rest.pop_front() else { break };
                line += 1;
                if line == number {
                    return Ok(offset + at + 1);
                }
            }
            offset += read as u64;
        }
        Ok(offset)
    }

    /// Looks at what has the name now, and prints what is new. `announce` comes before it.
    fn print_more(
        &mut self,
        announce: &mut dyn FnMut(&mut Output) -> Result<(), Failure>,
        out: &mut Output,
    ) -> Result<(), Failure> {
        let name = self.remote.name(&self.remote.path);
        let told = |what: &str| progress::notice(&format!("dafs tail: {name}: {what}"));
        // Opened each time: that is when a server sees what its local programs wrote.
        let now = match self.remote.session.open(&self.remote.path, OpenOptions::read()) {
            Ok(now) => now,
            Err(error) => {
                let is_away = matches!(error.status(), Some(Status::NoEnt | Status::Stale));
                let cause = Cause::from(error);
                if cause.is_final() {
                    return Err(self.remote.failure(&self.remote.path, cause));
                }
                if !self.is_away {
                    told(if is_away {
                        "is not there; waiting for it"
                    } else {
                        "cannot be opened; waiting"
                    });
                }
                self.is_away = true;
                return Ok(());
            }
        };
        let attr = now.opened_attr();
        let is = (attr.device, attr.inode);
        // A number may be used again for what comes after a while.
        if is != self.is || self.is_away {
            // What was written to the old one before it went.
            if self.file.attr().is_ok_and(|attr| attr.size > self.offset) {
                announce(out)?;
                self.print_rest(out)?;
            }
            told("was replaced; going on with the new file");
            self.offset = 0;
        } else if attr.size < self.offset {
            told("became shorter; going on from its beginning");
            self.offset = 0;
        }
        (self.file, self.is, self.is_away) = (now, is, false);
        if attr.size > self.offset {
            announce(out)?;
            self.print_rest(out)?;
        }
        Ok(())
    }
}

/// Where the ends of lines are.
fn newlines(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_counted_from_either_end() {
        assert_eq!(lines("7"), Ok(From::End(7)));
        assert_eq!(lines("+7"), Ok(From::Start(7)));
        assert_eq!(lines("+0"), Ok(From::Start(1)));
        assert_eq!(bytes("+4k"), Ok(From::Start(4096)));
        assert!(lines("x").is_err() && bytes("-1").is_err() && interval("1ms").is_err());
    }
}
