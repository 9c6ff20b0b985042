//! `dafs top`: what a server is doing, as it goes on.

mod rates;
mod screen;

use std::io::IsTerminal;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use dafs_fabric::units::duration;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use serde_json::Value;

use crate::failure::{CONNECT, Failure};
use crate::interrupt;
use crate::output::Output;
use crate::status;

use self::rates::{Rates, Sample, Sort};
use self::screen::{Key, Screen};

/// How soon a key, or a signal, is seen.
const TICK: Duration = Duration::from_millis(100);

/// Watch what a server of this machine is doing.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs top                                 the server of this machine\n  \
    dafs top 9100                            the one with this admin port\n  \
    dafs top --interval 5s --sort written dafs://localhost:20490/\n  \
    dafs top --once                          one sample, for a file or a pager\n  \
    dafs top --json | jq .hit_ratio          the same for a program\n\n\
    Keys: q ends, s sorts sessions by the next column, space pauses, ? helps.\n\
    Rates are means over the interval. Latency is the time in the server, from the arrival of a\n\
    request to its reply, by kind; < says that so many took less. Dirty bytes are written, and not\n\
    yet in the server's file system. Reads without a request are by a reference, or by clients that\n\
    map the cache and tell of them now and then: their rates are those of the last time. The same as a web page: the admin address in a browser.")]
pub struct Args {
    /// One sample as text, and no terminal.
    #[arg(long)]
    once: bool,
    /// One sample as a JSON object.
    #[arg(long)]
    json: bool,
    /// Time between samples.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// What sessions are sorted by.
    #[arg(long, value_enum, default_value = "requests")]
    sort: Sort,
    /// The admin address, its port, or a URL that the server serves.
    #[arg(value_name = "ADMIN|PORT|URL")]
    server: Option<String>,
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = duration(text).ok().filter(|time| *time >= TICK);
    time.ok_or_else(|| "expected a time of at least 100ms, such as 1s or 500ms".into())
}

/// Runs the command.
///
/// # Errors
/// There is no such server, or no terminal.
pub fn run(args: &Args) -> Result<(), Failure> {
    let admin = admin(args.server.as_deref())?;
    if args.once || args.json {
        return once(args, admin);
    }
    if !std::io::stdout().is_terminal() {
        let text = "standard output is no terminal: give --once or --json";
        return Err(Failure::usage(text));
    }
    // Tells what is wrong before the screen is taken.
    let first = sample(admin)?;
    let mut terminal = ratatui::try_init().map_err(|error| Failure::about("", error))?;
    // Also on the way of an error; `try_init` sees to panics.
    let _restore = Restore;
    let mut screen = Screen::new(admin, args.interval, args.sort, first);
    let mut next = Instant::now() + args.interval;
    while !interrupt::requested() {
        terminal.draw(|frame| screen.draw(frame)).map_err(|error| Failure::about("", error))?;
        let wait = next.saturating_duration_since(Instant::now()).min(TICK);
        if event::poll(wait).map_err(|error| Failure::about("", error))?
            && let Event::Key(key) = event::read().map_err(|error| Failure::about("", error))?
            && key.kind != KeyEventKind::Release
            && screen.key(key) == Key::End
        {
            return Ok(());
        }
        if Instant::now() >= next {
            next = Instant::now() + args.interval;
            if !screen.is_paused() {
                screen.take(sample(admin).map_err(|failure| failure.text));
            }
        }
    }
    Ok(())
}

struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

fn admin(server: Option<&str>) -> Result<SocketAddr, Failure> {
    if let Some(address) = server.and_then(address) {
        return Ok(address);
    }
    let admins = status::wanted(server)?;
    match admins.as_slice() {
        [admin] => Ok(*admin),
        several => {
            let list: Vec<String> = several.iter().map(|admin| described(*admin)).collect();
            let list = list.join("\n");
            Err(Failure::usage(format!("several servers, choose one by its admin port:\n{list}")))
        }
    }
}

/// A server by its port, and what it serves.
fn described(admin: SocketAddr) -> String {
    let status = status::fetch(admin).unwrap_or_default();
    let exports = status.get("exports").and_then(Value::as_array).cloned().unwrap_or_default();
    let path = |export: &Value| export.get("path").and_then(Value::as_str).map(str::to_owned);
    let paths: Vec<String> = exports.iter().filter_map(path).collect();
    format!("  dafs top {:<6} {}", admin.port(), paths.join(", "))
}

/// `HOST:PORT`, also as a browser shows it.
fn address(text: &str) -> Option<SocketAddr> {
    let bare = text.strip_prefix("http://").unwrap_or(text).trim_end_matches('/');
    let numeric = bare.replacen("localhost:", "127.0.0.1:", 1);
    numeric.parse().ok()
}

fn sample(admin: SocketAddr) -> Result<Sample, Failure> {
    let about = format!("http://{admin}/status");
    let failed = |text: String| Failure { about: about.clone(), text, code: CONNECT };
    let value = status::fetch(admin).map_err(|error| failed(Failure::about("", error).text))?;
    Sample::new(&value).ok_or_else(|| failed("this is no admin port of this version".into()))
}

fn once(args: &Args, admin: SocketAddr) -> Result<(), Failure> {
    let first = sample(admin)?;
    if !interrupt::sleep(args.interval) {
        return Ok(());
    }
    let rates = Rates::between(&first, &sample(admin)?, args.sort);
    let mut out = Output::new();
    if args.json {
        out.json(&rates)?;
    } else {
        for line in rates.lines() {
            out.line(&line)?;
        }
    }
    Ok(out.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_admin_address_is_taken_as_a_browser_shows_it() {
        let some = Some(SocketAddr::from(([127, 0, 0, 1], 9100)));
        for text in ["127.0.0.1:9100", "localhost:9100", "http://127.0.0.1:9100/"] {
            assert_eq!(address(text), some, "{text}");
        }
        assert!(address("[::1]:9100").is_some());
        assert_eq!((address("9100"), address("dafs://localhost/")), (None, None));
    }
}
