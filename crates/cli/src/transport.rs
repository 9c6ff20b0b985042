//! By which network a session goes, and why by no nearer one.

use dafs_client::SessionInfo;
use serde::Serialize;

use crate::failure::without_numbers;

/// What a session says of its way.
#[derive(Debug, Clone, Serialize)]
pub struct Transport {
    /// The name of its addresses; `unix` where it goes by a socket of this host.
    pub transport: &'static str,
    /// Why it does not go by a network of this host alone, where it might.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_not_nearer: Option<String>,
}

impl Transport {
    /// As a session has told.
    pub fn told(info: &SessionInfo) -> Transport {
        Transport {
            transport: info.transport,
            why_not_nearer: info.same_host_error.as_deref().map(without_numbers),
        }
    }

    /// A line for people, where there is something to say.
    pub fn line(&self) -> Option<String> {
        let why = self.why_not_nearer.as_ref()?;
        Some(format!("by {}: {why}", self.transport))
    }
}
