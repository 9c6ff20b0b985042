//! The other commands with a real server.

mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Command, Stdio};

use common::{
    Server, Temporary, bad, dafs, dafs_as, good, interrupt, is_root, json, path, program, text,
};

#[test]
fn serve_prints_its_url_and_ends_orderly() {
    let mut one = Server::start(&[]);
    let mut two = Server::start(&[]);
    assert_ne!(one.url, two.url);
    good(&["cp", "/etc/hostname", &one.at("file")]);
    assert_eq!(one.interrupt(), Some(0));
    assert!(one.file("file").exists());
    assert!(bad(3, &["ls", "--retry", "1s", &one.url]).contains("dafs ls: "));
    assert_eq!(two.interrupt(), Some(0));
}

#[test]
fn status_finds_servers_by_url_and_port() {
    let server = Server::start(&[]);
    let pid = u64::from(server.child.id());
    let status = json(&good(&["status", "--json", &server.url]));
    assert_eq!(status.len(), 1);
    assert_eq!(status[0]["pid"], pid);
    assert!(status[0]["poison"].is_string(), "servers of tests mark their free memory");
    let all = json(&good(&["status", "--json"]));
    assert!(all.iter().any(|status| status["pid"] == pid));
    let shown = good(&["status", &server.url]);
    assert!(shown.contains(&format!("process {pid}")) && shown.contains("cache_hits"));
}

#[test]
fn names_are_listed_escaped_and_as_json() {
    let server = Server::start(&[]);
    fs::write(server.file("b\nline"), "12345").expect("file");
    fs::write(server.file("a"), "").expect("file");
    fs::write(server.file(".hidden"), "").expect("file");
    fs::create_dir(server.file("dir")).expect("directory");
    std::os::unix::fs::symlink("a", server.file("link")).expect("symlink");
    assert_eq!(good(&["ls", &server.url]), "a\nb\\nline\ndir\nlink\n");
    assert!(good(&["ls", "-a", &server.url]).starts_with(".hidden\n"));
    let long = good(&["ls", "-l", &server.url]);
    assert!(long.contains(" b\\nline\n") && long.contains("link -> a\n"), "{long}");
    let rows = json(&good(&["ls", "--json", &server.url]));
    assert_eq!(rows[1]["name"], "b\nline");
    assert_eq!(rows[1]["size"], 5);
    assert_eq!(rows[1]["url"], server.at("b%0Aline"));
    assert_eq!(rows[3]["target"], "a");
    assert_eq!(good(&["cat", rows[1]["url"].as_str().expect("text")]), "12345");
    assert_eq!(good(&["ls", "-d", &server.at("dir")]), "dir\n");
    let stat = json(&good(&["stat", "--json", &server.at("link")]));
    assert_eq!(stat[0]["type"], "symlink");
    let stat = json(&good(&["stat", "-L", "--json", &server.at("link")]));
    assert_eq!(stat[0]["type"], "file");
    let inode = fs::metadata(server.file("a")).expect("there").ino();
    assert_eq!(stat[0]["inode"], inode);
    let said = bad(1, &["ls", &server.at("missing"), &server.at("a")]);
    assert_eq!(said, format!("dafs ls: {}: no such file or directory\n", server.at("missing")));
}

