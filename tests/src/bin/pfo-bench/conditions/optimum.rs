//! The most that a plan could save: over the tables that the simulated GPUs work by, with waits that
//! have no clock of their own.

use std::fmt::Write;
use std::ops::RangeInclusive;

use nvidia_ml::clock_table::ClockRange;
use nvidia_ml::curve::CurveIndex;
use nvidia_ml::gpu_state::{Activity, Board};
use nvidia_ml::machine::{GpuList, MachinePlan};
use nvidia_ml::silicon::{Delay, Silicon};
use nvidia_ml::timeline::ClockLimits;
use nvidia_ml::units::{Mhz, Milliwatts};
use nvidia_ml::work::built_in;
use nvidia_ml::work::table::{Kind, StageWork};
use pfo_planner::{
    ClockPer, Delays, Due, Frontier, LatencyByClock, Options, Pipeline, PowerByClock, Profile,
    Schedule, Settings, Spread, Watts, at_highest_clocks, replay,
};
use pfo_tests::STAGES;

use super::MICROBATCHES;
use super::condition::Condition;
use super::row::CHANGES_PER_SECOND;
use crate::Result;

/// What a condition's GPUs do at each clock.
pub(super) struct Tables {
    board: Board<'static>,
    limits: ClockLimits,
    stages: Vec<StageWork>,
    /// Counted beside each GPU, in watts.
    pub(super) module_w: f64,
}

impl Tables {
    pub(super) fn of(condition: &Condition) -> Result<Self> {
        let facts = condition.model.facts();
        let machine = (condition.made)(MachinePlan::ideal(GpuList(vec![condition.model])));
        let silicon = machine.silicon(condition.model);
        let power_cap = condition.limit_w.map(Milliwatts::from_watts);
        let stage = |stage| built_in::stage(facts, stage, STAGES as usize);
        let stages = (0..STAGES as usize).map(stage).collect::<std::result::Result<Vec<_>, _>>()?;
        Ok(Self {
            board: Board { facts, silicon, curves: None },
            limits: ClockLimits { power_cap, ..ClockLimits::default() },
            stages: stages.into_iter().map(|stage| stage.scaled(condition.time_scale)).collect(),
            module_w: silicon.module.watts(),
        })
    }

    /// The clock of work when this one is locked.
    pub(super) fn held(&self, asked: Mhz) -> Mhz {
        let highest = self.board.facts.highest();
        let lock = (asked < highest).then(|| ClockRange::exactly(asked));
        // Forwards and backwards draw the same, but for a hundredth.
        let work = CurveIndex::new(0).map_or(Activity::Idle, Activity::Computing);
        self.board.clock(
            ClockLimits { lock, ..self.limits },
            work,
            self.board.silicon.heat.when_warm(),
        )
    }

    /// The supported clocks from one below to one above a clock, in MHz.
    pub(super) fn beside(&self, clock: Mhz) -> RangeInclusive<u64> {
        let clocks = self.board.facts.sm_clocks();
        let place = clocks.partition_point(|&supported| supported < clock);
        let at = |place: usize| u64::from(clocks[place.min(clocks.len() - 1)].0);
        at(place.saturating_sub(1))..=at(place + 1)
    }

    fn clocks(&self) -> impl Iterator<Item = Mhz> {
        let highest = self.board.facts.highest();
        let lowest = f64::from(highest.0) * built_in::LOWEST_PROFILED_SHARE;
        self.board.facts.sm_clocks().into_iter().filter(move |clock| f64::from(clock.0) >= lowest)
    }

    fn profile(&self) -> Result<Profile> {
        let mut csv = String::from("stage,instruction,frequency,time,energy\n");
        for (stage, work) in self.stages.iter().enumerate() {
            for asked in self.clocks() {
                let held = self.held(asked);
                for kind in Kind::ALL {
                    let (time_s, energy_j) =
                        (work.of(kind).time_s(held), work.of(kind).energy_j(held));
                    let energy_j = energy_j + self.module_w * time_s;
                    writeln!(csv, "{stage},{},{},{time_s},{energy_j}", kind.name(), asked.0)?;
                }
            }
        }
        Ok(Profile::from_csv(csv.as_bytes())?)
    }

    fn waiting(&self) -> Result<PowerByClock> {
        let watts = |clock: Mhz| {
            let power = self.board.facts.blocked_power_w(self.board.held(clock));
            (pfo_planner::Mhz(clock.0), Watts(power + self.module_w))
        };
        Ok(PowerByClock::new(self.clocks().map(watts))?)
    }

