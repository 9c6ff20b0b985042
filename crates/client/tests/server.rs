//! Every call against the real server, over a directory of this machine.

#[path = "../../server/tests/raw/options.rs"]
mod options;

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dafs_client::{Advice, Call, Error, OpenOptions, Output, Session, SessionOptions, Url};
use dafs_fabric::Buffer;
use dafs_fabric_tcp::TcpProvider;
use dafs_protocol::{
    CacheHint, CacheInfo, CachedRange, Extent, FileKind, SetAttr, SetTime, Stability, Status,
    Timestamp,
};
use dafs_server::{Config, Server};

struct Served {
    directory: tempfile::TempDir,
    server: Option<Server>,
    session: Session,
}

impl Served {
    fn start() -> Served {
        Served::with(options::apply_wanted)
    }

    fn with(configure: impl FnOnce(&mut Config)) -> Served {
        let directory = tempfile::tempdir().expect("a directory");
        let server = serve(directory.path(), "tcp://127.0.0.1:0", configure);
        let session = connect(&server);
        Served { directory, server: Some(server), session }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.session.clone().close();
        if let Some(server) = self.server.take() {
            server.stop();
        }
    }
}

fn serve(directory: &Path, address: &str, configure: impl FnOnce(&mut Config)) -> Server {
    let mut config = Config::for_directory(directory);
    configure(&mut config);
    config.listen = vec![address.into()];
    config.arena_bytes = Some(64 << 20);
    Server::start(&config, Arc::new(TcpProvider::new()), &dafs_store_posix::open).expect("server")
}

fn connect(server: &Server) -> Session {
    let address = &server.addresses()[0];
    Session::connect(Arc::new(TcpProvider::new()), address, SessionOptions::default())
        .expect("connect")
}

fn read_write() -> OpenOptions {
    OpenOptions { read: true, write: true, create: true, ..OpenOptions::default() }
}

fn status<T: std::fmt::Debug>(result: Result<T, Error>) -> Option<Status> {
    result.expect_err("a failure").status()
}

fn buffer(data: &[u8]) -> Buffer {
    let mut buffer = Buffer::new(data.len()).expect("buffer");
    buffer.copy_from_slice(data);
    buffer
}

#[test]
fn names_are_made_changed_and_removed() {
    let served = Served::start();
    let session = &served.session;
    session.mkdir(b"d", 0o755).expect("mkdir");
    session.mkdir(b"d/e", 0o700).expect("mkdir");
    assert_eq!(status(session.mkdir(b"d", 0o755)), Some(Status::Exist));
    assert_eq!(status(session.mkdir(b"", 0o755)), Some(Status::Exist));
    session.symlink(b"e/../f", b"d/s").expect("symlink");
    assert_eq!(session.read_link(b"d/s").expect("readlink"), b"e/../f");
    assert_eq!(status(session.stat(b"d/s")), Some(Status::NoEnt));
    assert_eq!(session.lstat(b"d/s").expect("lstat").kind, FileKind::Symlink);
    let file = session.open(b"d/f", read_write()).expect("open");
    file.write_at(b"hello", 0).expect("write");
    assert_eq!(file.close().expect("close").size, 5);
    assert_eq!(session.stat(b"d/s").expect("stat").size, 5);
    assert_eq!(session.link(b"d/f", b"d/e/g").expect("link").links, 2);
    assert_eq!(session.link(b"d/f", b"h").expect("link").links, 3);
    session.rename(b"d/e/g", b"d/g").expect("rename");
    session.rename(b"d/g", b"i").expect("rename to the root");
    session.rename(b"i", b"j").expect("rename in the root");
    session.rename(b"j", b"d/e/k").expect("rename from the root");
    assert_eq!(status(session.rename_with(b"h", b"d/f", true, false)), Some(Status::Exist));
    session.mknod(b"p", FileKind::Fifo, 0o600, 0).expect("fifo");
    let mut names: Vec<_> = session
        .read_dir(b"d")
        .expect("dir")
        .map(|entry| entry.expect("entry"))
        .map(|entry| (entry.name, entry.attr.expect("attributes").kind))
        .collect();
    names.sort_by(|a, b| a.0.cmp(&b.0));
    let kinds = [FileKind::Directory, FileKind::File, FileKind::Symlink];
    assert_eq!(
        names,
        [b"e", b"f", b"s"].map(|name| name.to_vec()).into_iter().zip(kinds).collect::<Vec<_>>()
    );
    assert_eq!(status(session.remove_dir(b"d/e")), Some(Status::NotEmpty));
    assert_eq!(status(session.remove(b"d/e")), Some(Status::IsDir));
    session.remove(b"d/e/k").expect("remove");
    session.remove_dir(b"d/e").expect("remove");
    assert_eq!(status(session.remove(b"")), Some(Status::Busy));
    let error = session.stat(b"gone/x").expect_err("not there");
    assert_eq!(error, Error::Status { status: Status::NoEnt, path: Some(b"gone/x".to_vec()) });
}

