//! A job that is being tuned: it is held, and contenders prove on it, in turns with default clocks,
//! whether they are worth keeping. Windows of whole steps are enough for that.

use pfo_protocol::{TrialLength, TrialRun};

use super::contender::Contender;
use super::report::{Report, Tried};
use super::verification::{Compared, Side, Verdict, Verification};
use crate::error::Error;
use crate::trial::{Held, Measuring, Window};

/// How thoroughly a contender has to prove itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proof {
    /// By what share a step may take longer than at default clocks.
    pub(super) max_slowdown: f64,
    /// Rounds of a turn at default clocks and one of the contender.
    pub(super) rounds: u32,
    pub(super) turn: TrialLength,
}

/// The job, and what is known of it so far.
pub(super) struct TunedJob<'a, D> {
    pub(super) held: Held<'a, D>,
    pub(super) report: Report,
    proof: Proof,
    best: Option<Best>,
}

/// What saves most of all that was worth keeping.
struct Best {
    contender: Contender,
    saving: f64,
    /// Its place in the report.
    place: usize,
}

impl<'a, D: Measuring> TunedJob<'a, D> {
    pub(super) fn new(held: Held<'a, D>, report: Report, proof: Proof) -> Self {
        Self { held, report, proof, best: None }
    }

    /// What a step takes at default clocks, in seconds.
    pub(super) fn default_s(&self) -> f64 {
        self.report.default_clocks.iteration_time_s
    }

    /// Runs a contender and default clocks in turns, for no more rounds than were asked for.
    pub(super) fn compare(&mut self, contender: &Contender) -> Result<Compared, Error> {
        let Proof { max_slowdown, rounds, .. } = self.proof;
        let mut verification = Verification::new(max_slowdown, rounds);
        loop {
            if let Some(compared) = verification.after_all_rounds() {
                return Ok(compared);
            }
            self.take_turn(contender, &mut verification)?;
        }
    }

    /// The share of the energy that the best contender so far saves; none if none was worth keeping.
    pub(super) fn best_saving(&self) -> Option<f64> {
        self.best.as_ref().map(|best| best.saving)
    }

    /// Runs a contender and default clocks in turns. The one that saves most of those that are worth
    /// it is kept in the end.
    pub(super) fn try_out(&mut self, contender: Contender) -> Result<(Verdict, Compared), Error> {
        let Proof { max_slowdown, rounds, .. } = self.proof;
        let mut verification = Verification::new(max_slowdown, rounds);
        let (verdict, compared) = loop {
            if let Some(decided) = verification.verdict().zip(verification.compared()) {
                break decided;
            }
            self.take_turn(&contender, &mut verification)?;
        };
        let saving = compared.saving.estimate;
        let verdict = match (verdict, self.best_saving()) {
            (Verdict::Kept, Some(best)) if best >= saving => Verdict::SavesLess,
            (verdict, _) => verdict,
        };
        let certain = compared.makes_certain(verdict, max_slowdown);
        let place = self.report.tried.len();
        self.report.tried.push(Tried::new(&contender, verdict, certain, compared));
        if verdict == Verdict::Kept
            && let Some(former) = self.best.replace(Best { contender, saving, place })
        {
            self.report.tried[former.place].outdo();
        }
        Ok((verdict, compared))
    }

    fn take_turn(
        &mut self,
        contender: &Contender,
        verification: &mut Verification,
    ) -> Result<(), Error> {
        self.show_progress(&contender.label, verification);
        let mut turn = self.proof.turn;
        let run = match verification.next() {
            Side::DefaultClocks => &TrialRun::DefaultClocks,
            Side::Contender => {
                turn.settling_steps = turn.settling_steps.max(contender.settling_steps());
                &contender.run
            }
        };
        let trial = self.held.trial(run, turn)?;
        verification.observe(&Window::of(self.held.job(), D::windows(&trial))?);
        Ok(())
    }

    fn show_progress(&self, label: &str, verification: &Verification) {
        let TrialLength { settling_steps, steps } = self.proof.turn;
        let (turns, done) = verification.progress();
        let left = (turns - done) as u64 * u64::from(settling_steps + steps);
        let left =
            self.held.takes(left).map_or_else(String::new, |takes| format!(", {takes} left"));
        let progress = self.held.progress();
        progress.now(format!("proving {label}, turn {} of {turns}{left}", done + 1));
        progress.show(done as f64 / turns as f64);
    }

    /// Ends the hold: the job keeps the best contender, or returns to default clocks if there is
    /// none.
    pub(super) fn end(mut self) -> Result<Report, Error> {
        match self.best {
            Some(Best { contender, .. }) => {
                self.report.kept = self.held.keep(&contender.run)?;
                self.report.kept_plan = contender.plan;
            }
            None => self.held.let_go()?,
        }
        Ok(self.report)
    }
}
