//! Jobs of Debian's Slurm, which confines each step and task to its GPUs (`ConstrainDevices=yes`).

use std::fs;

use pfo_tests::{Debian, Ran, Slurm, TestPlan, on_both_debians, wait};

on_both_debians! {
    a_job_leases_the_gpus_that_slurm_gave_it_and_no_others
    each_task_that_slurm_binds_to_a_gpu_leases_that_one
    however_slurm_ends_a_step_nothing_stays_locked
    who_runs_without_the_group_learns_what_helps_under_slurm
    an_option_of_srun_names_the_plan_and_a_comment_says_what_it_saved
}

/// What tasks said of the device files that they can open, in their order.
fn opened(ran: &Ran) -> Vec<&str> {
    let mut said: Vec<_> = ran.stdout.lines().filter(|line| line.starts_with("task ")).collect();
    said.sort_unstable();
    said
}

fn a_job_leases_the_gpus_that_slurm_gave_it_and_no_others(debian: Debian) {
    let Some(slurm) = Slurm::boot(debian) else { return };
    let node = &slurm.node;
    // Another user's job has the first two.
    node.debian.run("useradd --groups pfo bob").printed();
    node.debian.run_as("bob", "cd /tmp && sbatch --gres=gpu:2 --wrap='sleep 600'").printed();
    wait::until_is("bob's job runs", &"R\n".to_owned(), || {
        node.debian.run("squeue --noheader --format=%t").stdout
    });
    let ran = slurm.srun("alice", "--ntasks=2 --gres=gpu:2 env PFO_JOB=by-ordinal /shared/task 3");
    assert_eq!(opened(&ran), ["task 0 opens 2 3", "task 1 opens 2 3"], "{ran:?}");
    assert_eq!(ran.stderr, "");
    // CUDA counts by bus.
    slurm.assert_leases("by-ordinal", &[(0, 3), (1, 2)]);

    // By name, it gets its own, and is refused the others though nobody has leased them.
    for gpu in 0..4 {
        let uuid = node.machine.uuid(gpu);
        let step = format!("--gres=gpu:2 env PFO_JOB=by-name PFO_GPU={uuid} /shared/task 3");
        let ran = slurm.srun("alice", &step);
        let minor = node.machine.gpu(gpu).minor();
        let device = format!("/dev/nvidia{minor}");
        assert_eq!(ran.stderr.contains(&device), minor < 2, "{ran:?}");
        assert_eq!(ran.stdout.contains("\"connected\": true"), minor >= 2, "{ran:?}");
    }
    slurm.assert_leases("by-name", &[(0, 2), (0, 3)]);
}

fn each_task_that_slurm_binds_to_a_gpu_leases_that_one(debian: Debian) {
    let Some(slurm) = Slurm::boot(debian) else { return };
    let bindings = ["--gpus=4 --gpus-per-task=1", "--gres=gpu:4 --gpu-bind=single:1"];
    for (job, binding) in ["per-task", "single"].into_iter().zip(bindings) {
        // Slurm shows every one of them CUDA_VISIBLE_DEVICES=0.
        let step = format!("--ntasks=4 {binding} env PFO_JOB={job} /shared/task 3");
        let ran = slurm.srun("alice", &step);
        let own = ["task 0 opens 0", "task 1 opens 1", "task 2 opens 2", "task 3 opens 3"];
        assert_eq!(opened(&ran), own, "{ran:?}");
        assert_eq!(ran.stderr, "");
        slurm.assert_leases(job, &[(0, 0), (1, 1), (2, 2), (3, 3)]);
    }
}

