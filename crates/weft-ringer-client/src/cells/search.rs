//! Search across cells: the cells attached to the outermost, and to those in turn, are asked
//! directly, several in parallel, within a time limit.
//!
//! A cell is not searched if its summary says that nothing there matches. Its server is asked in
//! any case for the cells attached to it, and says with that whether anything was added since the
//! summary (see [`Summary`]). So nothing is missed; and the result of each cell's search is
//! reported.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use weft_net::{Address, ClientTls};
use weft_ringer::query::Query;
use weft_ringer::{Bytes, CellId, CellMount, Summary};
use weft_ringer_net::{self as net, Answer, Ask, Hit, Observer, PORT};

use super::inner::InnerCells;
use crate::folder_table::{Asked, CellAnswer, RemoteSearch};
use crate::mutex::locked;

/// The number of cells asked in parallel, and the maximum number of a search.
const AT_ONCE: usize = 8;
const CELLS_MAX: usize = 256;
/// The time limit of a search over all cells.
const LIMIT: Duration = Duration::from_secs(5);
/// Threads that wait for cells, including those of finished searches.
const THREADS_MAX: usize = 64;
/// The most hits of one search.
const HITS_MAX: u32 = 10_000;

/// A summary, and the revision that it is of.
#[derive(Debug, Clone)]
struct Known {
    instance: u64,
    revision: u64,
    summary: Summary,
}

/// A query to one cell.
#[derive(Debug, Clone)]
struct Task {
    /// The path of the mount point, from the root of the outermost cell.
    path: Vec<u8>,
    cell_mount: CellMount,
    /// The cells that contain it, the outermost first.
    above: Vec<CellId>,
}

/// The result of a query to one cell.
struct Found {
    asked: Asked,
    hits: Vec<Hit>,
    /// Paths from the cell's root, and the contents of the mount points there.
    cell_mounts: Vec<(Bytes, Bytes)>,
}

/// The reason why a query failed.
struct Failed(Asked, String);

impl Failed {
    fn of(error: &net::Error) -> Self {
        let asked = match error {
            net::Error::Refused(_) | net::Error::Denied(_) => Asked::Refused,
            _ => Asked::Unreachable,
        };
        Self(asked, error.to_string())
    }
}

/// Searches the attached cells.
#[derive(Debug)]
pub(super) struct Searcher {
    cells: Arc<InnerCells>,
    own: CellId,
    summaries: Mutex<BTreeMap<CellId, Known>>,
    threads: AtomicUsize,
}

impl Searcher {
    pub(super) fn new(cells: &Arc<InnerCells>, own: CellId) -> Self {
        let (summaries, threads) = (Mutex::default(), AtomicUsize::new(0));
        Self { cells: Arc::clone(cells), own, summaries, threads }
    }

    /// Returns the cells attached to the outermost cell, as its server says.
    fn begin(&self) -> Result<Found, Failed> {
        let (servers, tls) = self.cells.outermost();
        let mut failed = Failed(Asked::Unreachable, "the cell has no server".into());
        for server in servers {
            match net::ask(server, tls, &Ask::CellMounts {}) {
                Ok(Answer::CellMounts { cell_mounts, complete, .. }) => {
                    let asked = if complete { Asked::Complete } else { Asked::Cut };
                    return Ok(Found { asked, hits: Vec::new(), cell_mounts });
                }
                Ok(_) => {
                    let why = "protocol error: unexpected reply from the server";
                    failed = Failed(Asked::Refused, why.into());
                }
                Err(e) => failed = Failed::of(&e),
            }
        }
        Err(failed)
    }

    /// Searches one cell.
    fn ask(&self, task: &Task, text: &str, query: &Query) -> Result<Found, Failed> {
        let refused = |e: &dyn std::fmt::Display| Failed(Asked::Refused, e.to_string());
        if task.above.contains(&task.cell_mount.cell) {
            return Err(Failed(Asked::Refused, "the cell is attached below itself".into()));
        }
        let tls = self.cells.certificates_of(&task.cell_mount).map_err(|why| refused(&why))?;
        // Tags and writes made here must be found.
        self.cells
            .tell(task.cell_mount.cell)
            .map_err(|e| Failed(Asked::Unreachable, e.to_string()))?;
        let mut failed = Failed(Asked::Unreachable, "the cell has no server".into());
        for server in &task.cell_mount.servers {
            let server = Address::parse(server, PORT).map_err(|e| refused(&e))?;
            match self.ask_server(&server, tls.as_ref(), task, (text, query)) {
                Ok(found) => return Ok(found),
                Err(e) => failed = Failed::of(&e),
            }
        }
        Err(failed)
    }

    fn ask_server(
        &self,
        server: &Address,
        tls: Option<&ClientTls>,
        task: &Task,
        (text, query): (&str, &Query),
    ) -> net::Result<Found> {
        let wanted = task.cell_mount.cell;
        let unexpected =
            || net::Error::Refused("protocol error: unexpected reply from the server".into());
        let mut link = Observer::connect(server, tls)?;
        let Answer::CellMounts { cell, instance, added, cell_mounts, complete } =
            link.ask(&Ask::CellMounts {})?
        else {
            return Err(unexpected());
        };
        if CellId(cell) != wanted {
            let why = format!("the server serves cell {}, not {wanted}", CellId(cell));
            return Err(net::Error::Refused(why));
        }
        let asked = |is_all| if is_all && complete { Asked::Complete } else { Asked::Cut };
        let known = locked(&self.summaries).get(&wanted).cloned();
        // The summary counts only if nothing was added since.
        let known = known.filter(|known| known.instance == instance && known.revision >= added);
        let is_known = known.is_some();
        if known.is_some_and(|known| !known.summary.may_have(query)) {
            let asked = if complete { Asked::Pruned } else { Asked::Cut };
            return Ok(Found { asked, hits: Vec::new(), cell_mounts });
        }
        let query = Bytes(text.as_bytes().to_vec());
        let Answer::Found { hits, complete: is_all } =
            link.ask(&Ask::Search { query, limit: HITS_MAX })?
        else {
            return Err(unexpected());
        };
        if !is_known
            && let Ok(Answer::Summary { instance, revision, summary: Some(summary) }) =
                link.ask(&Ask::Summary {})
        {
            let mut summaries = locked(&self.summaries);
            if summaries.len() >= CELLS_MAX {
                summaries.clear();
            }
            summaries.insert(wanted, Known { instance, revision, summary });
        }
        Ok(Found { asked: asked(is_all), hits, cell_mounts })
    }

