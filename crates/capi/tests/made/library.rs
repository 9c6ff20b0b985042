//! The shared library as it was built for these tests.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Cargo puts it beside the tests.
pub fn path() -> PathBuf {
    let exe = std::env::current_exe().expect("this test");
    let deps = exe.parent().expect("deps");
    let beside = [deps.join("libdafs.so"), deps.join("../libdafs.so")];
    let found = beside.into_iter().find(|path| path.exists());
    found.expect("cargo built the library for this test")
}

fn output(program: &str, arguments: &[&str], file: &Path) -> String {
    let output = Command::new(program).args(arguments).arg(file).output().expect(program);
    assert!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// The names that it exports.
pub fn symbols() -> Vec<String> {
    let text = output("nm", &["-D", "--defined-only", "--format=posix"], &path());
    text.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect()
}

/// The name under which it is found.
pub fn soname() -> String {
    let text = output("readelf", &["-d"], &path());
    let line = text.lines().find(|line| line.contains("(SONAME)")).expect("a soname");
    let (_, name) = line.split_once('[').expect("a name in brackets");
    name.trim_end_matches(']').to_owned()
}