#[test]
fn trees_are_found_and_summed() {
    let server = Server::start(&[]);
    fs::create_dir_all(server.file("x/y")).expect("directories");
    fs::write(server.file("x/y/big.bin"), vec![1; 100_000]).expect("file");
    fs::write(server.file("x/small.txt"), "x").expect("file");
    fs::hard_link(server.file("x/y/big.bin"), server.file("x/again.bin")).expect("link");
    let find = |arguments: &[&str]| {
        let mut all = vec!["find", &server.url];
        all.extend(arguments);
        let mut lines: Vec<String> = good(&all).lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    assert_eq!(find(&["--name", "*.bin"]), [server.at("x/again.bin"), server.at("x/y/big.bin")]);
    assert_eq!(find(&["--type", "d", "--paths"]), ["", "x", "x/y"]);
    assert_eq!(find(&["--larger", "50k", "--name", "b*"]), [server.at("x/y/big.bin")]);
    assert_eq!(find(&["--maxdepth", "1", "--paths"]), ["", "x"]);
    assert_eq!(find(&["--json"]).len(), 6);
    let usage = json(&good(&["du", "-s", "--apparent-size", "--json", &server.at("x")]));
    let directories: u64 =
        ["x", "x/y"].iter().map(|d| fs::metadata(server.file(d)).expect("there").len()).sum();
    assert_eq!(usage[0]["bytes"], 100_001 + directories, "two names count once");
    let recursive = good(&["ls", "-R", &server.at("x")]);
    assert!(recursive.contains("y/big.bin\n"), "{recursive}");
    fs::write(server.file("x/large"), vec![0; 200_000]).expect("file");
    let names = |options: &[&str]| {
        let all = ["ls", "-R"].iter().chain(options).copied();
        let at = server.at("");
        good(&all.chain([at.as_str()]).collect::<Vec<_>>())
    };
    // The directory's own size is the file system's.
    let order = |text: &str, names: [&str; 2]| {
        let places = names.map(|name| text.find(name).expect("listed"));
        places[0] < places[1]
    };
    assert!(order(&names(&["-S"]), ["x/large\n", "x/again.bin\n"]));
    assert!(order(&names(&["-Sr"]), ["x/again.bin\n", "x/large\n"]));
    assert!(order(&names(&["-r"]), ["x/large\n", "x/again.bin\n"]));
    let by_name = names(&[]);
    assert!(by_name.lines().is_sorted(), "{by_name}");
    let (mut theirs, all) =
        (names(&["-U"]).lines().map(str::to_owned).collect::<Vec<_>>(), by_name.lines());
    theirs.sort();
    assert_eq!(theirs, all.collect::<Vec<_>>(), "the same names");
    assert!(order(&names(&["-t"]), ["x/y\n", "x/y/big.bin\n"]), "what is in it comes behind it");
    fs::remove_file(server.file("x/large")).expect("removed");
    let space = json(&good(&["df", "--json", &server.url]));
    assert!(space[0]["bytes_total"].as_u64().expect("number") > 0);
}

#[test]
fn names_are_made_changed_and_removed() {
    let server = Server::start(&[]);
    good(&["mkdir", "-p", "-m", "750", &server.at("a/b/c")]);
    good(&["mkdir", "-p", &server.at("a/b")]);
    assert_eq!(fs::metadata(server.file("a/b/c")).expect("there").mode() & 0o7777, 0o750);
    assert!(bad(1, &["mkdir", &server.at("a")]).contains("file exists"));
    good(&["touch", "--at", "1000000000.25", &server.at("a/file")]);
    let meta = fs::metadata(server.file("a/file")).expect("there");
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (1_000_000_000, 250_000_000));
    good(&["touch", "-c", &server.at("a/missing")]);
    assert!(!server.file("a/missing").exists());
    good(&["mv", &server.at("a/file"), &server.at("a/b")]);
    assert!(server.file("a/b/file").exists());
    good(&["ln", &server.at("a/b/file"), &server.at("hard")]);
    good(&["ln", "-s", "a/b", &server.at("soft")]);
    assert_eq!(fs::metadata(server.file("soft/file")).expect("there").nlink(), 2);
    assert!(bad(1, &["ln", "-s", "x", &server.at("hard")]).contains("file exists"));
    good(&["ln", "-s", "-f", "x", &server.at("hard")]);
    assert_eq!(fs::read_link(server.file("hard")).expect("link").to_str(), Some("x"));
    fs::set_permissions(server.file("a/b/file"), fs::Permissions::from_mode(0o644)).expect("mode");
    good(&["chmod", "-R", "go-rwx,u+X", &server.at("a")]);
    assert_eq!(fs::metadata(server.file("a/b/file")).expect("there").mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(server.file("a/b/c")).expect("there").mode() & 0o777, 0o700);

    assert!(bad(1, &["rm", &server.at("a")]).contains("use -r"));
    assert!(bad(1, &["rm", &server.at("missing")]).contains("no such file"));
    good(&["rm", "-f", &server.at("missing"), &server.at("hard")]);
    good(&["rm", "-r", &server.at("a")]);
    assert!(!server.file("a").exists());
    let said = bad(2, &["rm", "-r", &server.url]);
    assert!(said.contains("--force"), "{said}");
    assert!(fs::symlink_metadata(server.file("soft")).is_ok());
    for number in 0..300 {
        fs::write(server.file(&format!("f{number}")), "x").expect("file");
    }
    good(&["rm", "-r", "--force", &server.url]);
    assert_eq!(fs::read_dir(&server.directory).expect("still there").count(), 0);
}

