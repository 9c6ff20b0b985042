//! What a reply holds until it has left.

use super::grant::Grant;
use crate::paths::DataPin;

/// What keeps reply data alive until it left, and what its request took.
pub(crate) enum Held {
    Data(DataPin),
    Grant(#[allow(dead_code, reason = "held for its drop")] Grant),
}

impl From<DataPin> for Held {
    fn from(pin: DataPin) -> Held {
        Held::Data(pin)
    }
}
