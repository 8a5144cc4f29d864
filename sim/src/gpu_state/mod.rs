//! All that changes about one GPU, and how its energy follows from it.
//!
//! Pure: time comes in as an argument, power from [`Board`]. Energy is settled lazily, piece by
//! piece between changes of clock or activity, so that it is exact however rarely somebody looks.

mod board;

use crate::clock_table::ClockRange;
use crate::curve::CurveIndex;
use crate::heat::{Heat, Microcelsius, TICK_NS};
use crate::model::ModelFacts;
use crate::silicon::Silicon;
use crate::state::layout::PROCESSES_PER_GPU;
use crate::state::snapshot::{WORDS, WordReader, WordWriter};
use crate::timeline::{ClockLimits, Timeline};
use crate::units::{Mhz, Milliwatts, MonotonicNs, Picojoules};

pub use self::board::{Board, Curves};

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

/// What keeps a clock below what its lock allows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HeldBack {
    /// A power cap.
    pub by_power: bool,
    /// Software, because the GPU is hot.
    pub by_software: bool,
    /// Hardware, because it is too hot.
    pub by_hardware: bool,
}

/// The changing state of a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuState {
    /// Up to when `energy` counts.
    pub settled: MonotonicNs,
    /// Energy since the state was made.
    pub energy: Picojoules,
    /// What the sensor of the energy counter made of it, and of a module.
    pub counted: Picojoules,
    /// What the energy counter will show when it is refreshed next.
    pub sampled: Picojoules,
    /// The energy counter as it was last refreshed.
    pub published: Picojoules,
    /// How warm it is.
    pub warmth: Microcelsius,
    /// `energy` when `warmth` moved last.
    pub energy_at_tick: Picojoules,
    /// For how long a power cap has kept the clock down, in nanoseconds.
    pub power_capped_ns: u64,
    /// For how long software has because of heat.
    pub software_slowed_ns: u64,
    /// For how long hardware has because of heat.
    pub hardware_slowed_ns: u64,
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
    /// A GPU that has just been made, and is as warm as the air around.
    pub fn new(now: MonotonicNs, silicon: &Silicon) -> Self {
        Self { settled: now, warmth: silicon.heat.around, persistence: true, ..Self::default() }
    }

    /// Makes it do something else from now on, on behalf of a process.
    pub fn begin(&mut self, activity: Activity, process: Option<usize>) {
        (self.activity, self.active_process, self.done) = (activity, process, None);
    }

    /// The SM clock at a time, if the activity does not change until then.
    pub fn clock_at(&self, board: Board<'_>, time: MonotonicNs) -> Mhz {
        board.clock(self.timeline.at(time), self.activity, self.warmth)
    }

    /// The power at a time, if the activity does not change until then.
    pub fn power_at(&self, board: Board<'_>, time: MonotonicNs) -> Milliwatts {
        board.power(self.timeline.at(time), self.activity, self.warmth)
    }

    /// The memory clock now.
    pub fn memory_clock(&self, facts: &ModelFacts) -> Mhz {
        match (self.memory_lock, self.activity) {
            (Some(lock), _) => facts.snap_memory(lock),
            (None, Activity::Idle) => Mhz(facts.idle_memory_mhz),
            (None, Activity::Blocked | Activity::Computing(_)) => facts.highest_memory(),
        }
    }

    /// What keeps the clock below what the lock allows.
    pub fn held_back(&self, board: Board<'_>, time: MonotonicNs) -> HeldBack {
        let clock = |board: &Board<'_>, limits| board.clock(limits, self.activity, self.warmth);
        let limits = self.timeline.at(time);
        let held = clock(&board, limits);
        let heat = board.silicon.heat;
        let silicon = Silicon { power_limit_binds: false, ..board.silicon };
        let unlimited = Board { silicon, ..board };
        let silicon = Silicon { heat: Heat { slows: false, ..heat }, ..board.silicon };
        let cool = Board { silicon, ..board };
        let is_slowed = heat.slows && held < clock(&cool, limits);
        let hardware = heat.slowdown(self.warmth).hardware;
        HeldBack {
            by_power: held < clock(&unlimited, ClockLimits { power_cap: None, ..limits }),
            by_software: is_slowed && !hardware,
            by_hardware: is_slowed && hardware,
        }
    }

    /// Counts the energy up to a time, and refreshes the counter as often as was due until then.
    pub fn settle(&mut self, board: Board<'_>, now: MonotonicNs) {
        if now <= self.settled {
            return;
        }
        let Silicon { energy_refresh_ns, energy_late_ns, .. } = board.silicon;
        let late_ns = energy_late_ns.min(energy_refresh_ns.saturating_sub(1));
        let refresh = MonotonicNs(now.0 - now.0 % energy_refresh_ns.max(1));
        if refresh > self.settled {
            self.sample(board, MonotonicNs(refresh.0.saturating_sub(late_ns)));
            self.integrate(board, refresh);
            self.published = self.sampled;
        }
        let next_sample = MonotonicNs(refresh.0 + energy_refresh_ns - late_ns);
        if next_sample <= now {
            self.sample(board, next_sample);
        }
        self.integrate(board, now);
    }

    /// Takes what the counter shows next, unless that is done.
    fn sample(&mut self, board: Board<'_>, at: MonotonicNs) {
        if at > self.settled {
            self.integrate(board, at);
            self.sampled = self.counted;
        }
    }

    fn integrate(&mut self, board: Board<'_>, until: MonotonicNs) {
        let sensor = board.silicon.sensor;
        let mut tick = self.next_tick(board);
        while self.settled < until {
            if self.done.is_some_and(|done| done <= self.settled) {
                self.begin(Activity::Blocked, self.active_process);
            }
            let known = [self.timeline.next_change(self.settled), self.done];
            let change = known.into_iter().flatten().fold(until, MonotonicNs::min);
            let next = [tick, sensor.next_change(self.settled)].into_iter().flatten();
            let next = next.fold(change, MonotonicNs::min);
            let (power, ns) = (self.power_at(board, self.settled), next.since(self.settled));
            let energy = Picojoules::of(power, ns);
            let module = Picojoules::of(board.silicon.module, ns);
            self.energy = self.energy + energy;
            self.counted = self.counted + sensor.counts(energy + module, self.settled);
            let held_back = self.held_back(board, self.settled);
            self.power_capped_ns += if held_back.by_power { ns } else { 0 };
            self.software_slowed_ns += if held_back.by_software { ns } else { 0 };
            self.hardware_slowed_ns += if held_back.by_hardware { ns } else { 0 };
            self.settled = next;
            if tick == Some(next) {
                tick = self.warm_up(board, change);
            }
        }
    }

    /// When heat moves next, if it matters.
    fn next_tick(&self, board: Board<'_>) -> Option<MonotonicNs> {
        let next = MonotonicNs(self.settled.0 - self.settled.0 % TICK_NS + TICK_NS);
        board.silicon.heat.matters().then_some(next)
    }

    /// Moves the temperature at a tick; returns the tick at which it moves next. Where it strives
    /// for no other any more, that is the last one before a change.
    fn warm_up(&mut self, board: Board<'_>, change: MonotonicNs) -> Option<MonotonicNs> {
        let heat = board.silicon.heat;
        let drawn = self.energy.0 - self.energy_at_tick.0;
        self.energy_at_tick = self.energy;
        self.warmth = heat.after_tick(self.warmth, drawn as f64 / TICK_NS as f64 / 1e3);
        let power = self.power_at(board, self.settled);
        let is_steady = heat.after_tick(self.warmth, power.watts()) == self.warmth;
        let last_tick = MonotonicNs(change.0 - change.0 % TICK_NS);
        let skipped = last_tick.since(MonotonicNs(self.settled.0 + TICK_NS));
        if !is_steady || skipped == 0 {
            return self.next_tick(board);
        }
        self.energy_at_tick = self.energy + Picojoules::of(power, skipped);
        Some(last_tick)
    }

    pub(crate) fn to_words(&self) -> [u64; WORDS] {
        let mut words = WordWriter::new();
        words.put(self.settled.0);
        words.put_wide(self.energy.0);
        words.put_wide(self.counted.0);
        words.put_wide(self.sampled.0);
        words.put_wide(self.published.0);
        words.put(self.warmth.0);
        words.put_wide(self.energy_at_tick.0);
        words.put(self.power_capped_ns);
        words.put(self.software_slowed_ns);
        words.put(self.hardware_slowed_ns);
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
        let counted = Picojoules(words.take_wide());
        let sampled = Picojoules(words.take_wide());
        let published = Picojoules(words.take_wide());
        let warmth = Microcelsius(words.take());
        let energy_at_tick = Picojoules(words.take_wide());
        let power_capped_ns = words.take();
        let software_slowed_ns = words.take();
        let hardware_slowed_ns = words.take();
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
            counted,
            sampled,
            published,
            warmth,
            energy_at_tick,
            power_capped_ns,
            software_slowed_ns,
            hardware_slowed_ns,
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
    use crate::heat::Cooling;
    use crate::model::GpuModel;

    const SECOND: u64 = 1_000_000_000;
    const REFRESH: u64 = 20_000_000;

    fn a100() -> Board<'static> {
        Board { facts: GpuModel::A100.facts(), silicon: Silicon::IDEAL, curves: None }
    }

    fn honest(model: GpuModel) -> Board<'static> {
        Board { facts: model.facts(), silicon: model.silicon(), curves: None }
    }

    fn new(board: Board<'_>) -> GpuState {
        GpuState::new(MonotonicNs(0), &board.silicon)
    }

    fn computing() -> Activity {
        Activity::Computing(CurveIndex::new(0).unwrap())
    }

    fn lock(mhz: u32) -> Option<ClockRange> {
        Some(ClockRange::exactly(Mhz(mhz)))
    }

    #[test]
    fn energy_is_the_exact_sum_over_the_pieces_between_changes() {
        let mut state = GpuState { activity: computing(), ..new(a100()) };
        state.timeline.schedule_lock(MonotonicNs(SECOND), lock(900), MonotonicNs(0));
        state.settle(a100(), MonotonicNs(3 * SECOND));
        state.activity = Activity::Blocked;
        state.settle(a100(), MonotonicNs(4 * SECOND));
        let facts = GpuModel::A100.facts();
        let power = |mhz| Milliwatts::from_watts(facts.compute_power_w(Mhz(mhz))).0;
        let expected = power(1410) + 2 * power(900) + 83_640;
        assert_eq!(state.energy.millijoules(), u64::from(expected));
    }

    #[test]
    fn work_that_is_done_draws_no_more_however_late_somebody_looks() {
        let mut state = GpuState { activity: computing(), ..new(a100()) };
        state.done = Some(MonotonicNs(SECOND));
        state.settle(a100(), MonotonicNs(3 * SECOND));
        let facts = GpuModel::A100.facts();
        let computed = Milliwatts::from_watts(facts.compute_power_w(facts.highest())).0;
        assert_eq!(state.energy.millijoules(), u64::from(computed) + 2 * 83_640);
        assert_eq!((state.activity, state.done), (Activity::Blocked, None));
    }

    #[test]
    fn energy_does_not_depend_on_how_often_somebody_looks() {
        let mut rarely = GpuState { activity: computing(), ..new(a100()) };
        rarely.timeline.schedule_lock(MonotonicNs(123_456_789), lock(1000), MonotonicNs(0));
        let mut often = rarely.clone();
        rarely.settle(a100(), MonotonicNs(SECOND));
        for step in 1..=1000 {
            often.settle(a100(), MonotonicNs(step * SECOND / 1000));
        }
        assert_eq!(rarely, often);
    }

    #[test]
    fn the_counter_stands_still_between_two_refreshes() {
        let mut state = new(a100());
        state.settle(a100(), MonotonicNs(39_999_999));
        assert_eq!(state.published, Picojoules::of(Milliwatts(54_000), REFRESH));
        state.settle(a100(), MonotonicNs(40_000_000));
        assert_eq!(state.published, Picojoules::of(Milliwatts(54_000), 2 * REFRESH));
    }

    #[test]
    fn a_power_cap_lowers_the_clock_below_the_lock_while_computing() {
        let mut state = GpuState { activity: computing(), ..new(a100()) };
        state.timeline.schedule_lock(MonotonicNs(0), lock(1305), MonotonicNs(0));
        let now = MonotonicNs(1);
        assert_eq!(state.clock_at(a100(), now), Mhz(1305));
        state.timeline.set_power_cap(now, Some(Milliwatts(300_000)));
        let clock = state.clock_at(a100(), now);
        assert!(clock < Mhz(1305) && clock > Mhz(1000), "{clock}");
        assert!(state.held_back(a100(), now).by_power);
        assert!(state.power_at(a100(), now) <= Milliwatts(300_000));
        state.activity = Activity::Blocked;
        assert_eq!(state.clock_at(a100(), now), Mhz(1305));
    }

    #[test]
    fn a_gpu_at_work_warms_up_and_draws_more_for_the_same_work() {
        let board = honest(GpuModel::A40);
        let mut state = GpuState { activity: computing(), ..new(board) };
        state.timeline.schedule_lock(MonotonicNs(0), lock(1095), MonotonicNs(0));
        let (cold, around) = (state.power_at(board, MonotonicNs(1)), state.warmth);
        state.settle(board, MonotonicNs(3600 * SECOND));
        let warm = state.power_at(board, state.settled);
        let rise = (state.warmth.0 - around.0) as f64 / 1e6;
        assert!((rise - 0.12 * warm.watts()).abs() < 0.01, "{rise} K at {} W", warm.watts());
        assert!(warm > cold);
        state.begin(Activity::Idle, None);
        state.settle(board, MonotonicNs(7200 * SECOND));
        assert!(state.warmth.celsius() < 32.0);
    }

    #[test]
    fn heat_does_not_depend_on_how_often_somebody_looks_either() {
        let board = honest(GpuModel::H100);
        let mut rarely = GpuState { activity: computing(), ..new(board) };
        rarely.timeline.schedule_lock(MonotonicNs(123_456_789), lock(1000), MonotonicNs(0));
        rarely.done = Some(MonotonicNs(1500 * SECOND + 17));
        let mut often = rarely.clone();
        rarely.settle(board, MonotonicNs(4000 * SECOND));
        for step in 1..=40_000 {
            often.settle(board, MonotonicNs(step * SECOND / 10));
        }
        assert_eq!(rarely, often);
    }

    #[test]
    fn dense_work_runs_into_the_default_power_limit_as_published() {
        // H200: 1830 MHz falls to about 1500; B200: 1965 to 1580 (the sources are in README.md).
        for (model, wish, low, high) in [
            (GpuModel::H200, 1830, 1400, 1600),
            (GpuModel::B200, 1965, 1500, 1660),
            (GpuModel::A100, 1410, 1200, 1395),
            (GpuModel::Rtx3090, 2100, 1400, 2000),
        ] {
            let board = honest(model);
            let mut state = GpuState { activity: computing(), ..new(board) };
            state.timeline.schedule_lock(MonotonicNs(0), lock(wish), MonotonicNs(0));
            state.settle(board, MonotonicNs(600 * SECOND));
            let clock = state.clock_at(board, state.settled).0;
            assert!((low..=high).contains(&clock), "{model:?}: {clock} MHz");
            assert!(state.held_back(board, state.settled).by_power);
            assert!(state.power_at(board, state.settled) <= board.facts.default_power_limit());
        }
    }

    #[test]
    fn some_locks_are_held_one_step_lower_and_none_elsewhere() {
        let board = honest(GpuModel::A100);
        let clocks = board.facts.sm_clocks();
        let mut beside = 0;
        for (place, &clock) in clocks.iter().enumerate() {
            let mut state = new(board);
            state.timeline.schedule_lock(MonotonicNs(0), lock(clock.0), MonotonicNs(0));
            state.begin(Activity::Blocked, None);
            let held = state.clock_at(board, MonotonicNs(1));
            assert!(held == clock || held == clocks[place - 1], "{clock}: {held}");
            beside += usize::from(held != clock);
        }
        assert_eq!(beside, clocks.len() / 4);
    }

    #[test]
    fn waiting_costs_less_at_a_low_clock_and_a_module_counts_more_than_its_gpu() {
        let board = honest(GpuModel::Gh200);
        let mut state = new(board);
        state.begin(Activity::Blocked, None);
        let power = |state: &GpuState| state.power_at(board, MonotonicNs(1)).watts();
        let high = power(&state);
        state.timeline.schedule_lock(MonotonicNs(0), lock(345), MonotonicNs(0));
        assert!(power(&state) < 0.8 * high && power(&state) > board.facts.idle_w * 0.95);
        state.settle(board, MonotonicNs(SECOND));
        let module = Picojoules::of(board.silicon.module, SECOND);
        assert_eq!(state.counted, state.energy + module);
    }

    #[test]
    fn a_late_counter_shows_what_was_drawn_until_some_time_before_its_refresh() {
        let silicon = Silicon { energy_late_ns: 3_000_000, ..Silicon::IDEAL };
        let board = Board { silicon, ..a100() };
        for looks_at_ms in [vec![40], (1..=40).collect(), vec![18, 39, 40], vec![17, 36, 40]] {
            let mut state = new(board);
            for ms in looks_at_ms {
                state.settle(board, MonotonicNs(ms * 1_000_000));
            }
            assert_eq!(state.published, Picojoules::of(Milliwatts(54_000), 37_000_000));
            state.settle(board, MonotonicNs(59_000_000));
            assert_eq!(state.published, Picojoules::of(Milliwatts(54_000), 37_000_000));
        }
    }

    #[test]
    fn a_part_time_sensor_is_right_on_steady_power_and_wrong_on_a_wave_of_its_own_period() {
        let sensor = crate::sensor::Sensor { looks_ns: 25_000_000, period_ns: 100_000_000 };
        let board = Board { silicon: Silicon { sensor, ..Silicon::IDEAL }, ..a100() };
        let mut state = GpuState { activity: computing(), ..new(board) };
        state.settle(board, MonotonicNs(SECOND));
        assert_eq!(state.counted, state.energy);
        for period in 10..20 {
            for (activity, at) in [(computing(), 0), (Activity::Idle, 25)] {
                state.settle(board, MonotonicNs((period * 100 + at) * 1_000_000));
                state.begin(activity, None);
            }
        }
        state.settle(board, MonotonicNs(2 * SECOND));
        assert!(state.counted.0 > state.energy.0 * 4 / 3, "it saw only work");
    }

    #[test]
    fn a_power_cap_is_counted_for_as_long_as_it_lowers_the_clock_of_work() {
        let mut state = GpuState { activity: computing(), ..new(a100()) };
        state.timeline.set_power_cap(MonotonicNs(SECOND), Some(Milliwatts(300_000)));
        // So low that the cap has nothing to hold back.
        state.timeline.schedule_lock(MonotonicNs(3 * SECOND), lock(600), MonotonicNs(0));
        state.settle(a100(), MonotonicNs(5 * SECOND));
        assert_eq!(state.power_capped_ns, 2 * SECOND);
        state.timeline.schedule_lock(MonotonicNs(6 * SECOND), None, MonotonicNs(5 * SECOND));
        state.done = Some(MonotonicNs(7 * SECOND));
        state.settle(a100(), MonotonicNs(9 * SECOND));
        assert_eq!(state.power_capped_ns, 3 * SECOND, "a GPU that waits draws less than its cap");
    }

    #[test]
    fn a_hot_gpu_keeps_below_its_limit_of_heat_at_lower_clocks_and_counts_who_lowered_them() {
        for (cooling, by_hardware) in [(Cooling::Poor, false), (Cooling::Failed, true)] {
            let mut board = honest(GpuModel::A100);
            board.silicon.heat = board.silicon.heat.with(cooling, Milliwatts(400_000));
            let mut state = GpuState { activity: computing(), ..new(board) };
            state.settle(board, MonotonicNs(20 * SECOND));
            let early = (state.software_slowed_ns, state.hardware_slowed_ns);
            assert_eq!(early, (0, 0), "it is still warming up: {}", state.warmth.celsius());
            state.settle(board, MonotonicNs(600 * SECOND));
            assert!((85.0..92.0).contains(&state.warmth.celsius()), "{:?}", state.warmth);
            assert!(state.clock_at(board, state.settled) < Mhz(1300));
            assert!(state.software_slowed_ns > 400 * SECOND || by_hardware, "{state:?}");
            assert_eq!(state.hardware_slowed_ns > 0, by_hardware, "{state:?}");
            let held_back = state.held_back(board, state.settled);
            assert!(held_back.by_software || held_back.by_hardware && !held_back.by_power);
        }
    }

    #[test]
    fn an_idle_gpu_shows_its_lowest_clock_until_it_is_locked_higher() {
        let mut state = new(a100());
        assert_eq!(state.clock_at(a100(), MonotonicNs(1)), Mhz(210));
        state.timeline.schedule_lock(MonotonicNs(5), lock(990), MonotonicNs(0));
        assert_eq!(state.clock_at(a100(), MonotonicNs(5)), Mhz(990));
    }

    #[test]
    fn it_is_the_same_after_a_way_through_shared_memory() {
        let mut state = new(honest(GpuModel::A100));
        state.energy = Picojoules(u128::MAX / 3);
        state.counted = Picojoules(11);
        state.published = Picojoules(12);
        state.energy_at_tick = Picojoules(13);
        state.power_capped_ns = 14;
        state.software_slowed_ns = 15;
        state.hardware_slowed_ns = 16;
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
