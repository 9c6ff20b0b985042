//! Commands that look at files and change whose they are, as those of coreutils do.

mod common;

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, ChildStdout, Stdio};
use std::time::{Duration, SystemTime};

use common::{Server, bad, dafs, good, is_root, json, text};

#[test]
fn the_beginning_of_files_is_printed() {
    let server = Server::start(&[]);
    let lines: String = (1..=30_000).map(|n| format!("line {n}\n")).collect();
    fs::write(server.file("long"), &lines).expect("file");
    fs::write(server.file("short"), "one\ntwo").expect("file");
    fs::write(server.file("empty"), "").expect("file");
    let head = |options: &[&str], names: &[&str]| {
        let urls: Vec<String> = names.iter().map(|name| server.at(name)).collect();
        let urls = urls.iter().map(String::as_str);
        good(&["head"].into_iter().chain(options.iter().copied()).chain(urls).collect::<Vec<_>>())
    };
    assert_eq!(head(&[], &["long"]).lines().count(), 10);
    assert_eq!(
        head(&["-n", "20000"], &["long"]),
        lines[..lines.find("line 20001").expect("there")]
    );
    assert_eq!(head(&["-n", "0"], &["long"]), "");
    assert_eq!(head(&["-c", "100k"], &["long"]), lines[..100 << 10]);
    assert_eq!(head(&[], &["short"]), "one\ntwo");
    let (one, two) = (server.at("short"), server.at("empty"));
    assert_eq!(head(&[], &["short", "empty"]), format!("==> {one} <==\none\ntwo\n==> {two} <==\n"));
    assert_eq!(head(&["-q"], &["short", "empty"]), "one\ntwo");
    assert_eq!(head(&["-v"], &["empty"]), format!("==> {two} <==\n"));
    assert!(bad(1, &["head", &server.at("none")]).contains("no such file"));
    assert!(bad(1, &["head", &server.url]).contains("is a directory"));
}

#[test]
fn the_end_of_files_is_printed() {
    let server = Server::start(&[]);
    let lines: String = (1..=30_000).map(|n| format!("line {n}\n")).collect();
    fs::write(server.file("long"), &lines).expect("file");
    fs::write(server.file("short"), "one\ntwo\n\nthree").expect("file");
    let tail = |options: &[&str], name: &str| {
        let url = server.at(name);
        good(&["tail"].iter().chain(options).copied().chain([url.as_str()]).collect::<Vec<_>>())
    };
    assert_eq!(tail(&[], "long"), lines[lines.find("line 29991").expect("there")..]);
    assert_eq!(tail(&["-n", "20000"], "long"), lines[lines.find("line 10001").expect("there")..]);
    assert_eq!(tail(&["-n", "+20001"], "long"), lines[lines.find("line 20001").expect("there")..]);
    assert_eq!(tail(&["-n", "99999"], "long"), lines);
    assert_eq!(tail(&["-n", "+99999"], "long"), "");
    assert_eq!(tail(&["-c", "100k"], "long"), lines[lines.len() - (100 << 10)..]);
    assert_eq!(tail(&["-c", "+3"], "short"), "e\ntwo\n\nthree");
    assert_eq!(tail(&["-c", "+18446744073709551615"], "short"), "");
    for (count, rest) in [("0", ""), ("1", "three"), ("2", "\nthree"), ("3", "two\n\nthree")] {
        assert_eq!(tail(&["-n", count], "short"), rest, "{count}");
    }
}

/// `dafs tail -f`, which ends with this.
struct Tail {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Tail {
    fn start(url: &str) -> Tail {
        let mut command = common::binary();
        command.args(["tail", "-f", "--interval", "10ms", url]);
        let mut child =
            command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("starts");
        let out = BufReader::new(child.stdout.take().expect("piped"));
        Tail { child, out }
    }

