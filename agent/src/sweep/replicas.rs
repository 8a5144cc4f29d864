//! Data-parallel replicas that measure different clocks at the same time, so that a sweep of D
//! replicas takes a D-th of the time. Pure.
//!
//! All of them measure one clock first, which shows by how much each GPU is slower than others of its
//! stage, or draws more: that is a factor at every clock. What a replica measures later is divided by its
//! factor, so that the rows of a stage fit together, whichever replica measured them.
//!
//! A step is over when the slowest replica has got there, and the others wait. Where they wait outside of
//! their instructions, that is in no figure. Where a framework adds gradients up while the last backward
//! runs, the backward of the faster replicas takes longer: the median of a step's backwards does not
//! show it, but their mean does, and then the clocks are measured one by one.

use std::collections::{BTreeMap, BTreeSet};

use pfo_protocol::{
    Chunk, DpRank, Instruction, JobView, MOST_CLOCKS, Mhz, RecordedRank, RecordedTrial, Stage,
    TpRank, TrialRank, TrialResult, TrialRun,
};

use crate::fleet::Members;
use crate::sweep::swept::{SweptClock, SweptRow};

/// With fewer microbatches, one backward that waits for other replicas is the median.
const FEWEST_MICROBATCHES: u32 = 3;

/// By how much more than those of the slowest replica the instructions of the others may scatter upwards,
/// as a share of their time.
const WAITING: f64 = 0.02;

/// By how much longer an instruction of fixed time may take before it counts as one that has waited, as
/// a share of its time.
const LONGER: f64 = 0.05;

/// A GPU whose clock is lower by more than this share than the one that was asked for says nothing about
/// its level.
const BELOW: f64 = 0.01;

/// Where a rank stands in its replica, and the model of its GPU.
type Place<'a> = (Stage, TpRank, &'a str);

/// How many replicas of a job can measure different clocks: those that are being measured, if all have
/// the same stages on the same models of GPU.
pub(crate) fn comparable(job: &JobView, members: &Members) -> u32 {
    let microbatches = job.ranks.iter().filter_map(|rank| rank.num_microbatches).min();
    let mut replicas: BTreeMap<DpRank, BTreeSet<Place<'_>>> = BTreeMap::new();
    for member in members.values() {
        for (place, model) in member.places.iter().zip(&member.gpus.models) {
            let of_replica = replicas.entry(place.dp).or_default();
            of_replica.insert((place.stage, place.tp, model.as_str()));
        }
    }
    let mut each = replicas.values();
    let first = each.next();
    let are_equal = each.all(|other| Some(other) == first);
    let numbers = || replicas.keys().map(|dp| dp.0);
    // Clocks are given to replicas in turn, by their numbers.
    let mut pairs = numbers().zip(numbers().skip(1));
    let are_in_a_row = pairs.all(|(one, next)| one.checked_add(1) == Some(next));
    if are_equal && are_in_a_row && microbatches >= Some(FEWEST_MICROBATCHES) {
        replicas.len() as u32
    } else {
        1
    }
}

/// What runs the clocks of a round, of which every replica has another one in every round.
pub(crate) fn run(round: &[Mhz], turn: usize) -> TrialRun {
    match round {
        [one] => TrialRun::Uniform(*one),
        round => TrialRun::Replicas(in_turn(round, turn)),
    }
}

fn in_turn(round: &[Mhz], turn: usize) -> Vec<Mhz> {
    let mut clocks = round.to_vec();
    clocks.rotate_left(turn.checked_rem(round.len()).unwrap_or(0));
    clocks
}

/// The clocks of a round, of those that are left: one for each replica, as long as no step is longer
/// than `limit_s` for sure. `last` is the clock that was measured last, and the time of its step.
pub(crate) fn round(left: &[Mhz], replicas: u32, last: (Mhz, f64), limit_s: Option<f64>) -> &[Mhz] {
    let (last_mhz, last_s) = last;
    let is_within = |clock: &Mhz| {
        let slowest_s = last_s * f64::from(last_mhz.0) / f64::from(clock.0);
        limit_s.is_none_or(|limit_s| slowest_s <= limit_s)
    };
    let most = (replicas as usize).clamp(1, MOST_CLOCKS);
    let count = left.iter().take(most).take_while(|clock| is_within(clock)).count();
    &left[..count.max(1).min(left.len())]
}

