#include "replay.hpp"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <ostream>
#include <queue>
#include <stdexcept>

#include "bytes.hpp"
#include "numacre/numacre.h"
#include "serial_buddy.hpp"
#include "table.hpp"

namespace numacre::cli {
namespace {

template <Choice kChoice>
class SerialPool : public ReplayPool {
public:
    SerialPool(PoolShape shape, std::uint64_t chunks) : buddy_(chunks, shape.largest_order()) {}
    bool allocate(unsigned order, std::uint64_t &where) override {
        const auto base = buddy_.allocate(order);
        where = base.value_or(0);
        return base.has_value();
    }
    void release(std::uint64_t where, unsigned order) override { buddy_.release(where, order); }

private:
    SerialBuddy<kChoice> buddy_;
};

// Our engine, called as applications call it.
template <unsigned kFlags>
class OurPool : public ReplayPool {
public:
    OurPool(PoolShape shape, std::uint64_t chunks) : frame_bytes_(shape.frame_bytes) {
        numacre_private_options options{};
        options.struct_size = sizeof options;
        options.flags = kFlags;
        options.frame_bytes = shape.frame_bytes;
        options.largest_block_bytes = shape.largest_block_bytes;
        options.capacity_bytes = chunks * shape.largest_block_bytes;
        const int error = numacre_open_private(&options, &pool_);
        if (error == -EINVAL) throw ArgumentError(numacre_last_error());
        if (error != 0) throw std::runtime_error(std::string("no private pool: ") + numacre_last_error());
    }
    ~OurPool() override { numacre_detach(pool_); }
    bool allocate(unsigned order, std::uint64_t &where) override {
        void *block = nullptr;
        const int error = numacre_alloc_on(pool_, -1, frame_bytes_ << order, NUMACRE_UNCACHED, &block);
        if (error != 0 && error != -ENOMEM) throw std::runtime_error(numacre_last_error());
        where = reinterpret_cast<std::uintptr_t>(block);
        return error == 0;
    }
    void release(std::uint64_t where, unsigned /*order*/) override {
        if (numacre_free_uncached(pool_, reinterpret_cast<void *>(where)) != 0)
            throw std::runtime_error(numacre_last_error());
    }

private:
    std::uint64_t frame_bytes_;
    numacre_pool *pool_ = nullptr;
};

template <class Pool>
Engine engine(const char *name) {
    return {name, [](PoolShape shape, std::uint64_t chunks) { return std::make_unique<Pool>(shape, chunks); }};
}

unsigned order_of(std::uint64_t size_bytes, PoolShape shape) {
    return static_cast<unsigned>(std::bit_width((size_bytes - 1) / shape.frame_bytes));
}

void check(PoolShape shape) {
    if (!std::has_single_bit(shape.frame_bytes) || !std::has_single_bit(shape.largest_block_bytes) ||
        shape.largest_block_bytes < shape.frame_bytes) {
        throw ArgumentError("--frame " + format_bytes_short(shape.frame_bytes) + " --largest " +
                            format_bytes_short(shape.largest_block_bytes) +
                            ": both must be powers of two, and the largest block no smaller than a frame");
    }
}

std::uint64_t chunks_for(std::uint64_t bytes, PoolShape shape) {
    return (bytes + shape.largest_block_bytes - 1) / shape.largest_block_bytes;
}

std::string percent(double ratio) {
    char text[32];
    std::snprintf(text, sizeof text, "%.1f %%", 100 * ratio);
    return text;
}

}  // namespace

unsigned PoolShape::largest_order() const {
    return static_cast<unsigned>(std::bit_width(largest_block_bytes / frame_bytes)) - 1;
}

Workload make_workload(const std::vector<Allocation> &trace, PoolShape shape) {
    check(shape);
    Workload workload;
    workload.shape = shape;
    workload.orders.reserve(trace.size());
    workload.steps.reserve(2 * trace.size());
    struct End {
        std::uint64_t time_ns;
        std::uint32_t allocation;
        // At equal times: in the order of allocation.
        bool operator>(const End &other) const {
            return time_ns != other.time_ns ? time_ns > other.time_ns : allocation > other.allocation;
        }
    };
    std::priority_queue<End, std::vector<End>, std::greater<>> ends;
    std::uint64_t requested = 0, granted = 0;
    const auto free_until = [&](std::uint64_t time_ns) {
        for (; !ends.empty() && ends.top().time_ns <= time_ns; ends.pop()) {
            const std::uint32_t allocation = ends.top().allocation;
            workload.steps.push_back({allocation, true});
            requested -= trace[allocation].size_bytes;
            granted -= shape.frame_bytes << workload.orders[allocation];
        }
    };
    for (std::uint32_t i = 0; i < trace.size(); ++i) {
        const Allocation &allocation = trace[i];
        if (allocation.size_bytes > shape.largest_block_bytes) {
            throw ArgumentError("allocation " + std::to_string(i + 1) + " of the trace has " +
                                std::to_string(allocation.size_bytes) + " bytes; give --largest " +
                                format_bytes_short(std::bit_ceil(allocation.size_bytes)) + " or more");
        }
        free_until(allocation.time_ns);
        workload.orders.push_back(order_of(allocation.size_bytes, shape));
        workload.steps.push_back({i, false});
        requested += allocation.size_bytes;
        granted += shape.frame_bytes << workload.orders.back();
        workload.peak_requested_bytes = std::max(workload.peak_requested_bytes, requested);
        workload.peak_granted_bytes = std::max(workload.peak_granted_bytes, granted);
        if (allocation.lifetime_ns == Allocation::kForEver)
            ++workload.never_freed;
        else
            ends.push({allocation.end_ns(), i});
    }
    return workload;  // frees after the last allocation do not change the result
}

std::vector<Engine> product_engines() {
    return {engine<OurPool<0>>("numacre"), engine<OurPool<NUMACRE_PRIVATE_COMPACT>>("numacre, compact"),
            engine<OurPool<NUMACRE_PRIVATE_BEST_FIT>>("numacre, best fit"),
            engine<SerialPool<Choice::latest>>("serial, latest first"),
            engine<SerialPool<Choice::lowest>>("serial, lowest first")};
}

bool completes(const Workload &workload, ReplayPool &pool) {
    std::vector<std::uint64_t> where(workload.orders.size());
    for (const Workload::Step step : workload.steps) {
        const unsigned order = workload.orders[step.allocation];
        if (step.frees)
            pool.release(where[step.allocation], order);
        else if (!pool.allocate(order, where[step.allocation]))
            return false;
    }
    return true;
}

Outcome find_smallest_pool(const Workload &workload, const Engine &engine) {
    const std::uint64_t least = std::max<std::uint64_t>(chunks_for(workload.peak_granted_bytes, workload.shape), 1);
    // A bound for an allocator that never completes the trace: real programs stay far below this multiple of their
    // peak.
    const std::uint64_t most = (least + 1) * (workload.shape.largest_order() + 2);
    for (std::uint64_t chunks = least; chunks <= most; ++chunks) {
        const std::unique_ptr<ReplayPool> pool = engine.make(workload.shape, chunks);
        if (completes(workload, *pool)) return {engine.name, chunks * workload.shape.largest_block_bytes};
    }
    throw std::runtime_error("the engine '" + engine.name + "' does not complete the trace in " +
                             format_bytes(most * workload.shape.largest_block_bytes));
}

Json replay_json(const Workload &workload, const std::vector<Outcome> &outcomes) {
    Json engines = Json::array();
    for (const Outcome &outcome : outcomes) {
        engines.push_back({{"engine", outcome.engine},
                           {"smallest_pool_bytes", outcome.smallest_pool_bytes},
                           {"space_utilisation", outcome.utilisation(workload)}});
    }
    return {{"allocations", workload.orders.size()},
            {"never_freed", workload.never_freed},
            {"frame_bytes", workload.shape.frame_bytes},
            {"largest_block_bytes", workload.shape.largest_block_bytes},
            {"peak_requested_bytes", workload.peak_requested_bytes},
            {"peak_granted_bytes", workload.peak_granted_bytes},
            {"engines", engines}};
}

void print_replay(std::ostream &out, const Workload &workload, const std::vector<Outcome> &outcomes) {
    out << workload.orders.size() << " allocations, " << workload.never_freed << " never freed; frame "
        << format_bytes(workload.shape.frame_bytes) << ", largest block "
        << format_bytes(workload.shape.largest_block_bytes) << '\n'
        << "peak: " << workload.peak_requested_bytes << " bytes requested, " << workload.peak_granted_bytes
        << " granted (each block a power of two of frames)\n";
    Table table({{"ENGINE"}, {"SMALLEST POOL", Align::right}, {"BYTES", Align::right}, {"UTILISATION", Align::right}});
    for (const Outcome &outcome : outcomes) {
        table.add_row({outcome.engine, format_bytes(outcome.smallest_pool_bytes),
                       std::to_string(outcome.smallest_pool_bytes), percent(outcome.utilisation(workload))});
    }
    table.print(out);
}

}  // namespace numacre::cli
