//! How the data of a request goes.

use dafs_fabric::{Access, SgList, Span, sg_bytes};

use crate::bounce::Bounce;
use crate::connection::Connection;
use crate::header::{
    FLAG_MAY_LEND, FLAG_MAY_REFER, FLAG_STARVED, HEADER_BYTES, Mode, REMOTE_SPAN_BYTES,
};
use crate::references::is_worth;
use crate::registration::{Registered, RemoteSpans};
use crate::requester::Kept;
use crate::shared::{Held, Role, Shared};

/// How a request goes.
pub(super) struct Plan {
    pub(super) mode: Mode,
    pub(super) reply_mode: Mode,
    pub(super) flags: u8,
    pub(super) reads: RemoteSpans,
    pub(super) writes: RemoteSpans,
    /// For these, and for what is posted.
    pub(super) kept: Option<Kept>,
}

impl Plan {
    /// No data.
    pub(super) fn new(tagged: bool) -> Plan {
        Plan {
            mode: Mode::None,
            reply_mode: if tagged { Mode::Tagged } else { Mode::Inline },
            flags: 0,
            reads: RemoteSpans::new(),
            writes: RemoteSpans::new(),
            kept: None,
        }
    }

    /// Keeps what the request's data (`is_source`) or the room for the reply's data needs.
    fn keep(&mut self, held: Option<Held>, is_source: bool) {
        let Some(Held { regions, bounce }) = held else { return };
        let kept = self.kept.get_or_insert_default();
        kept.regions.extend(regions);
        if is_source {
            kept.source = bounce;
        } else {
            kept.target = bounce;
        }
    }
}

/// Room for descriptors in the header of a request.
struct Descriptors {
    used: usize,
    max: usize,
}

impl Descriptors {
    /// Describes `list` to the peer, if that fits and it can be registered.
    fn list(&mut self, sh: &mut Shared, list: &[Span], is_source: bool) -> Option<Registered> {
        let bytes = list.len() * REMOTE_SPAN_BYTES;
        if self.used + bytes > self.max {
            return None;
        }
        // Else the device would be asked in vain, each time.
        if sh.attr.shared_memory && !list.iter().all(Span::is_shared) {
            return None;
        }
        let access = Access { remote_read: is_source, remote_write: !is_source };
        let registered = sh.registrations.list(sh.domain.device(), list, access)?;
        self.used += bytes;
        Some(registered)
    }

    /// As [`list`](Self::list), else with memory in its place.
    fn list_or_bounce(
        &mut self,
        sh: &mut Shared,
        list: &mut SgList,
        is_source: bool,
    ) -> Option<(Registered, Option<Box<Bounce>>)> {
        if let Some(registered) = self.list(sh, list, is_source) {
            return Some((registered, None));
        }
        let bounce = sh.bounces[Role::Requester as usize].take(&sh.domain, None, list)?;
        let registered = self.list(sh, &bounce.list(), is_source)?;
        *list = bounce.list();
        if is_source {
            bounce.copy_in();
        }
        Some((registered, Some(bounce)))
    }
}

impl Connection {
    /// Decides how data goes, and makes it ready: the lists (data, and where the reply goes) may be
    /// replaced. `None`: there is no memory for that.
    #[inline]
    pub(super) fn plan(
        &mut self,
        sh: &mut Shared,
        plan: &mut Plan,
        header_len: usize,
        (may_push, asks_to_lend): (bool, bool),
        (data, reply_into): (&mut SgList, &mut SgList),
    ) -> Option<()> {
        let data_len = sg_bytes(data);
        if self.agreed.tagged && data_len == 0 && !sh.attr.local_registration {
            // Nothing is to be decided, nor to be made known.
            return Some(());
        }
        let (agreed, inline) = (self.agreed, self.options.inline_bytes as usize);
        let mut descriptors = Descriptors {
            used: HEADER_BYTES + header_len,
            max: agreed.peer_header_bytes.min(agreed.send_header_bytes),
        };
        if agreed.tagged {
            plan.keep(sh.make_known((Role::Requester, None), reply_into, false).ok()?, false);
        } else if agreed.rdma_write
            && sg_bytes(reply_into) > inline
            && let Some((writes, bounce)) = descriptors.list_or_bounce(sh, reply_into, false)
        {
            (plan.writes, plan.reply_mode) = (writes.remotes, Mode::Write);
            let may_lend = asks_to_lend && agreed.lends;
            let may_refer = agreed.refers && bounce.is_some() && is_worth(sg_bytes(reply_into));
            plan.keep(Some(Held { regions: writes.regions, bounce }), false);
            if (may_refer || may_lend)
                && let Some(kept) = &mut plan.kept
            {
                plan.flags |= FLAG_MAY_REFER | if may_lend { FLAG_MAY_LEND } else { 0 };
                (kept.may_refer, kept.may_lend) = (true, may_lend);
            }
        }
        if data_len == 0 {
            return Some(());
        }
        if data_len <= inline && descriptors.used + data_len <= agreed.peer_header_bytes {
            plan.mode = Mode::Inline;
        } else if agreed.tagged {
            if may_push && data_len <= self.requester.push.available() as usize {
                plan.mode = Mode::Tagged;
            } else {
                // To wait for a grant costs a round trip; to register would cost more.
                plan.mode = Mode::Grant;
                if may_push && data_len <= self.requester.push_window as usize {
                    plan.flags |= FLAG_STARVED;
                }
            }
        } else if agreed.rdma_read
            && let Some((reads, bounce)) = descriptors.list_or_bounce(sh, data, true)
        {
            (plan.reads, plan.mode) = (reads.remotes, Mode::Read);
            plan.keep(Some(Held { regions: reads.regions, bounce }), true);
            return Some(());
        } else {
            plan.mode = Mode::Pieces;
        }
        plan.keep(sh.make_known((Role::Requester, None), data, true).ok()?, true);
        Some(())
    }
}
