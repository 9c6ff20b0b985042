//! How the pages of one file are kept: a policy and a class, chosen or by default.

use std::sync::atomic::{AtomicU8, Ordering};

use crate::policy::shares::Share;
use crate::policy::{Class, Policy};

/// The choice of a file. Numbers as in a cache wish; 0: nothing is chosen.
pub(crate) struct FilePolicy {
    pub(crate) chosen: AtomicU8,
    pub(crate) default: AtomicU8,
    pub(crate) class: AtomicU8,
}

impl FilePolicy {
    pub(crate) fn new(default: Policy) -> FilePolicy {
        FilePolicy {
            chosen: AtomicU8::new(0),
            default: AtomicU8::new(default.number()),
            class: AtomicU8::new(0),
        }
    }

    pub(crate) fn policy(&self) -> Policy {
        let default = || Policy::wished(self.default.load(Ordering::Relaxed)).unwrap_or_default();
        Policy::wished(self.chosen.load(Ordering::Relaxed)).unwrap_or_else(default)
    }

    pub(crate) fn class(&self) -> Class {
        Class::wished(self.class.load(Ordering::Relaxed)).unwrap_or_default()
    }

    pub(crate) fn share(&self) -> Share {
        Share::of(self.policy(), self.class())
    }
}
