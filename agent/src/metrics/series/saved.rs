//! Series of what was saved by user and partition, as the ledger has booked it: they go with no job, and
//! no restart begins them anew.

use std::fmt;

use pfo_protocol::Tariff;

use super::{Known, Sink, Subject, counter, gauge, text};
use crate::ledger::Account;

/// Joules of a kilowatt-hour.
const KWH_J: f64 = 3.6e6;

pub(super) fn series(known: &Known, sink: &mut impl Sink) -> fmt::Result {
    sink.take(&sums(), &known.accounts)?;
    sink.take(&worth(), &[&known.tariff])
}

fn sums() -> Subject<Account> {
    Subject {
        labels: &["uid", "partition"],
        label_values: |account: &Account| {
            vec![text(account.uid), account.partition.clone().unwrap_or_default()]
        },
        series: vec![
            counter(
                "pfo_compared_joules_total",
                Some("joules"),
                "Energy that GPUs of this node used under plans that were compared with default clocks.",
                |account: &Account| Some(account.booked.compared_j),
            ),
            counter(
                "pfo_saved_joules_total",
                Some("joules"),
                "Energy that plans saved on this node, of the times in which they saved some. The net \
                 saving is this minus pfo_lost_joules_total.",
                |account| Some(account.booked.saved_j),
            ),
            counter(
                "pfo_lost_joules_total",
                Some("joules"),
                "Energy that plans took beyond default clocks, of the times in which they did.",
                |account| Some(account.booked.lost_j),
            ),
            counter(
                "pfo_saved_variance_total",
                None,
                "The variance of the net saving, in square joules: 1.96 times the root of a sum of them \
                 is how far the 95 % interval reaches.",
                |account| Some(account.booked.variance_j2),
            ),
            counter(
                "pfo_slower_seconds_total",
                Some("seconds"),
                "Time that jobs took beyond default clocks, by the same comparisons. The net slowdown is \
                 this minus pfo_faster_seconds_total.",
                |account| Some(account.booked.slower_s),
            ),
            counter(
                "pfo_faster_seconds_total",
                Some("seconds"),
                "Time that jobs took less than at default clocks.",
                |account| Some(account.booked.faster_s),
            ),
        ],
    }
}

fn worth<'a>() -> Subject<&'a Tariff> {
    Subject {
        labels: &["currency"],
        label_values: |tariff: &&Tariff| vec![tariff.currency.clone()],
        series: vec![
            gauge(
                "pfo_energy_price_per_joule",
                None,
                "What a joule costs now, by the tariff in agent.toml; absent without one.",
                |tariff: &&Tariff| Some(tariff.price_per_kwh? / KWH_J),
            ),
            gauge(
                "pfo_energy_co2e_grams_per_joule",
                None,
                "The carbon dioxide equivalent of a joule, likewise.",
                |tariff| Some(tariff.co2e_g_per_kwh? / KWH_J),
            ),
        ],
    }
}
