//! What is shown: pure, from what the daemons said and where one is to the cells of a terminal.

mod gpus;
mod inside;
mod jobs;
mod ranks;
#[cfg(test)]
mod tests;
mod texts;
mod timeline;

use std::time::{Duration, Instant};

use pfo_protocol::{GpuStatus, JobStatus, RankStatus, Uid};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Modifier, Style};
use ratatui::text::{Line, Text};
use ratatui::widgets::{Paragraph, Widget, Wrap};

use super::feed::Snapshot;
use super::keys::{List, Listing, Page, State};
use super::paint::style;
use super::sheet::{JobKey, Sheet, cut, width_of};
use super::step::Step;
use crate::status::daemon::pfod_line;
use crate::status::quantity::span;
use crate::status::table::Tone;

/// From this height on there is room for the jobs above the GPUs.
const ROOMY: u16 = 16;

/// A free line, a title and a row: a title without a row says nothing.
const LEAST_PART: usize = 3;

/// What is known, and since when nothing new is.
pub(super) struct Shown {
    every: Duration,
    colour: bool,
    last: Option<(Box<Snapshot>, Instant)>,
    /// Why `pfod` did not answer the last time, and for how long it has not.
    away: Option<(String, Duration)>,
    /// The last step of the job that is looked into, or why it is not known.
    step: Option<(JobKey, Result<Step, String>)>,
}

impl Shown {
    pub(super) fn new(every: Duration, colour: bool) -> Self {
        Self { every, colour, last: None, away: None, step: None }
    }

    /// Takes an answer. What was known stays while there is none.
    pub(super) fn take(&mut self, answer: Result<Box<Snapshot>, String>, now: Instant) {
        match answer {
            Ok(snapshot) => {
                self.last = Some((snapshot, now));
                self.away = None;
            }
            Err(why) => {
                let since = self.last.as_ref().map_or(now, |(_, at)| *at);
                self.away = Some((why, now.saturating_duration_since(since)));
            }
        }
    }

    /// Takes a step of a job.
    pub(super) fn take_step(&mut self, job: JobKey, step: Result<Step, String>) {
        self.step = Some((job, step));
    }

    /// Another job is looked into, or the same one anew.
    pub(super) fn forget_step(&mut self) {
        self.step = None;
    }

    fn snapshot(&self) -> Option<&Snapshot> {
        self.last.as_ref().map(|(snapshot, _)| &**snapshot)
    }
}

impl Snapshot {
    fn user(&self, uid: Uid) -> String {
        self.users.get(&uid).cloned().unwrap_or_else(|| uid.to_string())
    }

    fn gpu(&self, rank: &RankStatus) -> Option<&GpuStatus> {
        self.both.pfod.gpus.iter().find(|gpu| gpu.uuid == rank.gpu_uuid)
    }

    fn job(&self, state: &State) -> Option<&JobStatus> {
        let (uid, name) = state.job.as_ref()?;
        self.both.pfod.jobs.iter().find(|job| (job.uid, &job.job) == (*uid, name))
    }
}

