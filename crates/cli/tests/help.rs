//! What teaches the command line: help, man pages, completions.

mod common;

use std::process::Command;

use common::{Temporary, bad, dafs, good, path, program, text};

/// The commands that `dafs --help` lists.
fn commands() -> Vec<String> {
    let help = good(&["--help"]);
    let list = help.split("Commands:\n").nth(1).and_then(|rest| rest.split("\n\n").next());
    let lines = list.expect("a list of commands").lines();
    let words = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    words.filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

#[test]
fn each_command_has_help_and_a_man_page() {
    let pages = Temporary::new();
    good(&["man-pages", path(&pages.0)]);
    let main = std::fs::read_to_string(pages.join("dafs.1")).expect("dafs.1");
    let commands = commands();
    assert!(commands.len() > 20, "{commands:?}");
    for command in commands.iter().filter(|command| *command != "help") {
        let help = good(&[command, "--help"]);
        assert_eq!(help, good(&["help", command]));
        let page =
            std::fs::read_to_string(pages.join(&format!("dafs-{command}.1"))).expect(command);
        assert!(page.contains(".SH EXAMPLES\n.nf\n") && page.contains(".TH"), "{command}");
        assert!(main.contains(&format!("dafs\\-{command}(1)")), "{command} is not in dafs(1)");
    }
    assert!(pages.join("dafs-cache-show.1").exists(), "also of commands of commands");
}

#[test]
fn pages_are_what_man_can_set() {
    let pages = Temporary::new();
    good(&["man-pages", path(&pages.0)]);
    // A stand-in that some small systems have does nothing.
    let is_real = program("man", &["--version"]).is_some_and(|said| said.starts_with("man "));
    if !is_real {
        println!("no man(1) here: the pages are looked at by their text alone");
        return;
    }
    let mount = pages.join("dafs-mount.1");
    let set = Command::new("man").args(["--warnings", "-l"]).arg(mount).output().expect("man");
    let (page, said) = (text(&set.stdout), text(&set.stderr));
    assert!(set.status.success() && said.is_empty(), "{said}");
    assert!(page.contains("dafs mount dafs://server/ /mnt/data"), "{page}");
}

#[test]
fn shells_take_the_completions() {
    let scripts = Temporary::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = good(&["completion", shell]);
        assert!(script.contains("human-readable"), "{shell}");
        let file = scripts.join(shell);
        std::fs::write(&file, script).expect("written");
        // Where the shell is here, it says whether this is its language.
        if let Ok(checked) = Command::new(shell).arg("-n").arg(&file).output() {
            assert!(checked.status.success(), "{shell}: {}", text(&checked.stderr));
        }
    }
    let completed = Command::new("bash")
        .arg("-c")
        .arg("source \"$1\"; COMP_WORDS=(dafs um); COMP_CWORD=1; _dafs dafs um dafs; echo \"${COMPREPLY[@]}\"")
        .arg("bash")
        .arg(scripts.join("bash"))
        .output()
        .expect("bash");
    assert_eq!(text(&completed.stdout), "umount\n", "{}", text(&completed.stderr));
    assert!(bad(2, &["completion", "csh"]).contains("[possible values: bash, zsh, fish]"));
}

#[test]
fn a_letter_means_the_same_for_all_commands() {
    for command in commands().into_iter().filter(|command| command != "help") {
        let help = good(&["help", &command]);
        let of = |letter: &str| {
            help.lines().find_map(|line| line.trim_start().strip_prefix(letter)).map(str::to_owned)
        };
        for (letter, long) in [("-q, ", "--quiet"), ("-v, ", "--verbose")] {
            let meaning = of(letter).unwrap_or_default();
            assert!(meaning.starts_with(long), "{command} {letter}: {meaning}");
        }
        let sizes = of("-h, ").is_none_or(|rest| {
            rest.starts_with("--human-readable") || rest.starts_with("--no-dereference")
        });
        assert!(sizes, "{command} -h");
    }
    let said = text(&dafs(&["rm", "-h"]).stderr);
    assert!(said.contains("'-h'") && said.contains("try '--help'"), "{said}");
}

#[test]
fn the_version_names_the_commit() {
    let version: serde_json::Value =
        serde_json::from_str(&good(&["version", "--json"])).expect("JSON");
    let commit = version["commit"].as_str().expect("a text");
    assert!(!commit.is_empty() && good(&["version"]).contains(&format!("commit {commit},")));
}
