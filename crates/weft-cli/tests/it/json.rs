//! What `--json` prints is documented: each field of each report is on the page.

use crate::run::Bench;
use serde_json::Value;
use std::collections::BTreeSet;

/// Objects whose fields other pages document.
const OPEN: [&str; 2] = ["figures", "finder"];

fn fields(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(object) => {
            for (name, value) in object {
                found.insert(name.clone());
                if !OPEN.contains(&name.as_str()) {
                    fields(value, found);
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| fields(value, found)),
        _ => {}
    }
}

#[test]
fn every_field_is_documented() {
    let page = include_str!("../../../../docs/json.md");
    let bench = Bench::new();
    std::fs::write(bench.path("a"), b"content").unwrap();
    let reports: [&[&str]; 24] = [
        &["mkfs", "ext3", "v.img", "--size", "16M"],
        &["put", "a", "v.img:/"],
        &["cp", "v.img:/a", "v.img:/b"],
        &["stat", "v.img:/a"],
        &["ls", "v.img:/"],
        &["tree", "v.img:/"],
        &["df", "v.img"],
        &["info", "v.img"],
        &["fsck", "v.img"],
        &["trace", "v.img", "--workload", "creat f; write f 0 4096"],
        &["get", "v.img:/a", "c"],
        &["export", "v.img:/", "out"],
        &["import", "out", "v.img:/again"],
        &["rm", "v.img:/b"],
        &["mkfs", "hfs", "m.img", "--size", "4M"],
        &["put", "a", "m.img:/"],
        &["info", "m.img"],
        &["fsck", "m.img"],
        &["hfs", "ls", "m.img:/"],
        &["hfs", "info", "m.img:/a"],
        &["cache", "create", "c.img", "--size", "16M"],
        &["cache", "info", "c.img"],
        &["cache", "check", "c.img"],
        &["df", "m.img"],
    ];
    for args in reports {
        let mut found = BTreeSet::new();
        fields(&bench.json(args), &mut found);
        assert!(!found.is_empty(), "weft {args:?} --json has no field");
        for name in found {
            assert!(page.contains(&format!("`{name}`")), "weft {args:?} --json: {name}");
        }
    }
}
