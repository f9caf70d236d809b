// What an access does in each MemoryMode.
#include "explorer.hpp"

#include <cstring>

#include "die.hpp"

namespace numacre::model {

std::uint64_t Explorer::perform(int thread, const Request &request, int option) {
    switch (options_.memory) {
        case MemoryMode::sequential:
            break;
        case MemoryMode::total_store_order:
            return access_buffered(thread, request);
        case MemoryMode::weak:
            return access_weak(thread, request, static_cast<unsigned>(option));
    }
    return access_in_order(request, false);
}

std::uint64_t Explorer::access_in_order(const Request &request, bool silent) {
    const std::uint64_t before = bits_at(request.address, request.bytes);
    if (request.kind == Access::load && silent) return before;
    const std::uint64_t after = result_of(request, before);
    if (after != before) words_.write(request.address, request.bytes, after);
    if (tracing_ && !silent) trace_access(request, before, after, {});
    return before;
}

bool Explorer::waits_for_flush(int thread) const {
    const Request *const request = threads_[static_cast<std::size_t>(thread)].fiber.request;
    if (request == nullptr || drained(thread) || request->kind == Access::load) return false;
    const bool needs_empty = request->kind != Access::store || as_ordered(*request).order == std::memory_order_seq_cst;
    return needs_empty || buffers_->is_full(thread);
}

std::uint64_t Explorer::access_buffered(int thread, const Request &asked) {
    const Request request = as_ordered(asked);
    if (is_weakened(asked, options_.weaken)) ++weakened_;
    std::uint64_t before = bits_at(request.address, request.bytes);
    if (request.kind == Access::load) {
        const bool own = buffers_->forwards(thread, request, before);
        if (tracing_) trace_access(request, before, before, own ? " (from its buffer)" : "");
        return before;
    }
    if (request.kind == Access::barrier)
        for (int other = 0; other < static_cast<int>(threads_.size()); ++other)
            while (!drained(other)) flush(other);
    // RMWs, barriers and seq_cst stores find the thread's own buffer empty: waits_for_flush().
    if (request.kind != Access::store || request.order == std::memory_order_seq_cst)
        return access_in_order(request, false);
    buffers_->put(thread, request);
    if (tracing_) trace_access(request, before, request.operand, " (into its buffer)");
    return before;
}

void Explorer::flush(int thread) {
    access_in_order(buffers_->take_oldest(thread), false);
}

void Explorer::empty_buffer_of_dead(int thread) {
    if (!options_.lose_buffers_at_death) {
        while (!drained(thread)) flush(thread);
    } else if (!drained(thread)) {
        buffers_->lose_all(thread);
    }
}

std::uint64_t Explorer::access_weak(int thread, const Request &asked, unsigned way) {
    const Request request = as_ordered(asked);
    if (is_weakened(asked, options_.weaken)) ++weakened_;
    const std::uint64_t newest = bits_at(request.address, request.bytes);
    if (request.kind == Access::barrier) {
        weak_->pass_barrier(thread);
        if (tracing_) trace_access(request, newest, newest, " (of all threads)");
        return newest;
    }
    const WeakMemory::Outcome outcome = weak_->perform(thread, request, words_.place_of(request.address), newest, way);
    if (outcome.newest != newest) words_.write(request.address, request.bytes, outcome.newest);
    if (tracing_) {
        std::string remark;
        if (outcome.behind_newest != 0)
            remark = (request.kind == Access::store ? " (before " : " (old: before ") +
                     std::to_string(outcome.behind_newest) + " newer)";
        trace_access(request, outcome.before, outcome.after, remark);
    }
    return outcome.before;
}

// Runs on the fiber: words that are no steps. They are as good as one thread's own, but for channels and a thread's
// loads of words that only it writes.
std::uint64_t Explorer::access_silently(const Request &request, std::uint8_t flags) {
    if (buffers_ != nullptr) {
        std::uint64_t value = 0;
        if (request.kind == Access::load && buffers_->forwards(running_, request, value)) return value;
        // What goes through a channel is later than all that its writer stored.
        while ((flags & SharedWords::kChannel) != 0 && request.kind != Access::load && !drained(running_))
            flush(running_);
    }
    if (weak_ && (flags & SharedWords::kChannel) != 0)
        weak_->pass_through_channel(running_, request, words_.place_of(request.address),
                                    bits_at(request.address, request.bytes));
    return access_in_order(request, true);
}

}  // namespace numacre::model
