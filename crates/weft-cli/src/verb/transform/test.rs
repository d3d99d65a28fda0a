//! `transform test`: checks that data stored through a network reads back the same.

use super::networks;
use crate::cli::transform::Test;
use crate::failure::{DONE, FAILED, Outcome};
use crate::output::{Output, human};
use serde::Serialize;
use weft::transform::store::{Limits, MemoryBase, open};
use weft::transform::text::Side;
use weft::transform::{Error, Need, Network, Write};

/// The result for one sample.
#[derive(Debug, Serialize)]
struct Tried {
    sample: String,
    bytes: usize,
    stored_bytes: usize,
    same: bool,
    error: Option<String>,
}

/// Samples for common errors: empty, single bytes, lengths around those of blocks, text, noise,
/// zeroes.
fn samples() -> Vec<(String, Vec<u8>)> {
    let text = b"a line of text that repeats itself, \xc3\xa4\xc3\xb6\xc3\xbc included\n";
    let mut word = 1_u64;
    let mut noise = |len: usize| -> Vec<u8> {
        let next = || {
            // xorshift64
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word as u8
        };
        std::iter::repeat_with(next).take(len).collect()
    };
    let mut all = vec![("nothing".to_owned(), Vec::new())];
    for len in [1, 4095, 4096, 4097, 65_535, 65_536, 131_073, 1 << 20] {
        all.push((format!("{len} bytes of noise"), noise(len)));
        all.push((format!("{len} zeroes"), vec![0; len]));
        let lines = text.iter().copied().cycle().take(len).collect();
        all.push((format!("{len} bytes of text"), lines));
    }
    all.push(("every byte".to_owned(), (0..=255).collect()));
    all
}

/// Stores a sample and reads it back, through a second open file, in pieces of odd length.
fn there_and_back(network: &Network, sample: &[u8]) -> Result<(usize, bool), Error> {
    let base = MemoryBase::default();
    let mut store = open(Box::new(base.clone()), network, &Limits::default())?;
    for (at, piece) in sample.chunks(10_007).enumerate() {
        store.write_at(at as u64 * 10_007, piece)?;
    }
    store.commit()?;
    drop(store);
    let stored = base.content();
    let mut store = open(Box::new(MemoryBase::new(stored.clone())), network, &Limits::default())?;
    let mut back = Vec::new();
    let mut piece = vec![0; 9973];
    loop {
        let got = store.read_at(back.len() as u64, &mut piece)?;
        if got == 0 {
            break;
        }
        back.extend_from_slice(&piece[..got]);
    }
    Ok((stored.len(), back == sample))
}

/// `test`.
pub fn run(out: Output, args: &Test) -> Outcome {
    let network = networks(&args.keys).registry()?.parse(&args.network)?;
    if network.text().side == Side::View {
        return Err(crate::failure::Failure::usage(
            "a view is only read; give the network that stores",
        ));
    }
    let mut all = samples();
    for path in &args.samples {
        let content = std::fs::read(path).map_err(|e| weft::Error::host("read", path, e))?;
        all.push((path.display().to_string(), content));
    }
    let mut tried = Vec::new();
    for (sample, content) in all {
        let (stored_bytes, same, error) = match there_and_back(&network, &content) {
            Ok((stored, same)) => (stored, same, None),
            Err(e) => (0, false, Some(e.to_string())),
        };
        tried.push(Tried { sample, bytes: content.len(), stored_bytes, same, error });
    }
    let failed = tried.iter().filter(|t| !t.same).count();
    let need = Need { exact_size: true, random_read: true, write: Write::Rewrite };
    let refused = network.check(&need).err().map(|refusal| Error::Refused(refusal).to_string());
    let report = serde_json::json!({
        "network": network.to_string(), "samples": tried, "failed": failed, "refused": refused,
    });
    out.report(&report, |w| {
        for t in &tried {
            let stored = human(t.stored_bytes as u64);
            match (&t.error, t.same) {
                (Some(error), _) => writeln!(w, "FAILED  {}: {error}", t.sample)?,
                (None, false) => writeln!(w, "FAILED  {}: reads back different data", t.sample)?,
                (None, true) => writeln!(w, "ok      {} ({stored} stored)", t.sample)?,
            }
        }
        writeln!(w, "{network}: {} samples, {failed} failed", tried.len())?;
        refused.iter().try_for_each(|why| writeln!(w, "no file can be written through it: {why}"))
    })?;
    Ok(if failed == 0 { DONE } else { FAILED })
}
