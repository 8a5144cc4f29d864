//! How a job is to be tuned.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use pfo_planner::{
    Combine, Delays, EnvPipe, Instruction, LatencyByClock, Mhz, Noise, Order, PerStage, Pipeline,
    PlanError, Profile, Reconfigure, Schedule, Settings, Watts, Zeus,
};
use pfo_protocol::{JobName, SweepSettings, TrialLength};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::error::TuneError;

/// Microbatches of a step times stages. Planning for more takes longer, and more memory, than a node
/// should spend on one of its users.
const MOST_UNITS: u64 = 100_000;

/// Twenty refreshes of the energy counter of most GPUs, in seconds. A shorter turn mostly measures
/// where between two of them it began.
const SHORTEST_S: f64 = 2.0;

/// Steps whose instructions and waits are looked at before anything is planned.
const BASELINE_STEPS: u32 = 4;

/// Longer than any clock of a GPU for a data centre takes to be in force, in seconds.
const SETTLING_S: f64 = 0.1;

/// What to tune with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TuneOrder {
    /// How.
    pub terms: Terms,
    /// A profile, as `pfoctl profile export` writes it; none means the stored one, or a sweep.
    pub profile: Option<Vec<u8>>,
    /// An order file; none means the order that the job runs.
    pub order: Option<Vec<u8>>,
}

/// The terms on which a job is tuned, as JSON. What is left out has its default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Terms {
    /// By what share a step may take longer than at default clocks.
    pub max_slowdown: f64,
    /// Whether a guard compares the plan with default clocks later on.
    pub guard: bool,
    /// The model that the job trains; none if that is called like the job.
    pub model: Option<JobName>,
    /// What to call the profile that was handed over.
    pub profile_name: String,
    /// Sweep the job even if a profile is stored.
    pub remeasure: bool,
    /// Steps to measure at each clock of a sweep.
    pub sweep_steps: u32,
    /// The least distance between two clocks of a sweep.
    pub sweep_stride: Mhz,
    /// The slowdown that ends a sweep.
    pub sweep_max_slowdown: Option<f64>,
    /// How repeated measurements of the profile are combined.
    #[serde(with = "in_words")]
    pub combine: Combine,
    /// What to do about the noise of the profile.
    #[serde(with = "in_words")]
    pub noise: Noise,
    /// Microbatches of a step; none means the number of forwards that a rank runs in a step.
    pub microbatches: Option<u32>,
    /// The schedule; none means the order that the job runs.
    #[serde(with = "optional_in_words")]
    pub schedule: Option<Schedule>,
    /// Model chunks of a stage, of interleaved schedules.
    pub chunks: u16,
    /// Microbatches that a chunk runs before the next one begins; none means as many as PyTorch takes.
    pub microbatch_group: Option<u32>,
    /// Whether each stage runs one forward more before its first backward.
    pub extra_warm_up: bool,
    /// Activations that each stage can keep.
    pub memory_limits: Vec<u32>,
    /// Instructions whose clock is not planned.
    #[serde(with = "all_in_words")]
    pub fixed: Vec<Instruction>,
    /// How long a transfer takes, in seconds; none means what is measured.
    pub transfer_s: Option<f64>,
    /// How late a clock is, in seconds; none means what is known.
    pub switch_latency_s: Option<f64>,
    /// How long a call that sets a clock blocks, in seconds; none means what is known.
    pub set_call_s: Option<f64>,
    /// For how long a change of clocks holds up its stage, in seconds; none means what is known.
    pub held_up_s: Option<f64>,
    /// P2P-blocking power of each stage, or one for all, in watts; empty means what is known.
    pub p2p_power_w: Vec<f64>,
    /// Whose plans are tried.
    pub policy: System,
    /// How EnvPipe raises clocks.
    pub reconfigure: Raising,
    /// What Zeus searches over.
    pub knob: Knob,
    /// The distance between power limits that Zeus tries, in watts.
    pub power_step_w: u32,
    /// Rounds of a comparison before what is most likely decides, if the intervals do not. At least half as
    /// many are run before a plan is kept, and at most three times as many. A round is two turns at default clocks and two of the plan.
    pub rounds: u32,
    /// Steps to measure in each turn.
    pub steps: u32,
    /// Steps to measure in each trial of a search.
    pub search_steps: u32,
    /// Steps to run before each measurement.
    pub settling_steps: u32,
    /// Zeus' weight of energy against time.
    pub zeus_eta: f64,
    /// EnvPipe's shortest wait that counts as one, in transfers.
    pub envpipe_threshold: f64,
    /// The seconds that receiving takes for EnvPipe.
    pub envpipe_transfer_s: f64,
    /// The distance between the clocks that EnvPipe profiles; none means its own.
    pub envpipe_profile_step: Option<Mhz>,
    /// The step by which EnvPipe raises a clock; none means its own.
    pub envpipe_raise_step: Option<Mhz>,
}

