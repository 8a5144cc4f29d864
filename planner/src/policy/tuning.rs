//! What the policies' users can change about them.

use super::envpipe::EnvPipe;
use super::lowtime::parameters::Lowtime;
use super::offline_envpipe::OfflineEnvPipe;
use super::zeus::Zeus;

/// Parameters of all policies; by default those that their systems are shipped with. EnvPipe's type
/// and way to reconfigure and lowtime's filter are policies of their own.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Tuning {
    /// EnvPipe's.
    pub envpipe: EnvPipe,
    /// Those of EnvPipe as Perseus' evaluation computed it.
    pub offline_envpipe: OfflineEnvPipe,
    /// Zeus'.
    pub zeus: Zeus,
    /// lowtime's.
    pub lowtime: Lowtime,
}
