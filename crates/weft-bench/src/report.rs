//! The report: sections of Markdown in one file, each replaced when its measurement runs again.

use anyhow::{Context, Result};
use std::fmt::Write as _;
use std::path::Path;

/// The section of one measurement in the report.
#[derive(Debug, Clone, Default)]
pub struct Section {
    name: String,
    body: String,
}

impl Section {
    /// Makes an empty section; `name` identifies it in the report.
    pub fn new(name: &str, title: &str) -> Self {
        let mut section = Self { name: name.to_owned(), body: String::new() };
        section.line(&format!("## {title}"));
        section
    }

    /// Adds a paragraph.
    pub fn line(&mut self, text: &str) {
        self.body.push_str(text.trim_end());
        self.body.push_str("\n\n");
        eprintln!("{text}");
    }

    /// Adds a table; the first column is text, the others are figures.
    pub fn table(&mut self, head: &[&str], rows: &[Vec<String>]) {
        let mut text = String::new();
        let _ = writeln!(text, "| {} |", head.join(" | "));
        let rule: Vec<&str> =
            (0..head.len()).map(|i| if i == 0 { "---" } else { "---:" }).collect();
        let _ = writeln!(text, "|{}|", rule.join("|"));
        for row in rows {
            let _ = writeln!(text, "| {} |", row.join(" | "));
        }
        self.line(&text);
    }

    /// Adds a note of the machine, the date and the command.
    pub fn signed(mut self, machine: &str, command: &str) -> Self {
        let note = format!("_{machine}. Command: `{command}`._");
        self.line(&note);
        self
    }

    /// Writes this section into the report at `path`, in place of an earlier one.
    pub fn save(&self, path: &Path) -> Result<()> {
        let old = std::fs::read_to_string(path).unwrap_or_default();
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).with_context(|| format!("make {}", dir.display()))?;
        }
        std::fs::write(path, self.put_into(&old))
            .with_context(|| format!("write {}", path.display()))
    }

    fn put_into(&self, old: &str) -> String {
        let (begin, end) =
            (format!("<!-- {} -->\n", self.name), format!("<!-- /{} -->\n", self.name));
        let text = format!("{begin}{}\n\n{end}", self.body.trim_end());
        let mut page = if old.is_empty() { INTRODUCTION.to_owned() } else { old.to_owned() };
        match (page.find(&begin), page.find(&end)) {
            (Some(from), Some(to)) if from < to => page.replace_range(from..to + end.len(), &text),
            _ => {
                page.push('\n');
                page.push_str(&text);
            }
        }
        page
    }
}

const INTRODUCTION: &str = "\
# Benchmarks

Written by `weft-bench` (`make bench`); do not edit, run it. A time means something only beside its
peer in the same table: the runs are interleaved (A B A B ...) after a warm-up, and the median is
shown with the smallest and largest. Unless a section says otherwise, a time includes making the
result durable: it ends when the volume is unmounted, its server has ended and the image is synced to
the disk of the host.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_is_replaced_in_its_place() {
        let mut a = Section::new("a", "First");
        a.line("one");
        let b = Section::new("b", "Second");
        let page = b.put_into(&a.put_into(""));
        assert!(page.starts_with("# Benchmarks"));
        let mut again = Section::new("a", "First");
        again.line("two");
        let page = again.put_into(&page);
        assert!(!page.contains("one") && page.contains("two"), "{page}");
        assert!(page.find("## First") < page.find("## Second"), "{page}");
        assert_eq!(page.matches("## First").count(), 1);
    }
}
