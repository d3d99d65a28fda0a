//! The index of a cell in SQLite: names, words of names, tags, attributes, words of texts. It
//! changes in the transaction that changes the indexed records
//! ([`Transaction::index`](weft_ringer::store::Transaction)), so a search sees the state of one
//! moment.
//!
//! ```text
//! name(id, dir, name, rnode)          every directory entry
//! words                               FTS5 over the names, by name.id
//! file(rnode, kind, size, mtime)      every rnode
//! tag(tag, rnode)
//! attribute(name, value, rnode)       user.* without the tags, without the prefix
//! text(rnode, content)                files with an indexed text, and the version of their content
//! text_words                          FTS5 over those texts, by text.rnode
//! ```
//!
//! Source: <https://sqlite.org/fts5.html> (contentless-delete tables).

use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params, params_from_iter};
use weft_ringer::query::{Condition, Kind, Query};
use weft_ringer::wire::{decode, encode};
use weft_ringer::{RnodeId, ToldText, Version};

use super::sql_error::SqlResult;
use weft_ringer::store::{Facts, Having, IndexChange, StoreError, Term};

pub(super) const TABLES: &str = "
    CREATE TABLE name (id INTEGER PRIMARY KEY, dir INTEGER NOT NULL, name BLOB NOT NULL,
        rnode INTEGER NOT NULL, UNIQUE (dir, name)) STRICT;
    CREATE INDEX name_rnode ON name (rnode);
    CREATE VIRTUAL TABLE words USING fts5(text, content='', contentless_delete=1,
        tokenize='unicode61 remove_diacritics 2');
    CREATE TABLE file (rnode INTEGER PRIMARY KEY, kind INTEGER NOT NULL, size INTEGER NOT NULL,
        mtime INTEGER NOT NULL) STRICT;
    CREATE TABLE tag (tag TEXT, rnode INTEGER, PRIMARY KEY (tag, rnode)) STRICT, WITHOUT ROWID;
    CREATE INDEX tag_rnode ON tag (rnode);
    CREATE TABLE attribute (name TEXT, value TEXT, rnode INTEGER,
        PRIMARY KEY (name, value, rnode)) STRICT, WITHOUT ROWID;
    CREATE INDEX attribute_rnode ON attribute (rnode);
";

/// Further tables since version 2.
pub(super) const TEXT_TABLES: &str = "
    CREATE TABLE text (rnode INTEGER PRIMARY KEY, content BLOB NOT NULL) STRICT;
    CREATE VIRTUAL TABLE text_words USING fts5(text, content='', contentless_delete=1,
        tokenize='unicode61 remove_diacritics 2');
";

/// The longest path that is returned, in names.
const DEPTH_MAX: usize = 4096;

fn number(id: RnodeId) -> i64 {
    id.0.cast_signed()
}

fn kind_number(kind: Kind) -> i64 {
    match kind {
        Kind::File => 1,
        Kind::Directory => 2,
        Kind::Link => 3,
        Kind::Special => 4,
    }
}

