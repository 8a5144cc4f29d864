//! The thread of a rank: reads its events and sets its GPU's clock, with nothing in between.
//!
//! Between a read and the driver's set call there is no allocation, no lock shared with
//! administration and no log line. Everything else waits until the call is made.

mod ahead;
mod cursor;
mod flood;
mod pace;
mod setting;
mod urgency;

use std::io::{self, ErrorKind, Read};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, ppoll};
use pfo_keeper::Clocks;
use pfo_policy::Place;
use pfo_protocol::{
    ClosingReason, CodecError, Event, Frame, FrameError, GpuUuid, Holder, Kind, Mark, Mhz,
    Milliwatts, Stage, Unit,
};
use pfo_service::{computed_ns, now_ns, panic_in_tests};

use self::ahead::{Ahead, off_plan_ns};
use self::cursor::Mismatch;
pub(crate) use self::cursor::{Cursor, Finished, Outcome, Wish};
use self::flood::Flood;
use self::pace::Pace;
use self::urgency::Urgency;
use crate::host::journal;
use crate::job::{Job, JobPlan, Swap};
use crate::lease::{Ending, Measured, Progress, Rules, Session};
use crate::measure::record_of;

/// Room for what a rank sends while the driver is busy for a few milliseconds.
const BUFFER_BYTES: usize = 16 * 1024;

/// Instructions of a step that are remembered, to check new plans against.
const REMEMBERED_UNITS: usize = 1 << 16;

/// A step number above this is invalid: no step takes less than a microsecond.
const LAST_STEP: u64 = 1 << 50;

/// An event may be this far in the future, in nanoseconds.
const LATEST_NS: u64 = 60_000_000_000;

/// No more events than this come in one read.
const MOST_EVENTS_READ: usize = BUFFER_BYTES / 32;

/// How often the driver is asked whether a process computes on its GPU.
const PROCESS_CHECK: Duration = Duration::from_secs(5);

/// How a session ended.
#[derive(Debug)]
pub(crate) enum End {
    /// The rank said goodbye.
    Goodbye,
    /// The connection ended.
    HungUp,
    /// The daemon ends it.
    Closed(ClosingReason, String),
    /// The daemon ends, and leaves the session to the next one.
    HandedOver,
    /// The thread panicked.
    Failed,
}

/// The step boundaries that were read but not measured yet.
#[derive(Clone, Copy, Debug, Default)]
struct StepsBegun {
    steps: u64,
    at_ns: u64,
}

/// A rank and its GPU during its session.
pub(crate) struct Rank {
    session: Arc<Session>,
    job: Arc<Job>,
    stage: Stage,
    rules: Rules,
    pace: Pace,
    /// The change that was skipped for lack of room and has been counted.
    skipped: Option<Mhz>,
    clocks: Clocks,
    cursor: Cursor,
    ahead: Ahead,
    /// The lock that the running instruction had before the next one's was asked for.
    own_lock: Option<(Mhz, u64)>,
    plan: Option<Arc<JobPlan>>,
    swap: u64,
    joined_in: Option<Arc<Swap>>,
    refused: Option<Wish>,
    /// What the driver refused is asked for once more: a step begins.
    retry: bool,
    /// The power limit that the GPU should have.
    power_limit: Option<Milliwatts>,
    /// The setting that failed, and is not requested again until another one is wanted.
    refused_limit: Option<Option<Milliwatts>>,
    begun: StepsBegun,
    mismatch: Option<Mismatch>,
    mismatched_in_a_row: u32,
    /// What the rank has run so far in this step, if it is complete.
    units: Vec<Unit>,
    units_complete: bool,
    /// What it ran in the last whole step, if that is not published yet.
    whole_step: Vec<Unit>,
    step_ended: bool,
    /// The clocks are restored until the next event; whether the memory clock was locked.
    resting: Option<bool>,
    process_checked: Instant,
}

impl Rank {
    /// A rank at the beginning of its session; `joined_in` is the swap in use when it joined.
    #[must_use]
    pub(crate) fn new(
        session: Arc<Session>,
        job: Arc<Job>,
        stage: Stage,
        clocks: Clocks,
        joined_in: Option<Arc<Swap>>,
    ) -> Self {
        let rules = session.grant.load().rules;
        session.progress.measured.store(Arc::new(Measured::begin(clocks.energy_j())));
        Self {
            session,
            job,
            stage,
            rules,
            pace: Pace::new(rules.changes_per_second),
            skipped: None,
            clocks,
            cursor: Cursor::default(),
            ahead: Ahead::default(),
            own_lock: None,
            plan: None,
            swap: 0,
            joined_in,
            refused: None,
            retry: false,
            power_limit: None,
            refused_limit: None,
            begun: StepsBegun::default(),
            mismatch: None,
            mismatched_in_a_row: 0,
            units: Vec::with_capacity(MOST_EVENTS_READ),
            units_complete: false,
            whole_step: Vec::with_capacity(MOST_EVENTS_READ),
            step_ended: false,
            resting: None,
            process_checked: Instant::now(),
        }
    }

