//! Budgets of a fleet, which an administrator signs: the file of the key, and what is checked before.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};

use clap::Args;
use pfo_protocol::{
    AgentRequest, AgentResponse, BudgetChange, BudgetDraft, BudgetLevel, BudgetOrder, BudgetReport,
    BudgetScope, BudgetTerms, FleetBudgets, FleetOrder, JobSelector, SignedBudgets,
    from_hexadecimal, hexadecimal,
};
use ring::rand::{SecureRandom, SystemRandom};
use ring::signature::{ED25519, Ed25519KeyPair, KeyPair, UnparsedPublicKey};
use serde::{Deserialize, Serialize};

use crate::daemons::Daemons;
use crate::error::Error;
use crate::exit::Exit;
use crate::explained::Explained;
use crate::output::Output;
use crate::user;

const FORMAT: &str = "pfo-budget-key/1";

/// The longest file of a key that is read, in bytes, and the longest name of one.
const LONGEST_FILE: u64 = 4096;
const LONGEST_NAME: usize = 64;

/// Make a key that signs budgets of a fleet
///
/// Nodes obey budgets of their fleet only if a key that their agent.toml lists has signed them. Keep the file
/// on the machine where you administer the fleet: who can read it can order budgets.
#[derive(Args)]
pub(crate) struct SignKey {
    /// The file to write, which must not exist
    file: String,

    /// What nodes call the key [default: your user name]
    #[arg(long, value_name = "NAME", value_parser = name)]
    name: Option<String>,
}

#[derive(Args)]
pub(super) struct KeyArguments {
    /// Sign the change with this key, which `pfoctl budget sign-key` made; required for the fleet
    #[arg(long, value_name = "FILE")]
    key: Option<String>,

    /// Sign the budgets and terms of the fleet even if another key has signed them before
    #[arg(long, requires = "key")]
    adopt: bool,
}

/// What can go wrong before a signature.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SigningError {
    #[error("cannot read the key {file}: {source}")]
    Read { file: String, source: io::Error },
    #[error("cannot write the key {file}: {source}")]
    Write { file: String, source: io::Error },
    #[error("others may read the key {file}: its mode is {mode:o}")]
    Exposed { file: String, mode: u32 },
    #[error("{file} is no key of pfo: {why}")]
    NotAKey { file: String, why: String },
    #[error("the system has no random numbers")]
    NoRandomness,
    #[error("the budgets of the fleet were signed with another key, {}…", &.0[..8])]
    Foreign(String),
    #[error("pfo-agent requests a signature for something other than this change: {0}")]
    Differs(&'static str),
}

impl Explained for SigningError {
    fn exit(&self) -> Exit {
        match self {
            Self::Read { .. } | Self::Exposed { .. } | Self::NotAKey { .. } => Exit::Usage,
            Self::Write { .. } | Self::NoRandomness => Exit::Failed,
            Self::Foreign(_) | Self::Differs(_) => Exit::Refused,
        }
    }

    fn remedy(&self) -> Option<String> {
        let remedy = match self {
            Self::Read { .. } | Self::NoRandomness => return None,
            Self::Write { .. } => "name a file that does not exist".to_owned(),
            Self::Exposed { file, .. } => {
                format!("make another key if somebody may have read it, or `chmod 600 {file}`")
            }
            Self::NotAKey { .. } => "`pfoctl budget sign-key FILE` makes a key".to_owned(),
            Self::Foreign(_) => {
                "look at `pfoctl budget status`; --adopt signs all budgets and terms there"
                    .to_owned()
            }
            Self::Differs(_) => {
                "do not sign at this node: its pfo-agent may have been taken over".to_owned()
            }
        };
        Some(remedy)
    }
}

fn name(text: &str) -> Result<String, String> {
    let may_be = |letter: char| letter.is_ascii_alphanumeric() || "._@-".contains(letter);
    if (1..=LONGEST_NAME).contains(&text.len()) && text.chars().all(may_be) {
        return Ok(text.to_owned());
    }
    Err(format!("give 1 to {LONGEST_NAME} letters, digits and `._@-`"))
}

