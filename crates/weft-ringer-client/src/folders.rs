//! Query folders: `/.query/tag:un kind:file/` has a link to each file that matches the query.
//!
//! `.query` is in the root of every mount and in no listing. A folder in it is made by looking it
//! up; nothing of it is stored in the cell. Its links have the names of their targets; if several
//! targets share a name, their links have the whole path instead, with `:` for `/`.
//!
//! A folder is searched anew whenever it is listed from its beginning, after the changes made here
//! are sent to the server; so a listing is of one moment, and not older than its first call. A name
//! that is looked up is taken from the last answer for [`ANSWER_LASTS`].

use std::sync::Arc;
use std::time::{Duration, Instant};

use weft_ringer::query::Query;
use weft_ringer::{Bytes, CellId, RnodeId};
use weft_ringer_net::{self as net, Answer, Ask, Hit};
use weft_vfs::{Attr, DirCursor, DirEntry, Entry, Error, FileKind, Ino, Result};

use super::client_fs::ClientFs;
use super::folder_table::{
    Asked, CELLS_XATTR, CellAnswer, Found, Place, TOP, attr, attr_of_top, like_directory, named,
    target,
};
use super::mutex::locked;

/// The attribute of a query folder that is 1 if it has all matches, else 0.
pub const COMPLETE_XATTR: &[u8] = b"user.weft.complete";
/// The time for which names are looked up in the last answer.
const ANSWER_LASTS: Duration = Duration::from_secs(1);
/// The most links of one folder.
const LINKS_MAX: u32 = 10_000;
/// The longest list of cells, without its last line, in bytes.
const CELLS_MAX_BYTES: usize = 60 << 10;

impl ClientFs {
    /// The folder of query folders, as an entry of the root.
    pub(super) fn enter_top(&self) -> Entry {
        Entry { attr: attr_of_top(), generation: 0 }
    }

    /// Looks `name` up in the folder `parent`.
    pub(super) fn find_in_folder(&self, parent: Ino, name: &[u8]) -> Result<Entry> {
        if let Some(dir) = self.directory_of_snapshots(parent) {
            return match name {
                b"." => self.enter_again(parent.0),
                b".." => self.entry(dir),
                _ => self.entry(self.find_snapshot(dir, name)?),
            };
        }
        match name {
            b"." => return self.enter_again(parent.0),
            b".." if parent.0 == TOP => return self.entry(RnodeId::ROOT),
            b".." => return Ok(self.enter_top()),
            _ => {}
        }
        if parent.0 == TOP {
            let text = std::str::from_utf8(name).map_err(|_| Error::NotFound)?;
            text.parse::<Query>().map_err(|e| {
                tracing::info!("invalid query folder '{text}': {e}");
                Error::Invalid("not a query")
            })?;
            return Ok(locked(&self.folders.table).enter(Place::Folder(text.to_owned())));
        }
        let found = self.look(parent.0, Some(ANSWER_LASTS))?;
        let at = found.links.binary_search_by(|link| link.0.as_slice().cmp(name));
        let path = at.ok().and_then(|at| found.links.get(at)).ok_or(Error::NotFound)?.1.clone();
        Ok(locked(&self.folders.table).enter(Place::Link(path)))
    }

    /// The folder of the snapshots of a directory.
    pub(super) fn enter_snapshots(&self, dir: RnodeId) -> Result<Entry> {
        let rnode = self.get(dir)?;
        if !rnode.is_dir() {
            return Err(Error::NotADirectory);
        }
        let dir_attr = self.attr(&rnode)?;
        let entry = locked(&self.folders.table).enter(Place::Snapshots(dir));
        Ok(Entry { attr: like_directory(entry.attr, &dir_attr), ..entry })
    }

    /// The directory whose snapshots are in a folder, if it is a folder of snapshots.
    fn directory_of_snapshots(&self, ino: Ino) -> Option<RnodeId> {
        match locked(&self.folders.table).nodes.get(&ino.0)?.place {
            Place::Snapshots(dir) => Some(dir),
            Place::Folder(_) | Place::Link(_) => None,
        }
    }

    fn enter_again(&self, number: u64) -> Result<Entry> {
        if number == TOP {
            return Ok(self.enter_top());
        }
        if let Some(dir) = self.directory_of_snapshots(Ino(number)) {
            return self.enter_snapshots(dir);
        }
        let mut table = locked(&self.folders.table);
        let place = table.nodes.get(&number).map(|node| node.place.clone());
        Ok(table.enter(place.ok_or(Error::Stale(number))?))
    }

    /// Drops `count` references of the front end to a folder or link.
    pub(super) fn forget_of_folders(&self, ino: Ino, count: u64) {
        locked(&self.folders.table).forget(ino.0, count);
    }

    /// The attributes of a folder or link.
    pub(super) fn attr_of_folders(&self, ino: Ino) -> Result<Attr> {
        if ino.0 == TOP {
            return Ok(attr_of_top());
        }
        let attr = {
            let table = locked(&self.folders.table);
            let node = table.nodes.get(&ino.0).ok_or(Error::Stale(ino.0))?;
            attr(ino.0, Some(node))
        };
        match self.directory_of_snapshots(ino) {
            Some(dir) => {
                let dir = self.get(dir).and_then(|rnode| self.attr(&rnode))?;
                Ok(like_directory(attr, &dir))
            }
            None => Ok(attr),
        }
    }

