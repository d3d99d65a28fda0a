//! What a crash test says: as text, and as JUnit's XML. As JSON it is [`Report`] itself.

use std::fmt::{self, Write};
use std::time::Duration;

use serde::Serialize;

use crate::finding::{Finding, Nature};
use crate::search::{Found, Progress};
use crate::volume::BlockText;
use crate::words::CallText;
use crate::{Header, Model};

/// The result of a crash test.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// What was recorded.
    pub recorded: Header,
    /// Calls in the recording.
    pub calls: usize,
    /// Writes to the volume, if the program ran on one.
    pub block_writes: usize,
    /// Those calls that make something durable.
    pub syncs: usize,
    /// Promises that the program made.
    pub promises: usize,
    /// What was found under each model.
    pub models: Vec<ModelReport>,
    /// What limits the test.
    pub notes: Vec<String>,
}

/// What was found under one model.
#[derive(Debug, Clone, Serialize)]
pub struct ModelReport {
    /// The model.
    pub model: Model,
    /// Changes that are durable or lost as a whole.
    pub units: usize,
    /// What was found.
    #[serde(flatten)]
    pub found: Found,
    /// How long it took, in seconds.
    pub seconds: f64,
}

impl Report {
    /// Returns true if no state failed.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.models.iter().all(|model| model.found.progress.failed == 0)
    }

    /// Adds to each finding the command that judges its state again. `options` are those that name
    /// the recording and the check.
    pub fn add_replays(&mut self, options: &[&str]) {
        let options: Vec<String> = options.iter().map(|word| shell_word(word)).collect();
        let options = options.join(" ");
        for model in &mut self.models {
            // The recording of a volume says what it is; it is no model that can be chosen.
            let chosen = match model.model {
                Model::Volume => String::new(),
                model => format!(" --model {model}"),
            };
            for finding in &mut model.found.findings {
                finding.replay =
                    Some(format!("weft crash run {options}{chosen} --state {}", finding.state));
            }
        }
    }

    /// The report as JUnit's XML: a test case for each model.
    #[must_use]
    pub fn junit(&self, seconds: Duration) -> String {
        let failures = self.models.iter().filter(|model| model.found.progress.failed > 0).count();
        let mut xml = String::from("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n");
        let name = escape(&self.recorded.run);
        let (tests, seconds) = (self.models.len(), seconds.as_secs_f64());
        let _ = writeln!(
            xml,
            "<testsuite name=\"weft crash run\" tests=\"{tests}\" failures=\"{failures}\" \
             errors=\"0\" time=\"{seconds:.3}\">"
        );
        for model in &self.models {
            let _ = write!(
                xml,
                "  <testcase classname=\"{name}\" name=\"{}\" time=\"{:.3}\"",
                model.model, model.seconds
            );
            if model.found.progress.failed == 0 {
                xml.push_str("/>\n");
                continue;
            }
            let headline = model.found.findings.first().map_or_else(
                || format!("{} states fail", model.found.progress.failed),
                |finding| finding.headline.clone(),
            );
            let _ = writeln!(xml, ">\n    <failure message=\"{}\">", escape(&headline));
            let _ = write!(xml, "{}", escape(&model.to_string()));
            xml.push_str("    </failure>\n  </testcase>\n");
        }
        xml.push_str("</testsuite>\n");
        xml
    }
}

/// JUnit's XML of a test of the program `run` in which nothing was tested, for a reason.
#[must_use]
pub fn junit_of_error(run: &str, why: &str, seconds: Duration) -> String {
    let (name, why, seconds) = (escape(run), escape(why), seconds.as_secs_f64());
    format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n\
         <testsuite name=\"weft crash run\" tests=\"1\" failures=\"0\" errors=\"1\" \
         time=\"{seconds:.3}\">\n  <testcase classname=\"{name}\" name=\"not tested\" \
         time=\"{seconds:.3}\">\n    <error message=\"{why}\"/>\n  </testcase>\n</testsuite>\n"
    )
}

/// What became of a recording when each call that makes something durable was left out in turn.
#[derive(Debug, Clone, Serialize)]
pub struct EachSync {
    /// What was recorded.
    pub recorded: Header,
    /// The calls, under each model.
    pub syncs: Vec<SyncReport>,
}

