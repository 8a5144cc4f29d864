//! Every series: its name, its unit, its labels, what it means, and its value. `docs/metrics.md` lists
//! them, which a test compares.
//!
//! What is not known has no value, and is served by no series: 0 is a figure like others. The names of
//! jobs are labels of `pfo_job_…` only, which go with the job.

mod agent;
mod budget;
mod daemon;
mod gpu;
mod job;
mod rank;
mod saved;
#[cfg(test)]
mod tests;

use std::fmt;

use prometheus_client::metrics::MetricType;

use super::known::Known;

/// What may happen to a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It rises, or starts again at 0.
    Counter,
    /// It may be anything.
    Gauge,
    /// It is 1, and the labels are what counts.
    Info,
}

impl Kind {
    /// How the names of such series end.
    pub(super) fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Gauge => "",
            Self::Info => "_info",
        }
    }

    pub(super) fn metric_type(self) -> MetricType {
        match self {
            Self::Counter => MetricType::Counter,
            Self::Gauge => MetricType::Gauge,
            Self::Info => MetricType::Info,
        }
    }
}

/// The labels of one series.
pub(super) type Labels = Vec<(&'static str, String)>;

/// What all of these have a series of.
pub(super) struct Series<T> {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    /// The unit, with which the name ends.
    pub(super) unit: Option<&'static str>,
    pub(super) help: &'static str,
    /// The value of one of them, if it is known.
    pub(super) value: fn(&T) -> Option<f64>,
}

/// What there are series of.
pub(super) struct Subject<T> {
    pub(super) labels: &'static [&'static str],
    /// The value of each label.
    label_values: fn(&T) -> Vec<String>,
    pub(super) series: Vec<Series<T>>,
}

impl<T> Subject<T> {
    pub(super) fn labels_of(&self, one: &T) -> Labels {
        self.labels.iter().copied().zip((self.label_values)(one)).collect()
    }
}

/// What takes the series of everything that is known.
pub(super) trait Sink {
    /// Takes the series of one subject.
    ///
    /// # Errors
    /// If it cannot take more.
    fn take<T>(&mut self, subject: &Subject<T>, ones: &[T]) -> fmt::Result;
}

/// Hands out every series, whether there is something to say or not.
///
/// # Errors
/// If the sink cannot take more.
pub(super) fn all(known: &Known, sink: &mut impl Sink) -> fmt::Result {
    agent::series(known, sink)?;
    daemon::series(known, sink)?;
    gpu::series(known, sink)?;
    rank::series(known, sink)?;
    job::series(known, sink)?;
    saved::series(known, sink)?;
    budget::series(known, sink)
}

/// The text of a label that is another type elsewhere.
fn text(value: impl fmt::Display) -> String {
    value.to_string()
}

/// A count, as Prometheus has all figures.
fn count(value: impl TryInto<u64>) -> Option<f64> {
    value.try_into().ok().map(|value| value as f64)
}

/// 1 if it is so, else 0.
fn flag(is_so: bool) -> Option<f64> {
    Some(is_so.into())
}

fn gauge<T>(
    name: &'static str,
    unit: Option<&'static str>,
    help: &'static str,
    value: fn(&T) -> Option<f64>,
) -> Series<T> {
    Series { name, kind: Kind::Gauge, unit, help, value }
}

/// Nothing of a counter is below 0: it would be one of another kind.
fn counter<T>(
    name: &'static str,
    unit: Option<&'static str>,
    help: &'static str,
    value: fn(&T) -> Option<f64>,
) -> Series<T> {
    Series { name, kind: Kind::Counter, unit, help, value }
}

fn info<T>(name: &'static str, help: &'static str) -> Series<T> {
    Series { name, kind: Kind::Info, unit: None, help, value: |_| Some(1.0) }
}