    /// Waits for a line.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("a line");
        line
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn append(file: &std::path::Path, text: &str) {
    let mut file = fs::File::options().append(true).create(true).open(file).expect("open");
    std::io::Write::write_all(&mut file, text.as_bytes()).expect("write");
}

#[test]
fn the_end_of_a_file_is_followed_over_its_replacement() {
    let server = Server::start(&[]);
    let file = server.file("log");
    fs::write(&file, "old\n").expect("file");
    let mut tail = Tail::start(&server.at("log"));
    assert_eq!(tail.line(), "old\n");
    append(&file, "more\n");
    assert_eq!(tail.line(), "more\n");
    // As logrotate does it.
    fs::rename(&file, server.file("log.1")).expect("rename");
    append(&file, "new\n");
    assert_eq!(tail.line(), "new\n");
    fs::write(&file, "").expect("empty");
    let mut said = BufReader::new(tail.child.stderr.take().expect("piped"));
    let mut notes = String::new();
    while !notes.contains("became shorter") {
        assert!(said.read_line(&mut notes).expect("a note") > 0, "{notes}");
    }
    append(&file, "again\n");
    assert_eq!(tail.line(), "again\n");
    fs::remove_file(&file).expect("remove");
    while !notes.contains("waiting for it") {
        assert!(said.read_line(&mut notes).expect("a note") > 0, "{notes}");
    }
    append(&file, "back\n");
    assert_eq!(tail.line(), "back\n");
    assert!(notes.contains("was replaced"), "{notes}");
    common::interrupt(&tail.child);
    assert_eq!(tail.child.wait().expect("ends").code(), Some(130));
    let mut rest = String::new();
    tail.out.read_to_string(&mut rest).expect("read");
    assert_eq!(rest, "");
}

#[test]
fn files_are_listed_in_other_orders() {
    let server = Server::start(&[]);
    for (name, bytes, age) in [("a", 10, 300), ("b", 1000, 100), ("c", 100, 200)] {
        let file = fs::File::create(server.file(name)).expect("file");
        file.set_len(bytes).expect("length");
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).expect("time");
    }
    fs::write(server.file("\u{1b}[2J\u{202e}x"), "").expect("a name for a terminal");
    let ls = |options: &str| {
        let listed = good(&["ls", options, &server.url]);
        listed.lines().filter(|line| line.len() == 1).collect::<String>()
    };
    for (options, order) in
        [("-1", "abc"), ("-r", "cba"), ("-t", "bca"), ("-tr", "acb"), ("-S", "bca"), ("-Sr", "acb")]
    {
        assert_eq!(ls(options), order, "{options}");
    }
    let shown = good(&["ls", &server.url]);
    assert!(shown.starts_with("\\x1b[2J\\xe2\\x80\\xaex\n"), "{shown}");
    assert!(bad(2, &["ls", "-tU", &server.url]).contains("cannot be used with"));
}

#[test]
fn files_are_found_by_age_and_size_and_removed() {
    let server = Server::start(&[]);
    fs::create_dir_all(server.file("x/y")).expect("directories");
    fs::create_dir_all(server.file("x/none")).expect("directories");
    for (name, bytes, age) in
        [("x/big", 9000, 500), ("x/y/new.log", 10, 0), ("x/y/old.log", 10, 500)]
    {
        let file = fs::File::create(server.file(name)).expect("file");
        file.set_len(bytes).expect("length");
        file.set_modified(SystemTime::now() - Duration::from_secs(age)).expect("time");
    }
    fs::write(server.file("x/y/nothing"), "").expect("file");
    let mark = fs::File::create(server.file("mark")).expect("file");
    mark.set_modified(SystemTime::now() - Duration::from_secs(300)).expect("time");
    let find = |options: &[&str]| {
        let url = server.at("x");
        let all = ["find", "--paths", url.as_str()].into_iter().chain(options.iter().copied());
        let mut found: Vec<String> =
            good(&all.collect::<Vec<_>>()).lines().map(str::to_owned).collect();
        found.sort();
        found
    };
    let mark_url = server.at("mark");
    let mark_file = common::path(&server.file("mark")).to_owned();
    for mark in [&mark_url, &mark_file] {
        assert_eq!(find(&["-newer", mark, "-type", "f"]), ["x/y/new.log", "x/y/nothing"]);
    }
    assert_eq!(
        find(&["--smaller", "9000", "--type", "f", "--larger", "9"]),
        ["x/y/new.log", "x/y/old.log"]
    );
    assert_eq!(find(&["-empty"]), ["x/none", "x/y/nothing"]);
    assert_eq!(find(&["-empty", "-delete"]), [""; 0]);
    assert!(!server.file("x/none").exists() && !server.file("x/y/nothing").exists());
    let removed = find(&["-v", "-name", "*.log", "-delete"]);
    assert_eq!(removed.len(), 2, "{removed:?}");
    assert!(find(&["-maxdepth", "0", "-empty", "-delete"]).is_empty() && server.file("x").exists());
    for number in 0..500 {
        fs::write(server.file(&format!("x/y/{number}")), "").expect("file");
    }
    find(&["-delete"]);
    assert!(!server.file("x").exists());
    assert!(bad(2, &["find", &server.url, "--delete"]).contains("rm -r --force"));
    good(&["find", &server.url, "--empty", "--delete"]);
    assert!(!server.file("mark").exists() && server.directory.exists());
}

#[test]
fn owners_are_changed() {
    if !is_root() {
        println!("skipped: needs root");
        return;
    }
    let server = Server::start(&[]);
    fs::create_dir(server.file("d")).expect("directory");
    fs::write(server.file("d/f"), "").expect("file");
    std::os::unix::fs::symlink("f", server.file("d/l")).expect("link");
    let of = |name: &str| {
        let meta = fs::symlink_metadata(server.file(name)).expect("there");
        (meta.uid(), meta.gid())
    };
    good(&["chown", "7:8", &server.at("d/l")]);
    assert_eq!((of("d/f"), of("d/l")), ((7, 8), (0, 0)));
    good(&["chown", "-h", ":9", &server.at("d/l")]);
    assert_eq!((of("d/f"), of("d/l")), ((7, 8), (0, 9)));
    let said = good(&["chown", "-v", "-R", "12:root", &server.at("d")]);
    assert_eq!([of("d"), of("d/f"), of("d/l")], [(12, 0); 3]);
    assert_eq!(said.lines().filter(|line| line.ends_with(" is now of 12:0")).count(), 3, "{said}");
    assert!(bad(2, &["chown", "no-such-user", &server.url]).contains("no user 'no-such-user'"));
    assert!(bad(1, &["chown", "1", &server.at("none")]).contains("no such file"));
}

#[test]
fn what_is_done_is_said_with_v_only() {
    let server = Server::start(&[]);
    let url = |path: &str| server.at(path);
    for (arguments, said) in [
        (vec!["mkdir", "-p", "a/b"], "made {}a\nmade {}a/b\n"),
        (vec!["touch", "a/f"], "made {}a/f\n"),
        (vec!["touch", "a/f"], "touched {}a/f\n"),
        (vec!["chmod", "600", "a/f"], "{}a/f: 0600, was 0644\n"),
        (vec!["mv", "a/f", "a/g"], "{}a/f -> {}a/g\n"),
        (vec!["rm", "-r", "a"], "removed {}a/g\nremoved {}a/b\nremoved {}a\n"),
    ] {
        let with = |letter: &str| {
            let mut all = vec![arguments[0].to_owned(), letter.to_owned()];
            for argument in &arguments[1..] {
                let is_path = argument.starts_with('a');
                all.push(if is_path { url(argument) } else { (*argument).to_owned() });
            }
            dafs(&all)
        };
        let done = with("-v");
        assert_eq!(text(&done.stdout), said.replace("{}", &server.url), "{}", text(&done.stderr));
        assert!(text(&done.stderr).contains("dafs: connected to "));
    }
    let quiet = dafs(&["mkdir", "-q", &url("b")]);
    assert!(quiet.status.success() && quiet.stdout.is_empty() && quiet.stderr.is_empty());
    assert!(bad(1, &["mkdir", "-q", &url("b")]).contains("file exists"), "failures are told");
    good(&["mkdir", &url("b/c")]);
    let said = bad(1, &["mv", &url("b"), &url("b/c")]);
    assert!(said.contains("into itself"), "{said}");
    assert_eq!(json(&good(&["ls", "--json", &url("b")])).len(), 1);
}
