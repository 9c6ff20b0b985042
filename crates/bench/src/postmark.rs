//! `bench postmark`: many small files, as mail servers have ([IB-DAFS] V).
//!
//! A pool of files is made, transactions are done, the pool is removed. A transaction of the
//! mixed kind is a CREATE or DELETE of a random file, then a READ or WRITE of a whole random
//! file; of the read-only kind it is one READ. Only transactions are measured.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use crate::offsets::Offsets;
use crate::point::Point;
use crate::slice::Slice;
use crate::target::{Files, Target};
use crate::wait::Wait;

/// What to measure.
#[derive(Debug, Clone)]
pub struct PostmarkOptions {
    /// Only READs.
    pub read_only: bool,
    /// Bytes of each file.
    pub size: usize,
    /// Files of the pool.
    pub files: u64,
    /// Transactions.
    pub transactions: u64,
    /// Waiting mode, for targets that have them.
    pub wait: Wait,
}

/// Does all transactions; `target` must be set up.
///
/// # Errors
/// The target's.
pub fn run(
    target: &mut dyn Target,
    options: &PostmarkOptions,
    stop: &AtomicBool,
) -> io::Result<Point> {
    let wait = target.has_waits().then_some(options.wait);
    let transport = target.transport().to_owned();
    let mut slice = Slice::default();
    let mut pool: Vec<u64> = (0..options.files).collect();
    let mut files = target.begin(wait)?;
    for number in &pool {
        files.create(*number, options.size)?;
    }
    drop(files);
    // From here on costs are counted.
    let mut files = target.begin(wait)?;
    let started = Instant::now();
    let result = transactions(files.as_mut(), options, stop, &mut pool, &mut slice);
    slice.seconds = started.elapsed().as_secs_f64();
    result.and_then(|()| files.costs(&mut slice))?;
    for number in pool {
        files.remove(number)?;
    }
    drop(files);
    let op = if options.read_only { "postmark-read" } else { "postmark" };
    Ok(Point::new(op, &transport, &[slice]).with(options.size as u64, 1, wait))
}

fn transactions(
    files: &mut dyn Files,
    options: &PostmarkOptions,
    stop: &AtomicBool,
    pool: &mut Vec<u64>,
    slice: &mut Slice,
) -> io::Result<()> {
    let mut dice = Offsets::new(1 << 32, 1, true);
    let mut next = options.files;
    let size = options.size;
    for _ in 0..options.transactions {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let began = Instant::now();
        if !options.read_only {
            // The last file is not deleted: the second half needs one.
            if dice.next() & 1 == 0 || pool.len() < 2 {
                files.create(next, size)?;
                pool.push(next);
                next += 1;
                slice.bytes += size as u64;
            } else {
                let index = dice.next() as usize % pool.len();
                files.remove(pool.swap_remove(index))?;
            }
        }
        let index = dice.next() as usize % pool.len().max(1);
        let Some(number) = pool.get(index) else { break };
        if options.read_only || dice.next() & 1 == 0 {
            files.read(*number, size)?;
        } else {
            files.write(*number, size)?;
        }
        slice.bytes += size as u64;
        slice.ops += 1;
        slice.latency.record(began.elapsed());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::target::Local;

    #[test]
    fn both_kinds_run_on_a_local_directory() {
        let dir = std::env::temp_dir().join(format!("dafs-postmark-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("directory");
        let stop = AtomicBool::new(false);
        let mut target = Local::new(&dir, false);
        target.set_up(None, &stop).expect("set up");
        for read_only in [false, true] {
            let options = PostmarkOptions {
                read_only,
                size: 1000,
                files: 20,
                transactions: 300,
                wait: Wait::Sleeping,
            };
            let point = run(&mut target, &options, &stop).expect("runs");
            assert_eq!(point.ops, 300);
            assert_eq!(point.wait, None);
            assert!(point.client_cpu_us_per_op.is_some());
        }
        drop(target);
        assert_eq!(std::fs::read_dir(&dir).expect("directory").count(), 0);
        std::fs::remove_dir(&dir).expect("removed");
    }
}
