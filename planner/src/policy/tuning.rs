//! The parameters of policies that users can set.

use super::envpipe::EnvPipe;
use super::lowtime::parameters::Lowtime;
use super::offline_envpipe::OfflineEnvPipe;
use super::zeus::Zeus;

/// Parameters of all policies; the defaults are those that their systems ship. EnvPipe's type and
/// way to reconfigure and lowtime's filter are ignored here: each of them is a policy of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tuning {
    /// The parameters of EnvPipe.
    pub envpipe: EnvPipe,
    /// The parameters of offline EnvPipe.
    pub offline_envpipe: OfflineEnvPipe,
    /// The parameters of Zeus.
    pub zeus: Zeus,
    /// The parameters of lowtime.
    pub lowtime: Lowtime,
}
