//! `dafs config reference`: every key, as `docs/configuration.md` has it.

use std::fmt::Write;

use dafs_server::{ConfigKey, KEYS, Section};

use crate::failure::Failure;
use crate::output::Output;

/// Print every key of configuration files: meaning, values, default.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  dafs config reference | less")]
pub struct Args {}

const HEAD: &str = "\
# Configuration

`dafs config new NAME DIR` writes `/etc/dafs/NAME.toml`, in which every key stands with its meaning;
`dafs serve --config FILE` reads it, and `dafs serve --config FILE --check-config` says what is wrong with it,
with line and key, or what the server would do. The file is TOML. A key that is not known is an error. Options
of the command line win; a directory there takes the place of all `[[export]]`.

Sizes are numbers of bytes, or text with a unit: `\"4096\"`, `\"4k\"`, `\"1.5m\"`, `\"2g\"`, `\"1TiB\"` (powers of
1024, small or capital letters). Times are seconds, or text with a unit: `\"500ms\"`, `\"30s\"`, `\"2m\"`, `\"1h\"`, `\"1d\"`.
The same holds for options and URLs.

    listen = [\"tcp://127.0.0.1:20490\", \"unix:/run/dafs-music.sock\"]
    arena_bytes = \"4g\"

    [[export]]
    name = \"music\"
    path = \"/srv/music\"
    read_only = true

    [[export]]
    name = \"work\"
    path = \"/srv/work\"

    [limits]
    sessions_per_user = 64
    lease_seconds = \"30s\"
";

const TAIL: &str = "
## In the environment

| variable | meaning |
| --- | --- |
| `DAFS_KEY_FILE` | stands for `--key-file` of commands that connect and of mounts; an option wins |
| `DAFS_LOG` | stands for `--log` of servers and mounts: `error`, `warn` (default), `info`, `debug`, `trace`, or a filter such as `dafs_server=debug` |
";

/// Runs the command.
///
/// # Errors
/// Standard output's.
pub fn run(_: &Args) -> Result<(), Failure> {
    let mut out = Output::new();
    out.bytes(text().as_bytes())?;
    Ok(out.flush()?)
}

fn text() -> String {
    let mut text = String::from(HEAD);
    for (section, heading) in [
        (Section::Server, "The server"),
        (Section::Export, "Each directory: `[[export]]`"),
        (Section::Limits, "Limits: `[limits]`"),
    ] {
        let _ = write!(text, "\n## {heading}\n\n");
        text.push_str("| key | default | values | meaning |\n| --- | --- | --- | --- |\n");
        for key in KEYS.iter().filter(|key| key.section == section) {
            text.push_str(&row(key));
        }
    }
    text.push_str(TAIL);
    text
}

fn row(key: &ConfigKey) -> String {
    let default =
        if key.default.is_empty() { format!("`{}`", key.value) } else { key.default.to_owned() };
    format!("| `{}` | {default} | {} | {} |\n", key.name, key.range, key.meaning)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `dafs config reference > docs/configuration.md` writes it.
    #[test]
    fn the_documentation_is_the_table() {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/configuration.md");
        let written = std::fs::read_to_string(file).expect("docs/configuration.md");
        assert!(written == text(), "dafs config reference > docs/configuration.md");
    }
}
