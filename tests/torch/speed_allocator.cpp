// SPDX-License-Identifier: MIT OR Apache-2.0
// The loop of the example `torch_speed`, around the real allocator of torch, or around the functions of the library that
// the variable PLUGIN names: `speed_allocator ROUNDS TRACE…`.
//
// A trace is a text of lines `a NAME BYTES STREAM` and `f NAME`. It is run over and over on one allocator, what is left
// alive freed in between; a round is at least 200 000 events. Prints nanoseconds of the
// processor for one event, best round and median, and the number of calls. The history is off, as it is in a program that does not ask for it.

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>
#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <map>
#include <vector>

// torch tells its profiler about every block, and the stand-in listens there to record. A definition in the program
// itself goes before the stand-in's, so that recording is not part of what is measured; torch's own is called as ever.
namespace c10 {
void reportMemoryUsageToProfiler(void* block, int64_t size, size_t allocated, size_t reserved, Device device) {
    using Report = void (*)(void*, int64_t, size_t, size_t, Device);
    static const auto real = reinterpret_cast<Report>(dlsym(
        dlopen("libc10.so", RTLD_LAZY | RTLD_NOLOAD), "_ZN3c1027reportMemoryUsageToProfilerEPvlmmNS_6DeviceE"));
    real(block, size, allocated, reserved, device);
}
}  // namespace c10

struct Call {
    bool is_request;
    size_t slot;
    size_t bytes;
    cudaStream_t stream;
};

static std::vector<Call> read(const char* path) {
    std::map<long, cudaStream_t> streams{{0, nullptr}};
    std::vector<Call> calls;
    std::ifstream file(path);
    char kind;
    while (file >> kind) {
        Call call{kind == 'a', 0, 0, nullptr};
        long stream = 0;
        file >> call.slot;
        if (call.is_request) {
            file >> call.bytes >> stream;
            if (!streams.count(stream)) streams[stream] = c10::cuda::getStreamFromPool(false, 0).stream();
            call.stream = streams[stream];
        }
        calls.push_back(call);
    }
    return calls;
}

// Nanoseconds this thread has run: other work on the machine counts for little.
static double processor_time() {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) * 1e9 + static_cast<double>(time.tv_nsec);
}

// torch's own allocator.
struct Native {
    c10::cuda::CUDACachingAllocator::CUDAAllocator* torch = c10::cuda::CUDACachingAllocator::get();
    void* request(size_t bytes, cudaStream_t stream) { return torch->raw_alloc_with_stream(bytes, stream); }
    void free(void* block) { torch->raw_delete(block); }
    void empty() { torch->emptyCache(); }
};

// The functions that `CUDAPluggableAllocator` calls in tonnage's library. Its own lock and table are not part of it.
struct Plugin {
    void* library;
    void* (*malloc)(ssize_t, int, cudaStream_t);
    void (*release)(void*, size_t, int, cudaStream_t);
    void (*empty_cache)();

    explicit Plugin(const char* path) : library(dlopen(path, RTLD_NOW)) {
        if (library == nullptr) {
            std::fprintf(stderr, "%s\n", dlerror());
            std::exit(1);
        }
        malloc = reinterpret_cast<decltype(malloc)>(dlsym(library, "tonnage_malloc"));
        release = reinterpret_cast<decltype(release)>(dlsym(library, "tonnage_free"));
        empty_cache = reinterpret_cast<decltype(empty_cache)>(dlsym(library, "tonnage_empty_cache"));
        reinterpret_cast<void (*)()>(dlsym(library, "tonnage_complete"))();
    }
    void* request(size_t bytes, cudaStream_t stream) { return malloc(static_cast<ssize_t>(bytes), 0, stream); }
    void free(void* block) { release(block, 0, 0, nullptr); }
    void empty() { empty_cache(); }
};

template <typename Allocator>
static void measure(Allocator& allocator, const char* path, int rounds) {
    const auto calls = read(path);
    size_t slots = 0;
    for (const auto& call : calls) slots = std::max(slots, call.slot + 1);
    std::vector<void*> live(slots, nullptr);
    const size_t repeats = std::max<size_t>(1, 200000 / std::max<size_t>(1, calls.size()));
    std::vector<double> times;
    size_t events = 0;
    for (int round = 0; round < rounds; round++) {
        events = 0;
        const double start = processor_time();
        for (size_t repeat = 0; repeat < repeats; repeat++) {
            for (const auto& call : calls) {
                if (call.is_request) {
                    live[call.slot] = allocator.request(call.bytes, call.stream);
                } else if (live[call.slot] != nullptr) {
                    allocator.free(live[call.slot]);
                    live[call.slot] = nullptr;
                }
            }
            events += calls.size();
            for (auto& block : live) {
                if (block != nullptr) {
                    allocator.free(block);
                    block = nullptr;
                    events++;
                }
            }
        }
        times.push_back((processor_time() - start) / static_cast<double>(events));
    }
    std::sort(times.begin(), times.end());
    std::printf("torch %.1f %.1f %zu\n", times.front(), times[times.size() / 2], calls.size());
    std::fflush(stdout);
    allocator.empty();
}

int main(int count, char** arguments) {
    if (count < 3) return 2;
    c10::cuda::CUDACachingAllocator::init(c10::cuda::device_count());
    c10::cuda::set_device(0);
    const int rounds = std::atoi(arguments[1]);
    if (const char* library = std::getenv("PLUGIN")) {
        Plugin plugin(library);
        for (int index = 2; index < count; index++) measure(plugin, arguments[index], rounds);
    } else {
        Native native;
        for (int index = 2; index < count; index++) measure(native, arguments[index], rounds);
    }
}
