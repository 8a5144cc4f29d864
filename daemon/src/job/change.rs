//! Changing what a job runs: plans are checked before the job is locked, and a swap begins at a step that no
//! rank has begun.

use std::sync::Arc;

use pfo_protocol::{ClockTable, Mhz, Milliwatts, Refusal, RefusalCode, SessionId, SwapTarget};

use super::job_plan::{JobPlan, RankShape};
use super::misfit::Misfit;
use super::{Job, Member, Members, Swap, does_not_fit};

/// The longest label of a plan, in bytes.
const LONGEST_LABEL: usize = 64;

/// Stages that may have power limits: status lists them for every plan.
const MOST_LIMITS: usize = 128;

/// What a job shall run, before it is checked against the job.
pub(crate) enum Runs {
    /// A plan, with its label.
    Table(String, ClockTable),
    /// One clock for everything.
    Uniform(Mhz),
    /// A power limit for each stage in watts, with the label of all.
    PowerLimits(String, Vec<u32>),
}

impl Job {
    /// Checks a plan of at most `most` units against the job and keeps it for a swap.
    pub(crate) fn load(
        &self,
        label: String,
        table: ClockTable,
        most: usize,
    ) -> Result<Arc<JobPlan>, Refusal> {
        let plan = Arc::new(self.fit(Runs::Table(label, table), most)?);
        self.members().plans.load(Arc::clone(&plan));
        self.notice_change();
        Ok(plan)
    }

    /// Checks what the job shall run against it, without its lock.
    pub(crate) fn fit(&self, runs: Runs, most: usize) -> Result<JobPlan, Refusal> {
        let (shapes, number) = {
            let mut members = self.members();
            (members.shapes(), members.plans.next_number())
        };
        match runs {
            Runs::Table(label, table) => {
                check_label(&label)?;
                self.check_room(table.num_units(), most)?;
                let plan = JobPlan::new(number, label, table);
                let check = |shape| plan.check_rank(shape);
                plan.check_stages(self.pp_degree)
                    .and_then(|()| shapes.iter().try_for_each(check))
                    .map_err(|misfit| does_not_fit(&misfit))?;
                Ok(plan)
            }
            Runs::Uniform(mhz) => Ok(JobPlan::uniform(number, mhz)),
            Runs::PowerLimits(label, limits_w) => {
                check_label(&label)?;
                self.fit_power_limits(number, label, &limits_w, &shapes)
            }
        }
    }

    fn check_room(&self, units: usize, most: usize) -> Result<(), Refusal> {
        if units <= most {
            return Ok(());
        }
        Err(Refusal::new(
            RefusalCode::LimitReached,
            format!(
                "the plan has {units} instructions, but the plans that user {} keeps leave room for \
                 {most}",
                self.key.uid
            ),
            "plans are forgotten a quarter of an hour after the last rank of their job has left",
        ))
    }

    fn fit_power_limits(
        &self,
        number: u32,
        label: String,
        limits_w: &[u32],
        shapes: &[RankShape],
    ) -> Result<JobPlan, Refusal> {
        if limits_w.len() > MOST_LIMITS {
            return Err(Refusal::new(
                RefusalCode::LimitReached,
                format!("power limits of {} stages are more than {MOST_LIMITS}", limits_w.len()),
                "give a job of this many stages a plan",
            ));
        }
        let limits = limits_w.iter().copied().map(Milliwatts::of_watts).collect();
        let plan = JobPlan::power_limits(number, label, limits);
        let check = |shape| plan.check_granted(shape);
        plan.check_stages(self.pp_degree)
            .and_then(|()| shapes.iter().try_for_each(check))
            .map_err(|misfit| {
                let remedy = "`pfoctl policy explain` shows what is allowed";
                Refusal::new(RefusalCode::PlanDoesNotFit, misfit.to_string(), remedy)
            })?;
        Ok(plan)
    }

    /// Suspends the plans whose clocks the ranks may not have any more. Returns their numbers, each with
    /// the first difference.
    pub(crate) fn suspend_what_is_not_allowed(&self) -> Vec<(u32, Misfit)> {
        let members = self.members();
        let plans = members.plans.swaps().filter_map(|swap| swap.plan.as_ref());
        let misfit = |plan: &Arc<JobPlan>| {
            let mut shapes = members.ranks().map(Member::shape);
            let misfit = shapes.find_map(|shape| plan.check_granted(&shape).err())?;
            plan.suspend(|| format!("the configuration has changed: {misfit}"));
            Some((plan.number, misfit))
        };
        plans.filter_map(misfit).collect()
    }

