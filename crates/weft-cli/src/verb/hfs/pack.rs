//! `get --as` and `put --as`: files packed with both their forks.

use crate::cli;
use crate::cli::hfs::As;
use crate::failure::{DONE, FAILED, Failure, Outcome};
use crate::output::{Output, TallyReport};
use crate::verb::damage::Damage;
use crate::verb::landing::landing;
use crate::verb::{change_options, changing_with, file_error, reading};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::Instant;
use weft::transfer::Tally;
use weft::transfer::mac::{PackOut, Packed, Packing, Saying, UnpackIn};
use weft::vfs::Walker;
use weft::volume::VolumePath;

fn packing(format: Option<As>) -> Option<Packing> {
    match format {
        None | Some(As::Xattr) => None,
        Some(As::Auto) => Some(Packing::Auto),
        Some(As::Basilisk) => Some(Packing::Basilisk),
        Some(As::Packed(format)) => Some(Packing::As(format)),
    }
}

fn report(out: Output, total: &Tally, began: Instant) -> Outcome {
    let report = TallyReport::new(total, began.elapsed());
    out.confirm(&report, &format!("copied {}", report.sentence()))?;
    Ok(DONE)
}

fn add(total: &mut Tally, tally: &Tally) {
    total.files += tally.files;
    total.directories += tally.directories;
    total.bytes += tally.bytes;
}

/// `get --as`.
pub fn get(
    out: Output,
    from: &[VolumePath],
    to: &Path,
    (format, strict): (Option<As>, bool),
) -> Outcome {
    let began = Instant::now();
    let mut total = Tally::default();
    let into = to.is_dir();
    if from.len() > 1 && !into {
        let to = to.display();
        return Err(Failure::usage(format!("{to} is no directory, and there are several sources")));
    }
    let packing = packing(format).unwrap_or(Packing::Auto);
    let mut damage = Damage::new(out, strict);
    let mut earlier: Option<Packed> = None;
    for run in from.chunk_by(|a, b| a.image == b.image) {
        reading(&run[0].image, |stack| {
            let volume = super::mac_of(stack)?;
            let walker = Walker::new(stack.fs());
            for place in run {
                let node = walker
                    .resolve_link(&place.path)
                    .map_err(|e| file_error("read", &place.path, e))?;
                let own = place.path.split(|b| *b == b'/').rfind(|name| !name.is_empty());
                // The whole volume goes into the existing directory, or into a new one.
                let into = into && own.is_some();
                let packed = PackOut::new(packing, &place.path)
                    .go_on_from(earlier.take())
                    .past_damage(|e| damage.pass_error(e))
                    .send(&*volume, &node, own.unwrap_or(b""), to, into)?;
                packed.left_out.iter().for_each(|what| out.note(what));
                packed.renamed.iter().for_each(|what| out.note(what));
                add(&mut total, &packed.tally);
                earlier = Some(packed);
            }
            damage.look(stack)
        })?;
    }
    report(out, &total, began)?;
    damage.outcome()
}

/// `put --as`, and with `--type` or `--creator`.
pub fn put(out: Output, from: &[std::path::PathBuf], to: &VolumePath, args: &cli::Put) -> Outcome {
    let began = Instant::now();
    let mut total = Tally::default();
    let mut refused = 0;
    for path in from {
        if let Err(e) = std::fs::metadata(path) {
            return Err(weft::Error::host("read", path, e).into());
        }
    }
    let saying = Saying {
        file_type: args.file_type.map(|code| code.0),
        creator: args.creator.map(|code| code.0),
    };
    changing_with(&to.image, &change_options(&args.opening), |stack| {
        let volume = super::mac_of(stack)?;
        let walker = Walker::new(stack.fs());
        let landing = landing(&walker, &to.path, from.len())?;
        let mut unpack = UnpackIn::new(&*volume, packing(args.format), saying);
        let dir = landing.dir.ino();
        for path in from {
            if path.is_dir() && path.as_os_str().as_bytes().ends_with(b"/.") {
                unpack.put_all(path, dir, &landing.shown)?;
            } else {
                unpack.put(path, dir, landing.name.as_deref(), &landing.shown)?;
            }
        }
        add(&mut total, &unpack.tally());
        unpack.remarks().iter().for_each(|what| out.note(what));
        unpack.refused().iter().for_each(|what| out.error(what));
        refused = unpack.refused().len();
        Ok(())
    })?;
    report(out, &total, began)?;
    Ok(if refused == 0 { DONE } else { FAILED })
}
