//! What came of a tune, for people and for scripts.

use std::time::Duration;

use clap::Args;
use pfo_experiment::{
    Compared, DefaultClocks, Interval, Origin, PlannedPower, PlannedWith, PowerOrigin, Report,
    Transfers, Tried, UsefulClocks, Verdict,
};
use pfo_planner::{Frontier, Plan};
use pfo_protocol::{GuardStatus, TuneReport};

use super::TuneError;
use crate::arguments::JobArguments;
use crate::daemons::Daemons;
use crate::error::Error;
use crate::output::{Look, Output};
use crate::planning::file;
use crate::report::{self as page, Beside, element, table};
use crate::status::plan_text;
use crate::status::quantity::{joules, percent, seconds, watts};
use crate::status::table::{Cell, Table, Tone, heading};
use crate::text::harmless;

/// For how long a page looks at the GPUs of the job.
const OBSERVED: Duration = Duration::from_secs(5);

/// Where to put what came of a tune.
#[derive(Args)]
pub(crate) struct ResultArguments {
    /// Write the plan that was kept to this file
    #[arg(long, short, value_name = "PLAN.json")]
    output: Option<String>,

    /// Write a page about the job to this file, as `pfoctl report` does, with the measurements of the tune
    #[arg(long, value_name = "REPORT.html")]
    report: Option<String>,

    /// Print JSON: every plan that was tried, with its saving and slowdown, and the one that was
    /// kept
    #[arg(long)]
    json: bool,

    /// Print what looks odd in the profile, too
    #[arg(long)]
    verbose: bool,
}

impl ResultArguments {
    pub(crate) fn json(&self) -> bool {
        self.json
    }

    /// Prints what came of a tune, and writes the files.
    ///
    /// # Errors
    /// If no plan was kept, or not certainly.
    pub(super) fn print(
        &self,
        (daemons, job): (&Daemons, &JobArguments),
        found: TuneReport,
        output: &mut Output,
    ) -> Result<(), Error> {
        let TuneReport { report, plan, frontier } = found;
        let bad = |why: &dyn std::fmt::Display| {
            let (job, why) = (job.name().clone(), why.to_string());
            TuneError::BadReport { job, why }
        };
        let report: Report = serde_json::from_slice(&report).map_err(|error| bad(&error))?;
        if self.json {
            output.json(&report)?;
        } else {
            output.text(&render(&report, output.look()))?;
            output.text(&odd(&report, self.verbose))?;
        }
        if let (Some(name), Some(plan)) = (&self.output, &plan) {
            file::write(name, plan)?;
        }
        if let Some(name) = &self.report {
            let beside = Beside {
                frontier: frontier.as_deref().map(Frontier::from_bytes).transpose()?,
                plan: plan.as_deref().map(Plan::from_json).transpose()?,
                tuned: Some(report.clone()),
                observe: OBSERVED,
                ..Beside::default()
            };
            page::write(daemons, job, beside, name)?;
        }
        match report.kept {
            Some(_) if report.is_certain() => Ok(()),
            Some(_) => Err(TuneError::Uncertain { job: report.job }.into()),
            None => Err(TuneError::NothingKept { job: report.job }.into()),
        }
    }
}

/// The doubt about a verdict that is only most likely.
fn doubt(tried: &Tried) -> Option<String> {
    let doubt = match tried.verdict {
        _ if tried.certain => return None,
        _ if tried.compared.disturbed => {
            return Some(format!(
                "Plan {} was faster than default clocks, but lower clocks make nothing faster: something \
                 else favoured its turns. Its intervals are wider by that, and nothing is certain.\n",
                harmless(&tried.plan)
            ));
        }
        Verdict::Kept | Verdict::SavesLess => "is most likely within the allowed slowdown",
        Verdict::TooSlow => "is most likely too slow",
        Verdict::SavesNothing => "most likely saves nothing",
        Verdict::Undecided => "may save, and may be too slow",
    };
    Some(format!(
        "Plan {} {doubt}: the step times scatter too much for certainty. Measure more --steps to be \
         certain.\n",
        harmless(&tried.plan)
    ))
}

/// What looks odd in the profile, or how to see it.
fn odd(report: &Report, is_verbose: bool) -> String {
    let odd = report.planned_with.as_ref().map_or(&[][..], |with| &with.odd);
    match is_verbose {
        true => odd.iter().map(|line| format!("The profile: {}\n", harmless(line))).collect(),
        false if odd.is_empty() => String::new(),
        false => format!(
            "`pfoctl tune {} --attach --verbose` says what looks odd in the profile.\n",
            report.job
        ),
    }
}

