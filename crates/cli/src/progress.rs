//! Messages and the progress bar, which share standard error.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use crate::text;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

static QUIET: AtomicBool = AtomicBool::new(false);
static VERBOSE: AtomicBool = AtomicBool::new(false);
static BAR: Mutex<Option<ProgressBar>> = Mutex::new(None);

/// What takes messages in place of standard error.
static ELSEWHERE: OnceLock<fn(&str)> = OnceLock::new();

/// From here on nobody sees standard error: `take` gets messages.
pub fn send_to(take: fn(&str)) {
    let _ = ELSEWHERE.set(take);
}

/// Prints a line on standard error, above the bar if there is one. Where that cannot be written (a
/// closed terminal, a full disk), nobody is told, and nothing else changes.
pub fn message(text: &str) {
    if let Some(take) = ELSEWHERE.get() {
        return take(text);
    }
    let bar = BAR.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let print = || {
        let line = format!("{}\n", text::tame(text));
        let _ = std::io::stderr().write_all(line.as_bytes());
    };
    match bar {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}

/// How much is said: `-q` and `-v` of all commands.
pub fn set_words(quiet: bool, verbose: bool) {
    QUIET.store(quiet, Ordering::Relaxed);
    VERBOSE.store(verbose && !quiet, Ordering::Relaxed);
}

/// True with `-q`.
pub fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// True with `-v`.
pub fn is_verbose() -> bool {
    VERBOSE.load(Ordering::Relaxed)
}

/// As [`message`], what is no failure: not with `-q`.
pub fn notice(text: &str) {
    if !is_quiet() {
        message(text);
    }
}

/// As [`message`], with `-v` only.
pub fn detail(text: impl FnOnce() -> String) {
    if is_verbose() {
        message(&text());
    }
}

/// Prints a line on standard output, above the bar if there is one.
///
/// # Errors
/// Standard output's.
pub fn line(line: &str) -> std::io::Result<()> {
    let bar = BAR.lock().unwrap_or_else(PoisonError::into_inner).clone();
    let print = || std::io::stdout().write_all(format!("{}\n", text::tame(line)).as_bytes());
    match bar {
        Some(bar) => bar.suspend(print),
        None => print(),
    }
}

/// A bar on a terminal; nothing elsewhere.
pub struct Progress {
    bar: Option<ProgressBar>,
}

impl Progress {
    /// Begins to show a bar, if standard error is a terminal and `wanted`.
    pub fn start(wanted: bool) -> Progress {
        if !wanted || is_quiet() || !std::io::stderr().is_terminal() {
            return Progress { bar: None };
        }
        let bar = ProgressBar::with_draw_target(Some(0), ProgressDrawTarget::stderr_with_hz(10));
        let template =
            "{msg}  {bytes}/{total_bytes}  {binary_bytes_per_sec}  {wide_bar}  {eta} left";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        *BAR.lock().unwrap_or_else(PoisonError::into_inner) = Some(bar.clone());
        Progress { bar: Some(bar) }
    }

    /// True when somebody sees it.
    pub fn is_shown(&self) -> bool {
        self.bar.is_some()
    }

    /// Files and bytes so far and in all, as far as known.
    pub fn show(&self, files: u64, files_all: u64, bytes: u64, bytes_all: u64) {
        if let Some(bar) = &self.bar {
            bar.set_length(bytes_all);
            bar.set_position(bytes);
            bar.set_message(format!("{files}/{files_all} files"));
        }
    }

    /// Takes the bar away while `print` prints.
    pub fn pause<R>(&self, print: impl FnOnce() -> R) -> R {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// A line in place of the counts.
    pub fn text(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_style(
                ProgressStyle::with_template("{spinner} {msg}")
                    .unwrap_or_else(|_| ProgressStyle::default_spinner()),
            );
            bar.set_message(text.to_owned());
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if let Some(bar) = self.bar.take() {
            *BAR.lock().unwrap_or_else(PoisonError::into_inner) = None;
            bar.finish_and_clear();
        }
    }
}
