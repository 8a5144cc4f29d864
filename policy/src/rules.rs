//! Who may lease which GPU on which terms: the first rule that matches decides. Pure, once the
//! names in the rules have been looked up.

use std::fmt;
use std::path::PathBuf;

use pfo_keeper::GpuFacts;
use pfo_protocol::{Gid, Uid};
use pfo_service::Lookup;

use crate::config::Config;
use crate::rule::{Account, Rule, Several};
use crate::terms::Terms;

/// A user who may want a lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    /// The user.
    pub uid: Uid,
    pub groups: &'a [Gid],
    /// Whether it is in one of the groups that may lease where no rule says otherwise.
    pub member: bool,
    /// The paths of its control groups.
    pub cgroups: &'a [String],
}

/// What decided.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The rule in this line of the file.
    Line(PathBuf, usize),
    /// No rule: the terms for members.
    Lease,
    /// No rule, and no membership.
    Nothing,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(file, line) => write!(f, "{}, line {line}", file.display()),
            Self::Lease => f.write_str("[lease], as no rule matches"),
            Self::Nothing => f.write_str("no rule matches"),
        }
    }
}

/// Whether a user may lease a GPU, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// What decided.
    pub place: Place,
    /// The terms for that GPU; `None` if the user may not.
    pub terms: Option<Terms>,
}

/// All rules that apply to this node.
#[derive(Clone, Debug)]
pub(crate) struct Policy {
    file: PathBuf,
    rules: Vec<ReadyRule>,
    lease: Terms,
}

#[derive(Clone, Debug)]
struct ReadyRule {
    rule: Rule,
    who: Who,
    terms: Option<Terms>,
}

/// The users and groups that a rule applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Who {
    Members,
    Anybody,
    Listed { users: Vec<Uid>, groups: Vec<Gid> },
}

impl Who {
    fn includes(&self, subject: Subject<'_>) -> bool {
        match self {
            Self::Members => subject.member,
            Self::Anybody => true,
            Self::Listed { users, groups } => {
                users.contains(&subject.uid)
                    || groups.iter().any(|gid| subject.groups.contains(gid))
            }
        }
    }
}

impl Policy {
    /// The policy of a checked configuration on the node of that name.
    #[must_use]
    pub(crate) fn new(config: &Config, node: &str, lookup: &mut Lookup<'_>) -> Self {
        let rules = config.rules.iter().map(|rule| rule.get_ref().clone());
        let ready = |rule: Rule| {
            let who = look_up(&rule, lookup);
            // The check of the configuration leaves no error here; if it did, the answer would be
            // no.
            let terms = rule.terms(&config.lease).unwrap_or(None);
            ReadyRule { rule, who, terms }
        };
        let rules = rules.filter(|rule| rule.is_about_node(node)).map(ready).collect();
        let file = config.file.clone().unwrap_or_default();
        Self { file, rules, lease: config.lease.clone() }
    }

    /// Whether a user may lease a GPU, on which terms, and what decided.
    #[must_use]
    pub(crate) fn decide(&self, subject: Subject<'_>, gpu: &GpuFacts) -> Verdict {
        let matches =
            |ready: &&ReadyRule| ready.applies_to(subject) && ready.rule.is_about_gpu(gpu);
        let (place, terms) = match self.rules.iter().find(matches) {
            Some(ready) => (Place::Line(self.file.clone(), ready.rule.line), ready.terms.as_ref()),
            None if subject.member => (Place::Lease, Some(&self.lease)),
            None => (Place::Nothing, None),
        };
        Verdict { place, terms: terms.map(|terms| terms.on(gpu)) }
    }

    /// Whether any rule is about control groups.
    #[must_use]
    pub(crate) fn is_about_cgroups(&self) -> bool {
        self.rules.iter().any(|ready| ready.rule.cgroups.is_some())
    }

    /// Whether a rule allows a user to lease a GPU of this node.
    #[must_use]
    pub(crate) fn lets_in(&self, subject: Subject<'_>) -> bool {
        self.rules.iter().any(|ready| ready.terms.is_some() && ready.applies_to(subject))
    }
}

impl ReadyRule {
    fn applies_to(&self, subject: Subject<'_>) -> bool {
        self.who.includes(subject) && self.rule.is_about_cgroup(subject.cgroups)
    }
}

