//! What was measured: time and energy of each instruction of each stage at each clock.
//!
//! Nothing is fitted or scaled here: a plan's prediction must be what these rows say.

mod columns;
pub(crate) mod combine;
mod csv;
mod dialect;
pub(crate) mod error;
mod header;
pub(crate) mod left_out;
mod line_feeds;
pub(crate) mod measurement;
pub(crate) mod median;
mod microbatches;
mod missing;
pub(crate) mod parts;
pub(crate) mod quantity;
pub(crate) mod repeats;
pub(crate) mod unheld;

use std::collections::BTreeMap;

use pfo_vocabulary::{Instruction, Mhz, Stage};

use crate::error::PlanError;
use crate::payload::Payloads;
use crate::profile::error::ProfileError;
use crate::profile::left_out::LeftOut;
use crate::profile::measurement::Measurement;
use crate::profile::parts::Part;
use crate::profile::quantity::Quantity;
use crate::profile::repeats::Repeats;
use crate::profile::unheld::Unheld;
use crate::waits::per_stage::PerStage;
use crate::waits::power::PowerByClock;

/// A measured profile of all stages of a pipeline.
#[derive(Clone, Debug, PartialEq)]
pub struct Profile {
    /// By stage, the rows of each instruction by rising clock.
    stages: Vec<BTreeMap<Instruction, Vec<Measurement>>>,
    /// For rows that were measured more than once.
    repeats: BTreeMap<(Stage, Instruction, Mhz), Repeats>,
    left_out: Vec<LeftOut>,
    unheld: Vec<Unheld>,
    /// What was measured for each part of a step, if parts were measured apart.
    parts: BTreeMap<Part, Self>,
    /// What instructions get beside a clock, of the rows that say it.
    payloads: Payloads,
}

impl Profile {
    /// A profile of rows that measure each (stage, instruction, frequency) at most once.
    ///
    /// # Errors
    /// If there is no row, or a stage below the highest one has none.
    pub fn from_measurements(
        rows: impl IntoIterator<Item = (Stage, Instruction, Measurement)>,
    ) -> Result<Self, PlanError> {
        Ok(Self::from_rows(rows)?)
    }

    fn from_rows(
        rows: impl IntoIterator<Item = (Stage, Instruction, Measurement)>,
    ) -> Result<Self, ProfileError> {
        let profile = Self::with_tables(rows);
        let stages = &profile.stages;
        if stages.is_empty() {
            return Err(ProfileError::EmptyProfile);
        }
        if let Some(missing) = stages.iter().position(BTreeMap::is_empty) {
            return Err(ProfileError::StageWithoutRows { missing, highest: stages.len() - 1 });
        }
        Ok(profile)
    }

    /// The same for rows that some stages may lack.
    pub(crate) fn with_tables(
        rows: impl IntoIterator<Item = (Stage, Instruction, Measurement)>,
    ) -> Self {
        let mut stages: Vec<BTreeMap<_, Vec<Measurement>>> = Vec::new();
        for (stage, instruction, measured) in rows {
            if stages.len() <= stage.index() {
                stages.resize_with(stage.index() + 1, BTreeMap::new);
            }
            stages[stage.index()].entry(instruction).or_default().push(measured);
        }
        for table in stages.iter_mut().flat_map(BTreeMap::values_mut) {
            table.sort_by_key(|measured| measured.frequency);
        }
        Self {
            stages,
            repeats: BTreeMap::new(),
            left_out: Vec::new(),
            unheld: Vec::new(),
            parts: BTreeMap::new(),
            payloads: Payloads::new(),
        }
    }

    /// A profile of rows with what is known about their repeats, and of the lines and clocks that were
    /// left out.
    pub(crate) fn from_repeated(
        rows: &[(Stage, Instruction, Measurement, Repeats)],
        left_out: Vec<LeftOut>,
        unheld: Vec<Unheld>,
        parts: BTreeMap<Part, Self>,
    ) -> Result<Self, ProfileError> {
        let profile = Self::from_rows(rows.iter().map(|&(s, i, row, _)| (s, i, row)))?;
        Ok(Self { repeats: repeats_of(rows), left_out, unheld, parts, ..profile })
    }