/// Applies a change of a transaction to the index.
pub(super) fn update(db: &Connection, change: &IndexChange) -> SqlResult<()> {
    match change {
        IndexChange::Name { dir, name, rnode } => {
            let dir = number(*dir);
            let mut find = db.prepare_cached("SELECT id FROM name WHERE dir = ? AND name = ?")?;
            let old: Option<i64> = find.query_row(params![dir, name], |r| r.get(0)).optional()?;
            match (old, rnode) {
                (Some(id), Some(rnode)) => {
                    let mut set = db.prepare_cached("UPDATE name SET rnode = ? WHERE id = ?")?;
                    set.execute(params![number(*rnode), id])?;
                }
                (Some(id), None) => {
                    db.prepare_cached("DELETE FROM words WHERE rowid = ?")?.execute([id])?;
                    db.prepare_cached("DELETE FROM name WHERE id = ?")?.execute([id])?;
                }
                (None, Some(rnode)) => {
                    let mut add =
                        db.prepare_cached("INSERT INTO name (dir, name, rnode) VALUES (?, ?, ?)")?;
                    let id = add.insert(params![dir, name, number(*rnode)])?;
                    let text = String::from_utf8_lossy(name);
                    db.prepare_cached("INSERT INTO words (rowid, text) VALUES (?, ?)")?
                        .execute(params![id, text])?;
                }
                (None, None) => {}
            }
        }
        IndexChange::File { rnode, facts } => {
            let rnode = number(*rnode);
            db.prepare_cached("DELETE FROM tag WHERE rnode = ?")?.execute([rnode])?;
            db.prepare_cached("DELETE FROM attribute WHERE rnode = ?")?.execute([rnode])?;
            let Some(Facts { kind, size_bytes, mtime_secs, tags, attributes }) = facts else {
                db.prepare_cached("DELETE FROM file WHERE rnode = ?")?.execute([rnode])?;
                return Ok(());
            };
            let size = i64::try_from(*size_bytes).unwrap_or(i64::MAX);
            db.prepare_cached("INSERT OR REPLACE INTO file VALUES (?, ?, ?, ?)")?
                .execute(params![rnode, kind_number(*kind), size, mtime_secs])?;
            let mut add = db.prepare_cached("INSERT OR IGNORE INTO tag VALUES (?, ?)")?;
            for tag in tags {
                add.execute(params![tag, rnode])?;
            }
            let mut add = db.prepare_cached("INSERT OR IGNORE INTO attribute VALUES (?, ?, ?)")?;
            for (name, value) in attributes {
                add.execute(params![name, value, rnode])?;
            }
        }
        IndexChange::Text { rnode, told } => {
            let rnode = number(*rnode);
            if db.prepare_cached("DELETE FROM text WHERE rnode = ?")?.execute([rnode])? > 0 {
                db.prepare_cached("DELETE FROM text_words WHERE rowid = ?")?.execute([rnode])?;
            }
            if let Some(ToldText { content, text }) = told {
                db.prepare_cached("INSERT INTO text VALUES (?, ?)")?
                    .execute(params![rnode, encode(content)])?;
                db.prepare_cached("INSERT INTO text_words (rowid, text) VALUES (?, ?)")?
                    .execute(params![rnode, text.as_str()])?;
            }
        }
    }
    Ok(())
}

/// The first `limit` files after `after` with an indexed text, each with the version of its
/// content.
pub(super) fn texts(
    db: &Connection,
    after: RnodeId,
    limit: usize,
) -> SqlResult<Vec<(RnodeId, Version)>> {
    let mut find = db
        .prepare_cached("SELECT rnode, content FROM text WHERE rnode > ? ORDER BY rnode LIMIT ?")?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = find.query_map(params![number(after), limit], |r| {
        Ok((r.get::<_, i64>(0)?, r.get::<_, Vec<u8>>(1)?))
    })?;
    let mut texts = Vec::new();
    for row in rows {
        let (rnode, content) = row?;
        let damaged = |_| StoreError::Failed(format!("the index of texts is damaged at {rnode}"));
        texts.push((RnodeId(rnode.cast_unsigned()), decode(&content).map_err(damaged)?));
    }
    Ok(texts)
}

/// Quotes consecutive words for FTS5; if `begins`, the last may be a prefix.
fn phrase(words: &str, begins: bool) -> String {
    let words = words.replace('"', "\"\"").replace('\0', " ");
    format!("\"{words}\"{}", if begins { "*" } else { "" })
}

