//! What the help of a command says after its options: the columns of its table, and examples.

mod columns;
mod examples;

use clap::Command;

use self::columns::COLUMNS;
use self::examples::EXAMPLES;

/// For each command, without `pfoctl`, its terms and what is said of them.
type Tables = &'static [(&'static str, &'static [(&'static str, &'static str)])];

/// Adds its tables to the help of every command.
pub(crate) fn with_tables(command: Command) -> Command {
    command.mut_subcommands(|command| add(command, ""))
}

fn add(command: Command, parent: &str) -> Command {
    let path = format!("{parent}{}", command.get_name());
    if command.has_subcommands() {
        return command.mut_subcommands(|command| add(command, &format!("{path} ")));
    }
    let mut text = command.get_after_long_help().map(ToString::to_string).unwrap_or_default();
    for (heading, tables) in [("Columns", COLUMNS), ("Examples", EXAMPLES)] {
        let Some((_, terms)) = tables.iter().find(|(of, _)| *of == path) else { continue };
        if !text.is_empty() {
            text.push_str("\n\n");
        }
        text.push_str(&format!("{heading}:"));
        for (term, said) in *terms {
            text.push_str(&format!("\n  {term}\n      {said}"));
        }
    }
    command.after_long_help(text)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    fn leaves(command: &Command, parent: &str, found: &mut BTreeSet<String>) {
        for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
            let path = format!("{parent}{}", command.get_name());
            if command.has_subcommands() {
                leaves(command, &format!("{path} "), found);
            } else {
                found.insert(path);
            }
        }
    }

    #[test]
    fn every_command_has_an_example_and_every_example_a_command() {
        let mut commands = BTreeSet::new();
        leaves(&Cli::command(), "", &mut commands);
        let with: BTreeSet<_> = EXAMPLES.iter().map(|(of, _)| (*of).to_owned()).collect();
        assert_eq!(with, commands);
        assert_eq!(with.len(), EXAMPLES.len());
    }

    #[test]
    fn every_command_is_on_the_page_of_commands() {
        let page = include_str!("../../../docs/commands.md");
        for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            let names = [format!("`pfoctl {name}"), format!("`{name}")];
            assert!(names.iter().any(|name| page.contains(name)), "docs/commands.md: {name}");
        }
    }

    #[test]
    fn columns_are_those_of_a_command() {
        let mut commands = BTreeSet::new();
        leaves(&Cli::command(), "", &mut commands);
        let other: Vec<_> = COLUMNS.iter().filter(|(of, _)| !commands.contains(*of)).collect();
        assert!(other.is_empty(), "{other:?}");
    }

    #[test]
    fn every_example_is_a_command_line_of_its_command() {
        for (of, examples) in EXAMPLES {
            for (example, _) in *examples {
                assert!(example.starts_with(&format!("pfoctl {of}")), "{example}");
                let parsed = Cli::command().try_get_matches_from(example.split(' '));
                assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
            }
        }
    }
}
