//! What is unusual about a GPU: one check for each reason why clocks are not those that pfo asks
//! for.

use nvml_wrapper::bitmasks::device::ThrottleReasons;
use pfo_protocol::{GpuStatus, MeterStatus, Mhz};

use super::finding::Finding;

/// What the driver says of a GPU. What it does not say is absent.
#[derive(Clone, Debug, Default)]
pub(crate) struct Condition {
    pub(crate) index: u32,
    pub(crate) uuid: String,
    pub(crate) model: String,
    pub(crate) mig: bool,
    pub(crate) persistent: Option<bool>,
    /// The SM clock now, the lowest and the highest supported one.
    pub(crate) sm_mhz: Option<[Mhz; 3]>,
    /// Whether something runs on it.
    pub(crate) busy: Option<bool>,
    /// The power limit and the board's default, in watts.
    pub(crate) power_limit_w: Option<[f64; 2]>,
    pub(crate) reasons: Option<ThrottleReasons>,
    pub(crate) lacks_energy_counter: bool,
    /// The application clock and its default.
    pub(crate) application_mhz: Option<[Mhz; 2]>,
}

/// A check of one GPU, and of what pfo does with it if `pfod` reported that.
type Check = fn(&Condition, Option<&GpuStatus>) -> Option<Finding>;

const CHECKS: [Check; 9] = [
    mig,
    persistence,
    power_limit,
    throttled,
    energy_counter,
    meter,
    application_clocks,
    locked_by_others,
    of_daemon,
];

/// Everything that is unusual, or that nothing is.
pub(crate) fn check(condition: &Condition, pfo: Option<&GpuStatus>) -> Vec<Finding> {
    let mut findings: Vec<_> = CHECKS.iter().filter_map(|check| check(condition, pfo)).collect();
    if findings.is_empty() {
        let Condition { index, model, uuid, .. } = condition;
        findings.push(Finding::ok("gpu", format!("GPU {index}, {model} ({uuid})")));
    }
    findings
}

fn mig(condition: &Condition, _: Option<&GpuStatus>) -> Option<Finding> {
    condition.mig.then(|| {
        Finding::warning(
            "mig",
            format!("GPU {} is split by MIG: pfo does not lease it", condition.index),
            format!("`nvidia-smi -i {} -mig 0` if it is to run training with pfo", condition.index),
        )
    })
}

fn persistence(condition: &Condition, _: Option<&GpuStatus>) -> Option<Finding> {
    (condition.persistent == Some(false)).then(|| {
        Finding::warning(
            "persistence",
            format!(
                "persistence mode of GPU {} is off: while nothing uses the GPU, the driver forgets \
                 its settings, and the next job waits for its initialisation",
                condition.index
            ),
            "`systemctl enable --now nvidia-persistenced`",
        )
    })
}

fn energy_counter(condition: &Condition, _: Option<&GpuStatus>) -> Option<Finding> {
    condition.lacks_energy_counter.then(|| {
        Finding::warning(
            "energy-counter",
            format!(
                "GPU {} has no energy counter: pfo shows no energy of it, and no profile of it can \
                 be measured",
                condition.index
            ),
            "plan with a profile from GPUs of the same model",
        )
    })
}

fn meter(condition: &Condition, pfo: Option<&GpuStatus>) -> Option<Finding> {
    let MeterStatus { reason, withheld } = pfo?.meter.as_ref()?;
    let then = if *withheld { ": pfo shows no energy of it" } else { "" };
    // Of a GPU that has none, the check before this one speaks.
    (!condition.lacks_energy_counter).then(|| {
        Finding::warning(
            "meter",
            format!("GPU {}: {reason}{then}", condition.index),
            "see docs/meters.md; a reset of the GPU or another driver may mend it",
        )
    })
}

fn power_limit(condition: &Condition, pfo: Option<&GpuStatus>) -> Option<Finding> {
    let [limit, default] = condition.power_limit_w?;
    (limit < default && !is_limited_by(pfo, limit)).then(|| {
        Finding::warning(
            "power-limit",
            format!(
                "GPU {} is limited to {limit:.0} W, its default is {default:.0} W: at high clocks \
                 it is slower than plans predict whose profile was measured without the limit",
                condition.index
            ),
            format!(
                "profile with this limit, or `nvidia-smi -i {} -pl {default:.0}`",
                condition.index
            ),
        )
    })
}

/// Whether pfo set this power limit, in watts. The driver may have rounded it.
fn is_limited_by(pfo: Option<&GpuStatus>, limit: f64) -> bool {
    pfo.and_then(|pfo| pfo.power_limit_w).is_some_and(|set| (f64::from(set) - limit).abs() < 1.0)
}

