//! `ls`, `tree`, `stat`.

use super::damage::Damage;
use super::{by_volume, file_error, reading, volume_path};
use crate::cli;
use crate::failure::{Failure, Outcome};
use crate::output::{
    AttrReport, NameReport, Output, count, device_numbers, human, kind_name, mode_string, shown,
    utc,
};
use serde::Serialize;
use std::io::Write;
use weft::Stack;
use weft::vfs::{Attr, FileKind, Node, Walker};

#[derive(Serialize)]
struct Row {
    name: NameReport,
    #[serde(flatten)]
    attr: AttrReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<NameReport>,
    #[serde(skip)]
    shown: String,
    #[serde(skip)]
    raw: Attr,
}

impl Row {
    fn new(name: &[u8], node: &Node<'_>) -> Result<Self, Failure> {
        let attr = node.attr();
        let target = if attr.kind == FileKind::Symlink {
            Some(node.readlink().map_err(|e| file_error("read", name, e))?)
        } else {
            None
        };
        let mut text = shown(name);
        if let Some(target) = &target {
            text.push_str(" -> ");
            text.push_str(&shown(target));
        }
        Ok(Self {
            name: name.into(),
            attr: attr.into(),
            target: target.as_deref().map(Into::into),
            shown: text,
            raw: *attr,
        })
    }
}

#[derive(Serialize)]
struct Listing {
    path: NameReport,
    entries: Vec<Row>,
}

/// `ls`.
pub fn ls(out: Output, args: &cli::Ls) -> Outcome {
    let mut listings = Vec::new();
    let mut damage = Damage::new(out, args.strict);
    by_volume(&args.paths, |image, paths| {
        reading(image, |stack| {
            for place in paths {
                list_one(stack, &place.path, args, &mut damage, &mut listings)?;
            }
            damage.look(stack)
        })
    })?;
    let titled = listings.len() > 1;
    out.report(&listings, |w| {
        for (number, listing) in listings.iter().enumerate() {
            if titled {
                let title = match &listing.path {
                    NameReport::Text(text) => shown(text.as_bytes()),
                    NameReport::Bytes(bytes) => shown(bytes),
                };
                writeln!(w, "{}{title}:", if number > 0 { "\n" } else { "" })?;
            }
            print_rows(w, &listing.entries, args.long)?;
        }
        Ok(())
    })?;
    damage.outcome()
}

fn list_one(
    stack: &Stack,
    path: &[u8],
    args: &cli::Ls,
    damage: &mut Damage,
    into: &mut Vec<Listing>,
) -> Result<(), Failure> {
    let walker = Walker::new(stack.fs());
    let failed = |e| file_error("list", path, e);
    let top = walker.resolve(path).map_err(failed)?;
    if args.directory || !top.is_dir() {
        let node = walker.resolve_link(path).map_err(failed)?;
        into.push(Listing { path: path.into(), entries: vec![Row::new(path, &node)?] });
        return Ok(());
    }
    let mut todo = vec![path.to_vec()];
    while let Some(path) = todo.pop() {
        let listed = walker
            .resolve(&path)
            .map_err(|e| file_error("list", &path, e))
            .and_then(|dir| rows(&dir, &path, damage));
        let mut entries = match listed {
            Ok(entries) => entries,
            // A directory on the command line must be readable; those below it need not be.
            Err(e) if into.is_empty() && !args.recursive => return Err(e),
            Err(e) => {
                damage.pass(e)?;
                Vec::new()
            }
        };
        damage.look(stack)?;
        entries.retain(|(name, _)| args.all || !name.starts_with(b"."));
        if args.recursive {
            for (name, row) in entries.iter().rev() {
                if row.raw.kind == FileKind::Directory {
                    todo.push(below(&path, name));
                }
            }
        }
        let entries = entries.into_iter().map(|(_, row)| row).collect();
        into.push(Listing { path: path.as_slice().into(), entries });
    }
    Ok(())
}

/// The names of a directory in order, each with its row.
fn rows(dir: &Node<'_>, path: &[u8], damage: &mut Damage) -> Result<Vec<(Vec<u8>, Row)>, Failure> {
    let mut names = dir.list().map_err(|e| file_error("list", path, e))?;
    names.sort_by(|a, b| a.name.cmp(&b.name));
    let mut rows = Vec::new();
    for listed in names {
        let row = dir
            .lookup(&listed.name)
            .map_err(|e| file_error("look up", &below(path, &listed.name), e))
            .and_then(|node| Row::new(&listed.name, &node));
        match row {
            Ok(row) => rows.push((listed.name, row)),
            Err(e) => damage.pass(e)?,
        }
    }
    Ok(rows)
}

