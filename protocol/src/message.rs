//! The frames of each direction as one type each, and their way over a blocking stream.

use std::io::{Read, Write};

use serde::Serialize;

use crate::agent::request::{AgentRequest, AgentResponse};
use crate::codec;
use crate::event::Event;
use crate::frame::{FrameError, HEADER_BYTES, Header, Kind};
use crate::request::{Request, Response};
use crate::session::{Closing, Hello, Refusal, Unsupported, Welcome};
use crate::tap::{Notice, TapBatch};

/// What a client sends.
#[derive(Clone, Debug, PartialEq)]
pub enum ClientMessage {
    /// Asks for a session.
    Hello(Hello),
    /// Fire and forget.
    Event(Event),
    /// Ends the session.
    Goodbye,
    /// Asks `pfod` for a response.
    Request(Request),
    /// Asks the agent for a response.
    AgentRequest(AgentRequest),
}

/// What `pfod` and the agent send.
#[derive(Clone, Debug, PartialEq)]
pub enum DaemonMessage {
    /// The session is open.
    Welcome(Welcome),
    /// There is no session.
    Refusal(Refusal),
    /// The session ends.
    Closing(Closing),
    /// The answer of `pfod` to a request.
    Response(Response),
    /// The answer of the agent to a request.
    AgentResponse(AgentResponse),
    /// Records of a tap.
    Tap(TapBatch),
    /// Something changed.
    Notice(Notice),
    /// The client's version is not spoken here.
    Unsupported(Unsupported),
}

fn payload<T: serde::de::DeserializeOwned>(kind: Kind, bytes: &[u8]) -> Result<T, FrameError> {
    codec::decode(bytes).map_err(|source| FrameError::Payload { kind, source })
}

fn frame<T: Serialize>(kind: Kind, value: &T) -> Result<Vec<u8>, FrameError> {
    let mut bytes = vec![0; HEADER_BYTES];
    codec::append(value, &mut bytes).map_err(|source| FrameError::Payload { kind, source })?;
    let length = bytes.len() - HEADER_BYTES;
    if length > kind.max_payload() {
        return Err(FrameError::Oversized { kind, length });
    }
    bytes[..HEADER_BYTES].copy_from_slice(&Header { kind, length }.to_bytes());
    Ok(bytes)
}

impl ClientMessage {
    /// Reads a message from the payload of a frame.
    ///
    /// # Errors
    /// If the kind is one that only the daemon sends, or the payload is not what the kind promises.
    pub fn from_payload(kind: Kind, bytes: &[u8]) -> Result<Self, FrameError> {
        match kind {
            Kind::Hello => payload(kind, bytes).map(Self::Hello),
            Kind::Event => Event::from_payload(bytes).map(Self::Event),
            Kind::Goodbye => Ok(Self::Goodbye),
            Kind::Request => payload(kind, bytes).map(Self::Request),
            Kind::AgentRequest => payload(kind, bytes).map(Self::AgentRequest),
            other => Err(FrameError::Unexpected(other)),
        }
    }

    /// The message as a whole frame.
    ///
    /// # Errors
    /// If it is larger than a frame of its kind may be.
    pub fn to_frame(&self) -> Result<Vec<u8>, FrameError> {
        match self {
            Self::Hello(hello) => frame(Kind::Hello, hello),
            Self::Event(event) => frame(Kind::Event, event),
            Self::Goodbye => frame(Kind::Goodbye, &()),
            Self::Request(request) => frame(Kind::Request, request),
            Self::AgentRequest(request) => frame(Kind::AgentRequest, request),
        }
    }

    /// Sends the message over a blocking stream.
    ///
    /// # Errors
    /// If the message is too large or the stream fails.
    pub fn write_to(&self, stream: &mut impl Write) -> Result<(), FrameError> {
        Ok(stream.write_all(&self.to_frame()?)?)
    }
}

impl DaemonMessage {
    /// Reads a message from the payload of a frame.
    ///
    /// # Errors
    /// If the kind is one that only clients send, or the payload is not what the kind promises.
    pub fn from_payload(kind: Kind, bytes: &[u8]) -> Result<Self, FrameError> {
        match kind {
            Kind::Welcome => payload(kind, bytes).map(Self::Welcome),
            Kind::Refusal => payload(kind, bytes).map(Self::Refusal),
            Kind::Closing => payload(kind, bytes).map(Self::Closing),
            Kind::Response => payload(kind, bytes).map(Self::Response),
            Kind::AgentResponse => payload(kind, bytes).map(Self::AgentResponse),
            Kind::Tap => payload(kind, bytes).map(Self::Tap),
            Kind::Notice => payload(kind, bytes).map(Self::Notice),
            Kind::Unsupported => payload(kind, bytes).map(Self::Unsupported),
            other => Err(FrameError::Unexpected(other)),
        }
    }

