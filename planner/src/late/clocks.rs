//! The model of late clocks.
//!
//! The clock of an instruction is requested when the instruction before it on its stage ends, and
//! is in force one switching latency of that clock after the call that sets it begins, and not
//! before the one that was set last. Until then the stage waits, which costs nothing, or computes
//! at the clock in force: the part of an instruction that is done in that time takes the time and
//! the energy that were measured at that clock.
//!
//! A call blocks for some time. Requests meanwhile wait, and only the newest clock is set when the
//! call returns: that of an instruction that has ended by then never is. A clock that is set
//! already is not set again.
//!
//! A driver may keep transfers waiting while it sets a clock. So an instruction after which the
//! clock changes hands on its product later, and its stage continues later, by the time for which a
//! change holds them up. Until then its GPU waits.
//!
//! A wait may have a clock of its own, requested when the instruction before it ends. That of the
//! next instruction is then requested a latency and a margin before the wait ends; a wait that is
//! too short for both has no clock of its own.
//!
//! Steps follow each other: a step begins at the clock of the last instruction of its stage, with
//! no call under way, and asks for that of the first instruction at once. Instructions whose time
//! does not depend on the clock ask for none.

use std::collections::HashMap;
use std::iter::successors;

use pfo_vocabulary::{Mhz, Stage};

use crate::profile::Profile;
use crate::profile::measurement::Measurement;
use crate::step::delays::Delays;
use crate::step::network::Network;
use crate::waits::per_stage::PerStage;
use crate::waits::power::PowerByClock;

/// The operations that ask for clocks, in their order on each stage.
#[derive(Clone, Debug)]
pub(crate) struct LateClocks {
    longest_latency_s: f64,
    set_call_s: f64,
    held_up_s: f64,
    /// For each operation that asks for a clock, the one before it on its stage that does.
    previous: Vec<Option<u32>>,
    next: Vec<Option<u32>>,
    /// For each operation that asks for a clock, the first and the last one on its stage that do.
    ends: Vec<Option<[u32; 2]>>,
}

/// The newest call to the driver of a stage when an operation ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Call<C> {
    clock: C,
    /// When the clock is in force, in seconds since the start of the step.
    in_force_s: f64,
    /// When the call has returned.
    free_s: f64,
}

impl<C> Call<C> {
    /// A call of the past.
    pub(crate) fn before(clock: C) -> Self {
        Self { clock, in_force_s: 0.0, free_s: 0.0 }
    }
}

/// What an operation takes with late clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run<C> {
    /// With the time for which it is held up.
    pub(crate) time_s: f64,
    pub(crate) energy_j: f64,
    /// The part of its time, at its end, for which the change to the next clock holds it up.
    pub(crate) held_up_s: f64,
    /// The part of its time that it computes at another clock than its own.
    pub(crate) off_plan_s: f64,
    /// Whether its clock is set, and not another one's before or after it.
    pub(crate) is_change: bool,
    /// Whether its clock is requested before that of the newest call is in force.
    pub(crate) is_hasty: bool,
    pub(crate) call: Call<C>,
    /// The call that sets the clock of the wait before it.
    pub(crate) lowering: Option<Call<C>>,
}

impl<C> Run<C> {
    /// What an operation takes that asks for no clock, in seconds and joules.
    fn without_a_clock((time_s, energy_j): (f64, f64), own: C) -> Self {
        Self {
            time_s,
            energy_j,
            held_up_s: 0.0,
            off_plan_s: 0.0,
            is_change: false,
            is_hasty: false,
            call: Call::before(own),
            lowering: None,
        }
    }
}

impl LateClocks {
    pub(crate) fn new(network: &Network) -> Self {
        let none = vec![None; network.len()];
        let mut late = Self {
            longest_latency_s: network.delays.longest_latency_s(),
            set_call_s: network.delays.set_call_s,
            held_up_s: network.delays.held_up_s,
            previous: none.clone(),
            next: none,
            ends: vec![None; network.len()],
        };
        for stage in &network.stages {
            let asks = |&op: &u32| !network.operations[op as usize].instruction.is_fixed();
            let asking: Vec<u32> = stage.iter().copied().filter(asks).collect();
            for pair in asking.windows(2) {
                late.next[pair[0] as usize] = Some(pair[1]);
                late.previous[pair[1] as usize] = Some(pair[0]);
            }
            for &operation in &asking {
                late.ends[operation as usize] = Some([asking[0], asking[asking.len() - 1]]);
            }
        }
        late
    }

