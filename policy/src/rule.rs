//! A rule of the configuration: the users, GPUs and nodes that it applies to, and the terms of
//! `[lease]` that it overrides. The policy looks the names up and applies the rule.

use glob::{MatchOptions, Pattern};
use pfo_keeper::{BaseClock, GpuFacts};
use serde::Deserialize;

use crate::terms::{ChangeRate, ClockBound, IdleLimit, PowerBound, SessionCount, Terms};

const IN_EITHER_CASE: MatchOptions = MatchOptions {
    case_sensitive: false,
    require_literal_separator: false,
    require_literal_leading_dot: false,
};

/// `[[rule]]`
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// The line of the file in which it begins.
    #[serde(skip)]
    pub line: usize,
    /// The users it applies to.
    pub users: Option<Several<Account>>,
    /// The groups it applies to.
    pub groups: Option<Several<Account>>,
    /// The GPUs it applies to; all if absent.
    pub gpus: Option<Several<GpuPattern>>,
    /// The nodes it applies to; all if absent.
    pub nodes: Option<Several<TextPattern>>,
    /// The control groups it applies to, with those below them; all if absent.
    pub cgroups: Option<Several<CgroupPattern>>,
    /// Whether it allows a lease; true if absent.
    pub allow: Option<bool>,
    min_mhz: Option<ClockBound>,
    max_mhz: Option<ClockBound>,
    min_power_limit_w: Option<PowerBound>,
    changes_per_second: Option<ChangeRate>,
    restore_to_mhz: Option<BaseClock>,
    sessions_per_user: Option<SessionCount>,
    idle_limit_s: Option<IdleLimit>,
    require_device: Option<bool>,
    require_process: Option<bool>,
}

/// A user names the control groups below its own: no `*` reaches over a `/`.
const EACH_COMPONENT: MatchOptions = MatchOptions {
    case_sensitive: true,
    require_literal_separator: true,
    require_literal_leading_dot: false,
};

impl Rule {
    /// The terms of a lease under this rule; `None` if the rule denies it.
    ///
    /// # Errors
    /// If it denies a lease and sets terms, or leaves no clock to lock.
    pub fn terms(&self, lease: &Terms) -> Result<Option<Terms>, String> {
        let terms = Terms {
            min_mhz: self.min_mhz.unwrap_or(lease.min_mhz),
            max_mhz: self.max_mhz.unwrap_or(lease.max_mhz),
            min_power_limit_w: self.min_power_limit_w.unwrap_or(lease.min_power_limit_w),
            changes_per_second: self.changes_per_second.unwrap_or(lease.changes_per_second),
            restore_to_mhz: self.restore_to_mhz.unwrap_or(lease.restore_to_mhz),
            sessions_per_user: self.sessions_per_user.unwrap_or(lease.sessions_per_user),
            idle_limit_s: self.idle_limit_s.unwrap_or(lease.idle_limit_s),
            require_device: self.require_device.unwrap_or(lease.require_device),
            require_process: self.require_process.unwrap_or(lease.require_process),
        };
        if self.allow == Some(false) {
            return match terms == *lease {
                true => Ok(None),
                false => Err("a rule with allow = false takes no other terms".into()),
            };
        }
        terms.check().map(|()| Some(terms))
    }

    /// Whether the rule applies to a GPU.
    #[must_use]
    pub fn is_about_gpu(&self, gpu: &GpuFacts) -> bool {
        self.gpus.as_ref().is_none_or(|gpus| gpus.any(|pattern| pattern.matches(gpu)))
    }

    /// Whether the rule applies to a process in these control groups.
    #[must_use]
    pub fn is_about_cgroup(&self, paths: &[String]) -> bool {
        let is_in = |pattern: &CgroupPattern| paths.iter().any(|path| pattern.matches(path));
        self.cgroups.as_ref().is_none_or(|cgroups| cgroups.any(is_in))
    }

    /// Whether the rule applies to a node of this name, with or without its domain.
    #[must_use]
    pub fn is_about_node(&self, name: &str) -> bool {
        let short = name.split('.').next().unwrap_or(name);
        let named = |pattern: &TextPattern| pattern.matches(name) || pattern.matches(short);
        self.nodes.as_ref().is_none_or(|nodes| nodes.any(named))
    }
}

/// The path of a control group, with `*`, `?` and `[…]` within its components.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct CgroupPattern(Pattern);

impl CgroupPattern {
    /// Whether a path is like this, or is below one that is.
    fn matches(&self, path: &str) -> bool {
        let ends = path.match_indices('/').map(|(end, _)| end).skip(1);
        let mut above = ends.chain([path.len()]).filter_map(|end| path.get(..end));
        above.any(|path| self.0.matches_with(path, EACH_COMPONENT))
    }
}

impl TryFrom<String> for CgroupPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        if !text.starts_with('/') || text.ends_with('/') || text.contains("**") {
            return Err(format!(
                "{text:?} is no control group: give a path as in /proc/PID/cgroup, such as \
                 \"/system.slice/slurmstepd.scope/job_*\"; it includes what is below"
            ));
        }
        Pattern::new(&text).map(Self).map_err(|error| format!("{text:?} is not a pattern: {error}"))
    }
}

/// At least one of something. An empty list would match nothing, which is never what is meant.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "Vec<T>")]
pub struct Several<T>(Vec<T>);

impl<T> Several<T> {
    /// Each of them.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.0.iter()
    }

    fn any(&self, condition: impl Fn(&T) -> bool) -> bool {
        self.0.iter().any(condition)
    }
}

impl<T> TryFrom<Vec<T>> for Several<T> {
    type Error = &'static str;

