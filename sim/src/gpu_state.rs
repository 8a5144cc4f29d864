//! All that changes about one GPU, and how its energy follows from it.
//!
//! Pure: time comes in as an argument, power from [`Board`]. Energy is settled lazily, piece by
//! piece between changes of clock or activity, so that it is exact however rarely somebody looks.

use crate::clock_table::ClockRange;
use crate::curve::{CurveIndex, CurveSlot};
use crate::model::ModelFacts;
use crate::state::layout::{CURVES_PER_GPU, PROCESSES_PER_GPU};
use crate::state::snapshot::{WORDS, WordReader, WordWriter};
use crate::timeline::{ClockLimits, Timeline};
use crate::units::{Mhz, Milliwatts, MonotonicNs, Picojoules};

/// What a GPU does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Activity {
    /// Nothing.
    #[default]
    Idle,
    /// Wait, busily, for a neighbour stage.
    Blocked,
    /// Work of the kind that an installed curve describes.
    Computing(CurveIndex),
}

/// A process on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuProcess {
    /// Its pid, as it sees it itself.
    pub pid: u32,
    /// Since when it is there.
    pub since: MonotonicNs,
}

/// What is not in the state but decides about clock and power.
#[derive(Clone, Copy)]
pub struct Board<'a> {
    /// The model.
    pub facts: &'static ModelFacts,
    pub(crate) curves: Option<&'a [CurveSlot; CURVES_PER_GPU]>,
}

impl Board<'_> {
    /// Power of computing; the model's built-in curve where none is installed.
    fn compute_power(&self, curve: CurveIndex, clock: Mhz) -> Milliwatts {
        self.curves
            .and_then(|curves| curves[curve.number()].at(clock))
            .unwrap_or_else(|| Milliwatts::from_watts(self.facts.compute_power_w(clock)))
    }

    /// The SM clock under some limits.
    pub fn clock(&self, limits: ClockLimits, activity: Activity) -> Mhz {
        let allowed = limits
            .lock
            .map_or(ClockRange { min: self.facts.lowest(), max: self.facts.highest() }, |wish| {
                self.facts.snap_sm(wish)
            });
        match (activity, limits.power_cap) {
            (Activity::Idle, _) => allowed.min,
            (Activity::Blocked, _) | (Activity::Computing(_), None) => allowed.max,
            (Activity::Computing(curve), Some(cap)) => {
                let clocks = self.facts.sm_clocks();
                let fits = |clock: &&Mhz| {
                    **clock <= allowed.max && self.compute_power(curve, **clock) <= cap
                };
                clocks.iter().rev().find(fits).copied().unwrap_or(self.facts.lowest())
            }
        }
    }

    /// Power under some limits.
    pub fn power(&self, limits: ClockLimits, activity: Activity) -> Milliwatts {
        match activity {
            Activity::Idle => Milliwatts::from_watts(self.facts.idle_w),
            Activity::Blocked => Milliwatts::from_watts(self.facts.p2p_blocking_w),
            Activity::Computing(curve) => self.compute_power(curve, self.clock(limits, activity)),
        }
    }
}

/// The changing state of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuState {
    /// Up to when `energy` counts.
    pub settled: MonotonicNs,
    /// Energy since the state was made.
    pub energy: Picojoules,
    /// The energy counter as it was last refreshed.
    pub published: Picojoules,
    /// For how long a power cap has kept the clock down, in nanoseconds.
    pub power_capped_ns: u64,
    /// What the GPU does.
    pub activity: Activity,
    /// Who makes it do that: its place among the processes.
    pub active_process: Option<usize>,
    /// When it is done with it, and only waits for more from then on; without an end, it goes on.
    pub done: Option<MonotonicNs>,
    /// Who is on the GPU.
    pub processes: [Option<GpuProcess>; PROCESSES_PER_GPU],
    /// Locks and caps on the SM clock, by time.
    pub timeline: Timeline,
    /// The memory clock lock, as it was asked for.
    pub memory_lock: Option<ClockRange>,
    /// Whether MIG mode is on.
    pub mig: bool,
    /// Whether persistence mode is on.
    pub persistence: bool,
}

