//! One node's part in one job: what it knows, and what follows from it.
//!
//! It first takes every event in, and then finds anew from its knowledge what to do. Nothing
//! depends on who was first or on what an agent remembers: one that starts anew reads the store,
//! looks at `pfod`, and continues where the last one stopped.

mod arming;
mod deciding;
mod following;
mod measuring;
mod pace;
mod proposing;
mod watching;

use std::collections::BTreeSet;

use crate::digest::Digest;
use crate::event::{Action, Event, Runs, Seen, Told, Write};
use crate::member::Member;
use crate::node::Node;
use crate::shared::{Change, Shared, SharedSwap, View};
use crate::swap::{Proposal, Report, Run, Took};

use self::following::InForce;
use self::pace::Pace;

pub use proposing::Wish;

/// Milliseconds after which something that `pfod` or the store has refused is tried again.
const RETRY_MS: u64 = 500;

/// Milliseconds between two looks at `pfod` when nothing asks for one.
const LOOK_MS: u64 = 1000;

/// What is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Milliseconds that the members have to arm a swap: its step is as many steps ahead.
    pub lead_ms: u64,
    /// Steps that a rank may be ahead of another one.
    pub slack: u64,
    /// What happens while the store does not answer.
    pub on_partition: OnPartition,
}

impl Default for Settings {
    fn default() -> Self {
        Self { lead_ms: 3000, slack: 2, on_partition: OnPartition::Keep }
    }
}

/// What a node does while the store does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnPartition {
    /// Its plan stays in force.
    Keep,
    /// After this many milliseconds it changes to default clocks. That has to be longer than the
    /// lease of a member, so that the node is known to be away before it changes.
    DefaultClocks(u64),
}

/// The state of one node's part in one job.
#[derive(Clone, Debug)]
pub struct Participant {
    me: Node,
    settings: Settings,
    now_ms: u64,
    /// The job in the store, as far as it was seen.
    shared: Option<Shared>,
    /// How much of it `shared` is, and how much was last requested.
    view: View,
    watches: View,
    /// When somebody wanted to see the whole job for the last time.
    asked_ms: Option<u64>,
    /// Since when the store does not answer.
    away_since_ms: Option<u64>,
    /// What was sent to the store, and has neither been lost nor come back as a change.
    writing: BTreeSet<Write>,
    seen: Option<Seen>,
    pace: Pace,
    looking: bool,
    /// Something has happened that a look has to be later than.
    stale: bool,
    looked_ms: u64,
    slices: BTreeSet<Digest>,
    fetching: bool,
    retry_fetch_ms: u64,
    loading: bool,
    /// What `pfod` said of the plan of this proposal.
    loaded: Option<(u64, Result<(), String>)>,
    /// The swap that was requested of `pfod` and has no answer yet; none if it leads to default
    /// clocks because of a partition.
    swapping: Option<Option<u64>>,
    retry_swap_ms: u64,
    refused: Option<String>,
    /// What `pfod` has agreed to, and has yet to be seen to run.
    arranged: Option<Took>,
    in_force: Option<InForce>,
    /// The step at which the node left the plan because of a partition.
    left_at: Option<u64>,
    /// None until the store has shown what an earlier agent of this node reported.
    report: Option<Report>,
    /// The newest swap that is not decided, and the trial that the job is in; each with the time since
    /// when this is known.
    undecided_since: Option<(u64, u64)>,
    trial_since: Option<(u64, u64)>,
    wish: Option<Wish>,
    /// What the members took to agree on the newest wish that was committed.
    agreed_ms: Option<u64>,
    /// Whether somebody at this node runs trials of the job.
    measures: bool,
    /// The newest trial that this node was asked to measure.
    measured: u64,
    /// Since when nobody runs the trials that the job is in.
    abandoned_since_ms: Option<u64>,
}

impl Participant {
    /// A part of which nothing is known so far, at a time on the clock of [`Event::Tick`].
    #[must_use]
    pub fn new(me: Node, settings: Settings, now_ms: u64) -> Self {
        Self {
            me,
            settings,
            now_ms,
            shared: None,
            view: View::Part,
            watches: View::Part,
            asked_ms: None,
            away_since_ms: Some(now_ms),
            writing: BTreeSet::new(),
            seen: None,
            pace: Pace::default(),
            looking: false,
            stale: true,
            looked_ms: 0,
            slices: BTreeSet::new(),
            fetching: false,
            retry_fetch_ms: 0,
            loading: false,
            loaded: None,
            swapping: None,
            retry_swap_ms: 0,
            refused: None,
            arranged: None,
            in_force: None,
            left_at: None,
            report: None,
            undecided_since: None,
            trial_since: None,
            wish: None,
            agreed_ms: None,
            measures: false,
            measured: 0,
            abandoned_since_ms: None,
        }
    }