    /// The target of a link.
    pub(super) fn read_link_of_folders(&self, ino: Ino) -> Result<Vec<u8>> {
        match locked(&self.folders.table).nodes.get(&ino.0).map(|node| &node.place) {
            Some(Place::Link(path)) => Ok(target(path)),
            _ => Err(Error::Invalid("not a symbolic link")),
        }
    }

    /// An attribute of a folder: whether it has all matches, or the result of each cell's search.
    pub(super) fn told_of_folder(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        let is_known = name == COMPLETE_XATTR || name == CELLS_XATTR;
        if !is_known || ino.0 == TOP || self.directory_of_snapshots(ino).is_some() {
            return Err(Error::NoAttribute);
        }
        let found = self.look(ino.0, Some(ANSWER_LASTS))?;
        Ok(if name == CELLS_XATTR {
            found.cells.clone().into_bytes()
        } else if found.complete {
            b"1".to_vec()
        } else {
            b"0".to_vec()
        })
    }

    /// Calls `each` with the names of a folder, from `cursor` on.
    pub(super) fn read_folder(
        &self,
        ino: Ino,
        cursor: DirCursor,
        each: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let of = self.directory_of_snapshots(ino);
        let above = match of {
            Some(dir) => dir.0,
            None if ino.0 == TOP => RnodeId::ROOT.0,
            None => TOP,
        };
        for (at, name, number) in [(0, &b"."[..], ino.0), (1, b"..", above)] {
            let next = DirCursor(at + 1);
            let entry = DirEntry { ino: Ino(number), kind: FileKind::Directory, name, next };
            if cursor.0 <= at && !each(entry) {
                return Ok(());
            }
        }
        if ino.0 == TOP {
            return Ok(());
        }
        if let Some(dir) = of {
            return self.read_snapshots(dir, cursor, each);
        }
        let found = self.look(ino.0, (cursor.0 > 0).then_some(Duration::MAX))?;
        for (index, (name, path)) in (2_u64..).zip(&found.links).skip_while(|(i, _)| *i < cursor.0)
        {
            let ino = Ino(Place::Link(path.clone()).number());
            let next = DirCursor(index + 1);
            if !each(DirEntry { ino, kind: FileKind::Symlink, name, next }) {
                return Ok(());
            }
        }
        Ok(())
    }

    /// The content of a folder: the last answer, if it is not older than `lasts`.
    fn look(&self, number: u64, lasts: Option<Duration>) -> Result<Arc<Found>> {
        let text = {
            let table = locked(&self.folders.table);
            let old =
                table.found.get(&number).filter(|f| lasts.is_some_and(|l| f.at.elapsed() < l));
            if let Some(found) = old {
                return Ok(Arc::clone(found));
            }
            match table.nodes.get(&number).map(|node| &node.place) {
                Some(Place::Folder(text)) => text.clone(),
                Some(Place::Link(_) | Place::Snapshots(_)) => return Err(Error::NotADirectory),
                None => return Err(Error::Stale(number)),
            }
        };
        // Tags and writes made here must be found.
        if !self.engine.is_all_flushed() {
            self.engine.sync()?;
        }
        self.tell_texts();
        let found = Arc::new(self.search(&text)?);
        let mut table = locked(&self.folders.table);
        if table.nodes.contains_key(&number) {
            table.found.insert(number, Arc::clone(&found));
        }
        Ok(found)
    }

    /// Sends the query to the server that owns the cell.
    fn search(&self, text: &str) -> Result<Found> {
        let options = &self.engine.options;
        let tls = options.tls.as_ref().map(|(client, _)| client);
        let question = Ask::Search { query: Bytes(text.as_bytes().to_vec()), limit: LINKS_MAX };
        let mut why = None;
        for server in &options.servers {
            match net::ask(server, tls, &question) {
                Ok(Answer::Found { hits, complete }) => {
                    return Ok(self.search_attached(text, hits, complete));
                }
                Ok(_) => {}
                Err(e) => why = Some(format!("{server}: {e}")),
            }
        }
        let why = why.unwrap_or_else(|| "no metadata server answers".to_owned());
        tracing::warn!("cannot list the query folder '{text}': {why}");
        Err(Error::Io { errno: rustix::io::Errno::AGAIN.raw_os_error(), message: why })
    }
}

impl ClientFs {
    /// Adds the matches in the attached cells to those found here.
    fn search_attached(&self, text: &str, mut hits: Vec<Hit>, mut complete: bool) -> Found {
        let mut cells = String::new();
        let query = text.parse::<Query>().ok();
        if let (Some(remote), Some(query)) = (self.folders.remote_cells.get(), query) {
            let asked = if complete { Asked::Complete } else { Asked::Cut };
            let (cell, why) = (CellId(self.engine.cell()), String::new());
            let own = CellAnswer { cell, path: Vec::new(), asked, hits, why };
            cells.push_str(&own.line());
            hits = own.hits;
            for answer in remote.search(text, &query) {
                complete &= answer.asked.is_all();
                if cells.len() < CELLS_MAX_BYTES {
                    cells.push_str(&answer.line());
                }
                hits.extend(answer.hits);
            }
            if hits.len() > LINKS_MAX as usize {
                hits.truncate(LINKS_MAX as usize);
                complete = false;
            }
        }
        Found { at: Instant::now(), links: named(hits), complete, cells }
    }
}