#[test]
fn servers_answer_ping_and_sync() {
    let server = Server::start(&[]);
    let answers = json(&good(&["ping", "-c", "3", "-i", "0", "--json", &server.url]));
    assert_eq!(answers.len(), 3);
    assert!(answers.iter().all(|answer| answer["us"].as_f64().expect("number") > 0.0));
    let protocol = u64::from(dafs_protocol::PROTOCOL_VERSION);
    assert!(answers.iter().all(|answer| answer["protocol"] == protocol));
    let listens = answers[0]["listens"].as_array().expect("addresses");
    let port = server.url.trim_end_matches('/').rsplit(':').next().expect("a port");
    assert!(
        listens.iter().any(|at| at.as_str().is_some_and(|at| at.ends_with(port))),
        "{listens:?}"
    );
    assert!(good(&["ping", "-c", "1", &server.url]).contains("; the server listens on "));
    assert_eq!(good(&["flush", &server.url]), "");
    assert!(bad(1, &["flush", &server.at("none")]).contains("no such file"));
    let earlier = dafs(&["sync", &server.url]);
    let said = text(&earlier.stderr);
    assert!(earlier.status.success() && said.contains("'dafs flush' now"), "{said}");
    assert_eq!(text(&dafs(&["sync", "-q", &server.url]).stderr), "");
}

#[test]
fn a_server_of_another_user_is_trusted_only_if_named() {
    if !is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    const OTHER: u32 = 54_321;
    let server = Server::start_as(OTHER, &[]);
    let said = bad(3, &["ls", &server.url]);
    assert!(said.contains("is of uid 54321") && said.contains("?server_uid=54321"), "{said}");
    // Then it is asked, and says that it serves nobody but its own user.
    for trust in ["?server_uid=54321", "?server_uid=any"] {
        let output = dafs(&["ls", &server.at(trust)]);
        let said = text(&output.stderr);
        assert!(said.contains("operation not permitted"), "{said}");
    }
    assert!(bad(3, &["ls", &server.at("?server_uid=54322")]).contains("is of uid 54321"));
    // Also where there is nothing but a socket of shared memory.
    let sockets = Temporary::new();
    std::os::unix::fs::chown(&sockets.0, Some(OTHER), None).expect("chown");
    let listen = format!("shm:{}/s.sock", path(&sockets.0));
    let by_path = Server::start_as(OTHER, &["--listen", &listen]);
    assert!(bad(3, &["ls", &by_path.url]).contains("?server_uid=54321"));
    let said = bad(1, &["ls", &by_path.at("?server_uid=54321")]);
    assert!(said.contains("operation not permitted"), "{said}");
    // One's own, and root's.
    assert!(dafs_as(OTHER, &["ls", &server.url]).status.success());
    let server = Server::start(&[]);
    assert!(dafs_as(OTHER, &["ping", "-c", "1", &server.url]).status.success());
}