fn render(report: &Report, look: Look) -> String {
    let mut table = Table::new(look)
        .left("Plan")
        .right("Predicted")
        .right("Slower by")
        .left("")
        .right("Saving")
        .left("")
        .right("Rounds")
        .left("");
    for tried in &report.tried {
        let Compared { rounds, saving, slowdown, .. } = tried.compared;
        let (verdict, tone) = judged(tried.verdict);
        table.row([
            Cell::text(&tried.plan),
            Cell::option(tried.predicted_time_s.map(seconds)),
            Cell::text(finely(slowdown.estimate)),
            Cell::text(range(slowdown, finely)),
            Cell::text(percent(saving.estimate)),
            Cell::text(range(saving, percent)),
            Cell::number(rounds),
            Cell::text(verdict).tone(tone),
        ]);
    }
    heading(&title(report), look) + &table.render() + &in_words(report)
}

fn judged(verdict: Verdict) -> (&'static str, Tone) {
    match verdict {
        Verdict::Kept => ("kept", Tone::Good),
        Verdict::SavesLess => ("saves less", Tone::Plain),
        Verdict::TooSlow => ("too slow", Tone::Bad),
        Verdict::SavesNothing => ("saves nothing", Tone::Bad),
        Verdict::Undecided => ("undecided", Tone::Plain),
    }
}

fn title(report: &Report) -> String {
    let DefaultClocks { iteration_time_s, iteration_energy_j } = report.default_clocks;
    format!(
        "Measured on job {}: {} and {} a step at default clocks",
        report.job,
        seconds(iteration_time_s),
        joules(iteration_energy_j)
    )
}

/// What came of a tune as a part of a page.
pub(crate) fn section(report: &Report) -> String {
    let header =
        ["Plan", "Predicted", "Slower by", "Interval", "Saving", "Interval", "Rounds", "Verdict"];
    let rows = report.tried.iter().map(|tried| {
        let Compared { rounds, saving, slowdown, .. } = tried.compared;
        [
            Some(tried.plan.clone()),
            tried.predicted_time_s.map(seconds),
            Some(finely(slowdown.estimate)),
            Some(range(slowdown, finely)),
            Some(percent(saving.estimate)),
            Some(range(saving, percent)),
            Some(rounds.to_string()),
            Some(judged(tried.verdict).0.to_owned()),
        ]
    });
    let words = in_words(report);
    let words: String = words.lines().map(|line| element("p", line)).collect();
    element("p", &format!("{}.", title(report))) + &table(header, rows) + &words
}

/// How it was measured and what the job runs now.
fn in_words(report: &Report) -> String {
    let mut text = report.method.clone() + "\n";
    text += &format!("Policy {}", report.policy);
    if !report.searched.is_empty() {
        text += " over power limits";
    }
    if report.search_trials > 0 {
        text += &format!(", found in {} trials", report.search_trials);
    }
    if let Some(with) = &report.planned_with {
        text += &format!("; {}", planned_in_words(with));
    }
    text += ".\n";
    text.extend(report.useful_clocks.as_ref().map(useful_in_words));
    text.extend(report.tried.iter().filter_map(doubt));
    for plan in &report.unmeasured {
        text += &format!(
            "The tune does not keep plan {}: its energy is not known, because pfod did not read the \
             energy counters in time while its clocks changed.\n",
            harmless(plan)
        );
    }
    text += &kept_in_words(report);
    text
}

/// What the job runs from now on, and what watches over it.
fn kept_in_words(report: &Report) -> String {
    let (mut text, job) = (String::new(), &report.job);
    if let Some(plan) = &report.kept {
        let name = plan_text::name(plan);
        let name = harmless(&name);
        text += &format!("Job {job} runs plan {name}; `pfoctl plan rollback {job}` undoes that.\n");
    }
    if let Some(GuardStatus { max_slowdown, .. }) = &report.guard {
        text += &format!(
            "pfo-agent compares it with default clocks now and then, and {} if steps take more \
             than {} longer.\n",
            if report.correctable { "corrects it or gives it up" } else { "gives it up" },
            percent(*max_slowdown)
        );
    }
    if let Some(why) = &report.unguarded {
        let why = harmless(why);
        text += &format!("Nothing compares it with default clocks later on: {why}.\n");
    }
    text
}

