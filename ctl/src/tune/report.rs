//! The report of tuning a job, for people and for scripts.

use std::time::Duration;

use pfo_planner::{Frontier, Plan, PlanError};
use pfo_protocol::{GuardStatus, JobName, PlanStatus};
use serde::Serialize;

use super::contender::Contender;
use super::limit_search::Searched;
use super::planned_power::PlannedPower;
use super::profile_source::Origin;
use super::transfers::Transfers;
use super::useful_clocks::UsefulClocks;
use super::verification::{Compared, Verdict};
use crate::arguments::{JobArguments, Slowdown};
use crate::daemons::Daemons;
use crate::output::Look;
use crate::plan::guard;
use crate::plan::load::{LARGEST_FRONTIER, load_frontier};
use crate::report::Beside;
use crate::status::plan_text;
use crate::status::quantity::{joules, percent, seconds};
use crate::status::table::{Cell, Table, Tone, heading};
use crate::text::harmless;
use crate::trial::{Interval, Window};

/// For how long a page looks at the GPUs of the job.
const OBSERVED: Duration = Duration::from_secs(5);

/// How intervals are made, in a sentence.
const METHOD: &str =
    "Intervals: 95 %, Student's t of the logarithms of the ratios of neighbouring turns.";

/// Everything that was measured and decided.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) job: JobName,
    pub(super) policy: String,
    pub(super) max_slowdown: f64,
    /// None if no profile was needed.
    #[serde(flatten)]
    pub(super) planned_with: Option<PlannedWith>,
    pub(super) default_clocks: DefaultClocks,
    /// None if the GPUs hold every clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) useful_clocks: Option<UsefulClocks>,
    /// Trials of a policy that searches on the job.
    pub(super) search_trials: u32,
    /// The trials of a search over power limits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) searched: Vec<Searched>,
    pub(super) tried: Vec<Tried>,
    /// Plans whose energy could not be measured.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) unmeasured: Vec<String>,
    /// The plan that the job runs; none at default clocks.
    pub(super) kept: Option<PlanStatus>,
    /// That plan itself.
    #[serde(skip)]
    pub(super) kept_plan: Option<Plan>,
    /// The guard that keeps the allowed slowdown from now on.
    guard: Option<GuardStatus>,
    /// Why there is none, if there should be one.
    unguarded: Option<String>,
    /// Whether the guard has a frontier to correct the plan with.
    correctable: bool,
    /// The frontier that the plan is from.
    #[serde(skip)]
    pub(super) frontier: Option<Vec<u8>>,
    pub(super) method: &'static str,
}

/// What plans were made from.
#[derive(Clone, Debug, Serialize)]
pub(super) struct PlannedWith {
    /// The file of the profile, or its key.
    pub(super) profile: String,
    #[serde(flatten)]
    pub(super) profile_origin: Origin,
    pub(super) p2p_power: PlannedPower,
    /// How late clocks are in the plans, in seconds.
    pub(super) late_s: f64,
    /// How long transfers take in the plans, in seconds.
    pub(super) transfer_s: f64,
    /// What is known of the time of transfers.
    pub(super) transfers: Transfers,
    /// The order that the job runs, if the plans are for that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) order: Option<String>,
    /// For how long each change of clocks holds up its stage in the plans, in seconds: as it was
    /// learned from plans that took longer than predicted.
    pub(super) held_up_s: f64,
}

/// Means of what a step took before anything was tried.
#[derive(Clone, Copy, Debug, Serialize)]
pub(super) struct DefaultClocks {
    pub(super) iteration_time_s: f64,
    iteration_energy_j: f64,
}

/// A plan that was run on the job beside default clocks.
#[derive(Debug, Serialize)]
pub(super) struct Tried {
    plan: String,
    predicted_time_s: Option<f64>,
    predicted_energy_j: Option<f64>,
    verdict: Verdict,
    /// Whether the intervals prove the verdict, or it is only most likely.
    certain: bool,
    #[serde(flatten)]
    compared: Compared,
}

impl From<&Window> for DefaultClocks {
    fn from(window: &Window) -> Self {
        Self { iteration_time_s: window.time_s(), iteration_energy_j: window.energy_j() }
    }
}

impl Tried {
    pub(super) fn new(
        contender: &Contender,
        verdict: Verdict,
        certain: bool,
        compared: Compared,
    ) -> Self {
        let Contender { label, predicted, .. } = contender;
        Self {
            plan: label.clone(),
            predicted_time_s: predicted.map(|predicted| predicted.iteration_time_s),
            predicted_energy_j: predicted.map(|predicted| predicted.iteration_energy_j),
            verdict,
            certain,
            compared,
        }
    }

