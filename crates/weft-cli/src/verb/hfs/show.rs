//! `hfs ls` and `hfs info`.

use super::{code, each_item, flag_names};
use crate::cli::hfs::{Info, Ls};
use crate::failure::{Failure, Outcome};
use crate::output::{NameReport, Output, shown};
use crate::verb::damage::Damage;
use crate::verb::file_error;
use crate::zone;
use serde::Serialize;
use weft::hfs::interchange::Meta;
use weft::hfs::layout::{DInfo, DXInfo, FInfo, FXInfo};
use weft::hfs::streams::MacVolume;
use weft::vfs::{FileKind, Node};

#[derive(Serialize)]
struct Row {
    path: NameReport,
    kind: &'static str,
    file_type: Option<String>,
    creator: Option<String>,
    flags: Vec<&'static str>,
    locked: bool,
    data_bytes: u64,
    resource_bytes: u64,
    items: Option<u64>,
    created: String,
    modified: String,
    backed_up: String,
    id: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    finder: Option<Finder>,
    #[serde(skip)]
    shown: String,
}

/// All fields of the 32 bytes of Finder information.
#[derive(Serialize)]
struct Finder {
    raw: String,
    #[serde(flatten)]
    fields: std::collections::BTreeMap<&'static str, serde_json::Value>,
}

fn row(volume: &dyn MacVolume, node: &Node<'_>, path: &[u8], label: &[u8]) -> Result<Row, Failure> {
    let meta = volume.meta(node.ino()).map_err(|e| file_error("read", path, e))?;
    let is_dir = node.is_dir();
    let items = is_dir.then_some(node.attr().size_bytes);
    Ok(Row {
        path: label.into(),
        kind: if is_dir { "folder" } else { "file" },
        file_type: (!is_dir).then(|| code(meta.file_type())),
        creator: (!is_dir).then(|| code(meta.creator())),
        flags: flag_names(meta.finder_flags()),
        locked: meta.locked,
        data_bytes: meta.data_bytes,
        resource_bytes: meta.resource_bytes,
        items,
        created: zone::shown(meta.created),
        modified: zone::shown(meta.modified),
        backed_up: zone::shown(meta.backed_up),
        id: node.ino().0,
        finder: None,
        shown: shown(label),
    })
}

/// `hfs ls`.
pub fn ls(out: Output, args: &Ls) -> Outcome {
    let mut listings: Vec<(String, Vec<Row>)> = Vec::new();
    let mut damage = Damage::new(out, false);
    each_item(&args.paths, None, |volume, node, path| {
        if args.directory || node.kind() != FileKind::Directory {
            listings.push((shown(path), vec![row(volume, node, path, path)?]));
            return Ok(());
        }
        list(volume, node, path, args.recursive, &mut damage, &mut listings)?;
        let label = weft::hfs::macroman::decode(&volume.volume_meta().name);
        damage.tell(&label, &volume.passed_over())
    })?;
    let titled = listings.len() > 1;
    let all: Vec<&Vec<Row>> = listings.iter().map(|(_, rows)| rows).collect();
    out.report(&all, |w| {
        for (number, (title, rows)) in listings.iter().enumerate() {
            if titled {
                writeln!(w, "{}{title}:", if number > 0 { "\n" } else { "" })?;
            }
            for row in rows {
                let kind = if row.items.is_some() { 'd' } else { 'f' };
                let lock = if row.locked { 'L' } else { ' ' };
                let invisible = if row.flags.contains(&"invisible") { 'i' } else { ' ' };
                let what = match (&row.file_type, &row.creator) {
                    (Some(t), Some(c)) => format!("{t:<4}/{c:<4}"),
                    _ => format!("{} items", row.items.unwrap_or(0)),
                };
                let (resource, data) = match row.items {
                    None => (row.resource_bytes.to_string(), row.data_bytes.to_string()),
                    Some(_) => (String::new(), String::new()),
                };
                let (date, name) = (&row.modified, &row.shown);
                writeln!(
                    w,
                    "{kind}{lock}{invisible} {what:<11} {resource:>10} {data:>10}  {date:<19}  {name}"
                )?;
            }
        }
        Ok(())
    })?;
    damage.outcome()
}

