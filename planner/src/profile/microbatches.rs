//! Whether microbatches differ.
//!
//! Most do not, and then what was measured for each is a repeat of the same. Those of an instruction
//! keep apart if one of them takes another time or power than all of them in the mean, by a share that
//! matters and that their scatter does not explain.

use std::collections::BTreeMap;

use pfo_vocabulary::Microbatch;

use crate::profile::combine::{Lines, Measurer};
use crate::profile::measurement::Measurement;
use crate::profile::quantity::Quantity;
use crate::profile::repeats::{Line, Repeated};

/// A smaller difference, as a share, is worth no clock of its own.
const MATTERS: f64 = 0.02;

/// In standard errors.
const FAR: f64 = 4.0;

/// Makes repeats of what was measured for different microbatches, unless they differ.
pub(super) fn pool_alike(table: &mut Lines) {
    if table.values().any(differ) {
        return;
    }
    for measurers in table.values_mut() {
        let mut pooled: BTreeMap<Measurer, Vec<Line>> = BTreeMap::new();
        for (who, mut lines) in std::mem::take(measurers) {
            let who = Measurer { microbatch: None, ..who };
            pooled.entry(who).or_default().append(&mut lines);
        }
        *measurers = pooled;
    }
}

/// Whether microbatches that were measured at a clock differ.
fn differ(measurers: &BTreeMap<Measurer, Vec<Line>>) -> bool {
    let mut by_microbatch: BTreeMap<Microbatch, Vec<Line>> = BTreeMap::new();
    for (who, lines) in measurers {
        let Some(microbatch) = who.microbatch else { continue };
        by_microbatch.entry(microbatch).or_default().extend(lines.iter().cloned());
    }
    let each: Vec<Repeated> = by_microbatch.values().map(|lines| Repeated::of(lines)).collect();
    let (Some(first), 2..) = (measurers.values().flatten().next(), each.len()) else {
        return false;
    };
    let row = |of: &Repeated| Measurement {
        frequency: first.measured.frequency,
        time_s: of.time.mean,
        energy_j: of.energy.mean,
    };
    let mean = row(&Repeated::mean(&each));
    each.iter().any(|of| {
        let (own, repeats) = (row(of), of.repeats());
        Quantity::BOTH.into_iter().any(|quantity| {
            let off = (quantity.of(&own) / quantity.of(&mean) - 1.0).abs();
            let error = quantity.scatter(&own, &repeats).unwrap_or(0.0);
            off > MATTERS && off > FAR * error / f64::from(of.count).sqrt()
        })
    })
}

#[cfg(test)]
mod tests {
    use pfo_vocabulary::{Chunk, Instruction, Mhz, Stage, Watts};

    use crate::frontier::Frontier;
    use crate::frontier::deadline::Deadline;
    use crate::frontier::due::Due;
    use crate::frontier::optimize::Options;
    use crate::pipeline::Pipeline;
    use crate::profile::Profile;
    use crate::profile::parts::Part;
    use crate::replay::replay;
    use crate::schedule::name::Schedule;

    const MICROBATCHES: u32 = 4;

    /// Two stages that ran four microbatches for three steps, the backward of whose last one takes this
    /// many times as long, with a scatter of this share.
    fn csv(last: f64, scatter: f64) -> String {
        let mut csv = "stage,microbatch,step,instruction,frequency,time,energy\n".to_owned();
        for stage in 0..2 {
            for (instruction, base_s) in [("forward", 0.05), ("backward", 0.1)] {
                for (mhz, slower, power_w) in
                    [(1410, 1.0, 400.0), (1200, 1.12, 320.0), (1005, 1.3, 260.0)]
                {
                    for microbatch in 0..MICROBATCHES {
                        let is_last = instruction == "backward" && microbatch == MICROBATCHES - 1;
                        let work = if is_last { last } else { 1.0 };
                        for step in 0..3 {
                            let noise = 1.0 + scatter * f64::from(step - 1 + microbatch as i32 % 2);
                            let time_s = work * base_s * slower * noise;
                            csv += &format!(
                                "{stage},{microbatch},{step},{instruction},{mhz},{time_s},{}\n",
                                power_w * time_s
                            );
                        }
                    }
                }
            }
        }
        csv
    }

    fn profile(last: f64, scatter: f64) -> Profile {
        Profile::from_csv(csv(last, scatter).as_bytes()).unwrap()
    }

