//! The asking side.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use dafs_fabric::{
    Address, Arena, DeviceAttr, Opcode, Provider, QueuePair, QueuePairEvent, RemoteSpan, Rkey,
    SgList, Span, Status, WrId,
};

use super::link::{Link, SHORT_BYTES, connected};
use super::{DEPTH_MAX, FOOTPRINT_MAX, FabricOp, FabricOptions, Wish, broken, word};
use crate::offsets::Offsets;
use crate::slice::Slice;
use crate::sys;

pub(super) fn run(
    provider: &Arc<dyn Provider>,
    address: &Address,
    options: &FabricOptions,
    time: Duration,
    stop: &AtomicBool,
) -> io::Result<Slice> {
    let device = provider.open().map_err(broken)?;
    check(device.attr(), options)?;
    let receives = options.depth + 1;
    let mut link = Link::new(&device, options.wait, receives, SHORT_BYTES)?;
    let message_bytes = if options.op == FabricOp::Send { options.size } else { SHORT_BYTES };
    let wish = Wish {
        wait: options.wait,
        message_bytes: message_bytes as u64,
        depth: options.depth as u64,
        footprint: options.footprint.max(options.size) as u64,
    };
    let queue_pair = link.engine.connect(address, &wish.encode()).map_err(broken)?;
    let private = connected(&mut link, queue_pair, stop)?;
    let mut run = Run::new(link, queue_pair, options, &private)?;
    let result = run.measure(time, stop);
    run.link.end(queue_pair);
    result
}

fn check(attr: &DeviceAttr, options: &FabricOptions) -> io::Result<()> {
    let (most, supported) = match options.op {
        FabricOp::Send => (attr.send_bytes_max, true),
        FabricOp::Read => (attr.bulk_bytes_max, attr.rdma_read),
        FabricOp::Write => (attr.bulk_bytes_max, attr.rdma_write),
    };
    let wrong = |text: String| Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    if !supported {
        return wrong(format!("{} has no {}", attr.provider, options.op.name()));
    }
    if options.size == 0 || options.size > most {
        return wrong(format!("size of {} must be 1 to {most}", options.op.name()));
    }
    if options.depth == 0 || options.depth > DEPTH_MAX || options.footprint > FOOTPRINT_MAX {
        return wrong(format!("depth must be 1 to {DEPTH_MAX}, the file at most 2g"));
    }
    Ok(())
}

struct Run<'o> {
    link: Link,
    queue_pair: QueuePair,
    options: &'o FabricOptions,
    remote: RemoteSpan,
    offsets: Offsets,
    memory: Span,
    /// Places of `memory` that are idle.
    idle: Vec<usize>,
    /// Places of `memory` under way, with when they were begun; answers come in this order.
    under_way: VecDeque<(usize, Instant)>,
}