    /// Begins a swap; every rank takes it up at the step that it names. It replaces a swap whose
    /// step has yet to come. A plan in `target` has at most `most` units.
    pub(crate) fn swap(
        &self,
        target: SwapTarget,
        not_before: u64,
        most: usize,
    ) -> Result<Arc<Swap>, Refusal> {
        let is_loaded = target == SwapTarget::Loaded;
        let plan = match target {
            SwapTarget::DefaultClocks => None,
            SwapTarget::Loaded => Some(self.loaded()?),
            SwapTarget::Previous => self.previous()?,
            SwapTarget::Table { label, table } => {
                Some(Arc::new(self.fit(Runs::Table(label, table), most)?))
            }
        };
        let mut members = self.members();
        members.check_free(&self.key.name)?;
        let swap = self.begin_swap(&mut members, plan, not_before)?;
        if is_loaded {
            members.plans.unload();
        }
        Ok(swap)
    }

    fn loaded(&self) -> Result<Arc<JobPlan>, Refusal> {
        self.members().plans.loaded().cloned().ok_or_else(|| {
            let message = format!("no plan is loaded for job {}", self.key.name);
            Refusal::new(RefusalCode::NoPlan, message, "give a plan file")
        })
    }

    fn previous(&self) -> Result<Option<Arc<JobPlan>>, Refusal> {
        self.members().plans.previous().ok_or_else(|| {
            let message =
                format!("job {} has run no plan that could be rolled back", self.key.name);
            Refusal::new(RefusalCode::NoPlan, message, "see `pfoctl status`")
        })
    }

    /// Begins a swap to a plan, even while the job is held for measuring; the caller has checked that it may.
    pub(crate) fn begin_swap(
        &self,
        members: &mut Members,
        plan: Option<Arc<JobPlan>>,
        not_before: u64,
    ) -> Result<Arc<Swap>, Refusal> {
        self.check_steps_known(members)?;
        let under_way = members.plans.under_way().cloned();
        if let Some(last) = under_way.as_deref()
            && !last.is_replaceable()
        {
            return Err(self.taking_place(last));
        }
        // Ranks may have come since the plan was checked.
        plan.as_deref().map_or(Ok(()), |plan| members.check(plan))?;
        let number = members.plans.newest_number().saturating_add(1);
        let ranks = members.ranks().map(|m| Arc::clone(&m.session.progress)).collect();
        let swap = Swap::new(number, plan, not_before, ranks).replacing(under_way.clone());
        let swap = Arc::new(swap);
        self.newest_swap.store(Some(Arc::clone(&swap)));
        if swap.came_too_late()
            && let Some(last) = under_way
        {
            let refusal = self.taking_place(&last);
            self.newest_swap.store(Some(last));
            return Err(refusal);
        }
        members.plans.push(Arc::clone(&swap), under_way.is_some());
        self.notice_change();
        Ok(swap)
    }

    fn check_steps_known(&self, members: &Members) -> Result<(), Refusal> {
        let is_unknown = |member: &&Member| !member.session.progress.knows_step();
        let Some(member) = members.ranks().find(is_unknown) else { return Ok(()) };
        let rank = member.session.holder.rank;
        Err(Refusal::new(
            RefusalCode::LimitReached,
            format!(
                "rank {rank} of job {} has begun no step since pfod was restarted",
                self.key.name
            ),
            "try again after its next step, or with --wait",
        ))
    }

    fn taking_place(&self, swap: &Swap) -> Refusal {
        let (done, all) = swap.taken_up();
        let step = swap.step();
        Refusal::new(
            RefusalCode::LimitReached,
            format!(
                "job {} is in a swap at step {step}: {done} of {all} ranks have changed",
                self.key.name
            ),
            "try again after that step",
        )
    }

    /// The sessions of the job's ranks, in the order of the ranks.
    pub(crate) fn sessions(&self) -> Vec<SessionId> {
        self.members().ranks().map(|member| member.session.holder.session).collect()
    }
}

/// A label is shown to others, in tables and logs.
fn check_label(label: &str) -> Result<(), Refusal> {
    let is_line = |c: char| !c.is_control() && !BREAKS_LINES.contains(&c);
    let wrong = match label.len() {
        1..=LONGEST_LABEL if label.chars().all(is_line) => return Ok(()),
        1..=LONGEST_LABEL => format!("the label {label:?} is not one line of text"),
        length => format!("the label has {length} bytes, not 1 to {LONGEST_LABEL}"),
    };
    Err(Refusal::new(RefusalCode::Malformed, wrong, "give the plan another label"))
}

/// Characters that begin another line, or change the direction of text: a line of a table or a log could be
/// forged with them.
const BREAKS_LINES: [char; 14] = [
    '\u{61c}', '\u{200e}', '\u{200f}', '\u{2028}', '\u{2029}', '\u{202a}', '\u{202b}', '\u{202c}',
    '\u{202d}', '\u{202e}', '\u{2066}', '\u{2067}', '\u{2068}', '\u{2069}',
];
