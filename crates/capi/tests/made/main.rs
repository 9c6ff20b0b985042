//! What is made from the sources and checked in: the header, the manual, the list of symbols. Each is
//! made again here and must be what is there. `DAFS_CAPI_WRITE=1` puts it there instead.

mod header;
mod library;
mod manual;

use std::path::{Path, PathBuf};

use header::header;

/// The crate's directory.
pub fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Sources that C sees, in the order of the header.
pub fn sources() -> Vec<PathBuf> {
    let api = [
        "error",
        "session",
        "file",
        "data",
        "name",
        "directory",
        "lock",
        "memory",
        "loan",
        "group",
    ];
    let api = api.map(|name| root().join(format!("src/api/{name}.rs")));
    let others = ["pointer", "border", "types"].map(|name| root().join(format!("src/{name}.rs")));
    others.into_iter().chain(api).collect()
}

/// Compares, or puts it there.
fn check(path: &Path, wanted: &str) {
    if std::env::var_os("DAFS_CAPI_WRITE").is_some() {
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("mkdir");
        std::fs::write(path, wanted).expect("written");
        return;
    }
    let there = std::fs::read_to_string(path).unwrap_or_default();
    let file = path.display();
    assert!(
        there == wanted,
        "{file} is not what the sources say: DAFS_CAPI_WRITE=1 cargo test -p dafs-capi --test made"
    );
}

#[test]
fn the_header_is_that_of_the_sources() {
    check(&root().join("include/dafs.h"), &header());
}

#[test]
fn the_manual_is_that_of_the_sources() {
    let pages = manual::pages(&header());
    for (name, text) in &pages {
        check(&root().join("man").join(name), text);
    }
    let there = std::fs::read_dir(root().join("man")).expect("man");
    for entry in there {
        let name = entry.expect("entry").file_name().into_string().expect("text");
        assert!(pages.iter().any(|(page, _)| *page == name), "man/{name} is of no function");
    }
}

#[test]
fn the_library_exports_its_functions_and_nothing_else() {
    let mut symbols = library::symbols();
    symbols.sort();
    check(&root().join("symbols.txt"), &(symbols.join("\n") + "\n"));
    let mut declared = manual::functions(&header());
    declared.sort();
    assert_eq!(symbols, declared, "the header and the library differ");
}

#[test]
fn the_library_has_its_soname() {
    assert_eq!(library::soname(), "libdafs.so.0");
}