fn however_slurm_ends_a_step_nothing_stays_locked(debian: Debian) {
    const MICROBATCHES: u32 = 4;
    let Some(slurm) = Slurm::boot(debian) else { return };
    let node = &slurm.node;
    let plan = TestPlan::distinct(2, MICROBATCHES, 900).to_json();
    fs::write(node.debian.shared().join("plan.json"), plan).unwrap();
    let ends = [
        ("cancelled", "scancel --user=alice"),
        ("killed", "scancel --user=alice --signal=KILL"),
        ("node-lost", "systemctl stop slurmd && systemctl kill --signal=KILL '*slurmstepd.scope'"),
    ];
    for (job, end) in ends {
        // Trainers that ignore the signal with which Slurm asks first.
        let train = format!(
            "systemd-run --unit={job} --uid=alice --setenv=PFO_JOB={job} \
             srun --ntasks=2 --gres=gpu:2 /bin/sh -c 'trap \"\" TERM; exec /shared/task 1000000 {MICROBATCHES}'"
        );
        node.debian.run(&train).printed();
        wait::until_ok("the job runs a plan", || {
            let swap = format!("pfoctl plan swap {job} /shared/plan.json --wait");
            let ran = node.debian.run_as("alice", &swap);
            if ran.code == Some(0) { Ok(()) } else { Err(ran.stderr) }
        });
        wait::until_is("GPUs are locked", &2, || {
            (0..4).filter(|gpu| node.machine.sm_lock(*gpu).is_some()).count()
        });
        node.debian.run(end).printed();
        node.assert_nothing_locked();
        assert_eq!(node.debian.pfo_status()["daemon"]["sessions"], 0);
    }
}

fn who_runs_without_the_group_learns_what_helps_under_slurm(debian: Debian) {
    let Some(slurm) = Slurm::boot(debian) else { return };
    let debian = &slurm.node.debian;
    let connects = || {
        let ran = slurm.srun("dora", "--gres=gpu:1 /shared/task 3");
        let connected = ran.stdout.contains("\"connected\": true");
        if connected { Ok(()) } else { Err(ran.stderr) }
    };
    slurm.configure("GroupUpdateTime=3\n");
    debian.run("useradd dora").printed();
    let refused = [
        slurm.srun("dora", "--gres=gpu:1 /shared/task 3").stderr,
        slurm.srun("dora", "pfoctl status").stderr,
        slurm.srun("dora", "pfoctl doctor").stdout,
    ];
    for said in &refused {
        assert!(said.contains("pfo") && said.contains("GroupUpdateTime"), "{said}");
        assert!(!said.contains("log in again"), "{said}");
    }
    // Slurm keeps the groups that it has looked up for a while.
    debian.run("usermod --append --groups pfo dora").printed();
    wait::until_ok("dora's jobs have the group", connects);

    // The controller is another machine, whose accounts lack the group or give it another number.
    debian.run("grep -v ^pfo: /etc/group >/shared/group").printed();
    slurm.add_to_unit("slurmctld", "BindReadOnlyPaths=/shared/group:/etc/group");
    slurm.configure("GroupUpdateTime=3\n");
    assert!(connects().is_err());
    slurm.configure("GroupUpdateTime=3\nLaunchParameters=disable_send_gids\n");
    wait::until_ok("the node looks up the groups itself", connects);
}

/// The trainer's library takes it from there: the job begins with the plan, or is told why not.
fn assert_begins_with_its_plan(slurm: &Slurm) {
    let plan = TestPlan::distinct(1, 4, 900);
    let other = TestPlan::distinct(2, 4, 900).to_json();
    fs::write(slurm.node.debian.shared().join("other.json"), other).unwrap();
    let clocks_set =
        || (0..4).flat_map(|gpu| slurm.node.machine.clocks_set(gpu)).collect::<Vec<_>>();
    let train = |plan| slurm.srun("alice", &format!("--gres=gpu:1 --pfo={plan} /shared/task 3 4"));
    let refused = train("/shared/other.json");
    assert!(refused.stderr.contains("the plan has 2 stages, the job 1"), "{refused:?}");
    assert_eq!((clocks_set(), train("auto").stderr), (Vec::new(), String::new()));
    assert_eq!(train("/shared/plan.json").stderr, "");
    let set = clocks_set();
    assert_eq!(set.first(), plan.clocks(0).first(), "{set:?}");
    assert!(set.iter().all(|mhz| plan.clocks(0).contains(mhz)), "{set:?}");
}

