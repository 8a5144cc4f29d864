//! What a rank tells, in whatever order: the clock that it leads to is one of its plan, the highest
//! or the default.
use pfo_planner::Mhz;
use pfo_protocol::{ClientMessage, Frame, Instruction, Unit};
use pfod::cursor::{Cursor, Wish};
use pfod::fit::{Planned, StageClocks, StageSequence};

fn sequence() -> StageSequence {
    let unit = |instruction, microbatch| Unit { instruction, chunk: 0, microbatch };
    let planned = |(instruction, microbatch, mhz)| Planned {
        unit: unit(instruction, microbatch),
        mhz: Mhz(mhz),
    };
    [
        (Instruction::Forward, 0, 900),
        (Instruction::Forward, 1, 915),
        (Instruction::Backward, 0, 1200),
        (Instruction::Backward, 1, 1215),
    ]
    .map(planned)
    .into_iter()
    .collect()
}

/// The target.
pub fn events(stream: &[u8]) {
    let planned = sequence();
    let mut cursor = Cursor::default();
    cursor.follow(Some(StageClocks::Planned(planned.clone())));
    let mut rest = stream;
    while let Ok(Some(frame)) = Frame::first_of(rest) {
        rest = &rest[frame.total_bytes()..];
        if let Ok(ClientMessage::Event(event)) =
            ClientMessage::from_payload(frame.kind, frame.payload)
        {
            let lost = cursor.lost_events();
            cursor.event(&event);
            assert!(cursor.lost_events() >= lost);
            if let Wish::At(mhz) = cursor.wish() {
                assert!(planned.iter().any(|planned| planned.mhz == mhz));
            }
        }
    }
}
