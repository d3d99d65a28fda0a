//! `cat`.

use super::{file_error, reading, volume_path};
use crate::cli;
use crate::failure::{DONE, Failure, Outcome};
use crate::output::ignore_closed_pipe;
use std::io::Write;
use weft::vfs::{Error as FsError, FileKind, Walker};
use weft::volume::VolumePath;

/// The size of one read, in bytes.
const RUN_BYTES: usize = 1 << 20;

/// `cat`.
pub fn run(args: &cli::Cat) -> Outcome {
    let paths: Vec<VolumePath> =
        args.paths.iter().map(|p| volume_path(p)).collect::<Result<_, Failure>>()?;
    run_paths(&paths, args.resource)
}

/// Writes files to standard output: the data of each, or its resource fork.
pub fn run_paths(paths: &[VolumePath], resource: bool) -> Outcome {
    let mut stdout = std::io::stdout().lock();
    let mut buffer = vec![0; RUN_BYTES];
    for run in paths.chunk_by(|a, b| a.image == b.image) {
        reading(&run[0].image, |stack| {
            let walker = Walker::new(stack.fs());
            for place in run {
                let failed = |e| file_error("read", &place.path, e);
                let node = walker.resolve(&place.path).map_err(failed)?;
                match node.kind() {
                    FileKind::Regular => {}
                    FileKind::Directory => return Err(failed(FsError::IsADirectory)),
                    _ => return Err(failed(FsError::Invalid("it is no regular file"))),
                }
                let mac = stack.mac().filter(|_| resource);
                if resource && mac.is_none() {
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
        })?;
    }
    Ok(DONE)
}
