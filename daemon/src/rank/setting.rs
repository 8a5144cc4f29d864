//! What a rank asks of the driver: the newest wanted clock and power limit, each once, and no more
//! clock changes than the rank may have.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use pfo_keeper::{ClockError, Clocks, only_observes};
use pfo_protocol::{Mhz, Milliwatts};
use pfo_service::now_ns;

use super::Rank;
use super::pace::{Pace, Room};
use super::wish::Wish;

/// What is set on a rank's GPU, and what it should have.
pub(super) struct Setting {
    pub(super) clocks: Clocks,
    pub(super) pace: Pace,
    /// The lock that the running instruction had before the next one's was asked for.
    pub(super) own_lock: Option<(Mhz, u64)>,
    /// The change that was skipped for lack of room and has been counted.
    skipped: Option<Mhz>,
    pub(super) refused: Option<Wish>,
    /// What the driver refused is asked for once more: a step begins.
    retry: bool,
    /// The power limit of the plan.
    pub(super) power_limit: Option<Milliwatts>,
    /// The power limit that failed, and is not requested again until another one is wanted.
    refused_limit: Option<PowerWish>,
    /// Whether the plan has the memory clock free, and whether it was locked and is free for that.
    pub(super) frees_memory: bool,
    memory_freed: bool,
    /// The clocks are restored until the next event; whether the memory clock was locked.
    resting: Option<bool>,
}

/// The power limit that a GPU should have, if any.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PowerWish(Option<Milliwatts>);

impl Setting {
    pub(super) fn new(clocks: Clocks, changes_per_second: u32) -> Self {
        Self {
            clocks,
            pace: Pace::new(changes_per_second),
            own_lock: None,
            skipped: None,
            refused: None,
            retry: false,
            power_limit: None,
            refused_limit: None,
            frees_memory: false,
            memory_freed: false,
            resting: None,
        }
    }

    /// A step begins. With `set_again` another program may have replaced the lock.
    pub(super) fn begin_step(&mut self, set_again: bool) {
        self.retry = true;
        if set_again {
            self.clocks.forget_lock();
        }
    }

    /// Whether there is room for the clock of a wait, and for that after it.
    pub(super) fn has_ample_room(&self) -> bool {
        self.pace.room(now_ns()) == Room::Ample
    }
}

impl Rank {
    /// Asks the driver for the newest clock, if it differs.
    ///
    /// Fails only if the GPU is gone. Anything else that the driver refuses is requested again with
    /// the next step, and the rank continues to train.
    pub(super) fn set_clock(&mut self) -> Result<(), ClockError> {
        let wish = self.following.cursor.wish();
        let retry = std::mem::take(&mut self.setting.retry);
        if self.setting.refused == Some(wish) && !retry {
            return Ok(());
        }
        let result = match wish {
            Wish::Default => self.setting.clocks.release_sm(),
            Wish::Highest => self.lock(self.rules.highest),
            Wish::At(mhz) => self.lock(mhz),
        };
        match refusal(result)? {
            None if self.setting.refused.take().is_some() => self.progress().problem.store(None),
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
        let PowerWish(limit) = wish;
        if self.setting.clocks.has_power_limit(limit) || self.setting.refused_limit == Some(wish) {
            return Ok(());
        }
        let result = match limit {
            Some(limit) => self.setting.clocks.limit_power(limit),
            None => self.setting.clocks.release_power(),
        };
        self.setting.refused_limit = result.is_err().then_some(wish);
        if let Some(error) = refusal(result)? {
            self.report_limit(&error);
        }
        Ok(())
    }

    /// Frees the memory clock for a plan that has it free, and locks it again after that.
    ///
    /// Fails only if the GPU is gone.
    pub(super) fn set_memory(&mut self) -> Result<(), ClockError> {
        if self.setting.frees_memory == self.setting.memory_freed {
            return Ok(());
        }
        let result = match self.setting.frees_memory {
            true => self.setting.clocks.release_memory(),
            false => self.setting.clocks.lock_memory().map(|()| false),
        };
        self.setting.memory_freed = matches!(result, Ok(true));
        self.setting.frees_memory = self.setting.memory_freed;
        if let Some(error) = refusal(result.map(drop))? {
            self.progress().problem.store(Some(Arc::new(error.to_string())));
        }
        Ok(())
    }

    /// Restores the clocks of a rank that was given the GPU and computes something else for a while.
    /// False if they cannot be restored now.
    #[cold]
    pub(super) fn rest(&mut self) -> bool {
        if self.setting.resting.is_none() {
            let memory = self.progress().published.memory_locked_mhz.load(Relaxed) > 0;
            self.setting.resting = self.setting.clocks.restore().is_ok().then_some(memory);
        }
        self.setting.resting.is_some()
    }

    /// Ends the rest. The first event asks for everything but the memory clock.
    pub(super) fn wake(&mut self) {
        if self.setting.resting.take() == Some(true)
            && let Err(error) = self.setting.clocks.lock_memory()
        {
            self.progress().problem.store(Some(Arc::new(error.to_string())));
        }
    }

    /// The limit of its plan, or a lower one that the agent keeps it below, within its lease.
    fn power_wish(&self) -> PowerWish {
        let cap_w = self.progress().power_cap_w.get().map(|cap| cap.1);
        let cap = cap_w.zip(self.setting.clocks.gpu().power_limits).map(|(cap_w, board)| {
            let least = self.session.grant.load().terms.min_power_limit().max(board.lowest);
            Milliwatts::of_watts(cap_w).max(least)
        });
        let of_plan = self.setting.power_limit.filter(|_| self.setting.resting.is_none());
        PowerWish([cap, of_plan].into_iter().flatten().min())
    }

    #[cold]
    fn report_limit(&self, error: &ClockError) {
        let holder = &self.session.holder;
        let why = format!("the power limit of rank {} was not set: {error}", holder.rank);
        tracing::warn!(job = %holder.job, rank = holder.rank.0, uid = holder.uid.0, "job {}: {why}", holder.job);
        if let Some(plan) =
            self.following.plan.as_ref().filter(|_| self.setting.power_limit.is_some())
        {
            plan.suspend(|| why);
        }
    }

    /// Locks a clock, or the one that there is room for after too many changes.
    fn lock(&mut self, wanted: Mhz) -> Result<(), ClockError> {
        let locked = self.setting.clocks.locked().map(|(mhz, _)| mhz);
        if locked == Some(wanted) || only_observes() {
            return Ok(());
        }
        let now_ns = now_ns();
        let affordable = match self.setting.pace.room(now_ns) {
            Room::Ample | Room::Enough => Some(wanted),
            Room::OnlyToHighest if locked.is_some() => Some(self.rules.highest),
            Room::OnlyToHighest | Room::No => locked,
        };
        if affordable == Some(wanted) {
            self.setting.skipped = None;
        } else if self.setting.skipped.replace(wanted) != Some(wanted) {
            self.progress().skipped_changes.fetch_add(1, Relaxed);
        }
        match affordable {
            Some(mhz) if affordable != locked => {
                self.setting.pace.spend(now_ns);
                self.setting.clocks.lock_sm(mhz)
            }
            _ => Ok(()),
        }
    }

    #[cold]
    fn report_refusal(&mut self, wish: Wish, error: &ClockError) {
        if self.setting.refused.replace(wish).is_none() {
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
