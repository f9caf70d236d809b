// The explorer's steps: taking one, taking it back, and what is looked at in the state to which it leads.
#include "explorer.hpp"

#include <cstring>

namespace numacre::model {

void Explorer::save_image(int thread) {
    const ThreadInfo &info = threads_[static_cast<std::size_t>(thread)];
    const auto bytes = static_cast<std::size_t>(info.area + kFiberBytes - info.fiber.stack_pointer);
    const std::size_t offset = image_bytes_.size();
    image_bytes_.resize(offset + bytes);
    std::memcpy(image_bytes_.data() + offset, info.fiber.stack_pointer, bytes);
    images_.push_back({thread, info.fiber, offset});
}

void Explorer::undo(const Position &to) {
    words_.undo(to.words);
    while (images_.size() > to.images) {
        const Image &image = images_.back();
        ThreadInfo &info = threads_[static_cast<std::size_t>(image.thread)];
        info.fiber = image.fiber;
        std::memcpy(info.fiber.stack_pointer, image_bytes_.data() + image.offset, image_bytes_.size() - image.offset);
        image_bytes_.resize(image.offset);
        images_.pop_back();
    }
    if (weak_) weak_->restore(to.weak_states);
}

bool Explorer::restartable(int process) const {
    for (const ThreadInfo &info : threads_)
        if (info.options.process == process) return info.options.restartable;
    return false;
}

bool Explorer::killable(int process) const {
    bool exists = false;
    bool busy = false;
    for (int thread = 0; thread < static_cast<int>(threads_.size()); ++thread) {
        const ThreadInfo &info = threads_[static_cast<std::size_t>(thread)];
        if (info.options.process != process || info.fiber.at == At::dead) continue;
        exists = exists || info.options.mortal;
        busy = busy || !idle(thread);
    }
    // A thread that starts again from the beginning and was at rest would only be where it was.
    if (restartable(process)) return exists && busy && *restarts_used_ < options_.restarts_max;
    return exists && *kills_used_ < options_.kills_max;
}

bool Explorer::possible(Step step) const {
    if (step.kind == Step::Kind::kill) return step.thread < process_count_ && killable(step.thread);
    if (step.thread >= threads_.size()) return false;
    if (step.kind == Step::Kind::flush) return !drained(step.thread);
    return enabled(step.thread) && step.option < options_of(step.thread);
}

void Explorer::take(Step step) {
    if (weak_) weak_->save();
    operation_ended_ = false;
    if (step.kind == Step::Kind::run) {
        save_image(step.thread);
        resume(step.thread, step.option);
        if (threads_[step.thread].options.may_wait_for_others) operation_ended_ = false;
    } else if (step.kind == Step::Kind::flush) {
        flush(step.thread);
    } else {
        kill(step.thread);
    }
    while (!to_start_.empty()) {
        const int thread = to_start_.back();
        to_start_.pop_back();
        resume(thread, 0);
    }
    if (on_step_) on_step_();
    if (weak_) weak_->tidy(live_threads());
}

void Explorer::kill(int process) {
    const bool again = restartable(process);
    std::uint64_t *const used = again ? restarts_used_ : kills_used_;
    words_.write_word(used, *used + 1);
    for (int thread = 0; thread < static_cast<int>(threads_.size()); ++thread) {
        ThreadInfo &info = threads_[static_cast<std::size_t>(thread)];
        if (info.options.process != process || info.fiber.at == At::dead) continue;
        save_image(thread);
        empty_buffer_of_dead(thread);
        if (weak_) weak_->die(thread);
        if (again) {
            prepare(thread);
            to_start_.push_back(thread);
        } else {
            info.fiber = Fiber{};
            info.fiber.at = At::dead;
            info.fiber.stack_pointer = info.local;
            rehash(thread);
        }
    }
    if (on_kill_) on_kill_(process);
    operation_ended_ = true;
}

unsigned Explorer::live_threads() const {
    unsigned live = 0;
    for (std::size_t thread = 0; thread < threads_.size(); ++thread) {
        const At at = threads_[thread].fiber.at;
        if (at != At::finished && at != At::dead) live |= 1U << thread;
    }
    return live;
}

Hash Explorer::state_hash() const {
    Hash hash = words_.hash();
    for (const ThreadInfo &info : threads_) {
        hash.a += info.fiber.hash.a;
        hash.b += info.fiber.hash.b;
    }
    if (weak_) weak_->add_to_hash(hash.a, hash.b);
    return {scramble(hash.a), scramble(hash.b)};
}

void Explorer::check_state() {
    const Position here = position();
    // With stores on their way memory does not tell yet what their owners did. Flushing them leads to states in which
    // it does.
    if (on_state_ && all_drained()) on_state_();
    undo(here);
    if (failure_.empty()) {
        bool somebody_can_run = !all_drained();
        for (int thread = 0; thread < static_cast<int>(threads_.size()); ++thread)
            somebody_can_run = somebody_can_run || enabled(thread);
        if (all_idle_but(-1)) {
            if (on_quiet_) on_quiet_();
            undo(here);
        } else if (!somebody_can_run) {
            fail("deadlock: nobody can go on, and not everybody is at rest");
        }
    }
    if (options_.solo_steps_max == 0) return;
    for (int thread = 0; thread < static_cast<int>(threads_.size()) && failure_.empty(); ++thread) {
        if (idle(thread)) continue;
        if (threads_[static_cast<std::size_t>(thread)].options.may_wait_for_others && !all_idle_but(thread)) continue;
        check_solo(thread);
    }
}

void Explorer::check_solo(int thread) {
    const auto key = [this, thread] {
        const Hash hash = state_hash();
        const auto salt = static_cast<std::uint64_t>(thread + 1);
        return Hash{scramble(hash.a + salt), scramble(hash.b + salt)};
    };
    const Position here = position();
    std::vector<Hash> passed;
    const std::string &name = threads_[static_cast<std::size_t>(thread)].options.name;
    while (failure_.empty() && !idle(thread)) {
        const Hash now = key();
        if (solo_known_->contains(now)) break;
        passed.push_back(now);
        if (!drained(thread) && (at_resting_point(thread) || !enabled(thread))) {
            take({Step::Kind::flush, static_cast<std::uint8_t>(thread), 0});
        } else if (!enabled(thread)) {
            fail(name + " waits for somebody in the middle of its operation");
        } else if (passed.size() > options_.solo_steps_max) {
            fail(name + " does not end its operation within " + std::to_string(options_.solo_steps_max) +
                 " steps though it runs alone");
        } else {
            take({Step::Kind::run, static_cast<std::uint8_t>(thread), 0});
        }
    }
    undo(here);
    if (!failure_.empty()) return;
    for (const Hash hash : passed) solo_known_->insert(hash, 0);
}

// A step of which a cycle may not consist for ever while nobody ends an operation.
bool Explorer::takes_part_in_livelocks(Step step) const {
    if (step.kind != Step::Kind::run) return step.kind == Step::Kind::flush;
    const ThreadInfo &info = threads_[step.thread];
    const bool old_value = info.fiber.request != nullptr && step.option != 0;
    return !info.options.may_wait_for_others && !old_value;
}

bool Explorer::has_gone_on_too_long(Step step, unsigned &steps_without_end) const {
    if (operation_ended_) steps_without_end = 0;
    if (step.kind != Step::Kind::run || threads_[step.thread].options.may_wait_for_others) return false;
    return options_.steps_without_end_max != 0 && ++steps_without_end > options_.steps_without_end_max;
}

std::string Explorer::too_long_text() const {
    return "no operation has ended in " + std::to_string(options_.steps_without_end_max) + " steps";
}

}  // namespace numacre::model