/// The part of a trial that ran at each clock of a round.
pub(crate) fn parts(round: &[Mhz], turn: usize, trial: &RecordedTrial) -> Vec<RecordedTrial> {
    let clocks = in_turn(round, turn);
    let clock_of =
        |rank: &TrialRank| clocks.get((rank.dp_rank.0 as usize).checked_rem(clocks.len())?);
    let part = |mhz: &Mhz| {
        let ran = trial.trial.ranks.iter().zip(&trial.ranks);
        let own = ran.filter(|(rank, _)| clock_of(rank) == Some(mhz));
        let (ranks, recorded) = own.map(|(rank, of_rank)| (rank.clone(), of_rank.clone())).unzip();
        let trial = TrialResult { ranks, ..trial.trial.clone() };
        RecordedTrial { trial, ranks: recorded }
    };
    round.iter().map(part).collect()
}

/// Whether the replicas at higher clocks have waited for the slowest one inside of instructions. Parts
/// are from the highest clock down.
pub(crate) fn have_waited(parts: &[RecordedTrial]) -> bool {
    let Some((slowest, others)) = parts.split_last() else { return false };
    let usual = scatter(&slowest.ranks);
    others.iter().any(|part| scatter(&part.ranks) > usual + WAITING)
}

/// The mean time of instructions over their median.
fn scatter(ranks: &[RecordedRank]) -> f64 {
    let rows = ranks.iter().flat_map(|rank| &rank.rows);
    let free = rows.filter(|row| !row.instruction.is_fixed() && row.count > 0);
    let (mean_s, median_s) = free.fold((0.0, 0.0), |(mean_s, median_s), row| {
        let count = row.count as f64;
        (mean_s + count * row.time_mean_s, median_s + count * row.time_median_s)
    });
    if median_s > 0.0 { mean_s / median_s } else { 1.0 }
}

/// The step times of a round's clocks, from the one before it and that of the round, which is as long as
/// its lowest clock makes it: the rest of a step's time is as long as it is, and the other part as much
/// longer as its clock is lower.
pub(crate) fn step_times(round: &[Mhz], step_s: f64, before: (Mhz, f64)) -> Vec<f64> {
    let period = |clock: Mhz| 1.0 / f64::from(clock.0);
    let (before_mhz, before_s) = before;
    let Some(lowest) = round.last() else { return Vec::new() };
    let share = |clock: &Mhz| {
        (period(*clock) - period(before_mhz)) / (period(*lowest) - period(before_mhz))
    };
    let time = |clock: &Mhz| match clock {
        clock if clock == lowest => step_s,
        clock => before_s + (step_s - before_s) * share(clock),
    };
    round.iter().map(time).collect()
}

/// Which instructions of a stage.
type Kind = (Stage, TpRank, Instruction, Chunk);

/// By which factors GPUs differ from the mean of their stage, in time and in energy.
pub(crate) struct Levels {
    means: BTreeMap<Kind, (f64, f64)>,
    of_ranks: BTreeMap<(Kind, DpRank), (f64, f64)>,
}

impl Levels {
    /// The levels that one clock shows. None if a replica has not measured it, or a GPU did not hold it.
    pub(crate) fn of(clock: &SweptClock, replicas: u32) -> Option<Self> {
        let mut of_ranks = BTreeMap::new();
        let mut sums: BTreeMap<Kind, (f64, f64, u32)> = BTreeMap::new();
        for row in &clock.rows {
            let is_held = |observed: f64| observed >= f64::from(clock.mhz.0) * (1.0 - BELOW);
            if !row.instruction.is_fixed() && !row.observed_mhz.is_none_or(is_held) {
                return None;
            }
            of_ranks.insert((kind(row), row.dp_rank), (row.time_s, row.energy_j));
            let (time_s, energy_j, count) = sums.entry(kind(row)).or_default();
            (*time_s, *energy_j) = (*time_s + row.time_s, *energy_j + row.energy_j);
            *count = count.saturating_add(1);
        }
        let is_whole = |(kind, (.., count)): (&Kind, &(f64, f64, u32))| {
            *count == replicas || kind.2.is_fixed()
        };
        if sums.is_empty() || !sums.iter().all(is_whole) {
            return None;
        }
        let mean = |(kind, (time_s, energy_j, count))| {
            let count = f64::from(count);
            (kind, (time_s / count, energy_j / count))
        };
        Some(Self { means: sums.into_iter().map(mean).collect(), of_ranks })
    }

    /// What the mean of all replicas would have measured at a clock that some of them have. An
    /// instruction of fixed time that took longer than beside no other clock has waited, and is left out.
    pub(crate) fn level(&self, mut clock: SweptClock) -> SweptClock {
        clock.rows.retain_mut(|row| {
            let kind = kind(row);
            let own = self.of_ranks.get(&(kind, row.dp_rank)).zip(self.means.get(&kind));
            let Some((&(own_s, own_j), &(mean_s, mean_j))) = own else { return true };
            if row.instruction.is_fixed() && row.time_s > own_s * (1.0 + LONGER) {
                return false;
            }
            let (times, energies) = (mean_s / own_s, mean_j / own_j);
            row.time_s *= times;
            row.time_sd_s *= times;
            row.energy_j *= energies;
            row.energy_sd_j = row.energy_sd_j.map(|sd| sd * energies);
            true
        });
        clock
    }
}

