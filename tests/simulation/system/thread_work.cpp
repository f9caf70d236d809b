#include "thread_work.hpp"

#include <algorithm>
#include <cerrno>

namespace numacre::simulation {

void ThreadWork::operate(Program &program, std::vector<HeldBlock> &held) {
    if (program.handles.empty()) return;
    const Handle handle = program.handles[run_.random.below(program.handles.size())];
    ++run_.result.operations;
    HeldBlock block;
    if (run_.random.percent(run_.plan.publish_percent) && pick(handle, held, block)) {
        publish(handle, block, held);
    } else if (run_.random.percent(run_.plan.take_percent) && !tokens_.empty()) {
        take(handle, held);
    } else if (held.size() > run_.plan.hoard ||
               (!run_.random.percent(allocate_percent(program, handle)) && !held.empty())) {
        if (!pick(handle, held, block)) return;
        free_block(handle, block);
    } else {
        allocate(program, handle, held);
    }
}

void ThreadWork::publish(const Handle &handle, const HeldBlock &block, std::vector<HeldBlock> &held) {
    if (run_.plan.is_of_a_group) {
        trace("hands on the address of block %llu", static_cast<unsigned long long>(block.serial));
        tokens_.push_back({NUMACRE_REF_NULL, block, handle.pool->view.header->instance_id});
        return;
    }
    const numacre_ref reference = numacre_ref_of(handle.pool, block.place);
    if (reference == NUMACRE_REF_NULL) {
        // No lane for this thread, perhaps: then the block is still its own.
        held.push_back(block);
        sessions_.check_seat(handle);
        return;
    }
    trace("gives away block %llu", static_cast<unsigned long long>(block.serial));
    tokens_.push_back({reference, block, handle.pool->view.header->instance_id});
}

void ThreadWork::take(const Handle &handle, std::vector<HeldBlock> &held) {
    const std::size_t chosen = run_.random.below(tokens_.size());
    const Token token = tokens_[chosen];
    tokens_.erase(tokens_.begin() + static_cast<std::ptrdiff_t>(chosen));
    // Of the pool's life before: it may name any block of this one.
    if (token.instance_id != handle.pool->view.header->instance_id) return;
    const bool giver_held = sessions_.is_holding(token.block.session);
    promises_.note_take_from(token.block.session);
    void *place = nullptr;
    if (run_.plan.is_of_a_group) {
        // The group may have died out since, before this process joined: then the address is anybody's.
        if (!blocks_.is_still(token.block) || !sessions_.has_outlived(handle.session, token.block.session)) return;
        std::size_t size = 0;
        if (numacre_region(handle.pool, static_cast<int>(token.block.numa_node), &place, &size) != 0)
            fail("numacre_region: %s", numacre_last_error());
        place = static_cast<std::byte *>(place) + token.block.first * run_.plan.daemon.frame_bytes;
    }
    blocks_.note_taker(token.block, handle.session);
    const int error = run_.plan.is_of_a_group ? numacre_adopt_bulk(handle.pool, &place, 1)
                                              : numacre_take(handle.pool, token.reference, &place);
    if (run_.plan.is_of_a_group && error == -EPERM)
        fail("%s cannot adopt block %llu of its group", sessions_.name_of(handle.session).c_str(),
             static_cast<unsigned long long>(token.block.serial));
    if (error != 0) blocks_.note_taker(token.block, -1);
    if (error == 0) {
        ++run_.result.takes;
        held.push_back(blocks_.got(handle, place, &token.block));
    } else if (error == -ESTALE) {
        if (giver_held && sessions_.is_holding(token.block.session) && !sessions_.at(token.block.session).is_leaving)
            fail("the reference that %s has given away is stale", sessions_.name_of(token.block.session).c_str());
        sessions_.check_seat(handle);
    } else {
        sessions_.check_answer(handle, "numacre_take", error);
    }
}

void ThreadWork::free_block(const Handle &handle, const HeldBlock &block) {
    blocks_.gives_up(block);
    const int error = numacre_free(handle.pool, block.place);
    if (error == -EUSERS) return;  // no lane for this thread: it stays the client's
    if (error != 0)
        fail("numacre_free of a block of %s: %d (%s)", sessions_.name_of(handle.session).c_str(), error,
             numacre_last_error());
    sessions_.check_seat(handle);
}

// Each block of the run is one of the thread's from then on.
void ThreadWork::allocate_run(const Handle &handle, std::vector<HeldBlock> &held) {
    const std::uint64_t frame = run_.plan.daemon.frame_bytes;
    const std::size_t size = 1 + run_.random.below(9 * frame);
    void *run = nullptr;
    const int error = numacre_alloc_run(handle.pool, -1, size, 0, &run);
    for (std::size_t at = 0; error == 0 && at < size;) {
        void *const place = static_cast<char *>(run) + at;
        held.push_back(blocks_.got(handle, place, nullptr));
        at += numacre_usable_size(handle.pool, place);
    }
    // More than there is of memory in all.
    if (error == -EINVAL && size > run_.plan.daemon.capacity_bytes) return;
    sessions_.check_answer(handle, "numacre_alloc_run", error);
}

void ThreadWork::allocate(const Program &program, const Handle &handle, std::vector<HeldBlock> &held) {
    // The draw is for those plans only that have runs: the others stay as they are.
    if (run_.plan.run_percent != 0 && run_.random.percent(run_.plan.run_percent)) {
        allocate_run(handle, held);
        return;
    }
    void *place = nullptr;
    const std::size_t size = some_size();
    int error = 0;
    const Promises::Asked before = promises_.before_asking(program, handle);
    const bool is_a_frame = size <= run_.plan.daemon.frame_bytes;  // a promise is not one in one piece
    if (run_.random.percent(run_.plan.wait_percent)) {
        error = numacre_alloc_on(handle.pool, -1, size, NUMACRE_WAIT_MS(1 + run_.random.below(30)), &place);
    } else if (run_.random.percent(run_.plan.uncached_percent)) {
        error = numacre_alloc_on(handle.pool, -1, size, NUMACRE_UNCACHED, &place);
    } else if (run_.random.percent(run_.plan.bulk_percent)) {
        void *places[4];
        const auto count = static_cast<unsigned>(run_.random.between(1, 4));
        error = numacre_alloc_bulk(handle.pool, size, places, count);
        if (error == 0)
            for (unsigned i = 0; i < count; ++i) held.push_back(blocks_.got(handle, places[i], nullptr));
        sessions_.check_answer(handle, "numacre_alloc_bulk", error);
        if (error == -ENOMEM && is_a_frame) promises_.check(handle, before, count);
        return;
    } else {
        error = numacre_alloc(handle.pool, size, &place);
    }
    if (error == 0) held.push_back(blocks_.got(handle, place, nullptr));
    sessions_.check_answer(handle, "numacre_alloc", error);
    if (error == -ENOMEM && is_a_frame) promises_.check(handle, before, 1);
}

// One of the thread's blocks that is of this handle.
bool ThreadWork::pick(const Handle &handle, std::vector<HeldBlock> &held, HeldBlock &block) {
    std::vector<std::size_t> own;
    for (std::size_t i = 0; i < held.size(); ++i)
        if (held[i].session == handle.session) own.push_back(i);
    if (own.empty()) return false;
    const std::size_t chosen = own[run_.random.below(own.size())];
    block = held[chosen];
    held.erase(held.begin() + static_cast<std::ptrdiff_t>(chosen));
    return true;
}

// Mostly small, now and then the largest.
std::size_t ThreadWork::some_size() {
    const std::uint64_t largest = run_.plan.daemon.largest_block_bytes;
    if (run_.plan.hoard != kUsualHoard && run_.random.one_in(2)) return run_.plan.daemon.frame_bytes;
    if (run_.random.one_in(8)) return largest;
    return 1 + run_.random.below(std::min(largest, run_.plan.daemon.frame_bytes << run_.random.below(4)));
}

// Where there are hoarders, those who have been promised something mostly do not use it.
unsigned ThreadWork::allocate_percent(const Program &program, const Handle &handle) const {
    if (run_.plan.hoard == kUsualHoard) return 50;
    if (sessions_.at(handle.session).promised_bytes != 0) return 40;
    return program.process % 2 == 0 ? 90 : 50;
}

}  // namespace numacre::simulation