#[test]
fn free_memory_that_is_seen_fails_a_test() {
    let mut server = Server::start(&[]);
    let status = json(&good(&["status", "--json", &server.url]));
    let Some(digits) = status[0]["poison"].as_str() else { return };
    // As the server does, this process and its clients know the pattern.
    let byte = |at| u8::from_str_radix(&digits[at..at + 2], 16).expect("digits");
    let pattern: Vec<u8> = (0..digits.len()).step_by(2).map(byte).collect();
    let file = server.file("leaked");
    fs::write(&file, [&[7; 1000], &pattern[9..], &pattern[..], &[7; 1000]].concat())
        .expect("write");
    let read = dafs(&["cat", &server.at("leaked")]);
    assert!(!read.status.success() && text(&read.stderr).contains("what nobody filled was read"));
    let end = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| server.interrupt()));
    let said = end.expect_err("it looks at what was served");
    assert!(said.downcast_ref::<String>().is_some_and(|said| said.contains("leaked")));
    // The end of the server would look again.
    fs::remove_file(&file).expect("remove");
}

fn transport(url: &str) -> String {
    let answers = json(&good(&["ping", "-c", "1", "--json", url]));
    answers[0]["transport"].as_str().expect("a name").into()
}

#[test]
fn clients_of_this_machine_come_by_a_local_socket() {
    let sockets = Temporary::new();
    let mut server = Server::start(&["--no-shm", "--local-socket", path(&sockets.0)]);
    let local = server.at(&format!("?local={}", path(&sockets.0)));
    assert_eq!(transport(&local), "unix");
    assert_eq!(transport(&server.at("?local=off")), "tcp");
    // Its port was free by chance: nothing is left where everybody looks.
    assert_eq!(transport(&server.url), "tcp");
    // In another network namespace the address is another server's.
    let elsewhere = ["-n", env!("CARGO_BIN_EXE_dafs"), "ping", "-c", "1", &local];
    if program("unshare", &["-n", "true"]).is_some() {
        let output = Command::new("unshare").args(elsewhere).output().expect("unshare");
        let said = text(&output.stderr);
        assert!(said.contains("dafs ping: ") && text(&output.stdout).is_empty(), "{said}");
    } else {
        println!("skipped: needs root, and the right to make network namespaces");
    }
    assert_eq!(server.interrupt(), Some(0));
    assert_eq!(fs::read_dir(&sockets.0).expect("directory").count(), 0);
}

#[test]
fn shared_memory_is_used_where_it_can_be_and_can_be_asked_for() {
    let mut server = Server::start(&[]);
    fs::write(server.file("file"), "contents").expect("file");
    // A machine that is busy may not answer within the time that is given to it.
    let by_itself = || transport(&server.url) == "shm";
    assert!((0..50).any(|_| by_itself()), "never by shared memory");
    for name in ["shm", "tcp"] {
        let query = format!("?transport={name}");
        assert_eq!(transport(&server.at(&query)), name);
        assert_eq!(good(&["cat", &server.at(&format!("file{query}"))]), "contents");
    }
    let said = bad(3, &["ls", &server.at("?transport=unix")]);
    assert!(said.contains(".sock"), "{said}");
    let said = bad(2, &["ls", &server.at("?transport=mesh")]);
    assert!(said.contains("(known: tcp, unix, shm)"), "{said}");
    server.crash_and_restart();
    assert_eq!(transport(&server.at("?transport=shm")), "shm");
    let server = Server::start(&["--no-shm"]);
    assert_eq!(transport(&server.url), "tcp");
    let said = bad(3, &["ls", &server.at("?transport=shm")]);
    assert!(
        said.contains("shm was asked for")
            && said.contains("told not to (--no-shm, or a data path that sends"),
        "{said}"
    );
    let said = good(&["ping", "-c", "1", &server.url]);
    assert!(said.contains("by tcp: shm: the server at "), "{said}");
}

#[test]
fn a_local_socket_of_another_user_is_passed_over() {
    if !is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    const OTHER: u32 = 54_321;
    let sockets = Temporary::new();
    std::os::unix::fs::chown(&sockets.0, Some(OTHER), Some(OTHER)).expect("chown");
    let server = Server::start_as(OTHER, &["--no-shm", "--local-socket", path(&sockets.0)]);
    assert_eq!(fs::read_dir(&sockets.0).expect("directory").count(), 1);
    let local = server.at(&format!("?local={}", path(&sockets.0)));
    let said = bad(3, &["ping", "-c", "1", &local]);
    assert!(said.contains("the server at 127.0.0.1:"), "{said}");
}