#[test]
fn attributes_are_set_and_read() {
    let served = Served::start();
    let session = &served.session;
    let file = session.open(b"f", read_write()).expect("open");
    file.set_len(1_000_000).expect("truncate");
    let time = Timestamp { seconds: 1_234_567_890, nanoseconds: 123_456_789 };
    let set = SetAttr {
        mode: Some(0o640),
        accessed: Some(SetTime::To(time)),
        modified: Some(SetTime::To(time)),
        ..SetAttr::default()
    };
    let attr = file.set_attr(set).expect("set");
    assert_eq!((attr.mode, attr.modified, attr.size), (0o640, time, 1_000_000));
    assert_eq!(file.attr().expect("attr").modified, time);
    file.close().expect("close");
    let local = std::fs::metadata(served.path("f")).expect("local");
    assert_eq!((local.mtime(), local.mtime_nsec()), (1_234_567_890, 123_456_789));
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    session.set_attr(b"f", set, false).expect("set by name");
    let local = std::fs::metadata(served.path("f")).expect("local");
    assert_eq!(local.permissions().mode() & 0o7777, 0o600);
    assert_eq!(session.access(b"f", 6).expect("access"), 6);
    assert!(session.statfs(b"").expect("statfs").bytes_total > 0);
    session.sync().expect("sync");
    session.ping().expect("ping");
    assert!(session.stats().expect("stats").session_requests > 0);
}

#[test]
fn extended_attributes() {
    let served = Served::start();
    let session = &served.session;
    session.open(b"f", read_write()).expect("open").close().expect("close");
    match session.set_xattr(b"f", b"user.colour", b"red", 0) {
        Err(error) if error.status() == Some(Status::NotSupp) => return,
        result => result.expect("set"),
    }
    assert_eq!(session.get_xattr(b"f", b"user.colour").expect("get"), b"red");
    assert_eq!(session.list_xattr(b"f").expect("list"), [b"user.colour".to_vec()]);
    session.remove_xattr(b"f", b"user.colour").expect("remove");
    assert_eq!(status(session.get_xattr(b"f", b"user.colour")), Some(Status::NoData));
}

#[test]
fn data_of_all_shapes() {
    let served = Served::start();
    let session = &served.session;
    let file = session.open(b"f", read_write()).expect("open");
    let data: Vec<u8> = (0..9_000_001u32).map(|i| (i % 253) as u8).collect();
    file.write_at(&data, 1).expect("write");
    let mut back = vec![0; data.len() + 100];
    assert_eq!(file.read_at(&mut back, 1).expect("read"), data.len());
    assert!(back[..data.len()] == data);
    assert_eq!(file.append(b"end").expect("append"), 9_000_002);
    file.write_at_stable(b"stable", 0, Stability::File).expect("write");
    file.commit().expect("commit");
    file.sync_data().expect("sync");
    let extents = vec![Extent { offset: 0, len: 2, count: 3, stride: 2 }, Extent::one(100, 4)];
    let call =
        Call::ReadList { file: file.clone(), extents, buffer: Buffer::new(10).expect("buffer") };
    let done = session.call(call).wait();
    assert_eq!(done.bytes().expect("list"), 10);
    assert_eq!(done.buffer.expect("buffer")[..6], b"stable"[..]);
    file.close().expect("close");
    assert_eq!(std::fs::metadata(served.path("f")).expect("local").len(), 9_000_005);
}

