//! What a C caller says of times: its own, and those of a stream.

use std::process::Command;

use crate::c::{Toolchain, manifest};
use crate::fake::Place;
use pfo_protocol::Mark;
use tempfile::TempDir;

const PROGRAM: &str = r#"
    #include <dlfcn.h>
    #include <pfo.h>
    #include <stdlib.h>

    static void make_current(void *cuda)
    {
        void (*function)(void *);
        *(void **)&function = dlsym(cuda, "test_make_current");
        function((void *)1);
    }

    static void reach(void *cuda)
    {
        void (*function)(long, int);
        *(void **)&function = dlsym(cuda, "test_reach");
        function(1, 2);
    }

    int main(void)
    {
        struct pfo_rank rank;
        struct pfo_counters counters;
        pfo_session *session;
        void *cuda;

        pfo_rank_init(&rank, sizeof rank);
        rank.job = "c-job";
        rank.gpu = "GPU-1234";
        rank.socket = getenv("SOCKET");
        rank.setup_timeout_ms = 30000;
        if (pfo_open(&rank, &session) != PFO_OK)
            return 1;
        pfo_step_begin_at(session, 11);
        pfo_instruction_begin_at(session, PFO_BACKWARD, 2, 5, 12);
        pfo_instruction_end_at(session, 13);
        pfo_step_end_at(session, 14);
        pfo_use_stream(session, (void *)1);
        pfo_step_begin(session); /* CUDA is not loaded yet: nothing to time */
        pfo_step_end(session);
        cuda = dlopen(getenv("CUDA"), RTLD_NOW);
        if (cuda == NULL)
            return 2;
        make_current(cuda);
        pfo_step_begin(session);
        pfo_step_end(session);
        pfo_counters(session, &counters, sizeof counters);
        if (counters.sent != 6 || counters.untimed != 0 || counters.captured != 0)
            return 3;
        reach(cuda);
        pfo_close(session);
        /* The GPU has got to both, and a thread of the library says so before it says goodbye. */
        while (getchar() != EOF)
            ;
        return 0;
    }
"#;

#[test]
fn a_c_caller_gives_times_of_its_own_or_the_stream_that_has_them() {
    let Some(toolchain) = Toolchain::find() else {
        return;
    };
    let directory = TempDir::new().unwrap();
    let cuda = directory.path().join("libcuda.so.1");
    let mut compiler = Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so.1", "-o"]);
    let made = compiler.arg(&cuda).arg(manifest("tests/cuda/streams.c")).status();
    assert!(made.unwrap().success());
    let program = directory.path().join("times.c");
    std::fs::write(&program, format!("#include <stdio.h>\n{PROGRAM}")).unwrap();
    let program = toolchain.compile(&program, &["-Wno-pedantic", "-ldl"]);

    let place = Place::new();
    let daemon = place.daemon();
    let mut command = toolchain.command(&program);
    command.env("SOCKET", place.socket()).env("CUDA", &cuda);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let mut peer = daemon.welcome();
    for at_ns in 11..=14 {
        let event = peer.event();
        assert_eq!(event.client_ns, at_ns);
        if let Mark::InstructionBegin(unit) = event.mark {
            assert_eq!((unit.chunk.0, unit.microbatch.0), (2, 5));
        }
    }
    let steps = [1, 1, 2, 2];
    for (at, mark) in peer.marks(4).into_iter().enumerate() {
        let (Mark::StepBegin(step) | Mark::StepEnd(step)) = mark else { panic!("{mark:?}") };
        assert_eq!(step, steps[at]);
    }
    drop(child.stdin.take());
    assert_eq!(child.wait().unwrap().code(), Some(0));
}
