//! `pfo.h` and `libpfo.so` agree with each other and with the Rust API.

use std::process::Command;

use crate::c::{Toolchain, library, manifest, printed, text};
use crate::fake::Place;
use pfo::{ClosingReason, Instruction, ProblemCode, RefusalCode};

/// Every name of an enum in the header, and what it means in Rust.
fn numbers() -> Vec<(String, i32)> {
    use ProblemCode as P;
    let instructions = Instruction::ALL.map(|instruction| {
        let name = format!("PFO_{}", instruction.name().to_uppercase());
        (name, instruction as i32)
    });
    let problems = [
        ("REFUSED_MALFORMED", P::Refused(RefusalCode::Malformed)),
        ("REFUSED_NOT_AUTHORIZED", P::Refused(RefusalCode::NotAuthorized)),
        ("REFUSED_UNKNOWN_GPU", P::Refused(RefusalCode::UnknownGpu)),
        ("REFUSED_GPU_HELD", P::Refused(RefusalCode::GpuHeld)),
        ("REFUSED_MIG_ENABLED", P::Refused(RefusalCode::MigEnabled)),
        ("REFUSED_GPU_UNAVAILABLE", P::Refused(RefusalCode::GpuUnavailable)),
        ("REFUSED_DRIVER_UNAVAILABLE", P::Refused(RefusalCode::DriverUnavailable)),
        ("REFUSED_LIMIT_REACHED", P::Refused(RefusalCode::LimitReached)),
        ("REFUSED_RANK_CONFLICT", P::Refused(RefusalCode::RankConflict)),
        ("REFUSED_UNKNOWN_JOB", P::Refused(RefusalCode::UnknownJob)),
        ("REFUSED_PLAN_DOES_NOT_FIT", P::Refused(RefusalCode::PlanDoesNotFit)),
        ("REFUSED_NO_PLAN", P::Refused(RefusalCode::NoPlan)),
        ("REFUSED_SHUTTING_DOWN", P::Refused(RefusalCode::ShuttingDown)),
        ("REFUSED_INTERNAL", P::Refused(RefusalCode::Internal)),
        ("REFUSED_NO_PROCESS", P::Refused(RefusalCode::NoProcess)),
        ("REFUSED_REVOKED", P::Refused(RefusalCode::Revoked)),
        ("CLOSED_IDLE", P::Closed(ClosingReason::Idle)),
        ("CLOSED_SHUTTING_DOWN", P::Closed(ClosingReason::ShuttingDown)),
        ("CLOSED_MALFORMED", P::Closed(ClosingReason::Malformed)),
        ("CLOSED_REVOKED", P::Closed(ClosingReason::Revoked)),
        ("CLOSED_GPU_LOST", P::Closed(ClosingReason::GpuLost)),
        ("NO_DAEMON", P::NoDaemon),
        ("ACCESS_DENIED", P::AccessDenied),
        ("NO_ANSWER", P::NoAnswer),
        ("UNSUPPORTED", P::Unsupported),
        ("GARBLED", P::Garbled),
        ("CONNECTION_LOST", P::ConnectionLost),
        ("GPU_UNRESOLVED", P::GpuUnresolved),
        ("NO_THREAD", P::NoThread),
        ("FORKED", P::Forked),
        ("INTERNAL", P::Internal),
        ("PLAN_UNUSABLE", P::PlanUnusable),
    ];
    let problems = problems.map(|(name, code)| (format!("PFO_{name}"), code.number()));
    instructions
        .into_iter()
        .chain(problems)
        .chain([("PFO_OK".to_owned(), 0), ("PFO_INVALID_DESCRIPTION".to_owned(), 200)])
        .collect()
}

#[test]
fn every_number_in_the_header_is_the_rust_ones_and_none_is_missing() {
    let Some(toolchain) = Toolchain::find() else {
        return;
    };
    let numbers = numbers();
    let prints: String = numbers
        .iter()
        .map(|(name, _)| format!("printf(\"{name} %d\\n\", (int){name});\n"))
        .collect();
    let source =
        format!("#include <pfo.h>\n#include <stdio.h>\nint main(void) {{\n{prints}return 0;\n}}");
    let program = toolchain.compile_text(&source);
    let expected: String =
        numbers.iter().map(|(name, number)| format!("{name} {number}\n")).collect();
    assert_eq!(printed(&toolchain.command(&program).output().unwrap()), expected);

    let header = std::fs::read_to_string(manifest("include/pfo.h")).unwrap();
    let enumerators = header.lines().filter(|line| line.starts_with("    PFO_"));
    assert_eq!(enumerators.count(), numbers.len());
}

