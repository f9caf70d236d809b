#include "sessions.hpp"

#include <cerrno>

namespace numacre::simulation {

int Sessions::add(const Process &process, numacre_pool *pool) {
    sessions_.push_back(
        {process.id, process.program, pool->client_id, pool->process.value, pool->nodes[0].data, false, false});
    const int session = static_cast<int>(sessions_.size()) - 1;
    trace("attached as client %u in seat %u", pool->client_id, pool->process.value);
    for (int other = 0; other < session; ++other)
        if (at(other).slot == pool->process.value && is_holding(other))
            fail("%s gets the seat of %s", name_of(session).c_str(), name_of(other).c_str());
    for (int other = 0; other < session; ++other) sessions_.back().met.push_back(is_holding(other));
    return session;
}

bool Sessions::is_holding(int session) const {
    if (session < 0) return false;
    const Session &who = at(session);
    const Process &process = run_.kernel.process(who.process);
    return !who.has_left && process.is_alive && process.program == who.program &&
           run_.kernel.file_at(who.process, who.frames) != nullptr;
}

std::string Sessions::name_of(int session) const {
    const Session &who = at(session);
    return "client " + std::to_string(who.client_id) + " (process " + std::to_string(who.process) + ", seat " +
           std::to_string(who.slot) + ")";
}

void Sessions::check_seat(const Handle &handle) const {
    const auto &record = handle.pool->view.processes[handle.pool->process.value];
    if (record.state.load() != static_cast<std::uint64_t>(ProcessState::active) ||
        record.generation.load() != handle.pool->process_generation)
        fail("%s lives, has the pool mapped, and counts as gone (state %llu, generation %llu instead of %llu)",
             name_of(handle.session).c_str(), static_cast<unsigned long long>(record.state.load()),
             static_cast<unsigned long long>(record.generation.load()),
             static_cast<unsigned long long>(handle.pool->process_generation));
}

void Sessions::check_answer(const Handle &handle, const char *call, int error) const {
    switch (-error) {
        case 0:
            break;
        case ENOMEM:
        case EUSERS:
        case ETIMEDOUT:
        case EDQUOT:
            ++run_.result.refusals;
            break;
        default:
            fail("%s of %s: %d (%s)", call, name_of(handle.session).c_str(), error, numacre_last_error());
    }
    check_seat(handle);
}

}  // namespace numacre::simulation
