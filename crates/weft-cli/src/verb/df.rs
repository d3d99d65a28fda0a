//! `df`.

use super::reading;
use crate::cli;
use crate::failure::{DONE, Outcome};
use crate::output::{Output, human};
use serde::Serialize;

#[derive(Serialize)]
struct Row {
    image: String,
    block_bytes: u32,
    blocks: u64,
    blocks_free: u64,
    blocks_available: u64,
    inodes: u64,
    inodes_free: u64,
}

impl Row {
    fn bytes(&self, blocks: u64) -> u64 {
        blocks.saturating_mul(u64::from(self.block_bytes))
    }
}

/// `df`.
pub fn run(out: Output, args: &cli::Df) -> Outcome {
    let mut rows = Vec::new();
    for image in &args.images {
        let s = reading(image, |stack| {
            stack.fs().statfs().map_err(|e| super::file_error("ask the state of", b"/", e))
        })?;
        rows.push(Row {
            image: image.clone(),
            block_bytes: s.block_bytes,
            blocks: s.blocks,
            blocks_free: s.blocks_free,
            blocks_available: s.blocks_available,
            inodes: s.inodes,
            inodes_free: s.inodes_free,
        });
    }
    out.report(&rows, |w| {
        let wide = rows.iter().map(|r| r.image.len()).max().unwrap_or(0).max(6);
        writeln!(w, "{:<wide$}   size   used  avail  use     inodes       free", "volume")?;
        for row in &rows {
            let used = row.blocks.saturating_sub(row.blocks_free);
            let of = used.saturating_add(row.blocks_available).max(1);
            writeln!(
                w,
                "{:<wide$} {:>6} {:>6} {:>6} {:>3}% {:>10} {:>10}",
                row.image,
                human(row.bytes(row.blocks)),
                human(row.bytes(used)),
                human(row.bytes(row.blocks_available)),
                used.saturating_mul(100).div_ceil(of),
                row.inodes,
                row.inodes_free
            )?;
        }
        Ok(())
    })?;
    Ok(DONE)
}
