//! What an energy counter counts, from its values and from what the GPU did between them. Pure.
//!
use std::collections::BTreeMap;

use pfo_protocol::{CounterCheck, Instruction, Mhz, TapRecord};

use crate::record::{Looks, Piece, Shown, Solution, Spread};

/// Values and pieces of time that are kept of each rank.
const MOST_KEPT: usize = 1 << 16;

/// Two values further apart than this many usual intervals lie on both sides of a pause.
const FAR_APART: f64 = 2.5;

/// What a GPU did.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Work {
    /// An instruction, at the clock that was locked.
    Instruction(Instruction, Option<Mhz>),
    /// A wait or pause within a step.
    Waiting,
    /// What is between the instructions of two steps.
    BetweenSteps,
}

#[derive(Clone, Copy, Debug)]
struct Span {
    began_ns: u64,
    ended_ns: u64,
    work: Work,
}

impl Span {
    fn s(&self) -> f64 {
        self.ended_ns.saturating_sub(self.began_ns) as f64 / 1e9
    }
}

/// What the counter of one GPU showed, and what the GPU did meanwhile.
#[derive(Debug, Default)]
pub(crate) struct Counter {
    /// When the counter changed to how many joules.
    values: Vec<(u64, f64)>,
    spans: Vec<Span>,
    /// Up to when it is known what the GPU did.
    known_ns: Option<u64>,
    /// Whether a step began or ended since.
    is_between: bool,
}

impl Counter {
    /// Takes what came next.
    pub(crate) fn take(&mut self, record: &TapRecord) {
        match *record {
            TapRecord::StepBegan { .. } | TapRecord::StepEnded { .. } => self.is_between = true,
            TapRecord::Ran { unit, began_ns, ended_ns, locked, .. } => {
                let gap = if self.is_between { Work::BetweenSteps } else { Work::Waiting };
                self.is_between = false;
                self.span_until(began_ns, gap);
                let clock = locked.map(|(clock, _)| clock);
                self.span_until(ended_ns, Work::Instruction(unit.instruction, clock));
            }
            TapRecord::Counter(reading) => {
                if let Some(energy_j) = reading.energy_j
                    && self.values.len() < MOST_KEPT
                {
                    self.values.push((reading.at_ns, energy_j));
                }
            }
            TapRecord::TrialBegan { .. } | TapRecord::Ended => {}
        }
    }

    /// What comes next does not follow what came last.
    pub(crate) fn interrupt(&mut self) {
        self.known_ns = None;
    }

    /// When the counter changed.
    pub(crate) fn refreshed_ns(&self) -> Vec<u64> {
        self.values.iter().map(|(at_ns, _)| *at_ns).collect()
    }

    fn span_until(&mut self, ended_ns: u64, work: Work) {
        if let Some(began_ns) = self.known_ns.filter(|began_ns| *began_ns < ended_ns)
            && self.spans.len() < MOST_KEPT
        {
            self.spans.push(Span { began_ns, ended_ns, work });
        }
        self.known_ns = self.known_ns.max(Some(ended_ns));
    }

    /// What the values show, beside the power readings of the same time; none if there are too few.
    pub(crate) fn check(&self, read_w: &[f64]) -> Option<CounterCheck> {
        let intervals = self.intervals();
        let taken_s: f64 = intervals.iter().map(Interval::s).sum();
        if taken_s <= 0.0 {
            return None;
        }
        let counted_w = intervals.iter().map(|interval| interval.energy_j).sum::<f64>() / taken_s;
        let mean_s = taken_s / intervals.len() as f64;
        let Shown { whole, late, by_part } = self.shown(&intervals);
        let unexplained_w = |solution: &Solution| Some(solution.unexplained_j? / mean_s);
        let read: Spread = read_w.iter().copied().collect();
        Some(CounterCheck {
            counted_w,
            read_w: (read.count() > 0).then(|| read.mean()),
            read_error_w: read.error_of_mean(),
            values: intervals.len() as u32,
            unexplained_w: unexplained_w(late.as_ref().unwrap_or(&whole)),
            unexplained_by_part_w: by_part.as_ref().and_then(|(_, part)| unexplained_w(part)),
            part: by_part.map_or(0.0, |(part, _)| part.share),
        })
    }

    /// The time between values, where it is known what the GPU did.
    fn intervals(&self) -> Vec<Interval> {
        let interval = |pair: &[(u64, f64)]| {
            let [(began_ns, before_j), (ended_ns, after_j)] = *pair else { return None };
            let is_possible = began_ns < ended_ns && before_j <= after_j;
            is_possible.then_some(Interval { began_ns, ended_ns, energy_j: after_j - before_j })
        };
        let mut all: Vec<_> = self.values.windows(2).filter_map(interval).collect();
        let mut usual_s: Vec<_> = all.iter().map(Interval::s).collect();
        usual_s.sort_by(f64::total_cmp);
        let usual_s = usual_s.get(usual_s.len() / 2).copied().unwrap_or_default();
        all.retain(|interval| {
            let known_s: f64 = self.within(interval).map(|span| span.s()).sum();
            interval.s() <= FAR_APART * usual_s && known_s > 0.999 * interval.s()
        });
        all
    }

    /// What the work in these intervals says of the counter.
    fn shown(&self, intervals: &[Interval]) -> Shown {
        let mut kinds = BTreeMap::new();
        let mut looks = Looks::default();
        for interval in intervals {
            let within = self.within(interval).map(|span| {
                let next = kinds.len();
                let kind = *kinds.entry(span.work).or_insert(next);
                Piece { kind, began_ns: span.began_ns, ended_ns: span.ended_ns }
            });
            looks.add(within.collect(), interval.energy_j);
        }
        looks.solve()
    }

