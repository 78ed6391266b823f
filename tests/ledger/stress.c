/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Processes that take, give back, die and become others at random moments, against a count of their own.
 *
 * `stress SECONDS SEED` starts 8 processes. They share two sums that do not come from the stand-in:
 *
 *   sure      what is held for certain: added to after a request was served, taken from before it is given back;
 *   possible  what may be held: added to before a request is made, taken from after it was refused or given back.
 *
 * At every moment, sure <= what the device has charged <= possible. So it is a fault if sure is ever more than the
 * device has, and a refusal is false if what was possible at any moment during the call would have left room for it.
 * The most that was possible during a call is kept for each process: whoever adds to `possible` raises all of them
 * before it makes its request. */
#define _GNU_SOURCE
#include "cuda.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define WORKERS 8
#define LIVE 24
#define CONTEXT (256 * MIB)

struct board {
    atomic_long sure, possible;
    atomic_long over, false_refusals, refusals, served, killed, became, forked;
    size_t total;
    double until;
    struct {
        atomic_long sure, possible, most;
    } worker[WORKERS];
};

static struct board *board;
static int board_file, self;
static uint64_t state;
/* Held by the main thread while it is not inside a call: then the sums are those of a moment. */
static pthread_mutex_t between = PTHREAD_MUTEX_INITIALIZER;

