/*
 * pfo.h - report to pfod what a training rank does, so that each forward and backward runs at its
 * own GPU clock.
 *
 * A rank opens one session, reports when each step and instruction begins and ends, and closes it:
 *
 *     struct pfo_rank rank;
 *     pfo_session *session;
 *     char why[512];
 *
 *     pfo_rank_init(&rank, sizeof rank);
 *     rank.rank = rank.pp_rank = 2;
 *     rank.pp_degree = 4;
 *     if (pfo_open(&rank, &session) != PFO_OK) {
 *         pfo_problem(session, why, sizeof why);
 *         fprintf(stderr, "training at default clocks: %s\n", why);
 *     }
 *     for (int step = 0; step < steps; step++) {
 *         pfo_step_begin(session);
 *         for (int m = 0; m < microbatches; m++) {
 *             pfo_instruction_begin(session, PFO_FORWARD, m);
 *             ...                            (until the GPU has finished it)
 *             pfo_instruction_end(session);
 *         }
 *         pfo_step_end(session);
 *     }
 *     pfo_close(session);
 *
 * Training never suffers. The calls of the training loop never block, fail, print or raise a
 * signal, whatever the daemon does: without a lease, events are dropped and counted while a thread
 * of the library reconnects in the background, and training runs at default clocks. They accept a
 * NULL session and then do nothing, so that a failed pfo_open needs no branch elsewhere.
 *
 * Call begin when the GPU starts the work and end when it has finished. A kernel launch is not a
 * begin: if the host runs ahead of its GPU, name the stream of the work with pfo_use_stream, or
 * synchronize first, or call from a CUDA host function (these calls are allowed there).
 *
 * Threads: any thread may call any function. The caller keeps the order of begins and ends.
 * pfo_close must be the last call on a session. No function may be called from a signal handler.
 *
 * Fork: in a child, the sessions of its parent do nothing. A child that trains opens its own.
 *
 * Environment: fields that struct pfo_rank leaves out are read from PFO_SOCKET; PFO_JOB, else
 * SLURM_JOB_ID; PFO_RUN, else SLURM_JOB_ID with SLURM_RESTART_COUNT and the --rdzv-id of torchrun
 * (which run of the job this is, the same in all of its ranks); PFO_GPU, else the local rank of
 * torchrun, Open MPI, PMI or Slurm. PFO_PLAN names the plan with which the job begins: a file, or "auto"
 * for the one that pfo-agent keeps for it. It has to be the same for every rank.
 *
 * Link with: pkg-config --cflags --libs pfo
 */

#ifndef PFO_H
#define PFO_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* A rank's session. It holds the lease of the rank's GPU whenever the daemon grants it. */
typedef struct pfo_session pfo_session;

/* The kinds of pipeline work. The numbers are those of the protocol and never change. */
enum pfo_instruction {
    PFO_FORWARD = 0,          /* forward pass of a microbatch */
    PFO_BACKWARD = 1,         /* backward pass; recomputes nothing */
    PFO_FORWARD_BACKWARD = 2, /* backward pass that recomputes its forward inside */
    PFO_RECOMPUTATION = 3,    /* forward repeated ahead of its backward */
    PFO_BACKWARD_INPUT = 4,   /* input gradients only */
    PFO_BACKWARD_WEIGHT = 5,  /* weight gradients only */
    PFO_LOAD = 6,             /* loading a microbatch */
    PFO_P2P = 7,              /* a transfer to or from a neighbour stage */
    PFO_COLLECTIVE = 8,       /* a collective, such as the gradients' reduction */
    PFO_OPTIMIZER_STEP = 9,   /* the optimizer's step */
    PFO_OTHER = 10            /* anything else, and any higher number */
};

/*
 * The codes that pfo_open and pfo_problem return. A later release may return more of them;
 * pfo_strerror has a text for every number.
 */
enum pfo_code {
    PFO_OK = 0, /* the session holds the lease of its GPU */

