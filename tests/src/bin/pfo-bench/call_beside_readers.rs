//! What the trainer pays for a call whose event wakes somebody: a call of the shim next to a bare `send`, each
//! to a process that blocks in a read.
//!
//! On the trainer's own core the kernel may run the reader first, so that the call takes as long as what the
//! reader does with the event. pfod asks the kernel for that where the event sets another clock, and only there:
//! a clock that is set late costs more than the call.

use std::time::{Duration, Instant};

use pfo::Instruction;
use pfo_tests::Node;

use crate::Result;
use crate::bare_socket::{BareSocket, Message};
use crate::before::Before;
use crate::event_path::{Pace, Trainer, figures};
use crate::extent::Extent;
use crate::node::{Measured, until_free};
use crate::placement::{Cores, Placement};
use crate::report::{Cell, Report};
use crate::samples::{Percentiles, Samples, now_ns};

const PERIOD: Duration = Duration::from_millis(1);

/// Calls of one way before the next one's turn.
const CALLS: u32 = 40;

/// Measures every way at every placement, one call a millisecond.
pub(crate) fn measure(
    node: &Node,
    before: Option<&Before>,
    extent: Extent,
    report: &mut Report,
) -> Result<()> {
    let cores = Cores::of_this_process()?;
    let mut ways = Ways {
        bare: BareSocket::connect()?,
        now: Trainer::begin(node)?,
        before: before.map(|before| Trainer::begin(before)).transpose()?,
    };
    let mut receivers = ways.bare.receivers()?;
    for node in [Some(node as &dyn Measured), before.map(|it| it as _)].into_iter().flatten() {
        receivers.extend(node.pfod()?.threads_named("rank ")?);
    }
    let mut rows = Vec::new();
    for placement in Placement::all()? {
        cores.place(placement, &receivers)?;
        rows.push(ways.without_a_plan(placement, extent)?);
    }
    for placement in Placement::all()? {
        cores.place(placement, &receivers)?;
        rows.extend(ways.under_a_plan(placement, extent)?);
    }
    cores.place(Placement::Free, &receivers)?;
    drop(ways);
    until_free(node)?;
    report.table(
        "call_beside_readers",
        "What a call costs the trainer while pfod reads, next to a bare send() to a process that reads\n\
         (µs, one call per ms; aim: p50 at most 1.3 of the bare one)",
        &[
            ("calls", "calls"),
            ("placement", "placement"),
            ("send_p50_us", "send p50"),
            ("send_p99_us", "p99"),
            ("shim_p50_us", "shim p50"),
            ("shim_p99_us", "p99"),
            ("ratio_p50", "to send p50"),
            ("ratio_p99", "p99"),
            ("before_p50_us", "before p50"),
            ("before_p99_us", "p99"),
            ("before_ratio_p50", "to send p50"),
            ("before_ratio_p99", "p99"),
        ],
        &rows,
    );
    report.note(
        "On the trainer's own core, a call that ends an instruction before another clock includes pfod's call of \
         the driver:\nthe clock is set before the trainer goes on.",
    );
    Ok(())
}

/// What takes turns: a bare socket, and a rank of each version.
struct Ways<'n> {
    bare: BareSocket,
    now: Trainer<'n>,
    before: Option<Trainer<'n>>,
}

impl Ways<'_> {
    fn without_a_plan(&mut self, placement: Placement, extent: Extent) -> Result<Vec<Cell>> {
        let [mut sends, mut now, mut before] = <[Samples; 3]>::default();
        for _ in 0..extent.of(100, 3) {
            block(&mut sends, |_| self.bare.send(Message::Passing))?;
            block(&mut now, |call| tell(&self.now, call))?;
            if let Some(trainer) = &self.before {
                block(&mut before, |call| tell(trainer, call))?;
            }
        }
        let before = self.before.as_ref().map(|_| before);
        Ok(row("without a plan", placement, sends.percentiles(), now, before))
    }

    /// One row for calls that begin an instruction, and one for those that end one.
    fn under_a_plan(&mut self, placement: Placement, extent: Extent) -> Result<[Vec<Cell>; 2]> {
        let mut sends = Samples::default();
        for _ in 0..extent.of(30, 1) {
            block(&mut sends, |_| self.bare.send(Message::Passing))?;
            self.now.step(Pace::OnePerMillisecond)?;
            self.before.as_mut().map(|it| it.step(Pace::OnePerMillisecond)).transpose()?;
        }
        let (send, [begins, ends]) = (sends.percentiles(), self.now.take_calls());
        let before = self.before.as_mut().map(Trainer::take_calls);
        let (begins_before, ends_before) = before.map(<(_, _)>::from).unzip();
        Ok([
            row("begins under a plan", placement, send, begins, begins_before),
            row("ends that set a clock", placement, send, ends, ends_before),
        ])
    }
}

fn row(
    calls: &str,
    placement: Placement,
    send: Percentiles,
    shim: Samples,
    before: Option<Samples>,
) -> Vec<Cell> {
    let (shim, before) = (shim.percentiles(), before.map(Samples::percentiles));
    let compared = [
        figures(Some(send), 2),
        figures(Some(shim), 2),
        figures(Some(shim.ratio_to(send)), 2),
        figures(before, 2),
        figures(before.map(|before| before.ratio_to(send)), 2),
    ];
    let mut row = vec![Cell::text(calls), Cell::text(placement.name())];
    row.extend(compared.into_iter().flatten());
    row
}

fn block(samples: &mut Samples, mut call: impl FnMut(u32) -> Result<()>) -> Result<()> {
    let mut next = Instant::now();
    for number in 0..CALLS {
        next += PERIOD;
        std::thread::sleep(next.saturating_duration_since(Instant::now()));
        let before = now_ns();
        call(number)?;
        samples.add(now_ns() - before);
    }
    Ok(())
}

/// One event of a step that has no end, and so no clock of its own.
fn tell(trainer: &Trainer<'_>, call: u32) -> Result<()> {
    match call % 2 {
        0 => trainer.session().instruction_begin(Instruction::Forward, call / 2),
        _ => trainer.session().instruction_end(),
    }
    Ok(())
}
