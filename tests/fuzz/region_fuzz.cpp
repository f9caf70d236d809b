// Any client may write anything into a pool's metadata at any time. An input is a list of such writes, and of what the
// daemon and well-behaved clients do in between: each has to come back soon and may read and write nothing but the
// regions.
//
// Every part of a region is an allocation of its own here, exactly as large as what is used of it: AddressSanitizer
// then also sees an access that leaves its part for what the layout puts behind it.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <span>
#include <utility>
#include <vector>

#include "numacre/shm/account.hpp"
#include "numacre/shm/audit.hpp"
#include "numacre/shm/chunks.hpp"
#include "numacre/shm/fit.hpp"
#include "numacre/shm/format.hpp"
#include "numacre/shm/idle_caches.hpp"
#include "numacre/shm/recovery.hpp"
#include "numacre/shm/snapshot.hpp"
#include "numacre/shm/validate.hpp"
#include "support/actor.hpp"

namespace {

using namespace numacre;
using namespace numacre::engine;
using Env = ProductionEnv;
using Word = Env::Atomic<std::uint64_t>;

constexpr std::uint32_t kProcesses = 5;  // slot 0 is the daemon's
constexpr std::uint32_t kThreads = 7;
constexpr unsigned kNumaNodes = 2;
constexpr std::uint64_t kInstance = 0x1234'5678;

void require(bool holds) {
    if (!holds) std::abort();
}

// Page-aligned zeroed memory between AddressSanitizer's red zones.
class Part {
public:
    explicit Part(std::uint64_t bytes) : bytes_(bytes), memory_(::operator new(bytes, std::align_val_t{kPageBytes})) {
        std::memset(memory_, 0, bytes_);
    }
    Part(Part &&other) noexcept : bytes_(other.bytes_), memory_(std::exchange(other.memory_, nullptr)) {}
    Part &operator=(Part &&) = delete;
    ~Part() { ::operator delete(memory_, std::align_val_t{kPageBytes}); }

    template <class T>
    T *as() const {
        return static_cast<T *>(memory_);
    }
    std::uint64_t words() const { return bytes_ / sizeof(Word); }
    void keep() { pristine_.assign(as<std::byte>(), as<std::byte>() + bytes_); }
    void restore() { std::memcpy(memory_, pristine_.data(), bytes_); }

private:
    std::uint64_t bytes_;
    void *memory_;
    std::vector<std::byte> pristine_;
};

class Pool {
public:
    Pool(std::uint64_t frame_bytes, std::uint64_t largest_bytes, std::uint64_t chunks)
        : geometry_(make_geometry(frame_bytes, largest_bytes, largest_bytes * chunks)) {
        const auto layout = PoolLayout<Env>::of(kProcesses, kThreads);
        const Part whole(layout.region_bytes);
        format_pool_region<Env>(whole.as<void>(), "fuzzed", kInstance, geometry_, kNumaNodes, kProcesses, kThreads);
        header_ = add(whole, 0, sizeof(PoolHeader<Env>));
        view_ = {header_,
                 add(whole, layout.accounts, kAccounts * sizeof(Account<Env>)),
                 add(whole, layout.processes, kProcesses * sizeof(ProcessRecord<Env>)),
                 add(whole, layout.threads, kThreads * sizeof(ThreadSlot<Env>)),
                 add(whole, layout.names, sizeof(NameDirectory<Env>)),
                 add(whole, layout.holds, kThreads * sizeof(HoldWords<Env>)),
                 kProcesses,
                 kThreads};
        for (unsigned node = 0; node < kNumaNodes; ++node) add_numa_node(NumaNode{static_cast<std::uint8_t>(node)});
        for (unsigned thread = 1; thread < kThreads; ++thread)
            actors_.push_back(test::seat_actor(view_, thread, 1 + thread % (kProcesses - 1)));
        header_->seats.store(kProcesses);
        settle();
        require_sound();
        for (Part &part : parts_) part.keep();
    }

    // Nothing was scribbled: nothing may be found.
    void require_sound() const {
        require(count_impossible_thread_slots<Env>(view_, nodes_) == 0);
        for (const NodeView<Env> &node : nodes_) {
            require(Audit<Env>(view_, node).run() == 0);
            NodeSnapshot snapshot;
            scan_node<Env>(node, snapshot, {});
            require(snapshot.damaged_entries == 0 && snapshot.lost_blocks == 0 && snapshot.unheld_count == 0);
        }
    }

