//! A hostile member: everything that a user of group pfo can do to a node as it is packaged, for as long
//! as `PFO_HOSTILE_SECONDS` says, while the job of another user trains on its plan.

use std::fs;
use std::thread::sleep;
use std::time::{Duration, Instant};

use pfo_protocol::Uid;
use pfo_tests::attack::Target;
use pfo_tests::control::job;
use pfo_tests::{
    Container, DEVICES, Debian, MICROBATCHES, MemoryLimit, PROGRAMS, PackagedNode, STAGES,
    TestPlan, wait,
};
use serde_json::Value;

/// How long the attack lasts, if nobody says otherwise.
const SECONDS: u64 = 60;

const JOB: &str = "victim";

/// How long the node is watched without an attack.
const CALM: Duration = Duration::from_secs(10);

/// Entries of the journal that a daemon writes for one person at once, and then in a second.
const ENTRIES: (usize, usize) = (256, 4);

/// People who attack: mallory, eve and root, of a container.
const PEOPLE: usize = 3;

/// Asks for the status again and again, and prints how many ms that took.
const WATCH: &str = "\
while :; do
    began=$(date +%s%N)
    pfoctl status >/dev/null || echo failed
    echo $((($(date +%s%N) - began) / 1000000))
    sleep 0.5
done";

/// What is the same for as long as a daemon lives.
const LIVED: &str = "systemctl show --property=MainPID,NRestarts,Result pfod pfo-agent";

/// Jobs without ranks that a person may leave behind.
const EMPTY_JOBS: usize = 32;

/// A tree that containers run in: the programs are those of the node.
const TREE: &str = "\
for directory in usr opt/pfo-tests etc proc sys dev run/pfo tmp dev/shm; do
    mkdir -p $tree/$directory
done
for link in bin sbin lib lib64; do ln -s usr/$link $tree/$link; done";

/// Runs Podman on it with nothing of pfo but the trainers' socket.
const PODMAN: &str = "\
podman --cgroup-manager=cgroupfs --storage-driver=vfs run --rm --cgroups=disabled --network=host \
--ulimit=host --volume=/usr:/usr:ro --volume=/opt/pfo-tests:/opt/pfo-tests:ro \
--volume=/run/pfo/pfod.sock:/run/pfo/pfod.sock";

fn seconds() -> u64 {
    std::env::var("PFO_HOSTILE_SECONDS").map_or(SECONDS, |text| text.parse().unwrap())
}

struct Attacked {
    node: PackagedNode,
    plan: TestPlan,
    /// Calls of each GPU of the job that were checked.
    checked: Vec<u64>,
}

impl Attacked {
    fn boot() -> Option<Self> {
        let node = PackagedNode::boot_with_gpus(Debian::TrixieWithPodman, "8xA40")?;
        node.install(&["pfod"]);
        node.add_users();
        let debian = &node.debian;
        debian
            .run(
                "usermod --append --groups pfo mallory
                 useradd --create-home --groups pfo eve
                 mkdir --parents /home/mallory && chown mallory /home/mallory
                 # As on any machine: containers of users may mount their own.
                 mkdir /mnt/proc /mnt/sys && mount -t proc proc /mnt/proc
                 mount -t sysfs sysfs /mnt/sys
                 # systemd-nspawn has no keyrings.
                 mkdir -p /etc/containers
                 printf '[containers]\nkeyring = false\n' >/etc/containers/containers.conf",
            )
            .printed();
        for user in ["mallory", "eve"] {
            let ranges = debian.run("cat /etc/subuid").printed();
            let is_own =
                |line: &str| line.starts_with(&format!("{user}:")) && line.ends_with(":65536");
            assert!(ranges.lines().any(is_own), "{ranges}");
        }
        let plan = TestPlan::distinct(STAGES, MICROBATCHES, 900);
        Some(Self { node, plan, checked: vec![0; STAGES as usize] })
    }

