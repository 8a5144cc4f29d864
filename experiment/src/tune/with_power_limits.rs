//! Tuning with power limits, which take no profile.

use pfo_planner::ZeusSearch;

use super::Tuning;
use super::limit_search::{FoundLimits, LimitSearch};
use crate::bench::Bench;
use crate::contender::Contender;
use crate::error::TuneError;
use crate::report::{Kept, Report};

impl<B: Bench> Tuning<'_, '_, B> {
    /// Measures default clocks, searches for power limits, and proves them.
    pub(crate) async fn limit_power(
        &mut self,
        search: ZeusSearch,
    ) -> Result<(Report, Kept), TuneError> {
        let baseline = self.baseline().await?.trial;
        let zeus = self.zeus(self.subject.window(&baseline)?.time_s());
        let (step_w, length) = (self.order.terms.power_step_w, self.order.terms.search_length());
        let subject = &mut *self.subject;
        let limit_search = LimitSearch { subject, baseline: &baseline, step_w, length };
        let FoundLimits { limits_w, searched } = limit_search.zeus(zeus, search).await?;
        let policy = self.order.terms.policy.name();
        let mut tuned = self.proving(&baseline)?;
        tuned.report.search_trials = searched.len() as u32;
        tuned.report.searched = searched;
        tuned.try_out(Contender::power_limits(policy, limits_w)).await?;
        tuned.end().await
    }
}
