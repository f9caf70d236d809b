// One pool as the daemon keeps it: its regions, its engine, and who sits in it. What is known about clients is private
// to the daemon; their records in shared memory are written, never read back.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "engine.hpp"
#include "memory/hugepages.hpp"
#include "memory/ledger.hpp"
#include "memory/node_memory.hpp"
#include "memory/topology.hpp"
#include "numacre/shm/account.hpp"
#include "numacre/shm/presence.hpp"
#include "numacre/shm/recovery.hpp"
#include "os/process_info.hpp"
#include "os/worker.hpp"
#include "pool/look.hpp"
#include "pool/oldest_blocks.hpp"
#include "pool/pool_manager.hpp"
#include "pool/quarantine.hpp"
#include "spec/autosize.hpp"

namespace numacre::daemon {

enum class ClientState : std::uint8_t {
    active,
    adopted,     // it sat here before the daemon restarted; it has no connection
    detaching,   // it has asked, and has unmapped the pool
    lost,        // its connection is gone, the process may still use the memory
    recovering,  // it has ended; its blocks are coming back
};
std::string_view client_state_name(ClientState state);

// For requests about a client that no pool has.
Failure no_such_client(std::uint32_t client_id);

// What became of a client in the end.
enum class Departure : std::uint8_t { detached, died, unmapped };

struct Client {
    std::uint32_t id = 0;
    ProcessSlot slot;
    std::uint64_t generation = 0;
    Peer peer;
    wire::Tier tier = wire::Tier::trusted;
    std::chrono::system_clock::time_point attached;
    std::uint64_t quota_bytes = 0;
    std::uint64_t soft_quota_bytes = 0;
    bool is_over_soft_quota = false;
    std::uint64_t reserved_bytes = 0;
    ClientState state = ClientState::active;
    std::uint32_t waits_for = 0;  // client; 0: nobody
};

class ManagedPool {
public:
    // Populates what the spec wants online, through its worker; may take long. Never from the event loop.
    static Answer<std::shared_ptr<ManagedPool>> create(const PoolSpec &spec, Topology &topology, Hugepages &hugepages);
    // What a daemon before us has left, with its clients in their seats; descriptors by the names of kept_files(), of
    // which none may be missing. They are to be finished or reaped by who calls. Damage of the headers marks the pool.
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
    // What has been posted runs, what is posted later is dropped. Waits. Before what the jobs use ends; not from them.
    void end_workers();

    // Any thread, the event loop's, too: from here to the next such line nothing touches shared memory, nor waits for
    // who does. A client can make the kernel wait at any such access: it maps the pool's files many thousand times and
    // punches holes into them.
    const PoolSpec &spec() const { return spec_; }
    const Geometry &geometry() const { return geometry_; }
    // Names of spec().access, or numbers, as they were when the pool was made or adopted.
    const std::string &owner() const { return owner_; }
    const std::string &group() const { return group_; }
    std::uint32_t process_slots() const { return process_slots_; }
    std::uint32_t thread_slots() const { return thread_slots_; }
    std::uint64_t instance_id() const { return ledger_.instance_id(); }
    const MetadataRegion &pool_region() const { return pool_region_; }
    std::size_t numa_node_count() const { return nodes_.size(); }
    bool has(NumaNode numa_node) const { return numa_node.value < nodes_.size(); }
    NodeMemory &node_memory(NumaNode numa_node) { return *nodes_[numa_node.value]; }
    PoolLedger &ledger() { return ledger_; }
    // What has to be kept so that adopt() can be called: descriptors by name.
    std::map<std::string, int> kept_files() const;
    static std::vector<std::string> file_names(std::uint32_t numa_nodes);
    static constexpr const char *kLedgerFile = "ledger";