fn throttled(condition: &Condition, pfo: Option<&GpuStatus>) -> Option<Finding> {
    const CAUSES: [(ThrottleReasons, &str); 6] = [
        (ThrottleReasons::SW_POWER_CAP, "its power limit"),
        (ThrottleReasons::HW_POWER_BRAKE_SLOWDOWN, "the power supply"),
        (ThrottleReasons::SW_THERMAL_SLOWDOWN, "its temperature"),
        (ThrottleReasons::HW_THERMAL_SLOWDOWN, "its temperature, in hardware"),
        (ThrottleReasons::HW_SLOWDOWN, "the hardware"),
        (ThrottleReasons::SYNC_BOOST, "another GPU, by sync boost"),
    ];
    let mut reasons = condition.reasons?;
    if condition.power_limit_w.is_some_and(|[limit, _]| is_limited_by(pfo, limit)) {
        reasons.remove(ThrottleReasons::SW_POWER_CAP);
    }
    let causes: Vec<_> =
        CAUSES.iter().filter(|(reason, _)| reasons.contains(*reason)).map(|(_, c)| *c).collect();
    if causes.is_empty() {
        return None;
    }
    let asked = pfo.and_then(|pfo| pfo.requested_mhz);
    let now = condition.sm_mhz.map(|[now, ..]| now);
    let below = match (asked, now) {
        (Some(asked), Some(now)) if now < asked => {
            format!(": it runs at {now}, pfo asked for {asked}")
        }
        _ => String::new(),
    };
    Some(Finding::warning(
        "throttled",
        format!("GPU {} is held back by {}{below}", condition.index, causes.join(" and ")),
        format!("`nvidia-smi -q -i {} -d PERFORMANCE,POWER,TEMPERATURE`", condition.index),
    ))
}

fn application_clocks(condition: &Condition, _: Option<&GpuStatus>) -> Option<Finding> {
    let [set, default] = condition.application_mhz?;
    (set != default).then(|| {
        Finding::warning(
            "application-clocks",
            format!(
                "the application clock of GPU {} is set to {set} (default {default}): without a \
                 plan it runs at that clock",
                condition.index
            ),
            format!("`nvidia-smi -i {} -rac`", condition.index),
        )
    })
}

/// NVML cannot tell what is locked. But a GPU without a lock idles at its lowest clock, and works
/// at its highest unless something holds it back.
fn locked_by_others(condition: &Condition, pfo: Option<&GpuStatus>) -> Option<Finding> {
    let ours = pfo.is_none_or(|pfo| pfo.leased || pfo.requested_mhz.is_some());
    let [now, lowest, highest] = condition.sm_mhz?;
    let reasons = condition.reasons?;
    let unexplained = (reasons - ThrottleReasons::GPU_IDLE).is_empty();
    let why = match condition.busy? {
        false if now > lowest && !reasons.contains(ThrottleReasons::GPU_IDLE) => {
            format!("idles at {now} instead of {lowest}")
        }
        true if now < highest && unexplained => {
            format!("works at {now} instead of {highest}, and nothing holds it back")
        }
        _ => return None,
    };
    (!ours).then(|| {
        Finding::warning(
            "foreign-lock",
            format!(
                "the clocks of GPU {} may be locked by something else: it {why} (a guess: the \
                 driver does not report locks, and restore_to_mhz has the same effect)",
                condition.index
            ),
            format!(
                "`pfoctl clocks reset --all` resets it. If it is meant to stay, say so with \
                 restore_to_mhz = [{}, {}] and max_mhz = {} in pfod.toml: plans replace a lock, and \
                 NVML does not tell what it was",
                lowest.0, now.0, now.0
            ),
        )
    })
}

fn of_daemon(condition: &Condition, pfo: Option<&GpuStatus>) -> Option<Finding> {
    let problem = pfo?.problem.as_ref()?;
    Some(Finding::wrong(
        "gpu",
        format!("GPU {}: {problem}", condition.index),
        "`nvidia-smi` and the kernel's log say more about this GPU",
    ))
}

#[cfg(test)]
mod tests {
    use super::super::finding::Level;
    use super::*;

    fn idle() -> Condition {
        Condition {
            persistent: Some(true),
            sm_mhz: Some([210, 210, 1410].map(Mhz)),
            busy: Some(false),
            power_limit_w: Some([400.0, 400.0]),
            reasons: Some(ThrottleReasons::GPU_IDLE),
            application_mhz: Some([Mhz(1275); 2]),
            ..Condition::default()
        }
    }

