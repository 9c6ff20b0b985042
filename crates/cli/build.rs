//! Which commit this is of: `DAFS_COMMIT` in the environment, what git says, or the file `COMMIT` of an
//! archive of the sources.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    tell("cargo:rerun-if-env-changed=DAFS_COMMIT");
    tell("cargo:rerun-if-changed=build.rs");
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let given = std::env::var("DAFS_COMMIT").ok();
    let commit = given.or_else(|| of_git(&root)).or_else(|| of_file(&root)).unwrap_or_default();
    // One word: it becomes a part of what this program prints.
    let word = |c: &char| c.is_ascii_alphanumeric() || "-._+".contains(*c);
    let commit: String = commit.trim().chars().take_while(word).take(100).collect();
    let commit = if commit.is_empty() { "unknown" } else { &commit };
    tell(&format!("cargo:rustc-env=DAFS_BUILD_COMMIT={commit}"));
}

/// Of these sources, not of a repository that they happen to lie in.
fn of_git(root: &Path) -> Option<String> {
    let top = PathBuf::from(git(root, &["rev-parse", "--show-toplevel"])?);
    if top.canonicalize().ok()? != root.canonicalize().ok()? {
        return None;
    }
    if let Some(log) = git(root, &["rev-parse", "--git-path", "logs/HEAD"]) {
        let log = root.join(log);
        if log.exists() {
            tell(&format!("cargo:rerun-if-changed={}", log.display()));
        }
    }
    git(root, &["describe", "--tags", "--always", "--abbrev=12"])
}

fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let output = Command::new("git").arg("-C").arg(root).args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    (output.status.success() && !text.trim().is_empty()).then(|| text.trim().to_owned())
}

fn of_file(root: &Path) -> Option<String> {
    let file = root.join("COMMIT");
    let text = std::fs::read_to_string(&file).ok()?;
    tell(&format!("cargo:rerun-if-changed={}", file.display()));
    Some(text)
}

/// To cargo.
fn tell(line: &str) {
    writeln!(std::io::stdout(), "{line}").expect("cargo reads what a build script says");
}
