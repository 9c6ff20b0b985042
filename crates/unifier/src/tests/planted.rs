//! Each planted defect is found.

use std::panic::{AssertUnwindSafe, catch_unwind};

use dafs_protocol::Status;

use super::disk::{Disk, run};
use super::model::random_operations;
use super::{open, unifier, write};
use crate::{Defect, WriterId, plant};

const SEEDS: u64 = 200;

fn errors_are_told() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, Vec::new());
    let cached = open(&unifier(1 << 20), &file);
    file.state().write_error = Some(Status::Io);
    let outcome = run(&disk, async move {
        write(&cached, 0, &[1; 10], 1).await;
        cached.close(WriterId(1)).await
    });
    assert_eq!(outcome, Err(Status::Io));
}

#[test]
fn every_planted_defect_is_found() {
    for defect in Defect::ALL {
        plant(Some(defect));
        let found = (1..=SEEDS).find(|seed| {
            let attempt = AssertUnwindSafe(|| {
                errors_are_told();
                random_operations(*seed);
            });
            catch_unwind(attempt).is_err()
        });
        println!("{defect:?}: {found:?}");
        assert!(found.is_some(), "{defect:?} was not found in {SEEDS} seeds");
    }
    plant(None);
    errors_are_told();
    random_operations(1);
}