fn list(
    volume: &dyn MacVolume,
    dir: &Node<'_>,
    path: &[u8],
    recursive: bool,
    damage: &mut Damage,
    into: &mut Vec<(String, Vec<Row>)>,
) -> Result<(), Failure> {
    let failed = |e| file_error("list", path, e);
    let (mut rows, mut below) = (Vec::new(), Vec::new());
    for found in dir.list().map_err(failed)? {
        if matches!(&found.name[..], b"." | b"..") {
            continue;
        }
        let full = [path.strip_suffix(b"/").unwrap_or(path), b"/", &found.name].concat();
        let shown = dir
            .lookup(&found.name)
            .map_err(|e| file_error("list", &full, e))
            .and_then(|child| row(volume, &child, &full, &found.name).map(|row| (child, row)));
        let child = match shown {
            Ok((child, row)) => {
                rows.push(row);
                child
            }
            Err(e) => {
                damage.pass(e)?;
                continue;
            }
        };
        if recursive && child.is_dir() {
            below.push((child, full));
        }
    }
    into.push((shown(path), rows));
    for (child, full) in below {
        if let Err(e) = list(volume, &child, &full, recursive, damage, into) {
            damage.pass(e)?;
        }
    }
    Ok(())
}

/// `hfs info`.
pub fn info(out: Output, args: &Info) -> Outcome {
    let mut rows = Vec::new();
    let outcome = each_item(&args.paths, None, |volume, node, path| {
        let mut row = row(volume, node, path, path)?;
        let meta = volume.meta(node.ino()).map_err(|e| file_error("read", path, e))?;
        row.finder = Some(finder(&meta, node.is_dir()));
        rows.push(row);
        Ok(())
    })?;
    out.report(&rows, |w| {
        for (number, row) in rows.iter().enumerate() {
            if number > 0 {
                writeln!(w)?;
            }
            let mut line = |name: &str, value: &str| writeln!(w, "{name:>13}: {value}");
            line("path", &row.shown)?;
            line("kind", row.kind)?;
            line("id", &row.id.to_string())?;
            match (&row.file_type, &row.creator) {
                (Some(t), Some(c)) => {
                    line("type", t)?;
                    line("creator", c)?;
                    line("data fork", &format!("{} bytes", row.data_bytes))?;
                    line("resource fork", &format!("{} bytes", row.resource_bytes))?;
                    line("locked", if row.locked { "yes" } else { "no" })?;
                }
                _ => line("items", &row.items.unwrap_or(0).to_string())?,
            }
            let flags = if row.flags.is_empty() { "none".into() } else { row.flags.join(", ") };
            line("flags", &flags)?;
            line("made", &row.created)?;
            line("changed", &row.modified)?;
            line("backed up", &row.backed_up)?;
            if let Some(finder) = &row.finder {
                for (name, value) in &finder.fields {
                    line(&name.replace('_', " "), &value.to_string())?;
                }
                line("Finder info", &finder.raw)?;
            }
        }
        Ok(())
    })?;
    Ok(outcome)
}

fn finder(meta: &Meta, is_dir: bool) -> Finder {
    use serde_json::json;
    let mut halves = ([0; 16], [0; 16]);
    halves.0.copy_from_slice(&meta.finder_info[..16]);
    halves.1.copy_from_slice(&meta.finder_info[16..]);
    let color = (meta.finder_flags() & weft::hfs::layout::finder_flags::COLOR) >> 1;
    let mut fields = std::collections::BTreeMap::from([("color", json!(color))]);
    if is_dir {
        let (info, more) = (DInfo::parse(&halves.0), DXInfo::parse(&halves.1));
        let r = info.rect;
        fields.extend([
            ("window", json!([r.left, r.top, r.right, r.bottom])),
            ("location", json!([info.location.h, info.location.v])),
            ("view", json!(info.view)),
            ("scroll", json!([more.scroll.h, more.scroll.v])),
            ("open_chain", json!(more.open_chain)),
            ("script", json!(more.script)),
            ("x_flags", json!(more.x_flags)),
            ("comment_id", json!(more.comment_id)),
            ("put_away", json!(more.put_away)),
        ]);
    } else {
        let (info, more) = (FInfo::parse(&halves.0), FXInfo::parse(&halves.1));
        fields.extend([
            ("location", json!([info.location.h, info.location.v])),
            ("folder", json!(info.folder)),
            ("icon_id", json!(more.icon_id)),
            ("script", json!(more.script)),
            ("x_flags", json!(more.x_flags)),
            ("comment_id", json!(more.comment_id)),
            ("put_away", json!(more.put_away)),
        ]);
    }
    let raw = meta.finder_info.iter().map(|b| format!("{b:02x}")).collect();
    Finder { raw, fields }
}
