//! The last line of `make test`: `closing-line TESTS TABLE…`, files with what `cargo test --
//! --show-output` and the bars printed. With `CI` set to something nothing may be skipped.

#![forbid(unsafe_code)]

use std::process::ExitCode;

use dafs_tests::closing::Closing;

fn main() -> ExitCode {
    let mut closing = Closing::default();
    for (index, name) in std::env::args().skip(1).enumerate() {
        let Ok(printed) = std::fs::read(&name) else {
            println!("closing-line: {name} cannot be read");
            return ExitCode::from(2);
        };
        let printed = String::from_utf8_lossy(&printed);
        if index == 0 { closing.add_tests(&printed) } else { closing.add_table(&printed) }
    }
    println!("== {}", closing.line());
    if dafs_tests::must_try_all() && !closing.is_complete() {
        println!("== with CI set, nothing may be skipped");
        return ExitCode::FAILURE;
    }
    if closing.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
