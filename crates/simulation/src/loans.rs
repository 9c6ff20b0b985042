//! Loans, which clients hold while all else goes on.

use std::time::Duration;

use dafs_client::Loan;
use dafs_fabric::Buffer;

use crate::calls::{Call, Piece};
use crate::held::{Held, check, contents};
use crate::model::Span;
use crate::sim::Sim;

impl Sim {
    /// A read ended, whose data was lent, or came with the answer.
    pub(crate) fn lent(
        &mut self,
        (client, call): (usize, &Call),
        (file, pieces): (usize, &[Piece]),
        (bytes, end_of_file, loan): (usize, bool, Option<Loan>),
        buffer: Option<Buffer>,
        span: Span,
    ) -> Result<(), String> {
        let buffer = buffer.ok_or("the buffer did not come back")?;
        let copied = || buffer.get(..bytes).unwrap_or(&[]).to_vec();
        let there = loan.as_ref().map_or_else(copied, contents);
        self.check_pieces(file, pieces, &there, (bytes, end_of_file), span)?;
        self.clients[client].buffers.give_back(buffer, call.len)?;
        self.keep_loan(client, loan, there);
        Ok(())
    }

    /// It is held for a while, mostly a short one.
    fn keep_loan(&mut self, client: usize, loan: Option<Loan>, bytes: Vec<u8>) {
        let Some(loan) = loan else { return };
        self.report.loans += 1;
        let lease = u64::from(self.plan.limits.lease_seconds) * 1_000_000;
        let most = [100, 10_000, 200_000, 2 * lease][self.rng.index(4)];
        let until = self.now() + Duration::from_micros(self.rng.range(1, most));
        self.clients[client].loans.push(Held { loan, bytes, until });
    }

    /// Looks at all that is held, and returns what was held for long enough.
    ///
    /// # Errors
    /// Something has changed.
    pub(crate) fn look_at_loans(&mut self) -> Result<(), String> {
        let now = self.now();
        for client in &mut self.clients {
            check(&client.loans).map_err(|why| format!("client {}: {why}", client.who))?;
            client.loans.retain(|held| held.until > now);
        }
        Ok(())
    }
}