/// The mean of what is known.
fn waits_of(ranks: &[RankStatus], snapshot: &Snapshot) -> Option<f64> {
    let known: Vec<f64> =
        ranks.iter().filter_map(|rank| snapshot.waits.get(&rank.session).copied()).collect();
    (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
}

fn sheet(snapshot: &Snapshot, state: &State) -> Sheet {
    let (sort, filter) = (state.place(state.list).sort, &state.filter);
    match state.list {
        List::Gpus => gpus::sheet(snapshot, sort, filter),
        List::Jobs => jobs::sheet(snapshot, sort, filter),
        List::Ranks => ranks::sheet(snapshot, None, sort, filter),
        List::RanksOfJob => ranks::sheet(snapshot, state.job.as_ref(), sort, filter),
    }
}

/// What the keys have to know of what is shown.
pub(super) fn listing(shown: &Shown, state: &State, area: Rect) -> Listing {
    let Some(snapshot) = shown.snapshot() else { return Listing::default() };
    let sheet = sheet(snapshot, state);
    let columns = sheet.columns();
    let body = Parts::of(shown, snapshot, state, &sheet, area).body;
    let rows = sheet.rows.into_iter().map(|row| (row.id, row.job)).collect();
    Listing { rows, columns, page: body.height.saturating_sub(1).into() }
}

/// Where things are.
struct Parts {
    title: Rect,
    tabs: Rect,
    /// Above the list: the jobs, or what is known of one.
    above: Rect,
    body: Rect,
    /// Below the list: the last step and the plan of a job.
    below: Rect,
    footer: Rect,
}

impl Parts {
    /// The list comes first: what is above and below it takes what it does not need, and at least a
    /// part of a screen that has room.
    fn of(shown: &Shown, snapshot: &Snapshot, state: &State, sheet: &Sheet, area: Rect) -> Self {
        let mut left = area;
        let mut top = |height: u16| {
            let taken = Rect { height: height.min(left.height), ..left };
            left = Rect { y: left.y + taken.height, height: left.height - taken.height, ..left };
            taken
        };
        let title = top(1);
        let tabs = if area.height >= 5 { top(1) } else { top(0) };
        let footer_height = u16::from(area.height >= 4);
        let room = area.height.saturating_sub(title.height + tabs.height + footer_height);
        let wanted = (sheet.rows.len() as u16).saturating_add(1);
        let spare = match area.height {
            ROOMY.. => room.saturating_sub(wanted).max(room / 3),
            _ => 0,
        };
        let (mut above, mut below) = (0, 0);
        match (state.list, snapshot.job(state)) {
            (List::Gpus, _) => {
                let jobs = snapshot.both.pfod.jobs.len() as u16;
                above = if jobs == 0 { 0 } else { (jobs + 2).min(spare).min(room / 3) };
            }
            (List::RanksOfJob, Some(job)) => {
                let rows = inside::measured(job).rows.len() as u16;
                let lines = inside::lines(job, snapshot).len() as u16;
                above = (lines + 1 + if rows > 0 { rows + 1 } else { 0 }).min(spare);
                let lines = Below::of(shown, snapshot, state, area.width).lines(spare - above);
                below = lines.len() as u16;
            }
            _ => {}
        }
        let above = top(above);
        let rest = room.saturating_sub(above.height + below);
        let body = top(if below > 0 { rest.min(wanted.max(2)) } else { rest });
        let below = top(below);
        let footer = top(footer_height);
        Self { title, tabs, above, body, below, footer }
    }
}

/// What is below the ranks of a job: its last step and, if there is room, its plan.
#[derive(Default)]
struct Below {
    step: Vec<Line<'static>>,
    plan: Vec<Line<'static>>,
}

impl Below {
    fn of(shown: &Shown, snapshot: &Snapshot, state: &State, width: u16) -> Self {
        let Some(job) = &state.job else { return Self::default() };
        let table = snapshot.plan.as_ref().filter(|(of, _)| of == job).map(|(_, table)| table);
        let step = match shown.step.as_ref().filter(|(of, _)| of == job) {
            Some((_, Ok(step))) => timeline::lines(step, table, width, shown.colour),
            Some((_, Err(why))) => vec![Line::raw(format!("Last step: {why}"))],
            None => Vec::new(),
        };
        let plan = table.map(|table| inside::plan(table, shown.colour)).unwrap_or_default();
        Self { step, plan }
    }

    /// Both below a line that stays free. The plan is not cut below a step, which shows its clocks, too.
    fn lines(self, room: u16) -> Vec<Line<'static>> {
        let mut lines = Vec::new();
        for part in [self.step, self.plan] {
            let rest = usize::from(room) - lines.len();
            let has_room = part.len() < rest || (lines.len() < LEAST_PART && rest >= LEAST_PART);
            if !part.is_empty() && has_room {
                lines.push(Line::default());
                lines.extend(part.into_iter().take(rest - 1));
            }
        }
        lines
    }
}