/// The system whose plans are tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum System {
    /// The plan of least energy of the frontier within the allowed slowdown.
    #[default]
    Pfo,
    /// EnvPipe, which reconfigures while the job runs.
    Envpipe,
    /// Zeus' cost over one setting for all stages.
    ZeusGlobal,
    /// Zeus' cost over one setting for each stage, balanced by the times of forwards.
    ZeusPerStage,
}

/// What Zeus searches over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Knob {
    /// Power limits, as Zeus does.
    #[default]
    PowerLimit,
    /// Clocks of the profile.
    Clock,
}

/// EnvPipe's `reconfig`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Raising {
    /// One instruction at a time.
    Greedy,
    /// All instructions of the lowest clock on the critical path at a time.
    #[default]
    Balanced,
}

impl System {
    /// What reports call it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Pfo => "pfo",
            Self::Envpipe => "envpipe",
            Self::ZeusGlobal => "zeus-global",
            Self::ZeusPerStage => "zeus-per-stage",
        }
    }
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            max_slowdown: 0.005,
            guard: true,
            model: None,
            profile_name: String::new(),
            remeasure: false,
            sweep_steps: 10,
            sweep_stride: Mhz(30),
            sweep_max_slowdown: None,
            combine: Combine::Mean,
            noise: Noise::default(),
            microbatches: None,
            schedule: None,
            chunks: Settings::default().chunks,
            microbatch_group: None,
            extra_warm_up: false,
            memory_limits: Vec::new(),
            fixed: Vec::new(),
            transfer_s: None,
            switch_latency_s: None,
            set_call_s: None,
            held_up_s: None,
            p2p_power_w: Vec::new(),
            policy: System::default(),
            reconfigure: Raising::default(),
            knob: Knob::default(),
            power_step_w: 25,
            rounds: 4,
            steps: 2,
            search_steps: 2,
            settling_steps: 1,
            zeus_eta: Zeus::default().eta,
            envpipe_threshold: EnvPipe::default().threshold_scale,
            envpipe_transfer_s: EnvPipe::default().transfer_s,
            envpipe_profile_step: None,
            envpipe_raise_step: None,
        }
    }
}

impl Terms {
    /// The terms in these bytes.
    ///
    /// # Errors
    /// In words, with the name and the bounds of the first that is out of them.
    pub fn from_json(bytes: &[u8]) -> Result<Self, String> {
        let terms: Self = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        terms.check()?;
        Ok(terms)
    }

    /// The bytes that [`Terms::from_json`] reads.
    ///
    /// # Errors
    /// If a number is none.
    pub fn to_json(&self) -> Result<Vec<u8>, String> {
        serde_json::to_vec(self).map_err(|error| error.to_string())
    }

    fn check(&self) -> Result<(), String> {
        let whole = |name, value: u32, bounds: RangeInclusive<u32>| {
            let (from, to) = (*bounds.start(), *bounds.end());
            hold(name, f64::from(value), f64::from(from)..=f64::from(to))
        };
        hold("max_slowdown", self.max_slowdown, 0.0..=100.0)?;
        hold("sweep_max_slowdown", self.sweep_max_slowdown.unwrap_or(0.0), 0.0..=100.0)?;
        whole("sweep_steps", self.sweep_steps, SweepSettings::STEPS)?;
        whole("sweep_stride", self.sweep_stride.0, 0..=Mhz::MAX.0)?;
        whole("rounds", self.rounds, 2..=1000)?;
        whole("steps", self.steps, TrialLength::STEPS)?;
        whole("search_steps", self.search_steps, TrialLength::STEPS)?;
        whole("settling_steps", self.settling_steps, TrialLength::SETTLING_STEPS)?;
        whole("power_step_w", self.power_step_w, 1..=100_000)?;
        whole("microbatches", self.microbatches.unwrap_or(1), 1..=MOST_UNITS as u32)?;
        hold("chunks", f64::from(self.chunks), 1.0..=1024.0)?;
        hold("zeus_eta", self.zeus_eta, 0.0..=1.0)?;
        hold("envpipe_threshold", self.envpipe_threshold, 0.0..=1e9)?;
        hold("envpipe_transfer_s", self.envpipe_transfer_s, 0.0..=1e6)?;
        let delays = [self.transfer_s, self.switch_latency_s, self.set_call_s, self.held_up_s];
        for delay_s in delays.into_iter().flatten() {
            // What is beyond, and negative, the planner refuses in its own words.
            hold("a delay in seconds", delay_s, -1e6..=1e6)?;
        }
        for &power_w in &self.p2p_power_w {
            hold("p2p_power_w", power_w, 0.0..=10_000.0)?;
        }
        for (name, count) in [
            ("p2p_power_w", self.p2p_power_w.len()),
            ("memory_limits", self.memory_limits.len()),
            ("fixed", self.fixed.len()),
        ] {
            hold(name, count as f64, 0.0..=4096.0)?;
        }
        hold("the length of profile_name", self.profile_name.len() as f64, 0.0..=4096.0)
    }

