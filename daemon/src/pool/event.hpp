// An event of a pool, for subscribers.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

namespace numacre::daemon {

// proto/numacre/v1/control.proto says what each kind means.
enum class EventKind : std::uint8_t {
    client_attached,
    client_detached,
    client_reaped,
    pool_created,
    pool_adopted,
    pool_deleted,
    resized,
    pool_corrupt,
    quota_soft_exceeded,
    user_quota_soft_exceeded,
    pool_quota_soft_exceeded,
    low_watermark,
    low_watermark_ended,
    events_dropped,
};

constexpr const char *event_kind_name(EventKind kind) {
    switch (kind) {
        case EventKind::client_attached:
            return "client_attached";
        case EventKind::client_detached:
            return "client_detached";
        case EventKind::client_reaped:
            return "client_reaped";
        case EventKind::pool_created:
            return "pool_created";
        case EventKind::pool_adopted:
            return "pool_adopted";
        case EventKind::pool_deleted:
            return "pool_deleted";
        case EventKind::resized:
            return "resized";
        case EventKind::pool_corrupt:
            return "pool_corrupt";
        case EventKind::quota_soft_exceeded:
            return "quota_soft_exceeded";
        case EventKind::user_quota_soft_exceeded:
            return "user_quota_soft_exceeded";
        case EventKind::pool_quota_soft_exceeded:
            return "pool_quota_soft_exceeded";
        case EventKind::low_watermark:
            return "low_watermark";
        case EventKind::low_watermark_ended:
            return "low_watermark_ended";
        case EventKind::events_dropped:
            return "events_dropped";
    }
    return "unknown";
}

struct Event {
    std::chrono::system_clock::time_point time;
    EventKind kind{};
    std::string pool, message;
    std::uint32_t client_id = 0, node = 0;
    std::uint64_t bytes = 0;
    std::optional<std::uint32_t> uid;  // the user whose clients the event concerns
};

}  // namespace numacre::daemon
