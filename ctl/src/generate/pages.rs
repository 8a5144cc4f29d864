//! Manual pages: what clap declares, and the tables of a command's help, each under its own heading.

use std::path::Path;
use std::{fs, io};

use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

const SOURCE: &str = concat!("pfo ", env!("CARGO_PKG_VERSION"));

/// Writes the pages of a command and of all below it.
pub(super) fn write(command: Command, directory: &Path) -> io::Result<()> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write_page(&command, &["pfo(7)".into(), "pfod(8)".into(), "pfo-agent(8)".into()], directory)
}

fn write_page(command: &Command, see_also: &[String], directory: &Path) -> io::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let above: Vec<String> = [vec![format!("{name}(1)")], see_also.to_vec()].concat();
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        write_page(below, &above, directory)?;
    }
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim().to_owned();
    let man = Man::new(command.clone().override_usage(usage)).source(SOURCE).manual("pfo");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut roff = Roff::new();
    let help = command.get_after_long_help().or_else(|| command.get_after_help());
    let tables = help.map(ToString::to_string).unwrap_or_default();
    add_tables(&mut roff, &tables);
    if command.get_bin_name().is_some_and(|name| name != command.get_name()) {
        roff.control("SH", ["EXIT STATUS"]);
        roff.text([roman("0 if it was done. "), bold("pfoctl"), roman("(1) lists the others.")]);
    }
    roff.control("SH", ["SEE ALSO"]).text([roman(see_also.join(", "))]);
    roff.to_writer(&mut page)?;
    fs::write(directory.join(man.get_filename()), page)
}

/// Adds the tables of a help text: a heading ends with a colon; a term is two spaces in, and what is said
/// of it comes after two spaces more, or below it and further in.
fn add_tables(roff: &mut Roff, help: &str) {
    let mut goes_on = false;
    for line in help.lines() {
        let text = line.trim();
        match line.len() - line.trim_start().len() {
            0 if text.is_empty() => {}
            0 => match text.strip_suffix(':') {
                Some(heading) => {
                    roff.control("SH", [heading_of(heading).as_str()]);
                }
                None if goes_on => {
                    roff.text([roman(text)]);
                }
                None => {
                    roff.control("PP", []).text([roman(text)]);
                }
            },
            2 => {
                let (term, said) = text.split_once("  ").unwrap_or((text, ""));
                roff.control("TP", []).text([bold(term)]);
                if !said.is_empty() {
                    roff.text([roman(said.trim_start())]);
                }
            }
            _ => {
                roff.text([roman(text)]);
            }
        }
        goes_on = !text.is_empty();
    }
}

/// The heading by which manual pages call it.
fn heading_of(heading: &str) -> String {
    match heading {
        "Exit codes" => "EXIT STATUS".to_owned(),
        heading => heading.to_uppercase(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_of_the_help_is_a_section_with_a_paragraph_for_each_term() {
        let mut roff = Roff::new();
        let help =
            "Exit codes:\n  0    done\n  130  interrupted: a wait\n       was left\n\nMore\nof it.";
        add_tables(&mut roff, help);
        let page = roff.render();
        for part in
            [".SH \"EXIT STATUS\"", ".TP\n\\fB0\\fR\ndone\n", "wait\nwas left", ".PP\nMore\nof it."]
        {
            assert!(page.contains(part), "no {part:?} in {page}");
        }
    }
}
