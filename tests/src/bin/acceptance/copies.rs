//! Bar 2: trees survive the way to the server and back.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use dafs_tests::tree::{Keep, differences, make_odd, pattern};
use dafs_tests::{Served, run_ok};

use crate::{Line, Mode};

const MIB: u64 = 1 << 20;

pub(crate) fn trees(mode: Mode) -> Vec<Line> {
    let work = tempfile::tempdir().expect("tempdir");
    let (source, served, back) =
        (work.path().join("odd"), work.path().join("served"), work.path().join("back"));
    make_odd(&source, mode.pick(1000, 20_000)).expect("tree");
    let big = mode.pick(192 * MIB, 5 * 1024 * MIB);
    write_big(&source.join("larger-than-the-arena"), big);
    fs::create_dir(&served).expect("mkdir");
    let arena = mode.pick(64 * MIB, 1024 * MIB);
    let server = Served::start(&served, &["--arena", &format!("{}m", arena / MIB)]);
    let mut lines = vec![there_and_back(&server, &source, &back, "an odd tree")];
    fs::remove_dir_all(&back).expect("remove");
    if mode.long {
        let usr = Path::new("/usr");
        lines.push(there_and_back(&server, usr, &back, "/usr"));
    }
    let peak = server.peak_resident_bytes();
    let bound = arena + 128 * MIB;
    let measured = format!("{} MiB (arena {} MiB)", peak / MIB, arena / MIB);
    lines.push(
        Line::new("trees", "the server's peak of resident and shared memory", "≤ arena + 128 MiB")
            .measured(measured, peak <= bound),
    );
    lines
}

fn there_and_back(server: &Served, source: &Path, back: &Path, name: &str) -> Line {
    let from = source.display().to_string();
    let to = back.display().to_string();
    run_ok(&["cp", "-r", &from, &server.at("tree")]);
    run_ok(&["cp", "-r", &server.at("tree"), &to]);
    let owners = nix::unistd::geteuid().is_root();
    let keep = Keep { owners, holes: true };
    let (entries, mut found) = differences(source, back, keep).expect("compare");
    let (_, there) = differences(source, &server.dir.join("tree"), keep).expect("compare");
    found.extend(there);
    run_ok(&["rm", "-r", &server.at("tree")]);
    let measured = match found.first() {
        None => format!("{entries} entries, no difference"),
        Some(first) => format!("{entries} entries, {} differences: {first}", found.len()),
    };
    let what = format!("dafs cp -r of {name} to the server and back");
    Line::new("trees", &what, "identical").measured(measured, found.is_empty())
}

fn write_big(path: &Path, bytes: u64) {
    let mut file = File::create(path).expect("create");
    let piece = pattern(7, 1 << 20);
    for i in 0..bytes / MIB {
        file.write_all(&piece).expect("write");
        // No two pieces are alike.
        file.write_all_at(&i.to_le_bytes(), i * MIB).expect("write");
    }
}
