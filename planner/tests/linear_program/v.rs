//! The places of instructions in schedules whose second chunk leads back to the first stage.

use pfo_planner::{Instruction, Schedule};

/// Before, and after, all rounds of a step. A round has 100 places.
const FAR: i64 = 1_000_000;

/// A microbatch on a stage.
#[derive(Clone, Copy)]
pub(super) struct V {
    pub(super) stage: i64,
    pub(super) num_stages: i64,
    pub(super) num_microbatches: i64,
    pub(super) microbatch: i64,
}

impl V {
    /// What DualPipe runs of a microbatch. A stage and its mirror image run DualPipeV of half as many
    /// stages; of a microbatch that comes from the other end, with the chunks exchanged.
    pub(super) fn places_both_ways(self) -> Vec<(Instruction, i64)> {
        let Self { stage, num_stages, num_microbatches, microbatch } = self;
        let each_way = num_microbatches / 2;
        let mirrored = num_stages - 1 - stage;
        let v = V {
            stage: stage.min(mirrored),
            num_stages: num_stages / 2,
            num_microbatches: each_way,
            microbatch: microbatch % each_way,
        };
        let goes_back = (microbatch / each_way == 1) == (stage < mirrored);
        v.places(Schedule::DualPipeV, i64::from(goes_back))
    }

    /// What a chunk runs, and where it comes among all that the stage runs.
    pub(super) fn places(self, schedule: Schedule, chunk: i64) -> Vec<(Instruction, i64)> {
        use Instruction::{Backward, BackwardInput, BackwardWeight, Forward};
        let (forward, backward, weight) = match (schedule, chunk) {
            (Schedule::ZbV, 0) => self.zb_v_down(),
            (Schedule::ZbV, _) => self.zb_v_up(),
            (_, 0) => self.dualpipe_v_down(),
            _ => self.dualpipe_v_up(),
        };
        match weight {
            Some(weight) => {
                vec![(Forward, forward), (BackwardInput, backward), (BackwardWeight, weight)]
            }
            None => vec![(Forward, forward), (Backward, backward)],
        }
    }

    /// A place in the round that this microbatch is in if an earlier one is in the first.
    fn round(self, first: i64, place: i64) -> i64 {
        100 * (self.microbatch - first) + place
    }

    /// The rounds of ZB-V in which both chunks run forwards and backwards.
    fn zb_v_rounds(self) -> i64 {
        self.num_microbatches.max(2 * self.num_stages - 1) - self.num_stages
    }

    fn zb_v_down(self) -> (i64, i64, Option<i64>) {
        let Self { stage, num_stages, microbatch, .. } = self;
        let forward = self.round(2 * num_stages - stage - 1, 0);
        let late = microbatch - self.zb_v_rounds();
        let weight = match late {
            ..0 => self.round(0, 20),
            _ if late < num_stages - stage => self.round(-stage, 20),
            _ => 2 * FAR + microbatch,
        };
        let forward = if forward < 0 { forward - FAR } else { forward };
        (forward, self.round(0, 10), Some(weight))
    }

    fn zb_v_up(self) -> (i64, i64, Option<i64>) {
        let Self { stage, num_stages, microbatch, .. } = self;
        // The first ones come just before forwards of the other chunk.
        let is_early = microbatch < stage;
        let forward =
            if is_early { self.round(stage, -50) - FAR } else { self.round(num_stages, 30) };
        let backward = self.round(num_stages - stage, 40);
        let is_late = backward > 100 * self.zb_v_rounds();
        (forward, backward, Some(if is_late { FAR + microbatch } else { backward + 10 }))
    }

    fn dualpipe_v_down(self) -> (i64, i64, Option<i64>) {
        let Self { stage, num_stages, num_microbatches, microbatch } = self;
        let warm = microbatch - 2 * (num_stages - stage - 1);
        let forward = match warm {
            ..0 => 100 * warm - 2 * FAR,
            _ if warm <= stage => 100 * warm - FAR,
            _ => 100 * (warm - stage - 1),
        };
        let late = microbatch - (num_microbatches - num_stages);
        let since = late - (stage + 1) / 2;
        let turn = if late > stage { late } else { 2 * since + stage % 2 };
        (forward, self.round(0, 30), (since >= 0).then(|| self.late_weight(turn)))
    }

    fn dualpipe_v_up(self) -> (i64, i64, Option<i64>) {
        let Self { stage, num_stages, num_microbatches, microbatch } = self;
        let below = num_stages - stage - 1;
        let forward = match microbatch - stage - 1 {
            ..0 => 100 * microbatch + 50 - FAR,
            early if early < below => 100 * (early - below) + 20,
            _ => self.round(num_stages, 20),
        };
        let backward = self.round(below, 10);
        if backward < 0 {
            return (forward, backward, Some(backward + 5));
        }
        let since = microbatch - below - (num_microbatches - num_stages) - (stage + 1) / 2;
        let turn = 2 * since - (1 - stage % 2);
        (forward, backward, (turn >= 0).then(|| self.late_weight(turn)))
    }

    /// The place of a weight gradient that waits for its turn: one in each round in which only the
    /// first chunk runs, the others at the end.
    fn late_weight(self, turn: i64) -> i64 {
        let Self { stage, num_stages, num_microbatches, .. } = self;
        if turn < num_stages - stage - 1 {
            100 * (num_microbatches - num_stages + stage + 1 + turn) + 25
        } else {
            FAR + turn
        }
    }
}
