//! A simulated GPU for a trainer in another language, which says on standard input what it computes.
//!
//! `begin forward 0.035` starts work of 35 ms at the highest clock; `end` waits until it is done, and is
//! answered with the time that it took, in seconds; `wait` is answered at once, and the GPU waits for a
//! neighbour from then on. The end of standard input ends the process, and leaves the GPU idle.

use std::io::{self, BufRead, Write};
use std::sync::Arc;

use nvidia_ml::attachment::{Attachment, WorkUnderWay};
use nvidia_ml::driver::Driver;
use nvidia_ml::gpu_state::Activity;
use nvidia_ml::random::SplitMix;
use nvidia_ml::work::built_in;
use nvidia_ml::work::table::{Kind, Work};

use crate::args::ComputeArgs;
use crate::computation::{activity_of, begin, noise, wait_for};
use crate::error::TrainerError;
use crate::stop::StopFlag;

/// The longest work, in seconds at the highest clock.
const LONGEST_S: f64 = 3600.0;

/// What a line asks for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Order {
    Begin(Kind, f64),
    End,
    Wait,
}

impl Order {
    fn of(line: &str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["begin", kind, seconds] => {
                let kind = Kind::ALL.into_iter().find(|known| known.name() == kind)?;
                let seconds = seconds.parse().ok().filter(|s| (1e-6..=LONGEST_S).contains(s))?;
                Some(Self::Begin(kind, seconds))
            }
            ["end"] => Some(Self::End),
            ["wait"] => Some(Self::Wait),
            _ => None,
        }
    }
}

/// Works as standard input orders; false if this process was asked to stop.
pub(crate) fn run(args: &ComputeArgs) -> Result<bool, TrainerError> {
    let stop = StopFlag::new(Vec::new()).map_err(TrainerError::system("wait for signals"))?;
    // Sleeps shall end when they should, not up to 50 us later.
    let _ = nix::sys::prctl::set_timerslack(1);
    let attachment = Attachment::new(Arc::new(Driver::open(&args.state)?), args.gpu)?;
    let facts = attachment.gpu().facts();
    for kind in Kind::ALL {
        if let Activity::Computing(curve) = activity_of(kind) {
            attachment.install_curve(curve, built_in::work(facts, kind, 1.0)?.curve())?;
        }
    }
    let mut gpu = ComputingGpu {
        random: SplitMix::new(attachment.gpu().serial()),
        attachment,
        under_way: None,
    };
    for line in io::stdin().lock().lines() {
        let line = line.map_err(TrainerError::system("read standard input"))?;
        let order = Order::of(&line).ok_or_else(|| TrainerError::Order(line.clone()))?;
        if !gpu.obey(order, &stop)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// A GPU, and what it computes.
struct ComputingGpu {
    attachment: Attachment,
    random: SplitMix,
    under_way: Option<(WorkUnderWay, Work)>,
}

impl ComputingGpu {
    /// Does what was ordered, and answers; false if this process was asked to stop.
    fn obey(&mut self, order: Order, stop: &StopFlag) -> Result<bool, TrainerError> {
        match order {
            Order::Begin(kind, seconds) => {
                let facts = self.attachment.gpu().facts();
                let work = built_in::work(
                    facts,
                    kind,
                    seconds * noise(&self.attachment, &mut self.random),
                )?;
                let under_way = begin(&self.attachment, activity_of(kind), &work)?;
                self.under_way = Some((under_way, work));
                Ok(true)
            }
            Order::End => {
                let Some((under_way, work)) = self.under_way.take() else {
                    return answer(0.0).map(|()| true);
                };
                match wait_for(&self.attachment, under_way, &work, stop)? {
                    Some(done) => answer(done.since(under_way.began) as f64 / 1e9).map(|()| true),
                    None => Ok(false),
                }
            }
            Order::Wait => {
                self.attachment.set_activity(Activity::Blocked)?;
                answer(0.0).map(|()| true)
            }
        }
    }
}

fn answer(seconds: f64) -> Result<(), TrainerError> {
    let mut stdout = io::stdout().lock();
    let written = writeln!(stdout, "{seconds:.9}").and_then(|()| stdout.flush());
    written.map_err(TrainerError::system("answer on standard output"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_one_of_three_lines() {
        assert_eq!(Order::of("begin forward 0.035"), Some(Order::Begin(Kind::Forward, 0.035)));
        assert_eq!(Order::of("begin backward 2"), Some(Order::Begin(Kind::Backward, 2.0)));
        assert_eq!(Order::of("end"), Some(Order::End));
        assert_eq!(Order::of("wait"), Some(Order::Wait));
        for line in ["", "begin", "begin forward", "begin sideways 1", "end now", "stop"] {
            assert_eq!(Order::of(line), None, "{line:?}");
        }
    }

    #[test]
    fn work_of_no_length_or_of_days_is_no_work() {
        for seconds in ["0", "-1", "nan", "inf", "86400"] {
            assert_eq!(Order::of(&format!("begin forward {seconds}")), None, "{seconds}");
        }
    }
}
