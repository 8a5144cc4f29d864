//! What a budget has at each moment: a number, or what its file says now; and how fast power may follow.

use std::path::Path;

use pfo_budget::{Ramp, Ramped, Series};
use pfo_protocol::{BudgetFileTrouble, BudgetLevel, BudgetOrder, Refusal, RefusalCode};

use crate::bounded_file::text_of;
use crate::budget::trouble;

/// The level of one budget, followed through time.
#[derive(Debug)]
pub(super) struct Level {
    series: Series,
    ramped: Ramped,
    /// The text of the file that the series is from.
    text: String,
    /// What is wrong with the file now; what it said before stays in force.
    pub(super) trouble: Option<BudgetFileTrouble>,
}

impl Level {
    /// The level of an order. `text` is what its file said when it could be read last.
    ///
    /// # Errors
    /// If its file cannot be read or is wrong, and there is no such text.
    pub(super) fn of(order: &BudgetOrder, text: Option<&str>) -> Result<Self, Refusal> {
        let (series, text) = match &order.level {
            BudgetLevel::Watts(watts) => {
                (Series::constant(*watts).map_err(|error| wrong(&error))?, String::new())
            }
            BudgetLevel::File(path) => match (read(path), text) {
                (Ok((series, text)), _) => (series, text),
                (Err(_), Some(text)) => {
                    (Series::from_csv(text).map_err(|error| wrong(&error))?, text.to_owned())
                }
                (Err(why), None) => return Err(wrong(&why)),
            },
        };
        Ok(Self { series, ramped: Ramped::new(ramp(order)), text, trouble: None })
    }

    /// The level of an order whose file is another node's, and said this when it could be read last.
    ///
    /// # Errors
    /// If that is no series.
    pub(super) fn kept(order: &BudgetOrder, text: Option<&str>) -> Result<Self, Refusal> {
        let series = match (&order.level, text) {
            (BudgetLevel::Watts(watts), _) => Series::constant(*watts),
            (BudgetLevel::File(_), text) => Series::from_csv(text.unwrap_or_default()),
        };
        let series = series.map_err(|error| wrong(&error))?;
        let (ramped, text) = (Ramped::new(ramp(order)), text.unwrap_or_default().to_owned());
        Ok(Self { series, ramped, text, trouble: None })
    }

    /// Takes what that file says now.
    pub(super) fn replace(&mut self, order: &BudgetOrder, text: &str) {
        if self.text != text {
            let read = Series::from_csv(text).map(|series| self.series = series);
            self.says(order, read.err().map(|error| error.to_string()));
            self.text = text.to_owned();
        }
    }

    fn says(&mut self, order: &BudgetOrder, wrong: Option<String>) {
        self.trouble = trouble::after(order, self.trouble.take(), wrong);
    }

    /// The text of its file, for the next agent.
    pub(super) fn text(&self) -> Option<&str> {
        (!self.text.is_empty()).then_some(&self.text)
    }

    /// Begins at what is drawn, in watts, at a moment in seconds since 1970.
    pub(super) fn begin(&mut self, at_s: f64, drawn_w: f64) {
        self.ramped.begin(at_s, drawn_w);
    }

    /// Reads its file again. Whether it says something else now.
    pub(super) fn reread(&mut self, order: &BudgetOrder) -> bool {
        let BudgetLevel::File(path) = &order.level else { return false };
        match read(path) {
            Ok((series, text)) => {
                let is_new = text != self.text;
                (self.series, self.text) = (series, text);
                self.says(order, None);
                is_new
            }
            Err(why) => {
                self.says(order, Some(why));
                false
            }
        }
    }

    /// What there is at a moment, in seconds since 1970, in watts.
    pub(super) fn at(&mut self, at_s: f64) -> f64 {
        self.ramped.next(&self.series, at_s)
    }
}

fn ramp(order: &BudgetOrder) -> Ramp {
    if order.emergency {
        return Ramp::NONE;
    }
    Ramp {
        up_w_per_s: order.up_w_per_s.unwrap_or(f64::INFINITY),
        down_w_per_s: order.down_w_per_s.unwrap_or(f64::INFINITY),
    }
}