    /// A rank in the middle of a session that another daemon has followed until now.
    #[must_use]
    pub(crate) fn in_the_middle(self) -> Self {
        Self { cursor: Cursor::in_the_middle(), ..self }
    }

    /// The clocks, to restore them at the end of the session.
    pub(crate) fn clocks(&mut self) -> &mut Clocks {
        &mut self.clocks
    }

    /// Serves the rank until its session ends. The socket's read timeout is the idle limit.
    pub(crate) fn serve(&mut self) -> End {
        let end = self.follow_events();
        self.account();
        end
    }

    fn follow_events(&mut self) -> End {
        let session = Arc::clone(&self.session);
        let _reading = session.read_by_this_thread();
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut filled = 0;
        let clocks = || flood::Clocks { now_ns: now_ns(), computed_ns: computed_ns() };
        let mut flood = Flood::new(clocks());
        let mut urgency = Urgency::new();
        loop {
            match self.wait_ahead().and_then(|()| session.stream().read(&mut buffer[filled..])) {
                Ok(0) => return self.closed().unwrap_or(End::HungUp),
                Ok(read) => {
                    filled = filled.saturating_add(read);
                    self.wake();
                }
                Err(error) => match self.silence(error.kind(), filled) {
                    Some(end) => return end,
                    None => continue,
                },
            }
            let taken = match self.take(&buffer[..filled]) {
                Ok(taken) => taken,
                Err(end) => return end,
            };
            if let Some(end) = self.process_left(PROCESS_CHECK) {
                return end;
            }
            if let Some(pause) = flood.read(filled == buffer.len(), clocks) {
                urgency.gives_way();
                std::thread::sleep(pause);
            }
            urgency.prepare(self.cursor.is_before_a_change(), now_ns());
            buffer.copy_within(taken..filled, 0);
            filled = filled.saturating_sub(taken);
            if let Some(end) = self.asked_to_end(filled) {
                return end;
            }
        }
    }

    /// Takes in what was read, and does what follows from it. Returns the bytes that were taken.
    pub(crate) fn take(&mut self, bytes: &[u8]) -> Result<usize, End> {
        let taken = match self.take_in(bytes) {
            Ok(Some(taken)) => taken,
            Ok(None) => return Err(End::Goodbye),
            Err(error) => return Err(End::Closed(ClosingReason::Malformed, error.to_string())),
        };
        if let Err(error) = self.set_clock().and_then(|()| self.set_power_limit()) {
            return Err(End::Closed(ClosingReason::GpuLost, error.to_string()));
        }
        self.account();
        Ok(taken)
    }

    /// How the daemon ends the session, if it does, after `unread` bytes of a frame.
    pub(crate) fn asked_to_end(&self, unread: usize) -> Option<End> {
        self.closed().or_else(|| self.handed_over(unread))
    }

    /// Waits until the rank sends something, and asks meanwhile for the clock of the next
    /// instruction if that must be asked for before this one ends.
    fn wait_ahead(&mut self) -> io::Result<()> {
        let ask_at_ns = || self.ahead.ask_at_ns(self.cursor.next_change()?, self.rules.settle_ns);
        let Some(ask_at_ns) = ask_at_ns() else { return Ok(()) };
        let left = Duration::from_nanos(ask_at_ns.saturating_sub(now_ns()));
        let mut events = [PollFd::new(self.session.stream().as_fd(), PollFlags::POLLIN)];
        if ppoll(&mut events, Some(left.into()), None)? == 0 {
            self.own_lock = self.clocks.locked();
            self.cursor.look_ahead();
            // A GPU that is lost is noticed when the instruction ends.
            let _ = self.set_clock();
        }
        Ok(())
    }

