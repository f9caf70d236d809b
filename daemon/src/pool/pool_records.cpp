#include "pool/pool_records.hpp"

#include <algorithm>
#include <cstring>

#include "numacre/shm/presence.hpp"

namespace numacre::daemon {

PoolRecords::PoolRecords(const SharedPool &shared, std::uint32_t process_slots, std::uint32_t thread_limit,
                         bool knows_all)
    : shared_(shared), thread_limit_(thread_limit), records_(process_slots), knows_all_(knows_all) {
    records_[kDaemonProcess.value].state = ProcessState::active;
}

void PoolRecords::write(ProcessSlot slot, const Record &what) {
    records_[slot.value] = what;
    // relaxed: the record means nothing before its state says so.
    auto &record = shared_.processes[slot.value];
    record.generation.store(what.generation, std::memory_order_relaxed);
    record.pid.store(what.pid, std::memory_order_relaxed);
    record.start_time_ticks.store(what.start_time_ticks, std::memory_order_relaxed);
    record.quota_frames.store(what.limits.quota_frames, std::memory_order_relaxed);
    record.reserved_frames.store(what.limits.reserved_frames, std::memory_order_relaxed);
    record.account.store(what.limits.account, std::memory_order_relaxed);
    record.thread_limit.store(thread_limit_, std::memory_order_relaxed);
    // EDGE seat-to-use (release; partner: the acquire loads of the state in recovery and in clients).
    // Weakened: somebody sees an active slot with the last user's generation.
    record.state.store(static_cast<std::uint64_t>(what.state), std::memory_order_release);
}

void PoolRecords::set_state(ProcessSlot slot, ProcessState state, std::memory_order order) {
    records_[slot.value].state = state;
    shared_.processes[slot.value].state.store(static_cast<std::uint64_t>(state), order);
}

void PoolRecords::set_limits(ProcessSlot slot, const PoolLimits::RecordWords &limits) {
    Record record = records_[slot.value];
    record.limits = limits;
    write(slot, record);
}

void PoolRecords::write_account(std::size_t account, const PoolLimits::AccountWords &words) {
    accounts_[account] = words;
    // relaxed: obeyed from the next look on.
    shared_.accounts[account].quota_frames.store(words.quota_frames, std::memory_order_relaxed);
    shared_.accounts[account].reserved_frames.store(words.reserved_frames, std::memory_order_relaxed);
}

void PoolRecords::write_seats(std::uint32_t seats) {
    // seq_cst: before the new client can charge anything; partner: seats_bound().
    shared_.header->seats.store(seats, std::memory_order_seq_cst);
}

bool PoolRecords::write_accounting(std::uint64_t wanted, std::span<const ProcessSlot> seated) {
    const bool begins = (wanted & ~accounting_ & Accounting::kCount) != 0;
    accounting_ = wanted;
    if (begins) {
        for (const ProcessSlot slot : seated) {
            shared_.processes[slot.value].held.store(0, std::memory_order_relaxed);
            empty_way_to(slot);
        }
        forget_draining_held(shared_);  // clients that do not count note nothing either
    }
    // seq_cst: what clients have counted before is forgotten first, and scans that count for them come after it.
    shared_.header->accounting.store(wanted, std::memory_order_seq_cst);
    return begins;
}

void PoolRecords::remember_header() {
    std::memcpy(header_.data(), shared_.header, header_.size());
}

// Not atomic, two words: a client that attaches at this moment may find the mode with the nodes of another policy, and
// makes a sound one of it.
void PoolRecords::write_policy(const Policy &policy) {
    using Header = PoolHeader<ProductionEnv>;
    const auto mode = static_cast<std::uint32_t>(policy.mode);
    shared_.header->policy_mode = mode;
    shared_.header->policy_nodes = policy.nodes;
    // Only these: what else has been overwritten is to be found.
    std::memcpy(header_.data() + offsetof(Header, policy_mode), &mode, sizeof mode);
    std::memcpy(header_.data() + offsetof(Header, policy_nodes), &policy.nodes, sizeof policy.nodes);
}

// Only the first limit makes them begin anew.
void PoolRecords::take_over_accounting() {
    accounting_ = shared_.header->accounting.load(std::memory_order_relaxed) & Accounting::kCount;
}

void PoolRecords::write_online(std::uint64_t online_bytes, std::uint64_t draining_bytes, const Geometry &geometry) {
    const std::uint64_t gone_bytes = draining_bytes + withheld_bytes_.load(std::memory_order_relaxed);
    auto &word = shared_.header->online_frames;
    std::uint64_t frames = geometry.frames_in(online_bytes - std::min(online_bytes, gone_bytes));
    // relaxed: the daemon's own.
    if (!knows_all_) frames = std::min(frames, word.load(std::memory_order_relaxed));
    // EDGE withhold-then-look (seq_cst store, then seq_cst loads of what is held, in PoolScan::begin(); partner:
    // charge(), which counts and then looks here). Weakened: a client is granted what is about to go, and the daemon
    // does not see it: somebody who was promised that does not get it.
    word.store(frames, std::memory_order_seq_cst);
}

void PoolRecords::write_seized(std::uint64_t frames) {
    auto &word = shared_.processes[kDaemonProcess.value].held;
    // relaxed: the daemon's own, compared with sums that move all the time.
    if (!knows_all_) frames = std::max(frames, HeldFrames{word.load(std::memory_order_relaxed)}.frames());
    // release: after what has been noted of them.
    word.store(HeldFrames::of(frames).bits(), std::memory_order_release);
}

void PoolRecords::withhold(std::uint64_t more_bytes, std::uint64_t less_bytes) {
    withheld_bytes_ += more_bytes - less_bytes;
}

void PoolRecords::empty_way_to(ProcessSlot slot) {
    auto &word = shared_.processes[slot.value].on_the_way;
    // relaxed: nobody sits there, or nobody counts. The era moves on: who has given to the last one takes nothing back.
    word.store(OnTheWay{word.load(std::memory_order_relaxed)}.forgotten().bits(), std::memory_order_relaxed);
}

std::string PoolRecords::damage_to_header() const {
    if (std::memcmp(shared_.header, header_.data(), header_.size()) != 0)
        return "the pool's header has been overwritten";
    return {};
}

std::string PoolRecords::damage_to_records() const {
    // relaxed, all: they are compared, not obeyed.
    if (shared_.header->accounting.load(std::memory_order_relaxed) != accounting_)
        return "what clients are to count has been overwritten";
    for (std::size_t i = 0; i < kAccounts; ++i)
        if (shared_.accounts[i].quota_frames.load(std::memory_order_relaxed) != accounts_[i].quota_frames ||
            shared_.accounts[i].reserved_frames.load(std::memory_order_relaxed) != accounts_[i].reserved_frames)
            return "the limits of account " + std::to_string(i) + " have been overwritten";
    for (std::uint32_t slot = 0; slot < records_.size(); ++slot) {
        const auto &record = shared_.processes[slot];
        const Record &ours = records_[slot];
        if (record.state.load(std::memory_order_relaxed) != static_cast<std::uint64_t>(ours.state) ||
            record.generation.load(std::memory_order_relaxed) != ours.generation ||
            record.pid.load(std::memory_order_relaxed) != ours.pid ||
            record.start_time_ticks.load(std::memory_order_relaxed) != ours.start_time_ticks ||
            record.quota_frames.load(std::memory_order_relaxed) != ours.limits.quota_frames ||
            record.reserved_frames.load(std::memory_order_relaxed) != ours.limits.reserved_frames ||
            record.account.load(std::memory_order_relaxed) != ours.limits.account)
            return "the record of process slot " + std::to_string(slot) + " has been overwritten";
        // Its state is the client's business, the generation is ours.
        const bool is_seat = slot != kDaemonProcess.value && ours.state != ProcessState::free;
        if (is_seat && !Presence{record.presence.load(std::memory_order_relaxed)}.is_of(ours.generation))
            return "the presence of process slot " + std::to_string(slot) + " has been overwritten";
    }
    return {};
}

}  // namespace numacre::daemon