#[test]
fn a_named_port_has_its_socket_where_clients_look() {
    if !is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let mut server = Server::start(&["--no-shm"]);
    assert_eq!(transport(&server.url), "tcp");
    server.crash_and_restart();
    assert_eq!(transport(&server.at("?transport=unix")), "unix");
    let port = server.url.trim_end_matches('/').rsplit(':').next().expect("a port").to_owned();
    assert_eq!(server.interrupt(), Some(0));
    let names = fs::read_dir("/run/dafs").expect("directory").map(|entry| entry.expect("entry"));
    let mut names = names.map(|entry| entry.file_name().into_string().expect("UTF-8"));
    assert!(!names.any(|name| name.contains(&format!(":{port}@"))));
}

#[test]
fn several_exports_have_names() {
    let temporary = Temporary::new();
    for name in ["one", "two"] {
        fs::create_dir(temporary.join(name)).expect("directory");
        fs::write(temporary.join(name).join("file"), name).expect("file");
    }
    let one = format!("first={}", path(&temporary.join("one")));
    let two = format!("second={}", path(&temporary.join("two")));
    let served = temporary.join("unused");
    let server = Server::start_in(temporary, served, &["--export", &one, "--export", &two]);
    assert_eq!(good(&["ls", &server.url]), "first\nsecond\n");
    assert_eq!(good(&["cat", &server.at("second/file")]), "two");
    good(&["cp", &server.at("second/file"), &server.at("first/copy")]);
    assert_eq!(good(&["ls", &server.at("first")]), "copy\nfile\n");
}

#[test]
fn a_key_is_needed_where_the_server_has_one() {
    let temporary = Temporary::new();
    let keys = ["right", "wrong"].map(|name| {
        let file = temporary.join(name);
        fs::write(&file, format!("{name} 0123456789abcdef\n")).expect("file");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).expect("mode");
        file
    });
    // Users of the server's own machine are known without a key.
    let server = Server::start(&["--key-file", path(&keys[0])]);
    assert_eq!(good(&["ls", &server.url]), "");
    let Some(address) = other_address() else {
        eprintln!("skipped: this machine has no address but loopback");
        return;
    };
    let listen = format!("tcp://{address}:0");
    let server = Server::start(&["--key-file", path(&keys[0]), "--listen", &listen]);
    assert_eq!(good(&["ls", "--key-file", path(&keys[0]), &server.url]), "");
    let said = bad(3, &["ls", "--key-file", path(&keys[1]), &server.url]);
    assert!(said.starts_with(&format!("dafs ls: {}: ", server.url)), "{said}");
    bad(3, &["ls", &server.url]);
    bad(2, &["ls", "--key-file", "/nonexistent", &server.url]);
}

#[test]
fn root_may_be_nobody() {
    if !is_root() {
        eprintln!("skipped: needs root");
        return;
    }
    let sockets = Temporary::new();
    let server = Server::start(&["--squash-root", "--local-socket", path(&sockets.0)]);
    let served = |mode| fs::set_permissions(&server.directory, fs::Permissions::from_mode(mode));
    served(0o777).expect("mode");
    fs::set_permissions(server.directory.parent().expect("one"), fs::Permissions::from_mode(0o755))
        .expect("mode");
    fs::write(server.file("private"), "root's own").expect("file");
    fs::set_permissions(server.file("private"), fs::Permissions::from_mode(0o600)).expect("mode");
    // Whichever way it comes.
    let unix = format!("?transport=unix&local={}", path(&sockets.0));
    for (name, query) in
        [("tcp", "?local=off".into()), ("unix", unix), ("shm", "?transport=shm".into())]
    {
        assert_eq!(transport(&server.at(&query)), name);
        let said = bad(1, &["cat", &server.at(&format!("private{query}"))]);
        assert!(said.contains("permission denied"), "{said}");
        good(&["mkdir", &server.at(&format!("{name}{query}"))]);
        let made = fs::metadata(server.file(name)).expect("there");
        assert_eq!((made.uid(), made.gid()), (65_534, 65_534));
    }
}