fn look_up(rule: &Rule, lookup: &mut Lookup<'_>) -> Who {
    let (users, groups) = (rule.users.as_ref(), rule.groups.as_ref());
    if users.is_none() && groups.is_none() {
        return Who::Members;
    }
    let users: Vec<_> = users.into_iter().flat_map(Several::iter).collect();
    if users.iter().any(|user| matches!(user, Account::Name(name) if name == "*")) {
        return Who::Anybody;
    }
    let place = format!("line {}", rule.line);
    let mut uid = |user: &Account| match user {
        Account::Number(number) => Some(Uid(*number)),
        Account::Name(name) => lookup.user(name, &place),
    };
    let users = users.into_iter().filter_map(&mut uid).collect();
    let mut gid = |group: &Account| match group {
        Account::Number(number) => Some(Gid(*number)),
        Account::Name(name) => lookup.group(name, &place),
    };
    let groups = groups.into_iter().flat_map(Several::iter).filter_map(&mut gid).collect();
    Who::Listed { users, groups }
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;
    use pfo_keeper::example_gpu;
    use pfo_service::Accounts;
    use proptest::prelude::*;

    use super::*;

    /// Users `u1`, `u2`… and groups `g1`, `g2`… with these numbers.
    struct Numbered;

    impl Accounts for Numbered {
        fn user(&self, name: &str) -> Result<Option<Uid>, Errno> {
            Ok(name.strip_prefix('u').and_then(|number| number.parse().ok()).map(Uid))
        }

        fn group(&self, name: &str) -> Result<Option<Gid>, Errno> {
            Ok(name.strip_prefix('g').and_then(|number| number.parse().ok()).map(Gid))
        }

        fn groups_of(&self, _: Uid) -> Result<Vec<Gid>, Errno> {
            Ok(Vec::new())
        }
    }

    fn policy_of(text: &str, lookup: &mut Lookup<'_>) -> Policy {
        Policy::new(&Config::parse(text, "f".as_ref()).unwrap(), "node1", lookup)
    }

    fn policy(text: &str) -> Policy {
        policy_of(text, &mut Lookup::new(&Numbered))
    }

    fn line(policy: &Policy, uid: u32, groups: &[u32], member: bool) -> (Option<usize>, bool) {
        let groups: Vec<_> = groups.iter().copied().map(Gid).collect();
        let subject = Subject { uid: Uid(uid), groups: &groups, member, cgroups: &[] };
        let verdict = policy.decide(subject, &example_gpu());
        let line = match verdict.place {
            Place::Line(_, line) => Some(line),
            Place::Lease | Place::Nothing => None,
        };
        (line, verdict.terms.is_some())
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let policy = policy(
            "[[rule]]\nusers = ['u1']\nallow = false\n\
             [[rule]]\ngpus = ['H100']\nallow = false\n\
             [[rule]]\ngroups = ['g7']\nmax_mhz = 900\n\
             [[rule]]\nmax_mhz = 800\n\
             [[rule]]\nusers = ['*', 5]\nmax_mhz = 700\n\
             [[rule]]\nusers = [9]\nallow = false\n",
        );
        for (what, uid, groups, member, expected) in [
            ("a denied user, whatever its groups", 1, &[7][..], true, (Some(1), false)),
            ("a group", 2, &[6, 7], false, (Some(7), true)),
            ("a member", 2, &[6], true, (Some(10), true)),
            ("anybody", 2, &[6], false, (Some(12), true)),
            ("a rule behind one for anybody", 9, &[], false, (Some(12), true)),
        ] {
            assert_eq!(line(&policy, uid, groups, member), expected, "{what}");
        }
    }

    #[test]
    fn without_a_rule_members_may_and_others_may_not() {
        for text in ["", "[[rule]]\ngpus = ['H100']\nusers = ['*']", "[[rule]]\nnodes = ['dev*']"] {
            assert_eq!(line(&policy(text), 2, &[6], true), (None, true), "{text}");
            assert_eq!(line(&policy(text), 2, &[6], false), (None, false), "{text}");
        }
    }

    #[test]
    fn a_name_that_nobody_has_lets_nobody_in_and_is_reported() {
        let mut lookup = Lookup::new(&Numbered);
        let rule = "[[rule]]\nusers = ['zoe']\ngroups = ['staff', 'g3']";
        let policy = policy_of(rule, &mut lookup);
        let unknown: Vec<_> = lookup.unknown_names.iter().map(ToString::to_string).collect();
        assert_eq!(unknown, ["user zoe (line 1)", "group staff (line 1)"]);
        assert_eq!(line(&policy, 0, &[0], false), (None, false));
        assert_eq!(line(&policy, 0, &[3], false), (Some(1), true));
    }

    #[test]
    fn who_is_let_in_by_a_rule_is_known_before_a_gpu_is_named() {
        let policy = policy("[[rule]]\nusers = [3]\nallow = false\n[[rule]]\nusers = [4]");
        let subject = |uid| Subject { uid: Uid(uid), groups: &[], member: false, cgroups: &[] };
        let may = |uid| policy.lets_in(subject(uid));
        assert_eq!((may(3), may(4), may(5)), (false, true, false));
    }

    fn any_rule() -> impl Strategy<Value = String> {
        let who = prop_oneof![
            Just(String::new()),
            (0..4u32).prop_map(|uid| format!("users = [{uid}]\n")),
            (0..4u32).prop_map(|gid| format!("groups = ['g{gid}']\n")),
            (0..4u32, 0..4u32).prop_map(|(u, g)| format!("users = [{u}]\ngroups = [{g}]\n")),
        ];
        let gpus = prop_oneof![Just(""), Just("gpus = ['A*']\n"), Just("gpus = ['H*']\n")];
        (who, gpus, any::<bool>())
            .prop_map(|(who, gpus, allow)| format!("[[rule]]\n{who}{gpus}allow = {allow}\n"))
    }

    proptest! {
        #[test]
        fn a_rule_behind_the_one_that_decided_changes_nothing(
            rules in prop::collection::vec(any_rule(), 0..6), later in any_rule(),
            uid in 0..4u32, groups in prop::collection::vec(0..4u32, 0..3), member: bool,
        ) {
            let rules = rules.concat();
            let before = line(&policy(&rules), uid, &groups, member);
            let after = line(&policy(&(rules + &later)), uid, &groups, member);
            prop_assert!(before.0.is_none() || after == before, "{before:?} {after:?}");
        }

        #[test]
        fn nobody_gets_a_lease_without_membership_or_a_rule_that_names_them(
            rules in prop::collection::vec(any_rule(), 0..6),
            uid in 4..9u32, groups in prop::collection::vec(4..9u32, 0..3),
        ) {
            prop_assert_eq!(line(&policy(&rules.concat()), uid, &groups, false), (None, false));
        }
    }
}
