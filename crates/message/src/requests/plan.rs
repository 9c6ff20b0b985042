//! How the data of a request goes.

use dafs_fabric::{Access, SgList, Span, sg_bytes};

use crate::bounce::Bounce;
use crate::connection::Connection;
use crate::header::{FLAG_STARVED, HEADER_BYTES, Mode, REMOTE_SPAN_BYTES};
use crate::registration::{Regions, Registered, RemoteSpans};
use crate::requester::Bounced;
use crate::shared::{Held, Role, Shared};

/// How a request goes.
pub(super) struct Plan {
    pub(super) mode: Mode,
    pub(super) reply_mode: Mode,
    pub(super) flags: u8,
    pub(super) reads: RemoteSpans,
    pub(super) writes: RemoteSpans,
    /// Of these, and of what is posted.
    pub(super) regions: Regions,
    pub(super) bounced: Bounced,
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
            regions: Regions::new(),
            bounced: Bounced::default(),
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
        may_push: bool,
        (data, reply_into): (&mut SgList, &mut SgList),
    ) -> Option<()> {
        let (agreed, inline) = (self.agreed, self.options.inline_bytes as usize);
        let data_len = sg_bytes(data);
        let mut descriptors = Descriptors {
            used: HEADER_BYTES + header_len,
            max: agreed.peer_header_bytes.min(agreed.send_header_bytes),
        };
        if agreed.tagged {
            let held = sh.make_known((Role::Requester, None), reply_into, false)?;
            (plan.regions, plan.bounced.target) = (held.regions, held.bounce);
        } else if agreed.rdma_write
            && sg_bytes(reply_into) > inline
            && let Some((writes, bounce)) = descriptors.list_or_bounce(sh, reply_into, false)
        {
            (plan.writes, plan.regions) = (writes.remotes, writes.regions);
            (plan.bounced.target, plan.reply_mode) = (bounce, Mode::Write);
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
            plan.reads = reads.remotes;
            plan.regions.extend(reads.regions);
            (plan.bounced.source, plan.mode) = (bounce, Mode::Read);
            return Some(());
        } else {
            plan.mode = Mode::Pieces;
        }
        let Held { regions, bounce } = sh.make_known((Role::Requester, None), data, true)?;
        plan.regions.extend(regions);
        plan.bounced.source = bounce;
        Some(())
    }
}
