//! Questions to name servers (RFC 1035): a stub resolver for addresses.

mod message;
mod resolver;
mod settings;

pub use resolver::{Answer, Resolver};
pub use settings::Settings;
