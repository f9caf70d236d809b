// The channels of a private pool. Its own process is all that knows them: no daemon, and no death that leaves others.
#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>

#include "engine.hpp"
#include "numacre/numacre.h"
#include "numacre/shm/channel/area.hpp"

namespace numacre::client {

struct ChannelPlace;

inline constexpr ProcessSlot kFirstPrivateChannel{2};  // behind the only process

struct PrivateChannel {
    ChannelExtent extent;  // bytes 0: there is none
    ChannelShape shape;
    ProcessSlot seat;
    std::uint32_t opened = 0;
    bool stays = false;
    char name[kChannelNameBytes] = {};
};

struct PrivateChannels {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    PrivateChannel all[kChannels];
    // Bells by channel and party (bells.cpp): descriptor + 1; 0: not made yet.
    std::atomic<int> bells[kChannels][kPartiesMost] = {};
    std::atomic<std::uint64_t> bell_inode = 0;

    class Lock {
    public:
        explicit Lock(PrivateChannels &channels) : mutex_(&channels.mutex) { pthread_mutex_lock(mutex_); }
        ~Lock() { pthread_mutex_unlock(mutex_); }
        Lock(const Lock &) = delete;
        Lock &operator=(const Lock &) = delete;

    private:
        pthread_mutex_t *mutex_;
    };
};

// As numacre_channel_open, numacre_channel_close and numacre_channel_remove. options: checked.
int open_private_channel(numacre_pool *pool, const char *name, const numacre_channel_options &options,
                         ChannelPlace &found);
void close_private_channel(numacre_pool *pool, const char *name);
int remove_private_channel(numacre_pool *pool, const char *name);
// With the pool. Async-signal-safe.
void close_private_bells(numacre_pool *pool);

}  // namespace numacre::client
