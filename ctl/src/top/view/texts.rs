//! The pages of text: help, and what needs attention.

use ratatui::text::{Line, Text};

use crate::output::Look;
use crate::status::{COLUMNS, attention};
use crate::top::KEYS;
use crate::top::feed::Snapshot;

pub(super) const WAITS: &str = "  Waits        share of the last 30 s in which the rank ran no instruction of its plan; the mean of
               a job's ranks";

/// Keys and columns.
pub(super) fn help() -> Text<'static> {
    let keys = KEYS.lines().chain([""]).map(Line::raw);
    keys.chain(COLUMNS.lines().map(Line::raw)).chain(WAITS.lines().map(Line::raw)).collect()
}

/// One sentence for each thing that somebody has to look after.
pub(super) fn attention(snapshot: &Snapshot) -> Text<'static> {
    let points = points(snapshot);
    if points.is_empty() {
        return Text::raw("Nothing needs attention.");
    }
    points.into_iter().map(Line::raw).collect()
}

/// The same as `pfoctl status` lists.
pub(super) fn points(snapshot: &Snapshot) -> Vec<String> {
    let (pfod, agent) = (&snapshot.both.pfod, &snapshot.both.agent);
    let list = attention::list(pfod, agent, &|uid| snapshot.user(uid), Look::default());
    let list = list.unwrap_or_default();
    list.lines().skip(1).map(|point| point.trim().to_owned()).collect()
}
