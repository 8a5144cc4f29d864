//! What a rank ran in a step, and the step boundaries that are to be measured. On the way of an event
//! it is only remembered, without allocation; the accounting afterwards does the rest.

use pfo_protocol::{Mark, Unit};

use super::MOST_EVENTS_READ;

/// Instructions of a step that are remembered, to check new plans against.
const REMEMBERED_UNITS: usize = 1 << 16;

/// Shorter steps are measured several at a time: at the earliest after this, and after this many
/// times what reading the counter took.
const STEPS_MEASURED_NS: u64 = 10_000_000;
const TIMES_READING: u64 = 200;

/// A counter that is read this much later after a begin than it usually is does not show what it did then:
/// the driver, this thread or the whole daemon stood still meanwhile.
const LATE_NS: u64 = 50_000_000;

/// The step boundaries that were read but not measured yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StepsBegun {
    steps: u64,
    at_ns: u64,
    /// The last one has just been read.
    is_new: bool,
    /// When steps may be measured again.
    next_ns: u64,
    /// What reading the counter took.
    reading_ns: u64,
    /// The least time from a begin to the reading, where a trainer may have another clock.
    least_ns: Option<u64>,
}

impl StepsBegun {
    pub(super) fn begin(&mut self, at_ns: u64) {
        self.steps = self.steps.saturating_add(1);
        (self.at_ns, self.is_new) = (at_ns, true);
    }

    /// How many there are and when the last one was, if it is to be measured.
    pub(super) fn take(&mut self, now_ns: u64) -> Option<(u64, u64)> {
        let is_due = std::mem::take(&mut self.is_new) && now_ns >= self.next_ns;
        is_due.then(|| (std::mem::take(&mut self.steps), self.at_ns.min(now_ns)))
    }

    /// The counter was read. Twice long is a slow driver, once a thread that had to give way. Returns whether
    /// the reading came too late after the begin.
    pub(super) fn measured(&mut self, began_ns: u64, ended_ns: u64) -> bool {
        let took_ns = ended_ns.saturating_sub(began_ns);
        let reading_ns = std::mem::replace(&mut self.reading_ns, took_ns).min(took_ns);
        let pause_ns = reading_ns.saturating_mul(TIMES_READING).max(STEPS_MEASURED_NS);
        self.next_ns = began_ns.saturating_add(pause_ns);
        let passed_ns = ended_ns.saturating_sub(self.at_ns);
        let least_ns = self.least_ns.unwrap_or(passed_ns).min(passed_ns);
        self.least_ns = Some(least_ns);
        passed_ns > least_ns.saturating_mul(2).saturating_add(LATE_NS)
    }
}

/// What a rank runs.
#[derive(Debug)]
pub(super) struct Recording {
    /// The steps that have begun.
    pub(super) begun: StepsBegun,
    /// What the rank has run so far in this step, if that is complete.
    units: Vec<Unit>,
    is_complete: bool,
    /// What it ran in the last whole step.
    whole_step: Vec<Unit>,
    has_new_step: bool,
}

impl Recording {
    /// Nothing yet, with room for what one read can bring.
    pub(super) fn new() -> Self {
        let [units, whole_step] = [(); 2].map(|()| Vec::with_capacity(MOST_EVENTS_READ));
        let begun = StepsBegun::default();
        Self { begun, units, is_complete: false, whole_step, has_new_step: false }
    }

    /// Takes a mark; `lost` are events before it.
    pub(super) fn take(&mut self, mark: Mark, lost: bool) {
        match mark {
            Mark::StepBegin(_) => {
                self.units.clear();
                self.is_complete = true;
            }
            Mark::InstructionBegin(unit) if self.units.len() < REMEMBERED_UNITS => {
                self.units.push(unit);
            }
            Mark::InstructionBegin(_) => self.is_complete = false,
            Mark::InstructionEnd(_) | Mark::StepEnd(_) | Mark::Untimed(_) => {}
        }
        self.is_complete &= !lost;
        if matches!(mark, Mark::StepEnd(_)) && std::mem::take(&mut self.is_complete) {
            std::mem::swap(&mut self.units, &mut self.whole_step);
            self.has_new_step = true;
        }
    }

