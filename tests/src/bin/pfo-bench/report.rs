//! What was measured: tables for people and, on request, one JSON object for programs.

use std::process::{Command, Stdio};

use comfy_table::{CellAlignment, Table, presets};
use serde_json::{Map, Value, json};

/// One figure or name in a table.
pub(crate) enum Cell {
    Text(String),
    /// A figure and how many decimals people care for.
    Figure(f64, usize),
}

impl Cell {
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    pub(crate) fn count(count: u64) -> Self {
        Self::Figure(count as f64, 0)
    }

    fn for_people(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Figure(figure, decimals) => format!("{figure:.decimals$}"),
        }
    }

    fn for_programs(&self) -> Value {
        match self {
            Self::Text(text) => json!(text),
            Self::Figure(figure, 0) => json!(figure.round() as i64),
            Self::Figure(figure, _) => json!(figure),
        }
    }
}

/// A column: its key for programs and its heading for people.
pub(crate) type Column = (&'static str, &'static str);

/// Everything measured in one run.
#[derive(Default)]
pub(crate) struct Report {
    json: Option<Map<String, Value>>,
}

impl Report {
    /// Prints JSON at the end, and the tables to standard error.
    pub(crate) fn as_json(&mut self) {
        self.json = Some(Map::from_iter([("machine".into(), json!(machine()))]));
    }

    /// A table of measurements.
    pub(crate) fn table(
        &mut self,
        name: &str,
        title: &str,
        columns: &[Column],
        rows: &[Vec<Cell>],
    ) {
        let mut table = Table::new();
        table.load_style(presets::UTF8_HORIZONTAL_ONLY);
        table.set_header(columns.iter().map(|(_, heading)| *heading));
        table.add_rows(rows.iter().map(|row| row.iter().map(Cell::for_people)));
        for (index, cell) in rows.iter().flat_map(|row| row.iter().enumerate()) {
            if let (Cell::Figure(..), Some(column)) = (cell, table.column_mut(index)) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        self.print(&format!("{title}\n{table}"));
        if let Some(json) = &mut self.json {
            let object = |row: &Vec<Cell>| -> Map<String, Value> {
                let keys = columns.iter().map(|(key, _)| (*key).to_owned());
                keys.zip(row.iter().map(Cell::for_programs)).collect()
            };
            json.insert(name.into(), rows.iter().map(object).collect());
        }
    }

    /// A sentence about a table, or about why there is none.
    pub(crate) fn note(&mut self, text: &str) {
        self.print(text);
        if let Some(json) = &mut self.json
            && let Value::Array(notes) = json.entry("notes").or_insert_with(|| json!([]))
        {
            notes.push(json!(text));
        }
    }

    fn print(&self, text: &str) {
        if self.json.is_some() {
            eprintln!("{text}\n");
        } else {
            println!("{text}\n");
        }
    }

    /// Nothing more is to come.
    pub(crate) fn finish(self) {
        if let Some(json) = self.json {
            println!("{:#}", Value::Object(json));
        }
    }
}

/// What it was measured on.
fn machine() -> String {
    let uname = Command::new("uname").arg("-srm").stdin(Stdio::null()).output();
    let kernel = uname.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    format!("{}, {cores} cores", kernel.unwrap_or_default())
}
