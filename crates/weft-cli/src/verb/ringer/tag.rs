//! `ringer tag`: the tags of files, in the format of desktops.

use super::no_cell;
use super::xattr::{get, remove, set};
use crate::cli::ringer::Tag;
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Output;
use rustix::io::Errno;
use serde::Serialize;
use std::collections::BTreeSet;
use std::path::Path;
use weft::ringer::TAGS_XATTR;

/// A file and its tags, as JSON.
#[derive(Debug, Serialize)]
struct TagReport {
    path: String,
    tags: BTreeSet<String>,
}

fn tags(path: &Path) -> Result<BTreeSet<String>, Errno> {
    let text = match get(path, TAGS_XATTR) {
        Err(Errno::NODATA) => String::new(),
        text => text?,
    };
    let tags = text.split(',').map(str::trim).filter(|tag| !tag.is_empty());
    Ok(tags.map(str::to_owned).collect())
}

/// `ringer tag`.
pub(super) fn tag(out: Output, args: &Tag) -> Outcome {
    let all = args.add.iter().chain(&args.remove);
    if let Some(bad) = all.clone().find(|tag| tag.contains(',') || tag.trim().is_empty()) {
        return Err(Failure::usage(format!(
            "invalid tag '{bad}': it is empty or contains a comma"
        )));
    }
    let mut reports = Vec::new();
    for path in &args.paths {
        let mut tags = tags(path).map_err(|e| no_cell(path, e))?;
        if all.clone().next().is_some() {
            let before = tags.clone();
            tags.extend(args.add.iter().map(|tag| tag.trim().to_owned()));
            tags.retain(|tag| !args.remove.iter().any(|gone| gone.trim() == tag));
            let text = tags.iter().map(String::as_str).collect::<Vec<_>>().join(",");
            let done = match (tags == before, tags.is_empty()) {
                (true, _) => Ok(()),
                (false, true) => remove(path, TAGS_XATTR),
                (false, false) => set(path, TAGS_XATTR, text.as_bytes()),
            };
            done.map_err(|e| no_cell(path, e))?;
        }
        reports.push(TagReport { path: path.display().to_string(), tags });
    }
    out.report(&reports, |to| {
        reports.iter().try_for_each(|TagReport { path, tags }| {
            let tags = tags.iter().map(String::as_str).collect::<Vec<_>>().join(",");
            writeln!(to, "{path}: {tags}")
        })
    })?;
    Ok(DONE)
}