    /// Whether an operation asks for a clock.
    pub(crate) fn asks(&self, operation: usize) -> bool {
        self.ends[operation].is_some()
    }

    /// The first operation of the next step on the same stage, if this is the last one.
    pub(crate) fn first_of_next_step(&self, operation: usize) -> Option<usize> {
        let [first, last] = self.ends[operation]?;
        (last as usize == operation).then_some(first as usize)
    }

    /// The operation whose end an operation's clock may hold up: the one before it on the same stage,
    /// in the step before if it is the first one.
    pub(crate) fn held_up_by(&self, operation: usize) -> Option<usize> {
        let [first, last] = self.ends[operation]?;
        let before =
            if first as usize == operation { Some(last) } else { self.previous[operation] };
        before.filter(|_| self.held_up_s > 0.0).map(|before| before as usize)
    }

    /// The seconds for which the change after an operation holds it up.
    fn held_up_s<C: PartialEq>(&self, operation: usize, clock: impl Fn(usize) -> C) -> f64 {
        let next = self.next(operation).or_else(|| self.first_of_next_step(operation));
        let changes = next.is_some_and(|next| clock(next) != clock(operation));
        if changes { self.held_up_s } else { 0.0 }
    }

    /// The latest time at which a call begun until now has an effect, unless the one before it has a later
    /// one.
    pub(crate) fn in_force_s(&self, now_s: f64) -> f64 {
        now_s + self.longest_latency_s
    }

    /// The next operation on the same stage that asks for a clock.
    pub(crate) fn next(&self, operation: usize) -> Option<usize> {
        self.next[operation].map(|next| next as usize)
    }

    /// The previous operation on the same stage that asks for a clock.
    pub(crate) fn previous(&self, operation: usize) -> Option<usize> {
        self.previous[operation].map(|previous| previous as usize)
    }

    /// Runs an operation that starts at `start_s`, given the ends and the calls of those before it
    /// on its stage, the `clock` of every operation, that of the `wait` before this one, and the
    /// seconds and joules that it takes `at` a clock, and the seconds until a clock is in force.
    pub(crate) fn run<C: Copy + PartialEq>(
        &self,
        operation: usize,
        start_s: f64,
        (end_s, calls): (&[f64], &[Call<C>]),
        clock: impl Fn(usize) -> C,
        wait: Option<C>,
        (at, latency_s): (impl Fn(C) -> (f64, f64), impl Fn(C) -> f64),
    ) -> Run<C> {
        let own = clock(operation);
        let Some([first, last]) = self.ends[operation].map(|ends| ends.map(|end| end as usize))
        else {
            return Run::without_a_clock(at(own), own);
        };
        let previous = self.previous(operation);
        let asked_s = previous.map_or(0.0, |previous| end_s[previous]);
        let newest = previous.map_or_else(|| Call::before(clock(last)), |before| calls[before]);
        let own_latency_s = latency_s(own);
        let early_s = Delays::early_s(own_latency_s);
        let lowered = wait
            .filter(|&wait| wait != own)
            .map(|wait| match wait == newest.clock {
                true => newest,
                false => {
                    self.call(wait, newest.free_s.max(asked_s), latency_s(wait), newest.in_force_s)
                }
            })
            .filter(|lowered| lowered.in_force_s < start_s - early_s);
        let lowering = lowered.filter(|lowered| lowered.clock != newest.clock);
        let (newest, asked_s) =
            lowered.map_or((newest, asked_s), |lowered| (lowered, start_s - early_s));
        let call_s = newest.free_s.max(asked_s);
        let call = self.call(own, call_s, own_latency_s, newest.in_force_s);
        let is_wanted = newest.clock != own;

        let in_force = |&before: &usize| calls[before].in_force_s <= start_s;
        let holder = successors(previous, |&before| self.previous(before)).find(in_force);
        let (mut time_s, mut energy_j, mut off_plan_s, mut left) = (0.0, 0.0, 0.0, 1.0);
        let mut compute = |clock, until_s: f64| {
            let (whole_s, whole_j) = at(clock);
            let share = f64::min(left, (until_s - start_s - time_s).max(0.0) / whole_s);
            time_s += share * whole_s;
            energy_j += share * whole_j;
            off_plan_s += if clock == own { 0.0 } else { share * whole_s };
            left -= share;
        };
        let mut present = holder.map_or_else(|| clock(last), |holder| calls[holder].clock);
        // The chain back from `operation` leads forward to it again.
        let mut later = holder.map_or(Some(first), |holder| self.next(holder));
        while let Some(next) = later.filter(|&next| next != operation) {
            compute(present, calls[next].in_force_s);
            present = calls[next].clock;
            later = self.next(next);
        }
        if is_wanted {
            compute(present, call.in_force_s);
            present = own;
        }
        compute(present, f64::INFINITY);

        // While an earlier call blocks to the end of the operation, none is made for it.
        let is_change = is_wanted && call_s < start_s + time_s;
        // Times that are past make no difference; so they are not kept apart.
        let past = Call { in_force_s: newest.in_force_s.max(asked_s), free_s: call_s, ..newest };
        let call = if is_change { call } else { past };
        let is_hasty = is_wanted && asked_s < newest.in_force_s;
        let held_up_s = self.held_up_s(operation, clock);
        let time_s = time_s + held_up_s;
        Run { time_s, energy_j, held_up_s, off_plan_s, is_change, is_hasty, call, lowering }
    }