/// A file with a key.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeyFile {
    format: String,
    name: String,
    /// What the key pair is made of, in hexadecimal digits.
    secret: String,
}

impl SignKey {
    pub(crate) fn run(self, output: &mut Output) -> Result<(), Error> {
        let Self { file, name } = self;
        let name = name.unwrap_or_else(user::own_name);
        let mut secret = [0; 32];
        SystemRandom::new().fill(&mut secret).map_err(|_| SigningError::NoRandomness)?;
        let public = hexadecimal(pair(&file, &secret)?.public_key().as_ref());
        let content = format!(
            "format = \"{FORMAT}\"\nname = \"{name}\"\nsecret = \"{}\"\n",
            hexadecimal(&secret)
        );
        write_new(&file, &content)
            .map_err(|source| SigningError::Write { file: file.clone(), source })?;
        output.text(&format!(
            "{file} has the key {name}; only you can read it. Each node that is to obey it needs this in [budget] of\n\
             /etc/pfo/agent.toml, and then `systemctl reload pfo-agent`:\n\n\
             fleet = true\n\
             keys = [\"{name}:{public}\"]\n"
        ))
    }
}

fn write_new(file: &str, content: &str) -> io::Result<()> {
    let mut new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(file)?;
    new.write_all(content.as_bytes())?;
    new.sync_all()
}

fn pair(file: &str, secret: &[u8]) -> Result<Ed25519KeyPair, SigningError> {
    let no_key = |why: ring::error::KeyRejected| SigningError::NotAKey {
        file: file.into(),
        why: why.to_string(),
    };
    Ed25519KeyPair::from_seed_unchecked(secret).map_err(no_key)
}

fn read_key(file: &str) -> Result<Ed25519KeyPair, SigningError> {
    let unread = |source| SigningError::Read { file: file.to_owned(), source };
    let no_key = |why: &dyn std::fmt::Display| SigningError::NotAKey {
        file: file.to_owned(),
        why: why.to_string(),
    };
    let opened = File::open(file).map_err(unread)?;
    let mode = opened.metadata().map_err(unread)?.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(SigningError::Exposed { file: file.to_owned(), mode });
    }
    let mut text = String::new();
    opened.take(LONGEST_FILE).read_to_string(&mut text).map_err(unread)?;
    // The error would show the line, which is the secret.
    let KeyFile { format, secret, .. } =
        toml::from_str(&text).map_err(|_| no_key(&"it has not format, name and secret"))?;
    if format != FORMAT {
        return Err(no_key(&format!("its format is {format:?}, not {FORMAT:?}")));
    }
    let secret = from_hexadecimal::<32>(&secret);
    pair(file, &secret.ok_or_else(|| no_key(&"its secret is not 64 hexadecimal digits"))?)
}

impl KeyArguments {
    /// Asks for a change of budgets, with a signature if there is a key for one.
    pub(super) fn ask(
        &self,
        daemons: &Daemons,
        change: BudgetChange,
    ) -> Result<BudgetReport, Error> {
        let Some(file) = &self.key else {
            return super::ask(
                daemons,
                match change {
                    BudgetChange::Set(order) => AgentRequest::BudgetSet(order),
                    BudgetChange::Clear(scope) => AgentRequest::BudgetClear(scope),
                    BudgetChange::Terms(terms) => AgentRequest::BudgetTerms(terms),
                },
            );
        };
        let key = read_key(file)?;
        let mut agent = daemons.agent()?;
        let draft = match agent.ask(AgentRequest::BudgetDraft(change.clone()))? {
            AgentResponse::BudgetDraft(draft) => *draft,
            other => return Err(agent.unexpected(&other).into()),
        };
        let public = key.public_key().as_ref();
        check(&draft, &change, (!self.adopt).then_some(public))?;
        let signature = key.sign(&SignedBudgets::message(&draft.text));
        let signed = SignedBudgets::new(public, signature.as_ref(), draft.text);
        match agent.ask(AgentRequest::BudgetSigned(signed))? {
            AgentResponse::Budget(report) => Ok(*report),
            other => Err(agent.unexpected(&other).into()),
        }
    }
}