    fn backward_s(profile: &Profile, microbatch: u32) -> f64 {
        let part = Part::of(Chunk(0), pfo_vocabulary::Microbatch(microbatch));
        profile.part_at(Stage(0), Instruction::Backward, part, Mhz(1410)).unwrap().time_s
    }

    fn frontier(profile: &Profile) -> Frontier {
        let schedule = Schedule::OneForwardOneBackward;
        let pipeline = Pipeline::new(profile, schedule, MICROBATCHES).unwrap();
        Frontier::optimize(&pipeline, Watts(80.0), Options::default(), &|_| {}).unwrap()
    }

    #[test]
    fn a_microbatch_that_takes_longer_has_rows_of_its_own_and_the_forwards_stay_repeats() {
        let profile = profile(1.4, 0.001);
        assert!((backward_s(&profile, 0) - 0.1).abs() < 1e-3);
        assert!((backward_s(&profile, 3) - 0.14).abs() < 1e-3);
        let mean = profile.at(Stage(0), Instruction::Backward, Mhz(1410)).unwrap().time_s;
        assert!((mean - 0.11).abs() < 1e-3, "{mean}");
        let of_forward = Part::of(Chunk(0), pfo_vocabulary::Microbatch(3));
        assert_eq!(profile.part_of(Stage(0), Instruction::Forward, of_forward), Part::default());
        let forward = profile.repeats(Stage(0), Instruction::Forward, Mhz(1410));
        assert_eq!(forward.count, 12);
        // A microbatch that nobody measured is like the others.
        assert_eq!(backward_s(&profile, 9), mean);
    }

    #[test]
    fn microbatches_that_only_scatter_are_repeats() {
        assert_eq!(profile(1.0, 0.001).parts().len(), 0);
        assert_eq!(profile(1.01, 0.0).parts().len(), 0, "too little to matter");
        assert_eq!(profile(1.06, 0.05).parts().len(), 0, "explained by the scatter");
        assert_eq!(profile(1.4, 0.05).parts().len(), 4);
    }

    #[test]
    fn plans_replays_and_files_know_each_microbatch() {
        let profile = profile(1.4, 0.001);
        let frontier = frontier(&profile);
        let fastest_s = frontier.seconds(Deadline::Fastest);
        // 1F1B of two stages: every instruction of the first, and one pass of the second.
        let expected_s = 4.0 * 0.05 + 3.0 * 0.1 + 0.14 + 0.05 + 0.1;
        assert!(fastest_s > expected_s - 0.01, "{fastest_s} {expected_s}");
        let plan = frontier.plan_for(Due::AtMost(1.05 * fastest_s)).unwrap();
        let replayed = replay(&profile, &plan, Watts(80.0)).unwrap();
        assert_eq!(plan.predicted, Some(replayed.into()));
        let read = Frontier::from_bytes(&frontier.to_bytes().unwrap()).unwrap();
        assert_eq!(*read.pipeline().profile(), profile);
        assert_eq!(read.plan_for(Due::AtMost(1.05 * fastest_s)).unwrap(), plan);
        let written = Profile::from_csv(profile.to_csv().as_bytes()).unwrap();
        assert!((backward_s(&written, 3) - backward_s(&profile, 3)).abs() < 1e-12);
        let kept = written.part_of(
            Stage(0),
            Instruction::Forward,
            Part::of(Chunk(0), pfo_vocabulary::Microbatch(3)),
        );
        assert_eq!(kept, Part::default());
    }

    #[test]
    fn the_mean_of_all_microbatches_promises_what_the_step_does_not_keep() {
        let apart = profile(1.4, 0.0);
        let averaged = csv(1.4, 0.0).replace("microbatch", "window");
        let averaged = Profile::from_csv(averaged.as_bytes()).unwrap();
        let blind = frontier(&averaged);
        let due = Due::AtMost(1.05 * blind.seconds(Deadline::Fastest));
        let blind = blind.plan_for(due).unwrap();
        let claimed = blind.predicted.unwrap();
        let real = replay(&apart, &blind, Watts(80.0)).unwrap();
        let ours = frontier(&apart).plan_for(Due::AtMost(real.iteration_time_s)).unwrap();
        let ours = ours.predicted.unwrap();
        assert!((claimed.iteration_time_s / real.iteration_time_s - 1.0).abs() > 1e-3);
        assert!(ours.iteration_energy_j <= real.iteration_energy_j);
    }
}