    /// What a read that returned nothing means, after `unread` bytes of a frame.
    #[cold]
    fn silence(&mut self, kind: ErrorKind, unread: usize) -> Option<End> {
        let asked = self.asked_to_end(unread);
        match kind {
            ErrorKind::Interrupted => {
                self.session.noticed_interruption();
                asked
            }
            ErrorKind::WouldBlock if self.session.ending().is_none() => {
                let left = self.process_left(Duration::ZERO);
                if left.is_some() || (self.session.has_device() && self.rest()) {
                    return left;
                }
                let message = "no event came within the idle limit".into();
                Some(End::Closed(ClosingReason::Idle, message))
            }
            _ => asked.or(Some(End::HungUp)),
        }
    }

    /// Restores the clocks of a rank that was given the GPU and computes something else for a while.
    /// False if they cannot be restored now.
    #[cold]
    fn rest(&mut self) -> bool {
        if self.resting.is_none() {
            let memory = self.progress().published.memory_locked_mhz.load(Relaxed) > 0;
            self.resting = self.clocks.restore().is_ok().then_some(memory);
        }
        self.resting.is_some()
    }

    /// Ends the rest. The first event asks for everything but the memory clock.
    fn wake(&mut self) {
        if self.resting.take() == Some(true)
            && let Err(error) = self.clocks.lock_memory()
        {
            self.progress().problem.store(Some(Arc::new(error.to_string())));
        }
    }

    /// The end of a session whose process computes on the GPU no more, where that is required. The
    /// driver is asked at most this often.
    fn process_left(&mut self, at_most: Duration) -> Option<End> {
        let grant = self.session.grant.load();
        if !grant.terms.require_process || self.process_checked.elapsed() < at_most {
            return None;
        }
        self.process_checked = Instant::now();
        // A driver that does not answer is noticed by what is asked of it next.
        if self.clocks.is_computed_on_by(self.session.holder.pid).unwrap_or(true) {
            return None;
        }
        let why = no_process(&self.session.holder, self.clocks.gpu_uuid(), &grant.place);
        Some(End::Closed(ClosingReason::Revoked, why))
    }

    /// Measures what the session used after its last step began.
    pub(crate) fn measure_end(&self) {
        let mut measured = (**self.progress().measured.load()).clone();
        measured.counter_reads(self.clocks.energy_j());
        self.progress().measured.store(Arc::new(measured));
    }

    fn progress(&self) -> &Progress {
        &self.session.progress
    }

    fn closed(&self) -> Option<End> {
        match self.session.ending()? {
            Ending::Closed(closing) => Some(End::Closed(closing.reason, closing.message.clone())),
            Ending::HandedOver => None,
        }
    }

    /// The next daemon could not parse the rest of a frame.
    fn handed_over(&self, unread: usize) -> Option<End> {
        let asked = matches!(self.session.ending(), Some(Ending::HandedOver));
        (asked && unread == 0).then_some(End::HandedOver)
    }

    /// Takes every whole frame; returns the bytes taken, or `None` after a goodbye.
    fn take_in(&mut self, bytes: &[u8]) -> Result<Option<usize>, FrameError> {
        let mut taken = 0;
        let latest_ns = now_ns().saturating_add(LATEST_NS);
        while let Some(frame) = Frame::first_of(&bytes[taken..])? {
            match frame.kind {
                Kind::Event => {
                    let event = Event::from_payload(frame.payload)?;
                    check(&event, latest_ns)?;
                    self.event(&event);
                }
                Kind::Goodbye => return Ok(None),
                other => return Err(FrameError::Unexpected(other)),
            }
            taken = taken.saturating_add(frame.total_bytes());
        }
        Ok(Some(taken))
    }

    fn event(&mut self, event: &Event) {
        match event.mark {
            Mark::StepBegin(step) => {
                self.session.progress.begin_step(step);
                self.take_up_rules();
                self.take_up_swap(step);
                self.retry = true;
                if self.session.progress.set_again.swap(false, Relaxed) {
                    self.clocks.forget_lock();
                }
                self.begun.steps = self.begun.steps.saturating_add(1);
                self.begun.at_ns = event.client_ns;
                self.units.clear();
                self.units_complete = true;
            }
            Mark::InstructionBegin(unit) if self.units.len() < REMEMBERED_UNITS => {
                self.units.push(unit);
            }
            Mark::InstructionBegin(_) => self.units_complete = false,
            Mark::InstructionEnd(_) | Mark::StepEnd(_) => {}
        }
        let lost_before = self.cursor.lost_events();
        let outcome = self.cursor.event(event);
        if self.cursor.lost_events() != lost_before {
            self.units_complete = false;
            self.progress().lost_events.store(self.cursor.lost_events(), Relaxed);
        }
        if matches!(event.mark, Mark::InstructionBegin(_)) {
            self.ahead.begins(event.client_ns);
        }
        let own_lock = self.own_lock.take();
        if let Some(finished) = outcome.finished {
            self.ahead.ends(finished.position, finished.began_ns, finished.ended_ns);
            self.count_finished(finished, own_lock);
        }
        let locked = own_lock.or_else(|| self.clocks.locked());
        self.session.progress.tap.put(|| record_of(event, &outcome, locked));
        if let Some(mismatch) = outcome.mismatch {
            self.mismatch = Some(mismatch);
            self.mismatched_in_a_row = self.mismatched_in_a_row.saturating_add(1);
            self.progress().mismatched_steps.fetch_add(1, Relaxed);
        } else if matches!(event.mark, Mark::StepEnd(_)) && self.cursor.wish() != Wish::Highest {
            self.mismatched_in_a_row = 0;
        }
        if matches!(event.mark, Mark::StepEnd(_)) && std::mem::take(&mut self.units_complete) {
            std::mem::swap(&mut self.units, &mut self.whole_step);
            self.step_ended = true;
        }
    }