    void set_client_state(ProcessSlot slot, ClientState state);
    // The daemon before us had lost sight of its process, or we have found out more about it.
    void set_peer(const Client &client, const Peer &peer);
    // The kernel has said that the process is gone, or it has told us that it has let go. From now on it counts as dead
    // for a daemon after us; reclaim() and vacate() follow.
    void begin_departure(ProcessSlot slot, Departure departure);
    std::vector<Client> client_table() const;
    std::optional<Client> find_client(std::uint32_t client_id) const;
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
    // What scans have found out about soft quotas and the low watermark since the last call: to be published.
    std::vector<Event> take_news();
    bool is_corrupt() const;
    // Once, after the pool has been found to be damaged: the reason.
    std::optional<std::string> take_news_of_damage();
    // No new clients from now on. False: there are clients and force is not set, nothing has changed. Or it is closing
    // already.
    bool close_door(bool force);
    void open_door();
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
    // Tells clients how old the pool is, for what they allocate from now on, and if it is damaged. About once a second.
    void tell_clients();
    // There may be work for punch_strays().
    bool is_overfull() const;
    // The client's word says that it is there. By a system call that waits for nobody: whoever is to be evicted may be
    // keeping the workers from the memory. Any thread but the event loop's.
    bool is_here(const Client &client) const;

    // Its recovery was blocked, by this thread; ends with its recovery. Whose thread that is, as far as the shared
    // memory says: to be told to people.
    std::optional<Client> note_blocked(ProcessSlot slot, ThreadSlotIndex blocked_by);
    std::optional<Client> client_of(ThreadSlotIndex thread) const;
    // The holder's pool is this one. 0 bytes: none. bad_argument: no such client, or too many users with limits; for
    // reserve() out_of_frames: so much is not free. Both scan.
    Answer<void> set_quota(const Holder &holder, std::uint64_t quota_bytes, std::uint64_t soft_bytes);
    Answer<void> reserve(const Holder &holder, std::uint64_t bytes);
    // May so much go offline, of which some is in use? Not what is reserved, nor what is needed for reservations that
    // are in use there. Scans, if there are reservations.
    Answer<void> check_shrink(std::uint64_t bytes, std::uint64_t used_bytes = 0);
    // Tells clients how much they and others can hold, and what the daemon holds: what reservations are compared with.
    void publish_sizes();
    // ... and what they hold where units drain: a walk over these, if anything is reserved.
    void look_at_drains();
    // While it lives, so much counts as gone already. Whoever asks check_shrink() then, and is allowed to take that
    // much, takes it from nobody who has been promised it: others are not granted it in between.
    class Withheld {
    public:
        Withheld(ManagedPool &pool, std::uint64_t bytes) : pool_(pool), bytes_(bytes) { pool_.withhold(bytes_, 0); }
        ~Withheld() { pool_.withhold(0, bytes_); }
        Withheld(const Withheld &) = delete;
        Withheld &operator=(const Withheld &) = delete;

    private:
        ManagedPool &pool_;
        std::uint64_t bytes_;
    };
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
    // The pool's threads give back what they have cached, each at its next call: those that are idle do not. While a
    // unit is draining they go on giving back what they free of it, past their caches; until then, and where a call has
    // missed it, only asking again helps.
    void ask_for_cached_blocks();

    // What status() and client_statuses() find, looked at by a thread of the pool's own: from a look that begins after
    // the call, or, where that takes longer than kLookPatience, the last one's. timed_out: there is none. Of clients
    // all that sit here now, those that no look has found yet without figures of what they hold.
    Answer<PoolStatus> status_in_time();
    std::vector<ClientStatus> client_statuses_in_time();
    // These read the shared metadata beside running clients, and take as long as there is metadata.
    PoolStatus status();
    std::vector<ClientStatus> client_statuses();
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
    void reclaim(std::span<Departed> departed);
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
    ManagedPool(const PoolSpec &spec, const Geometry &geometry, PoolLedger ledger, MetadataRegion pool_region);
    NodeMemory::Plan plan_of(NumaNode numa_node) const;
    void add_node(std::unique_ptr<NodeMemory> memory);
    void adopt_clients();
    Answer<Client> take_seat(std::uint32_t client_id, Peer peer, wire::Tier tier);
    void enter(const Client &client, LedgerClient &ledger);
    void seize(NumaNode numa_node, Block block, Quarantine::Era era);
    bool is_draining() const;
    // What a client's record in shared memory has to say.
    struct Record {
        ProcessState state = ProcessState::free;
        std::uint64_t generation = 0;
        std::uint64_t pid = 0;
        std::uint64_t start_time_ticks = 0;
        std::uint64_t quota_frames = 0;
        std::uint64_t reserved_frames = 0;
        std::uint64_t account = kPoolAccount;
    };
    struct WrongCount {
        std::uint64_t bits = 0;  // of HeldFrames
        // By at least so much, in all of the last looks.
        std::uint64_t too_many = 0, too_few = 0;
        unsigned looks = 0;
    };
    struct AccountState {
        bool is_used = false;
        UserLimit limit;
        bool is_over_soft_quota = false;
    };
    // What a scan of the whole metadata found, and who was seated from before it until after it.
    struct Scan {
        std::vector<std::vector<OwnerUsage>> usage;  // by numa node, by process slot
        std::vector<std::uint64_t> online_changes;   // by numa node
        std::vector<std::uint64_t> seats;            // by process slot: see seat_versions()
    };

