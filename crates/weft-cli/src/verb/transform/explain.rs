//! `transform show` and `explain`.

use super::files::Target;
use crate::cli::transform::{Explain, Files, Show};
use crate::failure::{DONE, Failure, Outcome};
use crate::output::Output;
use std::io::Write;
use weft::transform::{Explanation, Source};

fn all(args: &Files) -> Result<Vec<(String, Explanation)>, Failure> {
    let mut all = Vec::new();
    for name in &args.files {
        let target = Target::find(name, &args.keys, false)?;
        let explanation = target.explain()?;
        all.push((target.shown.clone(), explanation));
        target.close()?;
    }
    Ok(all)
}

fn json(all: &[(String, Explanation)]) -> serde_json::Value {
    let one = |(file, explanation): &(String, Explanation)| {
        let mut value = serde_json::json!(explanation);
        value["file"] = file.as_str().into();
        value
    };
    all.iter().map(one).collect()
}

/// `show`.
pub fn show(out: Output, args: &Show) -> Outcome {
    let all = all(&args.files)?;
    out.report(&json(&all), |w| {
        for (file, explanation) in &all {
            let network = match (&explanation.network, &explanation.error) {
                (Some(network), _) => network.as_str(),
                (None, Some(error)) => error.as_str(),
                (None, None) => "none",
            };
            writeln!(w, "{file}: {network}")?;
        }
        Ok(())
    })?;
    Ok(DONE)
}

fn source(explanation: &Explanation) -> String {
    match &explanation.source {
        Source::Nothing => "no rule and no attribute says otherwise".to_owned(),
        Source::Attribute => "its attribute user.weft.network says so".to_owned(),
        Source::RulesFile { directory, line } => {
            let slash = if directory.is_empty() { "" } else { "/" };
            format!("line {line} of {directory}{slash}.weftattributes says so")
        }
        Source::MountRules { line } => format!("line {line} of the mount's rules says so"),
        Source::Name => "its name says so: it is a view".to_owned(),
        Source::Link => "its content says so: it is a link".to_owned(),
    }
}

fn yes(yes: bool) -> &'static str {
    if yes { "yes" } else { "no" }
}

fn text(w: &mut dyn Write, file: &str, e: &Explanation) -> std::io::Result<()> {
    match (&e.network, &e.error) {
        (Some(network), _) => writeln!(w, "{file}: {network}")?,
        (None, Some(error)) => writeln!(w, "{file}: cannot be used: {error}")?,
        (None, None) => writeln!(w, "{file}: no network")?,
    }
    writeln!(w, "  {}", source(e))?;
    if let Some(base) = &e.base {
        writeln!(w, "  base           {base}")?;
    }
    writeln!(w, "  length known   {}", yes(e.exact_size))?;
    writeln!(w, "  read anywhere  {}", yes(e.random_read))?;
    writeln!(w, "  written        {}", e.write)?;
    if e.stages.is_empty() {
        return Ok(());
    }
    writeln!(w, "  from the stored file to the reader:")?;
    for s in &e.stages {
        let guards = if s.guards { ", guards" } else { "" };
        let random = if s.deterministic { "" } else { ", not deterministic" };
        writeln!(
            w,
            "    {:<10} {:<8} size {}, {} access, write {}{guards}{random}",
            s.stage, s.direction, s.size, s.access, s.write
        )?;
    }
    Ok(())
}

/// `explain`.
pub fn explain(out: Output, args: &Explain) -> Outcome {
    let all = all(&args.files)?;
    out.report(&json(&all), |w| {
        for (file, explanation) in &all {
            text(w, file, explanation)?;
        }
        Ok(())
    })?;
    Ok(DONE)
}
