// One pool as the daemon keeps it: its regions and its engine, and the parts that know who sits in it (ClientTable),
// who may hold what (PoolLimits), what clients have been told (PoolRecords), what is in use (PoolScan), what is damaged
// (Integrity), how much is free (FreeMemoryWatch), what has a name (Names) and what the dead have left (Quarantine).
// Each part has its own lock, or says whose it needs; here stands what takes several of them.
//
// Locks, in the order in which they are taken: change_mutex_, reserve_mutex_, the records' mutex, that of one other
// part. channels_mutex_ is taken with none of them held, and before that of a part.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/thread_safety.hpp"
#include "engine.hpp"
#include "memory/hugepages.hpp"
#include "memory/ledger.hpp"
#include "memory/node_memory.hpp"
#include "memory/pins.hpp"
#include "memory/topology.hpp"
#include "numacre/shm/channel/broadcast_layout.hpp"
#include "numacre/shm/channel/layout.hpp"
#include "numacre/shm/presence.hpp"
#include "numacre/shm/recovery.hpp"
#include "os/process_info.hpp"
#include "os/worker.hpp"
#include "pool/cache_ages.hpp"
#include "pool/channel_wish.hpp"
#include "pool/client.hpp"
#include "pool/client_table.hpp"
#include "pool/description.hpp"
#include "pool/free_memory_watch.hpp"
#include "pool/held_counts.hpp"
#include "pool/integrity.hpp"
#include "pool/look.hpp"
#include "pool/names.hpp"
#include "pool/oldest_blocks.hpp"
#include "pool/pool_limits.hpp"
#include "pool/pool_manager.hpp"
#include "pool/pool_records.hpp"
#include "pool/pool_scan.hpp"
#include "pool/quarantine.hpp"
#include "spec/pool_attributes.hpp"

namespace numacre::daemon {

class ManagedPool {
public:
    // Populates what the spec wants online, through its worker; may take long. Never from the event loop.
    static Answer<std::shared_ptr<ManagedPool>> create(const PoolSpec &spec, Topology &topology, Hugepages &hugepages);
    // Adopts a pool that an earlier daemon has left, with its clients in their seats. files: descriptors by the names
    // of kept_files(); none may be missing. They are to be finished or reaped by who calls. Damage of the headers marks
    // the pool.
    static Answer<std::shared_ptr<ManagedPool>> adopt(PoolLedger ledger, std::map<std::string, Fd> files,
                                                      Topology &topology, Hugepages &hugepages);
    ManagedPool(const ManagedPool &) = delete;
    ManagedPool &operator=(const ManagedPool &) = delete;

    // Its own: see "the worker's thread only" below.
    Worker &worker() { return worker_; }
    // For what the pool tells its clients, and asks them: seats, news, presence. Not on worker(): a step of a growth
    // may take seconds, and a client that attaches does not wait for that.
    Worker &record_worker() { return record_worker_; }
    // On a thread that may wait for the worker: what the pool's policy wants. Dropped once the workers have ended. The
    // worker's thread only.
    void post_sizing(std::function<void()> job);
    // Posted jobs run; jobs that are posted later are dropped. Waits. Before what the jobs use ends; not from them.
    void end_workers();

    // Any thread, the event loop's, too: from here to the next such line nothing touches shared memory, nor waits for
    // who does. A client can make the kernel wait at any such access: it maps the pool's files many thousand times and
    // punches holes into them.
    const std::string &name() const { return description_.name(); }
    std::shared_ptr<const Description::Version> description() const { return description_.now(); }
    const Geometry &geometry() const { return geometry_; }
    std::uint32_t process_slots() const { return process_slots_; }
    std::uint32_t thread_slots() const { return thread_slots_; }
    std::uint64_t instance_id() const { return ledger_.instance_id(); }
    const MetadataRegion &pool_region() const { return pool_region_; }
    std::size_t numa_node_count() const { return nodes_.size(); }
    bool has(NumaNode numa_node) const { return numa_node.value < nodes_.size(); }
    NodeMemory &node_memory(NumaNode numa_node) { return *nodes_[numa_node.value]; }
    PoolLedger &ledger() { return ledger_; }
    // Descriptors by name that have to be kept for adopt().
    std::map<std::string, int> kept_files() const;
    static std::vector<std::string> file_names(std::uint32_t numa_nodes);
    static constexpr const char *kLedgerFile = "ledger";

