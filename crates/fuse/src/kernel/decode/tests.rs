//! Each request, whole and cut.

use zerocopy::IntoBytes;

use super::*;

/// A message: header, structure, what follows.
fn message(opcode: u32, body: &[&[u8]]) -> Vec<u8> {
    let body = body.concat();
    let len = u32::try_from(size_of::<InHeader>() + body.len()).expect("small");
    let header = InHeader { len, opcode, unique: 8, node: 1, ..InHeader::default() };
    [header.as_bytes(), &body].concat()
}

fn decoded(message: &[u8]) -> Result<Request<'_>, Malformed> {
    let (header, body) = split(message)?;
    decode(&header, body)
}

/// A message for each opcode; all bytes of each are needed.
fn all() -> Vec<Vec<u8>> {
    let read = abi::ReadIn { size: 4096, ..Default::default() };
    let lock = abi::LockIn { end: 9, ..Default::default() };
    let create = abi::CreateIn { flags: 2, mode: 0o644, ..Default::default() };
    let write = abi::WriteIn { size: 4, offset: 7, ..Default::default() };
    let ioctl = abi::IoctlIn { in_size: 3, ..Default::default() };
    let init = abi::InitIn { major: 7, minor: 40, max_readahead: 1, flags: 1 << 30 };
    let forget = abi::ForgetOne { node: 5, count: 6 };
    let batch = abi::BatchForgetIn { count: 2, padding: 0 };
    let set = abi::SetXattrIn { size: 5, flags: 1 };
    let mut all = vec![
        message(opcode::LOOKUP, &[b"name\0"]),
        message(opcode::SYMLINK, &[b"name\0to/there\0"]),
        message(opcode::MKNOD, &[abi::MkNodIn::default().as_bytes(), b"n\0"]),
        message(opcode::MKDIR, &[abi::MkDirIn::default().as_bytes(), b"n\0"]),
        message(opcode::UNLINK, &[b"n\0"]),
        message(opcode::RMDIR, &[b"n\0"]),
        message(opcode::RENAME, &[abi::RenameIn { to_dir: 4 }.as_bytes(), b"from\0to\0"]),
        message(opcode::RENAME2, &[abi::Rename2In::default().as_bytes(), b"from\0to\0"]),
        message(opcode::LINK, &[abi::LinkIn { from: 4 }.as_bytes(), b"n\0"]),
        message(opcode::CREATE, &[create.as_bytes(), b"n\0"]),
        message(opcode::TMPFILE, &[create.as_bytes()]),
        message(opcode::WRITE, &[write.as_bytes(), b"data"]),
        message(opcode::SETXATTR, &[set.as_bytes(), b"user.a\0value"]),
        message(opcode::GETXATTR, &[abi::GetXattrIn::default().as_bytes(), b"user.a\0"]),
        message(opcode::LISTXATTR, &[abi::GetXattrIn::default().as_bytes()]),
        message(opcode::REMOVEXATTR, &[b"user.a\0"]),
        message(opcode::IOCTL, &[ioctl.as_bytes(), b"abc"]),
        message(opcode::FORGET, &[abi::ForgetIn { count: 3 }.as_bytes()]),
        message(opcode::BATCH_FORGET, &[batch.as_bytes(), forget.as_bytes(), forget.as_bytes()]),
        message(opcode::INTERRUPT, &[abi::InterruptIn { unique: 8 }.as_bytes()]),
        message(opcode::INIT, &[init.as_bytes(), &[1, 0, 0, 0]]),
        message(opcode::GETATTR, &[abi::GetAttrIn::default().as_bytes()]),
        message(opcode::SETATTR, &[abi::SetAttrIn::default().as_bytes()]),
        message(opcode::ACCESS, &[abi::AccessIn::default().as_bytes()]),
        message(opcode::OPEN, &[abi::OpenIn::default().as_bytes()]),
        message(opcode::OPENDIR, &[abi::OpenIn::default().as_bytes()]),
        message(opcode::FLUSH, &[abi::FlushIn::default().as_bytes()]),
        message(opcode::RELEASE, &[abi::ReleaseIn::default().as_bytes()]),
        message(opcode::RELEASEDIR, &[abi::ReleaseIn::default().as_bytes()]),
        message(opcode::FSYNC, &[abi::SyncIn::default().as_bytes()]),
        message(opcode::FSYNCDIR, &[abi::SyncIn::default().as_bytes()]),
        message(opcode::FALLOCATE, &[abi::FAllocateIn::default().as_bytes()]),
        message(opcode::LSEEK, &[abi::LSeekIn::default().as_bytes()]),
        message(opcode::COPY_FILE_RANGE, &[abi::CopyFileRangeIn::default().as_bytes()]),
        message(opcode::POLL, &[abi::PollIn::default().as_bytes()]),
    ];
    let reads = [opcode::READ, opcode::READDIR, opcode::READDIRPLUS];
    all.extend(reads.map(|code| message(code, &[read.as_bytes()])));
    let locks = [opcode::GETLK, opcode::SETLK, opcode::SETLKW];
    all.extend(locks.map(|code| message(code, &[lock.as_bytes()])));
    all
}

/// The message with a header that says the length it has.
fn with_own_len(mut message: Vec<u8>) -> Vec<u8> {
    let len = u32::try_from(message.len()).expect("small");
    message[..4].copy_from_slice(&len.to_ne_bytes());
    message
}