fn kind(row: &SweptRow) -> Kind {
    (row.stage, row.tp_rank, row.instruction, row.chunk)
}

#[cfg(test)]
pub(crate) mod tests {
    use pfo_protocol::{Rank, TrialRow};

    use super::*;
    use crate::steer::alone;
    use crate::straggler::tests::job as example_job;
    use crate::sweep::swept::tests::trial;

    const FORWARD: Instruction = Instruction::Forward;
    const ROUND: [Mhz; 2] = [Mhz(1200), Mhz(1000)];

    /// A step of two stages in replicas of which each takes so much of a forward's time and energy.
    pub(crate) fn of_replicas(factors: &[(f64, f64)]) -> RecordedTrial {
        let rows: Vec<_> = factors
            .iter()
            .flat_map(|(times, energies)| {
                [1.0, 2.0].map(|stage| [(FORWARD, stage * times, Some(10.0 * stage * energies))])
            })
            .collect();
        let rows: Vec<&[_]> = rows.iter().map(|rows| &rows[..]).collect();
        let mut trial = trial(3.0, &rows);
        for (number, rank) in trial.trial.ranks.iter_mut().enumerate() {
            (rank.stage, rank.dp_rank) = (Stage(number as u16 % 2), DpRank(number as u32 / 2));
        }
        for row in trial.ranks.iter_mut().flat_map(|rank| &mut rank.rows) {
            row.time_mean_s = row.time_median_s;
        }
        trial
    }

    fn job_of(replicas: u16) -> JobView {
        let mut job = example_job(2 * replicas);
        for (number, rank) in (0_u16..).zip(&mut job.ranks) {
            rank.num_microbatches = Some(4);
            rank.position.pp_rank = Stage(number % 2);
            rank.position.dp_rank = DpRank(u32::from(number / 2));
        }
        job
    }

    #[test]
    fn replicas_are_comparable_if_they_have_the_same_stages_on_the_same_gpus() {
        let mut job = job_of(3);
        assert_eq!(comparable(&job, &alone(&job)), 3);
        job.ranks[5].gpu_model = "another".into();
        assert_eq!(comparable(&job, &alone(&job)), 1);
        let mut job = job_of(3);
        job.ranks[5].position.dp_rank = DpRank(7);
        assert_eq!(comparable(&job, &alone(&job)), 1, "ranks of one are missing");
        let mut job = job_of(3);
        job.ranks.drain(2..4);
        assert_eq!(comparable(&job, &alone(&job)), 1, "0 and 2 would have the same clock of two");
        let mut job = job_of(2);
        job.ranks.iter_mut().for_each(|rank| rank.num_microbatches = Some(2));
        assert_eq!(comparable(&job, &alone(&job)), 1);
        job.ranks.clear();
        assert_eq!(comparable(&job, &alone(&job)), 1);
    }

    #[test]
    fn a_round_has_a_clock_for_each_replica_and_none_at_which_steps_may_be_too_long() {
        let left: Vec<_> = (0..20).map(|rung| Mhz(1200 - 10 * rung)).collect();
        let last = (Mhz(1210), 1.0);
        assert_eq!(round(&left, 1, last, None), [Mhz(1200)]);
        assert_eq!(round(&left, 4, last, None), [1200, 1190, 1180, 1170].map(Mhz));
        assert_eq!(round(&left, 99, last, None).len(), MOST_CLOCKS);
        assert_eq!(round(&left[..2], 4, last, None).len(), 2);
        assert_eq!(round(&left, 4, last, Some(1.02)), [1200, 1190].map(Mhz));
        assert_eq!(round(&left, 4, last, Some(0.5)), [Mhz(1200)], "it is the last one");
        assert!(round(&[], 4, last, None).is_empty());
    }

    #[test]
    fn every_replica_has_another_clock_in_the_next_round() {
        assert_eq!(run(&ROUND[..1], 3), TrialRun::Uniform(Mhz(1200)));
        assert_eq!(run(&ROUND, 0), TrialRun::Replicas(vec![Mhz(1200), Mhz(1000)]));
        assert_eq!(run(&ROUND, 1), TrialRun::Replicas(vec![Mhz(1000), Mhz(1200)]));
        let trial = of_replicas(&[(1.0, 1.0); 3]);
        let ranks = |part: &RecordedTrial| {
            assert_eq!(part.trial.ranks.len(), part.ranks.len());
            part.ranks.iter().map(|rank| rank.rank.0).collect::<Vec<_>>()
        };
        let of = |turn| parts(&ROUND, turn, &trial).iter().map(ranks).collect::<Vec<_>>();
        assert_eq!(of(0), [vec![0, 1, 4, 5], vec![2, 3]]);
        assert_eq!(of(1), [vec![2, 3], vec![0, 1, 4, 5]]);
    }

