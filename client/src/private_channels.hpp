// The channels of a private pool. Its own process is all that knows them: no daemon, and no death that leaves others.
#pragma once

#include <pthread.h>

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

}  // namespace numacre::client
