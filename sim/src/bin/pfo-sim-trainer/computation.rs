//! Computing on a simulated GPU: an instruction takes as long as the GPU's clock lets it, and a
//! clock that changes in its middle counts from that moment on.

use std::time::Duration;

use nix::errno::Errno;
use nix::sys::time::TimeSpec;
use nix::time::{ClockId, ClockNanosleepFlags, clock_nanosleep};
use nvidia_ml::attachment::{Attachment, ClockForecast, WorkUnderWay};
use nvidia_ml::curve::CurveIndex;
use nvidia_ml::error::SimError;
use nvidia_ml::gpu_state::Activity;
use nvidia_ml::random::SplitMix;
use nvidia_ml::units::MonotonicNs;
use nvidia_ml::work::table::{Kind, Work};

use crate::stop::StopFlag;

/// How long to sleep at most without looking whether to stop.
const LONGEST_SLEEP: Duration = Duration::from_millis(50);
/// How long to sleep at least before looking for changes that came meanwhile.
const SHORTEST_SLEEP: Duration = Duration::from_millis(1);

/// When work that starts with a forecast will be done, if nothing else happens.
fn finish(work: &Work, forecast: &ClockForecast) -> MonotonicNs {
    let mut remaining = 1.0;
    for (i, &(from, clock)) in forecast.pieces.iter().enumerate() {
        let whole_ns = work.time_s(clock) * 1e9 * forecast.longer;
        if let Some(&(until, _)) = forecast.pieces.get(i + 1) {
            let done = until.since(from) as f64 / whole_ns;
            if done < remaining {
                remaining -= done;
                continue;
            }
        }
        return MonotonicNs(from.0 + (remaining * whole_ns).round() as u64);
    }
    forecast.known_until
}

/// Does nothing until a moment, or until the rank is to stop.
pub(crate) fn rest_until(moment: MonotonicNs, stop: &StopFlag) {
    loop {
        let now = MonotonicNs::now();
        if now >= moment || stop.is_risen() {
            return;
        }
        sleep_until(moment.min(now.after(LONGEST_SLEEP)));
    }
}

/// Sleeps until a moment.
fn sleep_until(moment: MonotonicNs) {
    let until = TimeSpec::from(Duration::from_nanos(moment.0));
    let absolute = ClockNanosleepFlags::TIMER_ABSTIME;
    while clock_nanosleep(ClockId::CLOCK_MONOTONIC, absolute, &until) == Err(Errno::EINTR) {}
}

/// The first two curves of a GPU are a trainer's forward and backward.
pub(crate) fn activity_of(kind: Kind) -> Activity {
    CurveIndex::new(kind as usize).map_or(Activity::Idle, Activity::Computing)
}

/// How much longer or shorter the next work takes than other work like it.
pub(crate) fn noise(attachment: &Attachment, random: &mut SplitMix) -> f64 {
    let deviation = attachment.gpu().silicon().time_noise_ppm as f64 / 1e6;
    (1.0 + deviation * random.next_normal()).max(0.1)
}

/// Gives the GPU work. It is done when its time is over, whenever this process is woken then.
pub(crate) fn begin(
    attachment: &Attachment,
    activity: Activity,
    work: &Work,
) -> Result<WorkUnderWay, SimError> {
    attachment.begin_work(activity, |forecast| finish(work, forecast))
}

/// Waits until work is done, and returns when it was; nothing if the rank is to stop.
pub(crate) fn wait_for(
    attachment: &Attachment,
    mut under_way: WorkUnderWay,
    work: &Work,
    stop: &StopFlag,
) -> Result<Option<MonotonicNs>, SimError> {
    loop {
        let now = MonotonicNs::now();
        if under_way.done <= now.min(under_way.known_until) {
            return Ok(Some(under_way.done));
        }
        if stop.is_risen() {
            return Ok(None);
        }
        let look_again =
            under_way.known_until.max(now.after(SHORTEST_SLEEP)).min(now.after(LONGEST_SLEEP));
        sleep_until(under_way.done.min(look_again));
        attachment.look_at_work(&mut under_way, |forecast| finish(work, forecast))?;
    }
}

/// Energy of the GPU so far, in J, without the energy counter's refresh interval.
pub(crate) fn energy_j(attachment: &Attachment) -> Result<f64, SimError> {
    Ok(attachment.gpu().view()?.energy.0 as f64 / 1e12)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvidia_ml::units::{Mhz, Milliwatts};
    use nvidia_ml::work::table::WorkPoint;

    const MS: u64 = 1_000_000;

    fn work() -> Work {
        let point = |mhz, time_s| WorkPoint { clock: Mhz(mhz), time_s, power: Milliwatts(1) };
        Work::new(vec![point(700, 0.2), point(1400, 0.1)]).unwrap()
    }

    fn forecast(pieces: &[(u64, u32)]) -> ClockForecast {
        ClockForecast {
            pieces: pieces.iter().map(|&(ms, mhz)| (MonotonicNs(ms * MS), Mhz(mhz))).collect(),
            known_until: MonotonicNs(0),
            longer: 1.0,
        }
    }

    #[test]
    fn work_at_one_clock_takes_its_time() {
        assert_eq!(finish(&work(), &forecast(&[(10, 1400)])), MonotonicNs(110 * MS));
    }

    #[test]
    fn a_clock_that_changes_in_the_middle_counts_from_there() {
        let slowed = forecast(&[(0, 1400), (50, 700)]);
        assert_eq!(finish(&work(), &slowed), MonotonicNs(150 * MS));
        let twice = forecast(&[(0, 1400), (50, 700), (100, 1400)]);
        assert_eq!(finish(&work(), &twice), MonotonicNs(125 * MS));
    }

    #[test]
    fn a_change_after_the_end_of_the_work_does_not_matter() {
        let late = forecast(&[(0, 1400), (100, 700)]);
        assert_eq!(finish(&work(), &late), MonotonicNs(100 * MS));
    }
}
