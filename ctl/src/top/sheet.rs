//! A table that is sorted, filtered and cut to the room there is. A figure is never cut in two: where
//! there is no room for a column, it is left out.

use std::cmp::Ordering;

use pfo_protocol::{JobName, Uid};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::Span;

use super::keys::Sort;
use super::paint::style;
use crate::status::table::{Cell, Tone};

/// Whose job.
pub(super) type JobKey = (Uid, JobName);

/// The least room of a text whose end may be cut: of a name, and of a sentence.
const LEAST_NAME: u16 = 10;
const LEAST_SENTENCE: u16 = 24;

/// One column.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    name: &'static str,
    /// The least room of a text, which is to the left and may be cut.
    least_text: Option<u16>,
    /// The higher, the sooner it is left out.
    spare: u8,
}

impl Column {
    pub(super) const fn text(name: &'static str, spare: u8) -> Self {
        Self { name, least_text: Some(LEAST_NAME), spare }
    }

    pub(super) const fn sentence(name: &'static str, spare: u8) -> Self {
        Self { name, least_text: Some(LEAST_SENTENCE), spare }
    }

    pub(super) const fn figure(name: &'static str, spare: u8) -> Self {
        Self { name, least_text: None, spare }
    }
}

/// A cell and what its row is sorted by.
pub(super) struct Entry {
    cell: Cell,
    figure: Option<f64>,
}

impl Entry {
    /// A cell and the figure that it shows, if it shows one; others are sorted as text.
    pub(super) fn new(cell: Cell, figure: Option<f64>) -> Self {
        Self { cell, figure }
    }

    /// Text.
    pub(super) fn text(text: Option<impl AsRef<str>>) -> Self {
        Self { cell: Cell::option(text), figure: None }
    }

    /// A figure and how it is shown.
    pub(super) fn figure(figure: Option<f64>, shown: impl FnOnce(f64) -> String) -> Self {
        Self { cell: Cell::option(figure.map(shown)), figure }
    }

    /// A count, which is shown unless it is 0.
    pub(super) fn count(count: u64) -> Self {
        Self { cell: Cell::count(count), figure: Some(count as f64) }
    }

    pub(super) fn tone(self, tone: Tone) -> Self {
        Self { cell: self.cell.tone(tone), ..self }
    }

    fn shown(&self) -> &str {
        self.cell.shown()
    }

    fn compare(&self, other: &Self) -> Ordering {
        match (self.figure, other.figure) {
            (Some(one), Some(other)) => one.total_cmp(&other),
            (None, None) => self.shown().cmp(other.shown()),
            // Figures first: an order of some by figure and of others by text would be none.
            (one, other) => one.is_none().cmp(&other.is_none()),
        }
    }
}

/// One row.
pub(super) struct Row {
    /// Its subject, in any order and at any place.
    pub(super) id: String,
    /// The job that Enter looks into.
    pub(super) job: Option<JobKey>,
    pub(super) entries: Vec<Entry>,
}

/// A table.
pub(super) struct Sheet {
    columns: &'static [Column],
    pub(super) rows: Vec<Row>,
    sort: Sort,
}

impl Sheet {
    /// The rows in which the filter is found, in order. What is not known comes last.
    pub(super) fn new(
        columns: &'static [Column],
        mut rows: Vec<Row>,
        sort: Sort,
        filter: &str,
    ) -> Self {
        debug_assert!(rows.iter().all(|row| row.entries.len() == columns.len()));
        let filter = filter.to_lowercase();
        rows.retain(|row| {
            row.entries.iter().any(|entry| entry.shown().to_lowercase().contains(&filter))
        });
        if let Some(column) = sort.column.filter(|column| *column < columns.len()) {
            rows.sort_by(|one, other| {
                let (one, other) = (&one.entries[column], &other.entries[column]);
                match (one.shown().is_empty(), other.shown().is_empty()) {
                    (false, false) if sort.reversed => other.compare(one),
                    (false, false) => one.compare(other),
                    (one, other) => one.cmp(&other),
                }
            });
        }
        Self { columns, rows, sort }
    }