    /// A call at `now_s`, after one that is in force at `before_s`.
    fn call<C>(&self, clock: C, now_s: f64, latency_s: f64, before_s: f64) -> Call<C> {
        let in_force_s = f64::max(now_s + latency_s, before_s);
        Call { clock, in_force_s, free_s: now_s + self.set_call_s }
    }
}

/// A step with late clocks.
pub(crate) struct LateRun {
    /// What each operation takes, with the time for which it is held up.
    pub(crate) measured: Vec<Measurement>,
    /// The seconds for which changes of clocks hold up all operations of each stage together: their
    /// GPUs wait meanwhile.
    held_up_s: Vec<f64>,
    /// The calls that set a clock, with the stage, in the order of each stage.
    calls: Vec<(Stage, Call<Mhz>)>,
    /// When each operation ends, in seconds.
    end_s: Vec<f64>,
    /// Seconds of instructions that were computed at another clock than their own.
    pub(crate) off_plan_s: f64,
}

impl LateRun {
    /// The number of calls that set a clock, over all stages.
    pub(crate) fn changes(&self) -> usize {
        self.calls.len()
    }

    /// The seconds for which operations are held up, over all stages.
    pub(crate) fn held_up_s(&self) -> f64 {
        self.held_up_s.iter().sum()
    }

    /// What waiting GPUs draw until all stages are done, in joules.
    pub(crate) fn waiting_j(&self, network: &Network, power: &PerStage<PowerByClock>) -> f64 {
        let done_s = self.end_s.iter().copied().fold(0.0, f64::max);
        let mut waiting_j = 0.0;
        for (stage, operations) in (0..).map(Stage).zip(&network.stages) {
            let power = power.of(stage);
            let mut calls = self.calls.iter().filter(|call| call.0 == stage).map(|call| call.1);
            let mut next = calls.next();
            let asks = |&&op: &&u32| !network.operations[op as usize].instruction.is_fixed();
            let last = operations.iter().rev().find(asks).or(operations.last());
            // A stage that runs nothing waits at no clock that is known.
            let mut clock = last.map_or(Mhz(0), |&last| self.measured[last as usize].frequency);
            let mut now_s = 0.0;
            let held_up_s = self.held_up_s.get(usize::from(stage.0)).copied().unwrap_or_default();
            waiting_j += power.at(clock).0 * held_up_s;
            let runs = operations.iter().map(|&op| op as usize);
            let runs = runs.map(|op| (self.end_s[op] - self.measured[op].time_s, self.end_s[op]));
            for (start_s, end_s) in runs.chain([(done_s, done_s)]) {
                while let Some(call) = next.filter(|call| call.in_force_s <= start_s) {
                    waiting_j += power.at(clock).0 * (call.in_force_s - now_s).max(0.0);
                    now_s = call.in_force_s.max(now_s);
                    clock = call.clock;
                    next = calls.next();
                }
                waiting_j += power.at(clock).0 * (start_s - now_s).max(0.0);
                now_s = end_s;
            }
        }
        waiting_j
    }
}

