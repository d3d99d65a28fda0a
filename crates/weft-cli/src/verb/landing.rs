//! The destination of copies into a volume.

use super::file_error;
use crate::failure::Failure;
use weft::transfer::{Ownership, VolumeSink};
use weft::vfs::{Error as FsError, Node, Walker};

/// The destination in a volume: a directory, and the name in it unless each copy keeps its own.
pub struct Landing<'a> {
    pub dir: Node<'a>,
    pub name: Option<Vec<u8>>,
    pub shown: Vec<u8>,
}

pub fn landing<'a>(
    walker: &Walker<'a>,
    path: &[u8],
    sources: usize,
) -> Result<Landing<'a>, Failure> {
    let failed = |e| file_error("copy to", path, e);
    match walker.resolve(path) {
        Ok(node) if node.is_dir() => Ok(Landing { dir: node, name: None, shown: path.to_vec() }),
        Ok(_) | Err(FsError::NotFound) if sources == 1 => {
            let place = walker.place(path).map_err(failed)?;
            if place.wants_dir {
                return Err(failed(FsError::NotFound));
            }
            let end = path.iter().rposition(|b| *b == b'/').map_or(0, |at| at + 1);
            Ok(Landing { dir: place.dir, name: Some(place.name), shown: path[..end].to_vec() })
        }
        Ok(_) => Err(failed(FsError::NotADirectory)),
        Err(e) => Err(failed(e)),
    }
}

impl<'a> Landing<'a> {
    /// Returns the sink for a source that is to be called `name`.
    pub fn named(
        &self,
        walker: &Walker<'a>,
        name: &[u8],
        ownership: Ownership,
    ) -> Result<VolumeSink<'a>, Failure> {
        let dir = self.dir.lookup(b".").map_err(|e| file_error("copy to", &self.shown, e))?;
        Ok(VolumeSink::new(walker.fs(), dir, Some(name), &self.shown, ownership))
    }

    /// Returns the sink for a source called `own_name` (`None`: its content goes into the
    /// directory).
    pub fn sink(
        &self,
        walker: &Walker<'a>,
        own_name: Option<&[u8]>,
        ownership: Ownership,
    ) -> Result<VolumeSink<'a>, Failure> {
        let fs = walker.fs();
        let dir = self.dir.lookup(b".").map_err(|e| file_error("copy to", &self.shown, e))?;
        let name = self.name.as_deref().or(own_name);
        Ok(VolumeSink::new(fs, dir, name, &self.shown, ownership))
    }
}