    /// The P2P-blocking power that was given.
    pub(crate) fn p2p_power(&self) -> Result<Option<PerStage<Watts>>, PlanError> {
        match &self.p2p_power_w[..] {
            [] => Ok(None),
            powers => PerStage::new(powers.iter().copied().map(Watts).collect()).map(Some),
        }
    }

    /// Whether neither a schedule, an order nor fixed instructions were given.
    pub(crate) fn has_open_order(&self, order: Option<&[u8]>) -> bool {
        self.schedule.is_none() && order.is_none() && self.fixed.is_empty()
    }

    pub(crate) fn schedule(&self) -> Schedule {
        self.schedule.unwrap_or(Schedule::OneForwardOneBackward)
    }

    /// These delays, where the terms give no others.
    pub(crate) fn delays(&self, known: Delays) -> Delays {
        Delays {
            transfer_time_s: self.transfer_s.unwrap_or(known.transfer_time_s),
            switch_latency_s: self.switch_latency_s.unwrap_or(known.switch_latency_s),
            latency_by_clock: match self.switch_latency_s {
                Some(_) => LatencyByClock::default(),
                None => known.latency_by_clock,
            },
            set_call_s: self.set_call_s.unwrap_or(known.set_call_s),
            held_up_s: self.held_up_s.unwrap_or(known.held_up_s),
        }
    }

    /// Whether they say something of a sweep, which is then made if no profile is stored.
    pub(crate) fn ask_for_sweep(&self) -> bool {
        let asked = |terms: &Self| {
            let Self { remeasure, sweep_steps, sweep_stride, sweep_max_slowdown, .. } = terms;
            (*remeasure, *sweep_steps, *sweep_stride, *sweep_max_slowdown)
        };
        asked(self) != asked(&Self::default())
    }

    /// The pipeline of this order or schedule.
    pub(crate) fn pipeline(
        &self,
        profile: &Profile,
        (order, microbatches): (Option<&[u8]>, Option<u32>),
        delays: Delays,
    ) -> Result<Pipeline, TuneError> {
        if let Some(order) = order {
            let order = Order::from_json(order)?;
            let has = order.num_microbatches();
            if let Some(given) = microbatches.filter(|&given| given != has) {
                return Err(TuneError::Terms(format!(
                    "the order has {has} microbatches, and {given} were given"
                )));
            }
            return Ok(order.pipeline(profile, delays)?);
        }
        // Known to every caller without an order.
        let microbatches = microbatches.unwrap_or(0);
        let units = u64::from(microbatches) * u64::from(profile.num_stages());
        if units > MOST_UNITS {
            return Err(TuneError::Terms(format!(
                "{microbatches} microbatches on {} stages are more than {MOST_UNITS} together; plan \
                 with `pfoctl plan optimize`",
                profile.num_stages()
            )));
        }
        let settings = Settings {
            memory_limits: self.memory_limits.clone(),
            chunks: self.chunks,
            microbatch_group: self.microbatch_group,
            extra_warm_up: self.extra_warm_up,
            delays,
            fixed: self.fixed.clone(),
        };
        Ok(Pipeline::with_settings(profile, self.schedule(), microbatches, &settings)?)
    }

    pub(crate) fn envpipe(&self) -> EnvPipe {
        let envpipe = EnvPipe::default();
        EnvPipe {
            profile_step: self.envpipe_profile_step.unwrap_or(envpipe.profile_step),
            raise_step: self.envpipe_raise_step.unwrap_or(envpipe.raise_step),
            transfer_s: self.envpipe_transfer_s,
            threshold_scale: self.envpipe_threshold,
            reconfigure: match self.reconfigure {
                Raising::Greedy => Reconfigure::Greedy,
                Raising::Balanced => Reconfigure::Balanced,
            },
            ..envpipe
        }
    }

    pub(crate) fn zeus(&self) -> Zeus {
        Zeus { eta: self.zeus_eta, ..Zeus::default() }
    }

    pub(crate) fn sweep(&self) -> SweepSettings {
        SweepSettings {
            steps: self.sweep_steps,
            settling_steps: 1,
            stride_mhz: self.sweep_stride,
            min_mhz: Mhz(0),
            max_slowdown: self.sweep_max_slowdown,
        }
    }

