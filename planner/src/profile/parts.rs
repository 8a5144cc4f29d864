//! Parts of a step that were measured apart: model chunks, and microbatches.
//!
//! The rows of a profile are those of all parts, averaged. A part has rows of its own beside them where
//! at least two were measured: the last chunk of the last stage has the head of the model, and the
//! backward of the last microbatch may overlap with a collective.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use pfo_vocabulary::{Chunk, Instruction, Mhz, Microbatch, Stage};

use crate::limits;
use crate::profile::Profile;
use crate::profile::combine::{Lines, combined};
use crate::profile::error::ProfileError;
use crate::profile::measurement::Measurement;

/// A part of a step: instructions of a model chunk, of a microbatch, or of both. All of them where
/// neither is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Part {
    /// The model chunk.
    pub chunk: Option<Chunk>,
    /// The microbatch.
    pub microbatch: Option<Microbatch>,
}

impl Part {
    /// What belongs to both.
    pub fn of(chunk: Chunk, microbatch: Microbatch) -> Self {
        Self { chunk: Some(chunk), microbatch: Some(microbatch) }
    }

    /// The parts that this one lies in, itself included, beginning with the smallest.
    fn around(self) -> [Self; 4] {
        let Self { chunk, microbatch } = self;
        let part = |chunk, microbatch| Self { chunk, microbatch };
        [self, part(chunk, None), part(None, microbatch), part(None, None)]
    }

    pub(crate) fn is_possible(self) -> bool {
        let chunk = self.chunk.is_none_or(|chunk| chunk.0 < Chunk::MAX_CHUNKS);
        let microbatch = self.microbatch.is_none_or(|of| of.0 < limits::MICROBATCHES);
        self != Self::default() && chunk && microbatch
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let chunk = self.chunk.map(|chunk| format!("chunk {chunk}"));
        let microbatch = self.microbatch.map(|microbatch| format!("microbatch {microbatch}"));
        let both: Vec<String> = chunk.into_iter().chain(microbatch).collect();
        f.write_str(&if both.is_empty() { "no part".to_owned() } else { both.join(", ") })
    }
}

impl Profile {
    /// The rows of an instruction of a part of the step by rising clock: those of the smallest part
    /// around it that was measured apart, else those of [`Profile::table`].
    pub fn part_table(&self, stage: Stage, instruction: Instruction, part: Part) -> &[Measurement] {
        self.measured_for(stage, instruction, part).1.table(stage, instruction)
    }

    /// Time and energy of an instruction of a part of the step at a clock, as [`Profile::at`] has
    /// them for all parts.
    pub fn part_at(
        &self,
        stage: Stage,
        instruction: Instruction,
        part: Part,
        clock: Mhz,
    ) -> Option<Measurement> {
        self.measured_for(stage, instruction, part).1.at(stage, instruction, clock)
    }

    /// The part whose rows count for an instruction.
    pub(crate) fn part_of(&self, stage: Stage, instruction: Instruction, part: Part) -> Part {
        self.measured_for(stage, instruction, part).0
    }

    /// The parts that were measured apart; none, or at least two.
    pub fn parts(&self) -> impl ExactSizeIterator<Item = Part> {
        self.parts.keys().copied()
    }

    /// What was measured for each of them.
    pub(crate) fn by_part(&self) -> &BTreeMap<Part, Self> {
        &self.parts
    }

    /// The parts with their rows.
    pub(super) fn parts_measured(&self) -> impl Iterator<Item = (Part, &Self)> {
        self.parts.iter().map(|(&part, own)| (part, own))
    }

    /// Whether a smaller part than this one has rows of an instruction.
    pub(super) fn has_smaller(&self, part: Part, stage: Stage, instruction: Instruction) -> bool {
        let is_within =
            |&(smaller, _): &(Part, &Self)| smaller != part && smaller.around().contains(&part);
        let mut within = self.parts_measured().filter(is_within);
        within.any(|(_, own)| !own.table(stage, instruction).is_empty())
    }