    /// The savings of the best plans whose steps are longer by this share at most.
    pub(super) fn best_savings(&self, max_slowdown: f64) -> Result<BestSavings> {
        let (profile, waiting) = (self.profile()?, self.waiting()?);
        let delays = self.delays();
        let tables = (&profile, &waiting);
        let at_once = best_saving(tables, Delays::default(), max_slowdown, f64::INFINITY)?;
        let times_s = profile.rows().map(|(_, _, measured)| measured.time_s);
        let shortest_s = times_s.fold(f64::INFINITY, f64::min);
        // A clock that takes no longer can be asked for while the instruction before still runs, and a call
        // that returns before the next one is due is in nobody's way.
        let late_s = |latency_s| if shortest_s >= latency_s { 0.0 } else { latency_s };
        let late = delays.latency_by_clock.points().iter();
        let late: LatencyByClock = late.map(|&(clock, s)| (clock, late_s(s))).collect();
        let delays = match late.longest_s() {
            Some(longest_s) if longest_s > 0.0 => delays.with_latency_by_clock(late),
            _ if shortest_s >= delays.set_call_s => {
                Delays { held_up_s: delays.held_up_s, ..Delays::default() }
            }
            _ => Delays {
                set_call_s: delays.set_call_s,
                held_up_s: delays.held_up_s,
                ..Delays::default()
            },
        };
        let allowed = f64::from(CHANGES_PER_SECOND);
        let with_late_clocks = best_saving(tables, delays, max_slowdown, allowed)?;
        Ok(BestSavings { at_once, with_late_clocks })
    }

    /// What half of all set calls and changes to each clock take at most.
    fn delays(&self) -> Delays {
        let (silicon, highest) = (self.board.silicon, self.board.facts.highest());
        let median = Silicon { settling: Delay::always(silicon.settling.median_ns), ..silicon };
        let settling_s = |clock| median.settling_ns(clock, highest, 0) as f64 / 1e9;
        let by_clock: LatencyByClock =
            self.clocks().map(|clock| (pfo_planner::Mhz(clock.0), settling_s(clock))).collect();
        let mean_s = by_clock.points().iter().map(|point| point.1).sum::<f64>()
            / by_clock.points().len() as f64;
        let set_call_s = silicon.set_call.median_ns as f64 / 1e9;
        // A call just in time for the next instruction has not returned when that one begins.
        let held_up_s = if silicon.transfers_wait { (set_call_s - mean_s).max(0.0) } else { 0.0 };
        let delays = Delays { set_call_s, held_up_s, ..Delays::default() };
        delays.with_latency_by_clock(by_clock)
    }
}

/// The savings of the best plans for the true tables.
#[derive(Clone, Copy)]
pub(super) struct BestSavings {
    /// With clocks that change at once.
    pub(super) at_once: f64,
    /// With clocks that are as late as those of the GPUs, and with no more changes than are allowed.
    pub(super) with_late_clocks: f64,
}

/// The saving of the best plan of any rung that changes clocks no more often in a second.
fn best_saving(
    (profile, waiting): (&Profile, &PowerByClock),
    delays: Delays,
    max_slowdown: f64,
    changes_per_second: f64,
) -> Result<f64> {
    let settings = Settings { delays, ..Settings::default() };
    let schedule = Schedule::OneForwardOneBackward;
    let pipeline = Pipeline::with_settings(profile, schedule, MICROBATCHES, &settings)?;
    let flat = waiting.at(profile.rows().map(|row| row.2.frequency).max().unwrap_or_default());
    let options = Options { spread: Spread::Useful, ..Options::default() };
    let mut best = 0.0;
    for per in ClockPer::ALL {
        let frontier = Frontier::with_clock_per(per, &pipeline, flat, options, &|_| {})?;
        let default = at_highest_clocks(profile, &frontier.plan(0)?)?;
        let default = replay(profile, &default, waiting)?;
        let limit_s = (1.0 + max_slowdown) * default.iteration_time_s;
        let mut plans = vec![frontier.plan_for(Due::AtMost(limit_s))?];
        for place in 0..frontier.plans().len() {
            plans.push(frontier.plan(place)?);
        }
        let most_changes = changes_per_second * default.iteration_time_s;
        for plan in plans.iter().filter(|plan| plan.most_clock_changes() as f64 <= most_changes) {
            let replayed = replay(profile, plan, waiting)?;
            if replayed.iteration_time_s <= limit_s * (1.0 + 1e-9) {
                let saving = 1.0 - replayed.iteration_energy_j / default.iteration_energy_j;
                best = f64::max(best, saving);
            }
        }
    }
    Ok(best)
}