    void restore() {
        for (Part &part : parts_) part.restore();
    }

    const Geometry &geometry() const { return geometry_; }
    const PoolView<Env> &view() const { return view_; }
    std::span<const NodeView<Env>> nodes() const { return nodes_; }
    const NodeView<Env> &node(unsigned number) const { return nodes_[number % kNumaNodes]; }
    const void *node_header(unsigned number) const { return node_headers_[number % kNumaNodes]; }
    const std::vector<Part> &parts() const { return parts_; }
    Actor actor(unsigned number) const { return actors_[number % actors_.size()]; }

private:
    // A copy of a piece of a region, to be used in its place.
    struct AnyPointer {
        const Part &part;
        template <class T>
        operator T *() const {
            return part.as<T>();
        }
    };
    AnyPointer add(const Part &whole, std::uint64_t from, std::uint64_t bytes) {
        Part &part = parts_.emplace_back(bytes);
        std::memcpy(part.as<void>(), whole.as<std::byte>() + from, bytes);
        return {part};
    }

    void add_numa_node(NumaNode number) {
        const auto layout = NodeLayout<Env>::of(geometry_, kThreads);
        const Part whole(layout.region_bytes);
        format_node_region<Env>(whole.as<void>(), geometry_, number, kInstance, kThreads);
        auto view = NodeView<Env>::at(whole.as<void>(), geometry_, number, kThreads);
        node_headers_.push_back(add(whole, 0, sizeof(NodeHeader<Env>)));
        const auto words = [&](std::uint64_t offset, std::uint64_t count) {
            return add(whole, offset, count * sizeof(Word));
        };
        view.home = add(whole, layout.home, kThreads * sizeof(HomeWords<Env>));
        view.counters = add(whole, layout.counters, kThreads * sizeof(ThreadCounters<Env>));
        view.leaf = words(layout.leaf, geometry_.word_count(0));
        for (unsigned layer = 1; layer <= view.top_layer; ++layer)
            view.upper[layer] = words(layout.upper[layer], geometry_.word_count(layer));
        for (unsigned level = 2; level <= view.hint_levels; ++level)
            view.hint[level] = words(layout.hint[level], geometry_.word_count(level));
        // Of whole words, see check(): the layout has room for them, its parts are whole pages.
        for (unsigned layer = 0; layer <= view.top_layer; ++layer) {
            const std::uint64_t entries =
                geometry_.word_count(layer) << word_order(layer) >> geometry_.index_granule(layer);
            view.index[layer] = words(layout.index[layer], entries);
            view.era[layer] = add(whole, layout.era[layer], entries * sizeof(NodeView<Env>::EraWord));
        }
        nodes_.push_back(view);
    }

    // Some of everything: blocks of all orders held by everybody, some published, some cached, some free again; a part
    // offline.
    void settle() {
        for (const NodeView<Env> &node : nodes_) {
            Chunks<Env> chunks{node, view_};
            for (std::uint64_t chunk = 0; chunk < geometry_.chunk_count(); ++chunk)
                if (chunk % 4 != 3) {
                    require(chunks.bring_online(chunk));
                    header_->online_frames.fetch_add(geometry_.chunk_frames());
                }
            Buddy<Env> buddy{node, view_};
            unsigned turn = 0;
            for (unsigned order = 0; order <= geometry_.largest_order; ++order)
                for (unsigned i = 0; i < 3; ++i, ++turn) {
                    const Order wanted{order};
                    Block block;
                    IndexEntry entry;
                    if (buddy.allocate(actor(turn), wanted, {}, block) != Errc::ok) continue;
                    if (turn % 3 == 0) require(buddy.free(actor(turn), block.base, block) == Errc::ok);
                    if (turn % 3 == 1 && buddy.find_entry(block.base, block, entry) == Errc::ok)
                        (void)buddy.publish(block, entry);
                }
            std::array<FrameIndex, 5> bases;
            (void)buddy.allocate_many(actor(turn), Order{0}, BlockState::cached, {}, bases.data(), bases.size());
        }
    }

