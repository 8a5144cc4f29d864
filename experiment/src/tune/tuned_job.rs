//! A job that is being tuned: contenders prove on it, in turns with default clocks, whether they are
//! worth keeping. Windows of whole steps are enough for that.

use pfo_protocol::{TrialLength, TrialRun};

use crate::bench::{Bench, Phase};
use crate::contender::Contender;
use crate::error::TuneError;
use crate::judge::{Compared, Side, Turn, Verdict, Verification};
use crate::report::{Kept, Report, Tried};
use crate::subject::Subject;

/// How thoroughly a contender has to prove itself.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Proof {
    /// By what share a step may take longer than at default clocks.
    pub(crate) max_slowdown: f64,
    /// Rounds before what is most likely may decide.
    pub(crate) rounds: u32,
    pub(crate) turn: TrialLength,
}

/// The job, and what is known of it so far.
pub(crate) struct TunedJob<'s, 'b, B> {
    pub(crate) subject: &'s mut Subject<'b, B>,
    pub(crate) report: Report,
    /// The frontier of the best contender.
    pub(crate) frontier: Option<Vec<u8>>,
    proof: Proof,
    best: Option<Best>,
    /// The turn at default clocks that has just ended.
    last: Option<Turn>,
}

/// What saves most of all that was worth keeping.
struct Best {
    contender: Contender,
    saving: f64,
    /// Its place in the report.
    place: usize,
}

impl<'s, 'b, B: Bench> TunedJob<'s, 'b, B> {
    pub(crate) fn new(subject: &'s mut Subject<'b, B>, report: Report, proof: Proof) -> Self {
        Self { subject, report, frontier: None, proof, best: None, last: None }
    }

    /// What a step takes at default clocks, in seconds.
    pub(crate) fn default_s(&self) -> f64 {
        self.report.default_clocks.iteration_time_s
    }

    /// Runs a contender and default clocks in turns, for a few rounds.
    pub(crate) async fn compare(&mut self, contender: &Contender) -> Result<Compared, TuneError> {
        let Proof { max_slowdown, rounds, .. } = self.proof;
        let mut verification = Verification::new(max_slowdown, rounds, self.last.take());
        self.subject.begin(Phase::Proof, format!("comparing {}", contender.label));
        loop {
            if let Some(compared) = verification.after(rounds.div_ceil(2).max(2)) {
                self.last = verification.last();
                return Ok(compared);
            }
            self.take_turns(contender, &mut verification).await?;
        }
    }

    /// The share of the energy that the best contender so far saves; none if none was worth keeping.
    pub(crate) fn best_saving(&self) -> Option<f64> {
        self.best.as_ref().map(|best| best.saving)
    }

    /// Runs a contender and default clocks in turns. The one that saves most of those that are worth
    /// it is kept in the end.
    pub(crate) async fn try_out(
        &mut self,
        contender: Contender,
    ) -> Result<(Verdict, Compared), TuneError> {
        let Proof { max_slowdown, rounds, .. } = self.proof;
        let mut verification = Verification::new(max_slowdown, rounds, self.last.take());
        self.subject.begin(Phase::Proof, format!("proving {}", contender.label));
        let (verdict, compared) = loop {
            if let Some(decided) = verification.verdict().zip(verification.compared()) {
                break decided;
            }
            self.take_turns(&contender, &mut verification).await?;
        };
        self.last = verification.last();
        let saving = compared.saving.estimate;
        let verdict = match (verdict, self.best_saving()) {
            (Verdict::Kept, Some(best)) if best >= saving => Verdict::SavesLess,
            (verdict, _) => verdict,
        };
        let certain = compared.makes_certain(verdict, max_slowdown);
        let place = self.report.tried.len();
        self.report.tried.push(Tried::new(&contender, verdict, certain, compared));
        if verdict == Verdict::Kept {
            self.subject.saves(saving);
            if let Some(former) = self.best.replace(Best { contender, saving, place }) {
                self.report.tried[former.place].outdo();
            }
        }
        Ok((verdict, compared))
    }

    async fn take_turns(
        &mut self,
        contender: &Contender,
        verification: &mut Verification,
    ) -> Result<(), TuneError> {
        self.show_progress(&contender.label, verification);
        let (side, turns) = verification.next();
        let mut length = self.proof.turn;
        length.steps = length.steps.saturating_mul(turns).min(*TrialLength::STEPS.end());
        let run = match side {
            Side::DefaultClocks => &TrialRun::DefaultClocks,
            Side::Contender => {
                length.settling_steps = length.settling_steps.max(contender.settling_steps());
                &contender.run
            }
        };
        let trial = self.subject.trial(run, length).await?;
        verification.observe(&self.subject.window(&trial.trial)?);
        Ok(())
    }

    fn show_progress(&mut self, label: &str, verification: &mut Verification) {
        let TrialLength { settling_steps, steps } = self.proof.turn;
        let (rounds, run, done) = verification.progress();
        // Each round changes the clocks twice.
        let left = (1.0 - done) * (rounds as f64) * f64::from(2 * settling_steps + 4 * steps);
        let now = format!("proving {label}, round {} of about {rounds}", run + 1);
        self.subject.show(now, done, Some(left.ceil() as u64));
    }

    /// Ends the hold: the job keeps the best contender, or returns to default clocks if there is
    /// none.
    pub(crate) async fn end(mut self) -> Result<(Report, Kept), TuneError> {
        let plan = match self.best {
            Some(Best { contender, .. }) => {
                self.report.kept = self.subject.keep(&contender.run).await?;
                contender.plan
            }
            None => {
                self.subject.let_go().await?;
                None
            }
        };
        Ok((self.report, Kept { plan, frontier: self.frontier }))
    }
}
