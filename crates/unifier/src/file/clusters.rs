//! The clusters of a file of which something is cached, found by their numbers or in their order.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use rustc_hash::FxHashMap;

use super::Cluster;

/// A table, since each read looks for one; what goes by ranges, which is rare, has their order.
#[derive(Default)]
pub(crate) struct Clusters {
    /// Boxed: most files are small, and tables have free places.
    by_number: FxHashMap<u64, Box<Cluster>>,
    /// The numbers of all of them.
    order: BTreeSet<u64>,
}

impl Clusters {
    #[inline(always)]
    pub(crate) fn get(&self, number: u64) -> Option<&Cluster> {
        self.by_number.get(&number).map(Box::as_ref)
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, number: u64) -> Option<&mut Cluster> {
        self.by_number.get_mut(&number).map(Box::as_mut)
    }

    /// It is made where there is none.
    pub(crate) fn get_or_add(&mut self, number: u64) -> &mut Cluster {
        self.by_number.entry(number).or_insert_with(|| {
            self.order.insert(number);
            Cluster::new()
        })
    }

    pub(crate) fn remove(&mut self, number: u64) {
        self.by_number.remove(&number);
        self.order.remove(&number);
    }

    /// Those of this range, in order.
    pub(crate) fn range(
        &self,
        numbers: RangeInclusive<u64>,
    ) -> impl Iterator<Item = (u64, &Cluster)> {
        let numbers = self.order.range(numbers);
        numbers.filter_map(|number| Some((*number, self.get(*number)?)))
    }

    /// All, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (u64, &Cluster)> {
        self.range(0..=u64::MAX)
    }

    /// Changes those of this range, in order; where `change` says so, it goes.
    pub(crate) fn change(
        &mut self,
        numbers: RangeInclusive<u64>,
        mut change: impl FnMut(u64, &mut Cluster) -> Fate,
    ) {
        let mut gone = Vec::new();
        for number in self.order.range(numbers) {
            let cluster = self.by_number.get_mut(number);
            if cluster.is_some_and(|cluster| change(*number, cluster) == Fate::Goes) {
                gone.push(*number);
            }
        }
        gone.into_iter().for_each(|number| self.remove(number));
    }
}

/// What becomes of a cluster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    Stays,
    Goes,
}
