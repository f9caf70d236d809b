// A client that attaches as all do and then writes anything anywhere it can write, at full speed, until it is killed.
//   hostile_client RUNTIME_DIR POOL SEED TARGET
// TARGET: what it writes over, or "everything"; or "holes": what it punches into the pool's region, which its children
// have mapped as often as they may. Prints "attached" first.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "numacre/shm/attach_wire.hpp"
#include "numacre/shm/layout.hpp"
#include "numacre/shm/search.hpp"

namespace {

using namespace numacre;
using namespace numacre::engine;
using Env = ProductionEnv;
using Word = Env::Atomic<std::uint64_t>;

[[noreturn]] void give_up(const char *what) {
    std::perror(what);
    std::exit(2);
}

struct Attached {
    int connection = -1;
    wire::AttachReply reply;
    std::vector<int> fds;
};

void receive(Attached &attached) {
    alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(int) * wire::kMaxFds)> control{};
    iovec part{&attached.reply, sizeof attached.reply};
    msghdr message{};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    if (recvmsg(attached.connection, &message, 0) != static_cast<ssize_t>(sizeof attached.reply)) give_up("recvmsg");
    if (attached.reply.error != 0) {
        std::fprintf(stderr, "%s\n", attached.reply.message.data());
        std::exit(3);
    }
    for (cmsghdr *header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
        attached.fds.resize((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
        std::memcpy(attached.fds.data(), CMSG_DATA(header), attached.fds.size() * sizeof(int));
    }
}

std::unique_ptr<Attached> attach(const std::string &runtime_dir, const char *pool) {
    auto attached = std::make_unique<Attached>();
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::snprintf(address.sun_path, sizeof address.sun_path, "%s/attach.sock", runtime_dir.c_str());
    attached->connection = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    if (connect(attached->connection, reinterpret_cast<const sockaddr *>(&address), sizeof address) != 0)
        give_up("connect");
    wire::AttachRequest request;
    std::snprintf(request.pool_name.data(), request.pool_name.size(), "%s", pool);
    if (send(attached->connection, &request, sizeof request, 0) != static_cast<ssize_t>(sizeof request))
        give_up("send");
    receive(*attached);
    return attached;
}

Word *map(int fd, std::uint64_t bytes) {
    void *const address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (address == MAP_FAILED) give_up("mmap");
    return static_cast<Word *>(address);
}

struct Span {
    Word *words;
    std::uint64_t count;
};

class Vandal {
public:
    Vandal(const Attached &attached, std::uint64_t seed) : reply_(attached.reply), random_(seed) {
        pool_ = {map(attached.fds[0], reply_.pool_region_bytes), reply_.pool_region_bytes / sizeof(Word)};
        view_ = PoolView<Env>::at(pool_.words, reply_.process_slots, reply_.thread_slots);
        for (unsigned node = 0; node < reply_.numa_node_count; ++node) {
            const std::uint64_t bytes = reply_.nodes[node].node_region_bytes;
            nodes_.push_back({map(attached.fds[1 + 2 * node], bytes), bytes / sizeof(Word)});
            views_.push_back(NodeView<Env>::at(nodes_.back().words, reply_.geometry,
                                               NumaNode{static_cast<std::uint8_t>(node)}, reply_.thread_slots));
        }
    }

    void scribble(std::string_view target) {
        const std::size_t number = random_() % views_.size();
        const NodeView<Env> &node = views_[number];
        const Geometry &geometry = reply_.geometry;
        auto &slot = view_.threads[random_() % reply_.thread_slots];
        if (target == "index") {
            const unsigned layer = static_cast<unsigned>(random_() % (node.top_layer + 1));
            node.index[layer][random_() % geometry.index_entry_count(layer)].store(entry());
        } else if (target == "upper") {
            const unsigned layer = 1 + static_cast<unsigned>(random_() % node.top_layer);
            anything({node.upper[layer], node.word_count[layer]});
        } else if (target == "leaf") {
            anything({node.leaf, node.word_count[0]});
        } else if (target == "held bits") {
            // Takes frames away from blocks that are held, and nothing else: the word looks like any other.
            const unsigned layer = static_cast<unsigned>(random_() % (node.top_layer + 1));
            const std::uint64_t place = random_() % geometry.index_entry_count(layer);
            const IndexEntry held{node.index[layer][place].load()};
            const Block block{FrameIndex{place << geometry.index_granule(layer)}, held.order()};
            if (!held.is_held() || held.owner() == kOfflineOwner || layer_of(block.order) != layer) return;
            if (layer == 0) {
                node.leaf[block.base.value / kLeafFrames].fetch_and(
                    ~leaf::mask(block.base.value % kLeafFrames, block.order.value));
                return;
            }
            const unsigned child_order = word_order(layer - 1);
            const std::uint8_t group = upper::group(
                static_cast<unsigned>(block.base.value >> child_order) % kUpperFanOut, block.order.value - child_order);
            Word &word = node.upper[layer][block.base.value >> word_order(layer)];
            std::uint64_t bits = word.load();
            while (!word.compare_exchange_weak(bits, (bits & UpperWord::all_but_allocated(group)))) {
            }
        } else if (target == "hints") {
            const unsigned level = 2 + static_cast<unsigned>(random_() % (node.hint_levels - 1));
            anything({node.hint[level], geometry.word_count(level)});
        } else if (target == "intents") {
            slot.intent.store(random_() % 2 != 0 ? random_() : intent());
        } else if (target == "hint work") {
            slot.hint_work.store(random_());
        } else if (target == "thread owners") {
            slot.owner.store(random_() % 2 != 0 ? random_() : ThreadOwner{some_process()}.bits());
        } else if (target == "process records") {
            anything({reinterpret_cast<Word *>(view_.processes),
                      reply_.process_slots * sizeof(ProcessRecord<Env>) / sizeof(Word)});
        } else if (target == "pool header") {
            anything({pool_.words, sizeof(PoolHeader<Env>) / sizeof(Word)});
        } else if (target == "node header") {
            anything({nodes_[number].words, sizeof(NodeHeader<Env>) / sizeof(Word)});
        } else if (target == "futex words") {
            view_.header->wait_tickets.store(random_());
            view_.header->attention.store(random_());
        } else if (target == "counters") {
            anything({reinterpret_cast<Word *>(node.counters),
                      reply_.thread_slots * sizeof(ThreadCounters<Env>) / sizeof(Word)});
        } else if (target == "home words") {
            anything(
                {reinterpret_cast<Word *>(node.home), reply_.thread_slots * sizeof(HomeWords<Env>) / sizeof(Word)});
        } else if (target == "one word") {
            // The same word of the tree all the time: who else wants to change it has to come in between.
            node.upper[node.top_layer][0].store(random_());
        } else {
            anything(random_() % 4 == 0 ? pool_ : nodes_[number]);
        }
    }

private:
    void anything(Span span) {
        Word &word = span.words[random_() % span.count];
        switch (random_() % 4) {
            case 0:
                word.store(random_());
                return;
            case 1:
                word.store(word.load() ^ std::uint64_t{1} << (random_() % 64));
                return;
            case 2:
                word.store(random_() % 2 != 0 ? ~std::uint64_t{0} : 0);
                return;
            default:
                word.store(entry());
                return;
        }
    }

    ProcessSlot some_process() {
        return ProcessSlot{static_cast<std::uint16_t>(random_() % (reply_.process_slots + 2))};
    }
    Block some_block() {
        return {FrameIndex{random_() % reply_.geometry.frame_count},
                Order{static_cast<std::uint32_t>(random_() % (reply_.geometry.largest_order + 3))}};
    }
    // Nearly right.
    std::uint64_t entry() {
        return IndexEntry::owned(some_process(), some_block().order, 1 + random_() % 3, {}).bits() ^ random_() % 8;
    }
    std::uint64_t intent() {
        return Intent{static_cast<IntentKind>(random_() % 4), NumaNode{static_cast<std::uint8_t>(random_() % 3)},
                      some_block()}
            .bits();
    }

    const wire::AttachReply &reply_;
    std::mt19937_64 random_;
    Span pool_{};
    PoolView<Env> view_;
    std::vector<Span> nodes_;
    std::vector<NodeView<Env>> views_;
};

// The kernel makes whoever touches a page wait while a hole is punched there, which takes as long as there are mappings
// to be walked over. The daemon finds no damage: a thread slot of zeros is one that nobody has.
[[noreturn]] void punch_holes(const Attached &attached) {
    constexpr unsigned kChildren = 8;
    constexpr unsigned kMappingsMax = 65'000;  // vm.max_map_count is 65,530
    constexpr std::uint32_t kSlotsKept = 64;
    const wire::AttachReply &reply = attached.reply;
    const int fd = attached.fds[0];
    const auto view = PoolView<Env>::at(map(fd, reply.pool_region_bytes), reply.process_slots, reply.thread_slots);
    const auto offset = static_cast<std::uint64_t>(reinterpret_cast<const char *>(&view.threads[kSlotsKept]) -
                                                   reinterpret_cast<const char *>(view.header));
    const std::uint64_t page = 4096, first = (offset + page - 1) / page * page;
    view.header->thread_high_water.store(reply.thread_slots);  // all of them are looked at
    std::array<int, 2> mapped{};
    if (pipe(mapped.data()) != 0) give_up("pipe");
    for (unsigned i = 0; i < kChildren; ++i)
        if (fork() == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (unsigned n = 0; n < kMappingsMax; ++n)
                if (mmap(nullptr, reply.pool_region_bytes, PROT_READ, MAP_SHARED | MAP_NORESERVE, fd, 0) == MAP_FAILED)
                    break;
            if (write(mapped[1], "", 1) != 1) give_up("write");
            for (;;) pause();
        }
    for (unsigned i = 0; i < kChildren; ++i) {
        char byte = 0;
        if (read(mapped[0], &byte, 1) != 1) give_up("read");
    }
    std::puts("attached");
    std::fflush(stdout);
    for (;;)
        if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(first),
                      static_cast<off_t>(reply.pool_region_bytes - first)) != 0)
            give_up("fallocate");
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 5) {
        std::fprintf(stderr, "usage: hostile_client RUNTIME_DIR POOL SEED TARGET\n");
        return 2;
    }
    const auto attached = attach(argv[1], argv[2]);
    if (std::string_view(argv[4]) == "holes") punch_holes(*attached);
    Vandal vandal(*attached, std::strtoull(argv[3], nullptr, 0));
    std::puts("attached");
    std::fflush(stdout);
    for (;;) vandal.scribble(argv[4]);
}