    /// Converts a cell's result to paths from the outermost root, and queues the cells below it.
    fn take(task: &Task, outcome: Result<Found, Failed>, queue: &mut VecDeque<Task>) -> CellAnswer {
        let mut answer = CellAnswer {
            cell: task.cell_mount.cell,
            path: task.path.clone(),
            asked: Asked::Complete,
            hits: Vec::new(),
            why: String::new(),
        };
        match outcome {
            Ok(found) => {
                answer.asked = found.asked;
                let below = |path: Bytes| Bytes([&task.path[..], &path.0].concat());
                let hits = found.hits.into_iter();
                answer.hits = hits.map(|h| Hit { path: below(h.path), ..h }).collect();
                let above: Vec<CellId> =
                    task.above.iter().copied().chain([task.cell_mount.cell]).collect();
                for (path, text) in found.cell_mounts {
                    if queue.len() >= CELLS_MAX {
                        answer.asked = Asked::Cut;
                        answer.why = "more cells are attached than a search asks".into();
                        break;
                    }
                    match CellMount::parse(&text.0) {
                        Ok(cell_mount) => {
                            let above = above.clone();
                            queue.push_back(Task { path: below(path).0, cell_mount, above });
                        }
                        Err(e) => {
                            (answer.asked, answer.why) =
                                (Asked::Cut, format!("invalid record of an attached cell: {e}"));
                        }
                    }
                }
            }
            Err(Failed(asked, why)) => (answer.asked, answer.why) = (asked, why),
        }
        answer
    }

    /// Searches a cell in a thread of its own. `None` if there are too many threads.
    fn spawn(
        self: &Arc<Self>,
        number: usize,
        task: &Task,
        text: &str,
        query: &Query,
        tell: &Sender<(usize, Result<Found, Failed>)>,
    ) -> Option<()> {
        if self.threads.fetch_add(1, Ordering::AcqRel) >= THREADS_MAX {
            self.threads.fetch_sub(1, Ordering::AcqRel);
            return None;
        }
        let (searcher, tell) = (Arc::clone(self), tell.clone());
        let (task, text, query) = (task.clone(), text.to_owned(), query.clone());
        let thread = std::thread::Builder::new().name("ringer-search".into());
        let spawned = thread.spawn(move || {
            let outcome = searcher.ask(&task, &text, &query);
            searcher.threads.fetch_sub(1, Ordering::AcqRel);
            let _ = tell.send((number, outcome));
        });
        if spawned.is_err() {
            self.threads.fetch_sub(1, Ordering::AcqRel);
        }
        spawned.ok().map(drop)
    }
}

/// A [`Searcher`] that its threads share.
#[derive(Debug)]
pub(super) struct Shared(pub(super) Arc<Searcher>);

impl RemoteSearch for Shared {
    fn search(&self, text: &str, query: &Query) -> Vec<CellAnswer> {
        let deadline = Instant::now() + LIMIT;
        let searcher = &self.0;
        let own = CellMount { cell: searcher.own, servers: Vec::new() };
        let start = Task { path: Vec::new(), cell_mount: own, above: Vec::new() };
        let (mut queue, mut running, mut answers) = (VecDeque::new(), BTreeMap::new(), Vec::new());
        let first = Searcher::take(&start, searcher.begin(), &mut queue);
        if !first.asked.is_all() {
            answers.push(first);
        }
        let (tell, told) = channel();
        let fail = |task: &Task, asked, why: &str| {
            Searcher::take(task, Err(Failed(asked, why.to_owned())), &mut VecDeque::new())
        };
        let mut begun = 0;
        loop {
            while running.len() < AT_ONCE
                && let Some(task) = queue.pop_front()
            {
                begun += 1;
                if begun > CELLS_MAX {
                    let why = format!("limit reached: a search asks at most {CELLS_MAX} cells");
                    answers.push(fail(&task, Asked::Refused, &why));
                } else if searcher.spawn(begun, &task, text, query, &tell).is_none() {
                    answers.push(fail(
                        &task,
                        Asked::Refused,
                        "too many searches are in progress: try again",
                    ));
                } else {
                    running.insert(begun, task);
                }
            }
            if running.is_empty() {
                break;
            }
            match told.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok((number, outcome)) => {
                    let Some(task) = running.remove(&number) else { continue };
                    answers.push(Searcher::take(&task, outcome, &mut queue));
                }
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    let why = format!("timed out after {} s", LIMIT.as_secs());
                    let late = running.values().chain(&queue);
                    answers.extend(late.map(|task| fail(task, Asked::Unreachable, &why)));
                    break;
                }
            }
        }
        answers.sort_by(|a, b| a.path.cmp(&b.path));
        answers
    }
}