/// A step of operations, from what each takes at its own clock, and the clocks of the waits before
/// some of them.
pub(crate) fn with_late_clocks(
    network: &Network,
    profile: &Profile,
    mut measured: Vec<Measurement>,
    waits: &HashMap<usize, Mhz>,
) -> LateRun {
    if !network.delays.make_changes_late() && waits.is_empty() {
        return with_prompt_clocks(network, measured);
    }
    let late = LateClocks::new(network);
    let clocks: Vec<Mhz> = measured.iter().map(|measured| measured.frequency).collect();
    let mut calls: Vec<Call<Mhz>> = clocks.iter().map(|&clock| Call::before(clock)).collect();
    let mut end_s = vec![0.0; network.len() + 1];
    let (mut made, mut off_plan_s) = (Vec::new(), 0.0);
    let mut held_up_s = vec![0.0; network.stages.len()];
    for (index, operation) in network.operations.iter().enumerate() {
        let table = profile.part_table(operation.stage, operation.instruction, operation.part());
        let start_s = network.start_s(index, &end_s);
        let own = measured[index];
        let at = |clock: Mhz| {
            let row =
                if clock == own.frequency { own } else { nearest(table, clock).unwrap_or(own) };
            (row.time_s, row.energy_j)
        };
        let wait = waits.get(&index).copied();
        let latency_s = |clock| network.delays.latency_s(clock);
        let costs = (at, latency_s);
        let run = late.run(index, start_s, (&end_s, &calls), |op| clocks[op], wait, costs);
        let Run { time_s, energy_j, .. } = run;
        measured[index] = Measurement { time_s, energy_j, ..own };
        end_s[index] = start_s + time_s;
        calls[index] = run.call;
        let own = run.is_change.then_some(run.call);
        made.extend(run.lowering.into_iter().chain(own).map(|call| (operation.stage, call)));
        off_plan_s += run.off_plan_s;
        if let Some(held_up_s) = held_up_s.get_mut(usize::from(operation.stage.0)) {
            *held_up_s += run.held_up_s;
        }
    }
    LateRun { measured, held_up_s, calls: made, end_s, off_plan_s }
}

/// The same if every clock is in force when it is requested: then everything takes what was
/// measured.
fn with_prompt_clocks(network: &Network, measured: Vec<Measurement>) -> LateRun {
    let mut end_s = vec![0.0; network.len() + 1];
    for (index, measured) in measured.iter().enumerate() {
        end_s[index] = network.start_s(index, &end_s) + measured.time_s;
    }
    let asks = |&op: &usize| !network.operations[op].instruction.is_fixed();
    let mut calls = Vec::new();
    for (stage, operations) in (0..).map(Stage).zip(&network.stages) {
        let asking = operations.iter().map(|&op| op as usize).filter(asks);
        let last = asking.clone().next_back();
        let mut before = last.map(|last| Call::before(measured[last].frequency));
        let mut asked_s = 0.0;
        for operation in asking {
            let clock = measured[operation].frequency;
            if before.is_some_and(|before| before.clock != clock) {
                let call = Call { clock, in_force_s: asked_s, free_s: asked_s };
                before = Some(call);
                calls.push((stage, call));
            }
            asked_s = end_s[operation];
        }
    }
    let held_up_s = vec![0.0; network.stages.len()];
    LateRun { measured, held_up_s, calls, end_s, off_plan_s: 0.0 }
}

