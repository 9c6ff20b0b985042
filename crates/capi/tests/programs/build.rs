//! Compiling and running programs in C.

use std::path::{Path, PathBuf};
use std::process::Command;

/// A program that was compiled, in a directory that goes with it.
pub struct Build {
    directory: tempfile::TempDir,
    program: PathBuf,
}

/// Where cargo puts the library that these tests use.
fn library() -> PathBuf {
    let exe = std::env::current_exe().expect("this test");
    let deps = exe.parent().expect("deps");
    let places = [deps.to_path_buf(), deps.join("..")];
    let found = places.into_iter().find(|place| place.join("libdafs.so").exists());
    found.expect("cargo built the library for this test")
}

impl Build {
    /// One of `tests/c`.
    pub fn test(name: &str) -> Build {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        Build::of(&root.join(format!("tests/c/{name}.c")))
    }

    /// One of `examples/c`.
    pub fn example(name: &str) -> Build {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        Build::of(&root.join(format!("../../examples/c/{name}.c")))
    }

    /// One of `tests/c`, with a compiler that has the program look at its memory.
    pub fn sanitized(name: &str) -> Build {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        Build::with(&root.join(format!("tests/c/{name}.c")), &["-fsanitize=address,undefined"])
    }

    /// Any.
    pub fn of(source: &Path) -> Build {
        Build::with(source, &[])
    }

    fn with(source: &Path, flags: &[&str]) -> Build {
        let directory = tempfile::tempdir().expect("a directory");
        let program = directory.path().join("program");
        let library = library();
        // The name under which the program will look for it.
        let shared = directory.path().join("libdafs.so.0");
        std::os::unix::fs::symlink(library.join("libdafs.so"), &shared).expect("a link");
        let include = Path::new(env!("CARGO_MANIFEST_DIR")).join("include");
        let mut cc = Command::new("cc");
        cc.args(["-std=c11", "-D_GNU_SOURCE", "-O1", "-g", "-Wall", "-Wextra", "-Werror"]);
        cc.args(["-pedantic", "-pthread"]);
        cc.args(flags).arg("-I").arg(include).arg(source).arg("-o").arg(&program);
        cc.arg(&shared);
        run(&mut cc);
        Build { directory, program }
    }

    /// Runs it.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.env("LD_LIBRARY_PATH", self.directory.path());
        // Looking for leaks takes rights that containers may not have.
        command.env("ASAN_OPTIONS", "detect_leaks=0");
        command
    }

    /// Runs it and looks at its memory: an error is a failure.
    pub fn under_valgrind(&self) -> Command {
        let mut command = Command::new("valgrind");
        command.args(["--quiet", "--error-exitcode=99", "--child-silent-after-fork=no"]);
        command.args(["--leak-check=no", "--fair-sched=yes"]).arg(&self.program);
        command.env("LD_LIBRARY_PATH", self.directory.path());
        command
    }
}

/// The examples, made as their `Makefile` does for a library that was installed; where they are.
pub fn installed_examples() -> tempfile::TempDir {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let directory = tempfile::tempdir().expect("a directory");
    let at = directory.path();
    for name in ["Makefile", "copy.c", "list.c", "sum.c"] {
        let example = root.join("../../examples/c").join(name);
        std::fs::copy(example, at.join(name)).expect("copied");
    }
    for name in ["libdafs.so", "libdafs.so.0"] {
        let shared = library().join("libdafs.so");
        std::os::unix::fs::symlink(shared, at.join(name)).expect("a link");
    }
    let template = std::fs::read_to_string(root.join("dafs.pc.in")).expect("dafs.pc.in");
    let place = at.display().to_string();
    let pc = template
        .replace("@PREFIX@", &place)
        .replace("@LIBDIR@", &place)
        .replace("@INCLUDEDIR@", &root.join("include").display().to_string())
        .replace("@VERSION@", env!("CARGO_PKG_VERSION"));
    std::fs::write(at.join("dafs.pc"), pc).expect("written");
    let mut make = Command::new("make");
    make.arg("--silent").current_dir(at).env("PKG_CONFIG_PATH", at);
    // Not what a make around this test says.
    make.env_remove("MAKEFLAGS").env_remove("MAKELEVEL");
    run(&mut make);
    directory
}

/// Runs to its end, which must be good; what it printed.
pub fn run(command: &mut Command) -> String {
    let output = command.output().expect("the program starts");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}\n{errors}", output.status);
    // Nothing of the library prints.
    assert_eq!(errors, "", "{command:?}");
    String::from_utf8(output.stdout).expect("text")
}
