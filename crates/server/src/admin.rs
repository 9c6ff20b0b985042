//! The admin port, on loopback, read only: a page with charts (`/`), JSON (`/status`) and
//! Prometheus text (`/metrics`).
//!
//! A web page of a stranger cannot read it: it is no page of the same origin, and where a name of
//! its own is made to lead here, the `Host` that its browser sends is not one of ours.

mod readers;
mod status;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dafs_fabric::Address;
use prometheus_client::registry::Registry;

use self::readers::{Reader, Readers, Timed};
use self::status::Metrics;
pub use self::status::count_lost_log_line;
use crate::shared::Shared;
use crate::start_error::StartError;

/// Bytes of a request's head.
const HEAD_BYTES_MAX: u64 = 16 << 10;
/// How long a reader may take to ask, and then to take the answer.
const PATIENCE: Duration = Duration::from_secs(2);

const PAGE: &str = include_str!("admin/page.html");

pub(crate) struct Admin {
    address: SocketAddr,
    stopping: Arc<AtomicBool>,
}

impl Admin {
    pub(crate) fn start(
        address: Option<&str>,
        serving: &[Address],
        shared: Arc<Shared>,
    ) -> Result<Admin, StartError> {
        let wanted = address.unwrap_or("127.0.0.1:0");
        let failed = |source| StartError::Admin { address: wanted.to_string(), source };
        let wanted_addresses = dafs_names::addresses(wanted).map_err(failed)?;
        let listener = TcpListener::bind(wanted_addresses.as_slice()).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        if !address.ip().is_loopback() {
            return Err(failed(std::io::Error::other("must be a loopback address")));
        }
        let stopping = Arc::new(AtomicBool::new(false));
        let pages = Arc::new(Pages::new(serving, shared));
        let stop = stopping.clone();
        std::thread::Builder::new().name("dafs-admin".into()).spawn(move || {
            for stream in listener.incoming() {
                if stop.load(Ordering::SeqCst) {
                    return;
                }
                if let Ok(stream) = stream {
                    pages.clone().receive(stream);
                }
            }
        })?;
        Ok(Admin { address, stopping })
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::SeqCst);
        // Ends the blocking accept.
        let _ = TcpStream::connect_timeout(&self.address, Duration::from_millis(200));
    }
}

struct Pages {
    registry: Registry,
    addresses: Vec<String>,
    shared: Arc<Shared>,
    since: Instant,
    readers: Arc<Readers>,
}

/// What is answered: status, type of the content, content.
type Answer = (&'static str, &'static str, String);

impl Pages {
    fn new(serving: &[Address], shared: Arc<Shared>) -> Pages {
        let mut registry = Registry::with_prefix("dafs");
        registry.register_collector(Box::new(Metrics(shared.clone())));
        let addresses = serving.iter().map(ToString::to_string).collect();
        Pages { registry, addresses, shared, since: Instant::now(), readers: Arc::default() }
    }

    /// Browsers open connections that they do not use yet: each reader has a thread, so that none
    /// waits for another.
    fn receive(self: Arc<Pages>, stream: TcpStream) {
        let Some(reader) = self.readers.enter(stream) else { return };
        // Where there is no thread for it, the reader is gone again.
        let _ = std::thread::Builder::new().name("dafs-admin".into()).spawn(move || {
            if let Err(error) = self.serve(&reader) {
                tracing::debug!(%error, "admin request failed");
            }
        });
    }

    fn serve(&self, reader: &Reader) -> std::io::Result<()> {
        let (line, host) = head(Timed::new(reader.stream(), PATIENCE))?;
        reader.has_asked();
        let mut stream = Timed::new(reader.stream(), PATIENCE);
        let (status, kind, body) = match host.as_deref().map(is_loopback) {
            Some(false) => {
                let text = "this port answers by the names of loopback alone, as localhost\n";
                ("403 Forbidden", "text/plain", text.to_owned())
            }
            // Who sends none is no browser.
            Some(true) | None => self.answer(&line)?,
        };
        let length = body.len();
        write!(
            stream,
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\n\
             Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
             X-Frame-Options: DENY\r\nReferrer-Policy: no-referrer\r\n\
             Content-Security-Policy: default-src 'none'; connect-src 'self'; \
             script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:\r\n\
             Connection: close\r\n\r\n{body}"
        )
    }

    fn answer(&self, line: &str) -> std::io::Result<Answer> {
        let mut words = line.split_whitespace();
        let (method, path) = (words.next(), words.next());
        if method != Some("GET") {
            return Ok(("405 Method Not Allowed", "text/plain", "only GET\n".to_owned()));
        }
        Ok(match path {
            Some("/") => ("200 OK", "text/html; charset=utf-8", PAGE.to_owned()),
            Some("/metrics") => {
                let mut text = String::new();
                prometheus_client::encoding::text::encode(&mut text, &self.registry)
                    .map_err(std::io::Error::other)?;
                ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", text)
            }
            Some("/status") => {
                let status = status::status(&self.shared, &self.addresses, self.since);
                ("200 OK", "application/json", format!("{status}\n"))
            }
            _ => {
                let text = "try / (a page for browsers), /status or /metrics\n";
                ("404 Not Found", "text/plain", text.to_owned())
            }
        })
    }
}

/// The request's line, and what it says is its host.
fn head(stream: Timed<'_>) -> std::io::Result<(String, Option<String>)> {
    let mut reader = BufReader::new(stream).take(HEAD_BYTES_MAX);
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let mut host = None;
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 || line.trim().is_empty() {
            return Ok((first, host));
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("host")
        {
            host = Some(value.trim().to_owned());
        }
    }
}

/// True for `localhost` and addresses of loopback, with or without a port.
fn is_loopback(host: &str) -> bool {
    let bare = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((bare, _)) => bare,
        None => host.rsplit_once(':').map_or(host, |(bare, _)| bare),
    };
    bare.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_loopback_are_hosts() {
        for good in ["localhost", "LOCALHOST:9100", "127.0.0.1:1", "127.9.9.9", "[::1]:80", "[::1]"]
        {
            assert!(is_loopback(good), "{good}");
        }
        for bad in [
            "",
            "evil.example",
            "localhost.evil.example:80",
            "127.0.0.1.evil.example",
            "10.0.0.1:80",
        ] {
            assert!(!is_loopback(bad), "{bad}");
        }
    }
}