fn read(text: &str) -> Option<FleetBudgets> {
    serde_json::from_str(text).ok()
}

/// What was signed before: by this key, if only that counts.
fn signed_before(
    former: &SignedBudgets,
    only_by: Option<&[u8]>,
) -> Result<FleetBudgets, SigningError> {
    let verified = former.key_and_signature().filter(|(key, signature)| {
        let message = SignedBudgets::message(&former.text);
        UnparsedPublicKey::new(&ED25519, key).verify(&message, signature).is_ok()
    });
    let Some((key, _)) = verified else {
        return Err(SigningError::Differs("no key has signed the former budgets"));
    };
    if only_by.is_some_and(|own| own != key) {
        return Err(SigningError::Foreign(former.key.clone()));
    }
    read(&former.text).ok_or(SigningError::Differs("the former text does not describe budgets"))
}

/// That what is to be signed is a change of what was signed before, and this one. The agent that says so may
/// have been taken over.
fn check(
    draft: &BudgetDraft,
    change: &BudgetChange,
    only_by: Option<&[u8]>,
) -> Result<(), SigningError> {
    let before = match &draft.former {
        Some(former) => Some(signed_before(former, only_by)?),
        None => None,
    };
    let after =
        read(&draft.text).ok_or(SigningError::Differs("the new text does not describe budgets"))?;
    let is_next = match &before {
        Some(before) => {
            before.fleet == after.fleet && before.number.checked_add(1) == Some(after.number)
        }
        // Another number than 1 follows that of a key that nodes no longer list.
        None => (1..=u64::from(u32::MAX)).contains(&after.number),
    };
    if !is_next {
        return Err(SigningError::Differs("it is for another fleet, or not the next one"));
    }
    let before = before.unwrap_or_default();
    let FleetBudgets { mut orders, mut terms, .. } = after;
    let has = |scope: &BudgetScope| orders.iter().any(|new| new.order.scope == *scope);
    let ended = before.orders.iter().map(|former| &former.order.scope);
    let ended: Vec<_> = ended.filter(|scope| !has(scope)).cloned().collect();
    let has_terms = |scope: &BudgetScope| terms.iter().any(|new| new.scope == *scope);
    let dropped = before.terms.iter().map(|former| &former.scope);
    let dropped: Vec<_> = dropped.filter(|scope| !has_terms(scope)).cloned().collect();
    // The only scope of an order, and of terms, of which the change says something.
    let (mut of_order, mut of_terms) = (None, None);
    match change {
        BudgetChange::Set(order) => {
            let is_it = |new: &FleetOrder| {
                let scope = new.order.scope.clone();
                is_of(&scope, &order.scope) && new.order == BudgetOrder { scope, ..order.clone() }
            };
            let new = orders.iter().position(is_it).map(|place| orders.remove(place));
            let new = new.filter(|new| is_text_of(&order.level, new.text.as_deref()));
            of_order =
                Some(new.ok_or(SigningError::Differs("it sets another budget"))?.order.scope);
        }
        BudgetChange::Clear(scope) => {
            of_order = ended.first().filter(|ended| is_of(ended, scope)).cloned();
        }
        BudgetChange::Terms(wanted) if wanted.weight.is_none() && wanted.slowest.is_none() => {
            of_terms = dropped.first().filter(|dropped| is_of(dropped, &wanted.scope)).cloned();
        }
        BudgetChange::Terms(wanted) => {
            let is_it = |new: &BudgetTerms| {
                let scope = new.scope.clone();
                is_of(&scope, &wanted.scope) && *new == BudgetTerms { scope, ..wanted.clone() }
            };
            let new = terms.iter().position(is_it).map(|place| terms.remove(place));
            of_terms = Some(new.ok_or(SigningError::Differs("it sets other terms"))?.scope);
        }
    }
    let former =
        before.orders.iter().filter(|former| Some(&former.order.scope) != of_order.as_ref());
    let former_terms =
        before.terms.iter().filter(|former| Some(&former.scope) != of_terms.as_ref());
    let is_same = former.eq(&orders) && former_terms.eq(&terms);
    if is_same { Ok(()) } else { Err(SigningError::Differs("other budgets or terms change, too")) }
}