/// Draws everything.
pub(super) fn draw(shown: &Shown, state: &State, area: Rect, buffer: &mut Buffer) {
    let Some(snapshot) = shown.snapshot().filter(|_| !area.is_empty()) else { return };
    let sheet = sheet(snapshot, state);
    let parts = Parts::of(shown, snapshot, state, &sheet, area);
    title(shown, snapshot, parts.title, buffer);
    tabs(shown, state, snapshot, parts.tabs, buffer);
    let selected = sheet.position(state.place(state.list).selected.as_deref());
    let text_area =
        Rect { height: parts.above.height + parts.body.height + parts.below.height, ..parts.above };
    let mut place = String::new();
    match state.page {
        Page::Help => text(texts::help(), state.scroll, text_area, buffer),
        Page::Attention => text(texts::attention(snapshot), state.scroll, text_area, buffer),
        Page::Lists => {
            above(snapshot, state, parts.above, shown.colour, buffer);
            sheet.draw(parts.body, buffer, selected, shown.colour);
            if sheet.rows.is_empty() && parts.body.height > 1 {
                let line = Rect { y: parts.body.y + 1, height: 1, ..parts.body };
                put(nothing(state), Style::new(), line, buffer);
            }
            let below = Below::of(shown, snapshot, state, area.width).lines(parts.below.height);
            Paragraph::new(Text::from(below)).render(parts.below, buffer);
            let page = sheet.page(parts.body.height, selected);
            place = format!("{}-{} of {}", page.start + 1, page.end, sheet.rows.len());
            if page.len() == sheet.rows.len() {
                place.clear();
            }
        }
    }
    footer(shown, state, snapshot, &place, parts.footer, buffer);
}

fn nothing(state: &State) -> &'static str {
    match state.list {
        _ if !state.filter.is_empty() => "No row contains the filter; Esc ends it.",
        List::Gpus => "No GPUs.",
        List::Jobs => "No jobs.",
        List::Ranks => "No ranks.",
        List::RanksOfJob => "The job no longer has a rank here; Esc goes back.",
    }
}

fn put(line: &str, style: Style, area: Rect, buffer: &mut Buffer) {
    if !area.is_empty() {
        buffer.set_string(area.x, area.y, cut(line, area.width), style);
    }
}

fn put_right(line: &str, style: Style, area: Rect, buffer: &mut Buffer) {
    let width = width_of(line).min(area.width);
    put(line, style, Rect { x: area.right() - width, width, ..area }, buffer);
}

fn text(text: Text<'static>, scroll: u16, area: Rect, buffer: &mut Buffer) {
    let paragraph = Paragraph::new(text).wrap(Wrap { trim: false });
    paragraph.scroll((scroll, 0)).render(area, buffer);
}

/// `pfod`, or that it is away.
fn title(shown: &Shown, snapshot: &Snapshot, area: Rect, buffer: &mut Buffer) {
    if let Some((why, time)) = &shown.away {
        let time = span(time.as_secs_f64());
        let line = format!("pfod has not answered for {time}, figures are from before: {why}");
        let bad = style(Tone::Bad, shown.colour).add_modifier(Modifier::REVERSED);
        buffer.set_style(area, bad);
        return put(&line, bad, area, buffer);
    }
    let line = pfod_line(&snapshot.both.pfod.daemon);
    put(line.trim_end(), Style::new(), area, buffer);
    let every = format!("  every {} s", shown.every.as_secs_f64());
    if width_of(line.trim_end()) + width_of(&every) <= area.width {
        put_right(&every, Style::new(), area, buffer);
    }
}