    #[test]
    fn what_gpus_of_several_levels_measure_continues_each_other() {
        let levels = [(1.0, 1.0), (1.05, 0.9)];
        let first = SweptClock::of(Mhz(1400), &of_replicas(&levels));
        let levels_of = Levels::of(&first, 2).unwrap();
        assert!(Levels::of(&first, 3).is_none(), "a replica is missing");
        // Each at its own clock: 10 and 20 % slower, 5 and 10 % less energy.
        let mixed = of_replicas(&[(1.1, 0.95), (1.2 * 1.05, 0.9 * 0.9)]);
        let parts = parts(&ROUND, 0, &mixed);
        let at = |index: usize| levels_of.level(SweptClock::of(ROUND[index], &parts[index]));
        for (index, (times, energies)) in [(1.1, 0.95), (1.2, 0.9)].into_iter().enumerate() {
            for row in at(index).rows {
                let stage = f64::from(row.stage.0) + 1.0;
                // The mean of both replicas at the first clock.
                let (time_s, energy_j) = (1.025 * stage * times, 9.5 * stage * energies);
                assert!((row.time_s - time_s).abs() < 1e-9, "{row:?}");
                assert!((row.energy_j - energy_j).abs() < 1e-9, "{row:?}");
            }
        }
    }

    #[test]
    fn a_clock_that_a_gpu_does_not_hold_shows_no_level() {
        let mut trial = of_replicas(&[(1.0, 1.0); 2]);
        trial.ranks[1].rows[0].observed_mhz = Some(1395.0);
        assert!(Levels::of(&SweptClock::of(Mhz(1400), &trial), 2).is_some());
        trial.ranks[1].rows[0].observed_mhz = Some(1300.0);
        assert!(Levels::of(&SweptClock::of(Mhz(1400), &trial), 2).is_none());
    }

    #[test]
    fn an_optimizer_step_that_waits_for_another_replica_is_left_out() {
        let step = Instruction::OptimizerStep;
        let with = |time_s: f64| {
            let mut trial = of_replicas(&[(1.0, 1.0); 2]);
            for rank in &mut trial.ranks {
                let fixed = TrialRow { instruction: step, ..rank.rows[0].clone() };
                rank.rows.push(TrialRow { time_median_s: time_s, ..fixed });
            }
            SweptClock::of(Mhz(1400), &trial)
        };
        let levels = Levels::of(&with(0.1), 2).unwrap();
        let kept = |time_s| {
            let rows = levels.level(with(time_s)).rows;
            rows.iter().filter(|row| row.instruction == step).count()
        };
        assert_eq!((kept(0.101), kept(0.12)), (4, 0));
    }

    #[test]
    fn waits_inside_of_instructions_show_where_the_clocks_are_higher() {
        let mut mixed = of_replicas(&[(1.0, 1.0); 2]);
        assert!(!have_waited(&parts(&ROUND, 0, &mixed)));
        let last = |mixed: &mut RecordedTrial, rank: usize| {
            mixed.ranks[rank].rows[0].time_mean_s *= 1.1;
        };
        last(&mut mixed, 2);
        assert_eq!(mixed.ranks[2].rank, Rank(2));
        assert!(!have_waited(&parts(&ROUND, 0, &mixed)), "the slowest one has waited for none");
        assert!(have_waited(&parts(&ROUND, 1, &mixed)));
        last(&mut mixed, 0);
        assert!(!have_waited(&parts(&ROUND, 1, &mixed)), "all are held up alike");
    }

    #[test]
    fn steps_of_a_round_are_as_long_as_its_lowest_clock_makes_them() {
        let times = step_times(&[Mhz(1000), Mhz(800)], 1.5, (Mhz(1000), 1.25));
        assert_eq!(times, [1.25, 1.5]);
        assert_eq!(step_times(&[Mhz(800)], 1.5, (Mhz(800), 1.25)), [1.5]);
        let between = step_times(&[Mhz(1000), Mhz(800)], 1.5, (Mhz(1200), 1.0));
        assert!(between[0] > 1.0 && between[0] < 1.5 && (between[1] - 1.5).abs() < 1e-12);
    }
}