    void set_client_state(ProcessSlot slot, ClientState state) { clients_.set_state(slot, state); }
    // The daemon before us had lost sight of its process, or we have found out more about it.
    void set_peer(const Client &client, const Peer &peer) { clients_.set_peer(client, peer); }
    // The kernel has said that the process is gone, or it has told us that it has let go. From now on it counts as dead
    // for a daemon after us; reclaim() and vacate() follow.
    void begin_departure(ProcessSlot slot, Departure departure) { clients_.begin_departure(slot, departure); }
    std::vector<Client> client_table() const { return clients_.all(); }  // channels as well
    bool has_clients() const { return clients_.figures().clients != 0; }
    std::optional<Client> client_at(ProcessSlot slot) const { return clients_.at(slot); }
    std::optional<Client> find_client(std::uint32_t client_id) const { return clients_.find(client_id); }
    PoolLimits::OfClient limits_of(const Client &client) const { return limits_.of(client); }
    // A soft quota, a low watermark or a policy of size that look_at_use() would have to see to, or what clients count
    // to be compared.
    bool has_limits_to_watch() const;
    // A size that the pool's policy wants a numa node to have, instead of another. Each is told once, then the while
    // that it takes begins anew.
    struct Wish {
        NumaNode numa_node;
        std::uint64_t from_bytes = 0, to_bytes = 0;
    };
    std::vector<Wish> take_autosize_wishes();
    // Findings of scans about soft quotas and the low watermark since the last call: to be published.
    std::vector<Event> take_news();
    bool is_corrupt() const { return integrity_.is_damaged(); }
    // Once, after the pool has been found to be damaged: the reason.
    std::optional<std::string> take_news_of_damage() { return integrity_.take_news(); }
    // No new clients from now on. False: there are clients and force is not set, nothing has changed. Or it is closing
    // already.
    bool close_door(bool force) { return clients_.close_door(force); }
    void open_door() { clients_.open_door(); }
    std::vector<NameEntry> names() const { return names_.list(); }
    void count_hugepages(Hugepages::Pages &pages) const {
        for (const auto &memory : nodes_) memory->count_hugepages(pages);
    }
    // With resize_mutex held: nothing is made of it any more.
    bool is_deleted() const { return is_deleted_.load(std::memory_order_relaxed); }  // relaxed: the mutex orders it
    // On the pool's own worker, once for all who ask meanwhile: it looks at every thread slot, as many as there are,
    // and at words that clients write.
    static void wake_waiters_soon(const std::shared_ptr<ManagedPool> &pool);
    // How long a worker of the pool that clients need has been at the job in hand.
    std::chrono::milliseconds busy_for() const { return std::max(worker_.busy_for(), record_worker_.busy_for()); }

    // Any thread but the event loop's, from here on.

    // Gives the process a slot and makes its record active. too_many_clients: there is none, or none for observers. The
    // record worker's thread only, as all up to tell_clients().
    Answer<Client> seat(std::uint32_t client_id, Peer peer, wire::Tier tier);
    // Of a client whose connection has ended (presence.hpp): it is there, it has left, or it has been given up, now if
    // it had not come. An observer has nothing that it could come to: given up.
    Presence::State ask_after(const Client &client);
    // Clients may ask what has happened: these EventBits. Not one whose record has passed to another.
    void set_news(std::span<const Client> clients, std::uint64_t event_bits);
    // The slot is free again; nothing of the client is left.
    void vacate(ProcessSlot slot, Departure departure, const Reclaimed &total, double recovery_seconds);
    // The client has ended, and its blocks wait: no memory is reserved for it any more.
    void end_promise(ProcessSlot slot);
    // Binds a name of the pool, or unbinds it (Names). kind none: unbinds. client: who asks; null: an operator. The
    // version of the change. no_such_client: the client is gone, or about to go.
    Answer<std::uint64_t> change_name(const NameEntry &entry, const NameCondition &condition, const NameAsker &asker,
                                      const Client *client);
    // Tells clients how old the pool is, for what they allocate from now on, and if it is damaged. About once a second.
    void tell_clients();
    // There may be work for punch_strays().
    bool is_overfull() const;
    // The client's word says that it is there. By a system call that waits for nobody: whoever is to be evicted may be
    // keeping the workers from the memory. Any thread but the event loop's.
    bool is_here(const Client &client) const;

