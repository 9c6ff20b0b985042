//! A worker that runs when a test says so.

mod named;
mod pauses;
mod worker;
