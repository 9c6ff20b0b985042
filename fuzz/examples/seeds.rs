//! `seeds DIRECTORY`: writes well-formed inputs of every target, where libFuzzer starts from.

use std::path::PathBuf;

fn main() -> std::io::Result<()> {
    let root = PathBuf::from(std::env::args().nth(1).unwrap_or_else(|| "corpus".into()));
    for target in dafs_fuzz::TARGETS {
        let folder = root.join(target.name);
        std::fs::create_dir_all(&folder)?;
        for (index, seed) in dafs_fuzz::seeds(target, 200).iter().enumerate() {
            std::fs::write(folder.join(format!("seed-{index:03}")), seed)?;
        }
    }
    Ok(())
}
