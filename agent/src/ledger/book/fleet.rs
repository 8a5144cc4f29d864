//! What the ledger tells the fleet, and the sums of a fleet's months for one asking node.

use std::collections::BTreeMap;
use std::time::SystemTime;

use jiff::Timestamp;
use jiff::tz::TimeZone;
use pfo_protocol::{Refusal, RefusalCode, SavingsBy, SavingsQuery, SavingsReport, Uid};
use pfo_service::{lock, unix_s};

use super::Ledger;
use crate::ledger::months::{self, Told};
use crate::ledger::query::Span;

impl Ledger {
    /// What this node tells of this month and the one before, beside what it told before; none while the
    /// file cannot be read. Not to be called on a thread of the runtime.
    pub(crate) fn told(&self, mut before: Told) -> Option<Told> {
        let now = unix_s(SystemTime::now());
        let (this, span) = month_of(now, &TimeZone::system())?;
        let last = month_of(span.since_unix_s.checked_sub(1)?, &TimeZone::system())?;
        let of_month = |(name, span): (String, Span)| {
            let query = SavingsQuery {
                since_unix_s: Some(span.since_unix_s),
                until_unix_s: Some(span.until_unix_s),
                ..SavingsQuery::default()
            };
            (name, self.known(&query, None).0)
        };
        let months = [last, (this, span)].map(of_month).into();
        // Reading them has opened the file.
        let identity = lock(&self.file).store.as_ref()?.identity().ok()?;
        before.tell(&identity, &months, (&self.prices().0, now));
        Some(before)
    }

    /// What the nodes of a fleet saved in a month. `only_of` is the only user whose jobs may be seen.
    ///
    /// # Errors
    /// If the request names no month, or rows that are of one node.
    pub(crate) fn savings_of_fleet(
        &self,
        told: &BTreeMap<String, Told>,
        query: &SavingsQuery,
        only_of: Option<Uid>,
    ) -> Result<SavingsReport, Refusal> {
        let month = query.fleet_month.as_deref().unwrap_or_default();
        if !is_month(month) {
            return Err(invalid(format!("{month:?} is no month"), "give one such as 2026-11"));
        }
        if matches!(query.by, SavingsBy::Plan | SavingsBy::Day) {
            let why = "the months of a fleet have neither plans nor days".to_owned();
            return Err(invalid(why, "ask for them by user, partition, job or model"));
        }
        let uid = only_of.or(query.uid);
        let job = query.job.as_ref().map(ToString::to_string);
        let (prices, tariff_problem) = self.prices();
        let flat = prices.flat;
        let merged = months::merged(told, month, (query.by, &flat), |of, name| {
            uid.is_none_or(|uid| uid == of) && job.as_deref().is_none_or(|job| name == Some(job))
        });
        Ok(SavingsReport {
            rows: merged.rows,
            total: merged.total,
            ledger_problem: self.problem(),
            nodes: merged.nodes,
            tariff_problem,
            ..self.report(query, flat)
        })
    }
}

fn invalid(why: String, remedy: &str) -> Refusal {
    Refusal::new(RefusalCode::Malformed, why, remedy)
}

fn is_month(text: &str) -> bool {
    let digits =
        |text: &str, count| text.len() == count && text.bytes().all(|it| it.is_ascii_digit());
    text.split_once('-').is_some_and(|(year, month)| digits(year, 4) && digits(month, 2))
}

/// The name of the month of a time, and from when to when it is.
fn month_of(unix_s: u64, zone: &TimeZone) -> Option<(String, Span)> {
    let at = Timestamp::from_second(unix_s.try_into().ok()?).ok()?.to_zoned(zone.clone()).date();
    let (first, next) = (at.first_of_month(), at.last_of_month().tomorrow().ok()?);
    let [since, until] = [first, next].map(|day| day.to_zoned(zone.clone()));
    let second = |of: Result<jiff::Zoned, _>| of.ok()?.timestamp().as_second().try_into().ok();
    let span = Span { since_unix_s: second(since)?, until_unix_s: second(until)? };
    Some((first.strftime("%Y-%m").to_string(), span))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_month_is_from_its_first_midnight_here_to_that_of_the_next() {
        let zone = TimeZone::posix("CET-1CEST,M3.5.0,M10.5.0/3").unwrap();
        // The last second of October and the first one of November 2026 in Berlin.
        let november = 1_793_487_600;
        let (october, before) = month_of(november - 1, &zone).unwrap();
        let (name, span) = month_of(november, &zone).unwrap();
        assert_eq!((october.as_str(), name.as_str()), ("2026-10", "2026-11"));
        assert_eq!((before.until_unix_s, span.since_unix_s), (november, november));
        assert_eq!(before.until_unix_s - before.since_unix_s, (31 * 24 + 1) * 3600);
        assert_eq!(span.until_unix_s - span.since_unix_s, 30 * 24 * 3600);
        assert_eq!(month_of(u64::MAX, &zone), None);
    }

    #[test]
    fn what_is_no_month_is_refused() {
        for text in ["", "2026", "2026-1", "26-11", "2026-11-01", "2026-1\u{660}"] {
            assert!(!is_month(text), "{text}");
        }
        assert!(is_month("2026-11"));
    }
}
