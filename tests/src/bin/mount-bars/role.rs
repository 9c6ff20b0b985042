//! Processes of this binary beside itself, where many clients must be many processes.

use std::ffi::OsString;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// What a role does with its arguments; what it says goes to its standard output.
pub(crate) type Role = fn(&Path, &[u64]) -> Result<String, String>;

/// A running role.
pub(crate) struct Player(Child);

/// Starts `mount-bars --role NAME DIRECTORY NUMBERS…`.
pub(crate) fn play(name: &str, dir: &Path, numbers: &[u64]) -> Player {
    let mut args: Vec<OsString> = vec!["--role".into(), name.into(), dir.into()];
    args.extend(numbers.iter().map(|number| number.to_string().into()));
    let own = std::env::current_exe().expect("its own path");
    let mut command = Command::new(own);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped());
    Player(command.spawn().expect("itself again"))
}

impl Player {
    /// Waits for its end; what it said, or what went wrong.
    pub(crate) fn end(&mut self, limit: Duration) -> Result<String, String> {
        // Roles say less than a pipe holds, so none waits for a reader.
        let start = Instant::now();
        let status = loop {
            match self.0.try_wait().map_err(|error| error.to_string())? {
                Some(status) => break status,
                None if start.elapsed() > limit => {
                    self.kill();
                    return Err(format!("no end after {limit:?}"));
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let mut text = String::new();
        let mut out = self.0.stdout.take().ok_or("asked twice")?;
        out.read_to_string(&mut text).map_err(|error| error.to_string())?;
        let text = text.trim_end().to_string();
        if status.success() { Ok(text) } else { Err(text) }
    }

    pub(crate) fn kill(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}

impl Drop for Player {
    fn drop(&mut self) {
        self.kill();
    }
}
