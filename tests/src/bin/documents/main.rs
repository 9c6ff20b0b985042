//! Runs the examples of README and the pages in `docs`, line by line, as they are printed: each must end
//! well, and print what stands below it. A line per page says how many were run, and how many were not.
//!
//! `documents` runs all pages, `documents README.md docs/mount.md` some of them.
//!
//! What is an example: a line of an indented or fenced block that begins with `$ `, or, in a block without such
//! lines, with a word of [`blocks::COMMANDS`]; and in a table a command in backticks that has `URL` in it. Below
//! a line with `$ ` stands what it prints, if anything is shown: words with digits in them (times, sizes, ports) may
//! be others, and the last shown line may be `...`. `# ` begins a comment.
//!
//! What is not run: a block after a comment `<!-- not run: REASON -->`, and commands that change the
//! machine or build and test for long ([`blocks::NOT_HERE`]). What stands for something else while it is
//! run is in [`world::World`].

#![forbid(unsafe_code)]

mod blocks;
mod printed;
mod world;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use dafs_tests::acceptance::{Line, Mode, run};
use dafs_tests::machine;

use blocks::{Example, Page};
use world::World;

fn main() -> ExitCode {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    if wanted.iter().any(|name| name.starts_with('-')) {
        eprintln!("usage: documents [PAGE...], as README.md docs/mount.md");
        return ExitCode::from(2);
    }
    // Times are nothing to be judged here, and neither is the pages' order.
    if wanted.is_empty() {
        return run(&[("documents", every_page)], &[]);
    }
    let mut status = ExitCode::SUCCESS;
    for name in wanted {
        let line = try_page(&repository(), Path::new(&name));
        println!("{}: {} ({:?})", line.what, line.measured, line.verdict);
        if !matches!(line.verdict, dafs_tests::acceptance::Verdict::Pass) {
            status = ExitCode::FAILURE;
        }
    }
    status
}

fn repository() -> PathBuf {
    let mut path = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    path.pop();
    path
}

fn every_page(_: Mode) -> Vec<Line> {
    let root = repository();
    let mut pages = vec![PathBuf::from("README.md"), PathBuf::from("CONTRIBUTING.md")];
    let listed = std::fs::read_dir(root.join("docs")).expect("docs");
    let mut docs: Vec<PathBuf> = listed
        .filter_map(|entry| Some(Path::new("docs").join(entry.ok()?.file_name())))
        .filter(|path| path.extension().is_some_and(|extension| extension == "md"))
        .collect();
    docs.sort();
    pages.append(&mut docs);
    let lines = pages.iter().map(|page| try_page(&root, page));
    lines.filter(|line| line.measured != NOTHING).collect()
}

/// What is measured of a page without an example.
const NOTHING: &str = "no examples";

fn try_page(root: &Path, name: &Path) -> Line {
    let line = Line::new("documents", &name.display().to_string(), "examples do what they say");
    let text = match std::fs::read_to_string(root.join(name)) {
        Ok(text) => text,
        Err(error) => return line.result(Err(error.to_string())),
    };
    let page = Page::read(&text);
    if page.examples.is_empty() && page.not_run.is_empty() {
        return line.measured(NOTHING, true);
    }
    line.result(run_page(&page))
}

fn run_page(page: &Page) -> Result<String, String> {
    let (mut done, mut no_mounts) = (0, None);
    if !page.examples.is_empty() {
        let mut world = World::new();
        for example in &page.examples {
            if let Some(Err(reason)) = example.mounts.then(machine::mounts) {
                no_mounts = Some(reason);
                continue;
            }
            run_example(&mut world, example).map_err(|error| {
                format!("line {}: `{}`: {error}", example.line, example.command)
            })?;
            done += 1;
        }
        world.finish()?;
    }
    for reason in &page.not_run {
        eprintln!("   not run: {reason}");
    }
    // The others have passed.
    no_mounts.map_or(Ok(()), Err)?;
    Ok(format!("{done} run, {} not", page.not_run.len()))
}

fn run_example(world: &mut World, example: &Example) -> Result<(), String> {
    let ran = world.run(&example.command)?;
    let shown: Vec<String> = example.shown.iter().map(|line| world.stand_in(line)).collect();
    printed::same(&shown, &ran.printed).map_err(|error| error + ", of: " + &ran.printed)?;
    // What shows a message of an error is about that error.
    let fails = shown.iter().any(|line| line.starts_with("dafs "));
    if ran.success == fails {
        return Err(format!(
            "ended {}, and printed: {}",
            if fails { "well" } else { "badly" },
            ran.printed
        ));
    }
    Ok(())
}