    /// What the GPU did in an interval.
    fn within(
        &self,
        &Interval { began_ns, ended_ns, .. }: &Interval,
    ) -> impl Iterator<Item = Span> {
        let first = self.spans.partition_point(|span| span.ended_ns <= began_ns);
        let spans = self.spans[first..].iter().take_while(move |span| span.began_ns < ended_ns);
        spans.map(move |span| Span {
            began_ns: span.began_ns.max(began_ns),
            ended_ns: span.ended_ns.min(ended_ns),
            work: span.work,
        })
    }
}

/// The time between two values.
#[derive(Clone, Copy, Debug)]
struct Interval {
    began_ns: u64,
    ended_ns: u64,
    energy_j: f64,
}

impl Interval {
    fn s(&self) -> f64 {
        self.ended_ns.saturating_sub(self.began_ns) as f64 / 1e9
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{CounterReading, ThrottledNs, Unit};

    use super::*;

    const MS: u64 = 1_000_000;

    /// A GPU that draws 300 W in instructions of 37 ms and 80 W in waits of 24 ms, and whose counter
    /// is refreshed every 100 ms and looks for a part of that time. Beside the GPU it counts
    /// `module_w`.
    fn counter(part: (f64, f64), module_w: f64) -> Counter {
        let power_w = |at_ms: u64| if at_ms % 61 < 37 { 300.0 } else { 80.0 };
        let mut counter = Counter::default();
        let mut energy_j = 0.0;
        let unit = Unit::new(Instruction::Forward, 0);
        for at_ms in 1..20_000u64 {
            let into = (at_ms % 100) as f64 / 100.0;
            if (part.1..part.1 + part.0).contains(&into) {
                energy_j += (power_w(at_ms) + module_w) / 1e3 / part.0;
            }
            let at_ns = at_ms * MS;
            if at_ms % 61 == 36 {
                let (began_ns, ended_ns) = (at_ns.saturating_sub(36 * MS), at_ns + MS);
                let (asked, locked, astray) = (None, None, false);
                counter.take(&TapRecord::Ran { unit, began_ns, ended_ns, asked, locked, astray });
            }
            if at_ms % 100 == 99 {
                counter.take(&TapRecord::Counter(CounterReading {
                    at_ns: at_ns + MS,
                    energy_j: Some(energy_j),
                    read_ns: at_ns,
                    sm_clock: None,
                    throttled_ns: ThrottledNs::default(),
                    throttle_reasons: 0,
                }));
            }
        }
        counter
    }

    fn unexplained(part: (f64, f64)) -> (f64, f64, f64) {
        let check = counter(part, 0.0).check(&[]).unwrap();
        (check.unexplained_w.unwrap(), check.unexplained_by_part_w.unwrap(), check.part)
    }

    #[test]
    fn what_a_gpu_did_at_all_times_explains_a_counter_that_always_looks() {
        let (all_w, part_w, _) = unexplained((1.0, 0.0));
        assert!(all_w < 3.0 && part_w > 10.0 * all_w, "{all_w} W, {part_w} W");
    }

    #[test]
    fn what_it_did_in_the_part_explains_a_counter_that_looks_in_that_part() {
        for part in [(0.25, 0.0), (0.25, 0.5), (0.5, 0.25)] {
            let (all_w, part_w, found) = unexplained(part);
            assert!(part_w < 0.2 * all_w, "{part:?}: {all_w} W, {part_w} W");
            assert_eq!(found, part.0);
        }
    }

    #[test]
    fn few_values_are_enough_where_there_are_few_kinds_of_work() {
        let least = 24 + 2;
        let mut few = counter((1.0, 0.0), 0.0);
        few.values.truncate(least + 1);
        assert!(few.check(&[]).unwrap().unexplained_w.is_some());
        few.values.truncate(least);
        assert_eq!(few.check(&[]).unwrap().unexplained_w, None);
    }

    #[test]
    fn the_power_counted_is_beside_the_power_read_with_its_error() {
        let check = counter((1.0, 0.0), 160.0).check(&[200.0, 220.0, 210.0]).unwrap();
        let truth_w = (300.0 * 37.0 + 80.0 * 24.0) / 61.0 + 160.0;
        assert!((check.counted_w - truth_w).abs() < 1.0, "{check:?}");
        assert_eq!(check.read_w, Some(210.0));
        assert!((check.read_error_w - 10.0 / 3f64.sqrt()).abs() < 1e-9, "{check:?}");
        assert!((190..200).contains(&check.values), "{check:?}");
    }

    #[test]
    fn a_pause_between_two_taps_is_no_work() {
        let mut broken = counter((1.0, 0.0), 0.0);
        let whole = broken.check(&[]).unwrap();
        broken.interrupt();
        let mut later = counter((1.0, 0.0), 0.0);
        let shift = |at_ns: u64| at_ns + 60_000 * MS;
        for span in &mut later.spans {
            (span.began_ns, span.ended_ns) = (shift(span.began_ns), shift(span.ended_ns));
        }
        broken.spans.extend(later.spans);
        broken.values.extend(later.values.iter().map(|(at, j)| (shift(*at), j + 1e6)));
        let both = broken.check(&[]).unwrap();
        assert_eq!(both.values, 2 * whole.values);
        assert!((both.counted_w - whole.counted_w).abs() < 1.0, "{both:?}");
    }

    #[test]
    fn a_counter_that_nothing_ran_beside_shows_nothing() {
        let mut idle = counter((1.0, 0.0), 0.0);
        idle.spans.clear();
        assert_eq!(idle.check(&[80.0]), None);
        assert_eq!(Counter::default().check(&[]), None);
    }
}