/// Passes connections on to `to`; where it listens.
fn relay(to: &str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let address = listener.local_addr().expect("address").to_string();
    let to = to.to_owned();
    std::thread::spawn(move || {
        for near in listener.incoming().map_while(Result::ok) {
            let far = TcpStream::connect(&to).expect("the server");
            for (from, to) in [(&near, &far), (&far, &near)] {
                let both = (from.try_clone().expect("clone"), to.try_clone().expect("clone"));
                std::thread::spawn(move || {
                    let (mut from, mut to) = both;
                    let _ = std::io::copy(&mut from, &mut to);
                    let _ = to.shutdown(std::net::Shutdown::Both);
                });
            }
        }
    });
    address
}

#[test]
fn who_passes_a_proof_on_is_refused() {
    let temporary = Temporary::new();
    let key = temporary.join("key");
    fs::write(&key, "0123456789abcdef\n").expect("file");
    fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).expect("mode");
    let authority =
        |server: &Server| server.url.trim_start_matches("dafs://").trim_end_matches('/').to_owned();
    let server = Server::start(&["--key-file", path(&key)]);
    let between = relay(&authority(&server));
    let url = format!("dafs://{between}/");
    let said = bad(3, &["ls", "--key-file", path(&key), &url]);
    assert!(
        said.contains(&format!("dialled {between} and came to {}", authority(&server))),
        "{said}"
    );
    good(&["ls", "--key-file", path(&key), &server.url]);
    // One that is meant to be there.
    drop(server);
    let server = Server::start(&["--key-file", path(&key), "--known-as", "127.0.0.1:1"]);
    bad(3, &["ls", "--key-file", path(&key), &format!("dafs://{}/", relay(&authority(&server)))]);
    let listen = format!("tcp://{}", authority(&server));
    drop(server);
    let between = relay(listen.trim_start_matches("tcp://"));
    let options = [
        "--key-file",
        path(&key),
        "--listen",
        &listen,
        "--known-as",
        &between,
        "--local-socket",
        "none",
    ];
    let _server = Server::start(&options);
    good(&["ls", "--key-file", path(&key), &format!("dafs://{between}/")]);
}

/// An IPv4 address of this machine that is not loopback.
fn other_address() -> Option<std::net::IpAddr> {
    // Sends nothing: only asks which way packets would go.
    let socket = std::net::UdpSocket::bind(("0.0.0.0", 0)).ok()?;
    socket.connect(("192.0.2.1", 9)).ok()?;
    Some(socket.local_addr().ok()?.ip()).filter(|ip| !ip.is_loopback())
}

#[test]
fn files_are_measured_beside_plain_sockets_and_nothing_stays() {
    let server = Server::start(&[]);
    let rows = json(&good(&[
        "bench",
        "io",
        &server.at("?transport=tcp"),
        "--op",
        "read,write,stat,create,openread,remove",
        "--size",
        "4k",
        "--depth",
        "4",
        "--wait",
        "sleeping",
        "--file-size",
        "1m",
        "--seconds",
        "0.04",
        "--json",
    ]));
    assert_eq!(rows.len(), 6);
    for row in &rows {
        let op = row["op"].as_str().expect("text");
        assert!(row["ops"].as_u64().expect("number") > 0, "{row}");
        assert!(row["raw_p50_us"].as_f64().expect("measured") > 0.0, "{row}");
        assert_eq!(row["ratio"].is_null(), matches!(op, "stat" | "remove"), "{row}");
        let trips = row["round_trips_per_op"].as_f64().expect("measured");
        assert!((0.9..1.5).contains(&trips), "{op}: {trips} round trips");
    }
    assert_eq!(rows[0]["server_copies_per_byte"], 0.0, "cached reads are not copied");
    let rows = json(&good(&[
        "bench",
        "postmark",
        &server.url,
        "--size",
        "4k",
        "--transactions",
        "100",
        "--wait",
        "sleeping",
        "--json",
    ]));
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row["ops"] == 100));
    assert_eq!(fs::read_dir(&server.directory).expect("there").count(), 0);
}

