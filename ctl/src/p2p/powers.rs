//! P2P-blocking powers as people read them.

use pfo_protocol::{P2pPower, P2pSource, Uid};

use crate::error::Error;
use crate::output::{Look, Output};
use crate::status::table::{Cell, Table};
use crate::user;

/// Prints powers as a table, or as JSON.
pub(super) fn print(powers: &[P2pPower], json: bool, output: &mut Output) -> Result<(), Error> {
    if json {
        return output.json(&powers);
    }
    let look = output.look();
    output.text(&render(powers, &user::name_of, look))
}

fn render(powers: &[P2pPower], user: &dyn Fn(Uid) -> String, look: Look) -> String {
    if powers.is_empty() {
        return "No P2P-blocking power is known; `pfoctl p2p measure` measures it.\n".to_owned();
    }
    let mut table = Table::new(look)
        .left("Model")
        .left("GPU")
        .right("Clock")
        .right("Power")
        .right("±")
        .right("Count")
        .left("From")
        .left("By");
    for power in powers {
        let measured = power.source != P2pSource::Set;
        table.row([
            Cell::text(&power.model),
            Cell::text(power.gpu_uuid.as_ref().map_or("all", |uuid| uuid.as_str())),
            Cell::option(power.mhz.map(|mhz| mhz.to_string())),
            Cell::text(watts(power.power_w)),
            Cell::option(measured.then(|| watts(power.error_w))),
            Cell::option(measured.then(|| power.count.to_string())),
            Cell::text(in_words(power.source)),
            Cell::text(user(power.by_uid)),
        ]);
    }
    table.render()
}

/// A power that plans are made for, to the hundredth.
pub(super) fn watts(power_w: f64) -> String {
    format!("{power_w:.2} W")
}

/// Where a power comes from.
pub(super) const fn in_words(source: P2pSource) -> &'static str {
    match source {
        P2pSource::Waits => "waits of a job",
        P2pSource::Receive => "blocking receive",
        P2pSource::Set => "set",
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::Mhz;

    use super::*;

    #[test]
    fn a_measured_power_has_its_spread_and_a_set_one_has_none() {
        let measured = P2pPower {
            model: "A40".into(),
            gpu_uuid: Some("GPU-a".parse().unwrap()),
            mhz: Some(Mhz(1740)),
            power_w: 70.38,
            error_w: 0.25,
            count: 3,
            source: P2pSource::Receive,
            by_uid: Uid::ROOT,
            since_unix_s: 0,
        };
        let set = P2pPower { gpu_uuid: None, count: 0, source: P2pSource::Set, ..measured.clone() };
        let text = render(&[measured, set], &|_| "root".to_owned(), Look::default());
        let lines: Vec<_> = text.lines().skip(2).map(str::trim_end).collect();
        assert!(lines[0].contains("GPU-a  1740 MHz") && lines[0].contains("  3  "), "{text}");
        assert!(lines[1].contains("all") && lines[1].contains(" -  "), "{text}");
        assert!(lines[1].ends_with("set               root"), "{text}");
    }
}