/// The matching rnodes with their paths, at most `limit`.
pub(super) fn search(
    db: &Connection,
    query: &Query,
    limit: usize,
) -> SqlResult<Vec<(RnodeId, Vec<u8>)>> {
    let mut sql = "SELECT name.dir, name.name, name.rnode FROM name JOIN file \
                   ON file.rnode = name.rnode WHERE 1"
        .to_owned();
    let mut values: Vec<Value> = Vec::new();
    for (condition, wanted) in &query.0 {
        let (test, bound): (_, Vec<Value>) = match condition {
            Condition::Word(word) => {
                let phrase = phrase(word, true);
                ("name.id IN (SELECT rowid FROM words WHERE words MATCH ?)", vec![phrase.into()])
            }
            Condition::Text { words, begins } => (
                "name.rnode IN (SELECT rowid FROM text_words WHERE text_words MATCH ?)",
                vec![phrase(words, *begins).into()],
            ),
            Condition::Tag(tag) => {
                ("name.rnode IN (SELECT rnode FROM tag WHERE tag = ?)", vec![tag.clone().into()])
            }
            Condition::Attribute(name, value) => (
                "name.rnode IN (SELECT rnode FROM attribute WHERE name = ? AND value = ?)",
                vec![name.clone().into(), value.clone().into()],
            ),
            Condition::Kind(kind) => ("file.kind = ?", vec![kind_number(*kind).into()]),
            Condition::Larger(size) => ("file.size > ?", vec![signed(*size).into()]),
            Condition::Smaller(size) => ("file.size < ?", vec![signed(*size).into()]),
            Condition::After(at) => ("file.mtime > ?", vec![(*at).into()]),
            Condition::Before(at) => ("file.mtime < ?", vec![(*at).into()]),
        };
        sql.push_str(if *wanted { " AND " } else { " AND NOT " });
        sql.push_str(test);
        values.extend(bound);
    }
    sql.push_str(" LIMIT ?");
    values.push(i64::try_from(limit).unwrap_or(i64::MAX).into());
    let mut find = db.prepare_cached(&sql)?;
    let rows = find.query_map(params_from_iter(values), |r| {
        Ok((r.get::<_, i64>(0)?, r.get::<_, Vec<u8>>(1)?, r.get::<_, i64>(2)?))
    })?;
    let mut hits = Vec::new();
    for row in rows {
        let (dir, name, rnode) = row?;
        hits.push((RnodeId(rnode.cast_unsigned()), path(db, dir, name)?));
    }
    hits.sort_by(|a, b| a.1.cmp(&b.1));
    Ok(hits)
}

/// The first rnodes that have an attribute, with their paths and its value.
pub(super) fn having(db: &Connection, attribute: &str, limit: usize) -> SqlResult<Having> {
    let mut find = db.prepare_cached(
        "SELECT name.dir, name.name, name.rnode, attribute.value FROM attribute \
         JOIN name ON name.rnode = attribute.rnode WHERE attribute.name = ? LIMIT ?",
    )?;
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let rows = find.query_map(params![attribute, limit], |r| {
        Ok((r.get(0)?, r.get(1)?, r.get::<_, i64>(2)?, r.get(3)?))
    })?;
    let mut having = Vec::new();
    for row in rows {
        let (dir, name, rnode, value) = row?;
        having.push((RnodeId(rnode.cast_unsigned()), path(db, dir, name)?, value));
    }
    Ok(having)
}

/// All tags, names of attributes and words of names; `None` if there are more than `max`.
pub(super) fn terms(db: &Connection, max: usize) -> SqlResult<Option<Vec<Term>>> {
    // A word of a removed name may still be there.
    db.execute_batch(
        "CREATE VIRTUAL TABLE IF NOT EXISTS temp.vocabulary USING fts5vocab(main, words, row)",
    )?;
    let mut terms = Vec::new();
    let limit = i64::try_from(max).unwrap_or(i64::MAX - 1) + 1;
    let mut fit = |sql: &str, term: fn(String) -> Term| -> SqlResult<bool> {
        let mut find = db.prepare_cached(sql)?;
        for text in find.query_map([limit], |r| r.get(0))? {
            terms.push(term(text?));
        }
        Ok(terms.len() <= max)
    };
    let all_fit = fit("SELECT DISTINCT tag FROM tag LIMIT ?", Term::Tag)?
        && fit("SELECT DISTINCT name FROM attribute LIMIT ?", Term::Attribute)?
        && fit("SELECT term FROM temp.vocabulary LIMIT ?", Term::Word)?;
    Ok(all_fit.then_some(terms))
}

fn signed(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

/// The path of the entry `name` of `dir`.
fn path(db: &Connection, mut dir: i64, name: Vec<u8>) -> SqlResult<Vec<u8>> {
    let mut above = db.prepare_cached("SELECT dir, name FROM name WHERE rnode = ?")?;
    let mut names = vec![name];
    while dir != number(RnodeId::ROOT) {
        let found = above.query_row([dir], |r| Ok((r.get(0)?, r.get(1)?))).optional()?;
        let Some((parent, name)) = found.filter(|_| names.len() < DEPTH_MAX) else {
            let why = "the search index has a name that is in no directory";
            return Err(StoreError::Failed(why.into()).into());
        };
        names.push(name);
        dir = parent;
    }
    Ok(names.iter().rev().flat_map(|name| [b"/", &name[..]].concat()).collect())
}
