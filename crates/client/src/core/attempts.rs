//! Attempts to reach a server that may have several addresses, tried in turn.

use std::time::Duration;

use dafs_fabric::Address;

use crate::error::Error;

/// For a connection and its set-up.
const PATIENCE_MAX: Duration = Duration::from_secs(10);
/// The same while there are other addresses, if the lease leaves so much. It doubles with each round in
/// which all addresses failed, as far as the lease lets it, so that a slow network is reached at last.
const PATIENCE: Duration = Duration::from_secs(2);
const PATIENCE_MIN: Duration = Duration::from_millis(250);

/// Why an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    /// Nobody listens there.
    pub(super) refused: bool,
    /// For people.
    pub(super) reason: String,
    /// Who is there does not want us, or is no server for us: what calls fail with if all say so.
    pub(super) denied: Option<Error>,
    /// All say so.
    pub(super) is_final: bool,
}

impl Failure {
    pub(super) fn of(refused: bool, reason: String) -> Failure {
        Failure { refused, reason, denied: None, is_final: false }
    }

    pub(super) fn denied(error: Error) -> Failure {
        Failure { refused: false, reason: error.to_string(), denied: Some(error), is_final: true }
    }

    /// Of all addresses, when a first connection is made: what the caller is told.
    pub(super) fn into_error(self) -> Error {
        let Failure { refused, reason, denied, .. } = self;
        denied.unwrap_or(Error::Connect { refused, reason })
    }
}

/// Of one link.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// Which address is tried next, or is connected.
    target: usize,
    /// Why those before it failed, in this round.
    failed: Vec<Failure>,
    /// Rounds in which all failed, since one answered.
    rounds: u32,
}

impl Attempts {
    /// The address to be tried, or that is connected.
    pub(super) fn target(&self) -> usize {
        self.target
    }

    /// The connection stands.
    pub(super) fn succeeded(&mut self) {
        self.failed.clear();
        self.rounds = 0;
    }

    /// It broke: the first address is tried again, but behind one that is `silent` the next of so many,
    /// since that costs time.
    pub(super) fn restart(&mut self, silent: bool, addresses: usize) {
        self.failed.clear();
        self.target = if silent { (self.target + 1) % addresses } else { 0 };
    }

    /// There is another address in front of those that there were, or the first is no more.
    pub(super) fn moved(&mut self, longer: bool) {
        self.failed.clear();
        self.target = if longer { self.target + 1 } else { self.target.saturating_sub(1) };
    }

    /// An attempt failed. `None`: the next address is to be tried; else all were, and this says why.
    pub(super) fn failed(&mut self, failure: Failure, addresses: &[Address]) -> Option<Failure> {
        self.failed.push(failure);
        self.target = (self.target + 1) % addresses.len();
        if self.failed.len() < addresses.len() {
            return None;
        }
        self.rounds += 1;
        let first = self.target;
        self.target = 0;
        let mut failed = std::mem::take(&mut self.failed);
        if failed.len() == 1 {
            return failed.pop();
        }
        let told = |(at, failure): (usize, &Failure)| {
            format!("{}: {}", addresses[(first + at) % addresses.len()], failure.reason)
        };
        let reason = failed.iter().enumerate().map(told).collect::<Vec<_>>().join("; ");
        let refused = failed.iter().all(|failure| failure.refused);
        let is_final = failed.iter().all(|failure| failure.is_final);
        let denied =
            failed.into_iter().find_map(|failure| failure.denied).map(|error| match error {
                Error::Auth(_) => Error::Auth(reason.clone()),
                Error::PeerProtocol(_) => Error::PeerProtocol(reason.clone()),
                _ => Error::Connect { refused: false, reason: reason.clone() },
            });
        Some(Failure { refused, reason, denied, is_final })
    }

    /// How long the address that is tried may take to answer; `lease` of the session, if there is one.
    pub(super) fn patience(&self, addresses: usize, lease: Option<Duration>) -> Duration {
        let is_last = self.failed.len() + 1 == addresses;
        match lease {
            _ if addresses == 1 => PATIENCE_MAX,
            None if is_last => PATIENCE_MAX,
            None => PATIENCE,
            Some(lease) => {
                // A round takes no longer than a lease.
                let most = lease / u32::try_from(addresses).unwrap_or(u32::MAX);
                let first = (most / 2).clamp(PATIENCE_MIN, PATIENCE);
                (first * 2u32.pow(self.rounds.min(6))).min(most.clamp(PATIENCE_MIN, PATIENCE_MAX))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(count: usize) -> Vec<Address> {
        (0..count).map(|at| Address { scheme: "sim".into(), target: at.to_string() }).collect()
    }

    fn silent() -> Failure {
        Failure::of(false, "no answer".into())
    }

    #[test]
    fn addresses_are_tried_in_turn_and_all_are_told() {
        let (mut attempts, three) = (Attempts::default(), addresses(3));
        assert_eq!(attempts.failed(silent(), &three), None);
        assert_eq!(attempts.target(), 1);
        assert_eq!(attempts.failed(Failure::of(true, "refused".into()), &three), None);
        let all = attempts.failed(silent(), &three).expect("all were tried");
        assert_eq!(all.reason, "sim://0: no answer; sim://1: refused; sim://2: no answer");
        assert!(!all.refused && all.denied.is_none() && attempts.target() == 0);
        // Behind one that is silent the next comes first.
        attempts.restart(true, 3);
        assert_eq!(attempts.target(), 1);
        for _ in 0..2 {
            assert_eq!(
                attempts.failed(Failure::denied(Error::Auth("no key".into())), &three),
                None
            );
        }
        let all = attempts.failed(silent(), &three).expect("all were tried");
        assert!(all.reason.starts_with("sim://1: "), "{}", all.reason);
        assert!(
            matches!(all.into_error(), Error::Auth(text) if text.contains("sim://0: no answer"))
        );
    }

    #[test]
    fn an_address_has_its_time() {
        let lease = Some(Duration::from_secs(3));
        let (mut attempts, two) = (Attempts::default(), addresses(2));
        assert_eq!(attempts.patience(1, lease), PATIENCE_MAX);
        assert_eq!(attempts.patience(2, None), PATIENCE);
        assert_eq!(attempts.patience(2, lease), Duration::from_millis(750));
        assert_eq!(attempts.patience(8, lease), PATIENCE_MIN);
        attempts.failed(silent(), &two);
        assert_eq!(attempts.patience(2, None), PATIENCE_MAX);
        assert_eq!(attempts.patience(2, lease), Duration::from_millis(750));
        attempts.failed(silent(), &two);
        assert_eq!(attempts.patience(2, lease), Duration::from_millis(1500));
        (0..2).for_each(|_| drop(attempts.failed(silent(), &two)));
        assert_eq!(attempts.patience(2, lease), Duration::from_millis(1500));
        attempts.succeeded();
        assert_eq!(attempts.patience(2, lease), Duration::from_millis(750));
    }
}