    /// The message as a whole frame.
    ///
    /// # Errors
    /// If it is larger than a frame of its kind may be.
    pub fn to_frame(&self) -> Result<Vec<u8>, FrameError> {
        match self {
            Self::Welcome(welcome) => frame(Kind::Welcome, welcome),
            Self::Refusal(refusal) => frame(Kind::Refusal, refusal),
            Self::Closing(closing) => frame(Kind::Closing, closing),
            Self::Response(response) => frame(Kind::Response, response),
            Self::AgentResponse(response) => frame(Kind::AgentResponse, response),
            Self::Tap(batch) => frame(Kind::Tap, batch),
            Self::Notice(notice) => frame(Kind::Notice, notice),
            Self::Unsupported(unsupported) => frame(Kind::Unsupported, unsupported),
        }
    }

    /// Reads the next message from a blocking stream.
    ///
    /// # Errors
    /// If the stream fails or ends, or its bytes are not a frame that a daemon sends.
    pub fn read_from(stream: &mut impl Read) -> Result<Self, FrameError> {
        let mut header = [0; HEADER_BYTES];
        stream.read_exact(&mut header).map_err(FrameError::reading)?;
        let header = Header::parse(header)?;
        let mut bytes = vec![0; header.length];
        stream.read_exact(&mut bytes).map_err(FrameError::reading)?;
        Self::from_payload(header.kind, &bytes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::frame::Frame;
    use crate::request::{JobSelector, LeaseTarget, SwapTarget, User};
    use crate::sample::{Doubt, InstructionSample, SamplePage};
    use crate::session::{RankPosition, RefusalCode};
    use crate::sweep::{ProfileKey, StoredProfile, SweepControl, SweepOrder, SweepSettings};
    use crate::trial::{TrialLength, TrialRun};
    use pfo_vocabulary::Instruction;
    use pfo_vocabulary::Unit;

    fn hello() -> Hello {
        Hello {
            client: "t".into(),
            job: "j1".parse().unwrap(),
            position: RankPosition {
                rank: 1,
                pp_rank: 1,
                dp_rank: 0,
                tp_rank: 0,
                pp_degree: 4,
                dp_degree: 1,
                tp_degree: 1,
            },
            gpu: "GPU-a".parse().unwrap(),
            num_microbatches: Some(8),
            next_step: 5,
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
    fn the_bytes_of_requests_and_answers_are_the_documented_ones() {
        let job = JobSelector { job: "j".parse().unwrap(), uid: None };
        let swap = Request::PlanSwap {
            job,
            target: SwapTarget::Previous,
            not_before: Some(9),
            wait: true,
        };
        #[rustfmt::skip]
        assert_eq!(ClientMessage::Request(swap).to_frame().unwrap(), [
            28, 0, 0, 0,  1, 0,  4, 0,
            3, 0, 0, 0,                                     // plan swap
            1, 0, 0, 0, 0, 0, 0, 0, b'j',                   // job
            0,                                              // no uid
            1, 0, 0, 0,                                     // previous
            1, 9, 0, 0, 0, 0, 0, 0, 0,                      // some: not before step 9
            1,                                              // wait
        ]);
        let target = LeaseTarget::Job(JobSelector { job: "j".parse().unwrap(), uid: None });
        #[rustfmt::skip]
        assert_eq!(ClientMessage::Request(Request::LeaseRevoke(target)).to_frame().unwrap(), [
            18, 0, 0, 0,  1, 0,  4, 0,
            8, 0, 0, 0,                                     // lease revoke
            1, 0, 0, 0,                                     // of a job
            1, 0, 0, 0, 0, 0, 0, 0, b'j',
            0,                                              // no uid
        ]);
        let who = Some(User { uid: 7, groups: vec![50, 51] });
        let explain = Request::PolicyExplain { who, gpu: Some("GPU-a".parse().unwrap()) };
        #[rustfmt::skip]
        assert_eq!(ClientMessage::Request(explain).to_frame().unwrap(), [
            43, 0, 0, 0,  1, 0,  4, 0,
            5, 0, 0, 0,                                     // policy explain
            1, 7, 0, 0, 0,                                  // some: uid 7
            2, 0, 0, 0, 0, 0, 0, 0, 50, 0, 0, 0, 51, 0, 0, 0,
            1, 0, 0, 0, 0,                                  // some: GPU by UUID
            5, 0, 0, 0, 0, 0, 0, 0, b'G', b'P', b'U', b'-', b'a',
        ]);
        let job = JobSelector { job: "j".parse().unwrap(), uid: None };
        let straggler = Request::Straggler { job, slowdown: Some(1.5), wait: false };
        #[rustfmt::skip]
        assert_eq!(ClientMessage::Request(straggler).to_frame().unwrap(), [
            24, 0, 0, 0,  1, 0,  4, 0,
            11, 0, 0, 0,                                    // straggler
            1, 0, 0, 0, 0, 0, 0, 0, b'j',
            0,                                              // no uid
            1, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f,                // some: 1.5
            0,                                              // do not wait
        ]);
        let job = JobSelector { job: "j".parse().unwrap(), uid: None };
        let length = TrialLength { settling_steps: 1, steps: 20 };
        let trial = Request::Trial { job, run: TrialRun::Uniform(1410), length, samples: true };
        #[rustfmt::skip]
        assert_eq!(ClientMessage::Request(trial).to_frame().unwrap(), [
            31, 0, 0, 0,  1, 0,  4, 0,
            12, 0, 0, 0,                                    // trial
            1, 0, 0, 0, 0, 0, 0, 0, b'j',                   // job
            0,                                              // no uid
            2, 0, 0, 0, 130, 5, 0, 0,                       // uniform: 1410 MHz
            1, 0, 0, 0, 20, 0, 0, 0,                        // settling steps, steps
            1,                                              // samples
        ]);
        let job = JobSelector { job: "j".parse().unwrap(), uid: None };
        let run = TrialRun::PowerLimits { label: "z".into(), limits_w: vec![200, 250] };
        let trial = Request::Trial { job, run, length, samples: false };
        #[rustfmt::skip]
        assert_eq!(ClientMessage::Request(trial).to_frame().unwrap(), [
            52, 0, 0, 0,  1, 0,  4, 0,
            12, 0, 0, 0,                                    // trial
            1, 0, 0, 0, 0, 0, 0, 0, b'j',                   // job
            0,                                              // no uid
            3, 0, 0, 0,                                     // power limits
            1, 0, 0, 0, 0, 0, 0, 0, b'z',                   // label
            2, 0, 0, 0, 0, 0, 0, 0, 200, 0, 0, 0, 250, 0, 0, 0,
            1, 0, 0, 0, 20, 0, 0, 0,                        // settling steps, steps
            0,                                              // no samples
        ]);
        let range = Response::PowerLimits { lowest_w: 100, highest_w: 300 };
        #[rustfmt::skip]
        assert_eq!(DaemonMessage::Response(range).to_frame().unwrap(), [
            12, 0, 0, 0,  1, 0,  132, 0,
            22, 0, 0, 0,                                    // power limits
            100, 0, 0, 0, 44, 1, 0, 0,                      // watts: lowest, highest
        ]);
        let job = JobSelector { job: "j".parse().unwrap(), uid: None };
        let stop = Request::SweepControl { job, control: SweepControl::Stop };
        #[rustfmt::skip]
        assert_eq!(ClientMessage::Request(stop).to_frame().unwrap(), [
            18, 0, 0, 0,  1, 0,  4, 0,
            16, 0, 0, 0,                                    // sweep control
            1, 0, 0, 0, 0, 0, 0, 0, b'j',                   // job
            0,                                              // no uid
            2, 0, 0, 0,                                     // stop
        ]);
        let settings = SweepSettings {
            steps: 10,
            settling_steps: 1,
            stride_mhz: 30,
            min_mhz: 0,
            max_slowdown: None,
        };
        let job = JobSelector { job: "j".parse().unwrap(), uid: None };
        let order = SweepOrder { job, model: None, settings, reuse: true };
        #[rustfmt::skip]
        assert_eq!(ClientMessage::Request(Request::SweepAttend(order)).to_frame().unwrap(), [
            33, 0, 0, 0,  1, 0,  4, 0,
            26, 0, 0, 0,                                    // sweep attend
            1, 0, 0, 0, 0, 0, 0, 0, b'j',                   // job
            0,                                              // no uid
            0,                                              // model called like the job
            10, 0, 0, 0, 1, 0, 0, 0,                        // steps, settling steps
            30, 0, 0, 0, 0, 0, 0, 0,                        // stride, lowest clock, in MHz
            0,                                              // no limit of the slowdown
            1,                                              // reuse
        ]);
        let key = ProfileKey {
            uid: 7,
            model: "m".parse().unwrap(),
            gpus: "A".into(),
            partition: "p".into(),
        };
        let profile = StoredProfile { key, measured_unix_s: 9, bytes: 3 };
        #[rustfmt::skip]
        assert_eq!(DaemonMessage::Response(Response::Reused(profile)).to_frame().unwrap(), [
            51, 0, 0, 0,  1, 0,  132, 0,
            17, 0, 0, 0,                                    // reused
            7, 0, 0, 0,                                     // uid
            1, 0, 0, 0, 0, 0, 0, 0, b'm',                   // model
            1, 0, 0, 0, 0, 0, 0, 0, b'A',                   // GPUs
            1, 0, 0, 0, 0, 0, 0, 0, b'p',                   // partition
            9, 0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, // seconds since 1970, bytes
        ]);
        let sample = InstructionSample {
            step: 9,
            unit: Unit { instruction: Instruction::Backward, chunk: 1, microbatch: 7 },
            began_ns: 256,
            ended_ns: 512,
            mhz: Some(1410),
            observed: None,
            throttle_reasons: 4,
            counter_j: Some(1.5),
            counter_refreshes: 2,
            left_out: Some(Doubt::Throttled),
        };
        let page = SamplePage { rank: 3, samples: vec![sample], dropped: 5 };
        #[rustfmt::skip]
        assert_eq!(DaemonMessage::Response(Response::TrialSamples(Some(page))).to_frame().unwrap(), [
            91, 0, 0, 0,  1, 0,  132, 0,
            21, 0, 0, 0,  1,                                // trial samples: some
            3, 0, 0, 0,                                     // rank
            1, 0, 0, 0, 0, 0, 0, 0,                         // one sample
            9, 0, 0, 0, 0, 0, 0, 0,                         // step
            1, 0, 0, 0,  1, 0,  7, 0, 0, 0,                 // backward, chunk, microbatch
            0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, // began, ended
            1, 130, 5, 0, 0,  0,                            // some: 1410 MHz; none observed
            4, 0, 0, 0, 0, 0, 0, 0,                         // throttle reasons
            1, 0, 0, 0, 0, 0, 0, 0xf8, 0x3f,                // some: 1.5 J
            2, 0, 0, 0,                                     // refreshes
            1, 2, 0, 0, 0,                                  // some: throttled
            5, 0, 0, 0, 0, 0, 0, 0,                         // dropped
        ]);
        let refusal = Refusal::new(RefusalCode::GpuHeld, "m", "");
        #[rustfmt::skip]
        assert_eq!(DaemonMessage::Refusal(refusal).to_frame().unwrap(), [
            21, 0, 0, 0,  1, 0,  130, 0,
            3, 0, 0, 0,
            1, 0, 0, 0, 0, 0, 0, 0, b'm',
            0, 0, 0, 0, 0, 0, 0, 0,
        ]);
        assert_eq!(ClientMessage::Goodbye.to_frame().unwrap(), [0, 0, 0, 0, 1, 0, 3, 0]);
        let unsupported = Unsupported { oldest: 1, newest: 2 };
        assert_eq!(
            DaemonMessage::Unsupported(unsupported).to_frame().unwrap(),
            [4, 0, 0, 0, 1, 0, 133, 0, 1, 0, 2, 0]
        );
    }

    #[test]
    fn a_hello_with_a_bad_job_name_is_no_hello() {
        let mut bytes = ClientMessage::Hello(hello()).to_frame().unwrap();
        let job = 8 + 9 + 8;
        bytes[job] = b'\n';
        let frame = Frame::first_of(&bytes).unwrap().unwrap();
        let error = ClientMessage::from_payload(frame.kind, frame.payload).unwrap_err().to_string();
        assert!(error.contains(r#"job name "\n1" contains '\n'"#), "{error}");
    }

    #[test]
    fn bytes_after_the_end_of_a_message_are_an_error() {
        let mut bytes = ClientMessage::Hello(hello()).to_frame().unwrap();
        bytes.push(0);
        let error = ClientMessage::from_payload(Kind::Hello, &bytes[8..]).unwrap_err().to_string();
        assert!(error.contains("1 bytes after its end"), "{error}");
    }

    #[test]
    fn a_stream_that_ends_inside_a_frame_is_told_from_one_that_failed() {
        let bytes = DaemonMessage::Unsupported(Unsupported { oldest: 1, newest: 1 });
        let bytes = bytes.to_frame().unwrap();
        for length in 0..bytes.len() {
            let error = DaemonMessage::read_from(&mut &bytes[..length]).unwrap_err();
            assert!(matches!(error, FrameError::Truncated), "{error}");
        }
        assert!(DaemonMessage::read_from(&mut &bytes[..]).is_ok());
    }

    #[test]
    fn the_longest_refusal_fits_into_its_frame() {
        let long = "é".repeat(5000);
        let refusal = Refusal::new(RefusalCode::Internal, long.clone(), long);
        assert!(DaemonMessage::Refusal(refusal).to_frame().is_ok());
    }

    proptest! {
        #[test]
        fn no_payload_makes_a_decoder_panic(
            kind in 1u16..5, bytes in prop::collection::vec(any::<u8>(), 0..256)
        ) {
            let kind = [Kind::Hello, Kind::Event, Kind::Goodbye, Kind::Request][kind as usize - 1];
            let _ = ClientMessage::from_payload(kind, &bytes);
            let _ = DaemonMessage::from_payload(Kind::Response, &bytes);
        }
    }
}
