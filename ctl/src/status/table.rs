//! How every table looks: no borders, a rule under the header, and no column that says nothing.

use comfy_table::{
    Attribute, Cell as StyledCell, CellAlignment, Color, ColumnConstraint, ContentArrangement,
    LineStyle, TableStyle, Width,
};
use pfo_protocol::Mhz;

use crate::output::Look;
use crate::text::harmless;

const STYLE: TableStyle =
    TableStyle::new().header_separator(LineStyle::none().fill('─').junction('─'));

/// How a cell is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tone {
    /// As any other.
    Plain,
    /// Good news.
    Good,
    /// Worth knowing.
    Notable,
    /// To be acted on.
    Bad,
}

/// One cell. An empty one is shown as `-`, in a column that has others.
#[derive(Clone, Debug)]
pub(crate) struct Cell {
    text: Option<String>,
    tone: Tone,
}

impl Cell {
    /// A cell with text of any origin.
    pub(crate) fn text(text: impl AsRef<str>) -> Self {
        Self { text: Some(harmless(text.as_ref()).into_owned()), tone: Tone::Plain }
    }

    /// A cell with a number.
    pub(crate) fn number(number: impl Into<u64>) -> Self {
        Self::text(number.into().to_string())
    }

    /// A cell with a clock, whose unit is in the header.
    pub(crate) fn mhz(clock: Option<Mhz>) -> Self {
        clock.map_or_else(Self::empty, |clock| Self::number(clock.0))
    }

    /// A cell without anything.
    pub(crate) fn empty() -> Self {
        Self { text: None, tone: Tone::Plain }
    }

    /// A cell with a count of something that should not happen.
    pub(crate) fn count(count: u64) -> Self {
        match count {
            0 => Self::empty(),
            _ => Self::number(count).tone(Tone::Notable),
        }
    }

    /// A cell with what is there.
    pub(crate) fn option(text: Option<impl AsRef<str>>) -> Self {
        text.map_or_else(Self::empty, Self::text)
    }

    /// What it shows; nothing if it is empty.
    pub(crate) fn shown(&self) -> &str {
        self.text.as_deref().unwrap_or_default()
    }

    /// How it is meant.
    pub(crate) fn meant(&self) -> Tone {
        self.tone
    }

    /// The same cell, meant differently.
    pub(crate) fn tone(self, tone: Tone) -> Self {
        Self { tone, ..self }
    }
}

/// Columns between two columns: the padding of the left one, and one more.
const GAP: usize = 2;

/// Text is not wrapped into less, if the terminal is too narrow even for that.
const NARROWEST_TEXT: usize = 8;

/// A table in the making.
pub(crate) struct Table {
    look: Look,
    columns: Vec<Column>,
    rows: Vec<Vec<Cell>>,
}

struct Column {
    header: &'static str,
    alignment: CellAlignment,
    /// Whether it is left out where there is no room for it.
    spare: bool,
}

impl Table {
    /// A table without columns.
    pub(crate) fn new(look: Look) -> Self {
        Self { look, columns: Vec::new(), rows: Vec::new() }
    }

    /// With one more column, of text.
    pub(crate) fn left(self, header: &'static str) -> Self {
        self.column(header, CellAlignment::Left)
    }

    /// With one more column, of figures.
    pub(crate) fn right(self, header: &'static str) -> Self {
        self.column(header, CellAlignment::Right)
    }

    /// With one more column, of figures, which is left out on a narrow terminal: the last one first.
    pub(crate) fn spare(mut self, header: &'static str) -> Self {
        self.columns.push(Column { header, alignment: CellAlignment::Right, spare: true });
        self
    }

    fn column(mut self, header: &'static str, alignment: CellAlignment) -> Self {
        self.columns.push(Column { header, alignment, spare: false });
        self
    }

