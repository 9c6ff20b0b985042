//! When links need attention: attempts, answers that do not come, pings.

use std::time::Duration;

use super::{Failure, LinkState};
use crate::core::call::CallRecord;
use crate::core::work::Work;
use crate::core::{Core, Phase};

impl Core {
    /// When a link needs attention.
    pub(in crate::core) fn link_timeout(&self, index: usize) -> Option<Duration> {
        let link = self.links.get(index)?;
        match link.state {
            LinkState::Ready => Some(self.ping_at(index)),
            LinkState::Down if self.may_connect(index) => Some(link.retry_at),
            LinkState::Down | LinkState::Draining => None,
            _ => Some(link.deadline),
        }
    }

    fn may_connect(&self, index: usize) -> bool {
        let running = match self.phase {
            Phase::Idle | Phase::Draining(_) | Phase::Closed => false,
            Phase::Opening | Phase::Rooting | Phase::Reopening(_) => true,
            Phase::Asking(_) | Phase::Rewriting(_) => true,
            Phase::Reclaiming(_) | Phase::Completing => true,
            Phase::Ready => true,
        };
        // Later connections join a session.
        running && (index == 0 || (self.links[index].wanted && self.links[0].is_ready()))
    }

    /// Half of the lease is left when it is renewed. Where there is another address, a server that says nothing is
    /// found out while the lease leaves time to go by that.
    fn ping_interval(&self) -> Duration {
        let times = if self.far_addresses() > 1 { 4 } else { 2 };
        (self.lease() / times).max(Duration::from_millis(10))
    }

    fn silence_max(&self) -> Duration {
        if self.far_addresses() > 1 { self.lease() / 2 } else { self.lease() }
    }

    pub(in crate::core) fn lease(&self) -> Duration {
        Duration::from_millis(u64::from(self.session.facts.attr.lease_ms.max(100)))
    }

    fn ping_at(&self, index: usize) -> Duration {
        let link = &self.links[index];
        link.heard.max(link.pinged) + self.ping_interval()
    }

    /// Whoever is awake so shortly before a ping is due sends it: a sleep until then was set before the answer to
    /// the last one came.
    fn ping_early(&self) -> Duration {
        self.ping_interval() / 16
    }

    /// Timeouts: connects, gives up, pings.
    #[inline]
    pub(in crate::core) fn on_time(&mut self) {
        if self.now >= self.settled_until || !self.are_settled() {
            self.look_at_links();
        }
    }

    /// The links stand that are wanted.
    #[inline]
    fn are_settled(&self) -> bool {
        self.links[0].is_ready() && !self.links[1].is_unsettled()
    }

    fn look_at_links(&mut self) {
        self.settled_until = Duration::ZERO;
        for index in 0..self.links.len() {
            let (now, link) = (self.now, &self.links[index]);
            match link.state {
                LinkState::Down if self.may_connect(index) && now >= link.retry_at => {
                    self.connect(index);
                }
                LinkState::Ready if now + self.ping_early() >= self.ping_at(index) => {
                    self.ping(index);
                }
                _ if link.is_setting_up() && now >= link.deadline => {
                    let text = match self.near_patience(index) {
                        Some(patience) => format!("no answer in {} ms", patience.as_millis()),
                        None => "no answer in time".into(),
                    };
                    self.set_up_failed(index, Failure::of(false, text));
                }
                _ => {}
            }
        }
        if self.are_settled() {
            // A link that stands is pinged no earlier than this, whatever is heard.
            let timeouts = (0..self.links.len()).filter_map(|index| self.link_timeout(index));
            self.settled_until = timeouts.min().unwrap_or_default();
        }
    }

    /// Renews the lease, and finds out whether the server is still there: a little early, too, or one ping more
    /// would be waited for.
    fn ping(&mut self, index: usize) {
        let (silence_max, now, soon) = (self.silence_max(), self.now, self.now + self.ping_early());
        let link = &mut self.links[index];
        if soon >= link.heard + silence_max && link.pinged > link.heard {
            link.silent = true;
            if let Some(conn) = link.conn {
                let seconds = silence_max.as_secs_f32();
                self.node.disconnect(conn, &format!("no answer for {seconds:.1} s"));
            }
            return;
        }
        link.pinged = now;
        self.requests.background += 1;
        let ping = CallRecord { link: Some(index), ..*CallRecord::internal(Work::Null) };
        self.requests.urgent.push_back(Box::new(ping));
    }
}