    fn busy(now: u32, reasons: ThrottleReasons) -> Condition {
        let sm_mhz = Some([now, 210, 1410].map(Mhz));
        Condition { sm_mhz, busy: Some(true), reasons: Some(reasons), ..idle() }
    }

    fn pfo(requested_mhz: Option<Mhz>) -> GpuStatus {
        let status: pfo_protocol::Status =
            serde_json::from_str(include_str!("../../tests/golden/status.json")).unwrap();
        let leased = requested_mhz.is_some();
        GpuStatus { requested_mhz, leased, problem: None, ..status.gpus[0].clone() }
    }

    fn found(condition: &Condition, pfo: Option<&GpuStatus>) -> Vec<&'static str> {
        let worse = |finding: &Finding| (finding.level > Level::Ok).then_some(finding.check);
        check(condition, pfo).iter().filter_map(worse).collect()
    }

    #[test]
    fn a_counter_in_doubt_is_a_warning_with_its_reason() {
        let reason = "its energy counter stands still while it draws 210 W".to_owned();
        let doubted =
            GpuStatus { meter: Some(MeterStatus { reason, withheld: true }), ..pfo(None) };
        let findings = check(&Condition { index: 1, ..Condition::default() }, Some(&doubted));
        let text = format!("{findings:?}");
        assert!(
            text.contains("GPU 1: its energy counter stands still while it draws 210 W"),
            "{text}"
        );
        let without = Condition { lacks_energy_counter: true, ..Condition::default() };
        assert_eq!(check(&without, Some(&doubted)).len(), 1, "it is said once");
    }

    #[test]
    fn each_thing_that_is_unusual_is_found_and_nothing_else() {
        let none = ThrottleReasons::empty();
        let rows: [(&[&str], Condition); 10] = [
            (&[], idle()),
            (&[], busy(1410, none)),
            (&["mig"], Condition { mig: true, ..idle() }),
            (&["persistence"], Condition { persistent: Some(false), ..idle() }),
            (&["power-limit"], Condition { power_limit_w: Some([250.0, 400.0]), ..idle() }),
            (
                &["application-clocks"],
                Condition { application_mhz: Some([Mhz(900), Mhz(1275)]), ..idle() },
            ),
            (&["throttled"], busy(1100, ThrottleReasons::SW_POWER_CAP)),
            (&["energy-counter"], Condition { lacks_energy_counter: true, ..idle() }),
            (&["foreign-lock"], busy(1005, none)),
            (&["foreign-lock"], Condition { busy: Some(false), ..busy(1005, none) }),
        ];
        for (expected, condition) in rows {
            assert_eq!(found(&condition, Some(&pfo(None))), expected, "{condition:?}");
        }
        assert!(
            found(&Condition::default(), None).is_empty(),
            "what is not known is not guessed at"
        );
    }

    #[test]
    fn a_clock_that_pfo_locked_is_no_foreign_lock_and_nothing_is_guessed_without_pfod() {
        let locked = busy(1005, ThrottleReasons::empty());
        assert!(found(&locked, Some(&pfo(Some(Mhz(1005))))).is_empty());
        assert!(found(&locked, None).is_empty());
    }

    #[test]
    fn a_power_limit_that_pfo_set_is_expected_and_another_one_is_reported() {
        let capped = busy(1100, ThrottleReasons::SW_POWER_CAP);
        let capped = Condition { power_limit_w: Some([250.0, 400.0]), ..capped };
        let limited = |limit_w| GpuStatus { power_limit_w: Some(limit_w), ..pfo(Some(Mhz(1410))) };
        assert!(found(&capped, Some(&limited(250))).is_empty());
        assert_eq!(found(&capped, Some(&limited(300))), ["power-limit", "throttled"]);
    }

    #[test]
    fn a_lock_that_a_limit_keeps_the_gpu_from_is_reported_with_both_clocks() {
        let capped = busy(1100, ThrottleReasons::SW_POWER_CAP);
        let findings = check(&capped, Some(&pfo(Some(Mhz(1410)))));
        insta::assert_snapshot!(findings[0].message);
    }

    #[test]
    fn a_problem_that_pfod_reports_about_a_gpu_is_wrong() {
        let sick = GpuStatus { problem: Some("the driver hangs".to_owned()), ..pfo(None) };
        assert_eq!(check(&idle(), Some(&sick))[0].level, Level::Wrong);
    }
}
