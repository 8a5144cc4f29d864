//! A job as a decision sees it.

use crate::curve::Curve;
use crate::error::{BudgetError, above_0};

/// A job, what it can run, and how much it counts.
#[derive(Clone, Copy, Debug)]
pub struct Job<'a> {
    /// Its name, which no other job has. Ties are broken by it.
    pub name: &'a str,
    /// What it can run.
    pub curve: &'a Curve,
    /// How much its progress counts. With its number of GPUs, a GPU of every job counts the same.
    pub weight: f64,
}

impl Job<'_> {
    /// What it draws at a point, in watts.
    pub fn power_w(&self, place: usize) -> f64 {
        self.curve.points()[place].power_w
    }

    /// The weighted progress that it loses at a point.
    pub fn loss(&self, place: usize) -> f64 {
        self.weight * self.curve.lost(place)
    }

    /// The price of an edge of its hull: weighted progress for each watt.
    pub(crate) fn price(&self, edge: usize) -> f64 {
        self.weight * self.curve.prices()[edge]
    }

    pub(crate) fn check(&self) -> Result<(), BudgetError> {
        let of = || format!("job {}", self.name);
        above_0("the weight", of, self.weight)?;
        Ok(())
    }
}
