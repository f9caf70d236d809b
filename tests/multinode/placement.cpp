// A client inside a guest with several numa nodes. Asks the kernel where the pages of a pool really are; where they
// should be it works out by itself, from /sys.
//   placement pages POOL         every page of online frames and of metadata in use is on its numa node, and was there
//   before placement touch POOL CPU THREADS
//                                so many threads at once on that CPU use their parts of the metadata, and write to
//                                blocks of every numa node
//   placement nearest POOL CPU   fills a pool with nothing in it: the nearest numa node first, strict stays strict
//   placement choose POOL CPU FAR_CPU
//                                the thread's CPU, its mempolicy and the handle's policy decide, each from the next
//                                call on
//   placement confined POOL CPU NODES
//                                in a cpuset that has these of the kernel's numa nodes, such as 0-2,5: no others
//   placement hold POOL CPU      writes blocks everywhere, prints "ok", reads them all the time, until its input ends
// Prints a line that begins with "ok" or "FAIL" for each thing looked at. Exit status 1: something failed.
#include <linux/mempolicy.h>
#include <poll.h>
#include <sched.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "numacre/numacre.h"
#include "numacre/shm/layout.hpp"

namespace {

using numacre::engine::ProductionEnv;
using View = numacre::engine::NodeView<ProductionEnv>;

constexpr std::size_t kPage = 4096;
constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr unsigned long kRseqFeatureSize = 27;  // AT_RSEQ_FEATURE_SIZE, in newer headers

bool failed = false;

[[gnu::format(printf, 2, 3)]] void report(bool good, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    std::printf(good ? "ok " : "FAIL ");
    std::vprintf(format, arguments);
    std::printf("\n");
    std::fflush(stdout);
    va_end(arguments);
    if (!good) failed = true;
}

[[noreturn]] void give_up(const std::string &what, int error) {
    report(false, "%s: error %d, %s", what.c_str(), error, numacre_last_error());
    std::exit(1);
}

// --- the machine, as /sys has it -------------------------------------------------------------------------------------

std::string node_file(int os_node, const char *name) {
    return "/sys/devices/system/node/node" + std::to_string(os_node) + "/" + name;
}

// "0-2,5" in /sys.
std::vector<int> read_list(const std::string &path) {
    std::ifstream file(path);
    std::vector<int> numbers;
    std::string part;
    while (std::getline(file, part, ',')) {
        int first = 0;
        int last = 0;
        const int got = std::sscanf(part.c_str(), "%d-%d", &first, &last);
        for (int number = first; got > 0 && number <= (got == 2 ? last : first); ++number) numbers.push_back(number);
    }
    return numbers;
}

// The kernel's numbers of those nodes that a pool must have, in the order in which it must count them.
std::vector<int> nodes_with_memory() {
    return read_list("/sys/devices/system/node/has_memory");
}

int node_of_cpu(int cpu) {
    for (const int os_node : read_list("/sys/devices/system/node/online"))
        for (const int candidate : read_list(node_file(os_node, "cpulist")))
            if (candidate == cpu) return os_node;
    give_up("cpu " + std::to_string(cpu) + " is on no node", 0);
}

int distance(int from, int to) {
    std::ifstream file(node_file(from, "distance"));
    for (const int os_node : read_list("/sys/devices/system/node/online")) {
        int value = 0;
        file >> value;
        if (os_node == to) return value;
    }
    give_up("no distance to node " + std::to_string(to), 0);
}

void run_on(int cpu) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof set, &set) != 0) give_up("sched_setaffinity", errno);
}

// --- where pages are -------------------------------------------------------------------------------------------------

struct Mapping {
    std::byte *base = nullptr;
    std::size_t bytes = 0;
};

struct Tally {
    std::uint64_t pages = 0;
    std::uint64_t elsewhere = 0;
    std::uint64_t first_offset = 0;  // of those elsewhere
    int first_status = 0;            // the node where it is, or -errno
};