    fn try_from(list: Vec<T>) -> Result<Self, Self::Error> {
        if list.is_empty() {
            return Err("an empty list matches nothing; leave the key out to match all");
        }
        Ok(Self(list))
    }
}

/// A user or a group.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "give names or numbers")]
pub enum Account {
    /// By number.
    Number(u32),
    /// By name, or `*` for any user.
    Name(String),
}

/// Text with `*`, `?` and `[…]`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct TextPattern(Pattern);

impl TextPattern {
    fn matches(&self, text: &str) -> bool {
        self.0.matches_with(text, IN_EITHER_CASE)
    }
}

impl TryFrom<String> for TextPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Pattern::new(&text).map(Self).map_err(|error| format!("{text:?} is not a pattern: {error}"))
    }
}

/// Which GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged, expecting = "give patterns of UUIDs, PCI bus ids or models, or indices")]
pub enum GpuPattern {
    /// The one that the driver counts so.
    Index(u32),
    /// Those whose UUID, PCI bus id or model is like this.
    Like(TextPattern),
}

impl GpuPattern {
    fn matches(&self, gpu: &GpuFacts) -> bool {
        match self {
            Self::Index(index) => gpu.index == *index,
            Self::Like(pattern) => [gpu.uuid.as_str(), gpu.pci_bus_id.as_str(), &gpu.model]
                .into_iter()
                .any(|text| pattern.matches(text)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> Rule {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn a_gpu_is_meant_by_uuid_bus_id_model_and_index_and_by_patterns_of_them() {
        let gpu = pfo_keeper::example_gpu();
        for meant in ["'GPU-1'", "'gpu-?'", "'00000000:0a:*'", "'a100'", "'A*'", "0", "7, '*'"] {
            assert!(rule(&format!("gpus = [{meant}]")).is_about_gpu(&gpu), "{meant}");
        }
        for other in ["'GPU-11'", "'A10'", "'100'", "1", "'GPU-2', 'H100'"] {
            assert!(!rule(&format!("gpus = [{other}]")).is_about_gpu(&gpu), "{other}");
        }
        assert!(rule("").is_about_gpu(&gpu));
    }

    #[test]
    fn a_node_is_meant_by_its_name_with_or_without_the_domain() {
        for meant in ["dev7", "DEV*", "dev7.example.org", "*.example.org"] {
            let rule = rule(&format!("nodes = ['{meant}']"));
            assert!(rule.is_about_node("dev7.example.org"), "{meant}");
            assert!(!rule.is_about_node("gpu1.example.com"), "{meant}");
        }
    }

    #[test]
    fn a_control_group_is_meant_with_what_is_below_and_nobody_can_name_one_like_it() {
        let rule = rule("cgroups = ['/system.slice/slurmstepd.scope/job_*', '/kubepods.slice']");
        for inside in [
            "/system.slice/slurmstepd.scope/job_7",
            "/system.slice/slurmstepd.scope/job_7/step_0/user/task_1",
            "/kubepods.slice/a.slice/b.scope",
        ] {
            assert!(rule.is_about_cgroup(&[inside.into()]), "{inside}");
            assert!(rule.is_about_cgroup(&["/a".into(), inside.into()]), "{inside}");
        }
        for outside in [
            "/system.slice/slurmstepd.scope",
            "/system.slice/slurmstepd.scope.d/job_7",
            "/user.slice/user-7.slice/system.slice/slurmstepd.scope/job_7",
            "/kubepods.slice2",
            "",
            "/",
        ] {
            assert!(!rule.is_about_cgroup(&[outside.into()]), "{outside}");
        }
        assert!(!rule.is_about_cgroup(&[]));
        let anywhere_in_one = toml::from_str::<Rule>("cgroups = ['/user.slice/*/job']").unwrap();
        assert!(!anywhere_in_one.is_about_cgroup(&["/user.slice/a/b/job".into()]));
    }

    #[test]
    fn what_a_rule_does_not_say_is_as_in_lease() {
        let lease: Terms = toml::from_str("min_mhz = 300\nidle_limit_s = 7").unwrap();
        let terms = rule("max_mhz = 900\nrequire_process = true").terms(&lease).unwrap().unwrap();
        let bounds = (terms.min_mhz.get(), terms.max_mhz.get());
        assert_eq!((bounds, terms.idle_limit_s.get()), ((300, 900), 7));
        assert!(terms.require_process && !lease.require_process);
    }

    #[test]
    fn a_rule_that_contradicts_itself_or_lease_is_refused() {
        let lease: Terms = toml::from_str("min_mhz = 300").unwrap();
        let error = rule("max_mhz = 299").terms(&lease).unwrap_err();
        assert_eq!(error, "no clock is allowed: min_mhz is 300 MHz, max_mhz 299 MHz");
        assert!(rule("allow = false\nmin_mhz = 400").terms(&lease).is_err());
        assert_eq!(rule("allow = false").terms(&lease), Ok(None));
    }

    #[test]
    fn a_list_of_nothing_and_a_broken_pattern_are_refused() {
        for (text, said) in [
            ("users = []", "an empty list"),
            ("nodes = ['a[']", "is not a pattern"),
            ("gpus = ['a[']", "give patterns"),
            ("groups = [-1]", "give names or numbers"),
            ("cgroups = ['job_*']", "give a path as in /proc/PID/cgroup"),
            ("cgroups = ['/a/']", "is no control group"),
            ("cgroups = ['/a/**']", "is no control group"),
            ("cgroups = ['/a[']", "is not a pattern"),
        ] {
            let error = toml::from_str::<Rule>(text).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
