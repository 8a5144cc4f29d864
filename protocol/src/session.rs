//! The opening and the end of a rank's session.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use pfo_vocabulary::{DpRank, GpuName, GpuUuid, JobName, Rank, SessionId, Stage, TpRank};

use crate::range::{OutOfRange, within};

/// The pipeline, data-parallel or tensor-parallel degree that a job may have.
const DEGREES: RangeInclusive<u32> = 1..=65_536;

/// The ranks that a job may have.
const MOST_RANKS: u64 = 1 << 20;

/// Where a rank stands in its job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RankPosition {
    /// The global rank.
    pub rank: Rank,
    /// The pipeline stage that the rank runs.
    pub pp_rank: Stage,
    /// The data-parallel rank.
    pub dp_rank: DpRank,
    /// The tensor-parallel rank.
    pub tp_rank: TpRank,
    /// The number of pipeline stages.
    pub pp_degree: u32,
    /// The number of data-parallel replicas.
    pub dp_degree: u32,
    /// The number of tensor-parallel shards.
    pub tp_degree: u32,
}

/// Numbers of a position that contradict each other, or that no job has.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum PositionError {
    /// A degree that no job has.
    #[error("{0}")]
    Degree(#[from] OutOfRange<u32>),
    /// The degrees multiply to more ranks than a job may have.
    #[error("the degrees pp, dp and tp make {0} ranks; a job has at most {MOST_RANKS}")]
    Ranks(u64),
    /// A rank that is not below the number of its kind.
    #[error("{which} is {value}, but there are only {number}")]
    Rank {
        /// `rank`, `pp_rank`, `dp_rank` or `tp_rank`.
        which: &'static str,
        /// The rank.
        value: u32,
        /// How many there are.
        number: u64,
    },
}

impl RankPosition {
    /// How many ranks the job has, on all nodes.
    #[must_use]
    pub fn ranks(&self) -> u64 {
        let degrees = [self.pp_degree, self.dp_degree, self.tp_degree];
        degrees.into_iter().map(u64::from).fold(1, u64::saturating_mul)
    }

    /// Checks the position: each degree is 1 to 65,536, together they make at most 2^20 ranks, and
    /// each rank is below the number of its kind.
    ///
    /// # Errors
    /// The first number that is wrong.
    pub fn check(&self) -> Result<(), PositionError> {
        let Self { pp_degree, dp_degree, tp_degree, .. } = *self;
        let degrees =
            [("pp_degree", pp_degree), ("dp_degree", dp_degree), ("tp_degree", tp_degree)];
        let mut ranks = 1u64;
        for (which, degree) in degrees {
            ranks = ranks.saturating_mul(within(which, degree, DEGREES)?.into());
        }
        if ranks > MOST_RANKS {
            return Err(PositionError::Ranks(ranks));
        }
        let checks = [
            ("rank", self.rank.0, ranks),
            ("pp_rank", self.pp_rank.into(), pp_degree.into()),
            ("dp_rank", self.dp_rank.0, dp_degree.into()),
            ("tp_rank", self.tp_rank.0, tp_degree.into()),
        ];
        match checks.into_iter().find(|(_, value, number)| u64::from(*value) >= *number) {
            Some((which, value, number)) => Err(PositionError::Rank { which, value, number }),
            None => Ok(()),
        }
    }
}

/// A rank asks for a session, and with it for the lease of its GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The client and its version, for status and logs.
    pub client: String,
    /// The job that the rank belongs to.
    pub job: JobName,
    /// Where the rank stands in it.
    pub position: RankPosition,
    /// The GPU that the rank drives.
    pub gpu: GpuName,
    /// The number of microbatches of a step, if the rank knows it.
    pub num_microbatches: Option<u32>,
    /// The number of the next step that the rank will begin.
    pub next_step: u64,
}

/// What comes between the name of a client and the run of the job, in [`Hello::client`].
const RUN: &str = " run=";

/// The longest name of a run, in bytes, and what it may have beside letters and digits.
const LONGEST_RUN: usize = 64;
const IN_RUN: &[u8] = b"._:+,=@%/-";

impl Hello {
    /// Which run of its job the rank belongs to, if its client says so. A job that was restarted has the
    /// same name.
    #[must_use]
    pub fn run(&self) -> Option<&str> {
        let (_, run) = self.client.rsplit_once(RUN)?;
        let fits = |letter: u8| letter.is_ascii_alphanumeric() || IN_RUN.contains(&letter);
        ((1..=LONGEST_RUN).contains(&run.len()) && run.bytes().all(fits)).then_some(run)
    }

    /// The name of a client of a rank that belongs to a run. What no name of a run has is replaced by
    /// `-`, and what is longer is cut off.
    #[must_use]
    pub fn client_in_run(client: &str, run: &str) -> String {
        let fits = |letter: &char| {
            letter.is_ascii_alphanumeric()
                || u8::try_from(*letter).is_ok_and(|l| IN_RUN.contains(&l))
        };
        let letter = |letter| if fits(&letter) { letter } else { '-' };
        let run: String = run.chars().map(letter).take(LONGEST_RUN).collect();
        format!("{client}{RUN}{run}")
    }
}