    /// The number of rows, those of parts included.
    pub fn num_rows(&self) -> usize {
        self.with_those_of_parts().map(|profile| profile.rows().count()).sum()
    }

    /// The number of rows that were measured more than once, those of parts included.
    pub fn num_repeated(&self) -> usize {
        self.with_those_of_parts().map(|profile| profile.repeated().len()).sum()
    }

    /// The profile of stages that run these model chunks: a stage that is a single one runs what was
    /// measured for all.
    pub(crate) fn run_as(&self, mut chunks: impl Iterator<Item = Chunk>) -> Cow<'_, Self> {
        let has_chunks = self.parts.keys().any(|part| part.chunk.is_some());
        match !has_chunks || chunks.any(|chunk| !chunk.is_first()) {
            true => Cow::Borrowed(self),
            false => Cow::Owned(self.without_chunks()),
        }
    }

    fn without_chunks(&self) -> Self {
        let mut without = self.clone();
        without.parts.retain(|part, _| part.chunk.is_none());
        without
    }

    /// This profile, and that of each part, which lacks what was not measured for it.
    pub(crate) fn with_those_of_parts(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.parts.values())
    }

    /// The profile of each part, changed.
    pub(crate) fn each_part(&self, change: impl FnMut(&Self) -> Self) -> BTreeMap<Part, Self> {
        self.parts.keys().copied().zip(self.parts.values().map(change)).collect()
    }

    /// The same with these profiles of parts.
    pub(crate) fn with_parts(self, parts: BTreeMap<Part, Self>) -> Self {
        Self { parts, ..self }
    }

    fn measured_for(&self, stage: Stage, instruction: Instruction, part: Part) -> (Part, &Self) {
        if self.parts.is_empty() {
            return (Part::default(), self);
        }
        let measured =
            part.around().into_iter().filter_map(|part| Some((part, self.parts.get(&part)?)));
        let mut of_it = measured.filter(|(_, own)| !own.table(stage, instruction).is_empty());
        of_it.next().unwrap_or((Part::default(), self))
    }
}