    /// Notes that another plan saves more, and is kept instead.
    pub(super) fn outdo(&mut self) {
        self.verdict = Verdict::SavesLess;
    }

    /// The doubt about a verdict that is only most likely.
    fn doubt(&self) -> Option<String> {
        let doubt = match self.verdict {
            _ if self.certain => return None,
            Verdict::Kept | Verdict::SavesLess => "is most likely within the allowed slowdown",
            Verdict::TooSlow => "is most likely too slow",
            Verdict::SavesNothing => "most likely saves nothing",
        };
        Some(format!(
            "Plan {} {doubt}: the step times scatter too much for certainty. Measure more \
             --steps to be certain.\n",
            harmless(&self.plan)
        ))
    }
}

impl Report {
    /// The report of a job that was measured at default clocks only.
    pub(super) fn new(
        job: JobName,
        policy: String,
        max_slowdown: f64,
        default_clocks: &Window,
    ) -> Self {
        Self {
            job,
            policy,
            max_slowdown,
            planned_with: None,
            default_clocks: default_clocks.into(),
            useful_clocks: None,
            search_trials: 0,
            searched: Vec::new(),
            tried: Vec::new(),
            unmeasured: Vec::new(),
            kept: None,
            kept_plan: None,
            guard: None,
            unguarded: None,
            correctable: false,
            frontier: None,
            method: METHOD,
        }
    }

    /// Whether what is kept is proved by the measured intervals.
    pub(super) fn is_certain(&self) -> bool {
        let mut kept = self.tried.iter().filter(|tried| tried.verdict == Verdict::Kept);
        kept.all(|tried| tried.certain)
    }

    /// Leaves a guard on the plan that is kept.
    pub(super) fn guard(
        &mut self,
        daemons: &Daemons,
        job: &JobArguments,
        max_slowdown: Option<Slowdown>,
    ) {
        if self.kept.is_none() || max_slowdown.is_none() {
            return;
        }
        match guard::set(daemons, job, max_slowdown) {
            Ok(guard) => self.guard = guard,
            Err(error) => self.unguarded = Some(error.to_string()),
        }
        // A guard that has no frontier gives a plan up instead, so that is no failure.
        let frontier = self.frontier.clone().filter(|_| self.guard.is_some());
        let frontier = frontier.filter(|bytes| bytes.len() as u64 <= LARGEST_FRONTIER);
        let load = |bytes| load_frontier(daemons, job, "tuned".to_owned(), bytes);
        self.correctable = frontier.is_some_and(|bytes| load(bytes).is_ok());
    }

    /// What a page about the job has from here.
    pub(super) fn beside(&self) -> Result<Beside, PlanError> {
        let frontier = self.frontier.as_deref().map(Frontier::from_bytes).transpose()?;
        Ok(Beside {
            frontier,
            plan: self.kept_plan.clone(),
            tuned: Some(self.render(Look::default())),
            observe: OBSERVED,
            ..Beside::default()
        })
    }