/// The session is open and holds the lease.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Welcome {
    /// The daemon and its version.
    pub daemon: String,
    /// The session's number, unique in the life of the daemon.
    pub session: SessionId,
    /// The leased GPU.
    pub gpu_uuid: GpuUuid,
    /// Its model.
    pub gpu_model: String,
    /// The longest silence that a session survives, in milliseconds. After a longer one the daemon
    /// restores the clocks and ends the session with [`ClosingReason::Idle`].
    pub idle_limit_ms: u64,
}

/// Why something was refused, in a form that programs can act on. The order is the number on the
/// wire and in the C API.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum RefusalCode {
    /// The frame is not a valid message, or a number in it is out of range.
    Malformed,
    /// The peer may not do this.
    NotAuthorized,
    /// No GPU of this node has that name.
    UnknownGpu,
    /// Another session holds the lease.
    GpuHeld,
    /// The GPU is split by MIG: its clocks belong to all of its instances.
    MigEnabled,
    /// The driver refuses to work with the GPU.
    GpuUnavailable,
    /// The NVIDIA driver is not loaded or cannot be used.
    DriverUnavailable,
    /// A limit of the daemon is reached.
    LimitReached,
    /// The job already has a session of that rank, or the rank contradicts the others.
    RankConflict,
    /// The daemon knows no such job.
    UnknownJob,
    /// The plan is invalid or does not fit the job.
    PlanDoesNotFit,
    /// There is nothing to swap to.
    NoPlan,
    /// The daemon is shutting down. From the agent, also: what it relies on does not answer.
    ShuttingDown,
    /// The daemon failed where it should not have.
    Internal,
    /// The peer has no process on the GPU, and the administrator requires one.
    NoProcess,
    /// The lease was revoked and the revocation still stands.
    Revoked,
    /// The driver does not do what a trial asks of it. From the agent alone, and never to a session.
    NotInForce,
}

/// A refusal: what is wrong, with the value, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}{}{remedy}", if .remedy.is_empty() { "" } else { "; " })]
pub struct Refusal {
    /// For programs.
    pub code: RefusalCode,
    /// What was wrong.
    pub message: String,
    /// What to do about it; empty if there is nothing to do.
    pub remedy: String,
}

impl Refusal {
    /// A refusal with its message and remedy.
    #[must_use]
    pub fn new(code: RefusalCode, message: impl Into<String>, remedy: impl Into<String>) -> Self {
        let short = |text: String| match text.floor_char_boundary(1024) {
            end if end < text.len() => format!("{}…", &text[..end]),
            _ => text,
        };
        // Both texts fit into a refusal's frame, whatever the values they name.
        Self { code, message: short(message.into()), remedy: short(remedy.into()) }
    }
}

/// Why the daemon ends a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ClosingReason {
    /// No event arrived within the idle limit. The rank may connect again with its next event.
    Idle,
    /// The daemon is shutting down; the rank may connect again later.
    ShuttingDown,
    /// The rank sent something that is not a frame of this protocol.
    Malformed,
    /// An administrator or the user ended the session.
    Revoked,
    /// The GPU stopped answering.
    GpuLost,
}

/// The daemon ends a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Closing {
    /// For programs.
    pub reason: ClosingReason,
    /// For people.
    pub message: String,
}

