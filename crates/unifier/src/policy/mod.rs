//! Which unit goes when space is needed.
//!
//! A policy orders units, by their numbers; it knows nothing of pages, pins or files. Uses are
//! only counted in the unit's word, without a lock: a policy learns of them when the unit would
//! be the next to go. So recency is that of the look, which is what a clock does; the order of
//! two units that were both used since is not known.

mod ghosts;
mod list;
mod lru;
mod multi_queue;
pub(crate) mod shares;

pub use lru::Lru;
pub use multi_queue::MultiQueue;

/// A replacement policy, chosen per file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Policy {
    /// Least recently used goes first.
    Lru,
    /// Multi-queue: what was used often stays longer. A scan does not displace it.
    #[default]
    MultiQueue,
}

impl Policy {
    /// All of them.
    pub const ALL: [Policy; 2] = [Policy::Lru, Policy::MultiQueue];

    /// As it is written in options and files.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Lru => "lru",
            Policy::MultiQueue => "mq",
        }
    }

    /// By its [`name`](Self::name).
    pub fn named(name: &str) -> Option<Policy> {
        Policy::ALL.into_iter().find(|policy| policy.name() == name)
    }

    /// By its number in a cache wish; 0 and unknown ones: the server chooses.
    pub fn wished(number: u8) -> Option<Policy> {
        match number {
            1 => Some(Policy::Lru),
            2 => Some(Policy::MultiQueue),
            _ => None,
        }
    }

    /// Its number in a cache wish.
    pub fn number(self) -> u8 {
        match self {
            Policy::Lru => 1,
            Policy::MultiQueue => 2,
        }
    }

    /// It, for units with numbers below `units`.
    pub fn make(self, units: usize) -> Box<dyn Replacement> {
        match self {
            Policy::Lru => Box::new(Lru::new(units)),
            Policy::MultiQueue => Box::new(MultiQueue::new(units)),
        }
    }
}

/// How long a file's data is worth keeping.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Class {
    /// Goes before all other data.
    Low,
    /// As the policy says.
    #[default]
    Normal,
    /// Goes after all other data, as long as there is not more of it than half of the arena.
    High,
}

impl Class {
    /// By its number in a cache wish; 0 and unknown ones: the server chooses.
    pub fn wished(number: u8) -> Option<Class> {
        match number {
            1 => Some(Class::Low),
            2 => Some(Class::Normal),
            3 => Some(Class::High),
            _ => None,
        }
    }

    /// Its number in a cache wish.
    pub fn number(self) -> u8 {
        match self {
            Class::Low => 1,
            Class::Normal => 2,
            Class::High => 3,
        }
    }
}

/// What a unit holds, for policies that remember what is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// The file.
    pub file: u64,
    /// The first block.
    pub block: u64,
}

/// How a unit came to hold what it holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// It was read in, to be used.
    ByRead,
    /// It was written, and nobody has asked for it yet.
    ByWrite,
}

/// A replacement policy at work. Nothing in it allocates after it was made.
pub trait Replacement: Send {
    /// A unit of `slots` slots that was gone, or never there, holds `key` now. How often it was
    /// used as far as is remembered, this time included.
    fn insert(&mut self, unit: u32, slots: u32, key: Key, origin: Origin) -> u32;

    /// It was used `uses` times more. With 0 it was not: it was the victim, and goes or cannot go.
    fn touch(&mut self, unit: u32, uses: u32);

    /// It is gone.
    fn remove(&mut self, unit: u32);

    /// It was the victim, and is gone: [`touch`](Self::touch) with 0 and [`remove`](Self::remove).
    fn go(&mut self, unit: u32) {
        self.touch(unit, 0);
        self.remove(unit);
    }

    /// What goes next, until it is touched.
    fn victim(&self) -> Option<u32>;

    /// Whether it may go together with the victim, which is its neighbour in memory.
    fn may_follow(&self, unit: u32) -> Following;
}

/// See [`Replacement::may_follow`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Following {
    /// It is among the next half to go.
    Soon,
    /// Its turn is far, but it is worth no more than others.
    Late,
    /// It is worth more.
    No,
}
