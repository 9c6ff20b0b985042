//! Rows of experiments as they come: for people, and for programs.

use std::io::{self, Write};

use serde::Serialize;

/// What can be a row.
pub trait TableRow: Serialize {
    /// Rows of one stand below a title.
    fn experiment(&self) -> &'static str;
    /// What the columns are.
    fn title() -> String;
    /// The columns.
    fn line(&self) -> String;
}

/// A number of so many digits; "-": there is none.
pub fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
}

/// Prints rows.
pub struct Table {
    json: bool,
    titled: Option<&'static str>,
}

impl Table {
    pub fn new(json: bool) -> Table {
        Table { json, titled: None }
    }

    /// # Errors
    /// Nobody reads any more.
    pub fn print<R: TableRow>(&mut self, row: &R) -> io::Result<()> {
        let mut out = io::stdout().lock();
        if self.json {
            let line = serde_json::to_string(row).map_err(io::Error::other)?;
            writeln!(out, "{line}")?;
            return out.flush();
        }
        if self.titled != Some(row.experiment()) {
            if self.titled.is_some() {
                writeln!(out)?;
            }
            self.titled = Some(row.experiment());
            writeln!(out, "{}", R::title())?;
        }
        writeln!(out, "{}", row.line())?;
        out.flush()
    }
}