// Every page must be in memory already: it is read, to have it in our page table.
Tally where_pages_are(const std::byte *base, const std::vector<std::uint64_t> &offsets, int os_node) {
    Tally tally;
    constexpr std::size_t kAtOnce = 4096;
    for (std::size_t begin = 0; begin < offsets.size(); begin += kAtOnce) {
        const std::size_t count = std::min(kAtOnce, offsets.size() - begin);
        std::vector<const void *> addresses;
        for (std::size_t i = 0; i < count; ++i) {
            const auto *address = base + offsets[begin + i];
            (void)*reinterpret_cast<const volatile std::byte *>(address);
            addresses.push_back(address);
        }
        std::vector<int> status(count, -1);
        if (syscall(SYS_move_pages, 0, count, addresses.data(), nullptr, status.data(), 0) != 0)
            give_up("move_pages", errno);
        for (std::size_t i = 0; i < count; ++i) {
            ++tally.pages;
            if (status[i] == os_node) continue;
            if (tally.elsewhere++ == 0) {
                tally.first_offset = offsets[begin + i];
                tally.first_status = status[i];
            }
        }
    }
    return tally;
}

int node_of_page(void *address) {
    int os_node = -1;
    if (syscall(SYS_get_mempolicy, &os_node, nullptr, 0, address, MPOL_F_NODE | MPOL_F_ADDR) != 0)
        give_up("get_mempolicy", errno);
    return os_node;
}

// The pages of a mapped file that somebody has used; those that were only allocated do not show. hugetlb does not tell.
std::vector<bool> used_pages(const Mapping &mapping) {
    std::vector<unsigned char> in_memory(mapping.bytes / kPage);
    if (mincore(mapping.base, mapping.bytes, in_memory.data()) != 0) give_up("mincore", errno);
    std::vector<bool> used;
    for (const unsigned char each : in_memory) used.push_back((each & 1) != 0);
    return used;
}

// How much memory a mapped file has.
std::uint64_t allocated_bytes(const Mapping &mapping) {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/self/map_files/%lx-%lx", reinterpret_cast<unsigned long>(mapping.base),
                  reinterpret_cast<unsigned long>(mapping.base + mapping.bytes));
    struct stat status{};
    if (stat(path, &status) != 0) give_up(path, errno);
    return static_cast<std::uint64_t>(status.st_blocks) * 512;
}

// --- the pool --------------------------------------------------------------------------------------------------------

Mapping find_mapping(const std::string &memfd_name) {
    std::ifstream maps("/proc/self/maps");
    std::string line;
    while (std::getline(maps, line)) {
        if (line.find("/memfd:" + memfd_name + " ") == std::string::npos) continue;
        unsigned long begin = 0;
        unsigned long end = 0;
        std::sscanf(line.c_str(), "%lx-%lx", &begin, &end);
        return {reinterpret_cast<std::byte *>(begin), end - begin};
    }
    give_up(memfd_name + " is not mapped", 0);
}

class Client {
public:
    explicit Client(std::string name) : name_(std::move(name)), os_nodes_(nodes_with_memory()) {
        if (const int error = numacre_attach(nullptr, name_.c_str(), &pool_)) give_up("attach " + name_, error);
        numacre_pool_info info{};
        info.struct_size = sizeof info;
        numacre_get_info(pool_, &info);
        if (info.numa_nodes != os_nodes_.size())
            give_up("pool " + name_ + " has " + std::to_string(info.numa_nodes) + " numa nodes, the machine " +
                        std::to_string(os_nodes_.size()) + " with memory",
                    0);
    }
    Client(const Client &) = delete;
    Client &operator=(const Client &) = delete;
    ~Client() { numacre_detach(pool_); }

    numacre_pool *pool() const { return pool_; }
    const std::vector<int> &os_nodes() const { return os_nodes_; }

    void check_pages() const {
        for (std::size_t node = 0; node < os_nodes_.size(); ++node) {
            const Mapping frames = find_mapping(memfd_name(node, "frames"));
            const Mapping metadata = find_mapping(memfd_name(node, "metadata"));
            const auto &header = *reinterpret_cast<const numacre::engine::NodeHeader<ProductionEnv> *>(metadata.base);
            const View view = View::at(metadata.base, header.geometry,
                                       numacre::engine::NumaNode{static_cast<std::uint8_t>(node)}, header.thread_slots);
            std::vector<bool> online_pages(frames.bytes / kPage, false);
            std::vector<bool> metadata_pages = used_pages(metadata);
            for (std::uint64_t chunk = 0; chunk < header.geometry.chunk_count(); ++chunk) {
                if (is_offline(view, chunk)) continue;
                mark(online_pages, chunk * header.geometry.chunk_bytes(), header.geometry.chunk_bytes());
                mark_metadata_of(view, header.thread_slots, chunk, metadata_pages);
            }
            check(node, "frames", frames, online_pages);
            check(node, "metadata", metadata, metadata_pages);
        }
    }