impl<'o> Run<'o> {
    fn new(
        link: Link,
        queue_pair: QueuePair,
        options: &'o FabricOptions,
        private: &[u8],
    ) -> io::Result<Run<'o>> {
        let word = |number| word(private, number).ok_or_else(|| broken("a strange peer"));
        let len = u32::try_from(word(2)?).map_err(|_| broken("a strange region"))?;
        let remote = RemoteSpan { rkey: Rkey(word(0)?), addr: word(1)?, len };
        if (len as usize) < options.size {
            return Err(broken("the peer's region is too small"));
        }
        let bytes = options.depth * options.size;
        let arena = Arena::new(bytes).map_err(broken)?;
        let memory = arena.span(0, bytes);
        memory.zero();
        Ok(Run {
            link,
            queue_pair,
            options,
            remote,
            offsets: Offsets::new(u64::from(len), options.size as u64, false),
            memory,
            idle: (0..options.depth).collect(),
            under_way: VecDeque::with_capacity(options.depth),
        })
    }

    fn measure(&mut self, time: Duration, stop: &AtomicBool) -> io::Result<Slice> {
        let before = self.costs()?;
        let calls = self.link.engine.system_calls();
        let registrations = dafs_fabric::mem::registrations();
        let copied = dafs_fabric::mem::copied_bytes();
        let cpu = sys::process_cpu_ns();
        let mut slice = Slice::default();
        let started = Instant::now();
        let mut now = started;
        loop {
            if now - started < time && !stop.load(Ordering::Relaxed) {
                while let Some(place) = self.idle.pop() {
                    self.begin(place, now)?;
                }
                self.link.engine.ring();
            } else if self.under_way.is_empty() {
                break;
            }
            if let Some(QueuePairEvent::Disconnected { reason, .. }) = self.link.progress()? {
                return Err(broken(reason));
            }
            now = Instant::now();
            self.collect(&mut slice, now)?;
        }
        slice.seconds = (now - started).as_secs_f64();
        slice.client_cpu_ns = Some(sys::process_cpu_ns() - cpu);
        slice.client_copied_bytes = Some(dafs_fabric::mem::copied_bytes() - copied);
        slice.registrations = Some(dafs_fabric::mem::registrations() - registrations);
        let calls = self.link.engine.system_calls() - calls;
        let after = self.costs()?;
        slice.server_cpu_ns = after.0.checked_sub(before.0);
        slice.system_calls = after.1.checked_sub(before.1).map(|peer| peer + calls);
        slice.round_trips = Some(slice.ops);
        Ok(slice)
    }

    fn begin(&mut self, place: usize, now: Instant) -> io::Result<()> {
        let size = self.options.size;
        let data = SgList::from_elem(self.memory.part(place * size, size), 1);
        let offset = self.offsets.next();
        let remote =
            RemoteSpan { addr: self.remote.addr + offset, len: size as u32, ..self.remote };
        let (queue_pair, id) = (self.queue_pair, WrId(0));
        match self.options.op {
            // One byte alone asks for costs.
            FabricOp::Send if size == 1 => self.link.send(queue_pair, &[1], &data)?,
            FabricOp::Send => self.link.send(queue_pair, &[], &data)?,
            FabricOp::Read => self.link.post(|engine| {
                engine.post_rdma_read(queue_pair, id, &mut data.clone(), remote, false)
            })?,
            FabricOp::Write => {
                self.link.post(|engine| {
                    engine.post_rdma_write(queue_pair, id, &mut data.clone(), remote, false)
                })?;
                self.link.send(queue_pair, &[0; 8], &SgList::new())?;
            }
        }
        self.under_way.push_back((place, now));
        Ok(())
    }

    fn collect(&mut self, slice: &mut Slice, now: Instant) -> io::Result<()> {
        let wanted = match self.options.op {
            FabricOp::Read => Opcode::RdmaRead,
            FabricOp::Send | FabricOp::Write => Opcode::Recv,
        };
        let mut completions = self.link.take_completions();
        for completion in completions.drain(..) {
            if completion.opcode != wanted {
                continue;
            }
            if completion.status != Status::Success {
                return Err(broken("the connection was lost"));
            }
            if wanted == Opcode::Recv {
                self.link.post_receive(completion.wr_id.0)?;
            }
            let Some((place, begun)) = self.under_way.pop_front() else { continue };
            self.idle.push(place);
            slice.latency.record(now - begun);
            slice.ops += 1;
            slice.bytes += self.options.size as u64;
        }
        self.link.give_back(completions);
        Ok(())
    }

    /// CPU time and system calls of the peer so far.
    fn costs(&mut self) -> io::Result<(u64, u64)> {
        self.link.send(self.queue_pair, &[0], &SgList::new())?;
        self.link.engine.ring();
        loop {
            if let Some(QueuePairEvent::Disconnected { reason, .. }) = self.link.progress()? {
                return Err(broken(reason));
            }
            for completion in self.link.take_completions() {
                if !Link::is_message(&completion) {
                    continue;
                }
                let message = self.link.message(&completion);
                self.link.post_receive(completion.wr_id.0)?;
                let costs = word(&message, 0).zip(word(&message, 1));
                return costs.ok_or_else(|| broken("a strange answer"));
            }
        }
    }
}