    Geometry geometry_;
    std::vector<Part> parts_;
    PoolHeader<Env> *header_ = nullptr;
    PoolView<Env> view_;
    std::vector<NodeView<Env>> nodes_;
    std::vector<const void *> node_headers_;
    std::vector<Actor> actors_;
};

// What the input says; zeros when it is used up.
class Input {
public:
    Input(const std::uint8_t *data, std::size_t size) : data_(data), left_(size) {}
    bool empty() const { return left_ == 0; }
    std::uint8_t byte() {
        if (left_ == 0) return 0;
        --left_;
        return *data_++;
    }
    std::uint64_t number(unsigned bytes) {
        std::uint64_t value = 0;
        while (bytes-- > 0) value = value << 8 | byte();
        return value;
    }

private:
    const std::uint8_t *data_;
    std::size_t left_;
};

class Play {
public:
    Play(Pool &pool, Input &input) : pool_(pool), input_(input) {}

    void step() {
        const std::uint8_t what = input_.byte();
        // Half of all steps write.
        if (what < 128)
            scribble(what);
        else if (what < 192)
            daemon(what);
        else
            client(what);
    }

    // What the daemon does sooner or later, whatever was written.
    void finish() {
        scan();
        audit();
        for (unsigned process = 1; process < kProcesses; ++process) recover(process);
        scan();
    }

private:
    // --- what a hostile client writes --------------------------------------------------------------------------------

    void scribble(unsigned how) {
        const std::vector<Part> &parts = pool_.parts();
        const Part &part = parts[input_.byte() % parts.size()];
        // Where there is little, it is at the beginning.
        const std::uint64_t place = (how & 64) != 0 ? input_.byte() % 48 : input_.number(2);
        Word &word = part.as<Word>()[place % part.words()];
        switch (how % 9) {
            case 0:
                word.store(input_.number(8));
                return;
            case 1:
                word.store(word.load() ^ std::uint64_t{1} << (input_.byte() % 64));
                return;
            case 2:
                word.store((input_.byte() & 1) != 0 ? ~std::uint64_t{0} : 0);
                return;
            case 3:
                entry();
                return;
            case 4:
                intent();
                return;
            case 5:
                scribble_tree();
                return;
            case 6:
                seat();
                return;
            case 7:
                scribble_limit();
                return;
            default:
                word.store(word.load() + (input_.byte() & 1) * 2 - 1);
                return;
        }
    }

    Block some_block() {
        const Order order{static_cast<std::uint32_t>(input_.byte() % 32)};
        return {FrameIndex{input_.number(3)}, order};
    }

    // Likely to be taken for a real one; somewhere, or where a thread is at work.
    void entry() {
        const NodeView<Env> &node = pool_.node(input_.byte());
        const Block block = some_block();
        const std::uint64_t bits = input_.byte() % 4 | std::uint64_t{input_.byte()} % 2 << 2 |
                                   std::uint64_t{block.order.value} << 3 | input_.number(2) % 0x10000 << 8 |
                                   input_.number(1) << 24;
        const unsigned layer = input_.byte() % (node.top_layer + 2);
        const Block busy = Intent{pool_.view().threads[input_.byte() % kThreads].intent.load()}.block();
        if (layer <= node.top_layer)
            node.index[layer][block.base.value % pool_.geometry().index_entry_count(layer)].store(bits);
        else if (node.contains(busy))
            node.index_entry(busy).store(bits);
    }

    void intent() {
        auto &slot = pool_.view().threads[input_.byte() % kThreads];
        const auto kind = static_cast<IntentKind>(input_.byte() % 4);
        const NumaNode numa_node{static_cast<std::uint8_t>(input_.byte() % 4)};
        if ((input_.byte() & 1) != 0)
            slot.intent.store(Intent{kind, numa_node, some_block()}.bits());
        else
            slot.hint_work.store(HintWork{0}.begun(input_.byte() % 16, input_.number(3)).bits());
    }

    void scribble_tree() {
        const NodeView<Env> &node = pool_.node(input_.byte());
        const unsigned layer = input_.byte() % (node.top_layer + 1);
        Word *const words = layer == 0 ? node.leaf : node.upper[layer];
        words[input_.number(2) % node.word_count[layer]].store(input_.number(8));
    }

    void seat() {
        const unsigned process = input_.byte();
        pool_.view().threads[input_.byte() % kThreads].owner.store(input_.number(2) << 16 | process);
        pool_.view().processes[process % kProcesses].state.store(input_.byte() % 5);
        if (process % 8 == 7) pool_.view().header->thread_high_water.store(input_.number(2));
    }