    fn take_up_rules(&mut self) {
        let rules = self.session.grant.load().rules;
        if rules != self.rules {
            self.pace.change(rules.changes_per_second);
            self.rules = rules;
        }
    }

    fn take_up_swap(&mut self, step: u64) {
        let newest = self.job.newest_swap();
        let Some(newest) = newest.as_deref().and_then(Swap::effective) else { return };
        let found = self.joined_in.take();
        let due = (newest.number != self.swap && step >= newest.step()).then_some(newest);
        if let Some(swap) = due.or(found.as_deref()) {
            self.swap = swap.number;
            self.plan.clone_from(&swap.plan);
            self.mismatched_in_a_row = 0;
            self.cursor.follow(self.plan.as_ref().and_then(|plan| plan.stage(self.stage)));
            self.ahead.forget();
            let plan_number = self.plan.as_ref().map_or(0, |plan| plan.number);
            self.session.progress.plan.store(plan_number, Relaxed);
            self.session.progress.swap.store(swap.number, Relaxed);
        }
        let in_force = self.plan.as_ref().filter(|plan| !plan.is_suspended());
        if in_force.is_none() {
            self.cursor.follow(None);
        }
        self.power_limit = in_force.and_then(|plan| plan.power_limit(self.stage));
    }

    fn count_finished(&self, finished: Finished, own_lock: Option<(Mhz, u64)>) {
        let Finished { planned: Some(planned), astray: false, began_ns, ended_ns, .. } = finished
        else {
            return;
        };
        let took_ns = ended_ns.saturating_sub(began_ns);
        let newest = self.clocks.locked();
        let own = own_lock.or(newest).filter(|(mhz, _)| *mhz == planned);
        let next = newest.filter(|newest| own_lock.is_some_and(|own| own != *newest));
        let [own_ns, next_ns] = [own, next].map(|lock| lock.map(|(_, asked_ns)| asked_ns));
        let off_ns = off_plan_ns([began_ns, ended_ns], own_ns, next_ns, self.rules.settle_ns);
        let progress = self.progress();
        progress.instructions.fetch_add(1, Relaxed);
        // The times come from the peer, and may have any value.
        progress.instruction_ns.fetch_add(took_ns, Relaxed);
        progress.off_plan_ns.fetch_add(off_ns, Relaxed);
    }

    /// Does everything that could wait until the clock was set.
    fn account(&mut self) {
        self.ahead.make_room(self.cursor.planned_instructions());
        // So that no read makes it grow on the way to the driver.
        self.units.reserve(MOST_EVENTS_READ.min(REMEMBERED_UNITS.saturating_sub(self.units.len())));
        if std::mem::take(&mut self.step_ended) {
            self.remember_whole_step();
        }
        if self.begun.steps > 0 {
            let StepsBegun { steps, at_ns } = std::mem::take(&mut self.begun);
            let energy_j = self.clocks.energy_j();
            let mut measured = (**self.progress().measured.load()).clone();
            measured.step_begins(self.swap, steps, at_ns.min(now_ns()), energy_j);
            self.progress().measured.store(Arc::new(measured));
        }
        if let Some(mismatch) = self.mismatch.take() {
            self.account_for(mismatch);
        }
        if self.clocks.locked().is_some() {
            panic_in_tests(&self.job.key.name, "panics-in-rank");
        }
    }

    fn remember_whole_step(&self) {
        let known = self.progress().ran.load();
        if known.as_ref().is_none_or(|ran| **ran != self.whole_step) {
            self.progress().ran.store(Some(Arc::new(self.whole_step.clone())));
        }
    }

