//! Spans of mapped files as sources.

use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::Harness;
use super::pair::{READ_WRITE, bytes, pattern};
use crate::mem::{PAGE_BYTES, Span};
use crate::sys::FileMap;
use crate::types::{QueuePairEvent, Status};

/// Files made so far: cases run in several threads.
static MADE: AtomicU64 = AtomicU64::new(0);

/// A file without a name that holds these bytes, and a map of it.
pub(super) fn mapped(content: &[u8], by_descriptor: bool) -> (File, Arc<FileMap>) {
    let directory = std::env::temp_dir();
    let number = MADE.fetch_add(1, Ordering::Relaxed);
    let unique = format!("dafs-conformance-{}-{number}", std::process::id());
    let path = directory.join(unique);
    let made = File::options().read(true).write(true).create_new(true).open(&path);
    let file = made.expect("a file");
    std::fs::remove_file(&path).expect("its name");
    file.write_all_at(content, 0).expect("its bytes");
    let fd = Arc::new(OwnedFd::from(file.try_clone().expect("a descriptor")));
    let map = FileMap::new(fd, content.len().max(1), by_descriptor).expect("a map");
    (file, map)
}

fn takes_files(h: &mut Harness<'_>) -> bool {
    h.provider.open().expect("a device").attr().file_spans
}

pub(super) fn data_of_files_lands(h: &mut Harness<'_>) {
    if !takes_files(h) {
        return;
    }
    for by_descriptor in [false, true] {
        let mut p = h.pair();
        let (qa, qb, attr) = (p.qa, p.qb, p.a.attr());
        let content = pattern(3, 300_000.min(attr.bulk_bytes_max));
        let (_file, map) = mapped(&content, by_descriptor);
        let half = content.len() / 2;
        // A file beside memory, and parts that are no neighbours.
        let memory = p.a.filled(9, 1000);
        let data = [
            Span::of_file(&map, half, content.len() - half),
            memory.span().clone(),
            Span::of_file(&map, 1, half - 1),
        ];
        let expected: Vec<u8> = data.iter().flat_map(bytes).collect();
        assert!(expected[..content.len() - half] == content[half..], "a copy out of a file");
        if attr.tag_match {
            let (head, target) = (p.b.buffer(8), p.b.buffer(expected.len()));
            let header = Some(head.span().clone());
            let recv = p.b.tagged_recv(qb, 1, header, &[target.span().clone()]).expect("posted");
            let sent = p.a.tagged_send(qa, 1, b"header", &data, true).expect("posted");
            assert_eq!(h.finish_b(&mut p, recv).status, Status::Success);
            assert!(bytes(target.span()) == expected, "wrong data");
            assert_eq!(h.finish_a(&mut p, sent).status, Status::Success);
        }
        if attr.rdma_write {
            let target = p.b.buffer(expected.len());
            let region = p.b.register(target.span(), READ_WRITE);
            let sent = p.a.write(qa, &data, region.remote(), true).expect("posted");
            assert_eq!(h.finish_a(&mut p, sent).status, Status::Success);
            h.ping(&mut p);
            assert!(bytes(target.span()) == expected, "wrong data");
        }
        let len = attr.send_bytes_max.min(5000);
        let (target, part) = (p.b.buffer(len), Span::of_file(&map, 11, len));
        let recv = p.b.recv(&[target.span().clone()]).expect("posted");
        let sent = p.a.send(qa, b"", &[part], true).expect("posted");
        assert_eq!(h.finish_b(&mut p, recv).status, Status::Success);
        assert!(bytes(target.span()) == content[11..11 + len], "wrong data");
        assert_eq!(h.finish_a(&mut p, sent).status, Status::Success);
    }
}

pub(super) fn a_file_that_is_cut_breaks_the_queue_pair(h: &mut Harness<'_>) {
    if !takes_files(h) || !h.provider.open().expect("a device").attr().tag_match {
        return;
    }
    for by_descriptor in [false, true] {
        let mut p = h.pair();
        let (qa, qb) = (p.qa, p.qb);
        let (file, map) = mapped(&pattern(4, 20 * PAGE_BYTES), by_descriptor);
        let target = p.b.buffer(map.len());
        p.b.tagged_recv(qb, 1, None, &[target.span().clone()]).expect("posted");
        file.set_len(PAGE_BYTES as u64).expect("cut");
        let span = Span::of_file(&map, 0, map.len());
        assert!(bytes(&span)[PAGE_BYTES..].iter().all(|byte| *byte == 0), "no fault, but zeros");
        p.a.tagged_send(qa, 1, b"", &[span], true).expect("posted");
        h.wait(&mut p, "broken queue pair", |p| {
            p.a.take_event(|e| matches!(e, QueuePairEvent::Disconnected { .. })).is_some()
        });
    }
}
