//! What `DAFS_TEST_SERVE` holds (`--datapath mmap --policy mq --disk direct`), for servers in the
//! process of a test: whole suites run with it.

use dafs_server::{Config, Policy};

/// Sets what is wanted.
///
/// # Panics
/// When it is nothing that `dafs serve` knows.
pub fn apply_wanted(config: &mut Config) {
    let text = std::env::var("DAFS_TEST_SERVE").unwrap_or_default();
    let words: Vec<&str> = text.split_whitespace().collect();
    for pair in words.chunks(2) {
        match *pair {
            ["--datapath", path] => {
                config.exports[0].data_path = path.parse().expect("a data path")
            }
            ["--policy", name] => {
                config.policy = Some(Policy::named(name).expect("a policy"));
            }
            ["--disk", how] => config.disk = how.parse().expect("a way to the disk"),
            _ => panic!("DAFS_TEST_SERVE: {pair:?}"),
        }
    }
}
