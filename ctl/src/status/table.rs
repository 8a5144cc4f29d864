//! How every table looks: no borders, a rule under the header, and no column that says nothing.

use comfy_table::{
    Attribute, Cell as StyledCell, CellAlignment, Color, ColumnConstraint, ContentArrangement,
    LineStyle, TableStyle,
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

/// A table in the making.
pub(crate) struct Table {
    look: Look,
    columns: Vec<(&'static str, CellAlignment)>,
    rows: Vec<Vec<Cell>>,
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

    fn column(mut self, header: &'static str, alignment: CellAlignment) -> Self {
        self.columns.push((header, alignment));
        self
    }

    /// One more row, a cell for each column.
    pub(crate) fn row(&mut self, cells: impl Into<Vec<Cell>>) {
        let cells = cells.into();
        debug_assert_eq!(cells.len(), self.columns.len());
        self.rows.push(cells);
    }

    /// The table as lines, without the columns in which no row has anything.
    pub(crate) fn render(&self) -> String {
        let shown: Vec<usize> = (0..self.columns.len())
            .filter(|&column| self.rows.iter().any(|row| row[column].text.is_some()))
            .collect();
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
            let (header, alignment) = self.columns[column];
            StyledCell::new(header).set_alignment(alignment).add_attribute(Attribute::Bold)
        }));
        for row in &self.rows {
            table.add_row(shown.iter().map(|&column| {
                let cell = styled(&row[column]);
                cell.set_alignment(self.columns[column].1)
            }));
        }
        for (position, column) in table.column_iter_mut().enumerate() {
            let last = position + 1 == shown.len();
            column.set_padding((0, u16::from(!last)));
            // A figure that is cut in two is none; where there is no room, text wraps.
            if self.columns[shown[position]].1 == CellAlignment::Right {
                column.set_constraint(ColumnConstraint::ContentWidth);
            }
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
        let text = table.render();
        assert!(text.contains("170.0 kJ") && text.lines().count() > 3, "{text}");
    }

    #[test]
    fn an_empty_cell_in_a_column_with_others_is_a_dash() {
        let mut table = Table::new(Look::default()).left("A").left("B");
        table.row([Cell::text("1"), Cell::empty()]);
        table.row([Cell::text("2"), Cell::text("x")]);
        assert!(table.render().contains("1  -\n2  x\n"), "{}", table.render());
    }
}