/// What became of a recording when one call was left out.
#[derive(Debug, Clone, Serialize)]
pub struct SyncReport {
    /// The model.
    pub model: Model,
    /// The call.
    pub call: CallText,
    /// The number of changes that only this call made durable; if there are none, it had nothing to
    /// do, and nothing was searched.
    pub settles: usize,
    /// Whether a state fails without it.
    pub needed: bool,
    /// The number of states that were judged, up to the first that failed.
    pub states: u64,
    /// The failure, in a sentence.
    pub failure: Option<String>,
    /// Its state.
    pub state: Option<String>,
    /// How long the search took, in seconds.
    pub seconds: f64,
}

impl fmt::Display for EachSync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for sync in &self.syncs {
            let verdict = match (sync.settles, sync.needed) {
                (0, _) => "nothing to do".to_owned(),
                (_, false) => format!("not missed in {}", count(sync.states, "state")),
                (_, true) => format!("NEEDED: found in {}", count(sync.states, "state")),
            };
            writeln!(
                f,
                "{}: without call {} {}: {verdict}, {:.1} s",
                sync.model, sync.call.nr, sync.call.text, sync.seconds
            )?;
            if let Some(failure) = &sync.failure {
                writeln!(f, "    {failure}")?;
            }
        }
        let needed = self.syncs.iter().filter(|sync| sync.needed).count();
        let idle = self.syncs.iter().filter(|sync| sync.settles == 0).count();
        let all = count(self.syncs.len() as u64, "call");
        writeln!(f, "{all}: {needed} needed, {idle} with nothing to do")
    }
}

/// Text as one word of a shell line.
pub(crate) fn shell_word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,@%+".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

/// Text in XML: characters that XML cannot hold are replaced.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(c),
            c if c.is_control() => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A number and a noun in the singular or plural.
pub(crate) fn count(number: u64, noun: &str) -> String {
    if number == 1 { format!("1 {noun}") } else { format!("{number} {noun}s") }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "recorded: {}, of them {} to make something durable",
            count(self.calls as u64, "call"),
            self.syncs
        )?;
        if self.promises > 0 {
            write!(f, "; {}", count(self.promises as u64, "promise"))?;
        }
        if self.block_writes > 0 {
            write!(f, "; {} to the volume", count(self.block_writes as u64, "write"))?;
        }
        writeln!(f)?;
        self.models.iter().try_for_each(|model| write!(f, "{model}"))?;
        self.notes.iter().try_for_each(|note| writeln!(f, "note: {note}"))
    }
}

impl fmt::Display for ModelReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Found { progress, findings, unexplained, unstable, cut_short } = &self.found;
        let verdict = match progress.failed {
            0 => "no state fails".to_owned(),
            1 => "1 STATE FAILS".to_owned(),
            failed => format!("{failed} STATES FAIL"),
        };
        writeln!(
            f,
            "{}: {verdict}; {} tried, {} distinct, {} judged in {:.1} s",
            self.model,
            count(progress.tried, "state"),
            progress.distinct,
            progress.judged,
            self.seconds
        )?;
        for (nr, finding) in findings.iter().enumerate() {
            writeln!(f, "\n  {}. {}", nr + 1, finding.headline)?;
            write_finding(f, finding)?;
        }
        if !findings.is_empty() {
            writeln!(f)?;
        }
        if *unexplained > 0 {
            writeln!(f, "  {} more fail; they were not shrunk", count(*unexplained, "state"))?;
        }
        if *unstable > 0 {
            writeln!(
                f,
                "  unstable check: {} failed and then passed; they are not counted",
                count(*unstable, "state")
            )?;
        }
        if let Some(reason) = cut_short {
            writeln!(f, "  ended before all states were tried: {reason}; {}", coverage(progress))?;
        }
        Ok(())
    }
}