    // nullptr: there is no room.
    void *allocate(int node, std::size_t bytes, unsigned flags) const {
        void *block = nullptr;
        const int error = numacre_alloc_on(pool_, node, bytes, flags | NUMACRE_UNCACHED, &block);
        if (error != 0 && error != -ENOMEM) give_up("allocate from " + name_, error);
        return block;
    }
    void free(void *block) const {
        if (const int error = numacre_free_uncached(pool_, block)) give_up("free in " + name_, error);
    }

private:
    std::string memfd_name(std::size_t node, const char *part) const {
        return "numacre:" + name_ + ":" + std::to_string(node) + ":" + part;
    }

    static bool is_offline(const View &view, std::uint64_t chunk) {
        const numacre::engine::Block block{numacre::engine::FrameIndex{chunk << view.geometry.largest_order},
                                           view.geometry.largest()};
        const numacre::engine::IndexEntry entry{view.index_entry(block).load(std::memory_order_acquire)};
        return entry.is_owned() && entry.owner() == numacre::engine::kOfflineOwner;
    }

    static void mark(std::vector<bool> &pages, std::uint64_t offset, std::uint64_t bytes) {
        for (std::uint64_t page = offset / kPage; page <= (offset + bytes - 1) / kPage; ++page) pages[page] = true;
    }

    // What an allocation in the chunk may use.
    static void mark_metadata_of(const View &view, std::uint32_t thread_slots, std::uint64_t chunk,
                                 std::vector<bool> &pages) {
        const auto layout = numacre::engine::NodeLayout<ProductionEnv>::of(view.geometry, thread_slots);
        const std::uint64_t first = chunk << view.geometry.largest_order;
        const std::uint64_t last = first + view.geometry.chunk_frames() - 1;
        const auto words = [&](std::uint64_t part, unsigned shift) {
            mark(pages, part + (first >> shift) * sizeof(View::Word),
                 ((last >> shift) - (first >> shift) + 1) * sizeof(View::Word));
        };
        words(layout.leaf, numacre::engine::word_order(0));
        for (unsigned layer = 1; layer <= view.top_layer; ++layer)
            words(layout.upper[layer], numacre::engine::word_order(layer));
        for (unsigned level = 2; level <= view.hint_levels; ++level)
            words(layout.hint[level], numacre::engine::word_order(level));
        for (unsigned layer = 0; layer <= view.top_layer; ++layer)
            words(layout.index[layer], view.geometry.index_granule(layer));
    }

    void check(std::size_t node, const char *part, const Mapping &mapping, const std::vector<bool> &pages) const {
        std::vector<std::uint64_t> offsets;
        for (std::size_t page = 0; page < pages.size(); ++page)
            if (pages[page]) offsets.push_back(page * kPage);
        if (offsets.empty()) return;  // nothing is online: whoever expects something misses our line
        const std::uint64_t before = allocated_bytes(mapping);
        const Tally tally = where_pages_are(mapping.base, offsets, os_nodes_[node]);
        const std::uint64_t after = allocated_bytes(mapping);
        const std::string what = name_ + " " + std::to_string(node) + " " + part;
        if (after != before)
            report(false, "%s: %lld bytes had no memory until now", what.c_str(),
                   static_cast<long long>(after - before));
        if (tally.elsewhere == 0)
            report(tally.pages != 0, "%s: %llu pages on numa node %d", what.c_str(),
                   static_cast<unsigned long long>(tally.pages), os_nodes_[node]);
        else
            report(false, "%s: %llu of %llu pages are not on numa node %d, the first at offset %#llx: %d", what.c_str(),
                   static_cast<unsigned long long>(tally.elsewhere), static_cast<unsigned long long>(tally.pages),
                   os_nodes_[node], static_cast<unsigned long long>(tally.first_offset), tally.first_status);
    }

    std::string name_;
    std::vector<int> os_nodes_;
    numacre_pool *pool_ = nullptr;
};

// --- what is asked for -----------------------------------------------------------------------------------------------