    pub(super) fn render(&self, look: Look) -> String {
        let mut table = Table::new(look)
            .left("Plan")
            .right("Predicted")
            .right("Slower by")
            .left("")
            .right("Saving")
            .left("")
            .right("Rounds")
            .left("");
        for tried in &self.tried {
            let Compared { rounds, saving, slowdown } = tried.compared;
            let (verdict, tone) = match tried.verdict {
                Verdict::Kept => ("kept", Tone::Good),
                Verdict::SavesLess => ("saves less", Tone::Plain),
                Verdict::TooSlow => ("too slow", Tone::Bad),
                Verdict::SavesNothing => ("saves nothing", Tone::Bad),
            };
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
        let DefaultClocks { iteration_time_s, iteration_energy_j } = self.default_clocks;
        let job = &self.job;
        let title = format!(
            "Measured on job {job}: {} and {} a step at default clocks",
            seconds(iteration_time_s),
            joules(iteration_energy_j)
        );
        let mut text = heading(&title, look) + &table.render() + METHOD + "\n";
        text += &format!("Policy {}", self.policy);
        if !self.searched.is_empty() {
            text += " over power limits";
        }
        if self.search_trials > 0 {
            text += &format!(", found in {} trials", self.search_trials);
        }
        if let Some(with) = &self.planned_with {
            text += &format!("; {}", with.in_words());
        }
        text += ".\n";
        text.extend(self.useful_clocks.map(UsefulClocks::in_words));
        text.extend(self.tried.iter().filter_map(Tried::doubt));
        for plan in &self.unmeasured {
            text += &format!(
                "The energy of plan {} is not known: energy counters were not read in time while its \
                 clocks changed. It is not kept.\n",
                harmless(plan)
            );
        }
        text += &self.kept_in_words();
        text
    }

    /// What the job runs from now on, and what watches over it.
    fn kept_in_words(&self) -> String {
        let (mut text, job) = (String::new(), &self.job);
        if let Some(plan) = &self.kept {
            let name = plan_text::name(plan);
            let name = harmless(&name);
            text +=
                &format!("Job {job} runs plan {name}; `pfoctl plan rollback {job}` undoes that.\n");
        }
        if let Some(GuardStatus { max_slowdown, .. }) = &self.guard {
            text += &format!(
                "pfo-agent compares it with default clocks now and then, and {} if steps take more \
                 than {} longer.\n",
                if self.correctable { "corrects it or gives it up" } else { "gives it up" },
                percent(*max_slowdown)
            );
        }
        if let Some(why) = &self.unguarded {
            let why = harmless(why);
            text += &format!("Nothing compares it with default clocks later on: {why}.\n");
        }
        text
    }
}

impl UsefulClocks {
    fn in_words(self) -> String {
        let Self { asked_mhz, lowest_mhz, highest_mhz, compared } = self;
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
}

impl PlannedWith {
    fn in_words(&self) -> String {
        let power = self.p2p_power.in_words();
        let origin = match self.profile_origin {
            Origin::File => "as given".to_owned(),
            Origin::Stored => "reused".to_owned(),
            Origin::Measured { resumed_after: 0 } => "measured and stored".to_owned(),
            Origin::Measured { resumed_after: clocks } => {
                format!("measured and stored, with {clocks} clocks of an interrupted sweep")
            }
        };
        let profile = harmless(&self.profile);
        let late = match self.late_s {
            0.0 => String::new(),
            late_s => format!("; clocks are up to {} late", seconds(late_s)),
        };
        let transfers = self.transfers.in_words(self.transfer_s);
        let order = self.order.as_ref().map_or_else(String::new, |order| format!("; {order}"));
        let held_up = match self.held_up_s {
            0.0 => String::new(),
            held_up_s => {
                format!("; each change of clocks holds up its stage for {}", seconds(held_up_s))
            }
        };
        let power = harmless(&power);
        format!("{profile}, {origin}; P2P-blocking power {power}{late}{held_up}{transfers}{order}")
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
    use pfo_protocol::Mhz;

    use super::*;

    fn report(tried: Vec<Tried>) -> Report {
        let default_clocks = Window { times_s: vec![2.0], energies_j: vec![1000.0] };
        let report = Report::new("j".parse().unwrap(), "pfo".to_owned(), 0.005, &default_clocks);
        let planned_with = PlannedWith {
            profile: "p.csv".to_owned(),
            profile_origin: Origin::File,
            p2p_power: PlannedPower::of_waits(&pfo_planner::Watts(83.6).into()),
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
            compared: Compared { rounds: 4, saving: interval(0.162, 0.004), slowdown },
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
        let text = report.render(Look::default());
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
    fn clocks_that_are_not_held_are_named_with_what_the_highest_useful_ones_save() {
        let [useful, mut clocks] = [1245, 1260].map(|mhz| UsefulClocks {
            asked_mhz: Mhz(1410),
            lowest_mhz: Mhz(mhz),
            highest_mhz: Mhz(1260),
            compared: Compared {
                rounds: 4,
                saving: interval(0.012, 0.002),
                slowdown: interval(0.0001, 0.0002),
            },
        });
        let mut report = report(Vec::new());
        report.useful_clocks = Some(useful);
        let text = report.render(Look::default());
        for words in [
            "held back at 1245 to 1260 MHz where 1410 MHz was asked for",
            "+0.01 % (-0.01 to +0.03 %) longer and saves 1.2 % (1.0 to 1.4 %)",
        ] {
            assert!(text.contains(words), "no {words:?} in\n{text}");
        }
        clocks.asked_mhz = Mhz(1380);
        report.useful_clocks = Some(clocks);
        let text = report.render(Look::default());
        assert!(text.contains("held back at 1260 MHz where 1380 MHz"), "{text}");
    }

    #[test]
    fn a_verdict_that_is_only_most_likely_is_marked_as_such() {
        for (verdict, doubt) in [
            (Verdict::Kept, "Plan p is most likely within"),
            (Verdict::TooSlow, "Plan p is most likely too slow"),
            (Verdict::SavesNothing, "Plan p most likely saves nothing"),
        ] {
            for certain in [false, true] {
                let tried = tried("p", verdict, certain, interval(0.003, 0.01));
                let text = report(vec![tried]).render(Look::default());
                assert_eq!(text.contains(doubt), !certain, "{text}");
            }
        }
    }
}