/// The answer to a frame of an unknown version. Its layout never changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsupported {
    /// The oldest version that the sender speaks.
    pub oldest: u16,
    /// The newest version that the sender speaks.
    pub newest: u16,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frame::{Frame, Kind};
    use crate::message::{ClientMessage, DaemonMessage};

    fn hello() -> Hello {
        Hello {
            client: "t".into(),
            job: "j1".parse().unwrap(),
            position: RankPosition {
                rank: Rank(1),
                pp_rank: Stage(1),
                dp_rank: DpRank(0),
                tp_rank: TpRank(0),
                pp_degree: 4,
                dp_degree: 1,
                tp_degree: 1,
            },
            gpu: "GPU-a".parse().unwrap(),
            num_microbatches: Some(8),
            next_step: 5,
        }
    }

    fn read(frame: &[u8]) -> Result<ClientMessage, String> {
        let frame = Frame::first_of(frame).unwrap().unwrap();
        ClientMessage::from_payload(frame.kind, frame.payload).map_err(|error| error.to_string())
    }

    #[test]
    fn a_hello_says_which_run_its_rank_belongs_to_as_far_as_its_client_knows() {
        let run =
            |client: &str| Hello { client: client.into(), ..hello() }.run().map(ToOwned::to_owned);
        assert_eq!(run(&Hello::client_in_run("libpfo 1", "77.1")).as_deref(), Some("77.1"));
        assert_eq!(run(&Hello::client_in_run("c", "a b\n")).as_deref(), Some("a-b-"));
        let long = Hello::client_in_run("c", &"é7".repeat(99));
        assert_eq!(run(&long).unwrap().len(), LONGEST_RUN);
        let longer = format!("c run={}", "7".repeat(LONGEST_RUN + 1));
        for none in ["libpfo 1", "c run=", "c run=a b", "c run=a\"b", &longer] {
            assert_eq!(run(none), None, "{none}");
        }
    }

    #[test]
    fn the_bytes_of_a_hello_are_the_documented_ones() {
        #[rustfmt::skip]
        assert_eq!(ClientMessage::Hello(hello()).to_frame().unwrap(), [
            77, 0, 0, 0,  1, 0,  1, 0,                      // length, version, kind
            1, 0, 0, 0, 0, 0, 0, 0, b't',                   // client
            2, 0, 0, 0, 0, 0, 0, 0, b'j', b'1',             // job
            1, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, // rank, pp_rank, dp_rank, tp_rank
            4, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0,             // pp, dp, tp degree
            0, 0, 0, 0,                                     // GPU by UUID
            5, 0, 0, 0, 0, 0, 0, 0, b'G', b'P', b'U', b'-', b'a',
            1, 8, 0, 0, 0,                                  // some: 8 microbatches
            5, 0, 0, 0, 0, 0, 0, 0,                         // next step
        ]);
    }

    #[test]
    fn the_bytes_of_a_refusal_are_the_documented_ones() {
        let refusal = Refusal::new(RefusalCode::GpuHeld, "m", "");
        #[rustfmt::skip]
        assert_eq!(DaemonMessage::Refusal(refusal).to_frame().unwrap(), [
            21, 0, 0, 0,  1, 0,  130, 0,
            3, 0, 0, 0,                                     // GPU held
            1, 0, 0, 0, 0, 0, 0, 0, b'm',                   // message
            0, 0, 0, 0, 0, 0, 0, 0,                         // no remedy
        ]);
    }

    #[test]
    fn a_hello_with_a_bad_job_name_is_not_decoded() {
        let mut bytes = ClientMessage::Hello(hello()).to_frame().unwrap();
        let job = 8 + 9 + 8;
        bytes[job] = b'\n';
        let error = read(&bytes).unwrap_err();
        assert!(error.contains(r#"job name "\n1" contains '\n'"#), "{error}");
    }

    #[test]
    fn a_hello_with_a_stage_beyond_the_last_one_is_not_decoded() {
        let mut bytes = ClientMessage::Hello(hello()).to_frame().unwrap();
        let stage = 8 + 9 + 10 + 4;
        bytes[stage..stage + 4].copy_from_slice(&65_535u32.to_le_bytes());
        assert!(read(&bytes).is_ok());
        bytes[stage..stage + 4].copy_from_slice(&65_536u32.to_le_bytes());
        let error = read(&bytes).unwrap_err();
        assert!(error.contains("stage 65536 is beyond 65535"), "{error}");
    }

    #[test]
    fn a_hello_with_a_rank_beyond_its_degree_is_decoded_and_its_check_names_both() {
        let mut hello = hello();
        hello.position.rank = Rank(5);
        let bytes = ClientMessage::Hello(hello.clone()).to_frame().unwrap();
        assert_eq!(read(&bytes), Ok(ClientMessage::Hello(hello.clone())));
        let error = hello.position.check().unwrap_err().to_string();
        assert_eq!(error, "rank is 5, but there are only 4");
    }

    type Change = fn(&mut RankPosition);

    #[test]
    fn every_number_of_a_position_is_checked() {
        let with = |change: Change| {
            let mut position = hello().position;
            change(&mut position);
            position.check().map_err(|error| error.to_string())
        };
        assert_eq!(with(|_| ()), Ok(()));
        assert_eq!(with(|p| (p.pp_degree, p.dp_degree) = (65_536, 16)), Ok(()));
        let wrong: [(Change, &str); 7] = [
            (|p| p.pp_rank = Stage(4), "pp_rank is 4, but there are only 4"),
            (|p| p.dp_rank = DpRank(1), "dp_rank is 1, but there are only 1"),
            (|p| p.tp_rank = TpRank(9), "tp_rank is 9, but there are only 1"),
            (|p| p.pp_degree = 0, "pp_degree is 0; it must be 1 to 65536"),
            (|p| p.dp_degree = 65_537, "dp_degree is 65537; it must be 1 to 65536"),
            (|p| p.tp_degree = u32::MAX, "tp_degree is 4294967295"),
            (|p| (p.pp_degree, p.dp_degree) = (65_536, 17), "make 1114112 ranks"),
        ];
        for (change, part) in wrong {
            let error = with(change).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn the_longest_refusal_fits_into_its_frame() {
        let long = "é".repeat(5000);
        let refusal = Refusal::new(RefusalCode::Internal, long.clone(), long);
        let frame = DaemonMessage::Refusal(refusal).to_frame().unwrap();
        assert!(frame.len() <= 8 + Kind::Refusal.max_payload());
    }
}