    // What limits are compared with.
    struct Use {
        std::uint64_t number = 0;                // of the scan, in the order in which they began
        std::vector<std::uint64_t> seats;        // by process slot, from before it
        std::vector<std::uint64_t> used_frames;  // by process slot
        std::vector<std::uint64_t> counts;       // by process slot: HeldFrames from before it
        std::vector<std::uint64_t> under_way;    // by process slot: frames, from before it, but after the counts
        struct OfNode {
            std::uint64_t free_frames = 0, online_frames = 0;
        };
        std::vector<OfNode> nodes;
        // These of look() only.
        std::uint64_t promisable_frames = 0;
        std::uint64_t used_draining_frames = 0;  // held, and when they are free nobody gets them
        std::uint64_t withheld_frames = 0;       // from before it
        // What the process holds, or has been granted.
        std::uint64_t granted_to(std::uint32_t slot) const {
            return std::max(used_frames[slot], engine::HeldFrames{counts[slot]}.frames());
        }
        void add(const NodeSnapshot &snapshot) { nodes.push_back({snapshot.free_frames, snapshot.online_frames()}); }
    };
    void withhold(std::uint64_t more, std::uint64_t less);
    void list_seized();
    Use begin_look() const;
    std::vector<std::uint64_t> frames_under_way() const;  // by process slot
    std::vector<OwnerUsage> scan_use(Use &use) const;
    void find_free_to_promise(Use &use, const NodeMemory::DrainingFrames &gone) const;
    std::uint64_t unit_changes() const;
    NodeMemory::DrainingFrames draining_frames() const;
    Use look() const;  // all three
    bool all_have_counted();
    void compare_with_limits(const Use &use);
    // These with record_mutex_ held, and mutex_ not.
    void take_over();
    void mark_departing_dead();
    void write_seized();
    void write_sizes();
    void correct_counts(const Use &use);
    void write_account(std::size_t account);
    void write_limits(std::size_t account);
    void write_seats();
    void write_accounting();
    void write_record(ProcessSlot slot, const Record &what);
    void set_record_state(ProcessSlot slot, ProcessState state, std::memory_order order);
    // These with mutex_ held.
    std::uint64_t wanted_accounting() const;
    void compare_accounts(const Use &use);
    void raise_peaks(const Use &use);
    std::size_t account_of(std::uint32_t uid) const;
    std::array<std::uint64_t, kAccounts> promised_frames() const;
    Answer<std::size_t> claim_account(const Holder &holder);
    void add_users(PoolStatus &status, const Use &use) const;
    struct Promises {
        std::uint64_t unused_frames = 0, held_frames = 0;
        // What has to be free elsewhere than where so much is in use and drains: who gives back what was promised may
        // want it again.
        std::uint64_t needed_frames(std::uint64_t used_draining_frames) const {
            return unused_frames + std::min(held_frames, used_draining_frames);
        }
    };
    Promises promises(const Use &use) const;
    Answer<void> check_promises(const Use &use) const;
    Answer<void> promise(const Holder &holder, std::uint64_t bytes, const Use *use, std::uint64_t &before);
    std::optional<Client> *seat_of(std::uint32_t client_id);
    void remember_for_autosize(const Use &use, std::span<const std::uint64_t> draining_frames);
    Event event(EventKind kind) const;
    ClientStatus known_of(const Client &client) const;