    /// Makes room for as many instructions as one read can bring, so that none makes it grow on the
    /// way to the driver.
    pub(super) fn make_room(&mut self) {
        self.units.reserve(MOST_EVENTS_READ.min(REMEMBERED_UNITS.saturating_sub(self.units.len())));
    }

    /// What the rank ran in its last whole step, if it has ended since the last call.
    pub(super) fn new_step(&mut self) -> Option<&[Unit]> {
        std::mem::take(&mut self.has_new_step).then_some(self.whole_step.as_slice())
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::Instruction;

    use super::*;

    const BEGIN: Mark = Mark::StepBegin(4);
    const END: Mark = Mark::StepEnd(4);

    fn unit(microbatch: u32) -> Unit {
        Unit::new(Instruction::Forward, microbatch)
    }

    /// What is recorded of these marks, of which some come after a loss.
    fn recorded(marks: &[(Mark, bool)]) -> Option<Vec<Unit>> {
        let mut recording = Recording::new();
        marks.iter().for_each(|(mark, lost)| recording.take(*mark, *lost));
        recording.new_step().map(<[Unit]>::to_vec)
    }

    #[test]
    fn a_whole_step_is_recorded_once() {
        let mut recording = Recording::new();
        for mark in [BEGIN, Mark::InstructionBegin(unit(0)), Mark::InstructionEnd(unit(0)), END] {
            recording.make_room();
            recording.take(mark, false);
        }
        assert_eq!(recording.new_step(), Some(&[unit(0)][..]));
        assert_eq!(recording.new_step(), None);
    }

    #[test]
    fn a_step_with_a_loss_is_not_recorded() {
        let begin = Mark::InstructionBegin(unit(0));
        for lost in 0..3 {
            let marks = [BEGIN, begin, END];
            let marks = marks.iter().enumerate().map(|(at, mark)| (*mark, at == lost));
            assert_eq!(recorded(&marks.collect::<Vec<_>>()), None, "{lost}");
        }
    }

    #[test]
    fn what_one_read_brings_is_recorded_without_allocation() {
        let mut recording = Recording::new();
        for _ in 0..3 {
            recording.make_room();
            let room = [recording.units.capacity(), recording.whole_step.capacity()];
            recording.take(END, false);
            recording.take(BEGIN, false);
            for microbatch in 2..MOST_EVENTS_READ as u32 {
                recording.take(Mark::InstructionBegin(unit(microbatch)), false);
            }
            let mut now = [recording.units.capacity(), recording.whole_step.capacity()];
            now.sort_unstable();
            let mut before = room;
            before.sort_unstable();
            assert_eq!(now, before);
        }
    }

    /// Whether each of these counters was read too late that took so long to be read after a begin.
    fn late(took_ms: &[u64]) -> Vec<bool> {
        let mut begun = StepsBegun::default();
        let late = took_ms.iter().enumerate().map(|(step, took_ms)| {
            let at_ns = 1_000_000_000_000 * (step as u64 + 1);
            begun.begin(at_ns);
            assert_eq!(begun.take(at_ns + 1), Some((1, at_ns)));
            begun.measured(at_ns + 1, at_ns + took_ms * 1_000_000)
        });
        late.collect()
    }

    #[test]
    fn a_counter_that_is_read_long_after_a_begin_is_late_unless_it_always_is() {
        assert_eq!(late(&[1, 2, 20_000, 1, 49, 70]), [false, false, true, false, false, true]);
        assert_eq!(late(&[900, 1000, 1300, 800]), [false; 4], "a slow driver");
    }

    #[test]
    fn what_came_before_the_first_step_is_not_recorded() {
        assert_eq!(recorded(&[(Mark::InstructionBegin(unit(0)), false), (END, false)]), None);
    }

    #[test]
    fn a_step_of_more_instructions_than_are_remembered_is_not_recorded() {
        let mut marks = vec![(BEGIN, false)];
        marks.extend((0..=REMEMBERED_UNITS).map(|_| (Mark::InstructionBegin(unit(0)), false)));
        marks.push((END, false));
        assert_eq!(recorded(&marks), None);
    }
}