    pub(crate) fn search_length(&self) -> TrialLength {
        TrialLength { settling_steps: self.settling_steps, steps: self.search_steps }
    }

    /// A trial that shows what a step runs, of steps that take this many seconds each.
    pub(crate) fn baseline(&self, step_s: f64) -> TrialLength {
        let turn = self.turn(step_s);
        TrialLength { steps: turn.steps.max(BASELINE_STEPS), ..turn }
    }

    /// A turn of steps that take this many seconds each: as many steps as were asked for, and enough of
    /// short ones to be measured.
    pub(crate) fn turn(&self, step_s: f64) -> TrialLength {
        let within = |seconds: f64| (seconds / step_s).ceil() as u32;
        let (settling, steps) = (TrialLength::SETTLING_STEPS, TrialLength::STEPS);
        TrialLength {
            settling_steps: self.settling_steps.max(within(SETTLING_S)).min(*settling.end()),
            steps: self.steps.max(within(SHORTEST_S)).min(*steps.end()),
        }
    }
}

fn hold(name: &str, value: f64, bounds: RangeInclusive<f64>) -> Result<(), String> {
    match bounds.contains(&value) {
        true => Ok(()),
        false => {
            let (from, to) = (bounds.start(), bounds.end());
            Err(format!("{name} is {value}; it must be {from} to {to}"))
        }
    }
}

/// As text, in the words that the command line takes.
mod in_words {
    use super::{Deserialize, Deserializer, Display, FromStr, Serializer};

    pub(super) fn serialize<T: Display, S: Serializer>(
        value: &T,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_str(value)
    }

    pub(super) fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<T, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

/// The same of what may be missing.
mod optional_in_words {
    use super::{Deserialize, Deserializer, Display, FromStr, Serialize, Serializer};

    pub(super) fn serialize<T: Display, S: Serializer>(
        value: &Option<T>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        value.as_ref().map(ToString::to_string).serialize(serializer)
    }

    pub(super) fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<T>, D::Error> {
        let text = Option::<String>::deserialize(deserializer)?;
        text.map(|text| text.parse()).transpose().map_err(serde::de::Error::custom)
    }
}

/// The same of several.
mod all_in_words {
    use super::{Deserialize, Deserializer, Display, FromStr, Serialize, Serializer};

    pub(super) fn serialize<T: Display, S: Serializer>(
        values: &[T],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        values.iter().map(ToString::to_string).collect::<Vec<_>>().serialize(serializer)
    }

    pub(super) fn deserialize<'de, T: FromStr<Err: Display>, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Vec<T>, D::Error> {
        let texts = Vec::<String>::deserialize(deserializer)?;
        texts.iter().map(|text| text.parse().map_err(serde::de::Error::custom)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn terms_are_what_was_written_to_the_last_bit() {
        let terms = Terms {
            max_slowdown: 0.1 + 0.2,
            schedule: Some(Schedule::GPipe),
            fixed: vec![Instruction::Load],
            noise: Noise::Off,
            p2p_power_w: vec![83.64, 70.38],
            policy: System::ZeusPerStage,
            ..Terms::default()
        };
        assert_eq!(Terms::from_json(&terms.to_json().unwrap()), Ok(terms));
    }

    #[test]
    fn what_is_left_out_has_its_default_and_what_is_unknown_is_refused() {
        assert_eq!(Terms::from_json(b"{}"), Ok(Terms::default()));
        let error = Terms::from_json(br#"{"max_slowdwon": 0.1}"#).unwrap_err();
        assert!(error.contains("unknown field `max_slowdwon`"), "{error}");
    }

    #[test]
    fn a_number_out_of_bounds_is_refused_with_its_name_and_the_bounds() {
        for (json, part) in [
            (r#"{"max_slowdown": -1}"#, "max_slowdown is -1; it must be 0 to 100"),
            (r#"{"rounds": 1}"#, "rounds is 1; it must be 2 to 1000"),
            (r#"{"microbatches": 4000000000}"#, "microbatches is 4000000000"),
            (r#"{"p2p_power_w": [1e9]}"#, "p2p_power_w is 1000000000"),
            (r#"{"policy": "best"}"#, "unknown variant `best`"),
            (r#"{"schedule": "2f2b"}"#, "2f2b"),
        ] {
            let error = Terms::from_json(json.as_bytes()).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn a_turn_of_short_steps_has_enough_of_them() {
        let turn = Terms::default().turn(0.05);
        assert_eq!(turn, TrialLength { settling_steps: 2, steps: 40 });
        assert_eq!(Terms::default().turn(3.0), TrialLength { settling_steps: 1, steps: 2 });
    }
}