static uint64_t below(uint64_t end) {
    state += 0x9e3779b97f4a7c15ull;
    uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return (z ^ (z >> 31)) % end;
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

static void raise_to(atomic_long *word, long value) {
    long seen = atomic_load(word);
    while (seen < value && !atomic_compare_exchange_weak(word, &seen, value)) {}
}

/* A request is about to be made. */
static void about_to_take(size_t bytes) {
    atomic_fetch_add(&board->worker[self].possible, (long)bytes);
    long possible = atomic_fetch_add(&board->possible, (long)bytes) + (long)bytes;
    for (int each = 0; each < WORKERS; each++) {
        if (each != self) raise_to(&board->worker[each].most, possible);
    }
    atomic_store(&board->worker[self].most, 0);
    raise_to(&board->worker[self].most, atomic_load(&board->possible));
    pthread_mutex_unlock(&between);
}

/* It was answered. */
static int took(int status, size_t bytes) {
    pthread_mutex_lock(&between);
    if (status == 0) {
        atomic_fetch_add(&board->worker[self].sure, (long)bytes);
        long sure = atomic_fetch_add(&board->sure, (long)bytes) + (long)bytes;
        if (sure > (long)board->total) atomic_fetch_add(&board->over, 1);
        atomic_fetch_add(&board->served, 1);
        return 1;
    }
    /* `most` counts this very request too. */
    if (atomic_load(&board->worker[self].most) <= (long)board->total) atomic_fetch_add(&board->false_refusals, 1);
    atomic_fetch_add(&board->refusals, 1);
    atomic_fetch_sub(&board->worker[self].possible, (long)bytes);
    atomic_fetch_sub(&board->possible, (long)bytes);
    return 0;
}

static void about_to_give(size_t bytes) {
    atomic_fetch_sub(&board->worker[self].sure, (long)bytes);
    atomic_fetch_sub(&board->sure, (long)bytes);
    pthread_mutex_unlock(&between);
}

static void gave(size_t bytes) {
    pthread_mutex_lock(&between);
    atomic_fetch_sub(&board->worker[self].possible, (long)bytes);
    atomic_fetch_sub(&board->possible, (long)bytes);
}

/* Nothing of this process is held for certain from here on. */
static void renounce(void) { atomic_fetch_sub(&board->sure, atomic_exchange(&board->worker[self].sure, 0)); }

/* What a process that is gone may have held is held no more. */
static void forget(int worker) { atomic_fetch_sub(&board->possible, atomic_exchange(&board->worker[worker].possible, 0)); }

/* Kills the process at a moment that the main thread knows nothing of. */
static void *assassin(void *microseconds) {
    usleep((useconds_t)(uintptr_t)microseconds);
    pthread_mutex_lock(&between);
    renounce();
    raise(SIGKILL);
    return 0;
}

enum sort { PLAIN, POOLED, PHYSICAL };
struct held {
    enum sort sort;
    void *block;
    address handle;
    size_t bytes;
};

static void work(void) {
    struct held held[LIVE];
    int count = 0;
    void *streams[2] = {0};
    pthread_mutex_lock(&between);
    if (below(3) == 0) {
        pthread_t thread;
        pthread_create(&thread, 0, assassin, (void *)(uintptr_t)below(400000));
    }
    for (;;) { /* The context is memory like any other. */
        about_to_take(CONTEXT);
        size_t nothing;
        if (took(cudaMemGetInfo(&nothing, &nothing), CONTEXT)) break;
        usleep(1000);
    }
    cudaStreamCreate(&streams[1]);
    int most = 50 + (int)below(4000);
    for (int step = 0; step < most && now() < board->until; step++) {
        if (below(3) == 0) usleep((useconds_t)below(300));
        if (count < LIVE && below(2)) {
            struct held it = {.sort = (enum sort)below(3)};
            int status;
            /* Sizes of which the device charges neither more nor less. */
            size_t unit = it.sort == POOLED ? 32 * MIB : 2 * MIB;
            it.bytes = unit * (1 + below(below(8) ? 16 : board->total / unit / 2));
            about_to_take(it.bytes);
            switch (it.sort) {
            case PLAIN: status = cudaMalloc(&it.block, it.bytes); break;
            case POOLED: status = cudaMallocAsync(&it.block, it.bytes, streams[below(2)]); break;
            default: status = create_physical(&it.handle, it.bytes, 0);
            }
            if (took(status, it.bytes)) held[count++] = it;
        } else if (count) {
            int which = (int)below(count);
            struct held it = held[which];
            held[which] = held[--count];
            about_to_give(it.bytes);
            switch (it.sort) {
            case PLAIN: cudaFree(it.block); break;
            case POOLED: cudaFreeAsync(it.block, streams[below(2)]); break;
            default: cuMemRelease(it.handle);
            }
            gave(it.bytes);
        }
        if (below(400) == 0) {
            /* A child that stays for a while, and may outlive this process. */
            atomic_fetch_add(&board->forked, 1);
            if (fork() == 0) {
                usleep(20000);
                _exit(0);
            }
        }
    }
    renounce();
    if (below(3) == 0 && now() < board->until) {
        char file[16], number[16], seed[32];
        atomic_fetch_add(&board->became, 1);
        snprintf(file, sizeof file, "%d", board_file);
        snprintf(number, sizeof number, "%d", self);
        snprintf(seed, sizeof seed, "%lu", (unsigned long)below(UINT64_MAX));
        execl("/proc/self/exe", "stress", "worker", file, number, seed, (char *)0);
    }
    _exit(0);
}

static void map_board(void) {
    board = mmap(0, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, board_file, 0);
    if (board == MAP_FAILED) exit(98);
}

int main(int argc, char **argv) {
    if (argc == 5 && strcmp(argv[1], "worker") == 0) {
        board_file = atoi(argv[2]);
        map_board();
        self = atoi(argv[3]);
        state = strtoull(argv[4], 0, 10);
        forget(self); /* What was held before the exec is not any more. */
        work();
    }
    if (argc != 4) return 97;
    board_file = memfd_create("board", 0);
    if (board_file < 0 || ftruncate(board_file, sizeof *board)) return 96;
    map_board();
    state = strtoull(argv[2], 0, 10);
    board->total = strtoull(argv[3], 0, 10);
    board->until = now() + atof(argv[1]);
    pid_t pids[WORKERS] = {0};
    int alive = 0;
    for (;;) {
        for (int worker = 0; worker < WORKERS && now() < board->until; worker++) {
            if (pids[worker]) continue;
            uint64_t seed = below(UINT64_MAX);
            pids[worker] = fork();
            if (pids[worker] == 0) {
                self = worker;
                state = seed;
                work();
            }
            alive++;
        }
        if (!alive) break;
        int status;
        pid_t gone = wait(&status);
        for (int worker = 0; worker < WORKERS; worker++) {
            if (pids[worker] != gone) continue;
            if (WIFSIGNALED(status)) atomic_fetch_add(&board->killed, 1);
            else if (WEXITSTATUS(status)) return 95;
            forget(worker);
            pids[worker] = 0;
            alive--;
        }
    }
    size_t free_now = 0, total = 0;
    cudaMemGetInfo(&free_now, &total);
    printf("{\"served\": %ld, \"refused\": %ld, \"killed\": %ld, \"became\": %ld, \"forked\": %ld,\n"
           " \"over\": %ld, \"false_refusals\": %ld, \"left\": %ld, \"sure\": %ld, \"possible\": %ld}\n",
           board->served, board->refusals, board->killed, board->became, board->forked, board->over,
           board->false_refusals, (long)(total - free_now) - (long)CONTEXT, board->sure, board->possible);
    return 0;
}
