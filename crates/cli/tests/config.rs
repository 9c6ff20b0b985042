//! Configuration files: made, checked, served.

mod common;

use std::fs;

use common::{Temporary, bad, good, path};

/// A directory to serve, and one for files.
struct Place {
    temporary: Temporary,
}

impl Place {
    fn new() -> Place {
        let temporary = Temporary::new();
        fs::create_dir(temporary.join("served")).expect("directory");
        Place { temporary }
    }

    fn served(&self) -> String {
        path(&self.temporary.join("served")).to_owned()
    }

    /// Makes a file by the command; its name.
    fn new_file(&self, more: &[&str]) -> String {
        let (directory, served) = (self.temporary.join("etc/dafs"), self.served());
        let mut arguments = vec!["config", "new", "--directory", path(&directory)];
        arguments.extend(more);
        arguments.extend(["data", served.as_str()]);
        let said = good(&arguments);
        said.lines().next().expect("the name of the file").to_owned()
    }

    /// Writes a file; its name.
    fn write(&self, text: &str) -> String {
        let file = self.temporary.join("x.toml");
        fs::write(&file, text).expect("written");
        path(&file).to_owned()
    }
}

#[test]
fn a_new_configuration_is_checked_and_served() {
    let place = Place::new();
    let file = place.new_file(&["--listen", "127.0.0.1:0"]);
    let plan = good(&["serve", "--config", &file, "--check-config"]);
    assert!(plan.starts_with(&format!("{file}: good\n")), "{plan}");
    assert!(plan.contains("would listen on tcp://127.0.0.1:0\n"), "{plan}");
    assert!(plan.contains(&format!("{} as /\n", place.served())), "{plan}");
    let written = fs::read_to_string(&file).expect("read");
    let again = bad(
        1,
        &["config", "new", "--directory", path(&place.temporary.join("etc/dafs")), "data", "/"],
    );
    assert!(again.contains("is there already"), "{again}");
    assert_eq!(fs::read_to_string(&file).expect("read"), written, "it is as it was");
    let state = place.temporary.join("state");
    let options = ["--config", &file, "--state", path(&state), "--arena", "64m"];
    let mut child = common::binary()
        .arg("serve")
        .args(options)
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("starts");
    let mut url = String::new();
    let out = child.stdout.as_mut().expect("piped");
    std::io::BufRead::read_line(&mut std::io::BufReader::new(out), &mut url).expect("a URL");
    let listed = common::dafs(&["ls", "-d", url.trim()]);
    common::interrupt(&child);
    assert_eq!(child.wait().expect("ends").code(), Some(0));
    assert!(listed.status.success(), "{}", common::text(&listed.stderr));
}

#[test]
fn a_new_configuration_needs_a_directory_and_a_name() {
    let place = Place::new();
    let etc = place.temporary.join("etc");
    let new = |name: &str, dir: &str| {
        ["config", "new", "--directory", path(&etc), name, dir].map(str::to_owned)
    };
    let missing = path(&place.temporary.join("missing")).to_owned();
    assert!(bad(1, &new("data", &missing)).contains(&format!("{missing}: no such file")));
    let file = place.write("");
    assert!(bad(1, &new("data", &file)).contains("not a directory"));
    assert!(bad(2, &new("../data", &place.served())).contains("expected letters"));
    assert!(!etc.exists(), "nothing was made");
}

#[test]
fn what_is_wrong_is_named_with_file_line_and_key() {
    let place = Place::new();
    let export = format!("[[export]]\npath = \"{}\"\n", place.served());
    for (code, text, said) in [
        (2, format!("colour = \"red\"\n{export}"), &["line 1", "colour", "expected one of"][..]),
        (
            2,
            format!("\narena_bytes = \"lots\"\n{export}"),
            &["line 2", "arena_bytes", "expected a size"],
        ),
        (2, format!("\narena_bytes = 1\n{export}"), &["line 2", "arena_bytes", "least is 16m"]),
        (2, format!("arena_bytes = \"900t\"\n{export}"), &["line 1", "this machine has"]),
        (2, format!("workers = 0\n{export}"), &["line 1", "'workers' is 0", "1 to 64"]),
        (2, format!("{export}[limits]\nslots = 0\n"), &["line 4", "'slots' is 0"]),
        (
            2,
            format!("{export}[limits]\nlease_seconds = \"soon\"\n"),
            &["line 4", "expected a time"],
        ),
        (2, format!("listen = [\n\"tcp://192.0.2.1:1\"]\n{export}"), &["line 2", "--key-file"]),
        (2, format!("admin = \"0.0.0.0:1\"\n{export}"), &["line 1", "loopback"]),
        (2, format!("key_file = \"/none\"\n{export}"), &["line 1", "key file /none"]),
        (2, "[limits]\n".to_owned(), &["nothing to serve"]),
        (1, "[[export]]\npath = \"/none\"\n".to_owned(), &["line 2", "/none: no such file"]),
    ] {
        let file = place.write(&text);
        let checked = bad(code, &["serve", "--config", &file, "--check-config"]);
        for word in said {
            assert!(checked.contains(word), "{text}{word}: {checked}");
        }
        let place_is_named = checked.contains(&file) || checked.contains("nothing to serve");
        assert!(place_is_named, "{checked}");
        // What is served is not looked at differently.
        let served = bad(code, &["serve", "--config", &file]);
        assert_eq!(served, checked);
    }
}

#[test]
fn options_are_checked_as_a_file_is() {
    let place = Place::new();
    let served = place.served();
    let plan = good(&["serve", "--check-config", "--arena", "64MiB", "--read-only", &served]);
    assert!(plan.starts_with("options: good\n") && plan.contains("cache: 64M"), "{plan}");
    assert!(plan.contains("read-only"), "{plan}");
    let said = bad(2, &["serve", "--arena", "1", &served]);
    assert!(said.contains("least is 16m"), "{said}");
    let said = bad(2, &["serve", "--arena", "900t", &served]);
    assert!(said.contains("--arena ") && said.contains("leaves room"), "{said}");
    assert_eq!(bad(2, &["serve", "--admin", "0.0.0.0:1", &served]).lines().count(), 1);
}

#[test]
fn the_reference_names_every_key() {
    let reference = good(&["config", "reference"]);
    let place = Place::new();
    let file = fs::read_to_string(place.new_file(&[])).expect("read");
    let keys = file.lines().filter_map(|line| line.split_once(" = ")).map(|(key, _)| key);
    let mut count = 0;
    for key in keys.map(|key| key.trim_start_matches('#')) {
        assert!(reference.contains(&format!("| `{key}` |")), "{key}");
        count += 1;
    }
    assert!(count > 30, "{count}");
}
