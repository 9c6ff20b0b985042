//! `dafs touch`: makes empty files, sets times.

use dafs_client::OpenOptions;
use dafs_protocol::{SetAttr, SetTime, Status, Timestamp};

use crate::connect::{ConnectArgs, Connections, Remote};
use crate::failure::{self, Failure};
use crate::{output, sys};

/// Set times to now, and make files that are missing.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs touch dafs://localhost/marker\n  \
    dafs touch -c -m --at 1700000000.5 dafs://localhost/notes.txt")]
pub struct Args {
    /// Do not make files.
    #[arg(short = 'c', long)]
    no_create: bool,
    /// Only the time of last access.
    #[arg(short, long)]
    access: bool,
    /// Only the time of last change.
    #[arg(short, long)]
    modify: bool,
    /// Not now, but so many seconds after the beginning of 1970.
    #[arg(long, value_name = "SECONDS", value_parser = seconds, allow_hyphen_values = true)]
    at: Option<Timestamp>,
    #[command(flatten)]
    connect: ConnectArgs,
    /// Files.
    #[arg(value_name = "URL", required = true)]
    urls: Vec<String>,
}

fn seconds(text: &str) -> Result<Timestamp, String> {
    let wrong = || "expected seconds, with up to nine digits after the point".to_owned();
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = fraction.bytes().all(|b| b.is_ascii_digit()) && fraction.len() <= 9;
    let padded = format!("{fraction:0<9}");
    match (whole.parse::<i64>(), padded.parse::<u32>()) {
        (Ok(seconds), Ok(nanoseconds)) if digits => {
            Ok(if whole.starts_with('-') && nanoseconds > 0 {
                Timestamp { seconds: seconds - 1, nanoseconds: 1_000_000_000 - nanoseconds }
            } else {
                Timestamp { seconds, nanoseconds }
            })
        }
        _ => Err(wrong()),
    }
}

/// Runs the command.
///
/// # Errors
/// What was not reported yet.
pub fn run(args: &Args) -> Result<(), Failure> {
    let connections = Connections::new(&args.connect);
    for url in &args.urls {
        match connections.remote(url).and_then(|remote| touch(args, &remote)) {
            Err(failure) if failure.code == failure::FAILED => failure::report(&failure),
            other => other?,
        }
    }
    Ok(())
}

fn touch(args: &Args, remote: &Remote) -> Result<(), Failure> {
    let path = &remote.path;
    let time = args.at.map_or(SetTime::Now, SetTime::To);
    let both = args.access == args.modify;
    let set = SetAttr {
        accessed: (both || args.access).then_some(time),
        modified: (both || args.modify).then_some(time),
        ..SetAttr::default()
    };
    let fail = |error| remote.failure(path, error);
    match remote.session.set_attr(path, set, false) {
        Ok(_) => return output::done(|| format!("touched {}", remote.name(path))),
        Err(error) if error.status() == Some(Status::NoEnt) && args.no_create => return Ok(()),
        Err(error) if error.status() != Some(Status::NoEnt) => return Err(fail(error)),
        Err(_) => {}
    }
    let mode = 0o666 & !sys::umask();
    let options = OpenOptions { write: true, create: true, mode, ..OpenOptions::default() };
    remote.session.open(path, options).and_then(dafs_client::File::close).map_err(fail)?;
    if args.at.is_some() {
        remote.session.set_attr(path, set, false).map_err(fail)?;
    }
    output::done(|| format!("made {}", remote.name(path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_have_fractions_and_signs() {
        let at = |seconds, nanoseconds| Ok(Timestamp { seconds, nanoseconds });
        assert_eq!(seconds("1700000000.5"), at(1_700_000_000, 500_000_000));
        assert_eq!(seconds("-1.25"), at(-2, 750_000_000));
        assert_eq!(seconds("7"), at(7, 0));
        for wrong in ["", "x", "1.x", "1.1234567890", "1.-5"] {
            assert!(seconds(wrong).is_err(), "{wrong}");
        }
    }
}