    // What is compared when somebody wants more: who counts, limits, counts, and where to look for them.
    void scribble_limit() {
        const PoolView<Env> &view = pool_.view();
        const unsigned which = input_.byte();
        auto &record = view.processes[which / 16 % kProcesses];
        auto &account = view.accounts[input_.byte() % kAccounts];
        const std::array<Word *, 11> words{&view.header->accounting,
                                           &view.header->seats,
                                           &view.header->online_frames,
                                           &account.quota_frames,
                                           &account.reserved_frames,
                                           &record.quota_frames,
                                           &record.reserved_frames,
                                           &record.account,
                                           &record.held,
                                           &record.on_the_way,
                                           &view.processes[kDaemonProcess.value].held};
        const unsigned how = input_.byte();
        const std::uint64_t value = how % 2 != 0 ? input_.number(8) : input_.number(2);
        words[which % 16 % words.size()]->store(how % 4 == 2 ? ~value : value);
    }

    // --- what the daemon does ----------------------------------------------------------------------------------------

    void daemon(unsigned what) {
        const NodeView<Env> &node = pool_.node(input_.byte());
        Chunks<Env> chunks{node, pool_.view()};
        const std::uint64_t chunk = input_.byte() % (pool_.geometry().chunk_count() + 1);
        switch (what % 15) {
            case 0:
                scan();
                return;
            case 1:
                occupancy(node);
                return;
            case 2: {
                std::array<OwnerUsage, kProcesses> usage{};
                scan_holders<Env>(node, FrameIndex{chunk << pool_.geometry().largest_order},
                                  pool_.geometry().chunk_frames(), usage);
                return;
            }
            case 3:
            case 4:
                recover(1 + input_.byte() % (kProcesses - 1));
                return;
            case 5:
                resume();
                return;
            case 6:
                (void)chunks.bring_online(chunk);
                return;
            case 7:
                (void)chunks.try_take_offline(chunk);
                return;
            case 8:
                chunks.set_drain(chunk, (input_.byte() & 1) != 0);
                return;
            case 9:
                if (chunk < pool_.geometry().chunk_count())
                    require(chunks.used_frames(chunk) <= pool_.geometry().chunk_frames());
                (void)chunks.is_offline(chunk);
                return;
            case 10:
                validate();
                return;
            case 11:
                limit();
                return;
            case 12:
                count();
                return;
            case 13:
                gather();
                return;
            default:
                audit();
                return;
        }
    }

    void scan() {
        const std::uint32_t threads = pool_.view().threads_in_use_bound();
        require(threads <= kThreads);
        for (const NodeView<Env> &node : pool_.nodes()) {
            std::array<OwnerUsage, kProcesses> usage{};
            NodeSnapshot snapshot;
            scan_node<Env>(node, snapshot, usage);
            require(snapshot.free_frames + snapshot.used_frames + snapshot.offline_frames <= snapshot.capacity_frames);
            (void)fold_counters(node, threads);
        }
    }

    std::uint64_t walked_seen_ = 0;
    // What threads cache and do not use, whoever says so.
    void gather() {
        const auto node_at = [this](std::uint32_t node) -> const NodeView<Env> & { return pool_.nodes()[node]; };
        const auto pass_barrier = [this] { return (input_.byte() & 1) != 0; };
        pool_.view().header->attention.fetch_add(Attention::kPressureStep);
        (void)take_back_idle_caches(pool_.view(), kNumaNodes, node_at, Actor{kDaemonThread, kDaemonProcess},
                                    input_.number(8), walked_seen_, pass_barrier);
    }

    void occupancy(const NodeView<Env> &node) {
        std::vector<CellUsage> cells(1 + input_.byte() % 70);
        scan_occupancy<Env>(node, 1 + input_.number(2), cells);
        for (const CellUsage &cell : cells) require(cell.used_frames + cell.offline_frames <= cell.frames);
    }

    void recover(unsigned process) {
        pool_.view().processes[process].state.store(static_cast<std::uint64_t>(ProcessState::dead));
        Recovery<Env> recovery{pool_.view(), pool_.nodes()};
        Reclaimed total;
        ThreadSlotIndex blocked_by;
        const auto step = recovery.recover_process(ProcessSlot{static_cast<std::uint16_t>(process)}, total, blocked_by);
        require(total.frames <= kNumaNodes * pool_.geometry().frame_count);
        if (step == RecoveryStep::blocked) require(blocked_by.value < kThreads);
    }

