//! The examples of a page.

/// How a line begins that is a command, in a block without `$ `.
pub(crate) const COMMANDS: &[&str] = &[
    "dafs",
    "make",
    "head",
    "chmod",
    "chown",
    "export",
    "PATH=$PATH:$PWD/target/release",
    "git",
    "cargo",
    "sudo",
    "apt",
    "apt-get",
    "systemctl",
    "pip",
    "python",
    "python3",
    "cc",
    "man",
    "bash",
    "cp",
    "mkdir",
];

/// Commands that are no examples to run here, and why.
pub(crate) const NOT_HERE: &[(&str, &str)] = &[
    ("make serve", ""),
    ("make", "builds or tests all"),
    ("cargo", "builds"),
    ("sudo", "changes this machine"),
    ("apt", "changes this machine"),
    ("apt-get", "changes this machine"),
    ("systemctl", "changes this machine"),
    ("pip", "changes this machine"),
    ("python", "needs a package that is not part of the build"),
    ("python3", "needs a package that is not part of the build"),
    ("cc", "needs what an installation brings"),
    ("man", "needs what an installation brings"),
    ("scripts/", "has a step of its own in the tests, or takes long"),
    ("target/release/", "takes long"),
    ("bash tests/", "takes long"),
];

/// A command of a page.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Example {
    /// Where it stands.
    pub(crate) line: usize,
    /// Without `$ ` and comment.
    pub(crate) command: String,
    /// What stands below it.
    pub(crate) shown: Vec<String>,
    /// It belongs to a block that mounts.
    pub(crate) mounts: bool,
}

/// What a page has to be run.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) examples: Vec<Example>,
    /// The others, each with line and reason.
    pub(crate) not_run: Vec<String>,
}

#[derive(Debug, Default)]
struct Block {
    lines: Vec<(usize, String)>,
    reason: Option<String>,
}

impl Page {
    pub(crate) fn read(text: &str) -> Page {
        let mut page = Page::default();
        for block in blocks(text) {
            page.add(&block);
        }
        for (index, line) in text.lines().enumerate().filter(|(_, line)| line.starts_with('|')) {
            let commands = line.split('`').skip(1).step_by(2);
            let commands =
                commands.filter(|code| code.starts_with("dafs ") && code.contains("URL"));
            page.examples.extend(commands.map(|code| Example {
                line: index + 1,
                command: code.into(),
                shown: Vec::new(),
                mounts: false,
            }));
        }
        page
    }

    fn add(&mut self, block: &Block) {
        let is_session = block.lines.iter().any(|(_, line)| line.starts_with("$ "));
        let mut examples = Vec::<Example>::new();
        for (line, text) in &block.lines {
            let command = match text.strip_prefix("$ ") {
                Some(command) => Some(command),
                None => Some(text.as_str()).filter(|text| !is_session && is_command(text)),
            };
            if let Some(command) = command {
                let command = without_comment(command.trim_start()).to_owned();
                examples.push(Example { line: *line, command, shown: Vec::new(), mounts: false });
            } else if let Some(example) = examples.last_mut().filter(|_| is_session) {
                example.shown.push(text.clone());
            }
        }
        let mounts = examples.iter().any(|example| example.command.contains("dafs mount"));
        for mut example in examples {
            example.mounts = mounts;
            let reason = block.reason.clone().or_else(|| not_here(&example.command));
            match reason {
                Some(reason) => {
                    let Example { line, command, .. } = example;
                    self.not_run.push(format!("line {line}: {command} ({reason})"));
                }
                None => self.examples.push(example),
            }
        }
    }
}

fn is_command(text: &str) -> bool {
    let first = text.split_whitespace().next().unwrap_or_default();
    COMMANDS.contains(&first)
        || first.starts_with("scripts/")
        || first.starts_with("target/release/")
}

fn not_here(command: &str) -> Option<String> {
    let begins = |word: &str| {
        let rest = command.strip_prefix(word);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(' ') || word.ends_with('/'))
    };
    let (_, reason) = NOT_HERE.iter().find(|(word, _)| begins(word))?;
    Some(reason.to_string()).filter(|reason| !reason.is_empty())
}

fn without_comment(command: &str) -> &str {
    command.split(" # ").next().unwrap_or(command).trim_end()
}

/// Blocks between fences, and those indented by four blanks after an empty line.
fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let mut reason = None;
    let mut fenced = false;
    let mut open: Option<Block> = None;
    let mut empty_before = true;
    for (index, line) in text.lines().enumerate() {
        let number = index + 1;
        let code = if fenced { Some(line) } else { line.strip_prefix("    ") };
        if line.trim_start().starts_with("```") {
            blocks.extend(open.take());
            fenced = !fenced;
            open = fenced.then(|| Block { lines: Vec::new(), reason: reason.take() });
        } else if let Some(code) = code.filter(|_| fenced || open.is_some() || empty_before) {
            let block =
                open.get_or_insert_with(|| Block { lines: Vec::new(), reason: reason.take() });
            block.lines.push((number, code.to_owned()));
        } else if !line.trim().is_empty() {
            blocks.extend(open.take());
            let comment =
                line.strip_prefix("<!-- not run: ").and_then(|rest| rest.strip_suffix(" -->"));
            reason = comment.map(str::to_owned);
        }
        empty_before = line.trim().is_empty();
    }
    blocks.extend(open);
    blocks
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = "# Title

    $ dafs ls URL   # all of it
    a.txt

    b.txt
    $ dafs rm URL

- a list

        dafs of a list

text
    dafs is no example within a paragraph

    dafs mount dafs://localhost/ /mnt/data
    some table
    dafs umount /mnt/data

<!-- not run: it waits for a key -->

    dafs top

```console
$ sudo dafs serve /srv
$ make serve DIR=/srv/data
```

| what | `dafs bench io URL --op read` | `dafs bench raw` |
";

    #[test]
    fn examples_are_found_with_what_they_print() {
        let page = Page::read(PAGE);
        let found: Vec<_> =
            page.examples.iter().map(|e| (e.line, e.command.as_str(), e.mounts)).collect();
        let expected = [
            (3, "dafs ls URL", false),
            (7, "dafs rm URL", false),
            (11, "dafs of a list", false),
            (16, "dafs mount dafs://localhost/ /mnt/data", true),
            (18, "dafs umount /mnt/data", true),
            (26, "make serve DIR=/srv/data", false),
            (29, "dafs bench io URL --op read", false),
        ];
        assert_eq!(found, expected);
        assert_eq!(page.examples[0].shown, ["a.txt", "b.txt"]);
        assert_eq!(page.examples[1].shown, Vec::<String>::new());
        assert_eq!(
            page.not_run,
            [
                "line 22: dafs top (it waits for a key)",
                "line 25: sudo dafs serve /srv (changes this machine)"
            ]
        );
    }
}
