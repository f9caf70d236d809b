// Does the daemon's event loop wait for a client? A client can make the kernel wait at any access to its pool's memory
// (daemon/README.md, Limits), so the loop may neither touch that, nor wait for a lock that somebody holds who does.
// Here nobody waits at an access: what is watched is who could.
#pragma once

#include <map>
#include <set>
#include <string>

#include "scheduler.hpp"

namespace numacre::simulation {

void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

class LoopWatch {
public:
    // A daemon begins; the running fiber is its main thread, where the loop will run.
    void begin(int process, int fiber) {
        *this = {};
        process_ = process;
        loop_ = fiber;
        resume();
    }
    // While pools are made: there is no client of theirs yet.
    void pause() { door.is_watched = is_on_ = false; }
    void resume() { door.is_watched = is_on_ = true; }
    void enter(int process) { door.is_watched = is_on_ && process == process_; }

    void takes(int fiber, const void *lock) {
        if (!is_on_) return;
        held_[fiber].insert(lock);
        if (fiber != loop_) return;
        of_loop_.insert(lock);
        check(lock);
    }
    void releases(int fiber, const void *lock) {
        if (is_on_) held_[fiber].erase(lock);
    }
    void touches_shared_memory(int fiber, const std::string &file) {
        if (fiber == loop_) {
            fail("the event loop touches %s: a client can make it wait there", file.c_str());
            return;
        }
        for (const void *lock : held_[fiber]) {
            held_at_a_touch_[lock] = file;
            if (of_loop_.contains(lock)) check(lock);
        }
    }

private:
    void check(const void *lock) const {
        if (const auto found = held_at_a_touch_.find(lock); found != held_at_a_touch_.end())
            fail("the event loop takes a lock that is held while %s is touched: a client can make it wait there",
                 found->second.c_str());
    }

    int process_ = -1;
    int loop_ = -1;
    bool is_on_ = false;
    std::map<int, std::set<const void *>> held_;  // by fiber
    std::set<const void *> of_loop_;
    std::map<const void *, std::string> held_at_a_touch_;  // of which file
};

}  // namespace numacre::simulation
