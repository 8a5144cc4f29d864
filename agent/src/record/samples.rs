//! The instructions that a trial saw, one by one, until they are fetched.

use std::collections::VecDeque;

use pfo_protocol::{InstructionSample, Rank, SamplePage};

/// The most that one trial keeps; each rank has an equal share of it.
pub(crate) const MOST_SAMPLES: usize = 1 << 17;

/// Handed out at once: less than a megabyte on the wire.
const PAGE: usize = 1 << 13;

/// What is left to be fetched.
#[derive(Debug, Default)]
pub(crate) struct TrialSamples(VecDeque<RankSamples>);

#[derive(Debug)]
struct RankSamples {
    rank: Rank,
    samples: VecDeque<InstructionSample>,
    dropped: u64,
}

impl TrialSamples {
    /// Adds those of a rank, and how many more there were.
    pub(crate) fn add(&mut self, rank: Rank, samples: Vec<InstructionSample>, dropped: u64) {
        if !samples.is_empty() || dropped > 0 {
            self.0.push_back(RankSamples { rank, samples: samples.into(), dropped });
        }
    }

    /// Adds those of others.
    pub(crate) fn append(&mut self, mut others: Self) {
        self.0.append(&mut others.0);
    }

    /// Puts them in the order of their ranks.
    pub(crate) fn sort(&mut self) {
        self.0.make_contiguous().sort_by_key(|of_rank| of_rank.rank);
    }

    /// Takes out the next ones.
    pub(crate) fn next_page(&mut self) -> Option<SamplePage> {
        let RankSamples { rank, samples, dropped } = self.0.front_mut()?;
        let page = SamplePage {
            rank: *rank,
            samples: samples.drain(..PAGE.min(samples.len())).collect(),
            dropped: *dropped,
        };
        if samples.is_empty() {
            self.0.pop_front();
        }
        Some(page)
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::{AgentResponse, Chunk, DaemonMessage, Instruction, Mhz, Microbatch, Unit};

    use super::*;

    const UNIT: Unit =
        Unit { instruction: Instruction::Forward, chunk: Chunk(1), microbatch: Microbatch(2) };

    fn sample(step: u64) -> InstructionSample {
        InstructionSample {
            step,
            unit: UNIT,
            began_ns: 1,
            ended_ns: 2,
            mhz: Some(Mhz(3)),
            observed: Some((Mhz(4), 5)),
            throttle_reasons: 6,
            counter_j: Some(7.0),
            counter_refreshes: 8,
            left_out: Some(pfo_protocol::Doubt::Settling),
        }
    }

    #[test]
    fn every_instruction_is_handed_out_once_rank_by_rank_in_pages_that_fit_into_frames() {
        let mut samples = TrialSamples::default();
        samples.add(Rank(0), Vec::new(), 0);
        samples.add(Rank(1), (0..2 * PAGE as u64).map(sample).collect(), 5);
        samples.add(Rank(2), vec![sample(7)], 0);
        let pages: Vec<_> = std::iter::from_fn(|| samples.next_page()).collect();
        let short: Vec<_> = pages.iter().map(|p| (p.rank, p.samples.len(), p.dropped)).collect();
        assert_eq!(short, [(Rank(1), PAGE, 5), (Rank(1), PAGE, 5), (Rank(2), 1, 0)]);
        let steps = pages.iter().take(2).flat_map(|page| &page.samples).map(|sample| sample.step);
        assert!(steps.eq(0..2 * PAGE as u64));
        let frame = DaemonMessage::AgentResponse(AgentResponse::Samples(Some(pages[0].clone())));
        assert!(frame.to_frame().unwrap().len() < 1 << 20);
    }

    #[test]
    fn all_that_is_kept_takes_a_small_part_of_what_the_unit_allows() {
        assert!(MOST_SAMPLES * size_of::<InstructionSample>() <= 16 << 20);
    }
}