    /// Begins to train as alice, on the plan and the first GPUs.
    fn train(&self) {
        let debian = &self.node.debian;
        fs::write(debian.shared().join("plan.json"), self.plan.to_json()).unwrap();
        debian
            .run(&format!(
                "systemd-run --quiet --unit={JOB} --uid=alice --property=KillMode=mixed \
                 --property=StandardOutput=truncate:/shared/{JOB}.json \
                 {PROGRAMS}/pfo-sim-trainer launch --json --job {JOB} --steps 0 --time-scale 0.2 \
                 --stages {STAGES} --microbatches {MICROBATCHES}"
            ))
            .printed();
        wait::until_ok("the job runs its plan", || {
            let swap = format!("pfoctl plan swap {JOB} /shared/plan.json --wait");
            let ran = debian.run_as("alice", &swap);
            if ran.code == Some(0) { Ok(()) } else { Err(ran.stderr) }
        });
    }

    /// The clocks of the calls that were not checked yet, which are all kept.
    fn calls(&self, stage: u32) -> Vec<u32> {
        let gpu = self.node.machine.gpu(stage as usize);
        let (checked, count) = (self.checked[stage as usize], gpu.set_call_count());
        let calls = gpu.set_calls_since(checked);
        assert!(calls.len() as u64 >= count - checked, "some are missed");
        calls.iter().map(|call| call.max.0).collect()
    }

    /// Leaves out the calls so far: before the plan, the clocks were others.
    fn skip_calls(&mut self) {
        for stage in 0..STAGES {
            self.checked[stage as usize] = self.node.machine.gpu(stage as usize).set_call_count();
        }
    }

    /// Checks that the driver was asked for clocks since the last call, and for those of the plan only.
    fn check_calls(&mut self) {
        for stage in 0..STAGES {
            let clocks = self.calls(stage);
            let plan = self.plan.clocks(stage);
            let foreign: Vec<_> = clocks.iter().filter(|mhz| !plan.contains(mhz)).collect();
            assert!(foreign.is_empty(), "GPU {stage} was set to {foreign:?} instead of {plan:?}");
            self.checked[stage as usize] += clocks.len() as u64;
        }
    }

    /// Asks for the status again and again, as these users.
    fn watch(&self, users: &[&str], name: &str) {
        fs::write(self.node.debian.shared().join("watch.sh"), WATCH).unwrap();
        for user in users {
            self.node
                .debian
                .run(&format!(
                    "systemd-run --quiet --unit=watch-{name}-{user} --uid={user} \
                     --property=StandardOutput=truncate:/shared/{name}-{user}.ms \
                     /bin/sh /shared/watch.sh"
                ))
                .printed();
        }
    }

    /// Ends that; returns the answers' times in ms, sorted. None may have failed.
    fn watched(&self, user: &str, name: &str) -> Vec<u64> {
        self.node.debian.run(&format!("systemctl stop watch-{name}-{user}")).printed();
        let file = self.node.debian.shared().join(format!("{name}-{user}.ms"));
        let text = fs::read_to_string(file).unwrap();
        let mut times: Vec<u64> = text
            .lines()
            .map(|line| line.parse().unwrap_or_else(|_| panic!("status of {user}: {line}")))
            .collect();
        times.sort_unstable();
        times
    }

    /// The command that attacks, from a place with the agent's socket or without.
    fn attacker(&self, with_agent: bool, ways: &str) -> String {
        let machine = &self.node.machine;
        let uid = self.node.debian.run("id --user alice").printed();
        let mut victim = job(JOB);
        victim.uid = Some(Uid(uid.trim().parse().unwrap()));
        let gpus = (STAGES as usize..machine.gpu_count()).map(|gpu| machine.uuid(gpu)).collect();
        let target = Target {
            socket: "/run/pfo/pfod.sock".into(),
            agent: with_agent.then(|| "/run/pfo/pfo-agent.sock".into()),
            devices: DEVICES.into(),
            gpus,
            victim,
        };
        let arguments: Vec<_> =
            target.arguments().iter().map(|argument| format!("\"{argument}\"")).collect();
        format!("{PROGRAMS}/pfo-test-attacker {} {ways}", arguments.join(" "))
    }

