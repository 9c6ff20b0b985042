//! Local programs, and many users.

use super::*;

/// Holds a lease on a file, and gives it up a moment after it is asked to.
const LEASE: &str = r#"
import fcntl, os, signal, sys, time
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGIO])
file = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
signal.sigwait([signal.SIGIO])
time.sleep(0.1)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
"#;

#[test]
fn an_open_waits_for_leases_of_local_programs() {
    use std::io::{BufRead, BufReader};
    use std::process::{Command, Stdio};
    let dir = Temporary::new();
    std::fs::write(dir.join("f"), "x").expect("write");
    for inline_metadata in [false, true] {
        for flags in [READ, BOTH] {
            let store = open(&dir.0, PosixOptions { inline_metadata, ..options() });
            let mut holder = Command::new("python3");
            holder.args(["-c", LEASE]).arg(dir.join("f")).stdout(Stdio::piped());
            let Ok(mut holder) = holder.spawn() else { return eprintln!("skipped: no python3") };
            let mut line = String::new();
            let mut out = BufReader::new(holder.stdout.take().expect("piped"));
            out.read_line(&mut line).expect("it has one");
            assert_eq!(line, "held\n");
            let opened = Fs::new(&*store).open("f", flags).expect("given up");
            assert_eq!(read(&*opened.file, 0, 10).expect("read"), b"x");
            assert!(holder.wait().expect("ends").success());
        }
    }
}

/// Threads of different users at once: nobody gets another's rights, also not in the pool.
#[test]
fn many_users_at_once() {
    for inline_metadata in [false, true] {
        let made = made(PosixOptions { inline_metadata, threads_max: 4, ..options() });
        if !made.store.can_switch() {
            return eprintln!("skipped: needs a server that is root");
        }
        let store = &*made.store;
        let root = Fs::new(store);
        std::thread::scope(|scope| {
            for number in 0..4u32 {
                let fs = root.by(&user(20_000 + number, 30_000 + number, &[40_000 + number]));
                scope.spawn(move || {
                    for round in 0..100 {
                        let own = format!("{number}-{round}");
                        let opened =
                            fs.store.open(&fs.caller, &fs.root, own.as_bytes(), MAKE, 0o600);
                        let attr = opened.wait().expect("made").attr;
                        assert_eq!((attr.uid, attr.gid), (20_000 + number, 30_000 + number));
                        fs.chown(&own, None, Some(40_000 + number)).expect("a group of theirs");
                        let other = format!("{}-{round}", (number + 1) % 4);
                        match fs.open(&other, READ).map(|_| ()) {
                            Err(Status::Access | Status::NoEnt) => {}
                            result => panic!("{other}: {result:?}"),
                        }
                    }
                });
            }
        });
        let owner = std::fs::metadata(made.dir.join("0-0")).expect("made");
        assert_eq!((owner.uid(), owner.gid()), (20_000, 40_000));
    }
}
