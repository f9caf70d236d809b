// The clients as the daemon counts them: can each still reach what it holds, and has it its seat?
#pragma once

#include <string>
#include <vector>

#include "run.hpp"

namespace numacre::simulation {

// A handle that has been attached.
struct Session {
    int process = 0;
    unsigned program = 0;  // of the process
    std::uint32_t client_id = 0;
    std::uint16_t slot = 0;
    const void *frames = nullptr;  // where its process has the first numa node's
    bool is_leaving = false;       // numacre_detach() has been called
    bool has_left = false;         // ... and has returned
    // Reserved for it: so much it gets, whoever else wants memory. Less than the daemon knows of, or as much.
    std::uint64_t promised_bytes = 0;
    unsigned promises = 0;    // how often that has changed
    std::vector<bool> met{};  // by session: held its memory when this one had joined the group
};

class Sessions {
public:
    explicit Sessions(Run &run) : run_(run) {}

    // The running process has attached: nobody else may have the seat. Returns the number of the session.
    int add(const Process &process, numacre_pool *pool);
    Session &at(int session) { return sessions_[static_cast<std::size_t>(session)]; }
    const Session &at(int session) const { return sessions_[static_cast<std::size_t>(session)]; }
    int count() const { return static_cast<int>(sessions_.size()); }

    // The kernel's answer: can this client still reach what it holds?
    bool is_holding(int session) const;
    // In a run of a group: at every moment since the other could reach what it held, a member of the group has lived.
    bool has_outlived(int session, int other) const {
        const std::vector<bool> &met = at(session).met;
        return is_holding(other) ||
               (static_cast<std::size_t>(other) < met.size() && met[static_cast<std::size_t>(other)]);
    }
    std::string name_of(int session) const;
    // A client that lives and has the pool mapped has its seat.
    void check_seat(const Handle &handle) const;
    // Of a call that may be refused.
    void check_answer(const Handle &handle, const char *call, int error) const;

private:
    Run &run_;
    std::vector<Session> sessions_;
};

}  // namespace numacre::simulation
