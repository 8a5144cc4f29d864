//! Books rows of the ledger to the sums of their users, in the transaction that writes them: if the agent
//! is killed, both are on disk or neither is, and no row is booked twice.

use pfo_protocol::Uid;
use rusqlite::{Connection, Transaction, params};

use super::{compared_of, measured_of};
use crate::ledger::booked::{Account, Booked};
use crate::ledger::comparison::Compared;
use crate::ledger::saving::Rates;
use crate::ledger::windows::Measured;

/// Adds the sums of a user in a partition, which are 0 before the first row is booked: `increase()` of
/// Prometheus needs a sample before the first rise.
pub(super) fn begin(
    rows: &Transaction<'_>,
    uid: Uid,
    partition: Option<&str>,
) -> rusqlite::Result<()> {
    rows.prepare_cached("INSERT OR IGNORE INTO booked VALUES (?, ?, 0, 0, 0, 0, 0, 0)")?
        .execute(params![uid.0, partition.unwrap_or_default()])?;
    Ok(())
}

/// Books every row whose plan has been compared at least twice.
pub(super) fn book(rows: &Transaction<'_>) -> rusqlite::Result<()> {
    let works: Vec<i64> = rows
        .prepare_cached(
            "SELECT work FROM (SELECT DISTINCT work FROM unbooked) AS waits \
             WHERE (SELECT count(*) FROM comparisons WHERE comparisons.work = waits.work) >= 2",
        )?
        .query_map([], |row| row.get(0))?
        .collect::<Result<_, _>>()?;
    works.into_iter().try_for_each(|work| book_work(rows, work))
}

/// Books the rows of a plan of a job.
fn book_work(rows: &Transaction<'_>, work: i64) -> rusqlite::Result<()> {
    let uid = rows.query_row("SELECT uid FROM works WHERE id = ?", [work], |row| row.get(0))?;
    let uid = Uid(uid);
    let (ids, mut weights, comparisons) = compared(rows, work)?;
    let Some(rates) = Rates::of(&comparisons) else { return Ok(()) };
    for (id, row) in unbooked(rows, work)? {
        rows.prepare_cached("DELETE FROM unbooked WHERE window = ?")?.execute([id])?;
        let Some(booked) = Booked::of(&rates, &row, &mut weights) else { continue };
        for (index, _, _) in rates.parts(row.at_unix_s()) {
            rows.prepare_cached(
                "INSERT OR REPLACE INTO weights (comparison, energy_j) VALUES (?, ?)",
            )?
            .execute(params![ids[index], weights[index]])?;
        }
        add(rows, &Account { uid, partition: row.partition, booked })?;
    }
    Ok(())
}

/// The comparisons of a plan in the order of time, by their numbers, and what was booked by each.
fn compared(
    rows: &Transaction<'_>,
    work: i64,
) -> rusqlite::Result<(Vec<i64>, Vec<f64>, Vec<Compared>)> {
    let mut found = rows.prepare_cached(
        "SELECT at_unix_s, at_unix_s, default_steps, default_time_s, default_energy_j, plan_steps, \
         plan_time_s, plan_energy_j, id, coalesce(energy_j, 0) FROM comparisons \
         LEFT JOIN weights ON comparison = id WHERE work = ? ORDER BY at_unix_s, id",
    )?;
    let (mut ids, mut weights, mut comparisons) = (Vec::new(), Vec::new(), Vec::new());
    for row in found.query_map([work], |row| Ok((row.get(8)?, row.get(9)?, compared_of(row)?)))? {
        let (id, weight, compared) = row?;
        ids.push(id);
        weights.push(weight);
        comparisons.push(compared);
    }
    Ok((ids, weights, comparisons))
}

fn unbooked(rows: &Transaction<'_>, work: i64) -> rusqlite::Result<Vec<(i64, Measured)>> {
    rows.prepare_cached(
        "SELECT id, from_unix_s, until_unix_s, steps, time_s, energy_j, throttled_s, hottest_c, given_j, \
         lost_s, partition, model FROM windows JOIN unbooked ON window = id \
         WHERE unbooked.work = ? ORDER BY id",
    )?
    .query_map([work], |row| Ok((row.get(0)?, measured_of(row)?)))?
    .collect()
}

fn add(
    rows: &Transaction<'_>,
    Account { uid, partition, booked }: &Account,
) -> rusqlite::Result<()> {
    let Booked { compared_j, saved_j, lost_j, variance_j2, slower_s, faster_s } = booked;
    rows.prepare_cached(
        "INSERT INTO booked (uid, partition, compared_j, saved_j, lost_j, variance_j2, slower_s, faster_s) \
         VALUES (?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (uid, partition) DO UPDATE SET \
         compared_j = compared_j + excluded.compared_j, saved_j = saved_j + excluded.saved_j, \
         lost_j = lost_j + excluded.lost_j, variance_j2 = variance_j2 + excluded.variance_j2, \
         slower_s = slower_s + excluded.slower_s, faster_s = faster_s + excluded.faster_s",
    )?
    .execute(params![
        uid.0,
        partition.as_deref().unwrap_or_default(),
        compared_j,
        saved_j,
        lost_j,
        variance_j2,
        slower_s,
        faster_s
    ])?;
    Ok(())
}

/// The sums of all users.
pub(super) fn accounts(connection: &Connection) -> rusqlite::Result<Vec<Account>> {
    connection
        .prepare_cached(
            "SELECT uid, partition, compared_j, saved_j, lost_j, variance_j2, slower_s, faster_s \
             FROM booked ORDER BY uid, partition",
        )?
        .query_map([], |row| {
            let partition = Some(row.get(1)?).filter(|partition: &String| !partition.is_empty());
            let booked = Booked {
                compared_j: row.get(2)?,
                saved_j: row.get(3)?,
                lost_j: row.get(4)?,
                variance_j2: row.get(5)?,
                slower_s: row.get(6)?,
                faster_s: row.get(7)?,
            };
            Ok(Account { uid: Uid(row.get(0)?), partition, booked })
        })?
        .collect()
}
