//! How fast stages in place run, beside copying memory: `cargo run --release --example fused_speed`.
//!
//! For 1 to 25 stages: GB/s over 256 MiB of memory, and what a further stage costs in CPU seconds
//! per GiB. A stage that ran over all of memory by itself would cost what the copy costs; fused, it
//! costs arithmetic on a block that is in the cache.

use std::time::Instant;

use weft_transform::exec::{BLOCK_BYTES, Fused};
use weft_transform::{Context, Io, Registry};

const BYTES: usize = 256 << 20;
const ROUNDS: usize = 5;

/// The least seconds of some rounds.
fn best(mut round: impl FnMut()) -> f64 {
    let times = (0..ROUNDS).map(|_| {
        let start = Instant::now();
        round();
        start.elapsed().as_secs_f64()
    });
    times.fold(f64::INFINITY, f64::min)
}

fn gb_per_s(bytes: usize, seconds: f64) -> f64 {
    bytes as f64 / seconds / 1e9
}

fn main() -> weft_transform::Result<()> {
    let registry = Registry::new(Context::default());
    let mut data = vec![1_u8; BYTES];
    let mut copy = vec![0_u8; BYTES];
    let seconds = best(|| copy.copy_from_slice(&data));
    println!("copy           {:6.1} GB/s", gb_per_s(BYTES, seconds));

    let fused = |text: &str| -> weft_transform::Result<Fused> {
        Ok(Fused::new(registry.parse(text)?.layers(), Io::Read).unwrap_or_default())
    };
    let increment = fused("view: increment")?;
    let mut block = vec![1_u8; BLOCK_BYTES];
    let rounds = BYTES / BLOCK_BYTES;
    let seconds = best(|| {
        for _ in 0..rounds {
            increment.apply(0, &mut block).unwrap_or_default();
        }
    });
    println!("increment, one block in the cache {:6.1} GB/s", gb_per_s(BYTES, seconds));
    for text in ["rot13", "upper", "xor hex=0123456789abcdef"] {
        let stage = fused(&format!("view: {text}"))?;
        let seconds = best(|| stage.apply(0, &mut data).unwrap_or_default());
        println!("{text:30} {:6.1} GB/s", gb_per_s(BYTES, seconds));
    }

    let mut one = 0.0;
    for stages in [1, 2, 4, 8, 16, 25] {
        let network = fused(&format!("view: {}", vec!["increment"; stages].join(" | ")))?;
        let alone = best(|| network.apply(0, &mut data).unwrap_or_default());
        let two = best(|| network.apply_parallel(0, &mut data, 2).unwrap_or_default());
        if stages == 1 {
            one = alone;
        }
        let further = if stages > 1 {
            let gib = BYTES as f64 / f64::from(1 << 30);
            format!(", a further stage {:.4} CPU s/GiB", (alone - one) / (stages - 1) as f64 / gib)
        } else {
            String::new()
        };
        println!(
            "{stages:2} increments  {:6.1} GB/s, two threads {:6.1} GB/s{further}",
            gb_per_s(BYTES, alone),
            gb_per_s(BYTES, two),
        );
    }
    Ok(())
}