#[test]
fn every_code_of_the_header_has_a_text_of_its_own() {
    let Some(toolchain) = Toolchain::find() else {
        return;
    };
    let codes: Vec<_> = numbers().into_iter().skip(Instruction::ALL.len()).collect();
    let prints: String =
        codes.iter().map(|(name, _)| format!("puts(pfo_strerror({name}));\n")).collect();
    let source = format!(
        "#include <pfo.h>\n#include <stdio.h>\nint main(void) {{\n{prints}\
         puts(pfo_strerror(-7));\nputs(pfo_version());\nreturn 0;\n}}"
    );
    let program = toolchain.compile_text(&source);
    let output = printed(&toolchain.command(&program).output().unwrap());
    let mut lines: Vec<_> = output.lines().collect();
    assert_eq!(lines.pop(), Some(pfo::VERSION));
    assert_eq!(lines.len(), codes.len() + 1);
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), codes.len() + 1, "{lines:?}");
}

#[test]
fn the_header_is_cpp_too() {
    let Ok(output) = Command::new("c++")
        .args(["-x", "c++", "-std=c++11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"])
        .arg("-fsyntax-only")
        .arg(manifest("include/pfo.h"))
        .output()
    else {
        eprintln!("skipped: there is no C++ compiler `c++`");
        return;
    };
    assert!(output.status.success(), "{}", text(&output.stderr));
}

#[test]
fn every_field_of_the_c_description_reaches_the_daemon() {
    let Some(toolchain) = Toolchain::find() else {
        return;
    };
    let program = toolchain.compile_text(
        r#"
        #include <pfo.h>
        #include <stdlib.h>
        int main(void)
        {
            struct pfo_rank rank;
            pfo_session *session;
            pfo_rank_init(&rank, sizeof rank);
            rank.job = "c-job";
            rank.gpu = "0000:0a:00.0";
            rank.socket = getenv("SOCKET");
            rank.rank = 11;
            rank.pp_rank = 1;
            rank.dp_rank = 2;
            rank.tp_rank = 3;
            rank.pp_degree = 4;
            rank.dp_degree = 5;
            rank.tp_degree = 6;
            rank.num_microbatches = 7;
            rank.first_step = 1ull << 40;
            rank.setup_timeout_ms = 30000;
            if (pfo_open(&rank, &session) != PFO_OK)
                return 1;
            pfo_close(session);
            return 0;
        }
        "#,
    );
    let place = Place::new();
    let daemon = place.daemon();
    let child = toolchain.command(&program).env("SOCKET", place.socket()).spawn();
    let peer = daemon.welcome();
    let hello = peer.hello();
    assert_eq!(hello.job.as_str(), "c-job");
    assert_eq!(hello.gpu.to_string(), "00000000:0A:00.0");
    let position = &hello.position;
    assert_eq!(
        [position.rank.0, position.pp_rank.into(), position.dp_rank.0, position.tp_rank.0],
        [11, 1, 2, 3]
    );
    assert_eq!([position.pp_degree, position.dp_degree, position.tp_degree], [4, 5, 6]);
    assert_eq!((hello.num_microbatches, hello.next_step), (Some(7), 1 << 40));
    assert!(child.unwrap().wait().unwrap().success());
}

#[test]
fn the_shared_library_exports_what_the_header_declares_and_nothing_else() {
    let Ok(output) = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output()
    else {
        eprintln!("skipped: there is no `nm`");
        return;
    };
    let header = std::fs::read_to_string(manifest("include/pfo.h")).unwrap();
    let mut exported = Vec::new();
    for line in text(&output.stdout).lines() {
        let name = line.rsplit(' ').next().unwrap().to_owned();
        assert!(header.contains(&format!("{name}(")), "{name} is not in the header");
        exported.push(name);
    }
    assert_eq!(exported.len(), 18, "{exported:?}");
}