void touch(const Client &client, int cpu, int thread_count) {
    constexpr std::size_t kBytes = 4 * kPage;
    std::atomic<std::uint64_t> wrong{0};
    std::barrier all_have_a_slot(thread_count);
    std::vector<std::thread> threads;
    for (int i = 0; i < thread_count; ++i)
        threads.emplace_back([&] {
            run_on(cpu);
            for (std::size_t node = 0; node < client.os_nodes().size(); ++node) {
                void *const block = client.allocate(static_cast<int>(node), kBytes, NUMACRE_STRICT);
                if (block == nullptr) give_up("no room", ENOMEM);
                std::memset(block, 0x5a, kBytes);
                for (std::size_t at = 0; at < kBytes; at += kPage)
                    if (node_of_page(static_cast<std::byte *>(block) + at) != client.os_nodes()[node]) ++wrong;
                client.free(block);
            }
            all_have_a_slot.arrive_and_wait();
        });
    for (std::thread &thread : threads) thread.join();
    report(wrong == 0, "%d threads on cpu %d wrote blocks: %llu pages elsewhere", thread_count, cpu,
           static_cast<unsigned long long>(wrong));
}

void nearest(const Client &client, int cpu) {
    run_on(cpu);
    const int here = node_of_cpu(cpu);
    std::vector<std::pair<int, void *>> blocks;  // the kernel's node, block
    while (void *const block = client.allocate(-1, kMiB, 0)) {
        blocks.emplace_back(node_of_page(block), block);
    }
    if (blocks.empty()) give_up("the pool is full before it is used", 0);
    std::string order;
    std::uint64_t misses = 0;
    std::uint64_t others = 0;  // what is not on the thread's own: if that has no memory, the nearest counts as its own
    bool sorted = true;
    for (std::size_t i = 0; i < blocks.size(); ++i) {
        misses += blocks[i].first != blocks[0].first;
        if (i > 0 && blocks[i].first == blocks[i - 1].first) continue;
        order += " " + std::to_string(blocks[i].first) + "(" + std::to_string(distance(here, blocks[i].first)) + ")";
        if (i > 0 && distance(here, blocks[i].first) < distance(here, blocks[i - 1].first)) sorted = false;
    }
    const auto closest = std::min_element(client.os_nodes().begin(), client.os_nodes().end(),
                                          [&](int a, int b) { return distance(here, a) < distance(here, b); });
    report(sorted && distance(here, blocks[0].first) == distance(here, *closest),
           "nearest first from cpu %d on numa node %d:%s", cpu, here, order.c_str());

    bool strict = true;
    for (std::size_t node = 0; node < client.os_nodes().size(); ++node)
        strict = strict && client.allocate(static_cast<int>(node), kMiB, NUMACRE_STRICT) == nullptr;
    const int own = blocks[0].first;
    others = misses;
    // One block is free again, far away.
    const int far_away = blocks.back().first;
    client.free(blocks.back().second);
    blocks.pop_back();
    for (std::size_t node = 0; node < client.os_nodes().size(); ++node) {
        if (client.os_nodes()[node] == far_away) continue;
        strict = strict && client.allocate(static_cast<int>(node), kMiB, NUMACRE_STRICT) == nullptr;
        void *const other = client.allocate(static_cast<int>(node), kMiB, 0);
        if (other == nullptr) give_up("the free block is not found", ENOMEM);
        strict = strict && node_of_page(other) == far_away;
        ++misses;
        others += far_away != own;
        client.free(other);
    }
    report(strict, "strict from cpu %d: nothing from elsewhere", cpu);
    for (const auto &[os_node, block] : blocks) client.free(block);
    std::printf("misses %llu\nothers %llu\n", static_cast<unsigned long long>(misses),
                static_cast<unsigned long long>(others));
}

// The kernel's numa nodes of so many small blocks, by the way that most take: through the cache.
std::vector<int> nodes_of_blocks(const Client &client, std::size_t count) {
    std::vector<int> os_nodes;
    std::vector<void *> blocks;
    for (std::size_t i = 0; i < count; ++i) {
        void *block = nullptr;
        if (const int error = numacre_alloc(client.pool(), kPage, &block)) give_up("numacre_alloc", error);
        std::memset(block, 0x5a, kPage);
        os_nodes.push_back(node_of_page(block));
        blocks.push_back(block);
    }
    for (void *const block : blocks) numacre_free(client.pool(), block);
    return os_nodes;
}

bool all_on(const std::vector<int> &os_nodes, int os_node) {
    return std::all_of(os_nodes.begin(), os_nodes.end(), [&](int each) { return each == os_node; });
}