    // Locks record_mutex_; the first time after adopt(), takes the shared memory over.
    std::unique_lock<std::mutex> lock_records();
    bool is_due_for_look();
    std::vector<ProcessSlot> seated() const;
    std::uint64_t quota_frames_of(std::uint64_t quota_bytes) const;
    // What is wrong with what only the daemon writes; empty: nothing.
    std::string damage_to_our_own();
    bool has_lost_pages() const;
    std::string damage_to_numa_node(const NodeStatus &status, const Scan &scan);
    // By process slot: an odd number while somebody sits there, another one after each change.
    std::vector<std::uint64_t> seat_versions() const;
    void check_integrity(PoolStatus &status, const Scan &scan);
    void declare_corrupt(const std::string &reason);
    // Its two halves. False: it is known already.
    bool note_damage(const std::string &reason);
    void tell_of_damage();

    PoolSpec spec_;
    std::string owner_, group_;
    Geometry geometry_;
    std::uint32_t process_slots_;
    std::uint32_t thread_slots_;
    PoolLedger ledger_;  // before the nodes, which write in it
    MetadataRegion pool_region_;
    SharedPool shared_;
    // The header's part that never changes, as we wrote it.
    std::array<std::byte, offsetof(PoolHeader<ProductionEnv>, state)> header_{};
    std::vector<std::unique_ptr<NodeMemory>> nodes_;
    std::vector<View> views_;

    // The worker's thread only.
    bool adopted_ = false;            // and not finished yet
    std::uint64_t strays_bytes_ = 0;  // that the log has not said yet
    std::chrono::steady_clock::time_point strays_told_{};
    Quarantine quarantine_;

    mutable std::atomic<std::uint64_t> looks_{0};
    std::atomic<bool> wake_is_due_{false};
    std::atomic<bool> is_deleted_{false};
    std::atomic<unsigned> turns_{0};

    std::mutex reserve_mutex_;  // taken before the others
    // What the daemon has written to shared memory, or is writing: taken before mutex_, and never by the event loop,
    // for it is held for as long as a client makes the kernel wait.
    std::mutex record_mutex_;
    // All from here to mutex_: guarded by record_mutex_.
    bool has_to_take_over_ = false;
    std::vector<Record> records_;  // by process slot: as they were written
    struct WrittenLimit {
        std::uint64_t quota_frames = 0, reserved_frames = 0;
    };
    std::array<WrittenLimit, kAccounts> written_limits_;  // by account
    std::vector<WrongCount> wrong_counts_;                // by process slot: what the last looks have found wrong
    std::atomic<std::uint64_t> withheld_bytes_{0};        // Withheld; changed with record_mutex_ held
    bool is_as_before_ = true;                            // all that the daemon before held and drained is found
    std::uint64_t last_look_ = 0;                         // the youngest whose result has been compared
    std::uint32_t seats_until_look_ = 0;

    // What the daemon knows. Never held by who touches shared memory.
    mutable std::mutex mutex_;
    // All below: guarded by mutex_. What stands in records_ as well changes with both held.
    std::vector<std::optional<Client>> clients_;  // by process slot
    std::vector<std::uint64_t> seat_versions_;    // by process slot
    std::array<AccountState, kAccounts> accounts_;
    std::uint64_t accounting_ = 0;                              // as it was written to shared memory
    std::vector<bool> is_below_watermark_;                      // by numa node
    std::vector<std::deque<AutosizeSample>> autosize_history_;  // by numa node
    std::vector<Event> news_;
    bool closing_ = false;
    std::string corrupt_reason_;
    bool damage_is_news_ = false;
    std::uint32_t client_count_ = 0;
    std::uint32_t seats_ = 0;      // no client sits at this process slot or beyond
    std::uint32_t free_from_ = 1;  // every process slot before it is taken
    std::uint64_t clients_reaped_ = 0;
    std::uint64_t reclaimed_bytes_ = 0;
    double last_recovery_seconds_ = 0;

    // Last: what they do uses the others. The sizer posts to the worker and waits for it.
    Look<PoolStatus> status_look_{look_worker_, [this] { return status(); }};
    Look<std::vector<ClientStatus>> clients_look_{look_worker_, [this] { return client_statuses(); }};
    Worker look_worker_{"numacred-look"};
    Worker record_worker_{"numacred-record"};
    Worker worker_;
    std::unique_ptr<Worker> sizer_;  // the worker's thread only
    bool ends_ = false;              // the worker's thread only
};

}  // namespace numacre::daemon