fn below(path: &[u8], name: &[u8]) -> Vec<u8> {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    [path, b"/", name].concat()
}

fn print_rows(w: &mut dyn Write, rows: &[Row], long: bool) -> std::io::Result<()> {
    if !long {
        return rows.iter().try_for_each(|row| writeln!(w, "{}", row.shown));
    }
    let width = |f: &dyn Fn(&Row) -> String| rows.iter().map(|r| f(r).len()).max().unwrap_or(0);
    let owner = |r: &Row| format!("{}:{}", r.raw.uid, r.raw.gid);
    let size = |r: &Row| match r.raw.kind {
        FileKind::BlockDevice | FileKind::CharDevice => {
            let (major, minor) = device_numbers(r.raw.rdev);
            format!("{major},{minor}")
        }
        _ => human(r.raw.size_bytes),
    };
    let links = |r: &Row| r.raw.nlink.to_string();
    let (wl, wo, ws) = (width(&links), width(&owner), width(&size));
    for row in rows {
        writeln!(
            w,
            "{} {:>wl$} {:<wo$} {:>ws$} {} {}",
            mode_string(row.raw.kind, row.raw.perm),
            links(row),
            owner(row),
            size(row),
            utc(row.raw.mtime),
            row.shown
        )?;
    }
    Ok(())
}

#[derive(Serialize)]
struct Branch {
    name: NameReport,
    #[serde(flatten)]
    attr: AttrReport,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    entries: Vec<Branch>,
}

/// `tree`.
pub fn tree(out: Output, args: &cli::Tree) -> Outcome {
    let place = volume_path(&args.path)?;
    let depth = args.depth.unwrap_or(usize::MAX);
    let mut damage = Damage::new(out, args.strict);
    reading(&place.image, |stack| {
        let walker = Walker::new(stack.fs());
        let top = walker.resolve(&place.path).map_err(|e| file_error("list", &place.path, e))?;
        let mut lines = vec![shown(&place.path)];
        let mut totals = (0, 0);
        let mut above = vec![top.ino()];
        let mut branch = Branch {
            name: place.path.as_slice().into(),
            attr: top.attr().into(),
            entries: Vec::new(),
        };
        let mut grow = Grow {
            lines: &mut lines,
            totals: &mut totals,
            above: &mut above,
            damage: &mut damage,
            stack,
        };
        grow.directory(&top, &place.path, "", depth, &mut branch.entries)?;
        out.report(&branch, |w| {
            lines.iter().try_for_each(|line| writeln!(w, "{line}"))?;
            let (dirs, files) = totals;
            writeln!(w, "\n{}, {}", count(dirs, "directory"), count(files, "file"))
        })
    })?;
    damage.outcome()
}

struct Grow<'a> {
    lines: &'a mut Vec<String>,
    totals: &'a mut (u64, u64),
    /// The directories above the current one: a damaged volume may have loops.
    above: &'a mut Vec<weft::vfs::Ino>,
    damage: &'a mut Damage,
    stack: &'a Stack,
}

/// The deepest level of a tree that is drawn: more would not fit any screen, and drawing recurses.
const TREE_DEPTH_MAX: usize = 500;

impl Grow<'_> {
    fn directory(
        &mut self,
        dir: &Node<'_>,
        path: &[u8],
        indent: &str,
        depth: usize,
        into: &mut Vec<Branch>,
    ) -> Result<(), Failure> {
        if depth == 0 {
            return Ok(());
        }
        if self.above.len() > TREE_DEPTH_MAX {
            let limit = format!("the tree is more than {TREE_DEPTH_MAX} levels deep; use --depth");
            return Err(Failure::new(limit));
        }
        let mut names = match dir.list().map_err(|e| file_error("list", path, e)) {
            Ok(names) => names,
            Err(e) => return self.damage.pass(e),
        };
        self.damage.look(self.stack)?;
        names.sort_by(|a, b| a.name.cmp(&b.name));
        let last = names.len().saturating_sub(1);
        for (number, listed) in names.into_iter().enumerate() {
            let path = below(path, &listed.name);
            let found = dir
                .lookup(&listed.name)
                .map_err(|e| file_error("look up", &path, e))
                .and_then(|node| Row::new(&listed.name, &node).map(|row| (node, row)));
            let (node, row) = match found {
                Ok(found) => found,
                Err(e) => {
                    self.damage.pass(e)?;
                    continue;
                }
            };
            let (branch, next) =
                if number == last { ("└── ", "    ") } else { ("├── ", "│   ") };
            self.lines.push(format!("{indent}{branch}{}", row.shown));
            let mut entries = Vec::new();
            if node.is_dir() {
                self.totals.0 += 1;
                if self.above.contains(&node.ino()) {
                    let loops = weft::vfs::Error::Corrupt("it lies inside itself".into());
                    self.damage.pass(file_error("list", &path, loops))?;
                } else {
                    self.above.push(node.ino());
                    let indent = format!("{indent}{next}");
                    self.directory(&node, &path, &indent, depth - 1, &mut entries)?;
                    self.above.pop();
                }
            } else {
                self.totals.1 += 1;
            }
            into.push(Branch { name: row.name, attr: row.attr, entries });
        }
        Ok(())
    }
}