    // Its recovery was blocked, by this thread; ends with its recovery. The client of that thread, as far as the
    // shared memory says: to be told to people.
    std::optional<Client> note_blocked(ProcessSlot slot, ThreadSlotIndex blocked_by);
    std::optional<Client> client_of(ThreadSlotIndex thread) const;
    // The holder's pool is this one. 0 bytes: none. bad_argument: no such client, or too many users with limits; for
    // reserve() out_of_frames: so much is not free. Both scan.
    Answer<void> set_quota(const Holder &holder, std::uint64_t quota_bytes, std::uint64_t soft_bytes);
    Answer<void> reserve(const Holder &holder, std::uint64_t bytes);
    // The description with what the pool has now: sizes online, quotas.
    PoolSpec described() const;
    // The description after such a change, by what can be said before: no quota has been written.
    Answer<PoolSpec> check_change(const AttributeChanges &changes) const;
    // Changes attributes, all or none, for the next daemon as well; the description after that. bad_argument: see
    // changed(); no_such_node: the policy names one that the pool does not have; too_many_clients: too many users with
    // limits. Clients that have attached stay, and keep the policy that they found. A new hold time is for blocks in
    // quarantine, too: Reaper::look_at_seized(). The death of the daemon inside leaves some of the quotas, and the
    // other attributes as they were.
    Answer<PoolSpec> change(const AttributeChanges &changes);
    // Whether so many bytes may go offline: contended, if what is reserved would be missing then. Scans, if there are
    // reservations; so do check_drain() and empty_units().
    Answer<void> check_shrink(std::uint64_t bytes);
    // Tells clients how much they and others can hold, and what the daemon holds: what reservations are compared with.
    void publish_sizes();
    // ... and what they hold where units drain: a walk over these, if anything is reserved.
    void look_at_drains();
    // While it lives, so many bytes count as gone already. A caller whose check succeeds meanwhile may take them
    // offline: nobody else is granted them in between, so no promise is broken.
    class Withheld {
    public:
        Withheld(ManagedPool &pool, std::uint64_t bytes) : pool_(pool), bytes_(bytes) { pool_.withhold(bytes_, 0); }
        ~Withheld() {
            pool_.withhold(0, bytes_);
            if (bytes_ != 0) pool_.wake_waiters();  // they may have been refused meanwhile
        }
        Withheld(const Withheld &) = delete;
        Withheld &operator=(const Withheld &) = delete;

        std::uint64_t bytes() const { return bytes_; }

    private:
        ManagedPool &pool_;
        std::uint64_t bytes_;
    };
    // Whether nobody may allocate in these units any more: neither what is free there is reserved, nor is it needed for
    // reservations of which a part is in use there, which their holders may give back and want elsewhere.
    Answer<void> check_drain(PoolScan::Units units, const Withheld &withheld);
    // Those of these units that may go offline now, `bytes` at most: a look has found them empty. All of them, where
    // there are no reservations. contended: what is free there is reserved.
    Answer<std::vector<std::uint64_t>> empty_units(PoolScan::Units units, std::uint64_t bytes,
                                                   const Withheld &withheld);
    // A quick look at what only the daemon writes, and at the thread slots. True: the pool is damaged, now or from
    // before.
    bool look_for_damage();

    // A call that may wait for the pool's worker, for as long as the kernel makes that wait: so few may, or the calls
    // for one pool would take all threads that there are for calls.
    class Turn {
    public:
        explicit Turn(ManagedPool &pool) : pool_(pool), is_ours_(pool.turns_.fetch_add(1) < kTurns) {}
        Turn(const Turn &) = delete;
        Turn &operator=(const Turn &) = delete;
        ~Turn() { pool_.turns_.fetch_sub(1); }
        Answer<void> check() const;

    private:
        static constexpr unsigned kTurns = 4;
        ManagedPool &pool_;
        bool is_ours_;
    };

    // Tells clients that the pool is no more.
    void announce_deletion();
    // All pages of the frames go back to the kernel, whoever keeps a descriptor of them. The last thing that is done
    // with a pool that is deleted. On its worker.
    void give_back_frames();
    // Allocations that wait for memory look again.
    void wake_waiters(bool all = false);
    bool has_reservations() const { return limits_.has_reservations(); }
    // Gets cached blocks back: asks all threads, which give theirs back at their next calls, and takes those of threads
    // that are outside of calls. While a unit is draining, threads go on giving back what they free of it, past their
    // caches; until then, and where a call has missed it, only asking again helps. The worker's thread only. Returns
    // whether any may have been taken.
    bool gather_cached_blocks();
    // gather_cached_blocks() for callers that come again: only asks until twenty times its last duration has passed. A
    // walk over a large pool takes long, and the pool's dead wait for the worker.
    void gather_cached_blocks_sparingly();
    // Whether a thread has not used its cache for some seconds, or free memory has fallen below the watermark: cached
    // blocks are to be taken back, once. Called once a second, on the worker for records.
    bool look_for_idle_caches();

