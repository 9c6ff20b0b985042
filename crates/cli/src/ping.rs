//! `dafs ping`: is the server there, and how far away?

use std::time::Duration;

use dafs_fabric::units::duration;
use serde::Serialize;

use crate::connect::{ConnectArgs, Connections};
use crate::failure::Failure;
use crate::interrupt;
use crate::output::Output;
use crate::transport::Transport;

/// Measure the time of a request that does nothing.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs ping dafs://localhost/\n  \
    dafs ping -c 1000 -i 0 --json dafs://localhost/ | jq .us")]
pub struct Args {
    /// How often.
    #[arg(short, long, value_name = "NUMBER", default_value_t = 4)]
    count: u64,
    /// Time in between, up to 1d; seconds where there is no unit.
    #[arg(short, long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    interval: Duration,
    /// One JSON object per line.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    /// Which server.
    #[arg(value_name = "URL")]
    url: String,
}

fn interval(text: &str) -> Result<Duration, String> {
    let time = duration(text)?;
    if time > Duration::from_secs(86_400) { Err("at most one day".into()) } else { Ok(time) }
}

#[derive(Serialize)]
struct Answer<'a> {
    url: &'a str,
    sequence: u64,
    us: f64,
    #[serde(flatten)]
    transport: &'a Transport,
    /// The version of the protocol that both ends speak.
    protocol: u32,
    /// Where the server says that it listens.
    listens: &'a [String],
}

/// Runs the command.
///
/// # Errors
/// No answer.
pub fn run(args: &Args) -> Result<(), Failure> {
    let remote = Connections::new(&args.connect).remote(&args.url)?;
    let name = remote.name(b"");
    let mut out = Output::new();
    let mut times = Vec::new();
    for sequence in 1..=args.count {
        let time = remote.session.ping().map_err(|error| remote.failure(b"", error))?;
        let us = time.as_secs_f64() * 1e6;
        let info = remote.session.info();
        let (transport, protocol) = (Transport::told(&info), info.protocol_version);
        // A bound, so that an endless ping does not fill the memory.
        if times.len() < 1_000_000 {
            times.push(us);
        }
        if args.json {
            let listens = &info.server_addresses;
            let transport = &transport;
            out.json(&Answer { url: &name, sequence, us, transport, protocol, listens })?;
        } else {
            let transport = transport.transport;
            out.line(&format!(
                "answer from {name} by {transport}: number={sequence} time={us:.1} us"
            ))?;
        }
        out.flush()?;
        let more = sequence < args.count;
        if interrupt::requested() || more && !interrupt::sleep(args.interval) {
            break;
        }
    }
    times.sort_by(f64::total_cmp);
    if let (false, Some(least), Some(most)) = (args.json, times.first(), times.last()) {
        let median = times.get(times.len() / 2).unwrap_or(least);
        out.line(&format!("min/median/max = {least:.1}/{median:.1}/{most:.1} us"))?;
        let info = remote.session.info();
        let listens = info.server_addresses.join(", ");
        out.line(&format!("protocol {}; the server listens on {listens}", info.protocol_version))?;
        if let Some(line) = Transport::told(&info).line() {
            out.line(&line)?;
        }
        out.flush()?;
    }
    Ok(())
}
