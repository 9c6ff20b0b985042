//! Handshakes that are not what they should be.

use dafs_fabric::PeerInfo;

use super::*;

/// The server says no, or hangs up; and goes on for others.
fn is_refused(server: &mut Server, socket: &OwnedFd, what: &str) {
    let answer = server.hear(socket);
    let is_no = answer.is_empty() || matches!(Message::decode(&answer), Some(Message::Reject(_)));
    assert!(is_no, "{what}: {answer:?}");
    server.ping();
}

#[test]
fn rings_that_are_no_memory_are_refused() {
    let mut server = Server::new();
    let token = server.token;
    let mut all = wrong_files(MEMORY_BYTES);
    let sealed = |bytes| memfd(MFdFlags::empty(), bytes, BOTH).expect("a file");
    all.push(("a shorter one", sealed(MEMORY_BYTES - 4096)));
    all.push(("a longer one", sealed(MEMORY_BYTES + 4096)));
    for (what, file) in &all {
        let socket = server.offer(&[file.as_fd()], &token);
        is_refused(&mut server, &socket, what);
    }
}

/// It is an end of a connection as any other, and no failure of the server's.
#[test]
fn a_peer_may_leave_before_it_is_accepted() {
    let mut server = Server::new();
    let token = server.token;
    let file = memfd(MFdFlags::empty(), MEMORY_BYTES, BOTH).expect("a file");
    let socket = server.offer(&[file.as_fd()], &token);
    let incoming = wait("the offer", || server.listener.poll_accept());
    drop(socket);
    let queue_pair = server.engine.accept(incoming, b"").expect("accepted");
    assert_eq!(server.ended(queue_pair), "closed by the peer");
    let quiescent = QueuePairEvent::Quiescent { queue_pair };
    wait("quiescence", || {
        server.poll();
        server.events.contains(&quiescent).then_some(())
    });
    server.ping();
}

#[test]
fn offers_have_one_descriptor() {
    let mut server = Server::new();
    let token = server.token;
    let right = memfd(MFdFlags::empty(), MEMORY_BYTES, BOTH).expect("a file");
    for count in [0, 2, 3, 5, 100] {
        let files = vec![right.as_fd(); count];
        let socket = server.offer(&files, &token);
        is_refused(&mut server, &socket, &format!("{count} descriptors"));
    }
}

#[test]
fn what_is_no_handshake_is_refused() {
    let mut server = Server::of_strangers();
    let file = memfd(MFdFlags::empty(), MEMORY_BYTES, BOTH).expect("a file");
    let offer = Message::Offer([0; 32], CLIENT_LIMITS, 0, b"");
    for (message, files) in [
        (Message::Bell, vec![]),
        (offer, vec![file.as_fd()]),
        (Message::Hello([1; 16]), vec![file.as_fd()]),
        (Message::Reject(&[9; 300]), vec![]),
    ] {
        let socket = server.socket();
        send_all(&socket, &message, &files);
        is_refused(&mut server, &socket, &format!("{message:?}"));
    }
    let socket = server.socket();
    sys::send(socket.as_raw_fd(), &[1; 2 * MESSAGE_BYTES_MAX]).expect("sent");
    is_refused(&mut server, &socket, "a message that is too long");
}

/// Before that nobody knows whose they are.
#[test]
fn descriptors_are_taken_after_the_first_word() {
    let mut server = Server::new();
    let pipe = std::io::pipe().expect("a pipe").0;
    let send = |socket: &OwnedFd| {
        let bytes = Message::Bell.encode();
        sys::send_with(socket.as_raw_fd(), &bytes, &[pipe.as_fd()])
    };
    let unheard = server.socket();
    if let Err(error) = send(&unheard) {
        assert_eq!(error.raw_os_error(), Some(libc::EPERM));
        let late = server.offer(&[], &[0; 16]);
        send(&late).expect("taken");
    } else {
        println!("this system cannot refuse descriptors (Linux 6.16 can): left out");
    }
    server.ping();
}

#[test]
fn who_does_not_know_the_token_is_refused() {
    let mut server = Server::new();
    let right = memfd(MFdFlags::empty(), MEMORY_BYTES, BOTH).expect("a file");
    let socket = server.offer(&[right.as_fd()], &[0; 16]);
    is_refused(&mut server, &socket, "a wrong token");
}

#[test]
fn silent_peers_keep_nobody_out() {
    let mut server = Server::new();
    let mut silent = Vec::new();
    for count in 0..100 {
        let socket = server.socket();
        if count % 2 == 0 {
            sys::send(socket.as_raw_fd(), &Message::Hello([0; 16]).encode()).expect("sent");
        }
        silent.push(socket);
        assert!(server.listener.poll_accept().is_none());
    }
    server.connect_honest();
}

/// Who has taken the name before the server, and does not know the token, is given no memory.
#[test]
fn a_squatter_is_given_nothing() {
    let token = [9; 16];
    let hex: String = token.iter().map(|byte| format!("{byte:02x}")).collect();
    let address = Address::parse(&format!("shm:@{hex}")).expect("an address");
    let place = place(&address).expect("a place");
    let squatter = sys::listen(place.name(), 8).expect("the name is free");
    let mut engine = ShmProvider::new().open().expect("a device").engine().expect("an engine");
    engine.connect(&address, b"secret").expect("begins");
    let socket = sys::accept(squatter.as_raw_fd()).expect("it connects at once");
    let hello = wait("hello", || heard(&socket));
    assert!(matches!(Message::decode(&hello), Some(Message::Hello(_))));
    send_all(&socket, &Message::Challenge([1; 16], [2; 32]), &[]);
    let refused = wait("Refused", || {
        engine.poll(&mut Vec::new(), 1);
        engine.poll_event()
    });
    let QueuePairEvent::Refused { refused, reason, .. } = refused else { panic!("{refused:?}") };
    assert!(!refused && reason.contains("not the server that was meant"), "{reason}");
    assert_eq!(wait("hang-up", || heard(&socket)), b"", "nothing was sent after the lie");
}

#[test]
fn the_kernel_says_who_a_peer_is() {
    let mut server = Server::new();
    let (_, far) = server.pair.expect("connected");
    let me = dafs_fabric::local::effective_uid();
    let is_me = |peer: &PeerInfo| peer.credentials.as_ref().is_some_and(|c| c.uid == me);
    assert!(server.engine.peer(far).is_some_and(|peer| is_me(&peer)));
    server.honest.connect(&server.address, b"again").expect("begins");
    let incoming = wait("connection request", || {
        server.honest.poll(&mut Vec::new(), 1);
        server.listener.poll_accept()
    });
    assert!(is_me(&incoming.peer));
}

/// As it is for all where too many descriptors are on their way.
#[test]
fn who_can_be_given_no_bell_is_let_in_without() {
    let mut server = Server::new();
    let arena = Arena::shared(MEMORY_BYTES).expect("memory");
    let file = arena.span(0, MEMORY_BYTES).shared().expect("shared").file;
    let token = server.token;
    let socket = server.offer(&[file.as_fd()], &token);
    if !sys::set_takes_descriptors(socket.as_fd(), false) {
        eprintln!("skipped: this system has no sockets that refuse descriptors");
        return;
    }
    let incoming = wait("the offer", || server.listener.poll_accept());
    server.engine.accept(incoming, b"").expect("let in");
    let answer = wait("an answer", || heard(&socket));
    assert!(matches!(Message::decode(&answer), Some(Message::Accept(..))));
    server.ping();
}
