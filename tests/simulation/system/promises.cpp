#include "promises.hpp"

#include <algorithm>
#include <cstring>

namespace numacre::simulation {

void Promises::reserve_some() {
    std::vector<int> present;
    for (int session = 0; session < sessions_.count(); ++session)
        if (sessions_.is_holding(session) && !sessions_.at(session).is_leaving) present.push_back(session);
    const std::uint64_t all = run_.plan.daemon.capacity_bytes * run_.plan.daemon.numa_nodes;
    const std::uint64_t bytes =
        run_.random.one_in(4)
            ? 0
            : 1 + run_.random.below(run_.random.one_in(3) ? all : std::max<std::uint64_t>(1, all / 4));
    if (run_.random.one_in(4)) {
        // What a user's dead client leaves in quarantine is promised to the user again, and is not there.
        if (run_.plan.daemon.reclaim != 0) return;
        daemon_.begin_job(
            [this, bytes, uid = run_.random.one_in(2) ? kUid : 0] { reserve_for_user(daemon_.face(), uid, bytes); });
        return;
    }
    // One at a time: of two the daemon says not which came last.
    if (present.empty() || is_reserving_ || !daemon_.takes_jobs()) return;
    is_reserving_ = true;
    daemon_.begin_job([this, bytes, session = present[run_.random.below(present.size())]] {
        const unsigned promises = ++sessions_.at(session).promises;
        sessions_.at(session).promised_bytes = std::min(sessions_.at(session).promised_bytes, bytes);
        if (reserve_for_client(daemon_.face(), sessions_.at(session).client_id, bytes) &&
            sessions_.at(session).promises == promises)
            sessions_.at(session).promised_bytes = bytes;
        is_reserving_ = false;
    });
}

Promises::Asked Promises::before_asking(const Program &program, const Handle &handle) const {
    const Session &session = sessions_.at(handle.session);
    return {session.promised_bytes, session.promises, program.working == 0};
}

void Promises::check(const Handle &handle, const Asked &before, unsigned frames) const {
    const Session &session = sessions_.at(handle.session);
    if (run_.plan.daemon.quota_bytes == 0) return;
    if (!before.is_alone || session.promises != before.promises || run_.plan.kernel.enomem_every != 0) return;
    const std::uint64_t held = frames_held(handle);
    if ((held + frames) * run_.plan.daemon.frame_bytes > before.promised_bytes) return;
    fail("%s is refused %u frames; it holds %llu, and has been promised %llu bytes",
         sessions_.name_of(handle.session).c_str(), frames, static_cast<unsigned long long>(held),
         static_cast<unsigned long long>(before.promised_bytes));
}

void Promises::note_take_from(int giver) {
    if (giver < 0 || sessions_.at(giver).promises == 0) return;
    for (int session = 0; session < sessions_.count(); ++session) {
        sessions_.at(session).promised_bytes = 0;
        ++sessions_.at(session).promises;
    }
}

// Caches included, all in one step.
std::uint64_t Promises::frames_held(const Handle &handle) const {
    std::uint64_t frames = 0;
    for (unsigned i = 0; i < run_.plan.daemon.numa_nodes; ++i) {
        const auto &view = handle.pool->nodes[i].buddy().view();
        for (unsigned layer = 0; layer <= view.geometry.top_layer(); ++layer)
            for (std::uint64_t entry = 0; entry < view.geometry.index_entry_count(layer); ++entry) {
                std::uint64_t bits = 0;
                std::memcpy(&bits, static_cast<const void *>(&view.index[layer][entry]), sizeof bits);
                const IndexEntry block{bits};
                if (block.is_held() && block.owner() == handle.pool->process) frames += block.order().frames();
            }
    }
    return frames;
}

}  // namespace numacre::simulation