    // The results of status() and client_statuses(), found by a thread of the pool's own: by a look that begins after
    // the call, or, where that takes longer than kLookPatience, by the look before. timed_out: there is none. Of
    // clients all that sit here now, those that no look has found yet without figures of what they hold.
    Answer<PoolStatus> status_in_time();
    std::vector<ClientStatus> client_statuses_in_time();
    // These read the shared metadata beside running clients, and take as long as there is metadata.
    PoolStatus status();
    std::vector<ClientStatus> client_statuses();
    // The channels, by name, within the patience of status_in_time(). channel_statuses() reads the channels' memory
    // only: as long as there are messages, and no longer if somebody has scribbled.
    Answer<std::vector<ChannelStatus>> channel_statuses_in_time();
    std::vector<ChannelStatus> channel_statuses();
    // Only for take_news().
    void look_at_use();
    // The oldest of the blocks in use, at most `limit` in all. client_id 0: everybody's.
    void add_oldest_blocks(std::uint32_t client_id, OldestBlocks &blocks);
    OccupancyMap occupancy(NumaNode numa_node, std::uint32_t cells);
    std::vector<BlockHolder> holders(NumaNode numa_node, const std::vector<UnitRange> &units);

    // The worker's thread only. A damaged pool is left as it is: done, and nothing has come back.
    // After adopt(): completes what the daemon before us was in the middle of. Until that is done, nothing else may be
    // done to the pool from the daemon's side: there is one intent for it. blocked: by a live client that stands in the
    // middle of an operation on the same block.
    RecoveryStep finish_predecessor(ThreadSlotIndex &blocked_by);
    // Of departed clients, by slot, ascending; all in one walk over the pool's metadata, which takes as long for one.
    // Blocks that a client had in use are kept: those in pinned ranges while has_pins() is true for the client, all of
    // them while has_group() is; then the client is reclaimed once more.
    void reclaim(std::span<Departed> departed);
    // Whether devices may still write to memory that this client, which has ended, had pinned: to its blocks, if it has
    // left some there; without them only as long as somebody has the pin. Without a walk.
    bool has_pins(ProcessSlot slot, bool has_blocks);
    // Whether a client lives that may adopt this client's blocks (numacre_join). Without a walk.
    bool has_group(ProcessSlot slot) const { return has_group(slot, clients_.all()); }
    bool has_group(ProcessSlot slot, std::span<const Client> clients) const;
    struct Pinned {
        Fd descriptor;
        std::uint64_t first_byte = 0, bytes = 0;
    };
    // Keeps frames of the numa node where they are for as long as somebody has the descriptor (pins.hpp): whole units
    // around the range, all of them online. contended: a part of the range is being taken offline; no_such_client: the
    // client is gone.
    Answer<Pinned> pin(const Client &client, NumaNode numa_node, std::uint64_t first_byte, std::uint64_t bytes);
    // A channel of the pool for a client (managed_pool_channels.cpp). channel_id: the id of its seat, if it is made.
    struct OpenChannel {
        std::uint64_t offset = 0;
        ChannelShape shape;
        ProcessSlot seat;
    };
    // No channel: one of this name is going. Its seat is given back soon; then another one can be made.
    Answer<std::optional<OpenChannel>> open_channel(const Client &client, const ChannelWish &wish,
                                                    std::uint32_t channel_id);
    Answer<void> close_channel(const Client &client, const std::string &name);
    // The channel goes when nobody has it open any more.
    Answer<void> remove_channel(const Client &client, const std::string &name);
    // Likewise for an operator, whoever has made it. ends: also ends the stream, and wakes all who wait in it. The
    // answer: how many clients have it open.
    Answer<std::uint32_t> remove_channel(const std::string &name, bool ends);
    // A channel that a client has open, by its place in the ledger and the id of its seat.
    struct ChannelUse {
        std::size_t number = 0;
        std::uint32_t client_id = 0;
    };
    Answer<ChannelUse> channel_use(const Client &client, const std::string &name) const;
    // Whether the client has this channel open. Any thread.
    bool has_open(const Client &client, const ChannelUse &channel) const;
    // The seats of channels that nobody has open, and that do not stay: to be reaped, as those of clients. A channel
    // whose seat has gone is forgotten.
    std::vector<Client> take_unused_channels();
    // Memory that a client has put behind frames that are offline goes back to the machine, and the log says so.
    void punch_strays();
    // Frees what reclaim() has seized, as far as it is due: zeroed first, if the pool wants that; a bounded piece of
    // it. When to call again; nothing: there is no more.
    std::optional<std::chrono::steady_clock::time_point> release_seized();
    // Units that are to go offline as soon as they are empty: numa node, unit.
    std::set<std::pair<std::uint8_t, std::uint64_t>> draining;

