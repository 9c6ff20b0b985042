//! Reads whose data may be lent.

use dafs_message::ConnId;

use super::Core;
use super::answer::TOO_MANY_BYTES;
use super::call::Flight;
use super::output::Output;
use crate::loan::Loan;

impl Core {
    /// One ended well.
    pub(super) fn on_lent(
        &mut self,
        conn: ConnId,
        flight: Flight,
        (bytes, end_of_file): (u32, bool),
        data_len: u32,
    ) {
        let (loan, call) = (self.node.take_loan(conn, u32::from(flight.slot.0)), flight.call);
        let room = call.work.reply_bytes().min(call.memory.len()).min(data_len as usize);
        match usize::try_from(bytes) {
            Ok(bytes) if loan.as_ref().is_some_and(|loan| loan.bytes() != bytes) => {
                self.fault(conn, call, "a loan of another length than it says");
            }
            Ok(bytes) if bytes <= room => {
                let loan = loan.map(Loan::new);
                self.finish(call, Ok(Output::Lent { bytes, end_of_file, loan }));
            }
            _ => self.fault(conn, call, TOO_MANY_BYTES),
        }
    }
}
