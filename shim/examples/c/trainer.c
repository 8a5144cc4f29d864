/*
 * A trainer in C: one rank of a 1F1B pipeline that sleeps where a real one computes.
 *
 *     PFO_JOB=demo PFO_GPU=GPU-... RANK=1 WORLD_SIZE=4 ./trainer [STEPS [MICROBATCHES]]
 *
 * Ends with one line of JSON: what became of its events, and the code of the last problem.
 */

#define _DEFAULT_SOURCE

#include <pfo.h>

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static uint32_t number(const char *text, uint32_t otherwise)
{
    return text ? (uint32_t)strtoul(text, NULL, 10) : otherwise;
}

static void run(pfo_session *session, uint32_t instruction, uint32_t microbatch)
{
    pfo_instruction_begin(session, instruction, microbatch);
    usleep(instruction == PFO_FORWARD ? 2000 : 4000);
    pfo_instruction_end(session);
}

static void one_step(pfo_session *session, const struct pfo_rank *rank)
{
    uint32_t warmup = rank->pp_degree - 1 - rank->pp_rank;
    uint32_t backward = 0;

    pfo_step_begin(session);
    for (uint32_t forward = 0; forward < rank->num_microbatches; forward++) {
        run(session, PFO_FORWARD, forward);
        if (forward >= warmup)
            run(session, PFO_BACKWARD, backward++);
    }
    while (backward < rank->num_microbatches)
        run(session, PFO_BACKWARD, backward++);
    pfo_step_end(session);
}

int main(int argc, char **argv)
{
    uint32_t steps = number(argc > 1 ? argv[1] : NULL, 10);
    struct pfo_rank rank;
    struct pfo_counters counters;
    pfo_session *session;
    char why[512];
    int problem;

    pfo_rank_init(&rank, sizeof rank);
    rank.rank = rank.pp_rank = number(getenv("RANK"), 0);
    rank.pp_degree = number(getenv("WORLD_SIZE"), 1);
    rank.num_microbatches = number(argc > 2 ? argv[2] : NULL, 4);

    problem = pfo_open(&rank, &session);
    if (problem != PFO_OK) {
        pfo_problem(session, why, sizeof why);
        fprintf(stderr, "training at default clocks: %s\n", why);
    }
    if (problem == PFO_INVALID_DESCRIPTION)
        return EXIT_FAILURE;
    if (pfo_plan_problem(session, why, sizeof why) != PFO_OK)
        fprintf(stderr, "training without the plan: %s\n", why);

    for (uint32_t step = 0; step < steps; step++)
        one_step(session, &rank);

    problem = pfo_problem(session, NULL, 0);
    pfo_counters(session, &counters, sizeof counters);
    printf("{\"steps\": %" PRIu32 ", \"sent\": %" PRIu64 ", \"dropped\": %" PRIu64
           ", \"reconnects\": %" PRIu64 ", \"connected\": %s, \"problem\": %d}\n",
           steps, counters.sent, counters.dropped, counters.reconnects,
           counters.connected ? "true" : "false", problem);
    pfo_close(session);
    return EXIT_SUCCESS;
}