/// The profile of each part that lines name, if they name more than one chunk or microbatch.
///
/// # Errors
/// Those of [`combined`], and if there are too many parts.
pub(super) fn of_parts(
    tables: &BTreeMap<(Stage, Instruction), Lines>,
) -> Result<BTreeMap<Part, Profile>, ProfileError> {
    let measurers = || tables.values().flat_map(BTreeMap::values).flat_map(BTreeMap::keys);
    let chunks: BTreeSet<Chunk> = measurers().filter_map(|who| who.chunk).collect();
    let has_chunks = chunks.len() > 1;
    let mut parts = BTreeSet::new();
    for who in measurers() {
        let chunk = who.chunk.filter(|_| has_chunks);
        parts.extend([Part { chunk, microbatch: None }, Part { chunk, ..who.part() }]);
    }
    parts.remove(&Part::default());
    let num_stages = tables.keys().map(|(stage, _)| stage.index() + 1).max().unwrap_or(0);
    if parts.len() * num_stages > limits::PARTS {
        return Err(ProfileError::TooManyParts { parts: parts.len(), stages: num_stages });
    }
    let profile = |part: Part| {
        let is_of = |who: &Part| {
            let chunk = part.chunk.is_none() || part.chunk == who.chunk;
            chunk && (part.microbatch.is_none() || part.microbatch == who.microbatch)
        };
        let lines = |table: &Lines| -> Lines {
            let own = table.iter().map(|(&clock, lines)| {
                let own = lines.iter().filter(|(who, _)| is_of(&who.part()));
                (clock, own.map(|(who, lines)| (who.clone(), lines.clone())).collect())
            });
            own.filter(|(_, lines): &(Mhz, BTreeMap<_, _>)| !lines.is_empty()).collect()
        };
        let own: BTreeMap<_, _> = tables.iter().map(|(&of, table)| (of, lines(table))).collect();
        Ok((part, Profile::of_part(&combined(&own)?)))
    };
    parts.into_iter().map(profile).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frontier::Frontier;
    use crate::frontier::deadline::Deadline;
    use crate::frontier::due::Due;
    use crate::frontier::optimize::Options;
    use crate::frontier::replan::{Condition, Conditions};
    use crate::noise::Noise;
    use crate::pipeline::Pipeline;
    use crate::relaxation::bound::LowerBound;
    use crate::replay::replay;
    use crate::schedule::name::Schedule;
    use pfo_vocabulary::Watts;

    /// Two stages of two chunks; the last one of all takes half as long again.
    fn csv() -> String {
        let mut csv = "stage,chunk,instruction,frequency,time,energy\n".to_owned();
        for (stage, chunk) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            let work = if (stage, chunk) == (1, 1) { 1.5 } else { 1.0 };
            for (instruction, base_s) in [("forward", 0.05), ("backward", 0.1)] {
                for (mhz, slower, power_w) in
                    [(1410, 1.0, 400.0), (1200, 1.12, 320.0), (1005, 1.3, 260.0)]
                {
                    let time_s = work * base_s * slower;
                    let energy_j = power_w * time_s;
                    csv += &format!("{stage},{chunk},{instruction},{mhz},{time_s},{energy_j}\n");
                }
            }
        }
        csv
    }

    fn profile() -> Profile {
        Profile::from_csv(csv().as_bytes()).unwrap()
    }

    fn of_chunk(chunk: Chunk) -> Part {
        Part { chunk: Some(chunk), microbatch: None }
    }

    fn time_s(profile: &Profile, stage: u16, chunk: u16) -> f64 {
        let at = (Stage(stage), Instruction::Forward, Chunk(chunk));
        profile.part_at(at.0, at.1, of_chunk(at.2), Mhz(1410)).unwrap().time_s
    }

    fn pipeline(profile: &Profile) -> Pipeline {
        Pipeline::new(profile, Schedule::Interleaved, 8).unwrap()
    }

    fn frontier(profile: &Profile) -> Frontier {
        let options = Options { plans: 30, ..Options::default() };
        Frontier::optimize(&pipeline(profile), Watts(80.0), options, &|_| {}).unwrap()
    }

    #[test]
    fn each_chunk_has_its_rows_and_the_stage_their_mean() {
        let profile = profile();
        assert_eq!(time_s(&profile, 1, 0), 0.05);
        assert!((time_s(&profile, 1, 1) - 0.075).abs() < 1e-12);
        let mean = profile.at(Stage(1), Instruction::Forward, Mhz(1410)).unwrap();
        assert!((mean.time_s - 0.0625).abs() < 1e-12);
        assert_eq!(time_s(&profile, 1, 2), mean.time_s, "what was not measured is like the others");
        assert_eq!(profile.num_rows(), 12 + 24);
        let of_one = "stage,chunk,instruction,frequency,time,energy\n0,0,forward,1410,0.5,90\n";
        let of_one = Profile::from_csv(of_one.as_bytes()).unwrap();
        assert_eq!((of_one.parts().len(), of_one.num_rows()), (0, 1));
    }

    #[test]
    fn a_step_takes_what_its_chunks_take() {
        let profile = profile();
        let frontier = frontier(&profile);
        let fastest_s = frontier.seconds(Deadline::Fastest);
        let averaged_s = frontier_of_mean(&profile).seconds(Deadline::Fastest);
        // The last stage: sixteen instructions of each chunk, one of which is heavy.
        assert!(fastest_s > averaged_s, "{fastest_s} {averaged_s}");
        let plan = frontier.plan_for(Due::AtMost(1.03 * fastest_s)).unwrap();
        let replayed = replay(&profile, &plan, Watts(80.0)).unwrap();
        assert_eq!(plan.predicted, Some(replayed.into()));
        let bound = LowerBound::new(&pipeline(&profile), Watts(80.0));
        let least_j = bound.energy_j(replayed.iteration_time_s);
        assert!(replayed.iteration_energy_j >= least_j - 1e-6);
        assert!(replayed.iteration_energy_j < 1.02 * least_j);
        assert!(fastest_s >= bound.fastest_s());
    }

    fn frontier_of_mean(profile: &Profile) -> Frontier {
        frontier(&profile.without_chunks())
    }

    #[test]
    fn plans_that_know_the_chunks_take_less_energy_than_those_that_do_not() {
        let profile = profile();
        let blind = frontier_of_mean(&profile);
        let due = Due::AtMost(1.02 * blind.seconds(Deadline::Fastest));
        let blind = blind.plan_for(due).unwrap();
        let claimed_s = blind.predicted.unwrap().iteration_time_s;
        let blind = replay(&profile, &blind, Watts(80.0)).unwrap();
        let due = Due::AtMost(blind.iteration_time_s);
        let plan = frontier(&profile).plan_for(due).unwrap().predicted.unwrap();
        assert!(claimed_s < 0.99 * blind.iteration_time_s);
        assert!(plan.iteration_energy_j < 0.995 * blind.iteration_energy_j, "{plan:?} {blind:?}");
    }

    #[test]
    fn a_schedule_without_chunks_runs_their_mean() {
        let profile = profile();
        let plain = |profile: &Profile| {
            let pipeline = Pipeline::new(profile, Schedule::OneForwardOneBackward, 4).unwrap();
            LowerBound::new(&pipeline, Watts(80.0)).fastest_s()
        };
        assert_eq!(plain(&profile), plain(&profile.without_chunks()));
        let pipeline = Pipeline::new(&profile, Schedule::OneForwardOneBackward, 4).unwrap();
        let frontier =
            Frontier::optimize(&pipeline, Watts(80.0), Options::default(), &|_| {}).unwrap();
        let plan = frontier.plan(7).unwrap();
        assert_eq!(plan.predicted, Some(replay(&profile, &plan, Watts(80.0)).unwrap().into()));
    }

    #[test]
    fn files_keep_the_chunks() {
        let profile = profile();
        let read = Profile::from_csv(profile.to_csv().as_bytes()).unwrap();
        assert!(profile.parts.iter().eq(&read.parts));
        let frontier = frontier(&profile);
        let read = Frontier::from_bytes(&frontier.to_bytes().unwrap()).unwrap();
        assert_eq!(*read.pipeline().profile(), profile);
        let due = Due::AtMost(1.05 * frontier.seconds(Deadline::Fastest));
        assert_eq!(read.plan_for(due).unwrap(), frontier.plan_for(due).unwrap());
    }

    #[test]
    fn what_is_slow_now_and_what_is_noise_is_so_for_every_chunk() {
        let slow = (Stage(1), Instruction::Forward);
        let conditions = Conditions::from([(slow, Condition::Slowed(1.2))]);
        let now = profile().under(&conditions).unwrap();
        assert!((time_s(&now, 1, 1) - 0.09).abs() < 1e-12);
        assert_eq!(time_s(&now, 0, 1), 0.05);
        let bent = csv().replace("1,1,forward,1200,0.084", "1,1,forward,1200,0.074");
        assert_ne!(bent, csv());
        let bent = Profile::from_csv(bent.as_bytes()).unwrap();
        let smooth = Noise::Isotonic.treat(&bent).profile;
        let at = |mhz| {
            smooth
                .part_at(Stage(1), Instruction::Forward, of_chunk(Chunk(1)), Mhz(mhz))
                .unwrap()
                .time_s
        };
        assert!(at(1200) >= at(1410));
    }

    #[test]
    fn a_chunk_that_cannot_be_is_refused_with_its_line() {
        let message = Profile::from_csv(csv().replace("\n1,1,", "\n1,64,").as_bytes());
        let message = message.unwrap_err().to_string();
        assert!(message.contains("chunk") && message.contains("64"), "{message}");
    }
}
