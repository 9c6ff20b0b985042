//! `dafs man-pages`: the help of all commands as pages of section 1, for those who make packages.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::path::PathBuf;

use clap::Command;
use clap_mangen::Man;

use crate::failure::Failure;

/// Write man pages of all commands into a directory.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  dafs man-pages /usr/local/share/man/man1")]
pub struct Args {
    /// An existing directory.
    #[arg(value_name = "DIR")]
    directory: PathBuf,
}

/// Runs the command. `program` is the whole command line.
///
/// # Errors
/// A file cannot be written.
pub fn run(args: &Args, mut program: Command) -> Result<(), Failure> {
    program.build();
    let mut pages = Vec::new();
    collect(&program, "dafs", &mut pages);
    for (name, page) in pages {
        let file = args.directory.join(format!("{name}.1"));
        fs::write(&file, page?).map_err(|error| Failure::about(file.display(), error))?;
    }
    Ok(())
}

type Page = (String, io::Result<Vec<u8>>);

/// The page of a command, and those of its own commands. None of `help`, which has no page of its own.
fn collect(command: &Command, name: &str, pages: &mut Vec<Page>) {
    pages.push((name.to_owned(), page(command, name)));
    for inner in command.get_subcommands() {
        if inner.get_name() != "help" && !inner.is_hide_set() {
            collect(inner, &format!("{name}-{}", inner.get_name()), pages);
        }
    }
}

fn page(command: &Command, name: &str) -> io::Result<Vec<u8>> {
    let version = env!("CARGO_PKG_VERSION");
    let page = Man::new(command.clone().display_name(name.to_owned()))
        .title(name)
        .section("1")
        .date("")
        .source(format!("dafs {version}"))
        .manual("DAFS");
    let mut out = Vec::new();
    page.render_title(&mut out)?;
    page.render_name_section(&mut out)?;
    page.render_synopsis_section(&mut out)?;
    page.render_description_section(&mut out)?;
    page.render_options_section(&mut out)?;
    if command.get_subcommands().any(|inner| !inner.is_hide_set()) {
        page.render_subcommands_section(&mut out)?;
    }
    if let Some(text) = command.get_after_long_help().or_else(|| command.get_after_help()) {
        out.extend_from_slice(after(&text.to_string()).as_bytes());
    }
    out.extend_from_slice(see_also(name).as_bytes());
    Ok(out)
}

/// What stands below the options of the help, line by line, since it is laid out with blanks.
fn after(text: &str) -> String {
    let (title, text) = match text.split_once('\n') {
        Some((first, rest)) if first.starts_with("Example") => ("EXAMPLES", rest),
        _ => ("NOTES", text),
    };
    let mut page = format!(".SH {title}\n.nf\n");
    for line in text.lines() {
        let _ = writeln!(page, "{}", escape(line));
    }
    page.push_str(".fi\n");
    page
}

fn see_also(name: &str) -> String {
    let pages: &[&str] = match name {
        "dafs" => &["dafs-serve", "dafs-mount", "dafs-cp", "dafs-config"],
        "dafs-mount" => &["dafs", "dafs-umount", "dafs-serve"],
        _ => &["dafs"],
    };
    let list: Vec<String> =
        pages.iter().map(|page| format!("\\fB{}\\fR(1)", escape(page))).collect();
    format!(".SH \"SEE ALSO\"\n{}\n", list.join(", "))
}

/// A line of text as roff has it.
fn escape(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-");
    if line.starts_with(['.', '\'']) { format!("\\&{line}") } else { line }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_no_roff() {
        assert_eq!(escape(".config \\n --x"), "\\&.config \\en \\-\\-x");
        assert_eq!(after("Examples:\n  dafs ls"), ".SH EXAMPLES\n.nf\n  dafs ls\n.fi\n");
        assert!(after("Something else").starts_with(".SH NOTES\n.nf\nSomething"));
    }
}