    /// What was measured for a part of the step.
    fn of_part(rows: &[(Stage, Instruction, Measurement, Repeats)]) -> Self {
        let profile = Self::with_tables(rows.iter().map(|&(s, i, row, _)| (s, i, row)));
        Self { repeats: repeats_of(rows), ..profile }
    }

    /// The same with the payloads of its rows.
    pub(crate) fn with_payloads(mut self, mut payloads: Payloads) -> Self {
        payloads.retain(|&(stage, instruction, clock), _| {
            let table = self.table(stage, instruction);
            table.binary_search_by_key(&clock, |row| row.frequency).is_ok()
        });
        self.payloads = payloads;
        self
    }

    pub(crate) fn payloads(&self) -> &Payloads {
        &self.payloads
    }

    /// The number of stages.
    pub fn num_stages(&self) -> u16 {
        // Bounded when the rows were read: a stage is a u16 below `Plan::MAX_STAGES`.
        self.stages.len() as u16
    }

    /// The rows of an instruction by rising clock; empty if it was not measured.
    pub fn table(&self, stage: Stage, instruction: Instruction) -> &[Measurement] {
        self.stages
            .get(stage.index())
            .and_then(|tables| tables.get(&instruction))
            .map_or(&[], Vec::as_slice)
    }

    /// The same profile with at most this many rows in each table, evenly spread over its clocks; the
    /// lowest and the highest remain.
    pub(crate) fn thinned(&self, most: usize) -> Self {
        let thin = |rows: &Vec<Measurement>| {
            let (last, count) = (rows.len().saturating_sub(1), rows.len().min(most));
            let kept = (0..count).map(|place| rows[place * last / (count - 1).max(1)]);
            kept.collect::<Vec<_>>()
        };
        let mut thinned = self.clone();
        for table in thinned.stages.iter_mut().flat_map(BTreeMap::values_mut) {
            *table = thin(table);
        }
        let parts = self.each_part(|part| part.thinned(most));
        thinned.with_parts(parts).with_payloads(self.payloads.clone())
    }

    /// The number of rows of the longest table.
    pub(crate) fn most_rows(&self) -> usize {
        let tables = self.with_those_of_parts().flat_map(|profile| &profile.stages);
        tables.flat_map(BTreeMap::values).map(Vec::len).max().unwrap_or(0)
    }

    /// The same rows; their clocks must not be changed.
    pub(crate) fn table_mut(
        &mut self,
        stage: Stage,
        instruction: Instruction,
    ) -> &mut [Measurement] {
        self.stages
            .get_mut(stage.index())
            .and_then(|tables| tables.get_mut(&instruction))
            .map_or(&mut [], Vec::as_mut_slice)
    }

    /// Gives a table other rows of the same clocks, and what is known of their repeats.
    pub(crate) fn replace(
        &mut self,
        stage: Stage,
        instruction: Instruction,
        rows: Vec<(Measurement, Repeats)>,
    ) {
        for (row, repeats) in &rows {
            self.set_repeats((stage, instruction, row.frequency), *repeats);
        }
        for (old, (row, _)) in self.table_mut(stage, instruction).iter_mut().zip(rows) {
            *old = row;
        }
    }

    /// Time and energy of an instruction at a clock: its row. If its time does not depend on the
    /// clock, all its rows measure the same, and this is their mean at any clock.
    pub fn at(&self, stage: Stage, instruction: Instruction, clock: Mhz) -> Option<Measurement> {
        let table = self.table(stage, instruction);
        if instruction.is_fixed() && !table.is_empty() {
            let mut sum = Sum::default();
            table.iter().for_each(|&row| sum.add(row));
            return Some(sum.mean(clock));
        }
        let index = table.binary_search_by_key(&clock, |measured| measured.frequency).ok()?;
        Some(table[index])
    }

    /// How often a row was measured, and the scatter of these measurements.
    pub fn repeats(&self, stage: Stage, instruction: Instruction, clock: Mhz) -> Repeats {
        self.repeats.get(&(stage, instruction, clock)).copied().unwrap_or_default()
    }

    /// The rows that were measured more than once.
    pub fn repeated(&self) -> impl ExactSizeIterator<Item = ((Stage, Instruction, Mhz), Repeats)> {
        self.repeats.iter().map(|(&row, &repeats)| (row, repeats))
    }

