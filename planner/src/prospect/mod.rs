//! What clocks would save a job of which only the highest clocks were seen: a prediction, with an
//! interval, from its own times and energies and the curves of its GPUs' model.
//!
//! It is no profile, and no plan is made of it for a job to run.

mod curves;

use pfo_vocabulary::{Instruction, Mhz, Stage, Watts};

use self::curves::{Curve, Which};
use crate::error::PlanError;
use crate::frontier::Frontier;
use crate::frontier::clock_per::ClockPer;
use crate::frontier::deadline::Deadline;
use crate::pipeline::Pipeline;
use crate::profile::Profile;
use crate::profile::measurement::Measurement;
use crate::waits::per_stage::PerStage;

/// The fastest plan is told from one that is a rounding error slower by this factor.
const ROUNDING: f64 = 1.0001;

/// Clocks tried, at most: more of them change nothing that an interval shows.
const MOST_CLOCKS: usize = 24;

/// What a waiting GPU draws at the highest clock falls by no more than this at lower ones: from 118 W
/// to 70 to 80 W for an H100 with a context and without work (docs/tested-on.md).
const WAITS_FALL: f64 = 0.35;

/// A job, as it was seen.
#[derive(Clone, Debug)]
pub struct Seen {
    /// The model of its GPUs, as the driver names it.
    pub gpu: String,
    /// The clocks that these support, in any order.
    pub clocks: Vec<Mhz>,
    /// Mean time and energy of each instruction of each stage, as seen.
    pub work: Vec<(Stage, Instruction, f64, f64)>,
    /// What a waiting GPU of each stage draws.
    pub waiting: PerStage<Watts>,
    /// Mean energy of a step of one pipeline, whatever it went into.
    pub step_j: f64,
    /// Mean time of a step.
    pub step_s: f64,
}

/// What clocks would save of the energy of a step, as shares of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prospect {
    /// By how much steps may take longer, as a share of their time.
    pub slowdown: f64,
    /// At least this.
    pub least: f64,
    /// Most likely about this; none without curves of the model.
    pub likely: Option<f64>,
    /// At most this.
    pub most: f64,
}

impl Seen {
    /// What clocks would save at each of these slowdowns. `pipeline` makes the job's pipeline of a
    /// profile. A model without curves has bounds only: no saving, and all that work draws beyond the least that waiting may.
    ///
    /// # Errors
    /// Those of `pipeline`, and of a frontier.
    pub fn prospects(
        &self,
        slowdowns: &[f64],
        pipeline: &dyn Fn(&Profile) -> Result<Pipeline, PlanError>,
    ) -> Result<Vec<Prospect>, PlanError> {
        let [least, likely, most] = [Which::Least, Which::Likely, Which::Most]
            .map(|which| self.savings(which, slowdowns, pipeline));
        let (Some(least), Some(likely), Some(most)) = (least?, likely?, most?) else {
            let most = self.beyond_waiting(pipeline)?;
            let bounds = |&slowdown| Prospect { slowdown, least: 0.0, likely: None, most };
            return Ok(slowdowns.iter().map(bounds).collect());
        };
        let prospect = |place: usize| Prospect {
            slowdown: slowdowns[place],
            least: least[place],
            likely: Some(likely[place].clamp(least[place], most[place].max(least[place]))),
            most: most[place].max(least[place]),
        };
        Ok((0..slowdowns.len()).map(prospect).collect())
    }

