//! `cat`.

use super::{by_volume, file_error, reading};
use crate::cli;
use crate::failure::Outcome;
use crate::output::ignore_closed_pipe;
use std::io::Write;
use weft::vfs::{Error as FsError, FileKind, Walker};

/// How much is read at a time, in bytes.
const RUN_BYTES: usize = 1 << 20;

/// `cat`.
pub fn run(args: &cli::Cat) -> Outcome {
    let mut stdout = std::io::stdout().lock();
    let mut buffer = vec![0; RUN_BYTES];
    by_volume(&args.paths, |image, paths| {
        reading(image, |stack| {
            let walker = Walker::new(stack.fs());
            for place in paths {
                let failed = |e| file_error("read", &place.path, e);
                let node = walker.resolve(&place.path).map_err(failed)?;
                match node.kind() {
                    FileKind::Regular => {}
                    FileKind::Directory => return Err(failed(FsError::IsADirectory)),
                    _ => return Err(failed(FsError::Invalid("it is no regular file"))),
                }
                let mac = stack.mac().filter(|_| args.resource);
                if args.resource && mac.is_none() {
                    return Err(failed(FsError::Unsupported("its files have one fork")));
                }
                let mut at = 0;
                loop {
                    let got = match &mac {
                        Some(mac) => mac.read_resource(node.ino(), at, &mut buffer),
                        None => node.read_at(at, &mut buffer),
                    }
                    .map_err(failed)?;
                    if got == 0 {
                        break;
                    }
                    match stdout.write_all(&buffer[..got]) {
                        Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => return Ok(()),
                        other => ignore_closed_pipe(other)?,
                    }
                    at += got as u64;
                }
            }
            ignore_closed_pipe(stdout.flush())
        })
    })
}
