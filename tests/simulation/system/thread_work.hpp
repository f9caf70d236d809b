// The work of the threads of the clients: they allocate, free, give away and take blocks.
#pragma once

#include <vector>

#include "blocks.hpp"
#include "promises.hpp"

namespace numacre::simulation {

class ThreadWork {
public:
    ThreadWork(Run &run, Sessions &sessions, Promises &promises, Blocks &blocks)
        : run_(run), sessions_(sessions), promises_(promises), blocks_(blocks) {}

    // held: the thread's blocks.
    void operate(Program &program, std::vector<HeldBlock> &held);

private:
    // A block on its way from who has published it to who takes it.
    struct Token {
        numacre_ref reference = 0;
        HeldBlock block;
        std::uint64_t instance_id = 0;  // of the pool
    };

    void allocate_run(const Handle &handle, std::vector<HeldBlock> &held);
    void allocate(const Program &program, const Handle &handle, std::vector<HeldBlock> &held);
    void free_block(const Handle &handle, const HeldBlock &block);
    void publish(const Handle &handle, const HeldBlock &block, std::vector<HeldBlock> &held);
    void take(const Handle &handle, std::vector<HeldBlock> &held);
    bool pick(const Handle &handle, std::vector<HeldBlock> &held, HeldBlock &block);
    std::size_t some_size();
    unsigned allocate_percent(const Program &program, const Handle &handle) const;

    Run &run_;
    Sessions &sessions_;
    Promises &promises_;
    Blocks &blocks_;
    std::vector<Token> tokens_;
};

}  // namespace numacre::simulation