/// As the C interface answers, whichever way it is asked for.
#[test]
fn what_no_file_can_hold_is_too_large() {
    let served = Served::start();
    let session = &served.session;
    let file = session.open(b"f", read_write()).expect("open");
    file.write_at(b"here", 0).expect("write");
    let most = i64::MAX as u64;
    for offset in [most - 2, most, most + 1, u64::MAX - 2, u64::MAX] {
        let mut into = [0; 8];
        let read = Call::Read {
            file: file.clone(),
            offset,
            buffer: Buffer::new(8).expect("buffer"),
            len: 8,
        };
        let write = Call::Write {
            file: file.clone(),
            offset,
            buffer: buffer(&[1; 8]),
            len: 8,
            stability: Stability::Unstable,
        };
        let outcomes = [
            ("read", file.read_at(&mut into, offset).map(drop)),
            ("lend", file.lend(offset, 8).map(drop)),
            ("write", file.write_at(&[1; 8], offset).map(drop)),
            ("stable write", file.write_at_stable(&[1; 8], offset, Stability::File).map(drop)),
            ("kept write", file.write_kept(&[1; 8], offset).map(drop)),
            ("flushed write", file.write_flushed(&[1; 8], offset)),
            ("read later", session.call(read).wait().bytes().map(drop)),
            ("write later", session.call(write).wait().bytes().map(drop)),
        ];
        for (what, outcome) in outcomes {
            assert_eq!(status(outcome), Some(Status::FBig), "{what} at {offset}");
        }
        assert_eq!(file.read_at(&mut [], offset).expect("nothing"), 0);
    }
    assert_eq!(file.read_at(&mut [0; 2], most - 2).expect("behind the end"), 0);
    assert_eq!(file.attr().expect("attributes").size, 4);
    file.commit().expect("nothing is left to be written");
}

#[test]
fn holes_are_found() {
    let served = Served::start();
    let file = served.session.open(b"f", read_write()).expect("open");
    file.set_len(8 << 20).expect("truncate");
    file.write_at(&[1; 4096], 4 << 20).expect("write");
    file.commit().expect("commit");
    assert_eq!(file.seek_hole(0).expect("hole"), Some(0));
    let data = file.seek_data(0).expect("data").expect("there is some");
    assert!(data <= 4 << 20);
    assert_eq!(file.seek_data((4 << 20) + 4096).expect("data"), None);
}

#[test]
fn the_cache_is_seen_and_steered() {
    let served = Served::with(|_| ());
    let session = &served.session;
    std::fs::write(served.directory.path().join("f"), vec![1; 6 << 20]).expect("write");
    let (info, ranges) = session.cache_query(b"f", 0, 0).expect("query");
    assert_eq!((info, ranges), (CacheInfo::default(), Vec::new()));
    let file = session.open(b"f", read_write()).expect("open");
    let advised = file.advise(0, 0, Advice::WillNeed).expect("advise");
    assert_eq!(advised.bytes, 4 << 20, "a part at a time");
    file.read_at(&mut [0; 10], (4 << 20) - 10).expect("read");
    file.write_at(&[2; 4096], 0).expect("write");
    // What was advised comes in its own time.
    let until = Instant::now() + Duration::from_secs(60);
    let (info, ranges) = loop {
        let (info, ranges) = file.cache_query(0, 4 << 20).expect("query");
        if info.clean_bytes + info.dirty_bytes == 4 << 20 || Instant::now() > until {
            break (info, ranges);
        }
    };
    assert_eq!(info.clean_bytes + info.dirty_bytes, 4 << 20);
    let dirty = CachedRange { offset: 0, len: 4096, dirty: true };
    assert_eq!((ranges.len(), ranges[0]), (2, dirty));
    let dropped = file.advise(0, 0, Advice::DontNeed).expect("advise").bytes;
    assert!(dropped >= (4 << 20) - 4096);
    assert_eq!(session.cache_query(b"f", 0, 0).expect("query").1, [dirty]);
    let hint = CacheHint { unit: 1 << 20, policy: 2, class: 1 };
    assert_eq!(file.advise(0, 0, Advice::Wish(hint)).expect("advise").cache, hint);
    let wish = CacheHint { unit: 0, policy: 1, class: 3 };
    let options = OpenOptions { cache: wish, ..OpenOptions::read() };
    // Open to the end: a close would have the file written back.
    let wishing = session.open(b"f", options).expect("open");
    let cache = wishing.cache_query(0, 0).expect("query").0.cache;
    assert_eq!((cache.policy, cache.class), (1, 3));
    assert_eq!(file.advise(0, 0, Advice::Wish(hint)).expect("advise").cache, hint);

    let ask = |call| session.call(call).wait().result.expect("answered");
    let drop_all = |file| Call::Advise { file, offset: 0, len: 0, advice: Advice::DontNeed };
    assert!(
        matches!(ask(drop_all(file.clone())), Output::Advised(advised) if advised.cache == hint)
    );
    match ask(Call::CacheQuery { file, offset: 0, len: 0 }) {
        Output::Cached { info, ranges } => assert_eq!((info.cache, ranges), (hint, vec![dirty])),
        other => panic!("{other:?}"),
    }
}

