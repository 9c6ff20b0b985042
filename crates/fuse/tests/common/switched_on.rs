//! FUSE over io_uring, on for as long as a test of this process needs it.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// Whoever dies holding the other end of its input, it puts back what was there. One process at a
/// time, also of those that run elsewhere on this kernel.
const HOLD: &str = "before=$(cat $0) && echo Y > $0 && echo on; read -r _; [ -z \"$before\" ] || echo $before > $0";

static HOLDER: Mutex<(usize, Option<Child>)> = Mutex::new((0, None));

/// While there is one, it is on.
pub struct SwitchedOn;

impl SwitchedOn {
    /// `None`: the kernel has it not, or not for this user.
    pub fn new() -> Option<SwitchedOn> {
        std::fs::read(PARAMETER).ok()?;
        let mut holder = HOLDER.lock().unwrap_or_else(PoisonError::into_inner);
        if holder.0 == 0 {
            holder.1 = Some(hold()?);
        }
        holder.0 += 1;
        Some(SwitchedOn)
    }
}

fn hold() -> Option<Child> {
    let mut command = Command::new("flock");
    command.args([PARAMETER, "sh", "-c", HOLD, PARAMETER]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().expect("flock");
    let mut said = [0; 3];
    match child.stdout.take().expect("a pipe").read_exact(&mut said) {
        Ok(()) => Some(child),
        Err(_) => {
            drop(child.stdin.take());
            child.wait().expect("ends");
            None
        }
    }
}

impl Drop for SwitchedOn {
    fn drop(&mut self) {
        let mut holder = HOLDER.lock().unwrap_or_else(PoisonError::into_inner);
        holder.0 -= 1;
        if holder.0 == 0
            && let Some(mut child) = holder.1.take()
        {
            drop(child.stdin.take());
            child.wait().expect("it put it back");
        }
    }
}
