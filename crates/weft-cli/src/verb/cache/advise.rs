//! `cache advise`: simulates caches of several sizes and policies on a trace.

use super::size;
use crate::cli::cache::Advise;
use crate::failure::{DONE, Failure, Outcome};
use crate::output::{Output, human};
use serde_json::json;
use weft::cache::advise::{AdviseOptions, advise};
use weft::cache::trace::{self, Format};

/// `cache advise`.
pub fn run(out: Output, args: &Advise) -> Outcome {
    let block_bytes = u32::try_from(size(&args.block_size)?)
        .map_err(|_| Failure::usage(format!("{} is no size of a block", args.block_size)))?;
    let failed = |e: trace::TraceError| Failure::new(format!("{}: {e}", args.trace.display()));
    let format = match &args.format {
        Some(name) => name.parse::<Format>().map_err(|e| Failure::usage(e.to_string()))?,
        None => Format::of_path(&args.trace).ok_or_else(|| {
            let name = args.trace.display();
            Failure::usage(format!(
                "{name}: say what it is with --format oracleGeneral, csv or arc"
            ))
        })?,
    };
    let sizes = args.size.iter().map(|s| Ok(size(s)? / u64::from(block_bytes)));
    let mut options = AdviseOptions {
        sizes: sizes.collect::<Result<_, Failure>>()?,
        block_bytes,
        ..AdviseOptions::default()
    };
    if !args.policy.is_empty() {
        options.policies.clone_from(&args.policy);
    }
    let progress = out.progress("reading the trace");
    let requests = trace::open(&args.trace, &format).map_err(failed)?;
    let requests = match args.address_bytes {
        Some(address_bytes) => trace::cut(requests, address_bytes, block_bytes),
        None => requests,
    };
    let advice = advise(requests, &options).map_err(failed)?;
    drop(progress);

    let points = |curve: &weft::cache::advise::Curve| {
        curve
            .points
            .iter()
            .map(|p| json!({ "slots": p.slots, "hit_ratio": p.hit_ratio }))
            .collect::<Vec<_>>()
    };
    let report = json!({
        "trace": args.trace.display().to_string(),
        "requests": advice.requests,
        "blocks": advice.blocks,
        "exact": advice.exact,
        "sampled": advice.rate,
        "curves": advice.curves.iter().map(|c| json!({
            "policy": c.policy.to_string(), "points": points(c),
        })).collect::<Vec<_>>(),
        "recommended": advice.recommended.as_ref().map(|r| json!({
            "slots": r.slots,
            "bytes": r.slots * u64::from(block_bytes),
            "policy": r.policy.to_string(),
            "hit_ratio": r.hit_ratio,
            "reasons": r.reasons,
        })),
    });
    out.report(&report, |w| {
        let all = human(advice.blocks * u64::from(block_bytes));
        writeln!(w, "{} accesses to {} blocks ({all})", advice.requests, advice.blocks)?;
        if !advice.exact {
            writeln!(w, "estimated from {:.2}% of the blocks", advice.rate * 100.0)?;
        }
        write!(w, "\n{:>10}", "size")?;
        for curve in &advice.curves {
            write!(w, " {:>14}", curve.policy.to_string())?;
        }
        writeln!(w, "   (misses, % of accesses)")?;
        let sizes = advice.curves.first().map_or(0, |c| c.points.len());
        for i in 0..sizes {
            let slots = advice.curves[0].points[i].slots;
            write!(w, "{:>10}", human(slots * u64::from(block_bytes)))?;
            for curve in &advice.curves {
                write!(w, " {:>14.2}", 100.0 * (1.0 - curve.points[i].hit_ratio))?;
            }
            writeln!(w)?;
        }
        match &advice.recommended {
            Some(r) => {
                let bytes = human(r.slots * u64::from(block_bytes));
                let hits = r.hit_ratio * 100.0;
                writeln!(w, "\nTake {bytes} with {}: {hits:.1}% hits.", r.policy)?;
                for reason in &r.reasons {
                    writeln!(w, "{reason}")?;
                }
                Ok(())
            }
            None => writeln!(w, "\nNo block is used twice: no cache would help."),
        }
    })?;
    Ok(DONE)
}