    void resume() {
        Recovery<Env> recovery{pool_.view(), pool_.nodes()};
        ThreadSlotIndex blocked_by;
        (void)recovery.resume(blocked_by);
    }

    void validate() {
        const ExpectedRegion expected{pool_.geometry(), kInstance,
                                      NodeLayout<Env>::of(pool_.geometry(), kThreads).region_bytes};
        (void)validate_pool_region<Env>(pool_.view().header, expected, kProcesses, kThreads);
        for (unsigned node = 0; node < kNumaNodes; ++node)
            (void)validate_node_region<Env>(pool_.node_header(node), expected, pool_.node(node).numa_node, kThreads);
    }

    // A quota and a reservation of a client, of a user or of the pool, or none; and what is to be done for all of them.
    void limit() {
        const PoolView<Env> &view = pool_.view();
        const unsigned whose = input_.byte();
        const std::uint64_t most = 2 * kNumaNodes * pool_.geometry().frame_count;
        const std::uint64_t quota = input_.number(2) % most, reserved = input_.number(2) % most;
        if (whose % 2 != 0) {
            auto &record = view.processes[1 + whose / 2 % (kProcesses - 1)];
            record.quota_frames.store(quota);
            record.reserved_frames.store(reserved);
            record.account.store(whose / 8 % 4);
        } else {
            auto &account = view.accounts[whose / 2 % 4];
            account.quota_frames.store(quota);
            account.reserved_frames.store(reserved);
        }
        const std::uint64_t accounting = (std::uint64_t{1} << input_.byte() % 4) - 1;  // each needs those before it
        if ((accounting & Accounting::kCount) != 0 && !is_counting(view))
            for (unsigned process = 1; process < kProcesses; ++process) view.processes[process].held.store(0);
        view.header->accounting.store(accounting | accounting_of(static_cast<Fit>(input_.byte() % 3)));
    }

    // Corrects what the clients count by a scan, and adds up what is promised to them.
    void count() {
        const PoolView<Env> &view = pool_.view();
        std::array<OwnerUsage, kProcesses> usage{};
        NodeSnapshot snapshot;
        for (const NodeView<Env> &node : pool_.nodes()) scan_node<Env>(node, snapshot, usage);
        Holdings counted, found;
        const std::uint32_t seats = view.seats_bound();
        require(seats <= kProcesses);
        for (std::uint32_t slot = kDaemonProcess.value + 1; slot < seats; ++slot) {
            const auto &record = view.processes[slot];
            auto &held = view.processes[slot].held;
            std::uint64_t bits = held.load();
            const HeldFrames seen{bits};
            counted.add(record.account.load(), seen.frames(), record.reserved_frames.load());
            found.add(record.account.load(), usage[slot].frames, record.reserved_frames.load());
            const HeldFrames now =
                seen.is_counted() ? seen.changed_to(usage[slot].frames) : HeldFrames::of(usage[slot].frames);
            require(held.compare_exchange_strong(bits, now.bits()));
            require(now.is_counted() && now.frames() == usage[slot].frames);
        }
        require(found.all() <= kNumaNodes * pool_.geometry().frame_count);
        std::uint64_t of_accounts = 0;
        for (std::size_t at = 0; at < kAccounts; ++at) {
            const std::uint64_t reserved = view.accounts[at].reserved_frames.load();
            of_accounts += found.of(at);
            (void)counted.unused(at, reserved);
            (void)found.unused(at, reserved);
        }
        require(of_accounts == found.all());
    }

    void audit() {
        const std::span<const NodeView<Env>> nodes = pool_.nodes();
        (void)count_impossible_thread_slots<Env>(pool_.view(), nodes);
        for (const NodeView<Env> &node : nodes) {
            (void)Audit<Env>(pool_.view(), node).run();
            NodeSnapshot snapshot;
            scan_node<Env>(node, snapshot, {});
            for (std::size_t i = 0; i < snapshot.unheld_count; ++i)
                (void)is_taken_by_nobody(pool_.view(), node, snapshot.unheld[i]);
        }
    }

