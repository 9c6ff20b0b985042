//! The admin port.

mod raw;

use std::io::{Read, Write};
use std::net::TcpStream;

use raw::Served;

#[test]
fn connections_that_ask_for_nothing_do_not_block_it() {
    let served = Served::start();
    let idle: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut stream = TcpStream::connect(served.admin()).expect("connect");
            stream.write_all(b"GET /sta").expect("a part of a request");
            stream
        })
        .collect();
    let mut stream = TcpStream::connect(served.admin()).expect("connect");
    stream.write_all(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n").expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer:?}");
    drop(idle);
}
