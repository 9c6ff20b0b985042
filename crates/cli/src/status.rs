//! `dafs status`: what the servers of this machine are doing.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use dafs_client::Url;
use serde_json::Value;

use crate::failure::{self, CONNECT, Failure};
use crate::output::Output;
use crate::runtime::{self, Note};
use crate::text;

/// Bytes of an answer; more are not read.
const ANSWER_BYTES_MAX: u64 = 4 << 20;

/// Print what the servers of this machine are doing.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs status                              all servers of this machine\n  \
    dafs status dafs://localhost:20490/      the one that serves this URL\n  \
    dafs status --json 9100 | jq .counters   the one with this admin port")]
pub struct Args {
    /// One JSON object per server.
    #[arg(long)]
    json: bool,
    /// A URL, or the number of an admin port.
    #[arg(value_name = "URL|PORT")]
    server: Option<String>,
}

/// Runs the command.
///
/// # Errors
/// There is no such server.
pub fn run(args: &Args) -> Result<(), Failure> {
    let admins = wanted(args.server.as_deref())?;
    let mut out = Output::new();
    for admin in admins {
        match fetch(admin) {
            Ok(status) if args.json => out.json(&status)?,
            Ok(status) => print(&status, admin, &mut out)?,
            // One of all may have ended meanwhile.
            Err(_) if args.server.is_none() && !is_here(admin) => {}
            Err(error) => {
                let failure = Failure::about(format!("http://{admin}/status"), error);
                failure::report(&Failure { code: CONNECT, ..failure });
            }
        }
        out.flush()?;
    }
    Ok(())
}

fn is_here(admin: SocketAddr) -> bool {
    runtime::servers().iter().any(|note| note.admin == admin)
}

/// The admin addresses of the servers that are meant.
///
/// # Errors
/// There is none.
pub fn wanted(server: Option<&str>) -> Result<Vec<SocketAddr>, Failure> {
    if let Some(port) = server.and_then(|text| text.parse::<u16>().ok()) {
        return Ok(vec![SocketAddr::from(([127, 0, 0, 1], port))]);
    }
    let url = server.map(Url::parse).transpose().map_err(|error| Failure::about("", error))?;
    let notes = runtime::servers();
    let serves = |note: &&Note| url.as_ref().is_none_or(|url| matches(note, url));
    let admins: Vec<SocketAddr> = notes.iter().filter(serves).map(|note| note.admin).collect();
    if admins.is_empty() {
        let about = url.map_or_else(String::new, |url| url.to_string());
        let text = "no server on this machine (that this user can see)".to_owned();
        return Err(Failure { about, text, code: CONNECT });
    }
    Ok(admins)
}

fn matches(note: &Note, url: &Url) -> bool {
    note.urls.iter().filter_map(|known| Url::parse(known).ok()).any(|known| {
        let loopback = url.host == "localhost" && is_loopback(&known.host);
        known.unix == url.unix && known.port == url.port && (known.host == url.host || loopback)
    })
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

/// What `/status` says.
///
/// # Errors
/// The connection's, or it is no admin port.
pub fn fetch(admin: SocketAddr) -> io::Result<Value> {
    let time = Duration::from_secs(5);
    let mut stream = TcpStream::connect_timeout(&admin, time)?;
    stream.set_read_timeout(Some(time))?;
    stream.write_all(b"GET /status HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    let strange = || io::Error::new(io::ErrorKind::InvalidData, "this is no admin port of dafs");
    let end = answer.windows(4).position(|w| w == b"\r\n\r\n").ok_or_else(strange)?;
    let (head, body) = answer.split_at(end + 4);
    if !head.starts_with(b"HTTP/1.1 200") {
        return Err(strange());
    }
    serde_json::from_slice(body).map_err(|_| strange())
}

fn print(status: &Value, admin: SocketAddr, out: &mut Output) -> io::Result<()> {
    let number = |name: &str| status.get(name).and_then(Value::as_u64).unwrap_or(0);
    let words = |name: &str| status.get(name).and_then(Value::as_array).cloned();
    out.line(&format!(
        "dafs {} process {}, up {} s, admin http://{admin}/",
        status.get("version").and_then(Value::as_str).unwrap_or("?"),
        number("pid"),
        number("uptime_seconds")
    ))?;
    for address in words("addresses").unwrap_or_default() {
        out.line(&format!("  listens on {}", address.as_str().unwrap_or("?")))?;
    }
    for export in words("exports").unwrap_or_default() {
        let text = |name: &str| export.get(name).and_then(Value::as_str).unwrap_or("");
        let read_only = export.get("read_only").and_then(Value::as_bool) == Some(true);
        let note = if read_only { ", read-only" } else { "" };
        let shares = export.get("share_cache").and_then(Value::as_bool) == Some(true);
        let note = format!("{note}{}", if shares { ", cache shared" } else { "" });
        let is_off = text("optimistic") == "off";
        let note = format!("{note}{}", if is_off { ", no optimistic reads" } else { "" });
        let disk = text("disk");
        out.line(&format!("  serves {} as /{} ({disk}{note})", text("path"), text("name")))?;
    }
    let cpu = number("cpu_ns") as f64 / 1e9;
    let data_plane = match number("data_plane_cpu_ns") as f64 / 1e9 {
        0.0 => String::new(),
        seconds => format!(" (data plane {seconds:.1} s)"),
    };
    out.line(&format!(
        "  cache {}, resident {}, cpu {cpu:.1} s{data_plane}",
        text::human(number("arena_bytes")),
        text::human(number("resident_bytes"))
    ))?;
    // One alone is the cache.
    for cache in words("caches").filter(|caches| caches.len() > 1).unwrap_or_default() {
        let bytes = |name: &str| text::human(cache.get(name).and_then(Value::as_u64).unwrap_or(0));
        let name = cache.get("name").and_then(Value::as_str).unwrap_or("?");
        let (most, cached) = (bytes("bytes"), bytes("cached_bytes"));
        out.line(&format!("  cache {name}: {cached} of {most} now"))?;
    }
    let Some(counters) = status.get("counters").and_then(Value::as_object) else { return Ok(()) };
    for (name, value) in counters {
        out.line(&format!("  {name:<32} {value}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_names_a_server_of_this_machine() {
        let note = Note {
            pid: 1,
            started: 0,
            urls: vec!["dafs://127.0.0.1:7000/".into(), "dafs://[::1]:7000/".into()],
            admin: SocketAddr::from(([127, 0, 0, 1], 1)),
        };
        let asked = |url| matches(&note, &Url::parse(url).expect("url"));
        assert!(asked("dafs://localhost:7000/some/file"));
        assert!(asked("dafs://[::1]:7000/"));
        assert!(!asked("dafs://localhost/"));
        assert!(!asked("dafs://elsewhere:7000/"));
    }
}
