//! PyTorch's order: a CSV with a row for each rank and its actions, first to last.
//!
//! `2F0` is the forward of microbatch 0 on stage 2, `B` a backward, `I` and `W` its halves. Here and in
//! pfo's words PyTorch's stage is a virtual one: those of a rank are the chunks of pfo's stage.
//! `(0F4;7B0)OVERLAP_F_B` is a forward and a backward at the same time. Communication, which follows
//! from the rest, is passed over, as empty fields are.

use pfo_vocabulary::{Chunk, Instruction, Microbatch, Unit};

use crate::error::PlanError;
use crate::excerpt::excerpt;
use crate::limits;
use crate::step::order::Order;
use crate::step::order_file::{Entry, checked, refused};
use crate::step::overlap::OverlappedForward;
use crate::step::placement::Placement;

/// Actions that move data or shards, and compute nothing.
const COMMUNICATION: [&str; 10] = [
    "SEND_F",
    "RECV_F",
    "SEND_B",
    "RECV_B",
    "UNSHARD",
    "RESHARD",
    "REDUCE_GRAD",
    "WAIT_REDUCE_GRAD",
    "WAIT_SEND_F",
    "WAIT_SEND_B",
];

const BOTH: &str = "OVERLAP_F_B";

/// One action: a computation on a virtual stage, or two of them that overlap.
#[derive(Clone, Copy)]
struct Action {
    stage: u16,
    instruction: Instruction,
    microbatch: Microbatch,
    forward: Option<(u16, Microbatch)>,
}

/// Whether a text looks like such a file: its first action does.
pub(super) fn is_one(text: &str) -> bool {
    let fields = text.split([',', '\n']).map(|field| field.trim().trim_matches('"'));
    let first = fields.into_iter().find(|field| !field.is_empty());
    first.is_some_and(|first| action(first).is_ok() || first.ends_with(BOTH))
}

pub(super) fn order(text: &str) -> Result<Order, PlanError> {
    let mut reader = csv::ReaderBuilder::new();
    reader.has_headers(false).flexible(true).trim(csv::Trim::All);
    let mut ranks: Vec<Vec<Action>> = Vec::new();
    for record in reader.from_reader(text.as_bytes()).records() {
        let rank = ranks.len();
        let record = record.map_err(|error| refused(&format!("rank {rank}"), error.to_string()))?;
        let fields = record.iter().enumerate().filter(|(_, field)| !field.is_empty());
        let mut actions = Vec::new();
        for (place, field) in fields {
            let read = action(field).map_err(|problem| {
                refused(&format!("rank {rank}, column {}", place + 1), problem)
            })?;
            actions.extend(read);
        }
        ranks.push(actions);
    }
    let lying = Lying::of(&ranks)?;
    let stages: Vec<_> = ranks.iter().map(|actions| lying.entries(actions)).collect();
    checked(&stages, lying.placement, None)
}

/// What a field says; none for communication.
fn action(field: &str) -> Result<Option<Action>, String> {
    let wrong =
        || format!("\"{}\" is no action; one is such as 0F0, 1B3, 2I0, 3W0", excerpt(field));
    if let Some(pair) = field.strip_suffix(BOTH) {
        let pair = pair.strip_prefix('(').and_then(|pair| pair.strip_suffix(')'));
        let both: Vec<&str> = pair.ok_or_else(wrong)?.split(';').collect();
        let [one, other] = both[..] else { return Err(wrong()) };
        let (one, other) = (action(one)?.ok_or_else(wrong)?, action(other)?.ok_or_else(wrong)?);
        let (forward, backward) = match (one.instruction, other.instruction) {
            (Instruction::Forward, Instruction::Backward) => (one, other),
            (Instruction::Backward, Instruction::Forward) => (other, one),
            _ => return Err(format!("\"{}\" is no forward and backward", excerpt(field))),
        };
        return Ok(Some(Action {
            instruction: Instruction::ForwardBackward,
            forward: Some((forward.stage, forward.microbatch)),
            ..backward
        }));
    }
    let digits = field.len() - field.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (stage, rest) = field.split_at(digits);
    let microbatch_at = rest.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    let (kind, microbatch) = rest.split_at(microbatch_at);
    let stage: u16 = stage.parse().map_err(|_| wrong())?;
    let instruction = match kind {
        "F" => Instruction::Forward,
        "B" => Instruction::Backward,
        "I" => Instruction::BackwardInput,
        "W" => Instruction::BackwardWeight,
        kind if COMMUNICATION.contains(&kind) => return Ok(None),
        _ => return Err(wrong()),
    };
    let microbatch: u32 = microbatch.parse().map_err(|_| wrong())?;
    if microbatch >= limits::MICROBATCHES {
        return Err(format!("microbatch {microbatch}, but a step has at most 65536"));
    }
    let microbatch = Microbatch(microbatch);
    Ok(Some(Action { stage, instruction, microbatch, forward: None }))
}

/// Where the virtual stages lie.
struct Lying {
    /// For each virtual stage, which of its rank's it is.
    chunks: Vec<u16>,
    placement: Placement,
}