    // --- what well-behaved clients do --------------------------------------------------------------------------------

    void client(unsigned what) {
        const NodeView<Env> &node = pool_.node(input_.byte());
        const unsigned who = input_.byte();
        const Actor actor = pool_.actor(who);
        const Order order{static_cast<std::uint32_t>(input_.byte() % (pool_.geometry().largest_order + 2))};
        Buddy<Env> buddy{node, pool_.view()};
        Block block;
        IndexEntry entry;
        std::array<FrameIndex, 40> bases{};
        switch (what % 12) {
            case 0:
            case 1:
                if (buddy.allocate(actor, order, {}, block) == Errc::ok) check(node, block);
                return;
            case 2:
                (void)buddy.free(actor, FrameIndex{input_.number(2)}, block);
                return;
            case 3: {
                const std::uint64_t bits = input_.byte() % 2 != 0 ? input_.number(8) : reference();
                (void)buddy.take(actor, Reference{bits}, {}, block);
                return;
            }
            case 4: {
                if (order.value > kLeafOrder || order.value > pool_.geometry().largest_order) return;
                const auto state = (input_.byte() & 1) != 0 ? BlockState::cached : BlockState::owned;
                const unsigned got = buddy.allocate_many(actor, order, state, {}, bases.data(), bases.size());
                for (unsigned i = 0; i < got; ++i) check(node, Block{bases[i], order});
                if (input_.byte() % 2 != 0) (void)buddy.free_many(actor, state, bases.data(), got);
                return;
            }
            case 5:
                for (FrameIndex &base : bases) base = FrameIndex{input_.number(2)};
                (void)buddy.free_many(actor, (input_.byte() & 1) != 0 ? BlockState::cached : BlockState::owned,
                                      bases.data(), bases.size());
                return;
            case 6:
                if (buddy.find_entry(FrameIndex{input_.number(2)}, block, entry) == Errc::ok) {
                    (void)buddy.publish(block, entry);
                    (void)buddy.withdraw(block, entry);
                }
                return;
            case 7:
                (void)buddy.find_covering(FrameIndex{input_.number(2) % pool_.geometry().frame_count}, block);
                return;
            case 8:
            case 9:
                // The daemon has a seat like any other.
                allocate_regulated(node, who % 8 == 7 ? Actor{kDaemonThread, kDaemonProcess} : actor, order);
                return;
            case 10:
                if (order.value <= kLeafOrder && order.value <= pool_.geometry().largest_order)
                    refill_regulated(node, actor, order);
                return;
            default:
                give_regulated(node, actor);
                return;
        }
    }

    // As client/src/quota.cpp, allocate.cpp and cache.cpp do it while there are limits, or blocks are chosen: charge,
    // look, claim what was seen, or whatever there is.

    bool charge_frames(ProcessSlot process, std::uint64_t frames) {
        const PoolView<Env> &view = pool_.view();
        auto &word = view.processes[process.value].held;
        std::uint64_t bits = word.load();
        if (!HeldFrames{bits}.is_counted()) {
            OwnFrames own{process};
            for (const NodeView<Env> &node : pool_.nodes()) walk_all(node, own);
            require(own.frames <= kNumaNodes * pool_.geometry().frame_count);
            require(word.compare_exchange_strong(bits, HeldFrames::of(own.frames).bits()));
        }
        const std::uint64_t before = HeldFrames{word.load()}.frames();
        const bool is_granted = charge(view, process, frames).answer == Admission::granted;
        const HeldFrames after{word.load()};
        require(after.is_counted());
        if (before + frames == HeldFrames::of(before + frames).frames())
            require(after.frames() == (is_granted ? before + frames : before));
        return is_granted;
    }

    void uncharge_frames(ProcessSlot process, std::uint64_t frames) {
        const auto &word = pool_.view().processes[process.value].held;
        const HeldFrames before{word.load()};
        remove_held(pool_.view(), process, frames);
        const HeldFrames after{word.load()};
        require(after.is_counted() == before.is_counted() && after.frames() <= before.frames());
    }

    Fit some_fit() {
        const unsigned said = input_.byte() % 4;
        if (said == 1) return Fit::compact;
        if (said == 2) return Fit::best;
        const Fit fit = fit_of(pool_.view().header->accounting.load());
        require(fit <= Fit::best);
        return fit;
    }