#[test]
fn an_interrupted_benchmark_removes_its_files() {
    let server = Server::start(&[]);
    let child = Command::new(env!("CARGO_BIN_EXE_dafs"))
        .args(["bench", "io", &server.url, "--seconds", "2m", "--file-size", "1m", "--json"])
        .spawn()
        .expect("starts");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while fs::read_dir(&server.directory).expect("there").count() == 0 {
        assert!(std::time::Instant::now() < deadline, "it did not begin");
        std::thread::yield_now();
    }
    interrupt(&child);
    let output = child.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert_eq!(fs::read_dir(&server.directory).expect("there").count(), 0);
}

#[test]
fn closed_pipes_end_a_listing_silently() {
    let server = Server::start(&[]);
    for number in 0..2000 {
        fs::write(server.file(&format!("{number:0>200}")), "").expect("file");
    }
    let script = format!("{} ls {} | head -1", env!("CARGO_BIN_EXE_dafs"), server.url);
    let output = Command::new("sh").args(["-c", &script]).output().expect("sh");
    assert_eq!(text(&output.stderr), "");
    assert_eq!(text(&output.stdout).lines().count(), 1);
    drop(dafs(&["version"]));
}

#[test]
fn urls_that_are_printed_work() {
    let own = fs::metadata("/proc/self").expect("there").uid().to_string();
    let options = ["--listen", "0.0.0.0:0", "--insecure", "--anon-uid", &own];
    let server = Server::start(&options);
    assert!(!server.url.contains("0.0.0.0"), "{}", server.url);
    fs::write(server.file("f"), "").expect("file");
    assert_eq!(good(&["ls", &server.url]), "f\n");
    let port = server.url.trim_end_matches('/').rsplit(':').next().expect("a port");
    for url in [&server.url, &format!("dafs://127.0.0.1:{port}/")] {
        assert_eq!(json(&good(&["status", "--json", url])).len(), 1, "{url}");
    }
    let temporary = Temporary::new();
    let mut command = common::binary();
    command.args(["serve", "--arena", "16m", "--listen", "unix:a socket", "--state", "state", "."]);
    let mut child =
        command.current_dir(&temporary.0).stdout(Stdio::piped()).spawn().expect("starts");
    let mut url = String::new();
    let out = child.stdout.as_mut().expect("piped");
    BufReader::new(out).read_line(&mut url).expect("a URL");
    let listed = dafs(&["ls", "-d", url.trim()]);
    interrupt(&child);
    child.wait().expect("ends");
    assert!(url.starts_with("dafs+unix:///") && url.contains("a%20socket"), "{url}");
    assert!(listed.status.success(), "{}", text(&listed.stderr));
}

#[test]
fn a_served_directory_that_is_gone_is_named() {
    let server = Server::start(&[]);
    fs::remove_dir(&server.directory).expect("removed");
    for arguments in [["ls", &server.url], ["touch", &server.at("x")]] {
        let said = bad(1, &arguments);
        assert!(said.contains("the served directory is gone"), "{said}");
    }
    fs::create_dir(&server.directory).expect("made again, for the end of the test");
}

#[test]
fn top_tells_servers_apart_by_what_they_serve() {
    let (one, two) = (Server::start(&[]), Server::start(&[]));
    let said = bad(2, &["top", "--once"]);
    for server in [&one, &two] {
        let line = said.lines().find(|line| line.contains(path(&server.directory)));
        let line = line.unwrap_or_else(|| panic!("{said}"));
        let port = line.split_whitespace().nth(2).expect("a port");
        let status = json(&good(&["status", "--json", port]));
        assert_eq!(status[0]["pid"], u64::from(server.child.id()));
    }
}