/// Whether a scope is the one that was asked for, with the owner of its job.
fn is_of(scope: &BudgetScope, asked: &BudgetScope) -> bool {
    match (scope, asked) {
        (
            BudgetScope::FleetJob(job),
            BudgetScope::FleetJob(JobSelector { job: name, uid: None }),
        ) => job.job == *name,
        _ => scope == asked,
    }
}

/// Whether a file says so, as far as this process may read it.
fn is_text_of(level: &BudgetLevel, text: Option<&str>) -> bool {
    match level {
        BudgetLevel::Watts(_) => text.is_none(),
        BudgetLevel::File(path) => {
            fs::read_to_string(path).ok().is_none_or(|own| text == Some(&own))
        }
    }
}

#[cfg(test)]
mod tests {
    use pfo_protocol::Uid;

    use super::*;

    fn budget(scope: BudgetScope, watts: f64) -> BudgetOrder {
        let (up_w_per_s, down_w_per_s, emergency) = (None, None, false);
        let level = BudgetLevel::Watts(watts);
        BudgetOrder { scope, level, up_w_per_s, down_w_per_s, emergency }
    }

    fn ordered(order: BudgetOrder) -> FleetOrder {
        FleetOrder { order, by_uid: Uid(5), by_node: "a".into(), since_unix_s: 1, text: None }
    }

    fn of_user(uid: u32) -> BudgetScope {
        BudgetScope::FleetUser(Uid(uid))
    }

    fn terms(scope: BudgetScope, weight: Option<f64>) -> BudgetTerms {
        BudgetTerms { scope, weight, slowest: None }
    }

    fn before() -> FleetBudgets {
        FleetBudgets {
            fleet: "one".into(),
            number: 4,
            orders: vec![
                ordered(budget(BudgetScope::Fleet, 900.0)),
                ordered(budget(of_user(5), 90.0)),
            ],
            terms: vec![terms(of_user(5), Some(2.0))],
        }
    }

    fn own() -> Ed25519KeyPair {
        Ed25519KeyPair::from_seed_unchecked(&[7; 32]).unwrap()
    }

    fn former(by: u8) -> SignedBudgets {
        let pair = Ed25519KeyPair::from_seed_unchecked(&[by; 32]).unwrap();
        let text = serde_json::to_string(&before()).unwrap();
        let signature = pair.sign(&SignedBudgets::message(&text));
        SignedBudgets::new(pair.public_key().as_ref(), signature.as_ref(), text)
    }

    /// Whether what an agent makes of `before` is signed for a change.
    fn is_signed(change: &BudgetChange, make: impl FnOnce(&mut FleetBudgets)) -> bool {
        let mut after = FleetBudgets { number: 5, ..before() };
        make(&mut after);
        let text = serde_json::to_string(&after).unwrap();
        let draft = BudgetDraft { former: Some(former(7)), text };
        check(&draft, change, Some(own().public_key().as_ref())).is_ok()
    }

    #[test]
    fn a_change_of_what_was_signed_before_is_signed() {
        let set = BudgetChange::Set(budget(BudgetScope::Fleet, 800.0));
        let replace = |after: &mut FleetBudgets| {
            after.orders.remove(0);
            after.orders.push(ordered(budget(BudgetScope::Fleet, 800.0)));
        };
        assert!(is_signed(&set, replace));
        assert!(is_signed(&BudgetChange::Clear(of_user(5)), |after| drop(after.orders.pop())));
        let more = BudgetChange::Terms(terms(of_user(6), Some(3.0)));
        assert!(is_signed(&more, |after| after.terms.push(terms(of_user(6), Some(3.0)))));
        let none = BudgetChange::Terms(terms(of_user(5), None));
        assert!(is_signed(&none, |after| after.terms.clear()));
    }

