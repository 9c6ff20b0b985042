//! A simulated network: one thread, a virtual clock, one seed.

mod rng;
pub use rng::Rng;
