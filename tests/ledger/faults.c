/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Programs that are hard on a recorder and on the ledger between processes, one for each word. Each prints what it saw;
 * `test_ledger.py` says what it should have seen. */
#define _GNU_SOURCE
#include "cuda.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* The function by which torch's allocator reports a block. */
struct torch_device {
    signed char kind, index;
};
void _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(void *, long, size_t, size_t, struct torch_device);

static void report(char *block, long change, size_t allocated) {
    struct torch_device device = {1, 0};
    _ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE(block, change, allocated, 2 * MIB, device);
}

static void *shared_page(void) {
    return mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
}

static void *malloc_or_die(size_t bytes) {
    void *block = 0;
    if (cudaMalloc(&block, bytes) != 0) {
        printf("refused %zu\n", bytes);
        fflush(stdout);
        _exit(3);
    }
    return block;
}

/* Sizes that the device rounds up. */
static int rounding(void) {
    void *block;
    for (int i = 0; i < 500; i++) cudaMalloc(&block, 2 * MIB + 1);
    for (int i = 0; i < 50; i++) cudaMallocAsync(&block, 33 * MIB, 0);
    printf("free %zu\n", free_bytes());
    return 0;
}

/* Managed memory far beyond the device, with device memory beside it. */
static int managed(void) {
    void *block, *beside;
    size_t before = free_bytes();
    int status = cudaMallocManaged(&block, 100 * GIB, 1);
    struct {
        int type, device;
        void *on_device, *on_host;
        long more[8];
    } attributes = {0};
    int cudaPointerGetAttributes(void *, const void *);
    cudaPointerGetAttributes(&attributes, (char *)block + 5);
    printf("managed %d, charged %zu, type %d\n", status, before - free_bytes(), attributes.type);
    memset(block, 1, 4096); /* The host may use it. */
    status = cudaMalloc(&beside, before - 2 * MIB);
    int first = cudaFree(block), again = cudaFree(block);
    printf("beside %d, freed %d %d\n", status, first, again);
    return 0;
}

/* Two processes, each asking again and again for 60 % of the device: at most one may have it. */
static int both(void) {
    atomic_int *holders = shared_page();
    for (int child = 0; child < 2; child++) {
        if (fork() == 0) {
            int together = 0, got = 0;
            for (int i = 0; i < 4000; i++) {
                void *block;
                if (cudaMalloc(&block, 14 * GIB) != 0) continue;
                got++;
                together += atomic_fetch_add(holders, 1) > 0;
                for (volatile int wait = 0; wait < 3000; wait++) {}
                atomic_fetch_sub(holders, 1);
                cudaFree(block);
            }
            atomic_fetch_add(holders + 1, together);
            atomic_fetch_add(holders + 2, got);
            _exit(0);
        }
    }
    while (wait(0) > 0) {}
    printf("together %d, served %s\n", holders[1], holders[2] > 100 ? "often" : "seldom");
    return 0;
}

/* Two processes that never hold more than 1 GiB each: none is refused. */
static int small(void) {
    atomic_int *refused = shared_page();
    for (int child = 0; child < 2; child++) {
        if (fork() == 0) {
            for (int i = 0; i < 20000; i++) {
                void *block;
                if (cudaMalloc(&block, GIB) != 0) atomic_fetch_add(refused, 1);
                else cudaFree(block);
            }
            _exit(0);
        }
    }
    while (wait(0) > 0) {}
    printf("refused %d\n", *refused);
    return 0;
}

/* A child that was killed and not waited for holds nothing. */
static int zombie(void) {
    int ready[2];
    if (pipe(ready)) return 1;
    pid_t child = fork();
    if (child == 0) {
        malloc_or_die(18 * GIB);
        if (write(ready[1], "x", 1) != 1) _exit(1);
        pause();
    }
    char byte;
    if (read(ready[0], &byte, 1) != 1) return 1;
    size_t before = free_bytes();
    kill(child, SIGKILL);
    waitid(P_PID, child, &(siginfo_t){0}, WEXITED | WNOWAIT);
    printf("back %zu\n", (free_bytes() - before) / GIB);
    malloc_or_die(18 * GIB);
    waitpid(child, 0, 0);
    printf("served\n");
    return 0;
}

/* What a program held before it became another is free. */
static int becomes_another(char **argv) {
    malloc_or_die(15 * GIB);
    if (argv[2]) {
        printf("served twice\n");
        return 0;
    }
    execl("/proc/self/exe", argv[0], argv[1], "again", (char *)0);
    return 1;
}

