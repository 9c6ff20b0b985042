//! What a client was lent.

use std::time::Duration;

use dafs_client::Loan;

/// A loan, and what was in it when it came.
#[derive(Debug)]
pub struct Held {
    /// As it came.
    pub loan: Loan,
    /// What was in it.
    pub bytes: Vec<u8>,
    /// Then it is returned.
    pub until: Duration,
}

/// The bytes that were lent.
pub fn contents(loan: &Loan) -> Vec<u8> {
    loan.pieces().flatten().copied().collect()
}

/// Whatever became of the file, the connection and the session since: they are what they were.
///
/// # Errors
/// They are not.
pub fn check(held: &[Held]) -> Result<(), String> {
    match held.iter().find(|held| contents(&held.loan) != held.bytes) {
        Some(held) => Err(format!("what was lent has changed: {} bytes", held.bytes.len())),
        None => Ok(()),
    }
}