    /// Attacks in every way: as a member, with subordinate uids, from a container without root, and as
    /// root of one.
    fn begin_attack(&self) {
        let member = self.attacker(true, "");
        let uids = self.attacker(true, "connect hoard ask join halves spoil");
        let uids = format!(
            "unshare --user --map-root-user --map-auto sh -c '\
             for uid in 1 2 3 4 5 6 7 8; do setpriv --reuid=$uid --keep-groups {uids} & done; wait'"
        );
        let volume = format!("--volume={DEVICES}:{DEVICES}");
        let contained = self.attacker(false, "");
        let rootless = format!(
            "export HOME=/home/eve XDG_RUNTIME_DIR=/tmp/eve; mkdir -p /tmp/eve; tree=$HOME/tree
             {TREE}\n{PODMAN} {volume} --group-add=keep-groups --rootfs $tree {contained}"
        );
        let root =
            format!("tree=/var/lib/hostile\n{TREE}\n{PODMAN} {volume} --rootfs $tree {contained}");
        for (name, user, script) in [
            ("member", "mallory", member),
            ("uids", "mallory", uids),
            ("rootless", "eve", rootless),
            ("root", "root", root),
        ] {
            let file = self.node.debian.shared().join(format!("{name}.sh"));
            fs::write(file, script).unwrap();
            // They compute on cores that are free: a node has some for each job, this machine has few.
            self.node
                .debian
                .run(&format!(
                    "systemd-run --quiet --unit=hostile-{name} --uid={user} --property=CPUSchedulingPolicy=idle \
                     --property=LimitNOFILE=16384 --property=Delegate=yes /bin/sh /shared/{name}.sh"
                ))
                .printed();
        }
    }

    /// Ends the attack, which must have gone on until now, and leaves nothing of it.
    fn end_attack(&self) {
        let names = ["member", "uids", "rootless", "root"].map(|name| format!("hostile-{name}"));
        for name in &names {
            let debian = &self.node.debian;
            let state = debian.run(&format!("systemctl is-active {name}")).stdout;
            let said = || debian.journal(&format!("--unit={name} --output=cat"));
            assert_eq!(state, "active\n", "{name} has ended: {}", said());
        }
        let kill = format!("systemctl kill --signal=KILL {}", names.join(" "));
        self.node.debian.run(&kill).printed();
    }

    /// What must be the same before and after.
    fn lasting(&self) -> (String, Vec<Value>) {
        let ranks = self.node.debian.pfo_status()["jobs"].clone();
        let own = ranks.as_array().unwrap().iter().find(|one| one["job"] == JOB).unwrap();
        let sessions = own["ranks"].as_array().unwrap().iter().map(|rank| rank["session"].clone());
        (self.node.debian.run(LIVED).printed(), sessions.collect())
    }

    /// Stops the training, which must not have noticed anything.
    fn stop_training(&self) {
        self.node.debian.run(&format!("systemctl stop {JOB}.service")).printed();
        let report = fs::read(self.node.debian.shared().join(format!("{JOB}.json"))).unwrap();
        let mut report: Value = serde_json::from_slice(&report).unwrap();
        report["iterations"] = Value::Null;
        assert_eq!((&report["failed_steps"], &report["dropped_events"]), (&0.into(), &0.into()));
        for rank in report["ranks"].as_array_mut().unwrap() {
            let steps = rank["steps"].take();
            assert!(steps.as_array().unwrap().len() > 10, "it has hardly trained");
            assert_eq!(
                (&rank["problem"], &rank["events"]["reconnects"]),
                (&Value::Null, &0.into())
            );
        }
    }
}

/// Checks that nothing is locked, connected or written for those who are gone.
fn assert_nothing_is_left(node: &PackagedNode, open_before: usize) {
    node.assert_nothing_locked();
    wait::until_ok("every connection is closed", || match descriptors(node) {
        open if open <= open_before + 2 => Ok(()),
        open => {
            let list = "ls -l /proc/$(systemctl show --property=MainPID --value pfod)/fd";
            Err(format!("{open} descriptors, not {open_before}: {}", node.debian.run(list).stdout))
        }
    });
    let left = node.debian.run("find /run/pfo -type f -printf '%P\\n'").printed();
    // What jobs ran is known for a while after their last rank, and what was revoked until a boot.
    let is_job = |name: &&str| name.starts_with("jobs/");
    let (jobs, others): (Vec<_>, Vec<_>) = left.lines().partition(is_job);
    assert!(jobs.len() <= 1 + PEOPLE * EMPTY_JOBS, "{jobs:?}");
    // pfod.toml is the last good configuration, for a restore while the file is wrong.
    let known = ["ledger.json", "ledger.lock", "revocations.json", "attempt.json", "pfod.toml"];
    assert!(others.iter().all(|name| known.contains(name)), "{others:?}");
}

