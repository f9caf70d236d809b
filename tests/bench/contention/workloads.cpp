#include "workloads.hpp"

#include <algorithm>
#include <bit>
#include <deque>
#include <stdexcept>
#include <utility>

namespace numacre::contention {
namespace {

// One block, again and again.
class CacheTest final : public Workload {
public:
    CacheTest(const Task &task, Allocator &allocator) : Workload(task, allocator) {}
    void run(unsigned core) override {
        for (;;) free(core, allocate(core, task_.order), task_.order);
    }
    std::uint64_t operations_per_round() const override { return 500; }
};

// A burst of allocations, then all their frees.
class BurstTest final : public Workload {
public:
    BurstTest(const Task &task, Allocator &allocator, std::uint64_t blocks)
        : Workload(task, allocator), blocks_(task.cores, std::vector<std::uint64_t>(burst(blocks))) {}
    void run(unsigned core) override {
        for (;;) {
            for (std::uint64_t &frame : blocks_[core]) frame = allocate(core, task_.order);
            for (const std::uint64_t frame : blocks_[core]) free(core, frame, task_.order);
        }
    }
    std::uint64_t operations_per_round() const override {
        return std::max<std::uint64_t>(2 * blocks_.front().size(), 500);
    }

private:
    std::vector<std::vector<std::uint64_t>> blocks_;
};

// Each core replaces random blocks of an array, then passes the array on: most frees are of another core's blocks.
class LarsonTest final : public Workload {
public:
    LarsonTest(const Task &task, Allocator &allocator)
        : Workload(task, allocator),
          length_(std::max<std::uint64_t>(1, burst(kArrays * kLength) / kArrays)),
          boxes_(task.cores) {
        for (unsigned core = 0; core < task.cores; ++core) random_.emplace_back(task.seed * kCoresMax + core);
    }
    void prepare() override {
        for (std::uint64_t array = 0; array < kArrays; ++array)
            for (unsigned core = 0; core < task_.cores; ++core) {
                boxes_[core].emplace_back(length_);
                for (std::uint64_t &frame : boxes_[core].back()) frame = allocate(core, task_.order);
            }
    }
    void run(unsigned core) override {
        for (;;) {
            // How arrays get from core to core is not the allocator's doing, and costs nothing here.
            while (boxes_[core].empty()) ContentionEnv::pause();
            std::vector<std::uint64_t> &blocks = at_work_[core];
            blocks.swap(boxes_[core].front());
            boxes_[core].pop_front();
            for (unsigned i = 0; i < kReplacements; ++i) {
                std::uint64_t &frame = blocks[random_[core].below(static_cast<std::uint32_t>(blocks.size()))];
                free(core, frame, task_.order);
                frame = allocate(core, task_.order);
            }
            std::deque<std::vector<std::uint64_t>> &next = boxes_[(core + 1) % task_.cores];
            next.emplace_back();
            next.back().swap(blocks);
        }
    }
    std::uint64_t operations_per_round() const override { return std::uint64_t{2} * kReplacements * kArrays; }

private:
    static constexpr std::uint64_t kArrays = 4;
    static constexpr std::uint64_t kLength = 100;
    static constexpr unsigned kReplacements = 100;

    std::uint64_t length_;
    std::vector<std::deque<std::vector<std::uint64_t>>> boxes_;
    std::array<std::vector<std::uint64_t>, kCoresMax> at_work_;
    std::vector<Random> random_;
};

// A part of the pool is always taken: a random block is freed and one of the same size allocated. Sizes are the base
// size times 1, 2, 4, 8, twice as many of each as of the next.
class OccupancyTest final : public Workload {
public:
    OccupancyTest(const Task &task, Allocator &allocator, double occupancy)
        : Workload(task, allocator),
          share_(static_cast<std::uint64_t>(static_cast<double>(task.frame_count) * occupancy / task.cores)),
          sizes_(std::min(4U, kLargestSimulatedOrder - task.order + 1)),
          held_(task.cores) {
        for (unsigned core = 0; core < task.cores; ++core) random_.emplace_back(task.seed * kCoresMax + core);
    }
    void prepare() override {
        std::vector<std::uint64_t> taken(task_.cores);
        // In turns, as cores that run side by side would.
        for (bool more = true; more;) {
            more = false;
            for (unsigned core = 0; core < task_.cores; ++core) {
                // Of 2^n - 1 tickets the base size has 2^(n-1), the next half of that.
                const std::uint32_t ticket = random_[core].below((1U << sizes_) - 1) + 1;
                unsigned order = task_.order + sizes_ - static_cast<unsigned>(std::bit_width(ticket));
                if (taken[core] + (std::uint64_t{1} << order) > share_) order = task_.order;
                if (taken[core] + (std::uint64_t{1} << order) > share_) continue;
                taken[core] += std::uint64_t{1} << order;
                const std::uint64_t frame = allocate(core, order);
                if (frame != kNoFrame) held_[core].push_back({frame, order});
                more = true;
            }
        }
    }
    void run(unsigned core) override {
        while (!held_[core].empty()) {
            Held &held = held_[core][random_[core].below(static_cast<std::uint32_t>(held_[core].size()))];
            free(core, held.frame, held.order);
            held.frame = allocate(core, held.order);
        }
    }
    std::uint64_t operations_per_round() const override { return 1000; }

private:
    struct Held {
        std::uint64_t frame;
        unsigned order;
    };
    std::uint64_t share_;
    unsigned sizes_;
    std::vector<std::vector<Held>> held_;
    std::vector<Random> random_;
};

}  // namespace

std::uint64_t Workload::allocate(unsigned core, unsigned order) {
    const auto frame = allocator_.allocate(core, order);
    if (frame)
        owners_.take(*frame, order);
    else
        ++refused_;
    Simulator::end_operation();
    return frame ? *frame : kNoFrame;
}

void Workload::free(unsigned core, std::uint64_t frame, unsigned order) {
    if (frame == kNoFrame) return;
    owners_.release(frame, order);
    allocator_.free(core, frame, order);
    Simulator::end_operation();
}

std::uint64_t Workload::burst(std::uint64_t wanted) const {
    const std::uint64_t blocks = task_.frame_count >> task_.order;
    return std::max<std::uint64_t>(1, std::min(wanted, blocks / 2 / task_.cores));
}

std::unique_ptr<Workload> Workload::make(const Task &task, Allocator &allocator) {
    if (task.workload == "cache") return std::make_unique<CacheTest>(task, allocator);
    if (task.workload == "linux") return std::make_unique<BurstTest>(task, allocator, 1000);
    if (task.workload == "thread")
        return std::make_unique<BurstTest>(task, allocator, std::max<std::uint64_t>(1, 10000 / task.cores));
    if (task.workload == "larson") return std::make_unique<LarsonTest>(task, allocator);
    if (task.workload == "co50") return std::make_unique<OccupancyTest>(task, allocator, 0.5);
    if (task.workload == "co90") return std::make_unique<OccupancyTest>(task, allocator, 0.9);
    throw std::invalid_argument("no such workload: " + task.workload);
}

}  // namespace numacre::contention
