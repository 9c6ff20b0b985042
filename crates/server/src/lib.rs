//! The server: sessions, open state, the reply cache, exports, handlers.
//!
//! An acceptor proves who a peer is and gives the connection to a worker; a worker owns an
//! engine, its sessions and their running chains, and takes no lock across I/O. [`Worker`] has
//! no thread and no clock of its own, so that a simulation can drive it; [`Server`] adds both.

#![forbid(unsafe_code)]
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod acceptor;
mod admin;
mod budget;
mod cache_memory;
mod callbacks;
mod chain;
mod changes;
mod clean_end;
mod clients;
mod config;
mod config_keys;
mod context;
mod delayed;
mod ended_sessions;
mod exports;
mod host;
mod identity;
mod intent_log;
mod limits;
mod local;
mod locks;
mod mailbox;
mod memory_pressure;
mod metrics;
mod name_lock;
mod named;
mod numbers;
mod opens;
mod operations;
mod optimistic;
mod own_changes;
mod own_reads;
mod page_reads;
mod paths;
mod placing;
mod plain_read;
#[cfg_attr(not(feature = "planted"), allow(unreachable_pub))]
mod planted;
mod process;
mod ready;
mod recorder;
mod records;
mod references;
mod same_host;
mod scopes;
mod server;
mod session;
mod setup;
mod shared;
mod start_error;
mod tasks;
mod users;
mod values;
mod worker;
mod worker_loop;

pub use admin::count_lost_log_line;
pub use clean_end::{EndMark, MemoryMark, first_verifier};
pub use clients::{ClientRecords, MemoryRecords};
pub use config::{Config, ConfigError, ExportConfig, LocalSocket, Optimistic, OptimisticScope};
pub use config_keys::{ConfigKey, KEYS, Section};
pub use dafs_unifier::Policy;
pub use exports::{Export, Exports};
pub use identity::{IdentityError, Proof};
pub use intent_log::{LogStore, MemoryLog};
pub use limits::Limits;
pub use local::make_own as make_own_directory;
pub use locks::Client;
pub use optimistic::{NotShown, ShownCaches, entries as shown_entries};
pub use paths::{DataPath, PageCache};
#[cfg(feature = "planted")]
pub use planted::{Defect, plant, plant_for_lies};
pub use process::{Entropy, ProcessStats, Stopwatch};
pub use recorder::Recorder;
pub use same_host::{Near, listen_same_host};
pub use scopes::Scopes;
pub use server::{Plan, Server};
pub use shared::{Counters, Key, Shared, SharedOptions};
pub use start_error::StartError;
pub use worker::Worker;