    #[cold]
    fn account_for(&self, mismatch: Mismatch) {
        self.progress().last_mismatch.store(Some(Arc::new(mismatch.to_string())));
        let rank = self.session.holder.rank;
        if let Some(plan) = &self.plan
            && self.mismatched_in_a_row >= self.rules.suspend_after
            && !plan.is_suspended()
        {
            let steps = self.mismatched_in_a_row;
            plan.suspend(|| {
                format!("rank {rank} did not follow it for {steps} steps in a row: {mismatch}")
            });
            let holder = &self.session.holder;
            tracing::warn!(
                name: journal::PLAN_SUSPENDED,
                job = %holder.job, rank = rank.0, uid = holder.uid.0, pid = holder.pid.0,
                gpu_uuid = %self.clocks.gpu_uuid(), plan = plan.number,
                "suspended plan {} of job {}, user {}, which runs at default clocks now: \
                 rank {rank}: {mismatch}",
                plan.number, holder.job, holder.uid
            );
            self.job.notice_change();
        }
    }
}

/// Why a process may not have, or keep, a lease that requires it to compute on the GPU.
pub(crate) fn no_process(holder: &Holder, gpu: &GpuUuid, place: &Place) -> String {
    format!("process {} does not compute on GPU {gpu}, which {place} requires", holder.pid)
}

/// Checks the numbers of an event before anything is computed from them.
fn check(event: &Event, latest_ns: u64) -> Result<(), FrameError> {
    let wrong = match event.mark {
        _ if event.client_ns > latest_ns => {
            format!("an event at {} ns is more than a minute ahead", event.client_ns)
        }
        Mark::StepBegin(step) | Mark::StepEnd(step) if step > LAST_STEP => {
            format!("step {step} is beyond {LAST_STEP}, the last one possible")
        }
        _ => return Ok(()),
    };
    Err(FrameError::Payload { kind: Kind::Event, source: CodecError::Invalid(wrong) })
}

#[cfg(test)]
mod tests {
    use pfo_protocol::Instruction;

    use super::*;

    const LATEST: u64 = 1_000;

    fn checked(mark: Mark, client_ns: u64) -> Result<(), String> {
        check(&Event { sequence: u64::MAX, client_ns, mark }, LATEST).map_err(|e| e.to_string())
    }

    fn marks(step: u64) -> [Mark; 2] {
        [Mark::StepBegin(step), Mark::StepEnd(step)]
    }

    #[test]
    fn a_step_beyond_the_last_one_possible_is_malformed_and_named() {
        for mark in marks(LAST_STEP) {
            assert_eq!(checked(mark, LATEST), Ok(()));
        }
        for step in [LAST_STEP + 1, u64::MAX - 1, u64::MAX] {
            for mark in marks(step) {
                let error = checked(mark, 0).unwrap_err();
                assert!(error.contains(&format!("step {step} is beyond")), "{error}");
            }
        }
    }

    #[test]
    fn a_time_more_than_a_minute_ahead_is_malformed_whatever_the_event_marks() {
        let unit = Unit::new(Instruction::Forward, u32::MAX);
        let marks =
            marks(0).into_iter().chain([Mark::InstructionBegin(unit), Mark::InstructionEnd(unit)]);
        for mark in marks {
            assert_eq!(checked(mark, LATEST), Ok(()));
            assert_eq!(checked(mark, 0), Ok(()));
            for client_ns in [LATEST + 1, u64::MAX] {
                let error = checked(mark, client_ns).unwrap_err();
                assert!(error.contains(&format!("an event at {client_ns} ns")), "{error}");
            }
        }
    }

    #[test]
    fn what_is_wrong_with_an_event_is_an_error_of_its_frame() {
        let event = Event { sequence: 0, client_ns: 0, mark: Mark::StepBegin(u64::MAX) };
        let error = check(&event, LATEST).unwrap_err();
        assert!(matches!(error, FrameError::Payload { kind: Kind::Event, .. }), "{error:?}");
    }

    #[test]
    fn the_last_step_possible_leaves_room_for_a_swap_and_a_trial_after_it() {
        let progress = Arc::new(Progress::default());
        progress.begin_step(LAST_STEP);
        let swap = Swap::new(1, None, None, vec![progress]);
        assert_eq!(swap.step(), LAST_STEP + 1);
        assert!(swap.step().checked_add(u32::MAX.into()).is_some_and(|step| step < u64::MAX / 2));
    }
}