impl GpuState {
    /// A GPU that has just been made.
    pub fn new(now: MonotonicNs) -> Self {
        Self { settled: now, ..Self::default() }
    }

    /// Makes it do something else from now on, on behalf of a process.
    pub fn begin(&mut self, activity: Activity, process: Option<usize>) {
        (self.activity, self.active_process, self.done) = (activity, process, None);
    }

    /// The SM clock at a time, if the activity does not change until then.
    pub fn clock_at(&self, board: Board<'_>, time: MonotonicNs) -> Mhz {
        board.clock(self.timeline.at(time), self.activity)
    }

    /// The power at a time, if the activity does not change until then.
    pub fn power_at(&self, board: Board<'_>, time: MonotonicNs) -> Milliwatts {
        board.power(self.timeline.at(time), self.activity)
    }

    /// The memory clock now.
    pub fn memory_clock(&self, facts: &ModelFacts) -> Mhz {
        match (self.memory_lock, self.activity) {
            (Some(lock), _) => facts.snap_memory(lock),
            (None, Activity::Idle) => Mhz(facts.idle_memory_mhz),
            (None, Activity::Blocked | Activity::Computing(_)) => facts.highest_memory(),
        }
    }

    /// Whether a power cap keeps the clock below what the lock allows.
    pub fn is_power_capped(&self, board: Board<'_>, time: MonotonicNs) -> bool {
        let limits = self.timeline.at(time);
        let uncapped = ClockLimits { power_cap: None, ..limits };
        board.clock(limits, self.activity) < board.clock(uncapped, self.activity)
    }

    /// Counts the energy up to a time, and refreshes the counter as often as was due until then.
    pub fn settle(&mut self, board: Board<'_>, now: MonotonicNs, refresh_ns: u64) {
        if now <= self.settled {
            return;
        }
        let refresh = MonotonicNs(now.0 - now.0 % refresh_ns.max(1));
        if refresh > self.settled {
            self.integrate(board, refresh);
            self.published = self.energy;
        }
        self.integrate(board, now);
    }

    fn integrate(&mut self, board: Board<'_>, until: MonotonicNs) {
        while self.settled < until {
            if self.done.is_some_and(|done| done <= self.settled) {
                self.begin(Activity::Blocked, self.active_process);
            }
            let changes = [self.timeline.next_change(self.settled), self.done];
            let next = changes.into_iter().flatten().fold(until, MonotonicNs::min);
            let power = self.power_at(board, self.settled);
            self.energy = self.energy + Picojoules::of(power, next.since(self.settled));
            if self.is_power_capped(board, self.settled) {
                self.power_capped_ns += next.since(self.settled);
            }
            self.settled = next;
        }
    }

    pub(crate) fn to_words(&self) -> [u64; WORDS] {
        let mut words = WordWriter::new();
        words.put(self.settled.0);
        words.put_wide(self.energy.0);
        words.put_wide(self.published.0);
        words.put(self.power_capped_ns);
        let activity = match self.activity {
            Activity::Idle => 0,
            Activity::Blocked => 1,
            Activity::Computing(curve) => 2 + curve.number() as u32,
        };
        words.put_pair(activity, self.active_process.map_or(0, |slot| slot as u32 + 1));
        words.put(self.done.map_or(0, |done| done.0));
        let memory = self.memory_lock.map_or((0, 0), |lock| (lock.min.0, lock.max.0));
        words.put_pair(memory.0, memory.1);
        words.put_pair(self.mig.into(), self.persistence.into());
        for process in self.processes {
            words.put(process.map_or(0, |process| process.pid.into()));
            words.put(process.map_or(0, |process| process.since.0));
        }
        self.timeline.write(&mut words);
        words.finish()
    }

