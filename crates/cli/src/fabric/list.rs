//! `dafs fabric list`: the networks of this machine.

use dafs_fabric::{DeviceAttr, Hardware, Provider};
use serde::Serialize;

use crate::failure::Failure;
use crate::output::Output;
use crate::{provider, text};

/// Print the networks of this program, what this machine has for them, and what is missing.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs fabric list\n  \
    dafs fabric list --json | jq 'select(.available) | .schemes'\n\n\
    Each network stands with the schemes of its addresses, with whom it connects (any host, or this\n\
    host alone), and what it does with a peer's registered memory: write and read it (RDMA), with or\n\
    without the peer's processor, in order or not. Below are the interfaces by which it goes. What is\n\
    not available is told with the reason.")]
pub struct Args {
    /// One JSON object per network.
    #[arg(long)]
    json: bool,
}

/// A network.
#[derive(Serialize)]
struct Network {
    network: &'static str,
    available: bool,
    /// Why it is not.
    #[serde(skip_serializing_if = "Option::is_none")]
    why_not: Option<String>,
    schemes: &'static [&'static str],
    /// It connects with processes of this host alone.
    this_host_only: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    attributes: Option<Attributes>,
    devices: Vec<Interface>,
}

/// What a device can do, as far as people ask.
#[derive(Serialize)]
struct Attributes {
    rdma_write: bool,
    rdma_read: bool,
    tagged_messages: bool,
    recoverable_access_fault: bool,
    ordered_reads: bool,
    peer_cpu_free: bool,
    registers_all_memory: bool,
    pins_memory: bool,
    shares_memory: bool,
    sends_from_files: bool,
    message_bytes_max: usize,
    transfer_bytes_max: usize,
}

#[derive(Serialize)]
struct Interface {
    name: String,
    up: bool,
    bits_per_second: Option<u64>,
    mtu: Option<u64>,
}

impl From<Hardware> for Interface {
    fn from(found: Hardware) -> Interface {
        let Hardware { name, is_up, speed, mtu } = found;
        Interface { name, up: is_up, bits_per_second: speed, mtu }
    }
}

impl From<&DeviceAttr> for Attributes {
    fn from(attr: &DeviceAttr) -> Attributes {
        Attributes {
            rdma_write: attr.rdma_write,
            rdma_read: attr.rdma_read,
            tagged_messages: attr.tag_match,
            recoverable_access_fault: attr.recoverable_access_fault,
            ordered_reads: attr.ordered_reads,
            peer_cpu_free: attr.target_cpu_free,
            registers_all_memory: attr.local_registration,
            pins_memory: attr.registration_pins,
            shares_memory: attr.shared_memory,
            sends_from_files: attr.file_spans,
            message_bytes_max: attr.send_bytes_max,
            transfer_bytes_max: attr.bulk_bytes_max,
        }
    }
}

impl Network {
    fn of(provider: &dyn Provider) -> Network {
        let devices = provider.hardware().into_iter().map(Interface::from).collect();
        let network = provider.name();
        match provider.open() {
            Ok(device) => Network {
                network,
                available: true,
                why_not: None,
                schemes: device.attr().schemes,
                this_host_only: device.same_host([0; 16]).is_some(),
                attributes: Some(device.attr().into()),
                devices,
            },
            Err(error) => Network { devices, ..Network::missing(network, error.to_string()) },
        }
    }

    fn missing(network: &'static str, why: String) -> Network {
        Network {
            network,
            available: false,
            why_not: Some(why),
            schemes: &[],
            this_host_only: false,
            attributes: None,
            devices: Vec::new(),
        }
    }
}

/// Runs the command.
///
/// # Errors
/// Standard output's.
pub fn run(args: &Args) -> Result<(), Failure> {
    let mut out = Output::new();
    let providers = provider::providers();
    let missing = provider::missing();
    let networks = providers.iter().map(Network::of);
    let missing = missing.into_iter().map(|one| Network::missing(one.network, one.why));
    for network in networks.chain(missing) {
        if args.json {
            out.json(&network)?;
        } else {
            print(&network, &mut out)?;
        }
    }
    Ok(out.flush()?)
}

fn print(network: &Network, out: &mut Output) -> Result<(), Failure> {
    let name = network.network;
    let Some(attributes) = &network.attributes else {
        let why = network.why_not.as_deref().unwrap_or_default();
        out.line(&format!("{name}: not available: {why}"))?;
        return Ok(());
    };
    let peers = if network.this_host_only { "this host alone" } else { "any host" };
    let schemes = network.schemes.join(", ");
    out.line(&format!("{name}: connects with {peers}; addresses: {schemes}"))?;
    for line in attributes.lines() {
        out.line(&format!("  {line}"))?;
    }
    for interface in &network.devices {
        out.line(&format!("  interface {}", interface.text()))?;
    }
    Ok(())
}

impl Attributes {
    fn lines(&self) -> Vec<String> {
        let bytes = |bytes: usize| text::human(bytes as u64);
        let one_sided = match (self.rdma_write, self.rdma_read) {
            (true, true) => "RDMA write and read",
            (true, false) => "RDMA write, no read",
            (false, true) => "RDMA read, no write",
            (false, false) => "no RDMA",
        };
        let by = match self.peer_cpu_free {
            true => "without the peer's processor",
            false => "by the peer's processor",
        };
        let of = match (self.shares_memory, self.registers_all_memory, self.pins_memory) {
            (true, _, _) => "of memory that both map",
            (false, true, true) => "of memory that is registered and pinned",
            (false, true, false) => "of memory that is registered",
            (false, false, _) => "of any memory",
        };
        let mut also = Vec::new();
        for (has, what) in [
            (self.tagged_messages, "tagged messages"),
            (self.sends_from_files, "sends from files"),
            (self.ordered_reads, "reads in order"),
            (self.recoverable_access_fault, "lives on after a refused access"),
        ] {
            also.extend(has.then_some(what));
        }
        let (message, transfer) = (bytes(self.message_bytes_max), bytes(self.transfer_bytes_max));
        vec![
            format!("{one_sided} {of}, {by}; at most {transfer} in one, {message} in a message"),
            also.join(", "),
        ]
    }
}

impl Interface {
    fn text(&self) -> String {
        let mut text = format!("{}: {}", self.name, if self.up { "up" } else { "down" });
        if let Some(speed) = self.bits_per_second {
            text.push_str(&format!(", {} Mbit/s", speed / 1_000_000));
        }
        if let Some(mtu) = self.mtu {
            text.push_str(&format!(", MTU {mtu}"));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_has_a_reason() {
        for missing in provider::missing() {
            let network = Network::missing(missing.network, missing.why);
            assert!(!network.available && network.why_not.is_some_and(|why| !why.is_empty()));
        }
    }

    #[test]
    fn an_interface_tells_what_is_known_of_it() {
        let of = |speed, mtu, is_up| {
            Interface::from(Hardware { name: "eth0".into(), is_up, speed, mtu }).text()
        };
        assert_eq!(of(Some(25_000_000_000), Some(9000), true), "eth0: up, 25000 Mbit/s, MTU 9000");
        assert_eq!(of(None, None, false), "eth0: down");
    }
}