/// The job's GPUs are its user's, and in the job's partition, and no longer than the job.
fn assert_prolog_and_epilog(slurm: &Slurm) {
    let debian = &slurm.node.debian;
    let grants = "sbatch --gres=gpu:2 --output=/dev/null --wrap='sleep 600'";
    debian.run_as("alice", &format!("cd /tmp && {grants}")).printed();
    let granted = || {
        let held = debian.run("pfoctl lease list --json").json();
        held["granted"].as_array().unwrap().len()
    };
    wait::until_is("GPUs are granted", &2, granted);
    let journal = || debian.run("journalctl --unit=pfo-agent --output=cat").printed();
    let says = |what: &str| journal().contains(what);
    wait::until_is("the agent knows its partition", &true, || says(" is in partition "));
    debian.run("scancel --user=alice").printed();
    wait::until_is("no GPU is granted", &0, granted);
    wait::until_is("the job has ended", &true, || says(" is in no partition any more "));
}

fn an_option_of_srun_names_the_plan_and_a_comment_says_what_it_saved(debian: Debian) {
    let Some(slurm) = Slurm::boot(debian) else { return };
    let debian = &slurm.node.debian;
    slurm.install_extras();
    slurm.configure(
        "Prolog=/etc/slurm/prolog\nEpilog=/etc/slurm/epilog\nTaskEpilog=/etc/slurm/task-epilog\n",
    );
    let plan = TestPlan::distinct(1, 4, 900).to_json();
    fs::write(debian.shared().join("plan.json"), plan).unwrap();
    let says = "sh -c 'echo $SLURM_JOB_ID $PFO_JOB $PFO_PLAN'";

    for (given, plan) in [
        ("auto", "auto"),
        ("/shared/plan.json", "/shared/plan.json"),
        ("plan.json --chdir=/shared", "/shared/plan.json"),
    ] {
        let ran =
            debian.run_as("alice", &format!("cd /shared && srun --quiet --pfo={given} {says}"));
        let said: Vec<_> = ran.stdout.split_whitespace().collect();
        let [id, job, named] = said[..] else { panic!("{ran:?}") };
        assert_eq!((id, named), (job, plan), "{ran:?}");
    }
    let ran = debian.run_as("alice", &format!("PFO_JOB=own srun --pfo=auto {says}"));
    assert!(ran.printed().ends_with(" own auto\n"));
    let without = slurm.srun("alice", &format!("{says} | wc --words")).printed();
    assert_eq!(without, "1\n");
    let refused = slurm.srun("alice", &format!("--pfo=/no/such {says}"));
    assert!(refused.code != Some(0) && refused.stdout.is_empty(), "{refused:?}");
    assert!(refused.stderr.contains("cannot read the plan /no/such: No such file"), "{refused:?}");
    // The steps of a batch job have the option of its job.
    fs::write(debian.shared().join("batch"), format!("#!/bin/sh\nsrun {says}\n")).unwrap();
    debian.run("install --owner=alice --directory /tmp/batch").printed();
    let batch = "cd /tmp/batch && sbatch --wait --output=out --pfo=auto /shared/batch && cat out";
    let ran = debian.run_as("alice", batch);
    assert!(ran.stdout.ends_with(" auto\n"), "{ran:?}");

    assert_begins_with_its_plan(&slurm);

    assert_prolog_and_epilog(&slurm);

    // What pfoctl says of a job that was compared.
    let header = "day,uid,job,plan,steps,time_s,energy_j,compared_j,comparisons,saved_low_j,\
                  saved_j,saved_high_j,shown,money,co2e_g";
    let row = ",1000,JOB,,9,9,9000000,9000000,3,900000,1000000,1100000,true,,";
    let pfoctl = format!(
        "#!/bin/sh\n[ \"$1\" = savings ] || exec /usr/bin/pfoctl \"$@\"\n\
         printf '{header}\\n{row}\\n'\n"
    );
    fs::write(debian.shared().join("pfoctl"), pfoctl).unwrap();
    debian.run("install -m 755 /shared/pfoctl /usr/local/bin/pfoctl").printed();
    let id = slurm.srun("alice", "sh -c 'echo $SLURM_JOB_ID'").printed();
    wait::until_ok("the job has a comment", || {
        let shown = debian.run(&format!("scontrol show job {}", id.trim())).stdout;
        let saved = "Comment=pfo: saved 0.278 kWh (10.0 %)";
        if shown.contains(saved) { Ok(()) } else { Err(shown) }
    });
    assert_eq!(debian.run("sinfo --noheader --format=%T").stdout, "idle\n");
}