/* A process is gone although a child that it forked is not. */
static int orphan(void) {
    int ready[2], over[2];
    if (pipe(ready) || pipe(over)) return 1;
    pid_t parent = fork();
    if (parent == 0) {
        malloc_or_die(18 * GIB);
        if (fork() == 0) {
            char byte;
            close(over[1]);
            if (write(ready[1], "x", 1) != 1) _exit(1);
            _exit(read(over[0], &byte, 1) != 0); /* Until all is over. */
        }
        pause();
    }
    char byte;
    if (read(ready[0], &byte, 1) != 1) return 1;
    kill(parent, SIGKILL);
    waitpid(parent, 0, 0);
    malloc_or_die(18 * GIB);
    printf("served\n");
    return 0;
}

/* More processes than the ledger has slots, one after the other. */
static int many(void) {
    for (int i = 0; i < 600; i++) {
        pid_t child = fork();
        if (child == 0) {
            malloc_or_die(MIB);
            _exit(0);
        }
        int status;
        waitpid(child, &status, 0);
        if (status != 0) return 1;
    }
    malloc_or_die(20 * GIB);
    printf("used %zu\n", 24 * GIB - free_bytes());
    return 0;
}

static int many_at_once(void) {
    int over[2];
    atomic_int *ready = shared_page();
    if (pipe(over)) return 1;
    for (int i = 0; i < 520; i++) {
        if (fork() == 0) {
            char byte;
            close(over[1]);
            void *block;
            cudaMalloc(&block, MIB);
            atomic_fetch_add(ready, 1);
            _exit(read(over[0], &byte, 1) != 0);
        }
    }
    while (*ready < 520) usleep(1000);
    close(over[1]);
    while (wait(0) > 0) {}
    return 0;
}

/* Reports blocks as torch does, until far past what the disk or a limit lets a file hold. */
static int fills(char **argv) {
    char *block = malloc_or_die(2 * MIB);
    long count = atol(argv[2]);
    for (long i = 0; i < count; i++) report(block + i / 2 % 2048 * 512, i & 1 ? -512 : 512, 512);
    report(block, 1 * MIB, MIB);
    void *large;
    cudaMalloc(&large, 5 * GIB);
    cudaFree(large);
    printf("survived\n");
    return 0;
}

/* No file can be made in the folder of the run. */
static int locked_out(void) {
    const char *folder = getenv("TONNAGE_RUN");
    char path[4096];
    snprintf(path, sizeof path, "%s/ledger", folder);
    chmod(path, 0666);
    snprintf(path, sizeof path, "%s/run.json", folder);
    chmod(path, 0644);
    chmod(folder, 0555);
    if (getuid() == 0 && setuid(65534)) return 1;
    if (access(folder, W_OK) == 0) printf("not locked out\n");
    cudaFree(malloc_or_die(3 * GIB));
    chmod(folder, 0700);
    printf("served\n");
    return 0;
}

/* Forks while other threads are in the middle of calls: every child ends. */
static atomic_int stop;
static void allocate(void) {
    void *block = 0;
    cudaMalloc(&block, 2 * MIB);
    report(block, 512, 512);
    report(block, -512, 0);
    cudaFree(block);
}

static int symbol[4];
static void launch(void) {
    struct extent one = {1, 1, 1};
    static const char kernel;
    void *stream = 0, *found = 0, *module = 0;
    size_t bytes;
    address variable;
    void **binary = __cudaRegisterFatBinary(0);
    __cudaRegisterFunction(binary, &kernel, "kernel", "kernel", -1, 0, 0, 0, 0, 0);
    __cudaRegisterVar(binary, (char *)symbol, (char *)symbol, "symbol", 0, sizeof symbol, 0, 0);
    cudaGetSymbolAddress(&found, symbol);
    cuModuleLoadData(&module, ".version 8.0 .visible .global .b8 table[64];");
    cuModuleGetGlobal_v2(&variable, &bytes, module, "table");
    cuModuleUnload(module);
    cudaStreamCreate(&stream);
    cudaLaunchKernel(&kernel, one, one, 0, 0, stream);
    cudaStreamSynchronize(stream);
    cudaStreamDestroy(stream);
    __cudaUnregisterFatBinary(binary);
}

