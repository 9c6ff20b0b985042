//! Which names of a tree are copied: `--exclude` and `--include`.

use clap::{Arg, ArgAction, ArgMatches, Command};

use crate::text;

/// A pattern, and what becomes of what matches it.
#[derive(Debug, Clone)]
struct Rule {
    include: bool,
    /// Only directories.
    directory: bool,
    /// Matches the whole path below the top; otherwise the name alone, wherever it is.
    anchored: bool,
    parts: Vec<Vec<u8>>,
}

/// The patterns of a command line, in their order. The first that matches decides; what none
/// matches is copied.
#[derive(Debug, Clone, Default)]
pub struct Filter {
    rules: Vec<Rule>,
}

impl Rule {
    fn new(include: bool, pattern: &[u8]) -> Rule {
        let directory = pattern.ends_with(b"/");
        let pattern = if directory { &pattern[..pattern.len() - 1] } else { pattern };
        let anchored = pattern.contains(&b'/');
        let parts = pattern.split(|byte| *byte == b'/').filter(|part| !part.is_empty());
        Rule { include, directory, anchored, parts: parts.map(<[u8]>::to_vec).collect() }
    }

    fn matches(&self, path: &[u8], is_directory: bool) -> bool {
        if self.directory && !is_directory {
            return false;
        }
        let parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
        let pattern: Vec<&[u8]> = self.parts.iter().map(Vec::as_slice).collect();
        match (self.anchored, parts.split_last()) {
            (true, _) => path_matches(&pattern, &parts),
            (false, Some((name, _))) => path_matches(&pattern, &[name]),
            (false, None) => false,
        }
    }
}

/// Component by component; `**` stands for any number of them.
fn path_matches(pattern: &[&[u8]], path: &[&[u8]]) -> bool {
    // Which beginnings of the path the pattern so far can end at: no more work than both lengths.
    let mut ends = vec![false; path.len() + 1];
    ends[0] = true;
    for part in pattern {
        let before = ends.clone();
        if *part == b"**" {
            let mut any = false;
            for end in &mut ends {
                any |= *end;
                *end = any;
            }
            continue;
        }
        ends[0] = false;
        for (at, name) in path.iter().enumerate() {
            ends[at + 1] = before[at] && text::matches(part, name);
        }
    }
    ends[path.len()]
}

impl Filter {
    /// True where everything is copied.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    /// True when `path`, below the top of the tree, is to be left alone.
    pub fn excludes(&self, path: &[u8], is_directory: bool) -> bool {
        let first = self.rules.iter().find(|rule| rule.matches(path, is_directory));
        first.is_some_and(|rule| !rule.include)
    }

    fn add_to(command: Command) -> Command {
        let pattern = |name: &'static str, help: &'static str, long_help: &'static str| {
            Arg::new(name)
                .long(name)
                .value_name("GLOB")
                .action(ArgAction::Append)
                .value_parser(clap::value_parser!(std::ffi::OsString))
                .help(help)
                .long_help(long_help)
        };
        command
            .arg(pattern(
                "exclude",
                "Leave out what matches; of --exclude and --include the first that matches decides",
                "Leave out what matches, and all below it. A GLOB without a slash is compared with \
                 names at any depth, one with a slash with the path below the tree's top; one that \
                 ends in a slash matches directories only. * and ? match within a name, ** any \
                 number of directories. Of all --exclude and --include, in their order, the first \
                 that matches decides; what none matches is copied",
            ))
            .arg(pattern(
                "include",
                "Do not leave out what matches, whatever a later --exclude says",
                "Do not leave out what matches, whatever a later --exclude says. What lies in a \
                 directory that is left out is not looked at: include the directory too",
            ))
    }
}

impl clap::FromArgMatches for Filter {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Filter, clap::Error> {
        use std::os::unix::ffi::OsStrExt;
        let mut found: Vec<(usize, Rule)> = Vec::new();
        for (name, include) in [("exclude", false), ("include", true)] {
            let values = matches.get_many::<std::ffi::OsString>(name).into_iter().flatten();
            let indices = matches.indices_of(name).into_iter().flatten();
            found.extend(
                indices.zip(values).map(|(at, text)| (at, Rule::new(include, text.as_bytes()))),
            );
        }
        found.sort_by_key(|(at, _)| *at);
        Ok(Filter { rules: found.into_iter().map(|(_, rule)| rule).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Filter::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for Filter {
    fn augment_args(command: Command) -> Command {
        Filter::add_to(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Filter::add_to(command)
    }
}

#[cfg(test)]
mod tests {
    use clap::{Args, FromArgMatches};

    use super::*;

    fn filter(arguments: &[&str]) -> Filter {
        let command = Filter::augment_args(Command::new("x"));
        let matches = command.try_get_matches_from(["x"].iter().chain(arguments)).expect("parsed");
        Filter::from_arg_matches(&matches).expect("a filter")
    }

    #[test]
    fn patterns_match_names_or_paths() {
        for (pattern, path, directory, expected) in [
            ("*.tmp", "a/b.tmp", false, true),
            ("*.tmp", "a.tmp/b", false, false),
            ("/*.tmp", "b.tmp", false, true),
            ("/*.tmp", "a/b.tmp", false, false),
            ("a/*", "a/b", false, true),
            ("a/*", "a/b/c", false, false),
            ("a/**", "a/b/c", false, true),
            ("**/c", "c", false, true),
            ("**/c", "a/b/c", false, true),
            ("a/**/c", "a/b", false, false),
            ("cache/", "x/cache", true, true),
            ("cache/", "x/cache", false, false),
            ("/cache/", "x/cache", true, false),
        ] {
            let found = filter(&["--exclude", pattern]).excludes(path.as_bytes(), directory);
            assert_eq!(found, expected, "{pattern} {path}");
        }
    }

    #[test]
    fn the_first_pattern_that_matches_decides() {
        let keep = filter(&["--include", "keep.tmp", "--exclude", "*.tmp"]);
        assert!(!keep.excludes(b"a/keep.tmp", false) && keep.excludes(b"a/x.tmp", false));
        let none = filter(&["--exclude", "*.tmp", "--include", "keep.tmp"]);
        assert!(none.excludes(b"a/keep.tmp", false));
        let only = filter(&["--include", "*/", "--include", "*.c", "--exclude", "*"]);
        assert!(!only.excludes(b"d", true) && !only.excludes(b"d/x.c", false));
        assert!(only.excludes(b"d/x.o", false));
        assert!(filter(&[]).is_empty() && !filter(&[]).excludes(b"x", false));
    }

    #[test]
    fn many_stars_take_no_time() {
        let pattern = "**/a".repeat(60);
        let path = "a/".repeat(200) + "b";
        assert!(!filter(&["--exclude", &pattern]).excludes(path.as_bytes(), false));
    }
}
