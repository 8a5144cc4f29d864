//! What was checked, as a table, as JSON, and as Markdown to send in. Nothing in it names a user, a
//! host or a UUID.

use std::fmt::Write;

use serde::Serialize;

use crate::output::Look;
use crate::status::table::{Cell, Table, Tone, heading};
use crate::text::harmless;

/// What came of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// The promise was seen to hold.
    Pass,
    /// It was seen not to hold.
    Fail,
    /// It was not checked, or this GPU does not show it.
    Unknown,
}

impl Outcome {
    const fn word(self) -> &'static str {
        match self {
            Self::Pass => "pass",
            Self::Fail => "fail",
            Self::Unknown => "unknown",
        }
    }

    const fn tone(self) -> Tone {
        match self {
            Self::Pass => Tone::Good,
            Self::Fail => Tone::Bad,
            Self::Unknown => Tone::Notable,
        }
    }
}

/// What is checked: a name that stays, and the sentence that is to be true.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Promise {
    pub(crate) name: &'static str,
    pub(crate) text: &'static str,
}

/// One check of one GPU.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Check {
    check: &'static str,
    promise: &'static str,
    result: Outcome,
    seen: String,
}

impl Promise {
    pub(crate) const fn new(name: &'static str, text: &'static str) -> Self {
        Self { name, text }
    }

    /// It holds.
    pub(crate) fn pass(self, seen: impl Into<String>) -> Check {
        self.came_to(Outcome::Pass, seen)
    }

    /// It does not hold.
    pub(crate) fn fail(self, seen: impl Into<String>) -> Check {
        self.came_to(Outcome::Fail, seen)
    }

    /// Whether it holds is not known.
    pub(crate) fn unknown(self, seen: impl Into<String>) -> Check {
        self.came_to(Outcome::Unknown, seen)
    }

    /// It holds if this is so.
    pub(crate) fn is_so(self, so: bool, seen: impl Into<String>) -> Check {
        self.came_to(if so { Outcome::Pass } else { Outcome::Fail }, seen)
    }

    /// It came to this.
    pub(crate) fn came_to(self, result: Outcome, seen: impl Into<String>) -> Check {
        Check { check: self.name, promise: self.text, result, seen: seen.into() }
    }
}

impl Check {
    /// Whether this is what was checked.
    pub(crate) fn is_of(&self, promise: Promise) -> bool {
        self.check == promise.name
    }
}

/// The checks of one GPU.
#[derive(Debug, Serialize)]
pub(crate) struct GpuReport {
    /// The driver's index.
    pub(crate) gpu: u32,
    /// The model, if the GPU answered.
    pub(crate) model: Option<String>,
    pub(crate) checks: Vec<Check>,
}

/// Everything.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    /// The version of this program.
    pub(crate) pfoctl: &'static str,
    /// The version of `pfod`, if it answered.
    pub(crate) pfod: Option<String>,
    /// The version of the driver, if it answered.
    pub(crate) driver: Option<String>,
    /// Whether locks were asked for.
    pub(crate) set: bool,
    /// Checks of no single GPU.
    pub(crate) checks: Vec<Check>,
    pub(crate) gpus: Vec<GpuReport>,
}

impl Report {
    /// How many checks failed.
    pub(crate) fn failed(&self) -> usize {
        let all = self.gpus.iter().flat_map(|gpu| &gpu.checks).chain(&self.checks);
        all.filter(|check| check.result == Outcome::Fail).count()
    }

    /// As a table for each GPU.
    pub(crate) fn render(&self, look: Look) -> String {
        let mut text = heading(&self.versions(), look);
        for (title, checks) in self.parts() {
            let mut table = Table::new(look).left("Promise").left("Result").left("Seen");
            for Check { promise, result, seen, .. } in checks {
                let result = Cell::text(result.word()).tone(result.tone());
                table.row([Cell::text(promise), result, Cell::text(seen)]);
            }
            text += &format!("\n{}{}", heading(&title, look), table.render());
        }
        text
    }

    /// As Markdown, with a row for docs/tested-on.md of each GPU.
    pub(crate) fn markdown(&self) -> String {
        let mut text = format!("# pfoctl selftest\n\n{}\n", self.versions());
        for (title, checks) in self.parts() {
            let _ = write!(text, "\n## {title}\n\n| promise | result | seen |\n|---|---|---|\n");
            for Check { promise, result, seen, .. } in checks {
                text += &format!("| {promise} | {} | {} |\n", result.word(), cell(seen));
            }
        }
        text += "\n## Rows for docs/tested-on.md\n\n```\n";
        for GpuReport { model, checks, .. } in &self.gpus {
            let count = |outcome| checks.iter().filter(|check| check.result == outcome).count();
            let [pass, fail, unknown] = [Outcome::Pass, Outcome::Fail, Outcome::Unknown].map(count);
            let (model, driver) = (or_unknown(model), or_unknown(&self.driver));
            let how = if self.set { "reads and locks" } else { "reads" };
            let _ = writeln!(
                text,
                "| {} | {driver} | {} | {how} | {pass} | {fail} | {unknown} |",
                cell(model),
                self.pfoctl,
            );
        }
        text + "```\n"
    }

    fn parts(&self) -> impl Iterator<Item = (String, &[Check])> {
        let node = (!self.checks.is_empty()).then(|| ("Node".to_owned(), &self.checks[..]));
        let title = |gpu: &GpuReport| format!("GPU {}: {}", gpu.gpu, or_unknown(&gpu.model));
        node.into_iter().chain(self.gpus.iter().map(move |gpu| (title(gpu), &gpu.checks[..])))
    }

    fn versions(&self) -> String {
        let (driver, pfod) = (or_unknown(&self.driver), or_unknown(&self.pfod));
        format!("driver {driver}, pfod {pfod}, pfoctl {}", self.pfoctl)
    }
}

fn or_unknown(text: &Option<String>) -> &str {
    text.as_deref().unwrap_or("unknown")
}

/// Text of any origin in a cell of Markdown.
fn cell(text: &str) -> String {
    harmless(text).replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report() -> Report {
        const PROMISE: Promise = Promise::new("names", "the GPU has a name");
        Report {
            pfoctl: "0.2.0",
            pfod: None,
            driver: Some("570.1".to_owned()),
            set: false,
            checks: Vec::new(),
            gpus: vec![GpuReport {
                gpu: 3,
                model: Some("A|B".to_owned()),
                checks: vec![PROMISE.pass("it\nhas"), PROMISE.fail("x"), PROMISE.unknown("y")],
            }],
        }
    }

    #[test]
    fn the_rows_to_send_in_count_what_was_seen_and_stay_one_line_each() {
        insta::assert_snapshot!(report().markdown());
    }

    #[test]
    fn only_what_was_seen_not_to_hold_is_a_failure() {
        assert_eq!(report().failed(), 1);
        insta::assert_snapshot!(report().render(Look::default()));
    }
}