    bool look(const NodeView<Env> &node, Order order, Fit fit, Block &block) {
        if (fit == Fit::nearby || !FitLook{node, order, fit}.find(++looks_, block)) return false;
        require(block.order == order && (block.base.value & (order.frames() - 1)) == 0);
        check(node, block);
        return true;
    }

    void allocate_regulated(const NodeView<Env> &node, Actor actor, Order order) {
        Buddy<Env> buddy{node, pool_.view()};
        const Fit fit = some_fit();
        const bool is_charged = is_counting(pool_.view());
        if (is_charged && !charge_frames(actor.process, order.frames())) return;
        Block block;
        bool is_ours = look(node, order, fit, block) && buddy.allocate_at(actor, block, {});
        if (is_ours) {
            require(node.contains(block));
            require(IndexEntry{node.index_entry(block).load()}.owner() == actor.process);
        } else {
            is_ours = buddy.allocate(actor, order, {}, block) == Errc::ok;
            if (is_ours) check(node, block);
        }
        if (!is_ours && is_charged) uncharge_frames(actor.process, order.frames());
    }

    void refill_regulated(const NodeView<Env> &node, Actor actor, Order order) {
        Buddy<Env> buddy{node, pool_.view()};
        std::array<FrameIndex, 32> bases{};
        const Fit fit = some_fit();
        const auto wanted = 1 + input_.byte() % static_cast<unsigned>(bases.size());
        const bool is_charged = is_counting(pool_.view());
        if (is_charged && !charge_frames(actor.process, wanted * order.frames())) return;
        Block block;
        if (look(node, order, fit, block))
            node.home[actor.thread.value].word[order.value].store(block.base.value / kLeafFrames + 1);
        const unsigned got = buddy.allocate_many(actor, order, BlockState::cached, {}, bases.data(), wanted);
        require(got <= wanted);
        for (unsigned i = 0; i < got; ++i) check(node, Block{bases[i], order});
        if (is_charged && got != wanted) uncharge_frames(actor.process, (wanted - got) * order.frames());
    }

    // Frees a block, or takes one from another: what it counts changes with it.
    void give_regulated(const NodeView<Env> &node, Actor actor) {
        const PoolView<Env> &view = pool_.view();
        Buddy<Env> buddy{node, view};
        const FrameIndex base{input_.number(2) % pool_.geometry().frame_count};
        Block block;
        if (input_.byte() % 2 != 0) {
            if (buddy.free(actor, base, block) == Errc::ok && is_counting(view))
                uncharge_frames(actor.process, block.order.frames());
            return;
        }
        IndexEntry entry;
        if (buddy.find_entry(base, block, entry) != Errc::ok) return;
        const Reference reference = buddy.publish(block, entry);
        const ProcessSlot giver = entry.owner();
        if (buddy.take(actor, reference, {}, block) != Errc::ok || !is_counting(view)) return;
        if (giver == actor.process || giver.value >= view.process_slots) return;
        add_held(view, actor.process, block.order.frames());
        uncharge_frames(giver, block.order.frames());
    }

    std::uint64_t reference() {
        const Block block = some_block();
        return pool_.node(0).reference_format.reference(NumaNode{0}, block, input_.byte()).bits();
    }

    // A scribbled word may promise frames that there are not, but none beyond the word itself: the client's address
    // space is reserved as far as that (client/src/regions.cpp).
    void check(const NodeView<Env> &node, Block block) const {
        const std::uint64_t end = node.word_count[node.top_layer] << word_order(node.top_layer);
        require(block.base.value + block.order.frames() <= end);
    }

    Pool &pool_;
    Input &input_;
    std::uint64_t looks_ = 0;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    static std::array<std::unique_ptr<Pool>, 3> pools{
        std::make_unique<Pool>(4096, 4096 << 10, 3),  // two upper layers, the top one nearly empty
        std::make_unique<Pool>(4096, 4096 << 9, 9),   // one upper layer, one more word than fits into a parent
        std::make_unique<Pool>(4096, 4096 << 3, 29),  // blocks smaller than a leaf word, the last word cut short
    };
    Input input(data, size);
    Pool &pool = *pools[input.byte() % pools.size()];
    pool.restore();
    Play play(pool, input);
    while (!input.empty()) play.step();
    play.finish();
    return 0;
}
