//! Who the server is, and a server that says what is not so.

use super::*;

#[test]
fn keys_are_proven_by_both_ends() {
    let with = |ours: Option<&[u8]>, theirs: Option<&[u8]>| {
        let key = ours.map(<[u8]>::to_vec);
        let mut pair = Pair::with(16, SessionOptions { key, ..options() });
        pair.fake.script.key = theirs.map(<[u8]>::to_vec);
        pair.call(Work::Null).map(drop)
    };
    with(Some(b"key"), Some(b"key")).expect("the same key");
    let text = |result: Result<(), Error>| match result {
        Err(Error::Auth(text)) => text,
        other => panic!("{other:?}"),
    };
    assert_eq!(text(with(Some(b"key"), Some(b"other"))), "wrong key");
    assert!(text(with(None, Some(b"key"))).contains("wants a key"));
    assert!(text(with(Some(b"key"), None)).contains("did not prove"));
}

#[test]
fn what_a_server_grants_is_proven_too() {
    let mut pair = Pair::with(16, SessionOptions { key: Some(b"key".to_vec()), ..options() });
    pair.fake.script.key = Some(b"key".to_vec());
    pair.fake.script.changes_grant = true;
    let error = pair.call(Work::Null).expect_err("not what the server said");
    assert!(error.to_string().contains("did not prove"), "{error}");
}

#[test]
fn a_refusal_is_told_without_control_characters() {
    let mut pair = Pair::new(17);
    pair.fake.script.refuse = Some(Status::NotAuthorized);
    assert_eq!(pair.call(Work::Null).expect_err("refused"), Error::Auth("not  today".into()));
    pair.fake.script.refuse = Some(Status::Resource);
    let error = pair.call(Work::Null).expect_err("refused");
    assert!(matches!(error, Error::Connect { refused: false, .. }), "{error:?}");
}

#[test]
fn a_mute_server_does_not_hold_us() {
    let mut pair = Pair::new(18);
    pair.fake.script.mute = true;
    let error = pair.call(Work::Null).expect_err("no answer");
    assert_eq!(error.to_string(), "cannot connect: no answer in time");
}

#[test]
fn lies_end_the_call_and_not_the_session() {
    let lies: [fn(&mut Reply); 4] = [
        |reply| reply.sequence += 1,
        |reply| {
            if let Ok(results) = &mut reply.results {
                results.push(Ok(Outcome::Done));
            }
        },
        |reply| reply.results = Ok(vec![Ok(Outcome::Read { bytes: 101, end_of_file: false })]),
        |reply| reply.results = Ok(vec![Ok(Outcome::Offset { offset: None })]),
    ];
    for (index, lie) in lies.into_iter().enumerate() {
        let mut pair = Pair::new(19);
        pair.fake.put(b"f", &[1; 100]);
        let file = pair.open(b"f", read_write());
        pair.fake.script.lie = Some(lie);
        let error = pair.read(file, 0, 100).expect_err("a lie");
        assert!(matches!(error, Error::PeerProtocol(_)), "lie {index}: {error:?}");
        pair.fake.script.lie = None;
        assert_eq!(pair.read(file, 0, 100).expect("truth").len(), 100, "lie {index}");
    }
}

#[test]
fn names_that_lead_elsewhere_are_refused() {
    let mut pair = Pair::new(20);
    // Becomes a slash on the wire: an honest encoder refuses it.
    pair.fake.put(b"..|etc|passwd", b"");
    let work = Work::ReadDir {
        place: place(b""),
        cookie: 0,
        bytes: 4096,
        attributes: false,
        handles: false,
    };
    assert!(matches!(pair.call(work), Err(Error::PeerProtocol(_))));
}
