//! `dafs fabric probe`: what a server offers, by what it is reached, and why by nothing nearer.

use dafs_client::{Session, Url};
use serde::Serialize;

use crate::connect::ConnectArgs;
use crate::failure::{Failure, without_numbers};
use crate::interrupt;
use crate::output::Output;
use crate::provider;
use crate::transport::Transport;

/// Requests of which the fastest tells how far away a server is.
const PINGS: usize = 16;

/// Print what a server offers, which network is chosen for it, and why no nearer one.
///
/// It is connected to as by any other command, then once more by each network of this program.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs fabric probe localhost\n  \
    dafs fabric probe --json server | jq -r '.networks[] | select(.reached) | .network'\n  \
    dafs ls 'dafs://localhost/?transport=tcp'      go by one that is not chosen\n\n\
    'chosen' is how commands, mounts and programs go that do not ask for a network; ?transport=NAME\n\
    in a URL asks for one. Times are those of the fastest of some requests that do nothing.\n\
    Exit codes: 0 the server was reached, 3 it was not.")]
pub struct Args {
    /// One JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    connect: ConnectArgs,
    /// Which server: a host, or a URL.
    #[arg(value_name = "HOST")]
    host: String,
}

#[derive(Serialize)]
struct Found {
    url: String,
    /// How a session goes that asks for nothing.
    chosen: Transport,
    /// The version of the protocol that both ends speak.
    protocol: u32,
    /// Where the server says that it listens.
    listens: Vec<String>,
    /// Requests under way at a time, as granted.
    slots: u16,
    /// Bytes of data of one request, as granted.
    data_bytes_max: u32,
    /// Each network that this program knows of.
    networks: Vec<Reached>,
}

/// A try by one network.
#[derive(Serialize)]
struct Reached {
    network: &'static str,
    reached: bool,
    chosen: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    us: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not: Option<String>,
}

/// The URL that is meant by a host, with or without a port, or by a URL.
fn url_of(host: &str) -> Result<Url, Failure> {
    let text = if host.contains("://") { host.to_owned() } else { format!("dafs://{host}/") };
    Url::parse(&text).map_err(|error| Failure::about("", error))
}

/// The time of the fastest of some requests, in microseconds.
fn fastest(session: &Session) -> dafs_client::Result<f64> {
    let mut least = session.ping()?;
    for _ in 1..PINGS {
        least = least.min(session.ping()?);
    }
    Ok(least.as_secs_f64() * 1e6)
}

/// Runs the command.
///
/// # Errors
/// The server is not reached.
pub fn run(args: &Args) -> Result<(), Failure> {
    let url = url_of(&args.host)?;
    let remote = args.connect.remote(&url)?;
    let info = remote.session.info();
    let chosen = Transport::told(&info);
    let mut networks = Vec::new();
    for network in provider::SCHEMES {
        if interrupt::requested() {
            return Err(Failure::silent());
        }
        let is_chosen = *network == chosen.transport;
        let tried = match is_chosen {
            true => fastest(&remote.session).map_err(|error| remote.failure(b"", error)),
            false => by(args, &url, network),
        };
        networks.push(match tried {
            Ok(us) => {
                Reached { network, reached: true, chosen: is_chosen, us: Some(us), why_not: None }
            }
            Err(failure) => Reached {
                network,
                reached: false,
                chosen: is_chosen,
                us: None,
                why_not: Some(without_numbers(&failure.text)),
            },
        });
    }
    for missing in provider::missing() {
        let why_not = Some(missing.why);
        let network = missing.network;
        networks.push(Reached { network, reached: false, chosen: false, us: None, why_not });
    }
    let found = Found {
        url: remote.name(b""),
        chosen,
        protocol: info.protocol_version,
        listens: info.server_addresses.clone(),
        slots: info.attr.slots,
        data_bytes_max: info.attr.data_bytes_max,
        networks,
    };
    let mut out = Output::new();
    if args.json {
        out.json(&found)?;
    } else {
        print(&found, &mut out)?;
    }
    Ok(out.flush()?)
}

/// Connects by this network alone.
fn by(args: &Args, url: &Url, network: &str) -> Result<f64, Failure> {
    let mut options = args.connect.options(url)?;
    options.transport = Some(network.to_owned());
    let session = args.connect.session(url, options).map_err(|error| Failure::about(url, error))?;
    fastest(&session).map_err(|error| Failure::about(url, error))
}

fn print(found: &Found, out: &mut Output) -> Result<(), Failure> {
    let Found { url, chosen, .. } = found;
    out.line(&format!("{url} is reached by {}", chosen.transport))?;
    if let Some(line) = chosen.line() {
        out.line(&line)?;
    }
    out.line(&format!(
        "protocol {}; {} requests at a time, {} each; the server listens on {}",
        found.protocol,
        found.slots,
        crate::text::human(found.data_bytes_max.into()),
        found.listens.join(", ")
    ))?;
    for one in &found.networks {
        let network = one.network;
        let told = match (one.us, &one.why_not) {
            (Some(us), _) if one.chosen => format!("chosen, {us:.1} us"),
            (Some(us), _) => format!("possible, {us:.1} us (?transport={network})"),
            (None, why) => format!("no: {}", why.as_deref().unwrap_or("not reached")),
        };
        out.line(&format!("  {network:<5} {told}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_is_a_url_too() {
        let url = |text| url_of(text).map(|url| url.to_string()).map_err(|error| error.code);
        assert_eq!(url("server"), Ok("dafs://server/".into()));
        assert_eq!(url("[::1]:7"), Ok("dafs://[::1]:7/".into()));
        assert_eq!(url("dafs+unix:///run/a.sock"), url("dafs+unix:///run/a.sock//"));
        assert_eq!(url("ftp://server/"), Err(crate::failure::USAGE));
    }
}