    /// The saving of the best plans on these curves; none if the model has none.
    fn savings(
        &self,
        which: Which,
        slowdowns: &[f64],
        pipeline: &dyn Fn(&Profile) -> Result<Pipeline, PlanError>,
    ) -> Result<Option<Vec<f64>>, PlanError> {
        let Some(curve) = Curve::of(&self.gpu, which) else { return Ok(None) };
        let profile = self.profile(&curve)?;
        let pipeline = pipeline(&profile)?;
        let power = self.waiting.clone();
        let (fastest_s, highest_j) = self.at_highest(&pipeline)?;
        let falls = if which == Which::Most { WAITS_FALL * self.waits_j(&pipeline) } else { 0.0 };
        let saving = |slowdown: &f64| {
            let until_s = (fastest_s + slowdown * self.step_s) * ROUNDING;
            let deadline = format!("{until_s}s").parse()?;
            let what = (Watts(0.0), &deadline);
            let per = ClockPer::Instruction;
            let frontier = Frontier::about(per, &pipeline, power.clone(), what, &|_| {})?;
            let best = frontier.plan(frontier.pick(Deadline::Seconds(until_s))?)?;
            let energy_j = best.predicted.map_or(highest_j, |step| step.iteration_energy_j);
            Ok(((highest_j - energy_j + falls) / self.step_j).clamp(0.0, 1.0))
        };
        slowdowns.iter().map(saving).collect::<Result<_, PlanError>>().map(Some)
    }

    /// Time and energy of a step in which every instruction is as it was seen.
    fn at_highest(&self, pipeline: &Pipeline) -> Result<(f64, f64), PlanError> {
        let highest = |index: usize| {
            let operation = &pipeline.network().operations[index];
            let table = pipeline.profile().part_table(
                operation.stage,
                operation.instruction,
                operation.part(),
            );
            table.last().map_or(Mhz(0), |row| row.frequency)
        };
        let plan = pipeline.plan(highest);
        let step = crate::replay::replay(pipeline.profile(), &plan, self.powers())?;
        Ok((step.iteration_time_s, step.iteration_energy_j))
    }

    /// What is drawn in a step by GPUs that wait.
    fn waits_j(&self, pipeline: &Pipeline) -> f64 {
        let profile = pipeline.profile();
        let wait = |stage: Stage| {
            let network = pipeline.network();
            let of_stage = network.operations.iter().filter(|operation| operation.stage == stage);
            let busy = of_stage.filter_map(|operation| {
                profile.part_table(stage, operation.instruction, operation.part()).last()
            });
            let busy_s: f64 = busy.map(|row| row.time_s).sum();
            self.waiting.of(stage).0 * (self.step_s - busy_s).max(0.0)
        };
        (0..profile.num_stages()).map(Stage).map(wait).sum()
    }

    fn powers(&self) -> PerStage<crate::waits::power::PowerByClock> {
        self.waiting.clone().into()
    }

    /// The share of a step's energy that work draws beyond what waiting would.
    fn beyond_waiting(
        &self,
        pipeline: &dyn Fn(&Profile) -> Result<Pipeline, PlanError>,
    ) -> Result<f64, PlanError> {
        let highest = self.highest();
        let row = |&(stage, instruction, time_s, energy_j)| {
            (stage, instruction, Measurement { frequency: highest, time_s, energy_j })
        };
        let pipeline = pipeline(&Profile::from_measurements(self.work.iter().map(row))?)?;
        let (step_s, highest_j) = self.at_highest(&pipeline)?;
        let least = 1.0 - WAITS_FALL;
        let waiting_w = least * self.waiting.total_w(pipeline.profile().num_stages());
        Ok(((highest_j - waiting_w * step_s) / self.step_j).clamp(0.0, 1.0))
    }

    fn highest(&self) -> Mhz {
        self.clocks.iter().max().copied().unwrap_or(Mhz(1))
    }

    fn profile(&self, curve: &Curve) -> Result<Profile, PlanError> {
        let highest = self.highest();
        let mut clocks = self.clocks.clone();
        clocks.sort_unstable_by(|one, other| other.cmp(one));
        let known = clocks.iter().filter(|clock| clock.0 * 10 >= highest.0 * 6).count();
        let rows = self.work.iter().flat_map(|&(stage, instruction, time_s, energy_j)| {
            let seen = Measurement { frequency: highest, time_s, energy_j };
            let clocks = clocks.iter().step_by(known.div_ceil(MOST_CLOCKS).max(1));
            clocks.filter_map(move |&clock| Some((stage, instruction, curve.at(seen, clock)?)))
        });
        Profile::from_measurements(rows)
    }
}