    /// How many columns there are to sort by.
    pub(super) fn columns(&self) -> usize {
        self.columns.len()
    }

    /// The name of a column.
    pub(super) fn name_of(&self, column: usize) -> &'static str {
        self.columns[column].name
    }

    /// The position of a row.
    pub(super) fn position(&self, id: Option<&str>) -> Option<usize> {
        let id = id?;
        self.rows.iter().position(|row| row.id == id)
    }

    /// The rows that are visible in this number of lines, the header's included: whole pages, so
    /// that a step of the selection does not draw every row again.
    pub(super) fn page(&self, height: u16, selected: Option<usize>) -> std::ops::Range<usize> {
        let lines = usize::from(height.saturating_sub(1)).max(1);
        let first = selected.unwrap_or(0) / lines * lines;
        first..(first + lines).min(self.rows.len())
    }

    fn header(&self, column: usize) -> String {
        let name = self.columns[column].name;
        match self.sort.column {
            Some(sorted) if sorted == column && self.sort.reversed => format!("{name}\u{2191}"),
            Some(sorted) if sorted == column => format!("{name}\u{2193}"),
            _ => name.to_owned(),
        }
    }

    /// The columns that are shown, and how wide.
    fn layout(&self, width: u16) -> Vec<(usize, u16)> {
        let gap = gap(width);
        let is_there = |column: &usize| {
            self.rows.is_empty()
                || self.rows.iter().any(|row| !row.entries[*column].shown().is_empty())
        };
        // Each with the least and the most room that it takes.
        let mut shown: Vec<(usize, u16, u16)> = (0..self.columns.len())
            .filter(is_there)
            .map(|column| {
                let entries = self.rows.iter().map(|row| width_of(row.entries[column].shown()));
                let most = entries.chain([width_of(&self.header(column))]).max().unwrap_or(0);
                let least = self.columns[column].least_text.unwrap_or(u16::MAX);
                (column, most.min(least), most)
            })
            .collect();
        let least = |shown: &[(usize, u16, u16)]| {
            let gaps = gap * shown.len().saturating_sub(1) as u16;
            shown.iter().fold(gaps, |sum, (_, least, _)| sum.saturating_add(*least))
        };
        while least(&shown) > width && shown.len() > 1 {
            let spare =
                |(_, (column, ..)): &(usize, &(usize, u16, u16))| self.columns[*column].spare;
            let last = shown.iter().enumerate().max_by_key(spare).map_or(0, |(place, _)| place);
            shown.remove(last);
        }
        let mut left = width.saturating_sub(least(&shown));
        let widened = shown.into_iter().map(|(column, least, most)| {
            let more = (most - least).min(left);
            left -= more;
            (column, least + more)
        });
        widened.collect()
    }

    /// Draws the header and a page of rows.
    pub(super) fn draw(
        &self,
        area: Rect,
        buffer: &mut Buffer,
        selected: Option<usize>,
        colour: bool,
    ) {
        if area.is_empty() {
            return;
        }
        let columns = self.layout(area.width);
        let line = |buffer: &mut Buffer, y: u16, texts: &dyn Fn(usize) -> (String, Style)| {
            let mut x = area.x;
            for &(column, width) in &columns {
                let (text, style) = texts(column);
                let text = cut(&text, width.min(area.right().saturating_sub(x)));
                let pad = match self.columns[column].least_text {
                    Some(_) => 0,
                    None => width.saturating_sub(width_of(&text)),
                };
                if x + pad < area.right() {
                    buffer.set_string(x + pad, y, text, style);
                }
                x = x.saturating_add(width + gap(area.width));
            }
        };
        let bold = Style::new().add_modifier(Modifier::BOLD);
        line(buffer, area.y, &|column| (self.header(column), bold));
        let page = self.page(area.height, selected);
        for (y, place) in (area.y + 1..area.bottom()).zip(page) {
            line(buffer, y, &|column| {
                let cell = &self.rows[place].entries[column].cell;
                let shown = if cell.shown().is_empty() { "-" } else { cell.shown() };
                (shown.to_owned(), style(cell.meant(), colour))
            });
            if selected == Some(place) {
                let row = Rect { y, height: 1, ..area };
                buffer.set_style(row, Style::new().add_modifier(Modifier::REVERSED));
            }
        }
    }
}

