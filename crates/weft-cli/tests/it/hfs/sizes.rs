//! mkfs at every size, on sparse images: weft's own check and hfsutils agree.

use super::{have, run};
use crate::run::Bench;

/// Makes a volume of so many 512-byte blocks, has it checked, and lets hfsutils list it.
fn one(bench: &Bench, blocks: u64, with_hfsutils: bool) {
    let image = "v.img";
    let _ = std::fs::remove_file(bench.path(image));
    let size = format!("{}", blocks * 512);
    bench.ok(&["mkfs", "hfs", image, "--size", &size, "--label", "Sweep", "--quiet"]);
    let report = bench.json(&["fsck", image]);
    assert_eq!(report["clean"], true, "{blocks} blocks: {report}");
    let alloc = bench.json(&["info", image])["block_bytes"].as_u64().unwrap();
    assert!(blocks / (alloc / 512) <= 65_535, "{blocks} blocks of {alloc}");
    // libhfs takes no volume of less than 800K, and counts bytes with 31 bits of blocks.
    if with_hfsutils && (1600..1 << 31).contains(&blocks) {
        run(bench.dir(), "hmount", &[image]);
        run(bench.dir(), "hls", &["-a"]);
        run(bench.dir(), "humount", &[]);
    }
}

#[test]
fn a_few_sizes() {
    let bench = Bench::new();
    let with_hfsutils = have(&["hmount", "hls", "humount"]);
    // 400K, the last and the first of an allocation block of two sectors, 1 GiB, the end.
    for blocks in [800, 1600, 2880, 65_535, 65_536, 131_071, 1 << 21, (1 << 32) - 1] {
        one(&bench, blocks, with_hfsutils);
    }
}

#[test]
#[ignore = "the whole sweep; run by scripts/test-long.sh"]
fn long_all_powers_of_two_and_their_neighbours() {
    let bench = Bench::new();
    let with_hfsutils = have(&["hmount", "hls", "humount"]);
    for power in 0..=32 {
        for delta in [-2_i64, -1, 0, 1, 2] {
            let blocks = (1_i64 << power) + delta;
            if let Ok(blocks) = u64::try_from(blocks)
                && (800..=1 << 32).contains(&blocks)
            {
                one(&bench, blocks, with_hfsutils);
            }
        }
    }
}
