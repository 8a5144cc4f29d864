/*
 * A stand-in for libcuda.so.1 whose GPU gets as far in its streams as a test says. A stream is a
 * number from 1 to 127; its events are counted from 1. The context of a device is its ordinal plus 1, and all
 * bytes of its UUID are its ordinal.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STREAMS = 128, EVENTS = 2048, NOT_READY = 600, SUCCESS = 0, FAILED = 719, NOT_INITIALIZED = 3, INVALID_DEVICE = 101, INVALID_HANDLE = 400 };

struct event {
    void *context;
    int stream;
    int number;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int recorded[STREAMS], reached[STREAMS], capturing[STREAMS];
static void *owners[STREAMS];
static int full[STREAMS], blocked[STREAMS];
/* When the GPU got to each event, in ms of its own clock, and what that shows if a test has set it. */
static double times[STREAMS][EVENTS], shown = -1;
static int events, spoilt, devices, active;
static __thread void *context;
static __thread int capture_mode;

/* What a test does. */

void test_make_current(void *made) { context = made; }

static double now(void)
{
    struct timespec time;

    if (shown >= 0)
        return shown;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec / 1e6;
}

/* Sets the GPU's own clock, in ms, which then stands still; from -1 on it is that of the host. */
void test_clock(long unused, int milliseconds)
{
    (void)unused;
    pthread_mutex_lock(&lock);
    shown = milliseconds;
    pthread_mutex_unlock(&lock);
}

void test_reach(long stream, int number)
{
    pthread_mutex_lock(&lock);
    for (int event = reached[stream] + 1; event <= number && event < EVENTS; event++)
        times[stream][event] = now();
    reached[stream] = number;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void test_capture(long stream, int on) { capturing[stream] = on; }

/* How many devices there are, and a bit for each on which the process has its context. */
void test_devices(int number, int contexts)
{
    devices = number;
    active = contexts;
}

/* Has a stream belong to a device from now on. */
void test_own(long stream, int device) { owners[stream] = (void *)(long)(device + 1); }

/* Whether a launch queue is full, so that recording waits. */
void test_block(long stream, int on)
{
    pthread_mutex_lock(&lock);
    full[stream] = on;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

/* Whether somebody waits for it. */
int test_blocked(long stream)
{
    pthread_mutex_lock(&lock);
    int number = blocked[stream];
    pthread_mutex_unlock(&lock);
    return number;
}

int test_recorded(long stream)
{
    pthread_mutex_lock(&lock);
    int number = recorded[stream];
    pthread_mutex_unlock(&lock);
    return number;
}

/* Events that are not destroyed yet. */
int test_events(void)
{
    pthread_mutex_lock(&lock);
    int number = events;
    pthread_mutex_unlock(&lock);
    return number;
}

/* Whether somebody did what is forbidden while a graph is captured. */
int test_spoilt(void) { return spoilt; }

/* What the library has. */

int cuCtxGetCurrent(void **current)
{
    *current = context;
    return SUCCESS;
}

int cuCtxSetCurrent(void *current)
{
    context = current;
    return SUCCESS;
}

int cuDeviceGetCount(int *count)
{
    *count = devices;
    return devices ? SUCCESS : NOT_INITIALIZED;
}

int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal;
    return !devices ? NOT_INITIALIZED : ordinal < devices ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceGetUuid(unsigned char *uuid, int device)
{
    memset(uuid, device, 16);
    return SUCCESS;
}

int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *is_active)
{
    *flags = 0;
    *is_active = active >> device & 1;
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **made, int device)
{
    *made = (void *)(long)(device + 1);
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device) { return SUCCESS; }

int cuThreadExchangeStreamCaptureMode(int *mode)
{
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return SUCCESS;
}

int cuStreamIsCapturing(long stream, int *status)
{
    *status = capturing[stream];
    return SUCCESS;
}

int cuEventCreate(struct event **event, unsigned flags)
{
    if (context == NULL || flags != 1) /* blocking, with timing */
        return FAILED;
    pthread_mutex_lock(&lock);
    events++;
    pthread_mutex_unlock(&lock);
    *event = calloc(1, sizeof **event);
    (*event)->context = context;
    return SUCCESS;
}

int cuEventRecord(struct event *event, long stream)
{
    if (event->context != context || (owners[stream] != NULL && owners[stream] != context))
        return INVALID_HANDLE;
    pthread_mutex_lock(&lock);
    blocked[stream] = full[stream];
    while (full[stream])
        pthread_cond_wait(&changed, &lock);
    blocked[stream] = 0;
    spoilt |= capturing[stream];
    event->stream = (int)stream;
    event->number = ++recorded[stream];
    pthread_mutex_unlock(&lock);
    return SUCCESS;
}

/* Like the real one, with an error where the stream has failed: the GPU gets to -1 then. */
int cuEventSynchronize(struct event *event)
{
    int result;

    pthread_mutex_lock(&lock);
    spoilt |= capture_mode != 2;
    while (reached[event->stream] >= 0 && reached[event->stream] < event->number)
        pthread_cond_wait(&changed, &lock);
    result = reached[event->stream] < 0 ? FAILED : SUCCESS;
    pthread_mutex_unlock(&lock);
    return result;
}

int cuEventElapsedTime(float *milliseconds, struct event *first, struct event *second)
{
    int result = SUCCESS;

    pthread_mutex_lock(&lock);
    struct event *both[] = {first, second};
    for (int i = 0; i < 2; i++)
        if (reached[both[i]->stream] < both[i]->number)
            result = reached[both[i]->stream] < 0 ? FAILED : NOT_READY;
    if (result == SUCCESS)
        *milliseconds = (float)(times[second->stream][second->number] - times[first->stream][first->number]);
    pthread_mutex_unlock(&lock);
    return result;
}

int cuEventDestroy_v2(struct event *event)
{
    pthread_mutex_lock(&lock);
    events--;
    pthread_mutex_unlock(&lock);
    free(event);
    return SUCCESS;
}
