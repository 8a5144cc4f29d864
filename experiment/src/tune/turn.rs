//! How long a turn is: as many steps as were asked for, and enough of short ones to be measured.

use pfo_protocol::{RecordedTrial, SamplePage, TrialLength, TrialResult, TrialRun};

use super::Tune;
use crate::daemons::Agent;
use crate::error::Error;
use crate::trial::{Held, Measuring};

/// Twenty refreshes of the energy counter of most GPUs, in seconds. A shorter turn mostly measures
/// where between two of them it began.
const SHORTEST_S: f64 = 2.0;

/// Longer than any clock of a GPU for a data centre takes to be in force, in seconds.
const SETTLING_S: f64 = 0.1;

impl Tune {
    /// Measures default clocks, and again with more steps if these are over too soon.
    pub(crate) fn baseline<D: Measuring>(&self, held: &mut Held<D>) -> Result<D::Trial, Error> {
        let run = |length| held.trial(&TrialRun::DefaultClocks, length);
        self.long_enough(run, D::windows)
    }

    /// The same, with each instruction by itself.
    pub(crate) fn baseline_with_samples(
        &self,
        held: &mut Held<Agent>,
    ) -> Result<(RecordedTrial, Vec<SamplePage>), Error> {
        let run = |length| held.trial_with_samples(&TrialRun::DefaultClocks, length);
        self.long_enough(run, |(recorded, _)| &recorded.trial)
    }

    fn long_enough<T>(
        &self,
        mut run: impl FnMut(TrialLength) -> Result<T, Error>,
        windows: impl Fn(&T) -> &TrialResult,
    ) -> Result<T, Error> {
        let trial = run(self.turn(f64::INFINITY))?;
        // Of steps that are over before the counter moves, only the time is known.
        let steps = &windows(&trial).steps;
        let took_s: f64 = steps.iter().map(|step| step.time_s).sum();
        let turn = self.turn(took_s / steps.len() as f64);
        match turn.steps > self.steps {
            true => run(turn),
            false => Ok(trial),
        }
    }

    /// A turn of steps that take this many seconds each.
    pub(crate) fn turn(&self, step_s: f64) -> TrialLength {
        let within = |seconds: f64| (seconds / step_s).ceil() as u32;
        let (settling, steps) = (TrialLength::SETTLING_STEPS, TrialLength::STEPS);
        TrialLength {
            settling_steps: self.settling_steps.max(within(SETTLING_S)).min(*settling.end()),
            steps: self.steps.max(within(SHORTEST_S)).min(*steps.end()),
        }
    }
}
