//! Where the model's virtual stages lie: which stage and chunk comes before and after which.

use pfo_vocabulary::{Chunk, Stage};
use serde::{Deserialize, Serialize};

/// How the chunks of a model lie on the stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Every chunk leads from the first stage to the last, where the next one continues at the
    /// first.
    #[default]
    Loop,
    /// Chunk 0 leads from the first stage to the last, chunk 1 leads back to the first, and so on.
    V,
    /// Each chunk is a copy of the whole model: those of even number lead from the first stage to the
    /// last, the others from the last to the first. A microbatch runs on one of them.
    TwoWay,
}

impl Placement {
    pub(crate) const ALL: [Self; 3] = [Self::Loop, Self::V, Self::TwoWay];

    /// Whether every microbatch runs on every chunk.
    pub(crate) fn is_one_model(self) -> bool {
        self != Self::TwoWay
    }

    /// The virtual stage that a virtual stage has its input from.
    pub(crate) fn before(
        self,
        (stage, chunk): (Stage, Chunk),
        num_stages: u16,
    ) -> Option<(Stage, Chunk)> {
        let (first, _) = self.ends(chunk, num_stages);
        if stage != first {
            return Some((towards(stage, first), chunk));
        }
        let before = Chunk(chunk.0.checked_sub(1).filter(|_| self.is_one_model())?);
        Some((self.ends(before, num_stages).1, before))
    }

    /// The virtual stage that has its input from this one.
    pub(crate) fn after(
        self,
        (stage, chunk): (Stage, Chunk),
        num_stages: u16,
        num_chunks: u16,
    ) -> Option<(Stage, Chunk)> {
        let (_, last) = self.ends(chunk, num_stages);
        if stage != last {
            return Some((towards(stage, last), chunk));
        }
        let after = Chunk(chunk.0 + 1);
        (self.is_one_model() && after.0 < num_chunks)
            .then(|| (self.ends(after, num_stages).0, after))
    }

    /// The stages where a chunk begins and ends.
    fn ends(self, chunk: Chunk, num_stages: u16) -> (Stage, Stage) {
        let (top, bottom) = (Stage(0), Stage(num_stages - 1));
        match self {
            Self::V | Self::TwoWay if !chunk.0.is_multiple_of(2) => (bottom, top),
            _ => (top, bottom),
        }
    }
}

/// The stage next to one, on the way to another.
fn towards(stage: Stage, end: Stage) -> Stage {
    Stage(if stage < end { stage.0 + 1 } else { stage.0 - 1 })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn way(placement: Placement, num_stages: u16, num_chunks: u16) -> Vec<(u16, u16)> {
        let way: Vec<_> = std::iter::successors(Some((Stage(0), Chunk(0))), |&place| {
            placement.after(place, num_stages, num_chunks)
        })
        .collect();
        for pair in way.windows(2) {
            assert_eq!(placement.before(pair[1], num_stages), Some(pair[0]));
        }
        assert_eq!(placement.before(way[0], num_stages), None);
        way.into_iter().map(|(stage, chunk)| (stage.0, chunk.0)).collect()
    }

    #[test]
    fn a_loop_begins_every_chunk_at_the_first_stage() {
        assert_eq!(way(Placement::Loop, 2, 3), [(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]);
    }

    #[test]
    fn copies_of_a_model_end_where_the_others_begin() {
        assert_eq!(way(Placement::TwoWay, 3, 2), [(0, 0), (1, 0), (2, 0)]);
        let before = |stage| Placement::TwoWay.before((Stage(stage), Chunk(1)), 3);
        assert_eq!((before(2), before(1)), (None, Some((Stage(2), Chunk(1)))));
        let after = |stage| Placement::TwoWay.after((Stage(stage), Chunk(1)), 3, 2);
        assert_eq!((after(1), after(0)), (Some((Stage(0), Chunk(1))), None));
    }

    #[test]
    fn a_v_comes_back_the_way_it_went() {
        assert_eq!(way(Placement::V, 3, 2), [(0, 0), (1, 0), (2, 0), (2, 1), (1, 1), (0, 1)]);
        assert_eq!(way(Placement::V, 1, 2), [(0, 0), (0, 1)]);
    }
}
