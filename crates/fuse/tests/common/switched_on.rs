//! FUSE over io_uring, on for as long as a test of this process needs it, or off.

use std::fmt;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Whoever dies holding the other end of its input, it puts back what was there: also where a signal
/// ends all processes of a run. One process at a time, also of those that run elsewhere on this kernel.
const HOLD: &str = "trap '' HUP INT TERM
    before=$(cat $0) && echo $1 > $0 && echo on || exit 1; read -r _; echo $before > $0";

static HOLDER: Mutex<(usize, Option<Held>)> = Mutex::new((0, None));

/// What the test says that does without.
#[derive(Debug)]
pub enum NotSwitched {
    /// No machine that a test could be given has it with this kernel.
    NoSwitch,
    /// It is there, and not for this user or in this container.
    Refused,
}

impl fmt::Display for NotSwitched {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            NotSwitched::NoSwitch => "not tried: this kernel has no FUSE over io_uring",
            NotSwitched::Refused => "skipped: needs the right to switch FUSE over io_uring",
        })
    }
}

/// While there is one, it is on.
#[derive(Debug)]
pub struct SwitchedOn;

impl SwitchedOn {
    /// Waits for who has it switched off.
    pub fn new() -> Result<SwitchedOn, NotSwitched> {
        let mut holder = HOLDER.lock().unwrap_or_else(PoisonError::into_inner);
        if holder.0 == 0 {
            holder.1 = Some(Held::new("Y")?);
        }
        holder.0 += 1;
        Ok(SwitchedOn)
    }
}

impl Drop for SwitchedOn {
    fn drop(&mut self) {
        let mut holder = HOLDER.lock().unwrap_or_else(PoisonError::into_inner);
        holder.0 -= 1;
        if holder.0 == 0 {
            holder.1 = None;
        }
    }
}

/// While it is there, it is off.
pub struct SwitchedOff {
    _held: Held,
}

impl SwitchedOff {
    /// As of [`SwitchedOn`]; who has that waits for ever.
    pub fn new() -> Result<SwitchedOff, NotSwitched> {
        Ok(SwitchedOff { _held: Held::new("N")? })
    }
}

struct Held(Child);

impl Held {
    fn new(value: &str) -> Result<Held, NotSwitched> {
        if !Path::new(PARAMETER).exists() {
            return Err(NotSwitched::NoSwitch);
        }
        let mut command = Command::new("flock");
        command.args([PARAMETER, "sh", "-c", HOLD, PARAMETER, value]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut held = Held(command.spawn().expect("flock"));
        let mut said = [0; 3];
        let on = held.0.stdout.take().expect("a pipe").read_exact(&mut said);
        on.map_err(|_| NotSwitched::Refused).map(|()| held)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        self.0.wait().expect("it put it back");
    }
}