impl Lying {
    /// # Errors
    /// If they lie neither in a loop nor in a V.
    fn of(ranks: &[Vec<Action>]) -> Result<Self, PlanError> {
        let most = usize::from(limits::STAGES) * usize::from(Chunk::MAX_CHUNKS);
        let stages = |actions: &[Action]| {
            let both = actions
                .iter()
                .flat_map(|action| [Some(action.stage), action.forward.map(|(stage, _)| stage)]);
            let mut stages: Vec<u16> = both.flatten().collect();
            stages.sort_unstable();
            stages.dedup();
            stages
        };
        let by_rank: Vec<Vec<u16>> = ranks.iter().map(|actions| stages(actions)).collect();
        let count = by_rank.iter().map(Vec::len).sum::<usize>();
        let last = by_rank.iter().flatten().copied().max().unwrap_or(0);
        if count == 0 || count > most || usize::from(last) + 1 != count {
            let problem = format!(
                "{count} stages over all ranks, the last of which is {last}; each must be on one \
                 rank, counted from 0"
            );
            return Err(refused("the file", problem));
        }
        let num_ranks = ranks.len() as u16;
        let (mut chunks, mut is_loop, mut is_v) = (vec![0; count], true, true);
        for (rank, stages) in (0..num_ranks).zip(&by_rank) {
            for (chunk, &stage) in (0..).zip(stages) {
                chunks[usize::from(stage)] = chunk;
                is_loop &= stage == chunk * num_ranks + rank;
                let within = if chunk % 2 == 0 { rank } else { num_ranks - 1 - rank };
                is_v &= stage == chunk * num_ranks + within;
            }
        }
        let placement = match (is_loop, is_v) {
            (true, _) => Placement::Loop,
            (_, true) => Placement::V,
            _ => {
                let problem = "the stages lie on the ranks neither in a loop (0, 1, 0, 1) nor in a V \
                               (0, 1, 1, 0); write the order in pfo's format, with its dependencies";
                return Err(refused("the file", problem.to_owned()));
            }
        };
        Ok(Self { chunks, placement })
    }

    fn entries(&self, actions: &[Action]) -> Vec<Entry> {
        let chunk = |stage: u16| self.chunks[usize::from(stage)];
        let of = |action: &Action| {
            let Action { stage, instruction, microbatch, forward } = *action;
            let forward = forward.map(|(stage, microbatch)| OverlappedForward {
                microbatch,
                chunk: Chunk(chunk(stage)),
            });
            Entry::of(Unit { instruction, microbatch, chunk: Chunk(chunk(stage)) }, forward)
        };
        actions.iter().map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use crate::schedule::written::written_stages;
    use crate::step::order::Order;
    use crate::step::placement::Placement;

    fn read(csv: &str) -> Order {
        Order::from_file(csv.as_bytes()).unwrap_or_else(|error| panic!("{error}"))
    }

    fn refused(csv: &str) -> String {
        Order::from_file(csv.as_bytes()).unwrap_err().to_string()
    }

    #[test]
    fn computations_are_read_with_or_without_communication_and_bubbles() {
        let plain = read("0F0,0F1,,0B0,0B1\n,1F0,1B0,1F1,1B1\n");
        assert_eq!(written_stages(&plain), ["F0 F1 B0 B1", "F0 B0 F1 B1"]);
        let with_all = "0UNSHARD,0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1,0REDUCE_GRAD\n\
                        1UNSHARD,1RECV_F0,1F0,1B0,1SEND_B0,1F1,1B1,1RESHARD,1WAIT_SEND_B0\n";
        assert_eq!(read(with_all), plain);
        assert_eq!(read(&with_all.replace('\n', "\r\n")), plain);
    }

    #[test]
    fn the_stages_of_a_rank_are_its_chunks_in_a_loop_or_in_a_v() {
        let looped = read("0F0,2F0,2I0,2W0,0B0\n1F0,3F0,3B0,1B0\n");
        assert_eq!(looped.placement, Placement::Loop);
        assert_eq!(written_stages(&looped)[0], "F0 F0.1 B0.1 W0.1 B0");
        let v = read("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0\n");
        assert_eq!(v.placement, Placement::V);
    }

    #[test]
    fn an_overlapped_pair_is_one_instruction_with_the_microbatch_of_its_backward() {
        let pair = read("0F0,1F0,(0F1;1B0)OVERLAP_F_B,0B0,1F1,1B1,0B1\n");
        assert_eq!(written_stages(&pair)[0], "F0 F0.1 F1&B0.1 B0 F1.1 B1.1 B1");
        let order = written_stages(&read("0F0,1F0,(1B0;0F1)OVERLAP_F_B,0B0,1F1,1B1,0B1\n"));
        assert_eq!(order, written_stages(&pair));
    }

    #[test]
    fn what_is_no_such_order_is_refused_with_its_place() {
        for (csv, words) in [
            ("0F0,0X0\n", "rank 0, column 2"),
            ("0F0,0B0\n1F0,1B0,F1\n", "rank 1, column 3"),
            ("0F0,0B70000\n", "65536"),
            ("0F0,0B0\n2F0,2B0\n", "each must be on one rank"),
            ("0F0,0B0,1F0,1B0\n3F0,3B0,2F0,2B0,4F0,4B0\n", "neither in a loop"),
            ("0F0,0F0,0B0\n", "stage 0"),
            ("(0F0;0F1)OVERLAP_F_B\n", "no forward and backward"),
            ("(0F0)OVERLAP_F_B\n", "no action"),
            ("stage,instruction\n", "it is no order"),
            ("99999F0\n", "it is no order"),
            ("", "it is no order"),
        ] {
            let message = refused(csv);
            assert!(message.contains(words), "{csv:?}: {message}");
        }
    }
}