#[derive(Serialize)]
struct StatReport {
    path: NameReport,
    #[serde(flatten)]
    attr: AttrReport,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<NameReport>,
    attributes: Vec<AttributeReport>,
    #[serde(skip)]
    raw: Attr,
    #[serde(skip)]
    shown: String,
}

#[derive(Serialize)]
struct AttributeReport {
    name: NameReport,
    value: NameReport,
    #[serde(skip)]
    shown: String,
}

/// `stat`.
pub fn stat(out: Output, args: &cli::Stat) -> Outcome {
    let mut reports = Vec::new();
    let outcome = by_volume(&args.paths, |image, paths| {
        reading(image, |stack| {
            let walker = Walker::new(stack.fs());
            for place in paths {
                reports.push(stat_one(&walker, &place.path)?);
            }
            Ok(())
        })
    })?;
    out.report(&reports, |w| reports.iter().try_for_each(|report| print_stat(w, report)))?;
    Ok(outcome)
}

/// Formats a value for one line.
fn shown_value(value: &[u8]) -> String {
    const MOST_BYTES: usize = 256;
    match value.len() {
        0..=MOST_BYTES => shown(value),
        n => count(n as u64, "byte"),
    }
}

fn stat_one(walker: &Walker<'_>, path: &[u8]) -> Result<StatReport, Failure> {
    let failed = |e| file_error("stat", path, e);
    let node = walker.resolve_link(path).map_err(failed)?;
    let fs = walker.fs();
    let names = match fs.listxattr(node.ino()) {
        Ok(names) => names,
        Err(weft::vfs::Error::Unsupported(_)) => Vec::new(),
        Err(e) => return Err(failed(e)),
    };
    let mut attributes = Vec::new();
    for name in names {
        let value = match fs.getxattr(node.ino(), &name) {
            // A resource fork may be longer than an attribute.
            Err(weft::vfs::Error::Range) => None,
            other => Some(other.map_err(failed)?),
        };
        let text = value.as_deref().map_or("(too long)".into(), shown_value);
        let value = value.unwrap_or_default();
        attributes.push(AttributeReport {
            name: name.as_slice().into(),
            value: value.as_slice().into(),
            shown: format!("{} = {}", shown(&name), text),
        });
    }
    let row = Row::new(path, &node)?;
    Ok(StatReport {
        path: path.into(),
        attr: row.attr,
        target: row.target,
        attributes,
        raw: row.raw,
        shown: row.shown,
    })
}

fn print_stat(w: &mut dyn Write, report: &StatReport) -> std::io::Result<()> {
    let a = &report.raw;
    writeln!(w, "    path: {}", report.shown)?;
    writeln!(w, "    kind: {}", kind_name(a.kind))?;
    writeln!(w, "   inode: {}", a.ino.0)?;
    writeln!(w, "    mode: {:04o} ({})", a.perm, mode_string(a.kind, a.perm))?;
    writeln!(w, "   owner: {}:{}", a.uid, a.gid)?;
    writeln!(w, "   links: {}", a.nlink)?;
    if let Some((major, minor)) = report.attr.device {
        writeln!(w, "  device: {major},{minor}")?;
    } else {
        writeln!(
            w,
            "    size: {} bytes, {} allocated",
            a.size_bytes,
            human(report.attr.allocated_bytes)
        )?;
    }
    for (name, time) in [("accessed", a.atime), ("modified", a.mtime), (" changed", a.ctime)] {
        writeln!(w, "{name}: {}.{:09} UTC", utc(time), time.nanos)?;
    }
    if let Some(time) = a.btime {
        writeln!(w, "    born: {}.{:09} UTC", utc(time), time.nanos)?;
    }
    for attribute in &report.attributes {
        writeln!(w, "   xattr: {}", attribute.shown)?;
    }
    Ok(())
}