fn useful_in_words(useful: &UsefulClocks) -> String {
    let &UsefulClocks { asked_mhz, lowest_mhz, highest_mhz, compared } = useful;
    let Compared { saving, slowdown, .. } = compared;
    let held = match lowest_mhz == highest_mhz {
        true => highest_mhz.to_string(),
        false => format!("{} to {highest_mhz}", lowest_mhz.0),
    };
    format!(
        "The GPUs are held back at {held} where {asked_mhz} was asked for: higher clocks are not \
         planned.\nWith every instruction at its highest useful clock, a step takes {} {} longer \
         and saves {} {}.\n",
        finely(slowdown.estimate),
        range(slowdown, finely),
        percent(saving.estimate),
        range(saving, percent)
    )
}

fn planned_in_words(with: &PlannedWith) -> String {
    let power = power_in_words(&with.p2p_power);
    let origin = match with.profile_origin {
        Origin::File => "as given".to_owned(),
        Origin::Stored => "reused".to_owned(),
        Origin::Learned { .. } => "between whose clocks times and energies are fitted".to_owned(),
        Origin::Measured { resumed_after: 0 } => "measured and stored".to_owned(),
        Origin::Measured { resumed_after: clocks } => {
            format!("measured and stored, with {clocks} clocks of an interrupted sweep")
        }
    };
    let profile = harmless(&with.profile);
    let late = match with.late_s {
        0.0 => String::new(),
        late_s => format!("; clocks are up to {} late", seconds(late_s)),
    };
    let transfers = transfers_in_words(with.transfers, with.transfer_s);
    let order = with.order.as_ref().map_or_else(String::new, |order| format!("; {order}"));
    let held_up = match with.held_up_s {
        0.0 => String::new(),
        held_up_s => {
            format!("; each change of clocks holds up its stage for {}", seconds(held_up_s))
        }
    };
    let power = harmless(&power);
    format!("{profile}, {origin}; {power}{late}{held_up}{transfers}{order}")
}

fn power_in_words(planned: &PlannedPower) -> String {
    let power = match &planned.by_stage_w {
        Some(_) => format!("{} by stage", planned.flat()),
        None => watts(planned.watts),
    };
    let power = match &planned.origin {
        PowerOrigin::Given => power + ", as given",
        PowerOrigin::Waits => power + ", measured in its waits",
        PowerOrigin::Steps => power + ", what its steps draw beside their instructions",
        PowerOrigin::Stored(origin) => format!("{origin}, reused"),
        PowerOrigin::Unneeded => return "one stage, which waits for no other".to_owned(),
    };
    format!("P2P-blocking power {power}")
}

/// Words to follow others in a sentence, for plans in which transfers take this long.
fn transfers_in_words(transfers: Transfers, transfer_s: f64) -> String {
    match transfers {
        Transfers::OfSeveralNodes => {
            "; transfers are not known, because the clocks of nodes do not compare (--set \
             transfer_s=SECONDS gives their time)"
                .to_owned()
        }
        Transfers::Measured { .. } if transfer_s > 0.0 => {
            format!("; transfers take {}, as measured", seconds(transfer_s))
        }
        Transfers::Given if transfer_s > 0.0 => {
            format!("; transfers take {}, as given", seconds(transfer_s))
        }
        _ => String::new(),
    }
}

/// A slowdown matters to the hundredth of a percent.
fn finely(share: f64) -> String {
    format!("{:+.2} %", 100.0 * share)
}

fn range(interval: Interval, written: fn(f64) -> String) -> String {
    let low = written(interval.low);
    format!("({} to {})", low.trim_end_matches(" %"), written(interval.high))
}

#[cfg(test)]
mod tests {
    use pfo_experiment::Window;
    use pfo_protocol::Mhz;

    use super::*;

    fn report(tried: Vec<Tried>) -> Report {
        let default_clocks = Window { times_s: vec![2.0], energies_j: vec![1000.0] };
        let report = Report::new("j".parse().unwrap(), "pfo".to_owned(), 0.005, &default_clocks);
        let planned_with = PlannedWith {
            odd: vec!["7 rows scatter".to_owned(), "a clock is slow".to_owned()],
            profile: "p.csv".to_owned(),
            profile_origin: Origin::File,
            p2p_power: PlannedPower {
                watts: 83.6,
                by_stage_w: None,
                by_mhz: None,
                by_stage_by_mhz: None,
                origin: PowerOrigin::Waits,
            },
            late_s: 0.015,
            transfer_s: 0.004,
            transfers: Transfers::Given,
            order: None,
            held_up_s: 0.002,
        };
        Report { planned_with: Some(planned_with), tried, ..report }
    }

