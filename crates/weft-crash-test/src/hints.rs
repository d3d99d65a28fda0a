//! Hints for those whose test tests nothing: a command that starts in another directory than it was
//! thought to, a check that looks at no content.

use std::path::Path;
use std::time::{Duration, Instant};

use weft_vfs::FileKind;
use weft_vfs::memfs::Snapshot;

use crate::calls::{Action, NodeNr};
use crate::subject::{Cursor, Subject};
use crate::verdict::{Case, Judge};
use crate::words::Paths;
use crate::{Error, Result};

/// Exit statuses of a shell that finds no such command, or may not run it.
const NO_COMMAND: [i32; 2] = [126, 127];

/// The most files that are emptied, and the most time for it.
const EMPTIED_MAX: usize = 8;
const EMPTIED_TIME: Duration = Duration::from_secs(5);

/// Returns a hint for a shell line that failed, on a line of its own: it names a file that is where weft
/// was started, or a command that is not found. Empty if there is none.
pub(crate) fn for_line(line: &str, status: Option<i32>) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    if let Some(file) = misplaced(line, &here) {
        return format!(
            "\nhint: {file} is in the directory in which weft was started, and commands start in the \
             folder of the test: write \"$WEFT_CWD/{file}\""
        );
    }
    if status.is_some_and(|status| NO_COMMAND.contains(&status)) {
        return "\nhint: commands start in the folder of the test; the directory in which weft was started is \
                in $WEFT_CWD"
            .into();
    }
    String::new()
}

/// The first word of a shell line that is the path of a file from a directory.
fn misplaced<'a>(line: &'a str, directory: &Path) -> Option<&'a str> {
    let ends = |c: char| c.is_whitespace() || "'\"`;|&()<>{}=".contains(c);
    let mut words = line.split(ends).filter(|word| !word.is_empty());
    words.find(|word| {
        let is_relative = !word.starts_with(['/', '-', '~', '$']);
        is_relative && directory.join(word).is_file()
    })
}

/// Adds a hint to the reason why nothing was tested.
pub(crate) fn with_hint(error: Error, line: &str) -> Error {
    match error {
        Error::NotTested(why) if !why.contains("\nhint: ") => {
            let status = why.contains("cannot be run (exit status").then_some(NO_COMMAND[1]);
            Error::NotTested(format!("{why}{}", for_line(line, status)))
        }
        other => other,
    }
}

/// Runs the check on what the program left, with each file emptied that the program has written, one at a
/// time. Returns a note if the check accepts some: it would not see that a power cut leaves them empty.
///
/// # Errors
/// Those of the judge.
pub(crate) fn accepts_emptied(subject: &Subject, judge: &mut dyn Judge) -> Result<Option<String>> {
    let deadline = Instant::now() + EMPTIED_TIME;
    let mut cursor = Cursor::new(subject);
    let Some(epoch) = subject.epochs().last() else { return Ok(None) };
    let state = epoch.full();
    let built = cursor.built(&state)?;
    if built.damage.is_some() {
        return Ok(None);
    }
    let promises = subject.promises(&epoch);
    let paths = Paths::at(&subject.base, &subject.calls, epoch.end);
    let mut accepted = Vec::new();
    for node in written_files(subject, &built.tree).into_iter().take(EMPTIED_MAX) {
        if Instant::now() >= deadline {
            break;
        }
        let tree = emptied(&built.tree, node)?;
        let edits = &subject.edits;
        let emptied = Some(node.0);
        let case =
            Case { edits, state: &state, tree: &tree, damage: None, promises: &promises, emptied };
        if !judge.judge(&case)?.fails() {
            accepted.push(format!("{:?}", paths.of(node)));
        }
    }
    let named = match accepted.as_slice() {
        [] => return Ok(None),
        [one] => one.clone(),
        [first, second] => format!("{first}, or {second},"),
        [first, rest @ ..] => format!("{first}, or one of {} other files,", rest.len()),
    };
    Ok(Some(format!(
        "the check passes, too, if {named} is empty: should its content matter, the check must look at it"
    )))
}

/// A tree in which a file has no content.
pub(crate) fn emptied(tree: &Snapshot, node: NodeNr) -> Result<Snapshot> {
    let mut tree = tree.clone();
    tree.set_size(node.0, 0).map_err(Error::fs("emptying a file"))?;
    Ok(tree)
}

/// The files with content and a name in a tree that the calls have written to, in the order of their first
/// writes.
fn written_files(subject: &Subject, tree: &Snapshot) -> Vec<NodeNr> {
    let mut named = std::collections::HashSet::new();
    for (_, node) in tree.nodes() {
        named.extend(node.entries().map(|(_, child)| child));
    }
    let has_content = |node: &NodeNr| {
        let found = tree.node(node.0).filter(|found| found.kind() == FileKind::Regular);
        named.contains(&node.0) && found.is_some_and(|found| found.size_bytes() > 0)
    };
    let mut files = Vec::new();
    for call in &subject.calls {
        if let Action::Write(span) | Action::Resize(span) = &call.action
            && !files.contains(&span.node)
            && has_content(&span.node)
        {
            files.push(span.node);
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use super::misplaced;

    #[test]
    fn a_file_that_is_elsewhere_is_named() {
        let here = tempfile::tempdir().unwrap();
        std::fs::create_dir(here.path().join("src")).unwrap();
        for name in ["first.sh", "src/a.py", "$x"] {
            std::fs::write(here.path().join(name), "").unwrap();
        }
        for (line, found) in [
            ("sh first.sh", Some("first.sh")),
            ("cd . && python3 'src/a.py' 1", Some("src/a.py")),
            ("A=1 ./first.sh", Some("./first.sh")),
            ("sh $WEFT_CWD/first.sh", None),
            ("sh \"$WEFT_CWD\"/first.sh", None),
            ("ls src", None),
            ("cat $x -first.sh", None),
        ] {
            assert_eq!(misplaced(line, here.path()), found, "{line}");
        }
    }
}
