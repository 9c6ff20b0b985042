//! Networks of this host alone: clients find the server there by a token that it tells to those of its host,
//! or by a directory that both see.

use dafs_fabric::{Address, ConnectError, Domain, Listener};
use dafs_protocol::SameHostToken;

use crate::config::{Config, LocalSocket};
use crate::local;

/// Where clients of this host come.
pub struct Near {
    /// Takes them.
    pub listener: Box<dyn Listener>,
    /// They know it by the token; else by a directory.
    pub by_token: bool,
}

/// Listens at each network of this host alone. Where it cannot, clients come by the others.
pub fn listen_same_host(domain: &Domain, token: SameHostToken) -> Vec<Near> {
    let address = |part: usize| domain.parts()[part].device().same_host(token);
    let addresses = (0..domain.parts().len()).filter_map(address);
    addresses.filter_map(|address| open(domain, &address, true)).collect()
}

/// As the configuration wants it: also in the directory of local sockets, where one is named.
pub(crate) fn listen(domain: &Domain, token: SameHostToken, config: &Config) -> Vec<Near> {
    if let Some(path) = config.exports.iter().map(|e| e.data_path).find(|p| p.sends_from_files())
        && let Some(unfit) = domain
            .parts()
            .iter()
            .find(|part| part.device().same_host(token).is_some() && !part.attr().file_spans)
    {
        let network = unfit.attr().provider;
        tracing::info!(network, "not listening: it sends nothing from files (data path {path})");
        return Vec::new();
    }
    let mut all = listen_same_host(domain, token);
    if let LocalSocket::In(directory) = &config.local_socket {
        if let Err(error) = local::make_own(directory) {
            tracing::warn!(%error, "clients of other network namespaces come by the network");
            return all;
        }
        let addresses = domain.parts().iter().filter_map(|p| p.device().local_address(directory));
        all.extend(addresses.filter_map(|address| open(domain, &address, false)));
    }
    all
}

fn open(domain: &Domain, address: &Address, by_token: bool) -> Option<Near> {
    match domain.listen(address) {
        Ok(listener) => Some(Near { listener, by_token }),
        Err(error) => {
            // The token in the address is for clients alone.
            let at = if by_token { String::new() } else { address.to_string() };
            let reason = match error {
                ConnectError::Address { reason, .. } => reason,
                error => error.to_string(),
            };
            let network = &address.scheme;
            tracing::warn!(network, at, reason, "clients of this machine come by another network");
            None
        }
    }
}
