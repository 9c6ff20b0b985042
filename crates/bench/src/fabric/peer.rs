//! The answering process: serves one connection after the other.

use std::io::{self, Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use dafs_fabric::{
    Access, Address, Arena, Device, Incoming, Listener, MemoryRegion, Provider, QueuePair,
    QueuePairEvent, SgList,
};

use super::link::{Link, SHORT_BYTES};
use super::{Wish, broken};
use crate::sys;

/// Answers at `address` until `stop`; prints where on standard output.
///
/// # Errors
/// It cannot listen there.
pub fn serve(provider: &Arc<dyn Provider>, address: &Address, stop: &AtomicBool) -> io::Result<()> {
    let device = provider.open().map_err(broken)?;
    let mut listener = device.listen(address).map_err(broken)?;
    let mut out = io::stdout().lock();
    writeln!(out, "{}", listener.address())?;
    out.flush()?;
    drop(out);
    serve_all(&device, listener.as_mut(), stop);
    Ok(())
}

/// Serves whoever connects, one after the other, until `stop`.
pub(super) fn serve_all(device: &Arc<dyn Device>, listener: &mut dyn Listener, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let Some(incoming) = next(listener) else { continue };
        if let Err(error) = answer(device, incoming, stop) {
            let _ = writeln!(std::io::stderr(), "dafs bench: {error}");
        }
    }
}

/// As [`serve`], until standard input ends: the life of a process that was started for it.
///
/// # Errors
/// It cannot listen there.
pub fn serve_parent(provider: &Arc<dyn Provider>, address: &Address) -> io::Result<()> {
    std::thread::spawn(|| {
        let _ = io::stdin().lock().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    serve(provider, address, &AtomicBool::new(false))
}

fn next(listener: &mut dyn Listener) -> Option<Incoming> {
    match listener.poll_accept() {
        Some(incoming) => Some(incoming),
        None => {
            if let Some(fd) = listener.event_fd() {
                let _ = sys::sleep_until_ready(fd, false, Some(Duration::from_millis(100)));
            }
            None
        }
    }
}

fn answer(device: &Arc<dyn Device>, incoming: Incoming, stop: &AtomicBool) -> io::Result<()> {
    let wish = Wish::decode(&incoming.private_data).ok_or_else(|| broken("a strange peer"))?;
    let most = device.attr().send_bytes_max as u64;
    let bytes = wish.message_bytes.clamp(SHORT_BYTES as u64, most) as usize;
    let mut link = Link::new(device, wish.wait, wish.depth as usize + 1, bytes)?;
    let region = region(device, wish.footprint as usize)?;
    let remote = region.remote();
    let words = [remote.rkey.0, remote.addr, u64::from(remote.len)];
    let private: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let queue_pair = link.engine.accept(incoming, &private).map_err(broken)?;
    let result = echo(&mut link, queue_pair, stop);
    link.end(queue_pair);
    result
}

fn region(device: &Arc<dyn Device>, bytes: usize) -> io::Result<MemoryRegion> {
    let arena = Arena::new(bytes.max(1)).map_err(broken)?;
    let span = arena.span(0, bytes.max(1));
    // Other than untouched, so that each page is really there.
    span.zero();
    let access = Access { remote_read: true, remote_write: true };
    device.register(span, access).map_err(broken)
}

/// Answers each message by a short one with the CPU time and the system calls so far.
fn echo(link: &mut Link, queue_pair: QueuePair, stop: &AtomicBool) -> io::Result<()> {
    let none = SgList::new();
    while !stop.load(Ordering::Relaxed) {
        if let Some(QueuePairEvent::Disconnected { .. }) = link.progress()? {
            return Ok(());
        }
        let mut completions = link.take_completions();
        for completion in completions.drain(..) {
            if !Link::is_message(&completion) {
                continue;
            }
            let wants_costs = completion.byte_len == 1;
            link.post_receive(completion.wr_id.0)?;
            if wants_costs {
                let words = [sys::process_cpu_ns(), link.engine.system_calls()];
                let costs: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
                link.send(queue_pair, &costs, &none)?;
            } else {
                link.send(queue_pair, &[0; 8], &none)?;
            }
        }
        link.give_back(completions);
        link.engine.ring();
    }
    Ok(())
}