    /// One more row, a cell for each column.
    pub(crate) fn row(&mut self, cells: impl Into<Vec<Cell>>) {
        let cells = cells.into();
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// The columns that are shown: those in which a row has anything, as far as there is room.
    fn shown(&self) -> Vec<usize> {
        let says = |&column: &usize| self.rows.iter().any(|row| row[column].text.is_some());
        let mut shown: Vec<usize> = (0..self.columns.len()).filter(says).collect();
        let wide = |shown: &[usize]| -> usize {
            shown.iter().map(|&column| self.wide(column) + GAP).sum()
        };
        let room = self.look.width.map_or(usize::MAX, |width| usize::from(width) + GAP);
        let is_spare = |&column: &usize| self.columns[column].spare;
        while wide(&shown) > room
            && let Some(last) = shown.iter().rposition(is_spare)
        {
            shown.remove(last);
        }
        shown
    }

    /// The width of a column if nothing is wrapped.
    fn wide(&self, column: usize) -> usize {
        let cells = self.rows.iter().map(|row| row[column].shown());
        let texts = cells.chain([self.columns[column].header]);
        texts.map(|text| text.chars().count()).max().unwrap_or_default()
    }

    /// The table as lines, without the columns in which no row has anything.
    pub(crate) fn render(&self) -> String {
        let shown = self.shown();
        let mut table = comfy_table::Table::new();
        table.load_style(STYLE);
        if self.look.colour {
            table.enforce_styling();
        } else {
            table.force_no_tty();
        }
        if let Some(width) = self.look.width {
            table.set_width(width);
            table.set_content_arrangement(ContentArrangement::Dynamic);
        } else {
            table.set_content_arrangement(ContentArrangement::Disabled);
        }
        table.set_header(shown.iter().map(|&column| {
            let Column { header, alignment, .. } = self.columns[column];
            StyledCell::new(header).set_alignment(alignment).add_attribute(Attribute::Bold)
        }));
        for row in &self.rows {
            table.add_row(shown.iter().map(|&column| {
                let cell = styled(&row[column]);
                cell.set_alignment(self.columns[column].alignment)
            }));
        }
        for (position, column) in table.column_iter_mut().enumerate() {
            let last = position + 1 == shown.len();
            let padding = u16::from(!last);
            column.set_padding((0, padding));
            // A figure that is cut in two is none; where there is no room, text wraps.
            let of = shown[position];
            column.set_constraint(match self.columns[of].alignment {
                CellAlignment::Right => ColumnConstraint::ContentWidth,
                _ => {
                    let header = self.columns[of].header.chars().count();
                    let least = self.wide(of).min(NARROWEST_TEXT).max(header) as u16 + padding;
                    ColumnConstraint::LowerBoundary(Width::Fixed(least))
                }
            });
        }
        table.lines().map(|line| line.trim_end().to_owned() + "\n").collect()
    }
}

fn styled(cell: &Cell) -> StyledCell {
    let styled = StyledCell::new(cell.text.as_deref().unwrap_or("-"));
    match cell.tone {
        Tone::Plain => styled,
        Tone::Good => styled.fg(Color::Green),
        Tone::Notable => styled.fg(Color::Yellow),
        Tone::Bad => styled.fg(Color::Red),
    }
}

/// A word outside of tables.
pub(crate) fn toned(word: &str, tone: Tone, look: Look) -> String {
    let code = match tone {
        Tone::Good => 32,
        Tone::Notable => 33,
        Tone::Bad => 31,
        Tone::Plain => 0,
    };
    if look.colour { format!("\x1b[{code}m{word}\x1b[0m") } else { word.to_owned() }
}

/// A line above a table.
pub(crate) fn heading(text: &str, look: Look) -> String {
    let text = harmless(text);
    if look.colour { format!("\x1b[1m{text}\x1b[0m\n") } else { format!("{text}\n") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_without_anything_is_left_out() {
        let mut table = Table::new(Look::default()).left("Name").right("Lost").right("Step");
        table.row([Cell::text("a"), Cell::count(0), Cell::number(9_u32)]);
        table.row([Cell::text("b"), Cell::count(0), Cell::empty()]);
        assert_eq!(table.render(), "Name  Step\n──────────\na        9\nb        -\n");
    }

    #[test]
    fn a_figure_is_never_cut_in_two() {
        let look = Look { colour: false, width: Some(20) };
        let mut table = Table::new(look).left("Label").right("Energy");
        table.row([Cell::text("one two three four"), Cell::text("170.0 kJ")]);
        insta::assert_snapshot!(table.render());
    }

    #[test]
    fn a_narrow_terminal_has_fewer_columns_and_no_text_of_one_letter_a_line() {
        let rendered = |width| {
            let look = Look { colour: false, width: Some(width) };
            let mut table =
                Table::new(look).left("Plan").right("Steps").spare("Pred.").spare("Set");
            let row = ["default clocks", "123", "1.000 s", "9"];
            table.row(row.map(Cell::text));
            table.render()
        };
        let of_width = |width| format!("{width} columns:\n{}", rendered(width));
        insta::assert_snapshot!([40, 33, 21, 17, 12, 5].map(of_width).join("\n"));
    }

    #[test]
    fn an_empty_cell_in_a_column_with_others_is_a_dash() {
        let mut table = Table::new(Look::default()).left("A").left("B");
        table.row([Cell::text("1"), Cell::empty()]);
        table.row([Cell::text("2"), Cell::text("x")]);
        insta::assert_snapshot!(table.render());
    }
}
