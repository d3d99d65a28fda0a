//! The examples of every verb: one table, shown by `--help` and in the manual pages.

use clap::Command;

/// Examples by verb, each a command with a comment above it where it does not speak for itself.
const TABLE: &str = include_str!("examples.txt");

/// The lines of the table for a verb, such as `ringer key share`; `None` for one without examples.
pub fn of(verb: &str) -> Option<&'static str> {
    TABLE.split("== ").skip(1).find_map(|entry| {
        let (name, lines) = entry.split_once('\n')?;
        (name == verb).then(|| lines.trim_end())
    })
}

/// Puts the examples of each verb at the end of its long help.
pub fn add(command: Command) -> Command {
    add_below(command, "")
}

fn add_below(mut command: Command, verb: &str) -> Command {
    let names: Vec<String> = command.get_subcommands().map(|c| c.get_name().to_owned()).collect();
    for name in names {
        let below = if verb.is_empty() { name.clone() } else { format!("{verb} {name}") };
        command = command.mut_subcommand(&name, |sub| add_below(sub, &below));
    }
    let Some(lines) = of(verb) else { return command };
    let own = command.get_after_long_help().or_else(|| command.get_after_help());
    let mut help = own.map(|own| format!("{own}\n\n")).unwrap_or_default();
    if !help.contains("Examples:") {
        help += "Examples:";
        for line in lines.lines() {
            help += &format!("\n  {line}");
        }
    }
    command.after_long_help(help)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    /// The words of a command line, without quotes.
    fn words(line: &str) -> Vec<String> {
        let (mut words, mut quote) = (vec![String::new()], None);
        for c in line.chars() {
            match (quote, c) {
                (Some(q), c) if c == q => quote = None,
                (None, '\'' | '"') => quote = Some(c),
                (None, ' ') => words.push(String::new()),
                _ => words.last_mut().unwrap().push(c),
            }
        }
        words
    }

    fn verbs(command: &Command, verb: &str, found: &mut Vec<String>) {
        let shown = |sub: &&Command| sub.get_name() != "help" && !sub.is_hide_set();
        for sub in command.get_subcommands().filter(shown) {
            let below = format!("{verb} {}", sub.get_name()).trim().to_owned();
            if !sub.is_subcommand_required_set() {
                found.push(below.clone());
            }
            verbs(sub, &below, found);
        }
    }

    #[test]
    fn every_example_is_a_command_line_of_its_verb() {
        let mut seen = 0;
        for entry in TABLE.split("== ").skip(1) {
            let (verb, lines) = entry.split_once('\n').unwrap();
            if !cfg!(feature = "ringer") && verb.starts_with("ringer") {
                continue;
            }
            // Ids and tokens have a checksum, and are cut short.
            let whole = |line: &&str| !line.starts_with('#') && !line.contains('…');
            for line in lines.lines().filter(whole) {
                assert!(line.starts_with(&format!("weft {verb}")), "{verb}: {line}");
                if let Err(e) = Cli::command().try_get_matches_from(words(line)) {
                    panic!("{line}: {e}");
                }
                seen += 1;
            }
        }
        assert!(seen > 80, "only {seen}");
    }

    #[test]
    fn every_verb_has_an_example_or_needs_none() {
        let mut all = Vec::new();
        verbs(&Cli::command(), "", &mut all);
        let needs_none = [
            "ringer archive list",
            "ringer archive remove",
            "ringer key id",
            "ringer key import",
            "ringer key list",
            "ringer key members",
        ];
        let without: Vec<_> = all
            .iter()
            .filter(|verb| of(verb).is_none() && !needs_none.contains(&verb.as_str()))
            .collect();
        assert!(without.is_empty(), "{without:?}");
    }
}
