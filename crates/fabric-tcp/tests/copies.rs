//! Payload of a page or more is not copied in user space. In a process of its own, because the
//! copies of a whole process are counted.

use dafs_fabric::mem::copied_bytes;
use dafs_fabric::{
    Access, Address, Arena, Engine, Opcode, Provider, QueuePair, QueuePairEvent, SgList, Span,
    Status, Tag, WorkCompletion, WrId,
};
use dafs_fabric_tcp::TcpProvider;
use smallvec::smallvec;

struct Pair {
    a: Box<dyn Engine>,
    b: Box<dyn Engine>,
    qa: QueuePair,
    qb: QueuePair,
    done: Vec<WorkCompletion>,
}

impl Pair {
    fn new(a: Box<dyn Engine>, b: Box<dyn Engine>, device: &dyn dafs_fabric::Device) -> Pair {
        let (mut a, mut b) = (a, b);
        let address = Address::parse("tcp://127.0.0.1:0").expect("address");
        let mut listener = device.listen(&address).expect("listener");
        let qa = a.connect(&listener.address(), b"").expect("connect");
        let incoming = loop {
            a.poll(&mut Vec::new(), 1);
            if let Some(incoming) = listener.poll_accept() {
                break incoming;
            }
        };
        let qb = b.accept(incoming, b"").expect("accept");
        while !matches!(a.poll_event(), Some(QueuePairEvent::Connected { .. })) {
            a.poll(&mut Vec::new(), 1);
        }
        Pair { a, b, qa, qb, done: Vec::new() }
    }

    /// Polls both until `count` completions of `opcode` came.
    fn run(&mut self, opcode: Opcode, count: usize) {
        let mut seen = 0;
        while seen < count {
            self.a.poll(&mut self.done, 16);
            self.b.poll(&mut self.done, 16);
            for done in self.done.drain(..) {
                assert_eq!(done.status, Status::Success);
                seen += usize::from(done.opcode == opcode);
            }
        }
    }
}

fn pieces(span: &Span, len: usize, piece: usize) -> SgList {
    (0..len / piece).map(|index| span.part(index * piece, piece)).collect()
}

#[test]
fn payload_is_not_copied() {
    let device = TcpProvider::new().open().expect("device");
    let mut pair =
        Pair::new(device.engine().expect("engine"), device.engine().expect("engine"), &*device);
    let (qa, qb) = (pair.qa, pair.qb);
    let arena = Arena::new(16 << 20).expect("arena");
    let (from, into) = (arena.span(0, 8 << 20), arena.span((8 << 20) + 17, 4 << 20));
    let headers = arena.span(13 << 20, 4096);
    let requests = arena.span(14 << 20, 1 << 20);
    let mut tag = 0;
    // Answers, of which 8 are asked for at a time; and data pushed after small requests.
    for len in [4096, 65_536, 256 * 1024] {
        for to_a in [true, false] {
            let mut counted = 0;
            for round in 0..20 {
                // The first rounds tell the receivers what kind of traffic this is.
                if round == 5 {
                    counted = copied_bytes();
                }
                for _ in 0..8 {
                    tag += 1;
                    let header = Some(headers.part(tag as usize % 32 * 64, 64));
                    let offset = tag as usize % 8 * len;
                    let mut place = pieces(&into.part(offset, len), len, 4096);
                    let mut data: SgList = smallvec![from.part(offset, len)];
                    let (receiver, sender, qr, qs) = if to_a {
                        (&mut pair.a, &mut pair.b, qa, qb)
                    } else {
                        (&mut pair.b, &mut pair.a, qb, qa)
                    };
                    receiver
                        .post_tagged_recv(qr, WrId(tag), Tag(tag), header, &mut place)
                        .expect("tagged recv");
                    if !to_a {
                        let place = smallvec![requests.part(0, 64)];
                        receiver.post_recv(WrId(0), place).expect("recv");
                        sender
                            .post_send(qs, WrId(0), &[1; 64], &mut smallvec![], false)
                            .expect("send");
                    }
                    sender
                        .post_tagged_send(qs, WrId(tag), Tag(tag), &[2; 40], &mut data, false)
                        .expect("tagged send");
                }
                pair.run(Opcode::TaggedRecv, 8);
            }
            let copied = copied_bytes() - counted;
            assert_eq!(copied, 0, "{len} bytes, {}", if to_a { "answers" } else { "pushed" });
        }
    }
    one_sided(&mut pair, &*device, &from, &into);
    gather_sends(&mut pair, &from, &requests);
}

fn one_sided(pair: &mut Pair, device: &dyn dafs_fabric::Device, from: &Span, into: &Span) {
    let access = Access { remote_read: true, remote_write: true };
    let region = device.register(from.clone(), access).expect("region");
    let counted = copied_bytes();
    for len in [4096, 1 << 20] {
        for wr_id in 0..10 {
            let part = region.part(wr_id as usize * 4096, len);
            let mut data: SgList = smallvec![into.part(0, len)];
            pair.a
                .post_rdma_read(pair.qa, WrId(wr_id), &mut data.clone(), part, false)
                .expect("read");
            pair.run(Opcode::RdmaRead, 1);
            pair.a.post_rdma_write(pair.qa, WrId(wr_id), &mut data, part, true).expect("write");
            pair.run(Opcode::RdmaWrite, 1);
        }
    }
    assert_eq!(copied_bytes() - counted, 0, "one-sided");
}

fn gather_sends(pair: &mut Pair, from: &Span, requests: &Span) {
    let mut counted = 0;
    for round in 0..10 {
        if round == 2 {
            counted = copied_bytes();
        }
        for index in 0..4 {
            let place = requests.part(index * 65_536, 65_536);
            let list = smallvec![place.part(0, 128), place.part(4096, 4096)];
            pair.b.post_recv(WrId(index as u64), list).expect("recv");
            let mut data = smallvec![from.part(index * 4096, 4096)];
            pair.a.post_send(pair.qa, WrId(0), &[3; 128], &mut data, false).expect("send");
        }
        pair.run(Opcode::Recv, 4);
    }
    assert_eq!(copied_bytes() - counted, 0, "gather sends");
}