int nearest_to(const Client &client, int os_node) {
    return *std::min_element(client.os_nodes().begin(), client.os_nodes().end(),
                             [&](int a, int b) { return distance(os_node, a) < distance(os_node, b); });
}

void set_mempolicy(int mode, const std::vector<int> &os_nodes) {
    unsigned long mask[16] = {};
    for (const int os_node : os_nodes) mask[os_node / 64] |= 1UL << (os_node % 64);
    if (syscall(SYS_set_mempolicy, mode, os_nodes.empty() ? nullptr : mask, 1024) != 0) give_up("set_mempolicy", errno);
}

// As many on each.
bool in_turn(const Client &client, const std::vector<int> &os_nodes) {
    for (const int os_node : client.os_nodes())
        if (static_cast<std::size_t>(std::count(os_nodes.begin(), os_nodes.end(), os_node)) !=
            os_nodes.size() / client.os_nodes().size())
            return false;
    return true;
}

void choose(const Client &client, int cpu, int far_cpu) {
    numacre_pool *const pool = client.pool();
    std::printf("rseq-bytes %lu\n", getauxval(kRseqFeatureSize));
    const std::size_t nodes = client.os_nodes().size();
    for (const int each : {cpu, far_cpu, cpu}) {
        run_on(each);
        const int wanted = nearest_to(client, node_of_cpu(each));
        report(all_on(nodes_of_blocks(client, 8), wanted), "moved to cpu %d: blocks on numa node %d", each, wanted);
    }
    // Moved by somebody else, in the midst of it.
    std::atomic<int> thread_id{0};
    std::atomic<int> last_node{-1};
    std::atomic<bool> enough{false};
    std::thread busy([&] {
        thread_id = static_cast<int>(gettid());
        while (!enough) last_node = nodes_of_blocks(client, 1)[0];
    });
    bool followed = true;
    for (const int each : {far_cpu, cpu, far_cpu}) {
        while (thread_id == 0) usleep(1000);
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(each, &set);
        if (sched_setaffinity(thread_id, sizeof set, &set) != 0) give_up("sched_setaffinity", errno);
        const int wanted = nearest_to(client, node_of_cpu(each));
        for (int patience = 2000; last_node != wanted && patience > 0; --patience) usleep(10'000);
        followed = followed && last_node == wanted;
    }
    enough = true;
    busy.join();
    report(followed, "a busy thread's blocks follow it from cpu to cpu");

    const int far_away = client.os_nodes().back();
    const auto far_bit = std::uint64_t{1} << (nodes - 1);
    // Asked at once, for the test's sake: else within a second.
    const auto look = [&] {
        int mode = 0;
        std::uint64_t named = 0;
        std::uint64_t allowed = 0;
        if (const int error = numacre_get_policy(pool, &mode, &named, &allowed)) give_up("numacre_get_policy", error);
        return std::pair(mode, named);
    };
    set_mempolicy(MPOL_BIND, {far_away});
    report(look() == std::pair(NUMACRE_POLICY_STRICT, far_bit) && all_on(nodes_of_blocks(client, 8), far_away),
           "bound by its mempolicy to numa node %d", far_away);
    set_mempolicy(MPOL_PREFERRED, {far_away});
    report(look() == std::pair(NUMACRE_POLICY_PREFERRED, far_bit) && all_on(nodes_of_blocks(client, 8), far_away),
           "preferring numa node %d by its mempolicy", far_away);
    set_mempolicy(MPOL_INTERLEAVE, client.os_nodes());
    report(look().first == NUMACRE_POLICY_INTERLEAVE && in_turn(client, nodes_of_blocks(client, 4 * nodes)),
           "interleaving by its mempolicy");
    set_mempolicy(MPOL_DEFAULT, {});
    // Without being asked: a second has gone by, a thread of its own has the cache empty.
    const int own = nearest_to(client, node_of_cpu(cpu));
    for (int patience = 200; !all_on(nodes_of_blocks(client, 4), own) && patience > 0; --patience) usleep(100'000);
    report(all_on(nodes_of_blocks(client, 4), own), "without a mempolicy again: on numa node %d", own);
    numacre_set_policy(pool, NUMACRE_POLICY_PREFERRED, far_bit);
    report(all_on(nodes_of_blocks(client, 8), far_away), "preferring numa node %d by the handle's policy", far_away);
    numacre_set_policy(pool, NUMACRE_POLICY_INTERLEAVE, 0);
    report(in_turn(client, nodes_of_blocks(client, 4 * nodes)), "interleaving by the handle's policy");
    numacre_set_policy(pool, NUMACRE_POLICY_DEFAULT, 0);
    report(all_on(nodes_of_blocks(client, 8), own), "by no policy again: on numa node %d", own);
}

void confined(const Client &client, int cpu, const char *list) {
    run_on(cpu);
    const std::string path = "/tmp/confined-" + std::to_string(getpid());
    std::ofstream(path) << list << '\n';
    const std::vector<int> allowed = read_list(path);
    const auto is_allowed = [&](int os_node) {
        return std::find(allowed.begin(), allowed.end(), os_node) != allowed.end();
    };
    std::vector<void *> blocks;
    bool inside = true;
    while (void *const block = client.allocate(-1, kMiB, 0)) {
        blocks.push_back(block);
        inside = inside && is_allowed(node_of_page(block));
    }
    report(inside && !blocks.empty(), "%zu blocks, until it was full, on the numa nodes %s alone", blocks.size(), list);
    for (void *const block : blocks) client.free(block);
    bool refused = true;
    for (std::size_t node = 0; node < client.os_nodes().size(); ++node) {
        void *block = nullptr;
        const int error = numacre_alloc_on(client.pool(), static_cast<int>(node), kPage, 0, &block);
        refused = refused && (error == 0) == is_allowed(client.os_nodes()[node]) && (error == 0 || error == -EINVAL);
        if (error == 0) numacre_free(client.pool(), block);
    }
    report(refused, "numa nodes other than %s are refused: %s", list, numacre_last_error());
}

void hold(const Client &client, int cpu) {
    run_on(cpu);
    std::vector<std::uint64_t *> blocks;
    constexpr std::size_t kWords = kMiB / sizeof(std::uint64_t);
    for (std::size_t node = 0; node < client.os_nodes().size(); ++node)
        for (unsigned i = 0; i < 3; ++i) {
            void *const block = client.allocate(static_cast<int>(node), kMiB, NUMACRE_STRICT);
            if (block == nullptr) give_up("no room", ENOMEM);
            blocks.push_back(static_cast<std::uint64_t *>(block));
            for (std::size_t word = 0; word < kWords; ++word) blocks.back()[word] = blocks.size() * kWords + word;
        }
    report(true, "holding %zu blocks from cpu %d", blocks.size(), cpu);
    std::uint64_t wrong = 0;
    // Read over and over from one CPU: automatic balancing would have these pages move there.
    for (pollfd input{STDIN_FILENO, POLLIN, 0}; poll(&input, 1, 20) == 0;)
        for (std::size_t i = 0; i < blocks.size(); ++i)
            for (std::size_t word = 0; word < kWords; word += 512) wrong += blocks[i][word] != (i + 1) * kWords + word;
    for (std::size_t i = 0; i < blocks.size(); ++i)
        for (std::size_t word = 0; word < kWords; word += 512)
            wrong += node_of_page(&blocks[i][word]) != client.os_nodes()[i / 3];
    for (std::uint64_t *const block : blocks) client.free(block);
    report(wrong == 0, "held blocks: %llu words or pages are wrong", static_cast<unsigned long long>(wrong));
}

}  // namespace

int main(int argc, char **argv) {
    const std::string verb = argc > 2 ? argv[1] : "";
    const int words = verb == "pages"                                             ? 3
                      : verb == "nearest" || verb == "hold"                       ? 4
                      : verb == "touch" || verb == "choose" || verb == "confined" ? 5
                                                                                  : 0;
    if (argc != words) {
        std::fprintf(stderr,
                     "usage: placement pages POOL | touch POOL CPU THREADS | nearest POOL CPU | hold POOL CPU |\n"
                     "       choose POOL CPU FAR_CPU | confined POOL CPU NODES\n");
        return 2;
    }
    const Client client(argv[2]);
    const int cpu = argc > 3 ? std::atoi(argv[3]) : 0;
    if (verb == "pages") client.check_pages();
    if (verb == "touch") touch(client, cpu, std::atoi(argv[4]));
    if (verb == "nearest") nearest(client, cpu);
    if (verb == "choose") choose(client, cpu, std::atoi(argv[4]));
    if (verb == "confined") confined(client, cpu, argv[4]);
    if (verb == "hold") hold(client, cpu);
    return failed ? 1 : 0;
}