    pub(crate) fn from_words(words: &[u64; WORDS]) -> Self {
        let mut words = WordReader::new(words);
        let settled = MonotonicNs(words.take());
        let energy = Picojoules(words.take_wide());
        let published = Picojoules(words.take_wide());
        let power_capped_ns = words.take();
        let (activity, active_process) = words.take_pair();
        let activity = match activity {
            0 => Activity::Idle,
            1 => Activity::Blocked,
            number => {
                CurveIndex::new(number as usize - 2).map_or(Activity::Idle, Activity::Computing)
            }
        };
        let active_process = (1..=PROCESSES_PER_GPU)
            .contains(&(active_process as usize))
            .then(|| active_process as usize - 1);
        let done = Some(MonotonicNs(words.take())).filter(|done| done.0 != 0);
        let (min, max) = words.take_pair();
        let memory_lock = (max != 0).then_some(ClockRange { min: Mhz(min), max: Mhz(max) });
        let (mig, persistence) = words.take_pair();
        let processes = std::array::from_fn(|_| {
            let (pid, since) = (words.take() as u32, MonotonicNs(words.take()));
            (pid != 0).then_some(GpuProcess { pid, since })
        });
        Self {
            settled,
            energy,
            published,
            power_capped_ns,
            activity,
            active_process,
            done,
            processes,
            timeline: Timeline::read(&mut words),
            memory_lock,
            mig: mig != 0,
            persistence: persistence != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::GpuModel;

    const SECOND: u64 = 1_000_000_000;
    const REFRESH: u64 = 20_000_000;

    fn a100() -> Board<'static> {
        Board { facts: GpuModel::A100.facts(), curves: None }
    }

    fn computing() -> Activity {
        Activity::Computing(CurveIndex::new(0).unwrap())
    }

    fn lock(mhz: u32) -> Option<ClockRange> {
        Some(ClockRange::exactly(Mhz(mhz)))
    }

    #[test]
    fn energy_is_the_exact_sum_over_the_pieces_between_changes() {
        let mut state = GpuState { activity: computing(), ..GpuState::new(MonotonicNs(0)) };
        state.timeline.schedule_lock(MonotonicNs(SECOND), lock(900), MonotonicNs(0));
        state.settle(a100(), MonotonicNs(3 * SECOND), REFRESH);
        state.activity = Activity::Blocked;
        state.settle(a100(), MonotonicNs(4 * SECOND), REFRESH);
        let facts = GpuModel::A100.facts();
        let power = |mhz| Milliwatts::from_watts(facts.compute_power_w(Mhz(mhz))).0;
        let expected = power(1410) + 2 * power(900) + 83_640;
        assert_eq!(state.energy.millijoules(), u64::from(expected));
    }

    #[test]
    fn work_that_is_done_draws_no_more_however_late_somebody_looks() {
        let mut state = GpuState { activity: computing(), ..GpuState::new(MonotonicNs(0)) };
        state.done = Some(MonotonicNs(SECOND));
        state.settle(a100(), MonotonicNs(3 * SECOND), REFRESH);
        let facts = GpuModel::A100.facts();
        let computed = Milliwatts::from_watts(facts.compute_power_w(facts.highest())).0;
        assert_eq!(state.energy.millijoules(), u64::from(computed) + 2 * 83_640);
        assert_eq!((state.activity, state.done), (Activity::Blocked, None));
    }

    #[test]
    fn energy_does_not_depend_on_how_often_somebody_looks() {
        let mut rarely = GpuState { activity: computing(), ..GpuState::new(MonotonicNs(0)) };
        rarely.timeline.schedule_lock(MonotonicNs(123_456_789), lock(1000), MonotonicNs(0));
        let mut often = rarely.clone();
        rarely.settle(a100(), MonotonicNs(SECOND), REFRESH);
        for step in 1..=1000 {
            often.settle(a100(), MonotonicNs(step * SECOND / 1000), REFRESH);
        }
        assert_eq!(rarely, often);
    }

    #[test]
    fn the_counter_stands_still_between_two_refreshes() {
        let mut state = GpuState::new(MonotonicNs(0));
        state.settle(a100(), MonotonicNs(39_999_999), REFRESH);
        assert_eq!(state.published, Picojoules::of(Milliwatts(54_000), REFRESH));
        state.settle(a100(), MonotonicNs(40_000_000), REFRESH);
        assert_eq!(state.published, Picojoules::of(Milliwatts(54_000), 2 * REFRESH));
    }

    #[test]
    fn a_power_cap_lowers_the_clock_below_the_lock_while_computing() {
        let mut state = GpuState { activity: computing(), ..GpuState::new(MonotonicNs(0)) };
        state.timeline.schedule_lock(MonotonicNs(0), lock(1305), MonotonicNs(0));
        let now = MonotonicNs(1);
        assert_eq!(state.clock_at(a100(), now), Mhz(1305));
        state.timeline.set_power_cap(now, Some(Milliwatts(300_000)));
        let clock = state.clock_at(a100(), now);
        assert!(clock < Mhz(1305) && clock > Mhz(1000), "{clock}");
        assert!(state.is_power_capped(a100(), now));
        assert!(state.power_at(a100(), now) <= Milliwatts(300_000));
        state.activity = Activity::Blocked;
        assert_eq!(state.clock_at(a100(), now), Mhz(1305));
    }

    #[test]
    fn a_power_cap_is_counted_for_as_long_as_it_lowers_the_clock_of_work() {
        let mut state = GpuState { activity: computing(), ..GpuState::new(MonotonicNs(0)) };
        state.timeline.set_power_cap(MonotonicNs(SECOND), Some(Milliwatts(300_000)));
        // So low that the cap has nothing to hold back.
        state.timeline.schedule_lock(MonotonicNs(3 * SECOND), lock(600), MonotonicNs(0));
        state.settle(a100(), MonotonicNs(5 * SECOND), REFRESH);
        assert_eq!(state.power_capped_ns, 2 * SECOND);
        state.timeline.schedule_lock(MonotonicNs(6 * SECOND), None, MonotonicNs(5 * SECOND));
        state.done = Some(MonotonicNs(7 * SECOND));
        state.settle(a100(), MonotonicNs(9 * SECOND), REFRESH);
        assert_eq!(state.power_capped_ns, 3 * SECOND, "a GPU that waits draws less than its cap");
    }

    #[test]
    fn an_idle_gpu_shows_its_lowest_clock_until_it_is_locked_higher() {
        let mut state = GpuState::new(MonotonicNs(0));
        assert_eq!(state.clock_at(a100(), MonotonicNs(1)), Mhz(210));
        state.timeline.schedule_lock(MonotonicNs(5), lock(990), MonotonicNs(0));
        assert_eq!(state.clock_at(a100(), MonotonicNs(5)), Mhz(990));
    }

    #[test]
    fn it_is_the_same_after_a_way_through_shared_memory() {
        let mut state = GpuState::new(MonotonicNs(77));
        state.energy = Picojoules(u128::MAX / 3);
        state.published = Picojoules(12);
        state.power_capped_ns = 13;
        state.activity = Activity::Computing(CurveIndex::new(15).unwrap());
        state.active_process = Some(7);
        state.done = Some(MonotonicNs(99));
        state.processes[7] = Some(GpuProcess { pid: 42, since: MonotonicNs(3) });
        state.memory_lock = lock(1215);
        state.mig = true;
        assert_eq!(GpuState::from_words(&state.to_words()), state);
        assert_eq!(GpuState::from_words(&[0; WORDS]), GpuState::default());
    }
}