    /// The job in the store, as this node last saw it.
    #[must_use]
    pub fn shared(&self) -> Option<&Shared> {
        self.shared.as_ref()
    }

    /// Since when the store does not answer, on the clock of [`Event::Tick`].
    #[must_use]
    pub fn away_since_ms(&self) -> Option<u64> {
        self.away_since_ms
    }

    /// Takes an event in. Returns what is to be done.
    pub fn on(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        if let Some(told) = self.take_in(event) {
            actions.push(Action::Tell(told));
        }
        self.take_note_of_swaps();
        actions.extend(self.tell());
        actions.extend(self.look());
        actions.extend(self.swap());
        if self.away_since_ms.is_none() {
            actions.extend(self.join());
            actions.extend(self.say());
            actions.extend(self.fetch());
            actions.extend(self.load());
            actions.extend(self.arm());
            actions.extend(self.measure());
            actions.extend(self.decide());
            self.drop_idle_wish();
            self.end_abandoned_trials();
            actions.extend(self.propose());
        }
        actions.extend(self.watch());
        actions
    }

    fn take_in(&mut self, event: Event) -> Option<Told> {
        match event {
            Event::Tick(now_ms) => {
                self.now_ms = self.now_ms.max(now_ms);
                self.stale |= self.now_ms >= self.looked_ms.saturating_add(LOOK_MS);
            }
            Event::Snapshot(view, shared) => {
                self.view = view;
                let own = shared.reports.get(&self.me).cloned().unwrap_or_default();
                self.report.get_or_insert(own);
                self.shared = Some(shared);
                self.begin_anew();
                self.writing.clear();
                self.away_since_ms = None;
                self.stale = true;
            }
            Event::Changed(change) => self.change(change),
            Event::StoreAway => {
                self.away_since_ms.get_or_insert(self.now_ms);
            }
            Event::Written(write, taken) => {
                if taken.is_none() {
                    self.writing.remove(&write);
                }
                if write == Write::Propose {
                    self.proposed(taken);
                }
            }
            Event::Fetched(slices) => {
                self.fetching = false;
                if slices.is_empty() {
                    self.retry_fetch_ms = self.now_ms.saturating_add(RETRY_MS);
                }
                self.slices.extend(slices);
            }
            Event::Looked(seen) => {
                if let Some(Seen { next_step, step_ms, .. }) = &seen {
                    self.pace.see(*next_step, *step_ms, self.now_ms);
                }
                (self.looking, self.looked_ms, self.seen) = (false, self.now_ms, seen);
            }
            Event::Loaded(number, fits) => {
                self.loading = false;
                self.loaded = fits.map(|fits| (number, fits));
            }
            Event::Swapped(answer) => self.swapped(answer),
            Event::Wished(run, by_uid, purpose, terms) => {
                return self.wished(Wish::new(run, by_uid, purpose, terms));
            }
            Event::LetGo => self.let_go(),
            Event::Asked => self.asked_ms = Some(self.now_ms),
        }
        None
    }

    fn change(&mut self, change: Change) {
        let Some(shared) = &mut self.shared else { return };
        let asks_for_look = matches!(change, Change::Proposal(..) | Change::Decision(..));
        let own = |node: &Node| *node == self.me;
        let shown = match &change {
            Change::Member(node, _) => own(node).then_some(Write::Join),
            Change::Report(node, _) => own(node).then_some(Write::Report),
            Change::Answer(_, node, _) => own(node).then_some(Write::Arm),
            Change::Proposal(..) => Some(Write::Propose),
            Change::Decision(..) => Some(Write::Decide),
            Change::Forgotten(_) => None,
        };
        shown.map(|write| self.writing.remove(&write));
        if matches!(change, Change::Proposal(..)) {
            // An answer to the one before is not taken any more, and so is never shown.
            self.writing.remove(&Write::Arm);
        }
        shared.apply(change);
        let all_said =
            |(_, swap): (u64, &SharedSwap)| swap.answers.len() >= swap.proposal.members.len();
        self.stale |= asks_for_look || shared.undecided().is_some_and(all_said);
        self.begin_anew();
    }

    /// A store that was away from all nodes for long has forgotten the job, whose next swap is the
    /// first one again; and one that was restored has forgotten the last swaps.
    fn begin_anew(&mut self) {
        let (taken, newest) = (self.taken(), self.shared.as_ref().map(Shared::newest));
        if let Some(newest) = newest.filter(|newest| *newest < taken) {
            (self.arranged, self.in_force, self.left_at) = (None, None, None);
            // One that was restored leads back to what ran earlier.
            let why = || format!("the store is older than swap {taken}, which this node ran");
            self.refused = (newest > 0).then(why);
            self.report = Some(Report::default());
        }
    }

