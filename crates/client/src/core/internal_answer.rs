//! Answers to the calls of the core itself.

use dafs_message::ConnId;
use dafs_protocol::{
    Attr, FileHandle, FileKind, Locked, OpResult, Outcome, RequestOutcome, StateId, Status,
};

use super::call::CallRecord;
use super::named::Named;
use super::{Core, FileKey, Output, Phase, Work};
use crate::planted::{Defect, planted};

impl Core {
    /// One of the core's own calls was answered.
    pub(super) fn on_internal(
        &mut self,
        conn: ConnId,
        call: Box<CallRecord>,
        outcomes: &[OpResult],
    ) {
        match (&call.work, outcomes) {
            (Work::Root, [Ok(Outcome::Found { handle, .. })]) => {
                self.session.root = *handle;
                self.session.facts.export = self.config.export.clone();
                self.deliver(call, Ok(Output::Unit));
                self.root_found();
            }
            (Work::Reopen { file, .. }, [Ok(Outcome::Opened { handle, state, attr, .. })]) => {
                self.reopened(*file, *handle, *state, *attr);
                self.deliver(call, Ok(Output::Unit));
                self.one_reopened();
            }
            (Work::SlotQuery(request), [Ok(Outcome::RequestOutcome(request_outcome))]) => {
                let (request, request_outcome) = (*request, *request_outcome);
                self.deliver(call, Ok(Output::Unit));
                self.request_outcome_known(request, request_outcome);
            }
            (Work::Rewrite { file, len, .. }, [Ok(Outcome::Written { bytes, .. })]) => {
                let (file, done) = (*file, bytes == len);
                self.deliver(call, Ok(Output::Unit));
                self.rewritten(file, done);
            }
            (Work::CloseState { .. }, [Ok(Outcome::Closed { .. })])
            | (Work::Unregister { .. }, [Ok(Outcome::Done)]) => {
                self.deliver(call, Ok(Output::Unit));
            }
            (Work::CancelLock { ticket }, [Ok(Outcome::Done)]) => {
                let ticket = *ticket;
                self.deliver(call, Ok(Output::Unit));
                self.wait_cancelled(ticket);
            }
            (Work::Reclaim { file, lock }, [Ok(Outcome::Lock(locked))]) => {
                if let Locked::Waiting(ticket) = *locked {
                    self.requests.background += 1;
                    self.requests
                        .urgent
                        .push_back(CallRecord::internal(Work::CancelLock { ticket }));
                }
                let (file, lock) = (*file, *lock);
                self.deliver(call, Ok(Output::Unit));
                self.reclaimed(file, &lock, *locked == Locked::Granted);
            }
            (Work::ReclaimComplete, [Ok(Outcome::Done)]) => {
                self.deliver(call, Ok(Output::Unit));
                self.become_ready();
            }
            (Work::Register { user, .. }, [Ok(Outcome::Credential { cred })]) => {
                self.credentials.registered(user, *cred);
                self.deliver(call, Ok(Output::Unit));
            }
            (Work::Destroy, _) => {
                self.session.destroyed = true;
                self.deliver(call, Ok(Output::Unit));
            }
            _ => self.fault(conn, call, "a result of another kind"),
        }
    }

    pub(super) fn on_internal_failed(&mut self, call: Box<CallRecord>, status: Status) {
        match call.work {
            Work::Rewrite { file, .. } => {
                self.deliver(call, Ok(Output::Unit));
                self.rewritten(file, false);
            }
            Work::SlotQuery(request) => {
                self.deliver(call, Err(status.into()));
                self.request_outcome_known(request, RequestOutcome::Unknown);
            }
            Work::Root => {
                self.deliver(call, Err(status.into()));
                self.fail_all(status.into());
            }
            Work::Reopen { file, by_path: false } => {
                let gone = matches!(status, Status::Stale | Status::BadHandle | Status::NoEnt);
                self.deliver(call, Err(status.into()));
                if gone {
                    if let Some(file) = self.files.any_mut(file) {
                        file.look_for_place();
                    }
                    self.requests.background += 1;
                    let work = Work::Reopen { file, by_path: true };
                    self.requests.urgent.push_back(self.for_user_of(file, work));
                } else {
                    self.reopen_failed(file, status);
                }
            }
            Work::Reopen { file, .. } => {
                self.deliver(call, Err(status.into()));
                self.reopen_failed(file, Status::Stale);
            }
            Work::Destroy => {
                self.session.destroyed = true;
                self.deliver(call, Err(status.into()));
            }
            Work::Reclaim { file, lock } => {
                self.deliver(call, Err(status.into()));
                self.reclaimed(file, &lock, false);
            }
            Work::ReclaimComplete => {
                self.deliver(call, Err(status.into()));
                self.become_ready();
            }
            Work::Register { ref user, .. } => {
                self.credentials.refused(user, status);
                self.deliver(call, Err(status.into()));
            }
            _ => self.deliver(call, Err(status.into())),
        }
    }

    fn reopened(&mut self, key: FileKey, handle: FileHandle, state: StateId, attr: Attr) {
        let Some(file) = self.files.any_mut(key) else { return };
        // Numbers of files that are gone are used again; then at least the birth differs.
        let same = (file.attr.inode, file.attr.device) == (attr.inode, attr.device)
            && file.attr.created == attr.created
            && attr.kind == FileKind::File;
        file.handle = handle;
        file.state = state;
        file.named = Named::new();
        if !same && !planted(Defect::ReopenedByNameAlone) {
            // The name leads to another file now. Its open ends with the session.
            file.end(Status::Stale);
        }
    }

    fn reopen_failed(&mut self, key: FileKey, status: Status) {
        let kept = self.files.any_mut(key).is_some_and(|file| file.end(status));
        // What becomes of a file that is gone is no loss.
        if kept && !matches!(status, Status::Stale | Status::NoEnt) {
            self.recovery.unsynced.lose();
        }
        self.one_reopened();
    }

    fn one_reopened(&mut self) {
        if let Phase::Reopening(left) = &mut self.phase {
            *left = left.saturating_sub(1);
            if *left == 0 {
                self.begin_reclaim();
            }
        }
    }
}