    // One resize at a time.
    std::mutex resize_mutex;

private:
    enum class Origin : std::uint8_t { made, adopted };
    ManagedPool(const PoolSpec &spec, const Geometry &geometry, PoolLedger ledger, MetadataRegion pool_region,
                MetadataRegion pins_file, Origin origin);
    NodeMemory::Plan plan_of(NumaNode numa_node) const;
    void add_node(std::unique_ptr<NodeMemory> memory);
    void ask_for_cached_blocks();
    // before_ns: monotonic, from before all threads were asked.
    bool take_back_idle_caches(std::uint64_t before_ns);
    bool clients_see_drains() const;

    // Holds the records' mutex; the first time after adopt(), takes the shared memory over.
    class NUMACRE_THREAD_SAFETY(scoped_lockable) RecordsLock {
    public:
        explicit RecordsLock(ManagedPool &pool) NUMACRE_ACQUIRE(pool.records_.mutex);
        ~RecordsLock() NUMACRE_RELEASE();
        RecordsLock(const RecordsLock &) = delete;
        RecordsLock &operator=(const RecordsLock &) = delete;

    private:
        const std::unique_lock<Mutex> lock_;
    };
    void take_over() NUMACRE_REQUIRES(records_.mutex);
    bool is_due_for_look();
    void mark_departing_dead();
    void write_account(std::size_t account) NUMACRE_REQUIRES(records_.mutex);
    void write_accounting() NUMACRE_REQUIRES(records_.mutex);
    void write_seized() NUMACRE_REQUIRES(records_.mutex);
    void write_sizes() NUMACRE_REQUIRES(records_.mutex);
    void withhold(std::uint64_t more_bytes, std::uint64_t less_bytes);
    void tell_age();
    void wake(ThreadSlotIndex waiter);
    // The blocks on their way to clients that wait: those that have not moved since the last look, or all, count no
    // more.
    enum class Stale : std::uint8_t { since_the_last_look, all };
    void forget_stale_gifts(Stale stale);

    Answer<void> check_is_there(const Holder &holder) const;
    Answer<void> write_quota(const Holder &holder, std::uint64_t quota_bytes, std::uint64_t soft_bytes)
        NUMACRE_REQUIRES(change_mutex_);
    Answer<void> write_user_quota(const UserLimit &user) NUMACRE_REQUIRES(change_mutex_);
    Answer<void> change_user_quotas(const std::vector<UserLimit> &before, const std::vector<UserLimit> &wanted)
        NUMACRE_REQUIRES(change_mutex_);
    // Reserves; bytes_before: what was until now. More is refused if it was not there in this look.
    Answer<void> promise(const Holder &holder, std::uint64_t bytes, const Use *use, std::uint64_t &bytes_before);
    Answer<void> check_left(const Use &use, std::uint64_t bytes, std::uint64_t used_frames,
                            std::uint64_t withheld_bytes) const;
    bool all_have_counted();
    void compare_with_limits(const Use &use);
    void remember_for_autosize(const Use &use);
    ClientStatus known_of(const Client &client, const std::vector<Pins::Pin> &pins) const;

    // The damage to words that only the daemon writes; empty: none.
    std::string damage_to_our_own();
    bool has_lost_pages() const;
    void check_integrity(PoolStatus &status, std::span<const NodeScan> scans, const std::vector<std::uint64_t> &seats);
    void declare_corrupt(const std::string &reason);
    // Its two halves. False: it is known already.
    bool note_damage(const std::string &reason);
    void tell_of_damage();