/// Checks that no daemon failed in a way that only the journal tells, and that none has filled it.
fn assert_journal_is_quiet(debian: &Container, seconds: usize) {
    let journal = debian.journal("--boot --output=cat");
    for sign in ["oom-kill", "out of memory", "panicked at"] {
        assert!(!journal.contains(sign), "{sign}");
    }
    for unit in ["pfod", "pfo-agent"] {
        let journal = debian.journal(&format!("--unit={unit} --output=cat"));
        let most = PEOPLE * (ENTRIES.0 + ENTRIES.1 * (seconds + 60)) + 100;
        let entries = journal.lines().count();
        println!("{unit}: {entries} journal entries");
        assert!(entries < most, "{unit} wrote {entries} entries, {most} would be too many");
    }
    let journal = debian.journal("--unit=pfod --output=cat");
    assert!(journal.contains(" of user "), "nobody had a subordinate uid: {journal}");
}

/// Open files of pfod, which looks at those that it closes when somebody connects.
fn descriptors(node: &PackagedNode) -> usize {
    let count = "pfoctl status >/dev/null; ls /proc/$(systemctl show --property=MainPID --value pfod)/fd | wc --lines";
    node.debian.run(count).printed().trim().parse().unwrap()
}

#[test]
#[ignore = "boots Debian: make test-booted"]
fn nobody_on_the_node_notices_a_hostile_member() {
    let Some(mut attacked) = Attacked::boot() else { return };
    let limits = ["pfod", "pfo-agent"].map(|unit| MemoryLimit::of(&attacked.node.debian, unit));
    let open_before = descriptors(&attacked.node);
    attacked.train();
    attacked.skip_calls();
    let before = attacked.lasting();
    assert_eq!(before.1.len(), STAGES as usize);
    let users = ["alice", "root"];
    attacked.watch(&users, "calm");
    sleep(CALM);
    let calm = users.map(|user| attacked.watched(user, "calm"));
    attacked.begin_attack();
    attacked.watch(&users, "attacked");
    let (began, seconds) = (Instant::now(), seconds());
    while began.elapsed() < Duration::from_secs(seconds) {
        sleep(Duration::from_secs(1));
        attacked.check_calls();
    }
    assert_eq!(attacked.lasting(), before);
    let under_attack = users.map(|user| attacked.watched(user, "attacked"));
    attacked.end_attack();
    for (limit, unit) in limits.iter().zip(["pfod", "pfo-agent"]) {
        let used = limit.most_used().map(|bytes| bytes >> 20);
        println!("{unit}: {used:?} of {} MiB at most", limit.bytes() >> 20);
    }
    for ((user, calm), attacked) in users.iter().zip(calm).zip(under_attack) {
        let at = |times: &[u64], share| times[(times.len() - 1) * share / 100];
        let [p50, p95, most] = [50, 95, 100].map(|share| at(&attacked, share));
        println!(
            "status as {user}: p50 {p50} ms, p95 {p95} ms, at most {most} ms; without an attack {calm:?}"
        );
        assert!(attacked.len() as u64 > seconds / 4, "it was asked too seldom");
        // Processes that start on a busy machine may wait for a core for as long.
        assert!(p95 < 1000.max(5 * at(&calm, 100)), "{attacked:?}");
    }
    sleep(Duration::from_secs(2));
    attacked.check_calls();
    attacked.stop_training();
    assert_nothing_is_left(&attacked.node, open_before);
    let debian = &attacked.node.debian;
    let failed = debian.run("systemctl --failed --no-legend --plain").printed();
    assert!(!failed.contains("pfo"), "{failed}");
    assert_eq!(debian.run(LIVED).printed(), before.0);
    assert_journal_is_quiet(debian, seconds as usize);
}
