//! A server that ended in order, and the next one: clients are told of losses where there are some,
//! and only there.

mod common;

use std::sync::Arc;

use common::{FileSystem, Server, Temporary, binary, good, interrupt, path};
use dafs_client::{File, OpenOptions, Session, SessionOptions, Url};
use dafs_fabric_tcp::TcpProvider;
use dafs_protocol::Status;

const BYTES: usize = 300_000;

fn server() -> Server {
    let temporary = Temporary::new();
    let served = temporary.join("served");
    std::fs::create_dir(&served).expect("directory");
    Server::start_in(temporary, served, &[])
}

/// Writes and neither flushes nor closes.
fn write(server: &Server, name: &str, bytes: usize) -> (Session, File) {
    let url = Url::parse(&server.url).expect("a URL");
    let options = SessionOptions::from_url(&url).expect("options");
    let session = Session::connect_url(Arc::new(TcpProvider::new()), &url, options).expect("up").0;
    let options = OpenOptions { create: true, ..OpenOptions::write() };
    let file = session.open(name.as_bytes(), options).expect("open");
    file.write_at(&vec![7; bytes], 0).expect("write");
    (session, file)
}

fn committed(file: &File) -> Result<(), Option<Status>> {
    file.commit().map_err(|error| error.status())
}

#[test]
fn nobody_is_told_of_losses_after_an_end_in_order() {
    let mut server = server();
    let (session, file) = write(&server, "file", BYTES);
    let verifier = session.info().verifier;
    for round in 0..3 {
        server.restart();
        file.write_at(&[8; 10], round * 10).expect("goes on");
        assert_eq!(session.info().verifier, verifier);
        assert_eq!(committed(&file), Ok(()), "round {round}");
    }
    server.restart();
    file.write_at(&[9; 10], 0).expect("goes on");
    file.close().expect("closed");
    assert_eq!(std::fs::read(server.file("file")).expect("there").len(), BYTES);
}

#[test]
fn a_stream_goes_on_over_a_restart() {
    let mut server = server();
    let mut child = binary()
        .args(["cp", "-", &server.at("copy")])
        .stdin(std::process::Stdio::piped())
        .spawn()
        .expect("starts");
    let mut input = child.stdin.take().expect("piped");
    let piece = vec![5; 1 << 20];
    for _ in 0..4 {
        std::io::Write::write_all(&mut input, &piece).expect("taken");
    }
    server.restart();
    for _ in 0..4 {
        std::io::Write::write_all(&mut input, &piece).expect("taken");
    }
    drop(input);
    assert!(child.wait().expect("ends").success());
    assert!(std::fs::read(server.file("copy")).expect("there") == piece.repeat(8), "other bytes");
}

/// The mark of the end before has gone with the start.
#[test]
fn who_loses_writes_to_a_kill_is_told_also_after_an_end_in_order() {
    let mut server = server();
    let (_session, file) = write(&server, "file", BYTES);
    server.restart();
    file.write_at(&[1; 100], 0).expect("goes on");
    assert_eq!(committed(&file), Ok(()));
    file.write_at(&[2; 100], 0).expect("written");
    server.crash_and_restart();
    assert_eq!(committed(&file), Err(Some(Status::WritesLost)));
    assert_eq!(committed(&file), Ok(()), "once");
    // Nor does a server that was killed before it served anybody leave one.
    file.write_at(&[3; 100], 0).expect("written");
    server.restart();
    server.crash_and_restart();
    assert_eq!(committed(&file), Err(Some(Status::WritesLost)));
}

/// A second server of the directory has no part in the state of the first, and takes no mark.
#[test]
fn a_second_server_of_the_directory_has_a_verifier_of_its_own() {
    let mut server = server();
    let (session, file) = write(&server, "file", BYTES);
    let state = path(&server.file("../state")).to_owned();
    let directory = path(&server.directory).to_owned();
    let second = |state: &str| {
        let mut command = binary();
        command.args(["serve", "--listen", "tcp://127.0.0.1:0", "--arena", "64m"]);
        let mut child = command
            .args(["--state", state, &directory])
            .stdout(std::process::Stdio::piped())
            .spawn()
            .expect("starts");
        let mut url = String::new();
        let out = child.stdout.as_mut().expect("piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut url).expect("a URL");
        let url = Url::parse(url.trim_end()).expect("a URL");
        let options = SessionOptions::from_url(&url).expect("options");
        let there =
            Session::connect_url(Arc::new(TcpProvider::new()), &url, options).expect("up").0;
        let verifier = there.info().verifier;
        drop(there);
        interrupt(&child);
        assert!(child.wait().expect("ends").success());
        verifier
    };
    let verifier = session.info().verifier;
    assert_ne!(second(&state), verifier, "beside the first");
    assert_eq!(server.interrupt(), Some(0));
    let elsewhere = Temporary::new();
    assert_ne!(second(path(&elsewhere.0)), verifier, "with another state");
    server.start_again();
    assert_eq!(committed(&file), Ok(()));
    assert_eq!(session.info().verifier, verifier);
}

#[test]
fn who_loses_writes_to_a_full_disk_is_told_after_an_end_in_order() {
    let Some(disk) = FileSystem::memory() else { return };
    let served = disk.path().join("served");
    std::fs::create_dir(&served).expect("directory");
    let mut server = Server::start_in(Temporary::new(), served, &[]);
    // Room for less than is written.
    let mut filler = std::fs::File::create(disk.path().join("filler")).expect("file");
    while std::io::Write::write_all(&mut filler, &[1; 4096]).is_ok() {}
    let bytes = filler.metadata().expect("there").len();
    filler.set_len(bytes - (1 << 20)).expect("cut");
    let (_other_session, other) = write(&server, "other", BYTES);
    let (_session, file) = write(&server, "large", 4 << 20);
    assert_eq!(server.interrupt(), Some(1), "not all was written");
    server.start_again();
    assert_eq!(committed(&file), Err(Some(Status::WritesLost)));
    assert_eq!(committed(&other), Err(Some(Status::WritesLost)), "nobody knows better");
    drop((file, other));
    good(&["rm", &server.at("large")]);
}