#[test]
fn every_message_is_decoded_and_every_prefix_of_it_is_refused() {
    for message in all() {
        let opcode = message[4];
        assert!(!matches!(decoded(&message), Err(_) | Ok(Request::Unknown)), "opcode {opcode}");
        for len in 0..message.len() {
            let cut = message[..len].to_vec();
            assert_eq!(decoded(&cut), Err(Malformed), "opcode {opcode}: its header says more");
            if len >= 4 {
                let cut = with_own_len(cut);
                assert_eq!(decoded(&cut), Err(Malformed), "opcode {opcode}: {len} bytes");
            }
        }
    }
}

#[test]
fn extensions_are_not_part_of_a_request() {
    let mut message = message(
        opcode::WRITE,
        &[abi::WriteIn { size: 4, ..Default::default() }.as_bytes(), b"data", &[0; 16]],
    );
    message[36] = 2;
    let Ok(Request::Call(Op::Write { data, .. })) = decoded(&message) else { panic!() };
    assert_eq!(data, b"data");
    message[36] = 3;
    assert_eq!(decoded(&message), Err(Malformed), "the data would be in the extension");
    message[36] = 255;
    assert_eq!(decoded(&message), Err(Malformed));
}

#[test]
fn sizes_that_lie_are_refused() {
    let size = u32::MAX;
    let write = abi::WriteIn { size, ..Default::default() };
    assert_eq!(decoded(&message(opcode::WRITE, &[write.as_bytes(), b"data"])), Err(Malformed));
    let batch = abi::BatchForgetIn { count: size, padding: 0 };
    let batch = message(opcode::BATCH_FORGET, &[batch.as_bytes(), &[0; 64]]);
    assert_eq!(decoded(&batch), Err(Malformed));
}

#[test]
fn names_are_names() {
    assert_eq!(decoded(&message(opcode::LOOKUP, &[b"a/b\0"])), Err(Malformed));
    assert_eq!(decoded(&message(opcode::LOOKUP, &[b"\0"])), Err(Malformed));
    let target = message(opcode::SYMLINK, &[b"a\0/b/c\0"]);
    assert_eq!(decoded(&target), Ok(Request::Call(Op::SymLink { name: b"a", target: b"/b/c" })));
}

#[test]
fn locks_are_ranges_of_a_known_kind() {
    let decoded = |lock: abi::LockIn| {
        let message = message(opcode::SETLKW, &[lock.as_bytes()]);
        match decoded(&message) {
            Ok(Request::Call(Op::SetLk { lock, wait, flock, .. })) => Ok((lock, wait, flock)),
            other => Err(other.is_err()),
        }
    };
    let good = abi::LockIn { start: 3, end: 9, kind: 1, owner: 5, flags: 1, ..Default::default() };
    let lock = KernelLock { owner: 5, start: 3, end: 9, kind: LockKind::Write, pid: 0 };
    assert_eq!(decoded(good), Ok((lock, true, true)));
    let unlock = decoded(abi::LockIn { kind: 2, ..good }).map(|(_, wait, _)| wait);
    assert_eq!(unlock, Ok(false), "nobody waits to give back a lock");
    assert_eq!(decoded(abi::LockIn { kind: 7, ..good }), Err(true));
    assert_eq!(decoded(abi::LockIn { start: 10, ..good }), Err(true));
    assert_eq!(decoded(abi::LockIn { end: 1 << 63, ..good }), Err(true));
}

#[test]
fn attributes_are_set_where_the_valid_bits_say_so() {
    let all = abi::SetAttrIn {
        size: 7,
        mode: 0o104_755,
        uid: 3,
        atime: u64::MAX,
        atime_ns: 5,
        ..Default::default()
    };
    assert_eq!(set_attr(&all), SetAttr::default());
    let valid = setattr::SIZE | setattr::MODE | setattr::ATIME | setattr::MTIME_NOW;
    let set = set_attr(&abi::SetAttrIn { valid, ..all });
    assert_eq!((set.size, set.mode, set.uid), (Some(7), Some(0o4755), None));
    let before = Timestamp { seconds: -1, nanoseconds: 5 };
    assert_eq!((set.atime, set.mtime), (Some(SetTime::At(before)), Some(SetTime::Now)));
}

/// As entries of rings have it.
#[test]
fn a_request_in_two_parts_is_the_same() {
    let sizes = [
        (opcode::LOOKUP, 0),
        (opcode::SYMLINK, 0),
        (opcode::CREATE, size_of::<abi::CreateIn>()),
        (opcode::RENAME2, size_of::<abi::Rename2In>()),
        (opcode::WRITE, size_of::<abi::WriteIn>()),
        (opcode::SETXATTR, size_of::<abi::SetXattrIn>()),
        (opcode::IOCTL, size_of::<abi::IoctlIn>()),
        (opcode::READ, size_of::<abi::ReadIn>()),
    ];
    for message in all() {
        let (header, body) = split(&message).expect("whole");
        let Some((_, at)) = sizes.iter().find(|(code, _)| *code == header.opcode) else { continue };
        let (head, data) = body.split_at(*at);
        assert_eq!(decode_parts(&header, head, data), decode(&header, body));
        for len in 0..data.len() {
            assert_eq!(decode_parts(&header, head, &data[..len]), Err(Malformed));
        }
        for len in 1..head.len() {
            assert_eq!(decode_parts(&header, &head[..len], data), Err(Malformed), "{len}");
        }
    }
}