fn tabs(shown: &Shown, state: &State, snapshot: &Snapshot, area: Rect, buffer: &mut Buffer) {
    let pfod = &snapshot.both.pfod;
    let ranks = pfod.jobs.iter().map(|job| job.ranks.len()).sum::<usize>();
    let lists = [
        (List::Gpus, format!("1 GPUs {}", pfod.gpus.len())),
        (List::Jobs, format!("2 Jobs {}", pfod.jobs.len())),
        (List::Ranks, format!("3 Ranks {ranks}")),
    ];
    let mut x = area.x;
    let mut write = |words: &str, style: Style| {
        let rest = Rect { x, width: area.right().saturating_sub(x), ..area };
        put(words, style, rest, buffer);
        x = x.saturating_add(width_of(words) + 2).min(area.right());
    };
    let here = Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
    for (list, words) in lists {
        let is_here = state.list == list && state.page == Page::Lists;
        write(&words, if is_here { here } else { Style::new() });
    }
    match (state.page, &state.job) {
        (Page::Help, _) => write("Help", here),
        (Page::Attention, _) => write("Needs attention", here),
        (Page::Lists, Some((uid, job))) => {
            write(&format!("Job {job} of {}", snapshot.user(*uid)), here);
        }
        (Page::Lists, None) => {}
    }
    if state.typing || !state.filter.is_empty() {
        let cursor = if state.typing { "_" } else { "" };
        let filter = format!("/{}{cursor}", state.filter);
        let filter = crate::text::harmless(&filter);
        put_right(&filter, style(Tone::Notable, shown.colour), area, buffer);
    }
}

/// What is above the list.
fn above(snapshot: &Snapshot, state: &State, area: Rect, colour: bool, buffer: &mut Buffer) {
    if area.is_empty() {
        return;
    }
    match (state.list, snapshot.job(state)) {
        (List::RanksOfJob, Some(job)) => {
            let lines = inside::lines(job, snapshot);
            let said = Rect { height: area.height.min(lines.len() as u16), ..area };
            Paragraph::new(Text::from(lines)).render(said, buffer);
            // The last line stays free, as below the jobs.
            let height = (area.height - said.height).saturating_sub(1);
            let windows = Rect { y: said.bottom(), height, ..area };
            inside::measured(job).draw(windows, buffer, None, colour);
        }
        _ => {
            // A line below it stays free.
            let area = Rect { height: area.height - 1, ..area };
            let sort = state.place(List::Jobs).sort;
            jobs::sheet(snapshot, sort, "").draw(area, buffer, None, colour);
        }
    }
}

/// What needs attention, the order, the keys that matter most, and where in the list one is.
fn footer(
    shown: &Shown,
    state: &State,
    snapshot: &Snapshot,
    place: &str,
    area: Rect,
    buffer: &mut Buffer,
) {
    let points = texts::points(snapshot).len();
    let mut words = Vec::new();
    match points {
        0 => {}
        1 => words.push("1 needs attention: a".to_owned()),
        points => words.push(format!("{points} need attention: a")),
    }
    words.push("? help".to_owned());
    words.push("q quit".to_owned());
    if state.page != Page::Lists || state.list == List::RanksOfJob {
        words.push("Esc back".to_owned());
    } else {
        words.push("Enter job".to_owned());
    }
    let sort = state.place(state.list).sort;
    words.push(match sort.column {
        Some(column) => format!("s by {}", sheet(snapshot, state).name_of(column)),
        None => "s sort".to_owned(),
    });
    words.push("/ filter".to_owned());
    let tone = if points > 0 { Tone::Notable } else { Tone::Plain };
    let taken = width_of(place);
    let room = area.width.saturating_sub(if taken > 0 { taken + 2 } else { 0 });
    while words.len() > 1 && width_of(&words.join("  ")) > room {
        words.pop();
    }
    put(&words.join("  "), style(tone, shown.colour), Rect { width: room, ..area }, buffer);
    put_right(place, Style::new(), area, buffer);
}