    // The second part of reclaim(): their errands in channels are done.
    void reclaim_blocks(std::span<Departed> departed);
    struct ChannelNodes;
    std::vector<Buddy<ProductionEnv>> buddies() const;
    void *memory_of(const LedgerChannel &channel) const;
    ChannelView<ProductionEnv> view_of(const LedgerChannel &channel) const;
    BroadcastView<ProductionEnv> broadcast_view_of(const LedgerChannel &channel) const;
    // act(view): a ChannelView, or a BroadcastView.
    template <class Act>
    auto with_view(const LedgerChannel &channel, const Act &act) const {
        return channel.shape.is_broadcast() ? act(broadcast_view_of(channel)) : act(view_of(channel));
    }
    // Null: there is none of that name.
    // Not one that is going.
    LedgerChannel *find_channel(const std::string &name) const;
    bool is_going(const LedgerChannel &channel) const;
    void forget_if_gone(LedgerChannel &channel);
    Answer<LedgerChannel *> make_channel(const Client &client, const ChannelWish &wish, std::uint32_t channel_id);
    void bind_channel(const LedgerChannel &channel, const ChannelWish &wish);
    bool stays_alone(const LedgerChannel &channel) const;
    ChannelStatus status_of(const LedgerChannel &channel, std::span<const Client> clients) const
        NUMACRE_REQUIRES(channels_mutex_);
    // How often the client has the channel open.
    std::uint32_t opened_by(const Client &client, const LedgerChannel &channel) const;
    // Finishes the errands of the dead in channels. Returns those whose blocks have to wait. Before their blocks
    // are reclaimed.
    std::vector<ProcessSlot> recover_parties(std::span<const Departed> departed);
    PoolAge age_now() const;

    void seize(NumaNode numa_node, Block block, Quarantine::Era era);
    void list_seized();
    std::vector<Pins::Pin> quarantine_of(ProcessSlot slot);

    Description description_;
    Geometry geometry_;
    std::uint32_t process_slots_;
    std::uint32_t thread_slots_;
    PoolLedger ledger_;  // before the nodes, which write in it
    MetadataRegion pool_region_;
    SharedPool shared_;
    Pins pins_;
    std::vector<std::unique_ptr<NodeMemory>> nodes_;
    std::vector<View> views_;

    // The worker's thread only.
    bool adopted_;                    // and not finished yet
    std::uint64_t strays_bytes_ = 0;  // that the log has not said yet
    std::chrono::steady_clock::time_point strays_told_{};
    Quarantine quarantine_;
    // Seized blocks that are due, and that other clients hold: not to be zeroed yet. Not in quarantine_.
    std::vector<Quarantine::Seized> read_seized_;
    bool zeroes_seized_ = false;  // some of what is in quarantine has to be zeroed: all of it is

    std::atomic<bool> wake_is_due_{false};
    std::atomic<bool> is_deleted_{false};
    std::atomic<unsigned> turns_{0};

    Mutex change_mutex_;
    Mutex reserve_mutex_;
    // Which channels there are, and their entries in the ledger: held by the worker's thread while it changes that, and
    // by who reads it on another thread, for as long as it looks at a channel's memory.
    Mutex channels_mutex_;
    ClientTable clients_;
    PoolLimits limits_;
    FreeMemoryWatch free_memory_;
    Integrity integrity_;
    PoolRecords records_;
    Names names_;
    bool has_to_take_over_ NUMACRE_GUARDED_BY(records_.mutex);
    HeldCounts held_counts_ NUMACRE_GUARDED_BY(records_.mutex);
    std::vector<std::uint64_t> gifts_seen_ NUMACRE_GUARDED_BY(records_.mutex);  // by process slot: OnTheWay, last
    std::uint64_t last_look_ NUMACRE_GUARDED_BY(records_.mutex) = 0;  // the youngest whose result has been compared
    std::uint32_t seats_until_look_ NUMACRE_GUARDED_BY(records_.mutex) = 0;
    CacheAges cache_ages_;                               // of the worker for records
    std::chrono::steady_clock::time_point next_gather_;  // of the worker
    std::uint64_t walked_seen_ = 0;  // of the worker: the last walk over idle caches that it knows of
    PoolScan scan_;

    // Last: what they do uses the others. The sizer posts to the worker and waits for it.
    Look<PoolStatus> status_look_{look_worker_, [this] { return status(); }};
    Look<std::vector<ClientStatus>> clients_look_{look_worker_, [this] { return client_statuses(); }};
    Look<std::vector<ChannelStatus>> channels_look_{look_worker_, [this] { return channel_statuses(); }};
    Worker look_worker_{"numacred-look"};
    Worker record_worker_{"numacred-record"};
    Worker worker_;
    std::unique_ptr<Worker> sizer_;  // the worker's thread only
    bool ends_ = false;              // the worker's thread only
};

}  // namespace numacre::daemon
