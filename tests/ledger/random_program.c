/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* A random program of several processes, streams and kinds of memory.
 *
 * `random_program SEED DEVICES FILE` makes what it does from SEED. Its processes take turns; each asks cudaMemGetInfo
 * after every step it takes, and the lowest answer of each device is written to FILE at the end. Processes come and go:
 * they end, are killed, become another program, or stay as a forked child of one that is gone. */
#define _GNU_SOURCE
#include "cuda.h"

#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORKERS 6
#define DEVICES 4
#define LIVE 64
#define RESERVED (64 * 2 * MIB)

enum order { STEP, END, EXEC, LEAVE_A_CHILD };

/* Shared by all processes of the program. */
struct board {
    int devices;
    size_t lowest[DEVICES];
    struct {
        sem_t go, done;
        enum order order;
        uint64_t random;
        int used[DEVICES];
    } worker[WORKERS];
};

static struct board *board;
static int board_file;

static uint64_t next(uint64_t *state) {
    *state += 0x9e3779b97f4a7c15ull;
    uint64_t z = *state;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

static uint64_t below(uint64_t *state, uint64_t end) { return next(state) % end; }

/* What this process holds on each device. */
enum sort { PLAIN, POOLED, PHYSICAL, PINNED };
struct held {
    enum sort sort;
    int device;
    void *block;
    address handle, mapped;
    size_t bytes;
};
static struct held held[LIVE];
static int count;
static void *streams[3];
static address reserved[DEVICES];
static unsigned reserved_next[DEVICES];

static size_t some_size(uint64_t *state, size_t total) {
    switch (below(state, 7)) {
    case 0: return 1 + below(state, 4096);
    case 1: return 1 + below(state, MIB);
    case 2: return 2 * MIB * (1 + below(state, 3)) + below(state, 2);
    case 3: return 1 + below(state, 64 * MIB);
    case 4: return 33 * MIB;
    case 5: return 1 + below(state, total / 4);
    default: return 1 + below(state, total);
    }
}

static void give_back(uint64_t *state, int which) {
    struct held it = held[which];
    held[which] = held[--count];
    switch (it.sort) {
    case PLAIN: cudaFree(it.block); break;
    case POOLED:
        if (below(state, 4) == 0) cudaFree(it.block);
        else cudaFreeAsync(it.block, streams[below(state, 3)]);
        break;
    case PHYSICAL:
        if (it.handle) cuMemRelease(it.handle);
        if (it.mapped) cuMemUnmap(it.mapped, it.bytes);
        break;
    case PINNED: cudaFreeHost(it.block); break;
    }
}

/* Asks what is free on a device, which opens its context; 0 if there is no room for one. */
static size_t ask(int device, size_t *total) {
    size_t free_now = 0;
    if (cudaSetDevice(device) != 0 || cudaMemGetInfo(&free_now, total) != 0) return 0;
    if (free_now < board->lowest[device]) board->lowest[device] = free_now;
    return *total - free_now;
}

static void step(int worker) {
    uint64_t *state = &board->worker[worker].random;
    int device = (int)below(state, board->devices);
    size_t total;
    if (!ask(device, &total)) return;
    board->worker[worker].used[device] = 1;
    if (!streams[1]) {
        cudaStreamCreate(&streams[1]);
        cudaStreamCreate(&streams[2]);
    }
    struct held it = {.device = device};
    int room = count < LIVE;
    switch (below(state, 12)) {
    case 0: case 1: case 2:
        it.bytes = some_size(state, total);
        if (room && cudaMalloc(&it.block, it.bytes) == 0) held[count++] = it;
        break;
    case 3: case 4:
        it.sort = POOLED;
        it.bytes = some_size(state, total);
        if (room && cudaMallocAsync(&it.block, it.bytes, streams[below(state, 3)]) == 0) held[count++] = it;
        break;
    case 5:
        it.sort = PHYSICAL;
        it.bytes = 2 * MIB * (1 + below(state, 8));
        if (!reserved[device]) cuMemAddressReserve(&reserved[device], RESERVED, 0, 0, 0);
        if (room && create_physical(&it.handle, it.bytes, device) == 0) {
            address at = reserved[device] + reserved_next[device] % 56 * 2 * MIB;
            reserved_next[device] += 8;
            if (below(state, 3) && cuMemMap(at, it.bytes, 0, it.handle, 0) == 0) {
                it.mapped = at;
                if (below(state, 2)) {
                    cuMemRelease(it.handle);
                    it.handle = 0;
                }
            }
            held[count++] = it;
        }
        break;
    case 6:
        it.bytes = 1 + below(state, 3 * total); /* More than there is, at times. */
        if (room && cudaMallocManaged(&it.block, it.bytes, 1) == 0) held[count++] = it;
        break;
    case 7:
        it.sort = PINNED;
        it.bytes = 1 + below(state, 64 * MIB);
        if (room && cudaMallocHost(&it.block, it.bytes) == 0) held[count++] = it;
        break;
    case 8: {
        void *pool;
        cudaDeviceGetDefaultMemPool(&pool, device);
        uint64_t keep = below(state, 2) ? UINT64_MAX : below(state, total);
        if (below(state, 2)) cudaMemPoolSetAttribute(pool, 4, &keep);
        else cudaMemPoolTrimTo(pool, below(state, 64 * MIB));
        break;
    }
    default:
        if (count) give_back(state, (int)below(state, count));
    }
    for (int each = 0; each < board->devices; each++) {
        if (board->worker[worker].used[each]) ask(each, &total);
    }
}

static void work(int worker) {
    for (;;) {
        while (sem_wait(&board->worker[worker].go) != 0) {}
        switch (board->worker[worker].order) {
        case END: sem_post(&board->worker[worker].done); exit(0);
        case EXEC: {
            char file[16], number[16];
            snprintf(file, sizeof file, "%d", board_file);
            snprintf(number, sizeof number, "%d", worker);
            memset(board->worker[worker].used, 0, sizeof board->worker[worker].used);
            execl("/proc/self/exe", "random_program", "worker", file, number, (char *)0);
            _exit(99);
        }
        case LEAVE_A_CHILD:
            if (fork() == 0) {
                /* Outlives its parent, holds nothing, and goes with the program. */
                do usleep(1000);
                while (*(volatile enum order *)&board->worker[worker].order == LEAVE_A_CHILD);
                _exit(0);
            }
            break;
        case STEP: step(worker); break;
        }
        sem_post(&board->worker[worker].done);
    }
}

static void map_board(void) {
    board = mmap(0, sizeof *board, PROT_READ | PROT_WRITE, MAP_SHARED, board_file, 0);
    if (board == MAP_FAILED) exit(98);
}

int main(int argc, char **argv) {
    if (argc == 4 && strcmp(argv[1], "worker") == 0) {
        board_file = atoi(argv[2]);
        map_board();
        sem_post(&board->worker[atoi(argv[3])].done);
        work(atoi(argv[3]));
    }
    if (argc != 4) return 97;
    uint64_t random = strtoull(argv[1], 0, 10) * 0x2545f4914f6cdd1dull + 1;
    board_file = memfd_create("board", 0);
    if (board_file < 0 || ftruncate(board_file, sizeof *board)) return 96;
    map_board();
    board->devices = atoi(argv[2]);
    for (int device = 0; device < DEVICES; device++) board->lowest[device] = SIZE_MAX;
    pid_t pids[WORKERS] = {0};
    int steps = 5 + (int)below(&random, 60), most = 1 + (int)below(&random, WORKERS);
    for (int number = 0; number < steps; number++) {
        int worker = (int)below(&random, most);
        if (!pids[worker]) {
            memset(board->worker[worker].used, 0, sizeof board->worker[worker].used);
            sem_init(&board->worker[worker].go, 1, 0);
            sem_init(&board->worker[worker].done, 1, 0);
            board->worker[worker].random = next(&random);
            board->worker[worker].order = STEP;
            pids[worker] = fork();
            if (pids[worker] == 0) work(worker);
        }
        uint64_t dice = below(&random, 30);
        if (dice == 0) {
            kill(pids[worker], SIGKILL); /* While it waits for its turn. */
            if (below(&random, 2)) waitpid(pids[worker], 0, 0);
            else waitid(P_PID, pids[worker], &(siginfo_t){0}, WEXITED | WNOWAIT); /* A zombie from here on. */
            pids[worker] = 0;
            continue;
        }
        board->worker[worker].order = dice == 1 ? END : dice == 2 ? EXEC : dice == 3 ? LEAVE_A_CHILD : STEP;
        sem_post(&board->worker[worker].go);
        while (sem_wait(&board->worker[worker].done) != 0) {}
        if (dice == 1) {
            waitid(P_PID, pids[worker], &(siginfo_t){0}, WEXITED | WNOWAIT);
            pids[worker] = 0;
        }
    }
    for (int worker = 0; worker < WORKERS; worker++) {
        board->worker[worker].order = END;
        if (pids[worker]) sem_post(&board->worker[worker].go);
    }
    while (wait(0) > 0) {}
    size_t left[DEVICES], total;
    for (int device = 0; device < board->devices; device++) left[device] = ask(device, &total);
    FILE *out = fopen(argv[3], "w");
    if (!out) return 95;
    for (int device = 0; device < board->devices; device++) fprintf(out, "%zu\n", board->lowest[device]);
    /* Everything has come back: only this process's own context is there now. */
    for (int device = 0; device < board->devices; device++) fprintf(out, "%zu\n", left[device]);
    return fclose(out) != 0;
}
