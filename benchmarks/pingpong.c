/* Round trip of one cache line between two CPUs, in nanoseconds: `pingpong [CPU CPU]`.
 *
 * Two pinned threads bounce a counter. The lower quartile over short chunks is printed, so that
 * another process that takes a CPU for a few milliseconds does not change the answer. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

enum { CHUNKS = 48, TRIPS = 400, GIVE_WAY = 100000 };

static _Alignas(128) atomic_uint ball;

static int pin(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    return sched_setaffinity(0, sizeof set, &set);
}

/* Gives the CPU away now and then: the other thread's CPU may be busy with something else. */
static void await(unsigned value) {
    for (unsigned spins = 0; atomic_load_explicit(&ball, memory_order_acquire) != value;)
        if (++spins % GIVE_WAY == 0) sched_yield();
}

static void *answer(void *cpu) {
    if (pin(*(int *)cpu)) exit(3);
    for (unsigned trip = 0; trip < CHUNKS * TRIPS; trip++) {
        await(2 * trip + 1);
        atomic_store_explicit(&ball, 2 * trip + 2, memory_order_release);
    }
    return NULL;
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static double chunk(unsigned first) {
    double start = now();
    for (unsigned trip = first; trip < first + TRIPS; trip++) {
        atomic_store_explicit(&ball, 2 * trip + 1, memory_order_release);
        await(2 * trip + 2);
    }
    return (now() - start) / TRIPS;
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv) {
    int cpus[2] = {argc > 2 ? atoi(argv[1]) : 0, argc > 2 ? atoi(argv[2]) : 1};
    double ns[CHUNKS];
    pthread_t other;
    if (pin(cpus[0])) return 3;
    if (pthread_create(&other, NULL, answer, &cpus[1])) return 4;
    for (unsigned i = 0; i < CHUNKS; i++) ns[i] = chunk(i * TRIPS);
    pthread_join(other, NULL);
    qsort(ns, CHUNKS, sizeof *ns, ascending);
    printf("%.1f\n", ns[CHUNKS / 4]);
    return 0;
}