    /* The daemon refused. The session asks again, at most 30 seconds later. */
    PFO_REFUSED_MALFORMED = 1,          /* a message was invalid or out of range */
    PFO_REFUSED_NOT_AUTHORIZED = 2,     /* this user is not allowed to */
    PFO_REFUSED_UNKNOWN_GPU = 3,        /* no GPU of the node has that name */
    PFO_REFUSED_GPU_HELD = 4,           /* another session holds the GPU */
    PFO_REFUSED_MIG_ENABLED = 5,        /* the GPU is split by MIG */
    PFO_REFUSED_GPU_UNAVAILABLE = 6,    /* the driver refuses to work with the GPU */
    PFO_REFUSED_DRIVER_UNAVAILABLE = 7, /* the NVIDIA driver is not loaded */
    PFO_REFUSED_LIMIT_REACHED = 8,      /* a limit of the daemon is reached */
    PFO_REFUSED_RANK_CONFLICT = 9,      /* the rank contradicts the job's other ranks */
    PFO_REFUSED_UNKNOWN_JOB = 10,       /* there is no such job */
    PFO_REFUSED_PLAN_DOES_NOT_FIT = 11, /* the plan is invalid or does not fit */
    PFO_REFUSED_NO_PLAN = 12,           /* there is nothing to swap to */
    PFO_REFUSED_SHUTTING_DOWN = 13,     /* the daemon is shutting down */
    PFO_REFUSED_INTERNAL = 14,          /* the daemon failed */
    PFO_REFUSED_NO_PROCESS = 15,        /* the policy requires a process on the GPU */
    PFO_REFUSED_REVOKED = 16,           /* the lease was revoked */

    /* The daemon ended the session. It reconnects; after an idle end, with the next event. */
    PFO_CLOSED_IDLE = 100,          /* no event came within the idle limit */
    PFO_CLOSED_SHUTTING_DOWN = 101, /* the daemon shut down */
    PFO_CLOSED_MALFORMED = 102,     /* the daemon received an invalid frame */
    PFO_CLOSED_REVOKED = 103,       /* an administrator or the user ended it */
    PFO_CLOSED_GPU_LOST = 104,      /* the GPU stopped answering */

    /* There was no answer. The session keeps trying, except after the last three. */
    PFO_NO_DAEMON = 150,       /* no daemon listens on the socket */
    PFO_ACCESS_DENIED = 151,   /* this user may not open the socket */
    PFO_NO_ANSWER = 152,       /* the daemon has not answered yet */
    PFO_UNSUPPORTED = 153,     /* daemon and library speak different versions of the protocol */
    PFO_GARBLED = 154,         /* the daemon's answer is invalid */
    PFO_CONNECTION_LOST = 155, /* the connection broke */
    PFO_GPU_UNRESOLVED = 156,  /* the GPU of the CUDA ordinal is not known */
    PFO_NO_THREAD = 157,       /* the background thread could not start */
    PFO_FORKED = 158,          /* the session is that of the parent process */
    PFO_INTERNAL = 159,        /* the library failed */

    /* Of pfo_plan_problem only. */
    PFO_PLAN_UNUSABLE = 160, /* the plan cannot be read, or does not fit a rank */

    /* There is no session. */
    PFO_INVALID_DESCRIPTION = 200
};

/*
 * A rank: its job, its position in the job and its GPU. Call pfo_rank_init first, then set the
 * fields that differ from the defaults. New fields are only added at the end, so that a program
 * works with any release of the library.
 */
struct pfo_rank {
    size_t struct_size; /* set by pfo_rank_init; do not change it */

    /* Texts are UTF-8, end with NUL and are copied by pfo_open. */
    const char *job;    /* NULL: PFO_JOB, else SLURM_JOB_ID */
    const char *gpu;    /* "GPU-6f2c..." (UUID), "0000:07:00.0" (PCI bus id), "cuda:1" (CUDA ordinal);
                           NULL: PFO_GPU, else the only GPU with a CUDA context, of
                           CUDA_VISIBLE_DEVICES or that can be opened, else the launcher's local rank
                           if the launcher gave the process this rank and started as many processes as
                           the job has ranks; else there is no lease */
    const char *socket; /* NULL: PFO_SOCKET, else /run/pfo/pfod.sock */

    uint32_t rank;      /* the global rank */
    uint32_t pp_rank;   /* the pipeline stage, 0 to 65535 */
    uint32_t dp_rank;   /* the data-parallel rank */
    uint32_t tp_rank;   /* the tensor-parallel rank */
    uint32_t pp_degree; /* the number of pipeline stages; default 1, as for the other degrees */
    uint32_t dp_degree; /* the number of data-parallel replicas */
    uint32_t tp_degree; /* the number of tensor-parallel shards */

    uint32_t num_microbatches; /* of each step; 0 (default): unknown or varying */
    uint64_t first_step;       /* the number of the first step; default 0 */
    uint32_t setup_timeout_ms; /* the longest time that pfo_open waits; default 2000 */
    uint32_t reserved;         /* 0 */
};

/* What became of a session's events. New fields are only added at the end. */
struct pfo_counters {
    uint64_t sent;       /* events that the kernel took */
    uint64_t dropped;    /* events without a connection or with a full socket */
    uint64_t reconnects; /* how often a lost lease was regained */
    uint64_t connected;  /* 1 if the session holds a lease and pfod reads, as far as it knows; else 0 */
    uint64_t misplaced;  /* instructions that began outside a step, or before the last one had ended */
    uint64_t untimed;    /* calls on a stream that counted when they were made, CUDA being loaded */
    uint64_t captured;   /* calls that counted for nothing: their stream was captured into a graph */
};

