//! `dafs config new`: a file in which every key stands, with its meaning.

use std::fmt::Write as _;
use std::fs;
use std::io::{ErrorKind, Write as _};
use std::path::{Path, PathBuf};

use dafs_server::{Config, ConfigKey, KEYS, Section};

use crate::failure::{Cause, Failure};
use crate::output::Output;

/// Letters of a line, for people.
const WIDTH: usize = 96;

/// Write a configuration file for a directory, in which every key stands with its meaning.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    dafs config new data /srv/data\n  \
    dafs config new --listen 127.0.0.1:20491 music /srv/music\n  \
    dafs config new --directory ~/.config/dafs data ~/data\n\n\
    A file that is there is never written. Lines behind # change nothing: they show the defaults.")]
pub struct Args {
    /// Where the file goes.
    #[arg(long, value_name = "DIR", default_value = "/etc/dafs")]
    directory: PathBuf,
    /// Where the server listens: HOST:PORT, tcp://HOST:PORT or unix:/path; may be repeated.
    #[arg(long, value_name = "ADDRESS")]
    listen: Vec<String>,
    /// The name of the file, and of the service dafs@NAME: letters, digits, '.', '_' and '-', at most 64.
    #[arg(value_name = "NAME", value_parser = name)]
    name: String,
    /// The directory to serve.
    #[arg(value_name = "DIR")]
    path: PathBuf,
}

fn name(text: &str) -> Result<String, String> {
    let good = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    let first = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
    if first && text.len() <= 64 && text.bytes().all(good) {
        return Ok(text.to_owned());
    }
    Err("expected letters, digits, '.', '_' and '-', at most 64, the first a letter or digit"
        .into())
}

/// Runs the command.
///
/// # Errors
/// There is no such directory, or the file is there already, or cannot be written.
pub fn run(args: &Args) -> Result<(), Failure> {
    let path = served(&args.path)?;
    let text = template(&args.listen, &path)?;
    let file = args.directory.join(format!("{}.toml", args.name));
    fs::create_dir_all(&args.directory)
        .map_err(|error| Failure::about(args.directory.display(), error))?;
    let opened = fs::File::options().write(true).create_new(true).open(&file);
    let mut opened = opened.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::about(
            file.display(),
            Cause::from("is there already, and is not written: edit it, or choose another name"),
        ),
        _ => Failure::about(file.display(), error),
    })?;
    if let Err(error) = opened.write_all(text.as_bytes()) {
        // What is half written is no configuration.
        let _ = fs::remove_file(&file);
        return Err(Failure::about(file.display(), error));
    }
    let mut out = Output::new();
    out.line(&file.display().to_string())?;
    let start = if args.directory == Path::new("/etc/dafs") {
        format!(
            "start it: systemctl enable --now dafs@{}, or dafs serve --config {}",
            args.name,
            file.display()
        )
    } else {
        format!("start it: dafs serve --config {}", file.display())
    };
    out.line(&start)?;
    Ok(out.flush()?)
}

/// The directory, from the root on: a service is started elsewhere.
fn served(path: &Path) -> Result<String, Failure> {
    let fail = |error| Failure::about(path.display(), error);
    let real = fs::canonicalize(path).map_err(fail)?;
    fs::read_dir(&real).map_err(fail)?;
    let text = real.to_str().map(str::to_owned);
    text.ok_or_else(|| {
        Failure::about(path.display(), Cause::from("is not UTF-8: TOML has no other names"))
    })
}

/// The file, which is read again before anybody sees it.
fn template(listen: &[String], path: &str) -> Result<String, Failure> {
    let mut text = String::from(
        "# A server of `dafs serve --config FILE`. What stands behind # is the default.\n\
         # Sizes are numbers of bytes or text with units (\"512m\", \"4g\"), times seconds or text (\"30s\").\n",
    );
    for section in [Section::Server, Section::Export, Section::Limits] {
        if let Some(heading) = section.heading() {
            let _ = write!(text, "\n{heading}\n");
        }
        for key in KEYS.iter().filter(|key| key.section == section) {
            let given = match (section, key.name) {
                (Section::Server, "listen") if !listen.is_empty() => {
                    let list = toml::Value::from(listen.to_vec());
                    Some(list.to_string())
                }
                (Section::Export, "path") => Some(toml::Value::from(path).to_string()),
                _ => None,
            };
            text.push_str(&entry(key, given.as_deref()));
        }
    }
    let config: Config = toml::from_str(&text)
        .map_err(|error| Failure::about("the new file", Cause::from(error.to_string())))?;
    // What needs a key is told when it is checked: the file has a place for one.
    let is_known = |error: &dafs_server::ConfigError| {
        matches!(error, dafs_server::ConfigError::NotLoopback(_))
    };
    let checked = config.check().and_then(|()| config.addresses().map(drop));
    match checked {
        Err(error) if !is_known(&error) => Err(Failure::usage(error.to_string())),
        _ => Ok(text),
    }
}

/// Meaning, range and default of a key, and its line.
fn entry(key: &ConfigKey, given: Option<&str>) -> String {
    let mut words = format!("{} Expected: {}.", key.meaning, key.range);
    if !key.default.is_empty() && given.is_none() {
        let _ = write!(words, " Default: {}.", key.default);
    }
    let mut text = String::from("\n");
    let mut line = String::from("#");
    for word in words.split_whitespace() {
        if line.len() + 1 + word.len() > WIDTH {
            let _ = writeln!(text, "{line}");
            line = String::from("#");
        }
        let _ = write!(line, " {word}");
    }
    let _ = writeln!(text, "{line}");
    let _ = match given {
        Some(value) => writeln!(text, "{} = {value}", key.name),
        None => writeln!(text, "#{} = {}", key.name, key.value),
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_file_changes_no_default() {
        let text = template(&[], "/srv/a \"b\"").expect("good");
        let config: Config = toml::from_str(&text).expect("valid");
        assert_eq!(config.exports[0].path, Path::new("/srv/a \"b\""));
        assert_eq!(format!("{config:?}"), format!("{:?}", Config::for_directory("/srv/a \"b\"")));
        assert!(KEYS.iter().all(|key| text.contains(&format!("{} = ", key.name))));
        assert!(text.lines().all(|line| line.len() <= 120));
        let text = template(&["unix:/run/x".into()], "/").expect("good");
        let config: Config = toml::from_str(&text).expect("valid");
        assert_eq!(config.listen, ["unix:/run/x"]);
        assert!(template(&["nowhere:".into()], "/").is_err());
    }

    #[test]
    fn names_are_those_of_services() {
        assert!(name("data-1.x_y").is_ok());
        for wrong in ["", "-x", ".x", "a/b", "a b", "ä", &"x".repeat(65)] {
            assert!(name(wrong).is_err(), "{wrong}");
        }
    }
}