const fn gap(width: u16) -> u16 {
    if width < 60 { 1 } else { 2 }
}

/// How many cells of a terminal a text takes.
pub(super) fn width_of(text: &str) -> u16 {
    Span::raw(text).width().try_into().unwrap_or(u16::MAX)
}

/// A text of at most this number of cells; a cut text ends in an ellipsis.
pub(super) fn cut(text: &str, width: u16) -> String {
    if width_of(text) <= width {
        return text.to_owned();
    }
    let mut kept = String::new();
    for c in text.chars() {
        kept.push(c);
        if width_of(&kept) >= width {
            kept.pop();
            break;
        }
    }
    if width > 0 {
        kept.push('\u{2026}');
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    const COLUMNS: &[Column] =
        &[Column::text("Job", 0), Column::figure("Power", 1), Column::text("Trouble", 2)];

    fn row(job: &str, power: Option<f64>, trouble: &str) -> Row {
        let entries = vec![
            Entry::text(Some(job)),
            Entry::figure(power, |watts| format!("{watts:.0} W")),
            Entry::text(Some(trouble)),
        ];
        Row { id: job.to_owned(), job: None, entries }
    }

    fn rows() -> Vec<Row> {
        vec![
            row("b", Some(90.0), ""),
            row("a", None, "the driver does not answer"),
            row("c", Some(312.0), ""),
        ]
    }

    fn order(sort: Sort, filter: &str) -> Vec<String> {
        Sheet::new(COLUMNS, rows(), sort, filter).rows.into_iter().map(|row| row.id).collect()
    }

    fn drawn(width: u16) -> Vec<String> {
        let sheet = Sheet::new(COLUMNS, rows(), Sort::default(), "");
        let mut buffer = Buffer::empty(Rect::new(0, 0, width, 4));
        sheet.draw(buffer.area, &mut buffer, None, false);
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        (0..4).map(|y| line(y).trim_end().to_owned()).collect()
    }

    #[test]
    fn figures_are_sorted_as_figures_and_the_unknown_comes_last_both_ways() {
        let by_power = Sort { column: Some(1), reversed: false };
        assert_eq!(order(by_power, ""), ["b", "c", "a"]);
        assert_eq!(order(Sort { reversed: true, ..by_power }, ""), ["c", "b", "a"]);
        assert_eq!(order(Sort { column: Some(0), reversed: false }, ""), ["a", "b", "c"]);
        assert_eq!(order(Sort { column: Some(99), reversed: false }, ""), ["b", "a", "c"]);
    }

    #[test]
    fn what_has_no_figure_is_sorted_behind_figures() {
        let entry = |text: &str| Entry::new(Cell::text(text), text.parse().ok());
        let mut entries = ["3e", "10", "1f2e", "2"].map(entry);
        entries.sort_by(Entry::compare);
        assert_eq!(entries.each_ref().map(Entry::shown), ["2", "10", "1f2e", "3e"]);
    }

    #[test]
    fn a_filter_finds_what_any_column_says() {
        assert_eq!(order(Sort::default(), "DRIVER"), ["a"]);
        assert_eq!(order(Sort::default(), "312"), ["c"]);
        assert!(order(Sort::default(), "nothing").is_empty());
    }

    #[test]
    fn text_is_cut_before_a_column_is_left_out_and_figures_are_whole() {
        assert_eq!(drawn(60)[2], "a        -  the driver does not answer");
        assert_eq!(drawn(24)[2], "a       - the driver do\u{2026}");
        assert_eq!(drawn(12)[..2], ["Job Power", "b    90 W"]);
        assert_eq!(drawn(5)[1], "b");
    }

    #[test]
    fn what_is_cut_fits_whatever_width_its_letters_have() {
        for text in ["plain text", "模型训练任务", "größe e\u{301}e\u{301}"] {
            for width in 0..12 {
                assert!(width_of(&cut(text, width)) <= width, "{text} {width}");
            }
        }
    }
}