/// The part of the states that a search has tried which ended early.
fn coverage(progress: &Progress) -> String {
    let Progress { epochs, epochs_done, tried_of_each, .. } = progress;
    match (tried_of_each, epochs - epochs_done) {
        (0, _) => format!("not all of the {epochs} parts of the recording were reached"),
        (_, 0) => "all were built, and not all judged".to_owned(),
        (tried, rest) if rest == *epochs => {
            format!("of each of the {epochs} parts of the recording at least {tried} were")
        }
        (tried, rest) => format!(
            "of {rest} of the {epochs} parts of the recording at least {tried} were, of the others all"
        ),
    }
}

/// Writes the content of each block of a write to a volume, and the call that it comes from.
fn write_blocks(f: &mut fmt::Formatter<'_>, blocks: &[BlockText]) -> fmt::Result {
    for block in blocks {
        write!(f, "                 {}", block.text)?;
        if let Some(CallText { nr, by, text, .. }) = &block.cause {
            let by = if by.is_empty() { String::new() } else { format!("  by {by}") };
            write!(f, ", from call {nr} {text}{by}")?;
        }
        writeln!(f)?;
    }
    Ok(())
}

fn write_finding(f: &mut fmt::Formatter<'_>, finding: &Finding) -> fmt::Result {
    let line = |f: &mut fmt::Formatter<'_>, call: &CallText, fate: &str| {
        let by = if call.by.is_empty() { String::new() } else { format!("  by {}", call.by) };
        writeln!(f, "     call {:>5}  {}{by}: {fate}", call.nr, call.text)
    };
    for lost in &finding.lost {
        let parts = lost.parts.join(" and ");
        let fate = match (parts.as_str(), finding.nature) {
            ("", _) => "LOST".to_owned(),
            ("half of a page", _) => "half of a page is written".to_owned(),
            (_, Nature::Restored) => "the name is back".to_owned(),
            (parts, _) => format!("LOST: its {parts}"),
        };
        line(f, &lost.call, &fate)?;
        write_blocks(f, &lost.blocks)?;
    }
    if finding.dependent > 0 {
        let more = count(finding.dependent as u64, "change");
        writeln!(f, "     and {more} that cannot be there without")?;
    }
    if let Some(kept) = &finding.kept
        && finding.lost.iter().all(|lost| lost.call.nr != kept.nr)
    {
        let fate = match finding.nature {
            Nature::NotDurable => "promised",
            _ => "on the disk",
        };
        line(f, kept, fate)?;
        write_blocks(f, &finding.kept_blocks)?;
    } else if !finding.kept_blocks.is_empty() && !finding.lost.is_empty() {
        writeln!(f, "                 and of the same write on the disk:")?;
        write_blocks(f, &finding.kept_blocks)?;
    }
    match &finding.mend {
        Some(mend) => {
            writeln!(
                f,
                "     missing: {}, after call {} and before call {}",
                mend.calls.join(" and "),
                mend.after,
                mend.before.nr
            )?;
            let tried = count(mend.states, "state");
            let proof = match mend.failed {
                0 => format!("none of {tried} there fails"),
                failed => format!("{failed} of {tried} there fail, for other reasons"),
            };
            writeln!(f, "     with it, {proof}")?;
        }
        None => {
            if let Some(advice) = finding.advice {
                writeln!(f, "     {advice}")?;
            }
        }
    }
    if !finding.narrowed {
        writeln!(
            f,
            "     the time was over before it was found which of these calls must be lost"
        )?;
    }
    writeln!(
        f,
        "     {} with this cause; the smallest is --state {}",
        count(finding.states, "state"),
        finding.state
    )?;
    if let Some(replay) = &finding.replay {
        writeln!(f, "     again: {replay}")?;
    }
    writeln!(f, "     the check: {}", finding.outcome)?;
    for text in finding.output.lines().take(12) {
        writeln!(f, "       | {text}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::shell_word;

    #[test]
    fn words_survive_the_shell() {
        for text in ["", "plain/path-1.log", "two words", "it's", "$HOME `id` \"q\" \\", "a\nb"] {
            let line = format!("printf %s {}", shell_word(text));
            let ran =
                std::process::Command::new("/bin/sh").args(["-c", &line]).output().expect("sh");
            assert_eq!(String::from_utf8_lossy(&ran.stdout), text, "{line}");
        }
    }
}