#[test]
fn whole_files_in_one_message() {
    let served = Served::start();
    let session = &served.session;
    session.mkdir(b"d", 0o755).expect("mkdir");
    let times = Timestamp { seconds: 1_000_000_000, nanoseconds: 5 };
    let put = |name: &str, len: usize, commit| Call::PutFile {
        path: format!("d/.{name}.tmp").into_bytes(),
        buffer: (len > 0).then(|| buffer(&vec![7; len])),
        len: u32::try_from(len).expect("small"),
        mode: 0o640,
        exclusive: true,
        times: Some((times, times)),
        owner: None,
        rename_to: Some(format!("d/{name}").into_bytes()),
        commit,
    };
    let before = session.info().round_trips;
    let group = session.group();
    for (tag, len) in [0usize, 1, 4096, 100_000].into_iter().enumerate() {
        let call = put(&format!("f{len}"), len, tag % 2 == 0);
        assert!(group.submit(tag as u64, call).is_ok());
    }
    for done in group.wait(4, None) {
        let attr = done.attr().expect("put");
        assert_eq!((attr.mode, attr.modified), (0o640, times));
    }
    assert_eq!(session.info().round_trips, before + 4);
    for len in [0usize, 1, 4096, 100_000] {
        let path = format!("d/f{len}");
        assert_eq!(std::fs::read(served.path(&path)).expect("local"), vec![7; len]);
        let local = std::fs::metadata(served.path(&path)).expect("local");
        assert_eq!(local.mtime(), 1_000_000_000);
        let room = Buffer::new(200_000).expect("buffer");
        let done = session.call(Call::GetFile { path: path.into_bytes(), buffer: room }).wait();
        match done.result.expect("get") {
            Output::Got { attr, bytes } => assert_eq!((attr.size, bytes), (len as u64, len)),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(session.info().round_trips, before + 8);
    assert_eq!(std::fs::read_dir(served.path("d")).expect("dir").count(), 4);
}

#[test]
fn a_deep_path_takes_one_round_trip() {
    let served = Served::start();
    let session = &served.session;
    let deep = ["directory"; 12].join("/");
    std::fs::create_dir_all(served.path(&deep)).expect("local");
    std::fs::write(served.path(&format!("{deep}/f")), b"x").expect("local");
    let before = session.info().round_trips;
    assert_eq!(session.stat(format!("{deep}/f").as_bytes()).expect("stat").size, 1);
    assert_eq!(session.info().round_trips, before + 1);
    // Far longer than a message.
    let longer = ["a_directory_with_a_rather_long_name"; 60].join("/");
    let mut path = String::new();
    for part in longer.split('/') {
        path = format!("{path}/{part}");
        session.mkdir(path.as_bytes(), 0o755).expect("mkdir");
    }
    session.open(format!("{longer}/f").as_bytes(), read_write()).expect("open");
    session.rename(format!("{longer}/f").as_bytes(), format!("{longer}/g").as_bytes()).expect("mv");
    assert_eq!(session.stat(format!("{longer}/g").as_bytes()).expect("stat").size, 0);
}

#[test]
fn a_restart_of_the_server_is_survived() {
    let mut served = Served::start();
    let file = served.session.open(b"f", read_write()).expect("open");
    file.write_at(b"hello", 0).expect("write");
    file.commit().expect("commit");
    let server = served.server.take().expect("running");
    let address = server.addresses()[0].to_string();
    server.stop();
    served.server = Some(serve(served.directory.path(), &address, options::apply_wanted));
    let mut back = [0; 10];
    assert_eq!(file.read_at(&mut back, 0).expect("read"), 5);
    assert_eq!(&back[..5], b"hello");
    assert_eq!(served.session.info().new_sessions, 1);
    file.commit().expect("nothing was lost");
}

#[test]
fn a_url_leads_to_a_session() {
    let served = Served::start();
    let address = served.server.as_ref().expect("running").addresses()[0].clone();
    let text = format!("dafs://{}/a%20b?wait=sleeping&rdma_read=off&connections=1", address.target);
    let url = Url::parse(&text).expect("url");
    let options = SessionOptions::from_url(&url).expect("options");
    let (session, path) =
        Session::connect_url(Arc::new(TcpProvider::new()), &url, options).expect("connect");
    assert_eq!(path, b"a b");
    let file = session.open(&path, read_write()).expect("open");
    let data = vec![3; 3_000_000];
    file.write_at(&data, 0).expect("write");
    let mut back = vec![0; 3_000_000];
    file.read_at(&mut back, 0).expect("read");
    assert!(back == data);
    assert!(!session.info().attr.rdma_read);
}
