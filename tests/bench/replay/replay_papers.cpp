// `numacre bench replay` with the papers' buddies beside the others. All of them with one thread: this is about space,
// and with several threads the lock-free ones of the papers are not safe (tests/papers).
#include <CLI/CLI.hpp>
#include <bit>
#include <exception>
#include <iostream>
#include <memory>
#include <vector>

#include "bytes.hpp"
#include "numacre/shm/env.hpp"
#include "papers/buddy_spinlock.hpp"
#include "papers/nbbs_four_levels.hpp"
#include "papers/nbbs_one_level.hpp"
#include "replay.hpp"
#include "trace.hpp"

namespace {

using namespace numacre;
using namespace numacre::engine;
using namespace numacre::cli;

// Their trees have a power of two of frames. A pool of another size is the next larger one with what is too much taken
// from its end beforehand.
template <class Tree>
class PaperPool : public ReplayPool {
public:
    PaperPool(PoolShape shape, std::uint64_t chunks)
        : order_(shape.largest_order()), tree_(std::bit_ceil(chunks) << order_, order_) {
        std::vector<std::uint64_t> inside;
        for (std::uint64_t i = std::bit_ceil(chunks); i != 0; --i) {
            const auto frame = tree_.allocate(order_, 0);
            if (!frame) throw std::runtime_error("an empty tree of the papers' refuses its largest block");
            if (*frame >> order_ < chunks) inside.push_back(*frame);
        }
        for (const std::uint64_t frame : inside) tree_.free(frame);
    }
    bool allocate(unsigned order, std::uint64_t &where) override {
        const auto frame = tree_.allocate(order, 0);
        where = frame.value_or(0);
        return frame.has_value();
    }
    void release(std::uint64_t where, unsigned /*order*/) override { tree_.free(where, 0); }

private:
    unsigned order_;
    Tree tree_;
};

template <class Tree>
Engine paper(const char *name) {
    return {name,
            [](PoolShape shape, std::uint64_t chunks) { return std::make_unique<PaperPool<Tree>>(shape, chunks); }};
}

}  // namespace

int main(int argc, char **argv) {
    CLI::App app{"Space that allocators need for a recorded trace", "replay_papers"};
    std::vector<std::string> traces;
    std::string frame = "4K", largest = "4M";
    bool json = false;
    app.add_option("TRACE", traces, "CSV, as NUMACRE_TRACE=FILE records it; several: of one pool")->required();
    app.add_option("--frame", frame, "Smallest block")->capture_default_str();
    app.add_option("--largest", largest, "Largest block, and the pool's step")->capture_default_str();
    app.add_flag("--json", json, "Print JSON");
    CLI11_PARSE(app, argc, argv);
    try {
        const Workload workload = make_workload(read_trace_files(traces), {parse_bytes(frame), parse_bytes(largest)});
        std::vector<Engine> engines = product_engines();
        engines.push_back(paper<papers::NbbsOneLevel<ProductionEnv>>("1lvl-nbbs"));
        engines.push_back(paper<papers::NbbsFourLevels<ProductionEnv>>("4lvl-nbbs"));
        engines.push_back(paper<papers::BuddySpinLock<ProductionEnv>>("buddy-sl"));
        std::vector<Outcome> outcomes;
        for (const Engine &engine : engines) outcomes.push_back(find_smallest_pool(workload, engine));
        if (json)
            print_json(std::cout, replay_json(workload, outcomes));
        else
            print_replay(std::cout, workload, outcomes);
        return 0;
    } catch (const std::exception &error) {
        std::cerr << "replay_papers: " << error.what() << '\n';
        return 1;
    }
}
