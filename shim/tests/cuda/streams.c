/*
 * A stand-in for libcuda.so.1 whose GPU gets as far in its streams as a test says. A stream is a
 * number from 1 to 15; its events are counted from 1.
 */
#include <pthread.h>
#include <stdlib.h>

enum { STREAMS = 16, SUCCESS = 0, FAILED = 719 };

struct event {
    int stream;
    int number;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static int recorded[STREAMS], reached[STREAMS], capturing[STREAMS];
static int events, spoilt;
static __thread void *context;
static __thread int capture_mode;

/* What a test does. */

void test_make_current(void *made) { context = made; }

void test_reach(long stream, int number)
{
    pthread_mutex_lock(&lock);
    reached[stream] = number;
    pthread_cond_broadcast(&changed);
    pthread_mutex_unlock(&lock);
}

void test_capture(long stream, int on) { capturing[stream] = on; }

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
    if (context == NULL || flags != 3) /* blocking, without timing */
        return FAILED;
    pthread_mutex_lock(&lock);
    events++;
    pthread_mutex_unlock(&lock);
    *event = calloc(1, sizeof **event);
    return SUCCESS;
}

int cuEventRecord(struct event *event, long stream)
{
    pthread_mutex_lock(&lock);
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

int cuEventDestroy_v2(struct event *event)
{
    pthread_mutex_lock(&lock);
    events--;
    pthread_mutex_unlock(&lock);
    free(event);
    return SUCCESS;
}
