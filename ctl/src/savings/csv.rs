//! Savings as CSV: figures in base units, and empty fields for what is not known.

use pfo_protocol::{SavingsReport, SavingsRow};

use crate::error::Error;
use crate::output::OutputError;
use crate::savings::proven;
use crate::since::date;
use crate::text::harmless;

const HEADER: [&str; 24] = [
    "day",
    "uid",
    "job",
    "plan",
    "steps",
    "time_s",
    "energy_j",
    "compared_j",
    "comparisons",
    "saved_low_j",
    "saved_j",
    "saved_high_j",
    "shown",
    "money",
    "co2e_g",
    "throttled_s",
    "hottest_c",
    "given_j",
    "lost_s",
    "slowdown_s",
    "partition",
    "model",
    "since_unix_s",
    "until_unix_s",
];

/// Every row, below a header.
pub(crate) fn csv(report: &SavingsReport) -> Result<String, Error> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let written = |error: csv::Error| OutputError::Write(error.into());
    writer.write_record(HEADER).map_err(written)?;
    for row in &report.rows {
        writer.write_record(fields(row, report)).map_err(written)?;
    }
    let bytes = writer.into_inner().map_err(|error| OutputError::Write(error.into_error()))?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A name that no spreadsheet takes for a formula.
fn name(name: &str) -> String {
    let quote = if name.starts_with(['=', '+', '-', '@']) { "'" } else { "" };
    format!("{quote}{}", harmless(name))
}

fn fields(row: &SavingsRow, report: &SavingsReport) -> [String; 24] {
    let SavingsRow { uid, job, plan, day_unix_s, savings, partition, model } = row;
    let saved = savings.saved;
    let or_empty =
        |figure: Option<f64>| figure.map_or_else(String::new, |figure| figure.to_string());
    let worth = |worth| or_empty(proven(savings, worth).map(|worth| worth.estimate));
    [
        day_unix_s.map_or_else(String::new, date),
        uid.map_or_else(String::new, |uid| uid.to_string()),
        job.as_ref().map_or_else(String::new, |job| name(job.as_str())),
        plan.as_deref().map_or_else(String::new, name),
        savings.steps.to_string(),
        savings.time_s.to_string(),
        savings.energy_j.to_string(),
        savings.compared_j.to_string(),
        savings.comparisons.to_string(),
        or_empty(saved.map(|saved| saved.low_j)),
        or_empty(saved.map(|saved| saved.estimate_j)),
        or_empty(saved.map(|saved| saved.high_j)),
        saved.is_some_and(|saved| saved.shown).to_string(),
        worth(savings.money),
        worth(savings.co2e_g),
        or_empty(savings.throttled_s),
        or_empty(savings.hottest_c.map(f64::from)),
        savings.given_j.to_string(),
        savings.lost_s.to_string(),
        or_empty(savings.slowdown_s),
        partition.as_deref().map_or_else(String::new, name),
        model.as_deref().map_or_else(String::new, name),
        report.since_unix_s.map_or_else(String::new, |unix_s| unix_s.to_string()),
        report.until_unix_s.map_or_else(String::new, |unix_s| unix_s.to_string()),
    ]
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{SavedEnergy, Savings, Uid, Worth};

    use super::*;

    #[test]
    fn a_row_has_every_figure_and_no_worth_of_what_is_not_shown() {
        let saved =
            |low_j| SavedEnergy { low_j, estimate_j: 7.2e6, high_j: 9e6, shown: low_j > 0.0 };
        let row = |low_j| SavingsRow {
            uid: Some(Uid(7)),
            job: None,
            plan: Some("a \"b\", c".into()),
            day_unix_s: Some(86_400),
            savings: Savings {
                steps: 3,
                saved: Some(saved(low_j)),
                throttled_s: Some(2.5),
                slowdown_s: Some(-0.5),
                money: Some(Worth { low: 0.5, estimate: 1.0, high: 1.5 }),
                ..Savings::default()
            },
            partition: Some("big".into()),
            model: Some("NVIDIA A40".into()),
        };
        let report = SavingsReport {
            rows: vec![row(1e6), row(-1e6)],
            total: Savings::default(),
            since_unix_s: Some(5),
            until_unix_s: Some(6),
            ..SavingsReport::default()
        };
        let text = csv(&report).unwrap();
        let mut lines = text.lines();
        assert_eq!(lines.next().unwrap(), HEADER.join(","));
        assert_eq!(
            lines.next().unwrap(),
            "1970-01-02,7,,\"a \"\"b\"\", c\",3,0,0,0,0,1000000,7200000,9000000,true,1,,2.5,,0,0,\
             -0.5,big,NVIDIA A40,5,6"
        );
        assert!(lines.next().unwrap().contains(",-1000000,7200000,9000000,false,,,2.5,,0,0,"));
    }

    #[test]
    fn no_name_is_a_formula_or_moves_a_cursor() {
        for (of, shown) in [
            ("=HYPERLINK(1)", "'=HYPERLINK(1)"),
            ("+1", "'+1"),
            ("-1", "'-1"),
            ("@SUM(1)", "'@SUM(1)"),
            ("a=b-1", "a=b-1"),
            ("\u{1b}[2J", "\\u{1b}[2J"),
        ] {
            assert_eq!(name(of), shown);
        }
    }
}