static void multiply(void) {
    void *handle = 0, *sparse = 0, *layout = 0;
    cublasCreate_v2(&handle);
    cublasSetStream_v2(handle, 0);
    cublasSgemm_v2(handle, 0, 0, 8, 8, 8, 0, 0, 8, 0, 8, 0, 0, 8);
    cublasDestroy_v2(handle);
    cublasLtMatrixLayoutCreate(&layout, 0, 8, 8, 8);
    cusparseCreate(&sparse);
    cusparseSetPointerMode(sparse, 1);
}

static void reduce(void) {
    struct {
        char name[128];
    } id;
    void *ranks = 0, *block = 0;
    ncclGetUniqueId(&id);
    ncclCommInitAll(&ranks, 1, 0);
    cudaMalloc(&block, MIB);
    ncclAllReduce(block, block, 16, 7, 0, ranks, 0);
    cudaStreamSynchronize(0);
    ncclCommDestroy(ranks);
    cudaFree(block);
}

/* Libraries register kernels while the loader is at work. */
static void load(void) {
    void *library = dlopen("libnccl.so.2", RTLD_NOW);
    if (library) dlclose(library);
    library = dlopen("libcudart.so.13", RTLD_NOW);
    if (library) dlclose(library);
}

static void (*const CALLS[])(void) = {allocate, launch, multiply, reduce, load};
enum { CALLERS = sizeof CALLS / sizeof *CALLS };

static void *keeps_calling(void *call) {
    while (!stop) CALLS[(intptr_t)call]();
    return 0;
}

/* The calls of all threads but those of the loader, which C does not allow in such a child. */
static void call_in_child(void) {
    for (int call = 0; call < CALLERS - 1; call++) CALLS[call]();
    free_bytes();
}

static int forks(void) {
    void *parameters;
    cusolverDnCreateParams(&parameters); /* A function that is counted, so there is something to write at the end. */
    malloc_or_die(MIB);
    pthread_t threads[CALLERS];
    for (intptr_t i = 0; i < CALLERS; i++) pthread_create(&threads[i], 0, keeps_calling, (void *)i);
    int hung = 0, status;
    for (int i = 0; i < 25; i++) {
        pid_t child = fork();
        if (child == 0) {
            call_in_child();
            exit(0);
        }
        int patience = 5000;
        while (waitpid(child, &status, WNOHANG) == 0 && --patience) usleep(1000);
        if (!patience) {
            hung++;
            kill(child, SIGKILL);
            waitpid(child, &status, 0);
        }
    }
    stop = 1;
    for (int i = 0; i < CALLERS; i++) pthread_join(threads[i], 0);
    printf("hung %d\n", hung);
    return 0;
}

/* Closes every descriptor it did not open, as daemons do, and opens a file of its own. */
static int closes_all(char **argv) {
    void *block = malloc_or_die(GIB);
    for (int descriptor = 3; descriptor < 1024; descriptor++) close(descriptor);
    int mine[300];
    for (int i = 0; i < 300; i++) {
        mine[i] = open(argv[2], O_RDWR | O_CREAT | O_APPEND, 0600);
        if (mine[i] < 0) return 1;
    }
    cudaFree(block);
    for (int i = 0; i < 100; i++) cudaFree(malloc_or_die(GIB));
    pid_t child = fork();
    if (child == 0) exit(0);
    waitpid(child, 0, 0);
    struct stat stat;
    for (int i = 0; i < 300; i++) {
        if (fstat(mine[i], &stat)) printf("a descriptor of the program was closed\n");
    }
    printf("bytes in the program's own file: %ld\n", (long)stat.st_size);
    return 0;
}

/* Three processes of 10 GiB, one after the other. */
static int in_turn(void) {
    for (int i = 0; i < 3; i++) {
        if (fork() == 0) {
            malloc_or_die(10 * GIB);
            printf("free %zu\n", free_bytes());
            exit(0);
        }
        wait(0);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc < 2) return 2;
    const char *word = argv[1];
#define PROGRAM(name, call) \
    if (strcmp(word, name) == 0) return call
    PROGRAM("rounding", rounding());
    PROGRAM("managed", managed());
    PROGRAM("both", both());
    PROGRAM("small", small());
    PROGRAM("zombie", zombie());
    PROGRAM("exec", becomes_another(argv));
    PROGRAM("orphan", orphan());
    PROGRAM("many", many());
    PROGRAM("many-at-once", many_at_once());
    PROGRAM("fills", fills(argv));
    PROGRAM("locked-out", locked_out());
    PROGRAM("forks", forks());
    PROGRAM("closes-all", closes_all(argv));
    PROGRAM("in-turn", in_turn());
    return 2;
}
