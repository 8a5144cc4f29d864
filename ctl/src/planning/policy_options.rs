//! The options of EnvPipe, Zeus and lowtime that their own users have.

use clap::Args;
use pfo_experiment::Terms;
use pfo_planner::{EnvPipe, Lowtime, Mhz, OfflineEnvPipe, Tuning, UnitTime, Zeus};

use crate::arguments::number;

/// Options of other systems, with their defaults.
#[derive(Args)]
#[command(next_help_heading = "Options for EnvPipe, Zeus and lowtime")]
pub(crate) struct PolicyArguments {
    #[command(flatten)]
    online: OnlineArguments,

    /// Unit of time of lowtime and of offline EnvPipe, in milliseconds
    #[arg(long, value_name = "MS", default_value = "1", value_parser = unit_time)]
    unit_time_ms: UnitTime,
}

/// Options of systems that can search for their clocks on a running job.
#[derive(Args)]
#[command(next_help_heading = "Options for EnvPipe, Zeus and lowtime")]
pub(crate) struct OnlineArguments {
    /// Weight of energy in the cost of Zeus, from 0, only time, to 1, only energy. Zeus multiplies time by the
    /// largest power limit; where clocks are searched, the highest clock in MHz takes its place
    #[arg(long, value_name = "ETA", default_value_t = Zeus::default().eta, value_parser = share)]
    zeus_eta: f64,

    /// Shortest gap that EnvPipe treats as a wait, in transfers
    #[arg(long, value_name = "N", default_value_t = EnvPipe::default().threshold_scale,
          value_parser = not_negative)]
    envpipe_threshold: f64,

    /// Time of a transfer that EnvPipe assumes if --transfer-ms is not given
    #[arg(long, value_name = "MS", default_value_t = 1e3 * EnvPipe::default().transfer_s,
          value_parser = not_negative)]
    envpipe_transfer_ms: f64,

    /// Distance between the clocks that EnvPipe profiles [default: 90]
    #[arg(long, value_name = "MHZ", value_parser = number::mhz)]
    envpipe_profile_step: Option<Mhz>,

    /// By how much EnvPipe raises a clock [default: 30, offline 15]
    #[arg(long, value_name = "MHZ", value_parser = number::mhz)]
    envpipe_raise_step: Option<Mhz>,
}

impl PolicyArguments {
    pub(crate) fn tuning(&self) -> Tuning {
        let Tuning { offline_envpipe, lowtime, .. } = Tuning::default();
        let unit_time = self.unit_time_ms;
        let raise_step = self.online.envpipe_raise_step;
        Tuning {
            envpipe: self.online.envpipe(),
            offline_envpipe: OfflineEnvPipe {
                unit_time,
                raise_step: raise_step.unwrap_or(offline_envpipe.raise_step),
            },
            zeus: self.online.zeus(),
            lowtime: Lowtime { unit_time, ..lowtime },
        }
    }
}

impl OnlineArguments {
    pub(crate) fn envpipe(&self) -> EnvPipe {
        let envpipe = EnvPipe::default();
        EnvPipe {
            profile_step: self.envpipe_profile_step.unwrap_or(envpipe.profile_step),
            raise_step: self.envpipe_raise_step.unwrap_or(envpipe.raise_step),
            transfer_s: self.envpipe_transfer_ms / 1e3,
            threshold_scale: self.envpipe_threshold,
            ..envpipe
        }
    }

    pub(crate) fn zeus(&self) -> Zeus {
        Zeus { eta: self.zeus_eta, ..Zeus::default() }
    }

    /// Puts what they say into the terms of a tune.
    pub(crate) fn fill(&self, terms: &mut Terms) {
        terms.zeus_eta = self.zeus_eta;
        terms.envpipe_threshold = self.envpipe_threshold;
        terms.envpipe_transfer_s = self.envpipe_transfer_ms / 1e3;
        terms.envpipe_profile_step = self.envpipe_profile_step;
        terms.envpipe_raise_step = self.envpipe_raise_step;
    }
}

fn unit_time(text: &str) -> Result<UnitTime, String> {
    let ms: f64 = text.parse().map_err(|_| "give milliseconds, such as 0.1".to_owned())?;
    UnitTime::from_seconds(ms / 1e3).map_err(|error| error.to_string())
}

fn share(text: &str) -> Result<f64, String> {
    let share = text.parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "give a number from 0 to 1".to_owned())
}

fn not_negative(text: &str) -> Result<f64, String> {
    let number = text.parse().ok().filter(|number: &f64| number.is_finite() && *number >= 0.0);
    number.ok_or_else(|| "give a number of at least 0".to_owned())
}
