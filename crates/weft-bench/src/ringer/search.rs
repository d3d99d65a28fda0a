//! Searches by tag among 100 files and among a million.

use super::Micros;
use crate::report::Section;
use crate::stats::thousands;
use crate::{Bench, machine};
use anyhow::Result;
use weft::ringer::query::{Kind, Query};
use weft::ringer::store::{Facts, IndexChange, Store, Transaction};
use weft::ringer::{Bytes, RnodeId};
use weft::ringer_server::store::SqliteStore;

const MANY: u64 = 1_000_000;
const QUICK_MANY: u64 = 50_000;
/// Files in one transaction.
const BATCH: u64 = 10_000;
/// The interval between files that have the tag of the search.
const TAGGED: [u64; 2] = [10, 10_000];
const SEARCHES: usize = 1000;

pub fn search(bench: &Bench) -> Result<()> {
    let many = if bench.quick { QUICK_MANY } else { MANY };
    let mut section = Section::new("ringer-search", "The shared file service: searches");
    section.line(
        "Microseconds, p50 / p99 / mean of 1000 searches at the metadata server, with the paths of \
         what is found. A tenth of 100 files have the tag (the paper's plan), or one in 10,000.",
    );
    let mut rows = Vec::new();
    for (count, one_in) in [(100, TAGGED[0]), (many, TAGGED[1])] {
        let dir = tempfile::tempdir_in(&bench.work)?;
        let store = fill(&dir.path().join("cell"), count, one_in)?;
        for text in ["tag:un", "tag:un -tag:draft", "tag:un kind:file size>1K"] {
            let query: Query = text.parse()?;
            let mut times = Micros::default();
            let mut found = 0;
            for _ in 0..SEARCHES {
                found = times.time(|| Ok(store.search(&query, 1000)?))?.len();
            }
            rows.push(vec![thousands(count), format!("`{text}`"), found.to_string(), times.show()]);
        }
    }
    section.table(&["files", "query", "found", "us"], &rows);
    section.signed(&machine::describe(), "weft-bench ringer-search").save(&bench.report)
}

/// Makes a store with files in one directory.
fn fill(path: &std::path::Path, count: u64, one_in: u64) -> Result<SqliteStore> {
    let mut store = SqliteStore::open(path)?;
    let mut number = 2;
    let end = 2 + count;
    while number < end {
        let mut batch = Transaction::default();
        for id in number..end.min(number + BATCH) {
            let tags = match id % one_in {
                0 if id % (2 * one_in) == 0 => vec!["un".to_owned(), "draft".into()],
                0 => vec!["un".to_owned()],
                _ => vec![format!("other{}", id % 1000)],
            };
            let facts = Facts {
                kind: Kind::File,
                size_bytes: 4096,
                mtime_secs: 1_700_000_000,
                tags,
                attributes: Vec::new(),
            };
            let (dir, name, rnode) = (RnodeId::ROOT, format!("file{id}"), RnodeId(id));
            let name = Bytes(name.into_bytes()).0;
            batch.index.push(IndexChange::Name { dir, name, rnode: Some(rnode) });
            batch.index.push(IndexChange::File { rnode, facts: Some(facts) });
        }
        batch.put(b"bench".to_vec(), number.to_be_bytes().to_vec());
        store.commit(&batch)?;
        number += BATCH;
    }
    Ok(store)
}