    /// Notes how often a row was measured; false if there is no such row.
    pub(crate) fn set_repeats(
        &mut self,
        (stage, instruction, clock): (Stage, Instruction, Mhz),
        repeats: Repeats,
    ) -> bool {
        let table = self.table(stage, instruction);
        let is_row = table.binary_search_by_key(&clock, |row| row.frequency).is_ok();
        if is_row && repeats != Repeats::default() {
            self.repeats.insert((stage, instruction, clock), repeats);
        }
        is_row
    }

    /// Lines that were left out because they are far from their repeats.
    pub fn left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// Clocks that were left out because the GPUs did not hold them.
    pub fn unheld(&self) -> &[Unheld] {
        &self.unheld
    }

    /// Checks that waiting draws no more than computing does.
    ///
    /// # Errors
    /// [`PlanError::ImpossibleWaiting`] if a GPU would draw more while it waits than in any row.
    pub fn check_waiting(&self, power: &PerStage<PowerByClock>) -> Result<(), PlanError> {
        let most = |powers: &mut dyn Iterator<Item = f64>| powers.fold(0.0, f64::max);
        let points = power.each(self.num_stages()).flat_map(PowerByClock::points);
        let power_w = most(&mut points.map(|(_, power)| power.0));
        let rows = self.with_those_of_parts().flat_map(Self::rows);
        let most_w = most(&mut rows.map(|(_, _, row)| row.energy_j / row.time_s));
        match power_w > most_w {
            true => Err(PlanError::ImpossibleWaiting { power_w, most_w }),
            false => Ok(()),
        }
    }

    /// All tables whose rows depend on the clock, by stage and instruction. Instructions of fixed
    /// time are not among them.
    pub(crate) fn tables(&self) -> impl Iterator<Item = Table<'_>> {
        (0..).map(Stage).zip(&self.stages).flat_map(move |(stage, tables)| {
            let free = tables.iter().filter(|(instruction, _)| !instruction.is_fixed());
            free.map(move |(&instruction, rows)| Table { stage, instruction, rows, profile: self })
        })
    }

    /// All rows, by stage, instruction and clock.
    pub fn rows(&self) -> impl Iterator<Item = (Stage, Instruction, Measurement)> {
        (0..).map(Stage).zip(&self.stages).flat_map(|(stage, tables)| {
            tables.iter().flat_map(move |(&instruction, table)| {
                table.iter().map(move |&measured| (stage, instruction, measured))
            })
        })
    }
}

/// The repeats of the rows that were measured more than once.
fn repeats_of(
    rows: &[(Stage, Instruction, Measurement, Repeats)],
) -> BTreeMap<(Stage, Instruction, Mhz), Repeats> {
    rows.iter()
        .filter(|row| row.3 != Repeats::default())
        .map(|&(stage, instruction, row, repeats)| ((stage, instruction, row.frequency), repeats))
        .collect()
}

/// The rows of one stage and instruction, by rising clock.
#[derive(Clone, Copy)]
pub(crate) struct Table<'a> {
    pub(crate) stage: Stage,
    pub(crate) instruction: Instruction,
    pub(crate) rows: &'a [Measurement],
    pub(crate) profile: &'a Profile,
}

impl<'a> Table<'a> {
    pub(crate) fn values(&self, quantity: Quantity) -> Vec<f64> {
        self.rows.iter().map(|row| quantity.of(row)).collect()
    }

    /// How often each row was measured, and the scatter.
    pub(crate) fn repeats(self) -> impl Iterator<Item = Repeats> + 'a {
        let Self { stage, instruction, rows, profile } = self;
        rows.iter().map(move |row| profile.repeats(stage, instruction, row.frequency))
    }

    /// How often each row was measured.
    pub(crate) fn counts(self) -> Vec<f64> {
        self.repeats().map(|repeats| repeats.count.into()).collect()
    }
}

/// The sum of rows that measure the same.
#[derive(Default)]
struct Sum {
    time_s: f64,
    energy_j: f64,
    rows: u32,
}

impl Sum {
    fn add(&mut self, measured: Measurement) {
        self.time_s += measured.time_s;
        self.energy_j += measured.energy_j;
        self.rows += 1;
    }

    fn mean(&self, frequency: Mhz) -> Measurement {
        let rows = f64::from(self.rows);
        Measurement { frequency, time_s: self.time_s / rows, energy_j: self.energy_j / rows }
    }
}