    fn tried(plan: &str, verdict: Verdict, certain: bool, slowdown: Interval) -> Tried {
        Tried {
            plan: plan.to_owned(),
            predicted_time_s: Some(2.0),
            predicted_energy_j: Some(900.0),
            verdict,
            certain,
            compared: Compared {
                rounds: 4,
                saving: interval(0.162, 0.004),
                slowdown,
                disturbed: false,
            },
        }
    }

    fn interval(estimate: f64, reach: f64) -> Interval {
        Interval { estimate, low: estimate - reach, high: estimate + reach }
    }

    #[test]
    fn each_plan_is_shown_with_its_intervals_and_its_verdict() {
        let report = report(vec![
            tried("first", Verdict::TooSlow, true, interval(0.012, 0.0005)),
            tried("second", Verdict::Kept, true, interval(0.0025, 0.0005)),
        ]);
        let text = render(&report, Look::default());
        for words in [
            "2.000 s and 1.000 kJ",
            "+1.20 %  (+1.15 to +1.25 %)",
            "too slow",
            "+0.25 %  (+0.20 to +0.30 %)",
            "16.2 %  (15.8 to 16.6 %)",
            "84 W, measured in its waits",
            "each change of clocks holds up its stage for 2.000 ms",
        ] {
            assert!(text.contains(words), "no {words:?} in\n{text}");
        }
    }

    #[test]
    fn what_looks_odd_in_the_profile_is_left_to_verbose() {
        let mut report = report(Vec::new());
        assert_eq!(
            odd(&report, true),
            "The profile: 7 rows scatter\nThe profile: a clock is slow\n"
        );
        let hint = "`pfoctl tune j --attach --verbose` says what looks odd in the profile.\n";
        assert_eq!(odd(&report, false), hint);
        report.planned_with.as_mut().unwrap().odd.clear();
        assert_eq!([odd(&report, true), odd(&report, false)], ["", ""]);
    }

    #[test]
    fn clocks_that_are_not_held_are_named_with_what_the_highest_useful_ones_save() {
        let [useful, mut clocks] = [1245, 1260].map(|mhz| UsefulClocks {
            asked_mhz: Mhz(1410),
            lowest_mhz: Mhz(mhz),
            highest_mhz: Mhz(1260),
            compared: Compared {
                rounds: 4,
                saving: interval(0.012, 0.002),
                slowdown: interval(0.0001, 0.0002),
                disturbed: false,
            },
        });
        let mut report = report(Vec::new());
        report.useful_clocks = Some(useful);
        let text = render(&report, Look::default());
        for words in [
            "held back at 1245 to 1260 MHz where 1410 MHz was asked for",
            "+0.01 % (-0.01 to +0.03 %) longer and saves 1.2 % (1.0 to 1.4 %)",
        ] {
            assert!(text.contains(words), "no {words:?} in\n{text}");
        }
        clocks.asked_mhz = Mhz(1380);
        report.useful_clocks = Some(clocks);
        let text = render(&report, Look::default());
        assert!(text.contains("held back at 1260 MHz where 1380 MHz"), "{text}");
    }

    #[test]
    fn a_plan_that_was_faster_than_default_clocks_was_favoured_by_something_else() {
        let mut tried = tried("p", Verdict::Kept, false, interval(-0.02, 0.02));
        tried.compared.disturbed = true;
        let text = render(&report(vec![tried]), Look::default());
        assert!(text.contains("Plan p was faster than default clocks, but lower"), "{text}");
    }

    #[test]
    fn a_verdict_that_is_only_most_likely_is_marked_as_such() {
        for (verdict, doubt) in [
            (Verdict::Kept, "Plan p is most likely within"),
            (Verdict::TooSlow, "Plan p is most likely too slow"),
            (Verdict::SavesNothing, "Plan p most likely saves nothing"),
            (Verdict::Undecided, "Plan p may save, and may be too slow"),
        ] {
            for certain in [false, true] {
                let tried = tried("p", verdict, certain, interval(0.003, 0.01));
                let text = render(&report(vec![tried]), Look::default());
                assert_eq!(text.contains(doubt), !certain, "{text}");
            }
        }
    }
}
