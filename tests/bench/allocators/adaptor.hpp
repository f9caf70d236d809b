// What the benchmark wants of an allocator, and the list of those that this executable has.
//
// An adaptor is a class of this shape; everything is inlined into the workloads, so that it costs what the allocator
// costs:
//
//     class Adaptor {
//     public:
//         static constexpr Traits kTraits{...};
//         explicit Adaptor(const Run &run);       // throws Unavailable
//         class Thread {                          // one a worker, made and ended on it
//         public:
//             Thread(Adaptor &adaptor, std::uint64_t number);  // of the worker
//             void *allocate(std::size_t bytes);  // nullptr: out of memory
//             void free(void *block);             // any worker may
//             // Only where a block has another address in another process: what stands for it on the way there.
//             void *pass_on(void *block);
//             void *take_over(void *passed);
//         };
//     };
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace numacre::bench {

// One measurement: one allocator, one workload, in a process of its own.
struct Run {
    std::string allocator;
    std::string workload = "cache";
    std::uint64_t size_bytes = 4096;
    std::uint64_t pool_bytes = std::uint64_t{1} << 30;
    std::uint64_t threads = 1;
    std::uint64_t processes = 0;  // 0: threads of one process; else as many processes of one thread
    std::string attach;           // runtime directory of a daemon; empty: a pool inside the process
    std::uint64_t milliseconds = 200;
    std::uint64_t seed = 1;
    bool check = false;

    std::uint64_t workers() const { return processes == 0 ? threads : processes; }
};

inline constexpr std::uint64_t kFrameBytes = 4096;
inline constexpr std::uint64_t kLargestBytes = std::uint64_t{4} << 20;
inline constexpr std::uint64_t kWorkersMax = 64;

// What the processes of one measurement share.
enum class Sharing {
    nothing,      // each has an allocator to itself
    by_fork,      // the adaptor is made before them, in memory that all have at the same address
    by_attaching  // each makes an adaptor, which finds what they share; or there is nothing to be shared
};

struct Traits {
    bool has_blocks = true;   // false: only the harness is measured
    bool fixed_size = false;  // every request counts as one block of the base size
    Sharing sharing = Sharing::nothing;
    bool writes_into_blocks = false;  // a pool must fit the machine's memory
};

// Of an adaptor's Thread: see above.
template <class Thread>
concept Passes = requires(Thread &thread, void *block) {
    thread.pass_on(block);
    thread.take_over(block);
};

// Not an error: this allocator cannot be measured here, or not like this. Says why.
struct Unavailable : std::runtime_error {
    using std::runtime_error::runtime_error;
};

struct Outcome {
    std::uint64_t pairs = 0;
    double wall_ns = 0;  // from the first worker's first pair to the last worker's last
    double cpu_ns = 0;   // of all workers
    std::uint64_t failed = 0;
    double filled = 1;  // what the workload's fill reached of what it wanted
    std::uint64_t overlaps = 0;
    std::uint64_t checked_pairs = 0;
    bool alone = false;  // each process had an allocator to itself
};

struct Entry {
    std::string_view name;
    Outcome (*measure)(const Run &run);
};

inline std::vector<Entry> &entries() {
    static std::vector<Entry> list;
    return list;
}

// An adaptor's file adds what it has; which files are compiled is CMake's choice.
struct Registered {
    Registered(std::string_view name, Outcome (*measure)(const Run &run)) { entries().push_back({name, measure}); }
};

}  // namespace numacre::bench
