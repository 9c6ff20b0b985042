//! Where files are to be cached, of several cache domains.

/// Which of the [`CacheDomains`](crate::CacheDomains).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct DomainId(pub usize);

impl DomainId {
    /// The first: what belongs to no other.
    pub const FIRST: DomainId = DomainId(0);
}

/// Some of the [`CacheDomains`](crate::CacheDomains).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DomainSet(u64);

impl DomainSet {
    /// With this one.
    #[must_use]
    pub fn with(self, domain: DomainId) -> DomainSet {
        DomainSet(self.0 | DomainSet::bit(domain))
    }

    /// Without this one.
    #[must_use]
    pub fn without(self, domain: DomainId) -> DomainSet {
        DomainSet(self.0 & !DomainSet::bit(domain))
    }

    /// It is one of them.
    pub fn contains(self, domain: DomainId) -> bool {
        self.0 & DomainSet::bit(domain) != 0
    }

    /// Without any.
    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn bit(domain: DomainId) -> u64 {
        u32::try_from(domain.0).ok().and_then(|bit| 1u64.checked_shl(bit)).unwrap_or(0)
    }
}

impl From<u64> for DomainSet {
    /// Of those whose bits are set.
    fn from(bits: u64) -> DomainSet {
        DomainSet(bits)
    }
}

/// In which of the [`CacheDomains`](crate::CacheDomains) a file is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Placement {
    /// Where it goes when nobody has it open; `None`: where it is, or else the first.
    pub wished: Option<DomainId>,
    /// Where it must not be, not even while it is open. Never the first.
    pub barred: DomainSet,
}

impl From<DomainId> for Placement {
    /// There, as soon as nobody has it open elsewhere.
    fn from(domain: DomainId) -> Placement {
        Placement { wished: Some(domain), barred: DomainSet::default() }
    }
}
