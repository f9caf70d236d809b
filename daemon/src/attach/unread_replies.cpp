#include "attach/unread_replies.hpp"

#include <iterator>
#include <utility>

#include "attach/connection.hpp"

namespace numacre::daemon {

UnreadReplies::UnreadReplies(EventLoop &loop, Closer &closer, ConnectionLimits &limits, std::size_t most,
                             std::function<int(SessionId)> connection_of)
    : loop_(loop), closer_(closer), limits_(limits), most_(most), connection_of_(std::move(connection_of)) {}

UnreadReplies::~UnreadReplies() {
    for (auto &[uid, user] : users_)
        for (Left &left : user.left) closer_.close(std::move(left.connection));
}

bool UnreadReplies::would_be_too_many(std::uint32_t uid, std::size_t descriptors) {
    const auto are_too_many = [&] {
        std::size_t others = 0, own = 0;
        for (const auto &[whose, user] : users_) (whose == uid ? own : others) += user.descriptors();
        if (others + own + descriptors > most_) return true;
        return own != 0 && own + descriptors > (most_ - others) / kShare;
    };
    if (!are_too_many()) return false;
    // The sessions are asked only now and then: each costs a system call.
    const auto now = std::chrono::steady_clock::now();
    if (now - asked_ >= kAskedAgainAfter) {
        asked_ = now;
        forget_read();
    }
    return are_too_many();
}

void UnreadReplies::add(std::uint32_t uid, SessionId session, std::size_t descriptors) {
    users_[uid].sessions[session] += descriptors;
}

std::size_t UnreadReplies::of(std::uint32_t uid, SessionId session) const {
    const auto user = users_.find(uid);
    if (user == users_.end()) return 0;
    const auto found = user->second.sessions.find(session);
    return found == user->second.sessions.end() ? 0 : found->second;
}

void UnreadReplies::forget(std::uint32_t uid, SessionId session) {
    const auto user = users_.find(uid);
    if (user == users_.end()) return;
    user->second.sessions.erase(session);
    if (user->second.is_empty()) users_.erase(user);
}

void UnreadReplies::forget_read() {
    for (auto user = users_.begin(); user != users_.end();) {
        std::erase_if(user->second.sessions,
                      [this](const auto &session) { return !has_unread(connection_of_(session.first)); });
        std::erase_if(user->second.left, [&](Left &left) {
            if (has_unread(left.connection.get())) return false;
            closer_.close(std::move(left.connection));
            limits_.closed(user->first, false);
            --left_count_;
            return true;
        });
        user = user->second.is_empty() ? users_.erase(user) : std::next(user);
    }
}

std::size_t UnreadReplies::OfUser::descriptors() const {
    std::size_t all = 0;
    for (const auto &[id, of_session] : sessions) all += of_session;
    for (const Left &one : left) all += one.descriptors;
    return all;
}

void UnreadReplies::close_when_read(Fd connection, std::uint32_t uid, std::size_t descriptors) {
    limits_.adopted(uid, std::chrono::steady_clock::now());
    users_[uid].left.push_back({std::move(connection), descriptors});
    ++left_count_;
    watch_left();
}

// Runs only while there are such connections: an idle daemon does not wake up.
void UnreadReplies::watch_left() {
    if (std::exchange(is_watching_left_, true)) return;
    loop_.after(kLeftPeriod, [this] {
        is_watching_left_ = false;
        forget_read();
        if (left_count_ != 0) watch_left();
    });
}

}  // namespace numacre::daemon
