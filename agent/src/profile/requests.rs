//! What peers ask of stored profiles. To be called where files may be read.

use pfo_protocol::{AgentResponse, ProfileSelector, Refusal, RefusalCode};

use crate::authority::Permit;
use crate::profile::store::ProfileStore;
use crate::refusal::internal;

/// The stored profiles that a peer may see.
pub(crate) fn list(profiles: &ProfileStore, permit: &Permit) -> AgentResponse {
    AgentResponse::Profiles(profiles.list(permit.only_of()))
}

/// The CSV of the one stored profile that a peer means.
///
/// # Errors
/// If none or several that it may see are meant, or it cannot be read.
pub(crate) fn read(
    profiles: &ProfileStore,
    permit: &Permit,
    selector: &ProfileSelector,
) -> Result<AgentResponse, Refusal> {
    let visible = permit.only_of();
    let mut meant = profiles.list(selector.uid.or(visible));
    let fits = |part: &str, wanted: &Option<String>| wanted.as_ref().is_none_or(|w| w == part);
    meant.retain(|profile| {
        let key = &profile.key;
        visible.is_none_or(|uid| uid == key.uid)
            && key.model == selector.model
            && fits(&key.gpus, &selector.gpus)
            && fits(&key.partition, &selector.partition)
    });
    // An administrator's own profile goes before those of others.
    if selector.uid.is_none() && meant.iter().any(|profile| profile.key.uid == permit.uid()) {
        meant.retain(|profile| profile.key.uid == permit.uid());
    }
    let model = &selector.model;
    match &meant[..] {
        [profile] => {
            let csv = profiles.read(profile).map_err(|error| internal(&error))?;
            Ok(AgentResponse::Profile { profile: profile.clone(), csv })
        }
        [] => Err(Refusal::new(
            RefusalCode::UnknownJob,
            format!("no such profile of model {model} is stored"),
            "`pfoctl profile list` shows those that are",
        )),
        several => Err(Refusal::new(
            RefusalCode::UnknownJob,
            format!("{} profiles of model {model} are stored", several.len()),
            "say which with --gpus, --partition or --user; `pfoctl profile list` shows them",
        )),
    }
}
