//! The page of section 5 of a shipped configuration, whose comments say everything that it says.
//!
//! A comment goes with the keys (`#: `) right below it, or with its section if there are none. `#>
//! ` is an example, `- ` an item of a list, `#` alone a new paragraph.

use clap_mangen::roff::{Roff, bold, roman};

/// What the page says beside the shipped file.
pub(crate) struct Frame {
    /// The name of the page.
    pub(crate) title: &'static str,
    /// The program or project with its version.
    pub(crate) source: &'static str,
    /// The line under NAME.
    pub(crate) name: &'static str,
    pub(crate) description: &'static str,
    pub(crate) see_also: &'static str,
}

pub(crate) fn page(frame: &Frame, shipped: &str) -> String {
    let mut page = Roff::new();
    page.control("TH", [frame.title, "5", "", frame.source]);
    page.control("SH", ["NAME"]).text([roman(frame.name)]);
    page.control("SH", ["DESCRIPTION"]).text([roman(frame.description)]);
    // The first paragraph says how the file itself is to be read.
    let sections = shipped.lines().skip_while(|line| *line != "#" && !line.starts_with('['));
    let mut writer = Writer { page, comment: Vec::new() };
    for line in sections {
        writer.line(line);
    }
    writer.flush_comment();
    writer.page.control("SH", ["SEE ALSO"]).text([roman(frame.see_also)]);
    writer.page.render()
}

struct Writer {
    page: Roff,
    /// The paragraph that is being read; what comes next decides where it goes.
    comment: Vec<String>,
}

impl Writer {
    fn line(&mut self, line: &str) {
        if let Some(section) = line.strip_prefix('[') {
            self.flush_comment();
            self.page.control("SH", [format!("[{section}").as_str()]);
        } else if let Some(key) = line.strip_prefix("#: ") {
            self.key(key);
        } else if let Some(example) = line.strip_prefix("#>") {
            self.flush_comment();
            self.page.control("EX", []).text([roman(example.trim())]).control("EE", []);
        } else if let Some(item) = line.strip_prefix("# - ") {
            self.flush_comment();
            self.comment = vec![format!("\u{2022} {item}")];
        } else if let Some(text) = line.strip_prefix("# ") {
            self.comment.push(text.trim().to_owned());
        } else {
            self.flush_comment();
        }
    }

    /// Keys that follow each other share the comment above the first.
    fn key(&mut self, key: &str) {
        self.page.control("TP", []).text([bold(key)]);
        let meaning = std::mem::take(&mut self.comment).join(" ");
        self.page.text([roman(meaning)]);
    }

    fn flush_comment(&mut self) {
        if !self.comment.is_empty() {
            let text = std::mem::take(&mut self.comment).join(" ");
            self.page.control("PP", []).text([roman(text)]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_shows_every_section_and_key_of_the_shipped_file() {
        let page = page(&crate::CONFIG, crate::SHIPPED).replace("\\-", "-");
        for line in crate::SHIPPED.lines() {
            let shown = line.strip_prefix("#: ").or(line.starts_with('[').then_some(line));
            if let Some(shown) = shown {
                assert!(page.contains(shown), "{shown} is missing");
            }
        }
    }

    #[test]
    fn a_comment_goes_with_the_keys_below_it_and_otherwise_with_its_section() {
        let page = page(
            &crate::CONFIG,
            "# How to read it.\n#\n# Of all.\n[a]\n# All\n# of a.\n#\n# Of k.\n#: k = 1\n#> x = 2\n",
        );
        let wanted =
            ".PP\nOf all.\n.SH [a]\n.PP\nAll of a.\n.TP\n\\fBk = 1\\fR\nOf k.\n.EX\nx = 2\n.EE\n";
        assert!(page.contains(wanted) && !page.contains("How to read"), "{page}");
    }
}