    #[test]
    fn a_job_gets_its_owner_from_the_agent_and_keeps_its_name() {
        let job =
            |job: &str, uid| BudgetScope::FleetJob(JobSelector { job: job.parse().unwrap(), uid });
        let set = BudgetChange::Set(budget(job("j", None), 800.0));
        for (made, is_it) in [(job("j", Some(Uid(5))), true), (job("k", Some(Uid(5))), false)] {
            let make = |after: &mut FleetBudgets| after.orders.push(ordered(budget(made, 800.0)));
            assert_eq!(is_signed(&set, make), is_it);
        }
    }

    #[test]
    fn nothing_but_the_change_is_signed() {
        let order = budget(BudgetScope::Fleet, 800.0);
        let set = BudgetChange::Set(order.clone());
        let make = |after: &mut FleetBudgets, order: BudgetOrder| {
            after.orders.remove(0);
            after.orders.push(ordered(order));
        };
        let other_power = budget(BudgetScope::Fleet, 1.0);
        let emergency = BudgetOrder { emergency: true, ..order.clone() };
        assert!(!is_signed(&set, |after| make(after, other_power)));
        assert!(!is_signed(&set, |after| make(after, emergency)));
        assert!(!is_signed(&set, |_| ()));
        assert!(!is_signed(&set, |after| {
            make(after, order.clone());
            after.orders[0].order.level = BudgetLevel::Watts(1.0);
        }));
        assert!(!is_signed(&set, |after| {
            make(after, order.clone());
            after.orders.push(ordered(budget(of_user(6), 1.0)));
        }));
        assert!(!is_signed(&set, |after| {
            make(after, order.clone());
            after.terms.clear();
        }));
        for number in [4, 6, u64::MAX] {
            assert!(!is_signed(&set, |after| {
                make(after, order.clone());
                after.number = number;
            }));
        }
        assert!(!is_signed(&set, |after| {
            make(after, order.clone());
            after.fleet = "two".into();
        }));
        assert!(!is_signed(&BudgetChange::Clear(of_user(5)), |after| after.orders.clear()));
        let weight = BudgetChange::Terms(terms(of_user(6), Some(3.0)));
        assert!(!is_signed(&weight, |after| after.terms.push(terms(of_user(6), Some(9.0)))));
    }

    #[test]
    fn nothing_is_signed_on_top_of_what_nobody_or_another_key_has_signed() {
        let clear = BudgetChange::Clear(of_user(5));
        let mut after = FleetBudgets { number: 5, ..before() };
        after.orders.pop();
        let text = serde_json::to_string(&after).unwrap();
        let own = own();
        let own = Some(own.public_key().as_ref());
        let on = |former: SignedBudgets| {
            let draft = BudgetDraft { former: Some(former), text: text.clone() };
            (check(&draft, &clear, own).is_ok(), check(&draft, &clear, None).is_ok())
        };
        assert_eq!(on(former(7)), (true, true));
        assert_eq!(on(former(8)), (false, true));
        let forged = SignedBudgets { signature: former(8).signature, ..former(7) };
        assert_eq!(on(forged), (false, false));
        let draft = BudgetDraft { former: None, text };
        assert!(check(&draft, &clear, own).is_err(), "as if nothing were signed yet");
    }

    #[test]
    fn a_key_is_read_as_it_was_written_and_no_file_is_overwritten() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ann.key").display().to_string();
        let content = format!(
            "format = \"{FORMAT}\"\nname = \"ann\"\nsecret = \"{}\"\n",
            hexadecimal(&[7; 32])
        );
        write_new(&file, &content).unwrap();
        assert_eq!(read_key(&file).unwrap().public_key().as_ref(), own().public_key().as_ref());
        assert!(write_new(&file, &content).is_err());
        for wrong in ["", &content.replace("07", "7"), &content.replace("/1", "/2")] {
            fs::write(&file, wrong).unwrap();
            let why = read_key(&file).unwrap_err().to_string();
            assert!(why.contains("is no key of pfo") && !why.contains("0707"), "{why}");
        }
    }
}
