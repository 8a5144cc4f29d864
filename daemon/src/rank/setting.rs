//! What a rank asks of the driver: the newest wanted clock and power limit, each once, and no more
//! clock changes than the rank may have.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pfo_keeper::ClockError;
use pfo_protocol::{Mhz, Milliwatts};
use pfo_service::now_ns;

use super::Rank;
use super::pace::Room;
use super::wish::Wish;

impl Rank {
    /// Asks the driver for the newest clock, if it differs.
    ///
    /// Fails only if the GPU is gone. Anything else that the driver refuses is requested again with
    /// the next step, and the rank continues to train.
    pub(super) fn set_clock(&mut self) -> Result<(), ClockError> {
        let wish = self.cursor.wish();
        let retry = std::mem::take(&mut self.retry);
        if self.refused == Some(wish) && !retry {
            return Ok(());
        }
        let result = match wish {
            Wish::Default => self.clocks.release_sm(),
            Wish::Highest => self.lock(self.rules.highest),
            Wish::At(mhz) => self.lock(mhz),
        };
        match refusal(result)? {
            None if self.refused.take().is_some() => self.progress().problem.store(None),
            None => {}
            Some(error) => self.report_refusal(wish, &error),
        }
        Ok(())
    }

    /// Asks the driver for the newest power limit, if it differs.
    ///
    /// Fails only if the GPU is gone. A plan whose limit is not set is suspended.
    pub(super) fn set_power_limit(&mut self) -> Result<(), ClockError> {
        let wish = self.power_wish();
        if self.clocks.has_power_limit(wish) || self.refused_limit == Some(wish) {
            return Ok(());
        }
        let result = match wish {
            Some(limit) => self.clocks.limit_power(limit),
            None => self.clocks.release_power(),
        };
        self.refused_limit = result.is_err().then_some(wish);
        if let Some(error) = refusal(result)? {
            self.report_limit(&error);
        }
        Ok(())
    }

    /// Frees the memory clock for a plan that has it free, and locks it again after that.
    ///
    /// Fails only if the GPU is gone.
    pub(super) fn set_memory(&mut self) -> Result<(), ClockError> {
        if self.frees_memory == self.memory_freed {
            return Ok(());
        }
        let result = match self.frees_memory {
            true => self.clocks.release_memory(),
            false => self.clocks.lock_memory().map(|()| false),
        };
        self.memory_freed = matches!(result, Ok(true));
        self.frees_memory = self.memory_freed;
        if let Some(error) = refusal(result.map(drop))? {
            self.progress().problem.store(Some(Arc::new(error.to_string())));
        }
        Ok(())
    }

    /// The limit of its plan, or a lower one that the agent keeps it below, within its lease.
    fn power_wish(&self) -> Option<Milliwatts> {
        let cap_w = self.progress().power_cap_w.load(Relaxed);
        let board = self.clocks.gpu().power_limits.filter(|_| cap_w > 0);
        let cap = board.map(|board| {
            let least = self.session.grant.load().terms.min_power_limit().max(board.lowest);
            Milliwatts::of_watts(cap_w).max(least)
        });
        let of_plan = self.power_limit.filter(|_| self.resting.is_none());
        [cap, of_plan].into_iter().flatten().min()
    }

    #[cold]
    fn report_limit(&self, error: &ClockError) {
        let holder = &self.session.holder;
        let why = format!("the power limit of rank {} was not set: {error}", holder.rank);
        tracing::warn!(job = %holder.job, rank = holder.rank.0, uid = holder.uid.0, "job {}: {why}", holder.job);
        if let Some(plan) = self.plan.as_ref().filter(|_| self.power_limit.is_some()) {
            plan.suspend(|| why);
        }
    }

    /// Locks a clock, or the one that there is room for after too many changes.
    fn lock(&mut self, wanted: Mhz) -> Result<(), ClockError> {
        let locked = self.clocks.locked().map(|(mhz, _)| mhz);
        if locked == Some(wanted) {
            return Ok(());
        }
        let now_ns = now_ns();
        let affordable = match self.pace.room(now_ns) {
            Room::Ample | Room::Enough => Some(wanted),
            Room::OnlyToHighest if locked.is_some() => Some(self.rules.highest),
            Room::OnlyToHighest | Room::No => locked,
        };
        if affordable == Some(wanted) {
            self.skipped = None;
        } else if self.skipped.replace(wanted) != Some(wanted) {
            self.progress().skipped_changes.fetch_add(1, Relaxed);
        }
        match affordable {
            Some(mhz) if affordable != locked => {
                self.pace.spend(now_ns);
                self.clocks.lock_sm(mhz)
            }
            _ => Ok(()),
        }
    }

    #[cold]
    fn report_refusal(&mut self, wish: Wish, error: &ClockError) {
        if self.refused.replace(wish).is_none() {
            let holder = &self.session.holder;
            tracing::warn!(
                job = %holder.job, rank = holder.rank.0, uid = holder.uid.0,
                "the clock of rank {} of job {} was not set: {error}", holder.rank, holder.job
            );
        }
        self.progress().problem.store(Some(Arc::new(error.to_string())));
    }
}

/// The error of a driver's call that a rank can do without. Fails if the GPU is gone.
fn refusal(result: Result<(), ClockError>) -> Result<Option<ClockError>, ClockError> {
    match result {
        Err(ClockError::Driver(error)) if error.is_gpu_lost() => Err(error.into()),
        result => Ok(result.err()),
    }
}