/* The microbatch after the last one of the same instruction (and chunk) in this step. */
#define PFO_MICROBATCH_AUTO UINT32_MAX

/* Fills in the defaults. struct_size is sizeof(struct pfo_rank). */
void pfo_rank_init(struct pfo_rank *rank, size_t struct_size);

/*
 * Opens a session, and waits for the daemon's first answer for at most rank->setup_timeout_ms. A
 * NULL rank means all defaults.
 *
 * Returns PFO_OK if the session holds the lease of its GPU. Any other code is the reason why it
 * does not. The session is then valid, keeps trying in the background and has to be closed; only
 * with PFO_INVALID_DESCRIPTION there is no session, and *session is NULL. pfo_problem returns the
 * text.
 */
int pfo_open(const struct pfo_rank *rank, pfo_session **session);

/*
 * The training loop's calls.
 *
 * Steps count up by one from first_step. An end without a begin does nothing. Instructions of a
 * rank do not overlap: pfo_instruction_end ends the one begun last.
 */
void pfo_step_begin(pfo_session *session);
void pfo_step_end(pfo_session *session);

/* An enum pfo_instruction, and the microbatch counted from 0 in each step or PFO_MICROBATCH_AUTO. */
void pfo_instruction_begin(pfo_session *session, uint32_t instruction, uint32_t microbatch);
void pfo_instruction_end(pfo_session *session);

/*
 * As pfo_instruction_begin, on one of several model chunks of the stage, as interleaved schedules
 * have them. Microbatches of chunks from 64 on are not counted and must be given.
 */
void pfo_instruction_begin_in_chunk(pfo_session *session, uint32_t instruction, uint16_t chunk,
                                    uint32_t microbatch);

/*
 * From now on, a call of the training loop counts when the GPU gets to this point of a stream (a
 * CUstream or cudaStream_t; NULL is the default stream), at the time at which the GPU got there, while
 * the host runs ahead. Call it again before work goes to another stream. Each call then records a CUDA
 * event in the primary context of the leased GPU, whichever context is current. Without one there, calls
 * count when they are made, and are counted as untimed if the process has loaded CUDA; a context is looked
 * for when a step begins.
 *
 * While the stream is captured into a CUDA graph, calls count for nothing and are counted as captured: a
 * launch of the graph reports nothing. Call begin and end around the launch.
 */
void pfo_use_stream(pfo_session *session, void *stream);

/*
 * As the calls without _at, for a caller that knows when its GPU began or ended the work, and learns it
 * later. at_ns is CLOCK_MONOTONIC in nanoseconds. Instructions are measured by these times; the clock of
 * the GPU is set when the call is made.
 */
void pfo_step_begin_at(pfo_session *session, uint64_t at_ns);
void pfo_step_end_at(pfo_session *session, uint64_t at_ns);
void pfo_instruction_begin_at(pfo_session *session, uint32_t instruction, uint16_t chunk,
                              uint32_t microbatch, uint64_t at_ns);
void pfo_instruction_end_at(pfo_session *session, uint64_t at_ns);

/*
 * Returns why there is no lease right now, or that pfod does not read this rank's events. If text
 * is not NULL, writes one line for people into it: the cause and the remedy, cut to size bytes
 * including the NUL (512 are enough for most). PFO_OK and an empty text if neither is so.
 *
 * With a NULL session: PFO_INVALID_DESCRIPTION, and what was wrong with the description of this
 * thread's last pfo_open.
 */
int pfo_problem(pfo_session *session, char *text, size_t size);

/*
 * Returns why the job does not begin with the plan that PFO_PLAN names, as pfo_problem does; PFO_OK if it
 * does, or if there is none. It is known when pfo_open returns PFO_OK. Training runs at default clocks.
 */
int pfo_plan_problem(pfo_session *session, char *text, size_t size);

/* What became of the events so far. struct_size is sizeof(struct pfo_counters). */
void pfo_counters(pfo_session *session, struct pfo_counters *counters, size_t struct_size);

/* Ends a session without waiting; the daemon restores the GPU's clocks. NULL does nothing. */
void pfo_close(pfo_session *session);

/* A constant text for people for each code, also for codes of later releases. */
const char *pfo_strerror(int code);

/* The version of the library, such as "0.1.0": a constant text. */
const char *pfo_version(void);

#ifdef __cplusplus
}
#endif

#endif /* PFO_H */
