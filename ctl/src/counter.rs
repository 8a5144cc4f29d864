//! What an energy counter counts, in words, and how sure that is.

use std::fmt::{self, Display};
use std::ops::RangeInclusive;

use pfo_protocol::CounterCheck;

/// Energy by the counter, as a multiple of that by the power reading, that is no other thing.
const AGREEING: RangeInclusive<f64> = 0.8..=1.25;

/// How many standard errors a mean may be off.
const ERRORS: f64 = 2.0;

/// One explanation of a counter's values leaves this share of what the other one leaves, at most, if
/// it is the right one.
const BETTER: f64 = 0.7;

/// The power that a counter counted, beside that of the power reading at the same time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BesideReading {
    pub(crate) counted_w: f64,
    pub(crate) read_w: f64,
    /// The standard error of the reading's mean, in watts.
    pub(crate) read_error_w: f64,
}

impl BesideReading {
    /// Whether the two are of the same thing; none if that cannot be told.
    pub(crate) fn agrees(&self) -> Option<bool> {
        let Self { counted_w, read_w, read_error_w } = *self;
        let off_w = ERRORS * read_error_w;
        let ratios = [read_w - off_w, read_w + off_w].map(|read_w| counted_w / read_w.max(0.001));
        let agreeing = ratios.map(|ratio| AGREEING.contains(&ratio));
        let beside = ratios.iter().all(|ratio| ratio < AGREEING.start())
            || ratios.iter().all(|ratio| ratio > AGREEING.end());
        match agreeing {
            [true, true] => Some(true),
            _ => beside.then_some(false),
        }
    }
}

impl Display for BesideReading {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { counted_w, read_w, read_error_w } = *self;
        let error = match read_error_w >= 0.05 {
            true => format!(" (± {read_error_w:.1} W)"),
            false => String::new(),
        };
        let ratio = counted_w / read_w;
        write!(
            f,
            "the counter says {counted_w:.1} W, the power reading {read_w:.1} W{error}: {ratio:.2} \
             times"
        )
    }
}

/// The sentences about a counter that the steps of a job have shown.
pub(crate) fn sentences(check: &CounterCheck) -> String {
    format!("{}\n{}\n", covers(check), integrates(check))
}

fn covers(check: &CounterCheck) -> String {
    let &CounterCheck { counted_w, read_w, read_error_w, .. } = check;
    let Some(read_w) = read_w else {
        return format!(
            "The energy counter says {counted_w:.1} W. Whether it covers the GPU alone is not known: \
             the driver reads no power."
        );
    };
    let beside = BesideReading { counted_w, read_w, read_error_w };
    let verdict = match beside.agrees() {
        Some(true) => "It covers the GPU alone",
        Some(false) if counted_w > read_w => "It covers more than the GPU, such as the module",
        Some(false) => "It counts less than the GPU draws",
        None => "Whether it covers the GPU alone is not certain",
    };
    format!("{verdict}: {beside}.")
}

fn integrates(check: &CounterCheck) -> String {
    let &CounterCheck { values, unexplained_w, unexplained_by_part_w, part, .. } = check;
    let (Some(all_w), Some(part_w)) = (unexplained_w, unexplained_by_part_w) else {
        return format!(
            "Whether it counts all of the time is not certain from {values} of its values."
        );
    };
    let part = format!("{:.0} % of it", 100.0 * part);
    let verdict = if all_w <= BETTER * part_w {
        "It counts all of the time"
    } else if part_w <= BETTER * all_w {
        "It counts a part of the time, and takes it for the whole: energies of short windows are wrong"
    } else {
        "Whether it counts all of the time is not certain"
    };
    format!(
        "{verdict}: the GPU's power in all the time between two values explains them to within \
         {all_w:.1} W, its power in {part} to within {part_w:.1} W ({values} values)."
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beside(counted_w: f64, read_error_w: f64) -> Option<bool> {
        BesideReading { counted_w, read_w: 100.0, read_error_w }.agrees()
    }

    #[test]
    fn a_verdict_needs_errors_that_leave_no_other() {
        assert_eq!(beside(100.0, 0.0), Some(true));
        assert_eq!(beside(126.0, 0.1), Some(false));
        assert_eq!(beside(79.0, 0.1), Some(false));
        assert_eq!(beside(100.0, 9.0), Some(true));
        assert_eq!(beside(100.0, 15.0), None);
        assert_eq!(beside(126.0, 5.0), None);
        assert_eq!(beside(260.0, 60.0), None, "as good as no reading");
    }

    fn check(unexplained: [f64; 2], counted_w: f64) -> CounterCheck {
        CounterCheck {
            counted_w,
            read_w: Some(200.0),
            read_error_w: 3.0,
            values: 190,
            unexplained_w: Some(unexplained[0]),
            unexplained_by_part_w: Some(unexplained[1]),
            part: 0.25,
        }
    }

    #[test]
    fn the_sentences_say_what_it_counts_and_how_sure_that_is() {
        let checks =
            [check([2.0, 31.0], 201.0), check([31.0, 2.0], 360.0), check([20.0, 21.0], 100.0)];
        insta::assert_snapshot!(checks.map(|check| sentences(&check)).join("\n"));
    }

    #[test]
    fn what_was_not_measured_is_said() {
        let unread = CounterCheck { read_w: None, unexplained_w: None, ..check([1.0, 1.0], 200.0) };
        insta::assert_snapshot!(sentences(&unread));
    }
}
