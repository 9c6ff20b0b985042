//! How the two ends of a benchmark wait.

use std::fmt;
use std::str::FromStr;

use serde::Serialize;

/// How a thread waits for the other end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Wait {
    /// Asks again and again; never sleeps.
    Polled,
    /// Sleeps in the kernel at once.
    Sleeping,
    /// Polls for a short time, then sleeps.
    Adaptive,
}

impl Wait {
    /// The name in options and output.
    pub fn name(self) -> &'static str {
        match self {
            Wait::Polled => "polled",
            Wait::Sleeping => "sleeping",
            Wait::Adaptive => "adaptive",
        }
    }
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A word that names no waiting mode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownWait(pub String);

impl fmt::Display for UnknownWait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}' is not one of polled, sleeping, adaptive", self.0)
    }
}

impl std::error::Error for UnknownWait {}

impl FromStr for Wait {
    type Err = UnknownWait;
    fn from_str(text: &str) -> Result<Wait, UnknownWait> {
        match text {
            "polled" => Ok(Wait::Polled),
            "sleeping" => Ok(Wait::Sleeping),
            "adaptive" => Ok(Wait::Adaptive),
            other => Err(UnknownWait(other.to_owned())),
        }
    }
}