fn read(path: &str) -> Result<(Series, String), String> {
    let text = text_of(Path::new(path)).map_err(|error| format!("cannot read {path}: {error}"))?;
    let series = Series::from_csv(&text).map_err(|error| format!("{path}: {error}"))?;
    Ok((series, text))
}

fn wrong(why: &impl std::fmt::Display) -> Refusal {
    let remedy =
        "give a power such as 40kW, or a file with lines at,budget that pfo-agent may read";
    Refusal::new(RefusalCode::Malformed, why.to_string(), remedy)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use pfo_protocol::BudgetScope;

    use super::*;

    fn order(path: &Path) -> BudgetOrder {
        BudgetOrder {
            scope: BudgetScope::Node,
            level: BudgetLevel::File(path.to_str().unwrap().into()),
            up_w_per_s: None,
            down_w_per_s: None,
            emergency: false,
        }
    }

    fn why(level: &Level) -> &str {
        level.trouble.as_ref().map_or("", |trouble| &trouble.why)
    }

    #[test]
    fn a_file_is_read_again_and_what_it_said_stays_while_it_is_wrong_or_away() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("budget.csv");
        let order = order(&path);
        assert!(Level::of(&order, None).is_err(), "there is no file");
        fs::write(&path, "0,900W\n").unwrap();
        let mut level = Level::of(&order, None).unwrap();
        assert_eq!((level.at(1.0), level.reread(&order)), (900.0, false));
        fs::write(&path, "0,2kW\n").unwrap();
        assert!(level.reread(&order));
        assert_eq!(level.at(2.0), 2000.0);
        for (content, wrong) in [("0,much\n", "line 1"), ("", "there is no budget")] {
            fs::write(&path, content).unwrap();
            assert!(!level.reread(&order) && why(&level).contains(wrong), "{level:?}");
        }
        fs::remove_file(&path).unwrap();
        assert!(!level.reread(&order) && why(&level).contains("cannot read"));
        assert_eq!(level.at(3.0), 2000.0);
        let text = level.text().unwrap().to_owned();
        assert_eq!(Level::of(&order, Some(&text)).unwrap().at(3.0), 2000.0, "the next agent");
        fs::write(&path, "0,1kW\n").unwrap();
        assert!(level.reread(&order) && level.trouble.is_none());
        // Root may read everything.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
        let _ = level.reread(&order);
        assert_eq!(fs::read(&path).is_err(), why(&level).contains("denied"), "{level:?}");
        assert_eq!(level.at(4.0), 1000.0);
    }

    #[test]
    fn the_file_of_another_node_is_never_read_here_and_what_that_node_says_of_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("budget.csv");
        fs::write(&path, "0,900W\n").unwrap();
        let order = order(&path);
        assert!(Level::kept(&order, None).is_err());
        let mut level = Level::kept(&order, Some("0,2kW")).unwrap();
        assert_eq!(level.at(1.0), 2000.0);
        level.replace(&order, "0,1kW");
        assert_eq!((level.at(2.0), &level.trouble), (1000.0, &None));
        level.replace(&order, "0,much");
        assert!(level.trouble.is_some() && level.at(3.0) == 1000.0);
    }

    #[test]
    fn power_falls_from_what_is_drawn_as_fast_as_the_ramp_says_and_at_once_in_an_emergency() {
        let order = BudgetOrder {
            level: BudgetLevel::Watts(100.0),
            down_w_per_s: Some(10.0),
            ..order(Path::new("/"))
        };
        let mut level = Level::of(&order, None).unwrap();
        level.begin(0.0, 150.0);
        assert_eq!([1.0, 3.0, 9.0].map(|at_s| level.at(at_s)), [140.0, 120.0, 100.0]);
        let mut level = Level::of(&BudgetOrder { emergency: true, ..order }, None).unwrap();
        level.begin(0.0, 150.0);
        assert_eq!(level.at(1.0), 100.0);
    }
}
