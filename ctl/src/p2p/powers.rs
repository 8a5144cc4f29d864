//! P2P-blocking powers as people read them.

use pfo_experiment::{MeanPower, means_by_clock, source_in_words};
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
            Cell::text(source_in_words(power.source)),
            Cell::text(user(power.by_uid)),
        ]);
    }
    table.render()
}

/// What is known of a model at several clocks, as a sentence: what was measured on purpose, or else
/// what the waits of jobs have shown.
pub(crate) fn by_clock(powers: &[P2pPower], model: &str) -> String {
    let of = |source| (source, means_by_clock(powers, model, source));
    let known = [P2pSource::Receive, P2pSource::Waits].map(of);
    let Some((source, means)) = known.iter().find(|(_, means)| means.len() > 1) else {
        return "How P2P-blocking power depends on the clock was never measured: `pfoctl p2p measure` \
                does it on two free GPUs, or with --job on the waits of a job.\n"
            .to_owned();
    };
    let in_figures = |&MeanPower { mhz, power_w, error_w }: &MeanPower| {
        format!("{power_w:.1} W (± {error_w:.1} W) at {mhz}")
    };
    let means: Vec<_> = means.iter().map(in_figures).collect();
    format!("P2P-blocking power ({}): {}.\n", source_in_words(*source), means.join(", "))
}

/// A power that plans are made for, to the hundredth.
pub(super) fn watts(power_w: f64) -> String {
    format!("{power_w:.2} W")
}

#[cfg(test)]
mod tests {
    use pfo_protocol::Mhz;

    use super::*;

    #[test]
    fn powers_by_clock_are_those_of_one_model_and_one_way_to_measure() {
        let power = |gpu: &str, mhz, power_w, source| P2pPower {
            model: "A40".into(),
            gpu_uuid: Some(gpu.parse().unwrap()),
            mhz: Some(Mhz(mhz)),
            power_w,
            error_w: 0.6,
            count: 3,
            source,
            by_uid: Uid::ROOT,
            since_unix_s: 0,
        };
        let waits = |mhz, power_w| power("GPU-a", mhz, power_w, P2pSource::Waits);
        let all = [waits(210, 41.0), waits(1740, 70.0)];
        let receive = |gpu, mhz, power_w| power(gpu, mhz, power_w, P2pSource::Receive);
        let on_purpose = [
            receive("GPU-a", 210, 39.0),
            receive("GPU-b", 210, 40.0),
            receive("GPU-a", 1740, 69.0),
        ];
        let sentences = [
            by_clock(&all, "A40"),
            by_clock(&all, "A100"),
            by_clock(&all[..1], "A40"),
            by_clock(&[&all[..], &on_purpose].concat(), "A40"),
        ];
        insta::assert_snapshot!(sentences.concat());
    }

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
        insta::assert_snapshot!(text);
    }
}
