// The blocks of a burst: what may be sent, the list of a burst's messages, and the index entries of their blocks.
#pragma once

#include <atomic>
#include <cstdint>

#include "numacre/shm/buddy.hpp"
#include "numacre/shm/channel/words.hpp"

namespace numacre::engine {

// A block of a pool with several numa nodes.
struct BlockPlace {
    NumaNode numa_node;
    FrameIndex base;
    friend constexpr bool operator==(BlockPlace, BlockPlace) = default;
};

enum class SendResult : std::uint8_t {
    sent,
    full,       // nothing was done
    not_owned,  // `refused` is not a block of the sender's process, or named twice; nothing was done
    published,  // `refused` has been published: withdraw() it first; nothing was done
    closed,     // nothing was done
    scribbled,  // the channel's words are damaged; nothing was done
};

// The index entries of the blocks that messages name, in all numa nodes of the pool.
template <class Env, class Nodes>
class MessageBlocks {
public:
    explicit MessageBlocks(const Nodes &nodes) : nodes_(nodes) {}

    // Makes `to` the owner of the message's block, if its entry names `from` with this generation: a plain store, for
    // nobody but the caller may change the entry. moved: the message with the block's new generation. False: the block
    // is not so.
    bool move(Message message, ProcessSlot from, ProcessSlot to, PoolAge since, Message &moved) const {
        if (message.numa_node().value >= nodes_.count()) return false;
        const Buddy<Env> &buddy = nodes_.at(message.numa_node().value);
        const Block block = message.block();
        IndexEntry entry;
        if (!buddy.look(block, entry) || !entry.is_private(IndexEntry::private_to(from)) ||
            entry.order() != block.order || entry.generation() != message.generation())
            return false;
        moved = message.with_generation(next_generation(message.generation()));
        buddy.pass_on(block, entry, to, since);
        return true;
    }
    // Whether the block's entry names `owner` with the message's generation.
    bool is_owned(Message message, ProcessSlot owner) const {
        IndexEntry entry;
        return look(message, entry) && entry.is_private(IndexEntry::private_to(owner)) &&
               entry.generation() == message.generation();
    }
    // False: there is no such block (somebody has scribbled).
    bool look(Message message, IndexEntry &entry) const {
        return message.numa_node().value < nodes_.count() &&
               nodes_.at(message.numa_node().value).look(message.block(), entry) &&
               entry.order() == message.block().order;
    }
    // Lists the blocks with the generations that they have as the channel's.
    template <class Word>
    SendResult write_list(Word *list, ProcessSlot process, const BlockPlace *places, unsigned count,
                          unsigned &refused) const {
        for (refused = 0; refused < count; ++refused) {
            const BlockPlace place = places[refused];
            Block block;
            IndexEntry entry;
            if (place.numa_node.value >= nodes_.count() ||
                nodes_.at(place.numa_node.value).find_entry(place.base, block, entry) != Errc::ok ||
                entry.owner() != process)
                return SendResult::not_owned;
            if (entry.is_published()) return SendResult::published;
            // EDGE list-then-cell (release): who reads this finds that the segment is in its old cell no more.
            list[refused].store(Message{place.numa_node, block, next_generation(entry.generation())}.bits(),
                                std::memory_order_release);
        }
        return SendResult::sent;
    }

    // Makes `to` the owner of a listed block. False: the block is not the process's any more. It is named twice, or
    // another thread of the process has it freed.
    template <class Word>
    bool pass_listed(const Word &listed, ProcessSlot process, ProcessSlot to, PoolAge since) const {
        const Message message{listed.load(std::memory_order_relaxed)};
        IndexEntry entry;
        if (!look(message, entry) || !entry.is_private(IndexEntry::private_to(process)) ||
            next_generation(entry.generation()) != message.generation())
            return false;
        nodes_.at(message.numa_node().value).pass_on(message.block(), entry, to, since);
        return true;
    }

    const Nodes &nodes() const { return nodes_; }

private:
    Nodes nodes_;
};

}  // namespace numacre::engine