    /// What `pfod` shows, if that is later than everything that has happened.
    fn fresh(&self) -> Option<&Seen> {
        self.seen.as_ref().filter(|_| !self.stale && !self.looking)
    }

    fn look(&mut self) -> Option<Action> {
        if !self.stale || self.looking {
            return None;
        }
        (self.looking, self.stale) = (true, false);
        Some(Action::Look)
    }

    fn join(&mut self) -> Option<Action> {
        let Seen { degrees, places, gpus, slow, .. } = self.seen.as_ref()?;
        let is_known = self.shared.as_ref()?.members.get(&self.me).is_some_and(|known| {
            let is_same = known.degrees == *degrees && known.measures == self.measures;
            is_same && known.places == *places && known.gpus == *gpus && known.slow == *slow
        });
        let member = || Member {
            degrees: *degrees,
            places: places.clone(),
            gpus: gpus.clone(),
            measures: self.measures,
            slow: slow.clone(),
        };
        (!is_known && self.writing.insert(Write::Join)).then(|| Action::Join(member()))
    }

    fn say(&mut self) -> Option<Action> {
        let report = self.report.as_ref()?;
        let written = self.shared.as_ref()?.reports.get(&self.me);
        let is_known = written.map_or(*report == Report::default(), |written| written == report);
        (!is_known && self.writing.insert(Write::Report)).then(|| Action::Report(report.clone()))
    }

    /// Fetches the slices that this node lacks of the newest swap and of what is committed.
    fn fetch(&mut self) -> Option<Action> {
        if self.fetching || self.now_ms < self.retry_fetch_ms {
            return None;
        }
        let shared = self.shared.as_ref()?;
        let newest = shared.undecided().map(|(_, swap)| &*swap.proposal);
        let committed = shared.committed().next().map(|(_, proposal)| &**proposal);
        let lacking: BTreeSet<Digest> = newest
            .into_iter()
            .chain(committed)
            .flat_map(|proposal| self.lacking(proposal))
            .collect();
        self.fetching = !lacking.is_empty();
        self.fetching.then_some(Action::Fetch(lacking))
    }

    fn lacking(&self, proposal: &Proposal) -> Vec<Digest> {
        let Some(seen) = &self.seen else { return Vec::new() };
        let wanted = seen.places.iter().filter_map(|place| proposal.run.slice(place.stage));
        wanted.filter(|digest| !self.slices.contains(digest)).collect()
    }

    /// Whether `pfod` shows that a node runs, or is about to run, what was proposed.
    fn is_run(seen: &Seen, run: &Run) -> bool {
        match (&seen.runs, run) {
            (Runs::DefaultClocks, Run::DefaultClocks) => true,
            (Runs::Uniform(runs), Run::Uniform(run)) => runs == run,
            (Runs::Replicas(runs), Run::Replicas(run)) => runs == run,
            (Runs::PowerLimits(runs), Run::PowerLimits { limits_w, .. }) => runs == limits_w,
            (Runs::Slices(slices), Run::Plan(_)) => {
                slices.iter().all(|(stage, slice)| run.slice(*stage) == Some(*slice))
            }
            _ => false,
        }
    }

    /// Whether the job has ranks on other nodes.
    fn spans_nodes(seen: &Seen) -> bool {
        seen.degrees.ranks() > seen.places.len() as u64
    }

    /// The number of the newest committed swap that this node has taken up; 0 before the first.
    fn taken(&self) -> u64 {
        self.report.as_ref().and_then(|report| report.took).map_or(0, |took| took.number)
    }

    /// Whether this node can run a proposal at its step: `pfod` has nothing to do any more for what is
    /// committed, or only later, and then does that in place of it.
    fn can_change_to(&self, proposal: &Proposal) -> bool {
        let (Some(shared), Some(report)) = (&self.shared, &self.report) else { return false };
        let (committed, begins) =
            shared.committed().next().map_or((0, 0), |(number, proposal)| (number, proposal.step));
        let is_arranged = |arranged: &Took| arranged.number == committed && proposal.step <= begins;
        let is_settled =
            self.taken() >= committed || self.arranged.as_ref().is_some_and(is_arranged);
        let is_in_time = !report.is_late() || proposal.trial.is_none() && self.is_only_astray();
        is_settled && is_in_time && self.swapping.is_none()
    }

    /// Whether `pfod` runs what is committed, or is about to, and only a GPU does something else.
    fn is_only_astray(&self) -> bool {
        let committed = self.shared.as_ref().and_then(|shared| shared.committed().next());
        let runs = |seen: &Seen, run| seen.astray.is_some() && Self::is_run(seen, run);
        committed
            .is_some_and(|(_, newest)| self.fresh().is_some_and(|seen| runs(seen, &newest.run)))
    }
}
