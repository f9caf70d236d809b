#include "pool/free_memory_watch.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/bytes.hpp"
#include "pool/soft_limits.hpp"

namespace numacre::daemon {

FreeMemoryWatch::FreeMemoryWatch(const Description &description, const Geometry &geometry, PoolLedger &ledger)
    : description_(description), geometry_(geometry), ledger_(ledger), history_(ledger.numa_nodes()) {
    // relaxed, here and below: only this object writes and reads these entries of the ledger.
    for (const LedgerNode &node : ledger.nodes())
        is_below_.push_back(node.is_below_watermark.load(std::memory_order_relaxed) != 0);
    caches_.resize(is_below_.size());
}

void FreeMemoryWatch::compare(const Use &use) {
    const std::uint64_t low_watermark_bytes = description_.now()->spec.low_watermark_bytes;
    const MutexLock lock(mutex_);
    for (std::size_t i = 0; i < use.nodes.size(); ++i) {
        const std::uint64_t free_bytes = geometry_.bytes_of(use.nodes[i].free_frames);
        const std::uint64_t online_bytes = geometry_.bytes_of(use.nodes[i].online_frames);
        const bool is_below = daemon::is_below_watermark(is_below_[i], free_bytes, online_bytes, low_watermark_bytes);
        if (!is_below) caches_[i] = Caches::as_they_are;
        if (is_below == is_below_[i]) continue;
        if (is_below && use.nodes[i].cached_frames != 0 && caches_[i] != Caches::taken_back) {
            caches_[i] = Caches::wanted;
            continue;
        }
        is_below_[i] = is_below;
        ledger_.nodes()[i].is_below_watermark.store(is_below ? 1 : 0, std::memory_order_relaxed);
        Event found;
        found.pool = description_.name();
        found.kind = is_below ? EventKind::low_watermark : EventKind::low_watermark_ended;
        found.node = static_cast<std::uint32_t>(i);
        found.bytes = free_bytes;
        found.message = "numa node " + std::to_string(i) + ": " + format_bytes(free_bytes) + " free of " +
                        format_bytes(online_bytes) + " online, the low watermark is " +
                        format_bytes(low_watermark_bytes);
        news_.push_back(std::move(found));
    }
}

bool FreeMemoryWatch::wants_caches() const {
    const MutexLock lock(mutex_);
    return std::ranges::find(caches_, Caches::wanted) != caches_.end();
}

void FreeMemoryWatch::caches_are_taken_back() {
    const MutexLock lock(mutex_);
    std::ranges::replace(caches_, Caches::wanted, Caches::taken_back);
}

std::vector<Event> FreeMemoryWatch::take_news() {
    const MutexLock lock(mutex_);
    return std::exchange(news_, {});
}

bool FreeMemoryWatch::is_below_watermark(std::size_t numa_node) const {
    const MutexLock lock(mutex_);
    return is_below_[numa_node];
}

void FreeMemoryWatch::raise_peaks(const Use &use) {
    const MutexLock lock(mutex_);
    for (std::size_t i = 0; i < use.nodes.size(); ++i) {
        const std::uint64_t used_bytes = geometry_.bytes_of(use.nodes[i].online_frames - use.nodes[i].free_frames);
        auto &peak = ledger_.nodes()[i].peak_used_bytes;
        if (used_bytes > peak.load(std::memory_order_relaxed)) peak.store(used_bytes, std::memory_order_relaxed);
    }
}

void FreeMemoryWatch::remember(const Use &use, std::span<const std::uint64_t> draining_free_frames,
                               std::uint64_t promised_frames) {
    std::vector<std::uint64_t> open_frames;  // by numa node: free frames that do not drain
    std::uint64_t all_open_frames = 0;
    for (std::size_t i = 0; i < use.nodes.size(); ++i) {
        const std::uint64_t free_frames = use.nodes[i].free_frames;
        open_frames.push_back(free_frames - std::min(free_frames, draining_free_frames[i]));
        all_open_frames += open_frames.back();
    }
    const std::chrono::seconds after = description_.now()->spec.autosize.after;
    const MutexLock lock(mutex_);
    for (std::size_t i = 0; i < use.nodes.size(); ++i) {
        const Use::OfNode &node = use.nodes[i];
        const std::uint64_t elsewhere = all_open_frames - open_frames[i];
        const std::uint64_t promised_here = promised_frames - std::min(promised_frames, elsewhere);
        const std::uint64_t free_frames = open_frames[i] - std::min(open_frames[i], promised_here);
        daemon::remember(
            history_[i],
            {std::chrono::steady_clock::now(), geometry_.bytes_of(free_frames), geometry_.bytes_of(node.online_frames)},
            after);
    }
}

void FreeMemoryWatch::forget_history() {
    const MutexLock lock(mutex_);
    for (auto &history : history_) history.clear();
}

std::vector<AutosizeWish> FreeMemoryWatch::take_wishes(std::span<const std::uint64_t> unit_bytes) {
    const auto description = description_.now();
    const MutexLock lock(mutex_);
    auto wishes = autosize_wishes(description->spec.autosize, history_, unit_bytes, last_shrink_);
    for (const AutosizeWish &wish : wishes) history_[wish.numa_node].clear();
    return wishes;
}

}  // namespace numacre::daemon
