//! What one stretch of measuring saw.

use crate::Histogram;

/// Counts of one stretch of time. Costs are `None` where they could not be measured.
#[derive(Debug, Clone, Default)]
pub struct Slice {
    /// How long it took.
    pub seconds: f64,
    /// Operations finished.
    pub ops: u64,
    /// Payload moved.
    pub bytes: u64,
    /// Of each operation, from submitting to its end.
    pub latency: Histogram,
    /// CPU time of this process, user and system.
    pub client_cpu_ns: Option<u64>,
    /// CPU time of the other process.
    pub server_cpu_ns: Option<u64>,
    /// Payload bytes copied in user space by this process.
    pub client_copied_bytes: Option<u64>,
    /// Payload bytes copied in user space by the other process.
    pub server_copied_bytes: Option<u64>,
    /// Memory registrations of both processes.
    pub registrations: Option<u64>,
    /// System calls of both processes.
    pub system_calls: Option<u64>,
    /// Requests that were answered.
    pub round_trips: Option<u64>,
}

impl Slice {
    /// Operations per second.
    pub fn ops_per_s(&self) -> f64 {
        per(self.ops as f64, self.seconds)
    }

    /// Bytes per second.
    pub fn bytes_per_s(&self) -> f64 {
        per(self.bytes as f64, self.seconds)
    }

    /// Adds another stretch. A cost that either does not know is not known.
    pub fn add(&mut self, other: &Slice) {
        self.seconds += other.seconds;
        self.ops += other.ops;
        self.bytes += other.bytes;
        self.latency.merge(&other.latency);
        let sum = |a: &mut Option<u64>, b: Option<u64>| *a = a.zip(b).map(|(a, b)| a + b);
        sum(&mut self.client_cpu_ns, other.client_cpu_ns);
        sum(&mut self.server_cpu_ns, other.server_cpu_ns);
        sum(&mut self.client_copied_bytes, other.client_copied_bytes);
        sum(&mut self.server_copied_bytes, other.server_copied_bytes);
        sum(&mut self.registrations, other.registrations);
        sum(&mut self.system_calls, other.system_calls);
        sum(&mut self.round_trips, other.round_trips);
    }

    /// All stretches as one; `None` for none.
    pub fn total(slices: &[Slice]) -> Option<Slice> {
        let (first, rest) = slices.split_first()?;
        let mut total = first.clone();
        rest.iter().for_each(|slice| total.add(slice));
        Some(total)
    }
}

fn per(amount: f64, of: f64) -> f64 {
    if of > 0.0 { amount / of } else { 0.0 }
}

/// The middle one, or the mean of the two in the middle; `None` for none.
pub fn median(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.into_iter().collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    values.get(middle.checked_sub(1)?).map(|lower| (lower + upper) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_in_the_middle() {
        assert_eq!(median([3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median([4.0, 1.0, 2.0, 3.0]), Some(2.5));
        assert_eq!(median([]), None);
    }

    #[test]
    fn unknown_costs_stay_unknown_in_sums() {
        let known = Slice { server_cpu_ns: Some(5), client_cpu_ns: Some(1), ..Slice::default() };
        let unknown = Slice { server_cpu_ns: None, client_cpu_ns: Some(2), ..Slice::default() };
        let total = Slice::total(&[known, unknown]).expect("two");
        assert_eq!((total.server_cpu_ns, total.client_cpu_ns), (None, Some(3)));
    }
}
