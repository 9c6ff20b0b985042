//! What a hit costs; run by hand: `cargo test --release -p dafs-unifier cost -- --ignored
//! --nocapture`.

use std::hint::black_box;
use std::time::Instant;

use super::disk::{Disk, run};
use super::{open, read, unifier, writer};

const MIB: usize = 1 << 20;

#[test]
#[ignore = "a measurement"]
fn cost_of_hits() {
    let disk = Disk::new(1, 0);
    let file = disk.file(1, vec![5; 64 * MIB]);
    let unifier = unifier(256 * MIB);
    let cached = open(&unifier, &file);
    run(&disk, {
        let cached = cached.clone();
        async move {
            for offset in (0..64).map(|nth| nth * MIB as u64) {
                read(&cached, offset, MIB).await;
            }
        }
    });
    for len in [4096, 65_536, MIB] {
        let rounds = 200_000;
        let start = Instant::now();
        for round in 0..rounds {
            let offset = (round * 7_919 * 4096 % (63 * MIB)) / len * len;
            let lease = cached.try_read(offset as u64, len).expect("cached");
            black_box(lease.spans());
        }
        println!("read {len}: {:?} each", start.elapsed() / rounds as u32);
    }
    for len in [4096, 65_536, MIB] {
        let rounds = 2000;
        let start = Instant::now();
        for round in 0..rounds {
            let offset = round % 32 * len;
            let mut reservation = cached.try_reserve(offset as u64, len).expect("room");
            black_box(reservation.spans());
            reservation.landed(len);
            assert!(matches!(cached.try_commit_write(reservation, writer(1)), Ok(Ok(()))));
        }
        println!("write {len}: {:?} each", start.elapsed() / rounds as u32);
        let start = Instant::now();
        let flushing = cached.clone();
        run(&disk, async move { flushing.flush().await.expect("flush") });
        println!("flush of {} bytes: {:?}", 32 * len, start.elapsed());
    }
}
