//! `mkdir`, `rm`, `mv`, `ln`.

use super::{by_volume, changing, file_error, volume_path};
use crate::cli;
use crate::failure::{DONE, Failure, Outcome};
use crate::output::{Output, count};
use serde::Serialize;
use std::os::unix::ffi::OsStrExt;
use weft::vfs::{Error as FsError, Node, RenameFlags, Walker};

/// `mkdir`.
pub fn mkdir(args: &cli::Mkdir) -> Outcome {
    by_volume(&args.paths, |image, paths| {
        changing(image, &args.opening, |stack| {
            let walker = Walker::new(stack.fs());
            for place in paths {
                let made = if args.parents {
                    walker.mkdir_all(&place.path, args.mode)
                } else {
                    walker.mkdir(&place.path, args.mode)
                };
                made.map_err(|e| file_error("make directory", &place.path, e))?;
            }
            Ok(())
        })
    })
}

#[derive(Serialize)]
struct Removed {
    removed: u64,
}

/// `rm`.
pub fn rm(out: Output, args: &cli::Rm) -> Outcome {
    let mut removed = 0;
    let progress = out.progress("removing");
    let outcome = by_volume(&args.paths, |image, paths| {
        changing(image, &args.opening, |stack| {
            let walker = Walker::new(stack.fs());
            for place in paths {
                let result = if args.recursive {
                    walker.remove_tree(&place.path, &mut |_| {
                        removed += 1;
                        if removed % 64 == 0 {
                            progress.say(count(removed, "name"));
                        }
                    })
                } else {
                    remove_one(&walker, &place.path).map(|()| removed += 1)
                };
                match result {
                    Err(FsError::NotFound) if args.force => {}
                    other => other.map_err(|e| file_error("remove", &place.path, e))?,
                }
            }
            Ok(())
        })
    })?;
    drop(progress);
    if out.json {
        out.confirm(&Removed { removed }, "")?;
    }
    Ok(outcome)
}

/// Removes a file other than a directory: without --recursive not even an empty one is removed.
fn remove_one(walker: &Walker<'_>, path: &[u8]) -> weft::vfs::Result<()> {
    if walker.resolve_link(path)?.is_dir() {
        return Err(FsError::IsADirectory);
    }
    walker.remove(path)
}

/// `mv`.
pub fn mv(args: &cli::Mv) -> Outcome {
    let (from, to) = (volume_path(&args.from)?, volume_path(&args.to)?);
    if from.image != to.image {
        return Err(Failure::usage(
            "mv works only within one volume; between volumes use weft cp, then weft rm",
        ));
    }
    changing(&from.image, &args.opening, |stack| {
        let walker = Walker::new(stack.fs());
        let mut target = to.path.clone();
        // Where case does not count, a directory whose spelling is to change is its own target.
        let source = walker.resolve_link(&from.path).map(|node| node.ino()).ok();
        let into = |node: &Node<'_>| node.is_dir() && Some(node.ino()) != source;
        if walker.resolve(&target).is_ok_and(|node| into(&node)) {
            let name = last_name(&from.path);
            if !target.ends_with(b"/") {
                target.push(b'/');
            }
            target.extend_from_slice(name);
        }
        let flags = if args.no_replace { RenameFlags::NO_REPLACE } else { RenameFlags::empty() };
        walker.rename(&from.path, &target, flags).map_err(|e| file_error("rename", &from.path, e))
    })?;
    Ok(DONE)
}

fn last_name(path: &[u8]) -> &[u8] {
    path.split(|b| *b == b'/').rfind(|name| !name.is_empty()).unwrap_or(b"")
}

/// `ln`.
pub fn ln(args: &cli::Ln) -> Outcome {
    let link = volume_path(&args.link)?;
    if args.symbolic {
        changing(&link.image, &args.opening, |stack| {
            Walker::new(stack.fs())
                .symlink(&link.path, args.target.as_bytes())
                .map(drop)
                .map_err(|e| file_error("make link", &link.path, e))
        })?;
        return Ok(DONE);
    }
    let target = volume_path(&args.target)?;
    if target.image != link.image {
        return Err(Failure::usage("a hard link cannot cross volumes"));
    }
    changing(&link.image, &args.opening, |stack| {
        Walker::new(stack.fs())
            .link(&target.path, &link.path)
            .map_err(|e| file_error("link", &link.path, e))
    })?;
    Ok(DONE)
}
