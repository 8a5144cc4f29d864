/*
 * A SPANK plugin: `srun --pfo=PLAN|auto`, and the same for sbatch and salloc.
 *
 * Each task gets PFO_PLAN, and PFO_JOB unless it has one. Nothing else is done: no file of a user is
 * opened, and nothing is asked as root.
 */

#define _GNU_SOURCE

#include <limits.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <slurm/spank.h>

SPANK_PLUGIN(pfo, 1)

#define OPTION "pfo"
#define AUTO "auto"

/* Checks the option where its user sees the answer. */
static int check(int val, const char *plan, int remote)
{
    (void)val;
    if (remote || (plan && strcmp(plan, AUTO) == 0))
        return ESPANK_SUCCESS;
    if (!plan || !*plan) {
        slurm_error("--pfo: give a plan file, or " AUTO);
        return ESPANK_BAD_ARG;
    }
    if (strlen(plan) >= PATH_MAX || access(plan, R_OK) != 0) {
        slurm_error("--pfo: cannot read the plan %.200s: %m; give a file that pfoctl plan export wrote, or " AUTO,
                    plan);
        return ESPANK_BAD_ARG;
    }
    return ESPANK_SUCCESS;
}

static struct spank_option option = {
    .name = OPTION,
    .arginfo = "PLAN|" AUTO,
    .usage = "Begin at pfo's plan in the file PLAN, or at the one that is kept for the job (" AUTO ")",
    .has_arg = 1,
    .cb = check,
};

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
    (void)argc;
    (void)argv;
    return spank_option_register(spank, &option);
}

/* The user's own process, in the directory of the task. */
int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
    char path[2 * PATH_MAX], directory[PATH_MAX], job[32];
    char *plan = NULL;
    uint32_t id;

    (void)argc;
    (void)argv;
    if (spank_option_getopt(spank, &option, &plan) != ESPANK_SUCCESS || !plan)
        return ESPANK_SUCCESS;
    if (*plan != '/' && strcmp(plan, AUTO) != 0) {
        if (!getcwd(directory, sizeof directory))
            return ESPANK_ERROR;
        snprintf(path, sizeof path, "%s/%s", directory, plan);
        plan = path;
    }
    if (spank_setenv(spank, "PFO_PLAN", plan, 1) != ESPANK_SUCCESS)
        return ESPANK_ERROR;
    if (spank_get_item(spank, S_JOB_ID, &id) != ESPANK_SUCCESS)
        return ESPANK_SUCCESS;
    snprintf(job, sizeof job, "%u", id);
    spank_setenv(spank, "PFO_JOB", job, 0);
    return ESPANK_SUCCESS;
}
