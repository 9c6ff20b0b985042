//! Data paths with the client library: files that local programs cut while they are read.

use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dafs_client::OpenOptions;
use dafs_fabric_tcp::TcpProvider;
use dafs_server::{Config, DataPath, Server};
use dafs_tests::client::session;

const BYTES: usize = 1 << 20;
const CUTS: usize = 30;

fn pattern() -> Vec<u8> {
    (0..BYTES).map(|i| (i % 251) as u8 + 1).collect()
}

/// Cuts the file to nothing and fills it again.
fn cut(path: &std::path::Path, over: &AtomicBool) {
    let file = std::fs::OpenOptions::new().write(true).open(path).expect("open");
    for _ in 0..CUTS {
        file.set_len(0).expect("cut");
        file.write_all_at(&pattern(), 0).expect("write");
    }
    over.store(true, Ordering::SeqCst);
}

#[test]
fn a_file_that_is_cut_while_it_is_read_hurts_nobody() {
    // The server is in this process: before it has any memory.
    dafs_tests::marked::pattern();
    for data_path in [DataPath::Normal, DataPath::Mmap, DataPath::Sendfile] {
        let directory = tempfile::tempdir().expect("a directory");
        let state = tempfile::tempdir().expect("a directory");
        let mut config = Config::for_directory(directory.path());
        config.exports[0].data_path = data_path;
        config.listen = vec!["tcp://127.0.0.1:0".into()];
        config.state = Some(state.path().to_owned());
        let server = Server::start(&config, Arc::new(TcpProvider::new()), &dafs_store_posix::open)
            .expect("server");
        let url = format!("dafs://{}/", server.addresses()[0].target);
        let local = directory.path().join("f");
        std::fs::write(&local, pattern()).expect("write");
        let session = session(&url);
        let file = session.open(b"f", OpenOptions::read()).expect("open");
        let over = AtomicBool::new(false);
        let expected = pattern();
        std::thread::scope(|scope| {
            scope.spawn(|| cut(&local, &over));
            let mut buffer = vec![0xff; BYTES];
            while !over.load(Ordering::SeqCst) {
                let bytes = file.read_at(&mut buffer, 0).expect("an answer");
                let is_old_or_zero = |(got, at): (&u8, &u8)| *got == *at || *got == 0;
                let all = buffer[..bytes].iter().zip(&expected).all(is_old_or_zero);
                assert!(all, "{data_path}: bytes that the file never had");
            }
        });
        let mut buffer = vec![0xff; BYTES];
        assert_eq!(file.read_at(&mut buffer, 0).expect("read"), BYTES, "{data_path}");
        assert!(buffer == expected, "{data_path}");
        drop(file);
        session.close();
        server.stop();
    }
}