/// The row of a clock, or of the nearest one that was measured.
pub(crate) fn nearest(table: &[Measurement], clock: Mhz) -> Option<Measurement> {
    table.iter().min_by_key(|row| row.frequency.0.abs_diff(clock.0)).copied()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pipeline::Pipeline;
    use crate::schedule::name::Schedule;
    use crate::schedule::settings::Settings;
    use crate::step::delays::Delays;
    use crate::test_profiles::{any_profile, unequal};

    fn pipeline(profile: &Profile, microbatches: u32, switch_latency_s: f64) -> Pipeline {
        let delays = Delays { switch_latency_s, ..Delays::default() };
        let settings = Settings { delays, ..Settings::default() };
        let schedule = Schedule::OneForwardOneBackward;
        Pipeline::with_settings(profile, schedule, microbatches, &settings).unwrap()
    }

    fn late(
        pipeline: &Pipeline,
        row: impl Fn(usize) -> usize,
    ) -> (Vec<Measurement>, Vec<Measurement>) {
        let network = pipeline.network();
        let measured: Vec<Measurement> = network
            .operations
            .iter()
            .enumerate()
            .map(|(index, op)| {
                let table = pipeline.profile().part_table(op.stage, op.instruction, op.part());
                table[row(index) % table.len()]
            })
            .collect();
        let late = with_late_clocks(network, pipeline.profile(), measured.clone(), &HashMap::new())
            .measured;
        (measured, late)
    }

    proptest! {
        // What the clock that is in force gets done, second by second, is each instruction once.
        #[test]
        fn the_clocks_in_force_get_every_instruction_done_once(
            profile in any_profile(3, 5),
            microbatches in 1_u32..5,
            rows in prop::collection::vec(0_usize..5, 40),
            latency_s in 0.0_f64..0.3,
        ) {
            let pipeline = pipeline(&profile, microbatches, latency_s);
            let network = pipeline.network();
            let (measured, late) = late(&pipeline, |index| rows[index % rows.len()]);
            let mut end_s = vec![0.0; network.len() + 1];
            let start_s: Vec<f64> = (0..network.len())
                .map(|index| {
                    let start_s = network.start_s(index, &end_s);
                    end_s[index] = start_s + late[index].time_s;
                    start_s
                })
                .collect();
            for stage in &network.stages {
                let clock = |place: usize| measured[stage[place] as usize].frequency;
                // From when on which clock is in force.
                let mut asked = vec![(f64::NEG_INFINITY, clock(stage.len() - 1)), (latency_s, clock(0))];
                for place in 1..stage.len() {
                    asked.push((end_s[stage[place - 1] as usize] + latency_s, clock(place)));
                }
                for &op in stage {
                    let index = op as usize;
                    let operation = &network.operations[index];
                    let table = profile.part_table(operation.stage, operation.instruction, operation.part());
                    let (mut done, mut energy_j) = (0.0, 0.0);
                    for (place, &(from_s, clock)) in asked.iter().enumerate() {
                        let until_s = asked.get(place + 1).map_or(f64::INFINITY, |&(from_s, _)| from_s);
                        let in_force_s = until_s.min(end_s[index]) - from_s.max(start_s[index]);
                        if in_force_s > 0.0 {
                            let row = nearest(table, clock).unwrap();
                            done += in_force_s / row.time_s;
                            energy_j += in_force_s / row.time_s * row.energy_j;
                        }
                    }
                    prop_assert!((done - 1.0).abs() < 1e-9, "{} of operation {}", done, index);
                    prop_assert!((energy_j - late[index].energy_j).abs() < 1e-9 * energy_j);
                }
            }
        }

        #[test]
        fn the_same_clock_everywhere_is_never_late(
            profile in any_profile(3, 1),
            latency_s in 0.0_f64..0.3,
        ) {
            let (measured, late) = late(&pipeline(&profile, 4, latency_s), |_| 0);
            for (measured, late) in measured.iter().zip(&late) {
                prop_assert!((measured.time_s - late.time_s).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn an_instruction_begins_at_the_clock_of_the_one_before_it() {
        // One microbatch: the forward of stage 0 begins at the clock of its backward.
        let pipeline = pipeline(&unequal(), 1, 0.015);
        let (measured, late) = late(&pipeline, |index| [2, 0, 0, 0][index]);
        let (high_s, low_s) = (0.050, 0.068);
        assert_eq!((measured[0].time_s, measured[3].time_s), (high_s, 0.130));
        let expected_s = 0.015 + (1.0 - 0.015 / low_s) * high_s;
        assert!((late[0].time_s - expected_s).abs() < 1e-12);
        // Its backward waits for stage 1 until its clock is in force.
        assert_eq!(late[3], measured[3]);
    }
}
