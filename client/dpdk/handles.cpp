// The handles that this process has of the device's channels.
#include <time.h>

#include <algorithm>
#include <cstdint>

#include "device.hpp"

namespace numacre::dpdk {

Handle handles[RTE_MAX_ETHPORTS][kDirections][kMostQueues];
Handle watches[RTE_MAX_ETHPORTS][kDirections];

namespace {

std::int64_t now_ms() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return std::int64_t{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

void close_handle(Handle &handle) {
    if (handle.channel != nullptr) (void)numacre_channel_close(handle.channel);
    handle = {};
}

}  // namespace

int open_handle(const Queue &queue, Handle &handle) {
    const Device &device = *queue.device;
    numacre_pool *const pool = numacre_dpdk_pool(device.mempool);
    numacre_channel_options options{};
    options.struct_size = sizeof options;
    options.capacity = device.capacity;
    options.burst = device.burst;
    options.flags = queue.direction == kTransmit ? NUMACRE_CHANNEL_SENDS : NUMACRE_CHANNEL_RECEIVES;
    int error = pool == nullptr ? -ECONNREFUSED : numacre_channel_open(pool, queue.channel, &options, &handle.channel);
    if (error != 0) {
        handle.channel = nullptr;
        handle.failed_ms = now_ms();
        NUMACRE_LOG(ERR, "port %u: no channel %s: %s\n", queue.port, queue.channel,
                    pool == nullptr ? "no pool" : numacre_last_error());
        return error;
    }
    numacre_channel_info info{};
    info.struct_size = sizeof info;
    error = numacre_channel_get_info(handle.channel, &info);
    handle.burst = error == 0 ? std::min(info.burst, kMostBurst) : 1;
    return 0;
}

void close_handles(std::uint16_t port) {
    for (auto &direction : handles[port])
        for (Handle &handle : direction) close_handle(handle);
    for (Handle &handle : watches[port]) close_handle(handle);
}

Handle *open_late(const Queue &queue, Handle &handle) {
    constexpr std::int64_t kPauseMs = 100;
    if (handle.failed_ms != 0 && now_ms() - handle.failed_ms < kPauseMs) return nullptr;
    return open_handle(queue, handle) == 0 ? &handle : nullptr;
}

}  // namespace numacre::dpdk
