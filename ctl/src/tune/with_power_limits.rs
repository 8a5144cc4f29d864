//! Tuning with power limits, which take no profile.

use pfo_planner::ZeusSearch;
use pfo_protocol::TrialResult;

use super::Tune;
use super::contender::Contender;
use super::limit_search::{FoundLimits, LimitSearch};
use super::report::Report;
use super::tuned_job::TunedJob;
use crate::daemons::{Agent, Daemons};
use crate::error::Error;
use crate::trial::{Held, Interrupt, Measuring, Window};

impl Tune {
    pub(super) fn limit_power(
        &self,
        daemons: &Daemons,
        interrupt: &Interrupt,
        search: ZeusSearch,
    ) -> Result<Report, Error> {
        let found = self.search_limits::<Agent>(daemons, interrupt, search)?;
        self.try_limits::<Agent>(daemons, interrupt, found)
    }

    fn try_limits<D: Measuring>(
        &self,
        daemons: &Daemons,
        interrupt: &Interrupt,
        (baseline, FoundLimits { limits_w, searched }): (TrialResult, FoundLimits),
    ) -> Result<Report, Error> {
        let mut tuned: TunedJob<D> = self.hold(daemons, interrupt, Some(baseline))?;
        tuned.report.search_trials = searched.len() as u32;
        tuned.report.searched = searched;
        let contender = Contender::power_limits(&tuned.report.policy, limits_w);
        tuned.try_out(contender)?;
        tuned.end()
    }

    /// Measures default clocks and searches for power limits.
    fn search_limits<D: Measuring>(
        &self,
        daemons: &Daemons,
        interrupt: &Interrupt,
        search: ZeusSearch,
    ) -> Result<(TrialResult, FoundLimits), Error> {
        let mut held: Held<D> =
            Held::new(daemons, &self.job, interrupt.clone(), "measuring default clocks")?;
        let baseline = self.baseline(&mut held)?;
        let baseline = D::windows(&baseline).clone();
        let default_s = Window::of(self.job.name(), &baseline)?.time_s();
        let (step_w, length) = (self.power_step_w, self.search_length());
        let limit_search =
            LimitSearch { daemons, held: &mut held, baseline: &baseline, step_w, length };
        let found = limit_search.zeus(self.zeus(default_s), search)?;
        held.let_go()?;
        Ok((baseline, found))
    }
}
