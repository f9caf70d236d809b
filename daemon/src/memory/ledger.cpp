#include "memory/ledger.hpp"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <utility>

#include "spec/pool_spec.hpp"

namespace numacre::daemon {

namespace {

constexpr std::uint64_t kPoolLedgerMagic = 0x7264'676c'6372'6d6e;     // "nmrclgdr" in memory
constexpr std::uint64_t kMachineLedgerMagic = 0x686d'676c'6372'6d6e;  // "nmrclgmh" in memory

static_assert(sizeof(LedgerClient) == 136);
static_assert(sizeof(LedgerAccount) == 40);
static_assert(sizeof(LedgerNode) == 24);  // whole words: the client entries follow
static_assert(sizeof(LedgerUnit) == 2);
static_assert(sizeof(LedgerPin) == 32);
static_assert(sizeof(LedgerChannel) == 88);
static_assert(std::atomic<UnitState>::is_always_lock_free && std::atomic<Drain>::is_always_lock_free);

Unexpected<Failure> no_ledger(const char *why) {
    return Unexpected{Failure{Errc::corrupt, std::string("what was kept of a pool cannot be used: ") + why}};
}

Unexpected<Failure> other_version(std::uint32_t ledger, std::uint32_t layout) {
    return Unexpected{Failure{Errc::version_mismatch,
                              "the pools that are kept here were made by a numacred with ledger version " +
                                  std::to_string(ledger) + " and shared layout version " + std::to_string(layout) +
                                  ", this one has " + std::to_string(kLedgerVersion) + " and " +
                                  std::to_string(kLayoutVersion) + ": start that one again"}};
}

}  // namespace

std::int64_t nanoseconds_of(std::chrono::system_clock::time_point time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
}

std::chrono::system_clock::time_point time_point_of(std::int64_t nanoseconds) {
    return std::chrono::system_clock::time_point(
        std::chrono::duration_cast<std::chrono::system_clock::duration>(std::chrono::nanoseconds(nanoseconds)));
}

// The attributes that can change while a pool is in use.
struct PoolLedger::Attributes {
    std::uint32_t client_limit;
    std::uint32_t reclaim;
    std::uint32_t hold_seconds;
    std::uint32_t fit;
    std::uint32_t access_owner;
    std::uint32_t access_group;
    std::uint32_t access_mode;
    std::uint32_t policy_mode;
    std::uint64_t low_watermark_bytes;
    std::uint64_t policy_nodes;
    struct {
        std::uint32_t is_on, low_percent, high_percent, after_seconds;
        std::uint64_t min_bytes, max_bytes, step_bytes;
    } autosize;
    std::uint32_t has_zeroed;
    std::uint32_t reserved32;
    std::uint64_t object_memory_bytes;
    std::uint64_t pin_quarantine_seconds;
    std::uint64_t reserved[5];
};

struct PoolLedger::Header {
    // The magic and the two versions never move, so that any version can identify any other.
    std::uint64_t magic;
    std::uint32_t ledger_version;
    std::uint32_t layout_version;

    std::uint64_t instance_id;
    char name[kPoolNameBytes];
    std::uint64_t capacity_bytes;
    std::uint64_t online_bytes;
    std::uint64_t frame_bytes;
    std::uint64_t largest_block_bytes;
    std::uint32_t max_clients;
    std::uint32_t max_threads;
    std::uint32_t backing;
    std::uint32_t numa_nodes;
    std::uint32_t max_threads_per_client;
    std::uint32_t reserved;
    std::int64_t created_ns;         // since the epoch
    std::int64_t created_steady_ns;  // by the monotonic clock: a ledger lives no longer than the boot
    Durable<LedgerState> state;
    Durable<std::uint32_t> last_client_id;
    // Which of the two copies counts. A change is written into the other one, then this word is stored.
    Durable<std::uint32_t> current_attributes;
    Durable<std::uint64_t> peak_client_bytes;
    std::uint64_t object_bytes, object_count;  // 0: a pool of blocks
    std::uint64_t plain_objects;               // PoolSpec::colours_objects is false
    char made_within[kPoolNameBytes];
    Attributes attributes[2];
};

namespace {

struct Parts {
    std::uint64_t nodes = 0, units = 0, clients = 0, accounts = 0, pins = 0, channels = 0, names = 0, bytes = 0;
    std::uint64_t units_each = 0;
};

constexpr std::uint64_t kHeaderRoom = 1024;

Parts parts_of(const PoolSpec &spec, std::uint32_t numa_nodes) {
    Parts parts;
    parts.units_each = spec.capacity_bytes / resize_unit_bytes(spec);
    parts.nodes = kHeaderRoom;
    parts.clients = parts.nodes + numa_nodes * sizeof(LedgerNode);
    parts.accounts = parts.clients + (std::uint64_t{spec.max_clients} + 1) * sizeof(LedgerClient);
    parts.pins = parts.accounts + kAccounts * sizeof(LedgerAccount);
    parts.channels = parts.pins + PoolLedger::kPins * sizeof(LedgerPin);
    parts.units = parts.channels + kChannels * sizeof(LedgerChannel);
    parts.names = round_up(parts.units + numa_nodes * parts.units_each * sizeof(LedgerUnit), kPageBytes);
    parts.bytes = round_up(parts.names + sizeof(NameDirectory<ProductionEnv>), kPageBytes);
    return parts;
}

}  // namespace

std::uint64_t PoolLedger::bytes_for(const PoolSpec &spec, std::uint32_t numa_nodes) {
    return parts_of(spec, numa_nodes).bytes;
}

Answer<PoolLedger> PoolLedger::create(const PoolSpec &spec, std::uint64_t instance_id, std::uint32_t numa_nodes) {
    static_assert(sizeof(Header) <= kHeaderRoom);
    const Parts parts = parts_of(spec, numa_nodes);
    auto region = MetadataRegion::create("numacre:" + spec.name + ":ledger", parts.bytes);
    if (!region) return Unexpected{region.error()};
    // Populated now: later a page that cannot be had would be a SIGBUS.
    if (auto populated = region->populate(0, parts.bytes); !populated) return Unexpected{populated.error()};
    PoolLedger ledger(std::move(*region));
    Header &header = *ledger.header_;
    header.ledger_version = kLedgerVersion;
    header.layout_version = kLayoutVersion;
    header.instance_id = instance_id;
    std::copy(spec.name.begin(), spec.name.end(), header.name);
    header.capacity_bytes = spec.capacity_bytes;
    header.online_bytes = spec.online_bytes;
    header.frame_bytes = spec.frame_bytes;
    header.largest_block_bytes = spec.largest_block_bytes;
    header.object_bytes = spec.object_bytes;
    header.object_count = spec.object_count;
    header.plain_objects = spec.colours_objects ? 0 : 1;
    std::copy(spec.made_within.begin(), spec.made_within.end(), header.made_within);
    header.max_clients = spec.max_clients;
    header.max_threads = spec.max_threads;
    header.max_threads_per_client = spec.max_threads_per_client;
    header.backing = static_cast<std::uint32_t>(spec.backing);
    header.attributes[0] = attributes_of(spec);
    header.numa_nodes = numa_nodes;
    header.created_ns = nanoseconds_of(std::chrono::system_clock::now());
    header.created_steady_ns = std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count();
    header.magic = kPoolLedgerMagic;
    ledger.find_parts();
    return ledger;
}

Answer<PoolLedger> PoolLedger::open(Fd fd) {
    auto region = MetadataRegion::adopt(std::move(fd), kHeaderRoom);
    if (!region) return Unexpected{region.error()};
    PoolLedger ledger(std::move(*region));
    const Header &header = *ledger.header_;
    if (header.magic != kPoolLedgerMagic) return no_ledger("its ledger has not our mark");
    if (header.ledger_version != kLedgerVersion || header.layout_version != kLayoutVersion)
        return other_version(header.ledger_version, header.layout_version);
    const PoolSpec spec = ledger.spec();
    if (const auto sound = geometry_of(spec); !sound) return no_ledger(sound.error().message.c_str());
    if (header.numa_nodes == 0 || header.numa_nodes > kMaxNumaNodes) return no_ledger("its number of numa nodes");
    if (ledger.region_.bytes() < parts_of(spec, header.numa_nodes).bytes)
        return no_ledger("its ledger is too short for its clients");
    ledger.find_parts();
    return ledger;
}

PoolLedger::PoolLedger(MetadataRegion region)
    : region_(std::move(region)), header_(static_cast<Header *>(region_.address())) {}

void PoolLedger::find_parts() {
    const Parts parts = parts_of(spec(), header_->numa_nodes);
    auto *const base = static_cast<std::byte *>(region_.address());
    nodes_ = {reinterpret_cast<LedgerNode *>(base + parts.nodes), header_->numa_nodes};
    clients_ = {reinterpret_cast<LedgerClient *>(base + parts.clients), std::size_t{header_->max_clients} + 1};
    accounts_ = {reinterpret_cast<LedgerAccount *>(base + parts.accounts), kAccounts};
    pins_ = {reinterpret_cast<LedgerPin *>(base + parts.pins), kPins};
    channels_ = {reinterpret_cast<LedgerChannel *>(base + parts.channels), kChannels};
    units_ = {reinterpret_cast<LedgerUnit *>(base + parts.units), header_->numa_nodes * parts.units_each};
    names_ = reinterpret_cast<NameDirectory<ProductionEnv> *>(base + parts.names);
}

PoolLedger::Attributes PoolLedger::attributes_of(const PoolSpec &spec) {
    Attributes attributes{};
    attributes.client_limit = spec.client_limit;
    attributes.reclaim = static_cast<std::uint32_t>(spec.reclaim.kind);
    attributes.has_zeroed = spec.reclaim.kind == Reclaim::Kind::zero ? 1 : 0;
    attributes.hold_seconds = static_cast<std::uint32_t>(spec.reclaim.hold.count());
    attributes.pin_quarantine_seconds = static_cast<std::uint64_t>(spec.pin_quarantine.count());
    attributes.fit = static_cast<std::uint32_t>(spec.fit);
    attributes.object_memory_bytes = spec.object_memory_bytes;
    attributes.access_owner = spec.access.owner;
    attributes.access_group = spec.access.group;
    attributes.access_mode = spec.access.mode;
    attributes.policy_mode = static_cast<std::uint32_t>(spec.policy.mode);
    attributes.low_watermark_bytes = spec.low_watermark_bytes;
    attributes.policy_nodes = spec.policy.nodes;
    attributes.autosize = {spec.autosize.is_on ? 1U : 0U, spec.autosize.low_percent,
                           spec.autosize.high_percent,    static_cast<std::uint32_t>(spec.autosize.after.count()),
                           spec.autosize.min_bytes,       spec.autosize.max_bytes,
                           spec.autosize.step_bytes};
    return attributes;
}

void PoolLedger::set_attributes(const PoolSpec &spec) {
    // relaxed: ours alone.
    const std::uint32_t now = header_->current_attributes.load(std::memory_order_relaxed) & 1, next = now ^ 1;
    header_->attributes[next] = attributes_of(spec);
    header_->attributes[next].has_zeroed |= header_->attributes[now].has_zeroed;
    // release: the copy is whole. Weakened: a daemon that dies here leaves half of the new attributes.
    header_->current_attributes.store(next, std::memory_order_release);
}

bool PoolLedger::has_zeroed() const {
    return header_->attributes[header_->current_attributes.load(std::memory_order_acquire) & 1].has_zeroed != 0;
}

PoolSpec PoolLedger::spec() const {
    PoolSpec spec;
    spec.name.assign(header_->name, ::strnlen(header_->name, kPoolNameBytes));
    spec.capacity_bytes = header_->capacity_bytes;
    spec.online_bytes = header_->online_bytes;
    spec.frame_bytes = header_->frame_bytes;
    spec.largest_block_bytes = header_->largest_block_bytes;
    spec.object_bytes = header_->object_bytes;
    spec.object_count = header_->object_count;
    spec.colours_objects = header_->plain_objects == 0;
    spec.made_within.assign(header_->made_within, ::strnlen(header_->made_within, kPoolNameBytes));
    spec.max_clients = header_->max_clients;
    spec.max_threads = header_->max_threads;
    spec.max_threads_per_client = header_->max_threads_per_client;
    spec.backing = static_cast<wire::Backing>(header_->backing);
    // acquire: with the copy. A damaged ledger may hold any number here.
    const Attributes &now = header_->attributes[header_->current_attributes.load(std::memory_order_acquire) & 1];
    spec.client_limit = now.client_limit;
    spec.reclaim = {static_cast<Reclaim::Kind>(now.reclaim), std::chrono::seconds(now.hold_seconds)};
    spec.pin_quarantine = std::chrono::seconds(now.pin_quarantine_seconds);
    spec.low_watermark_bytes = now.low_watermark_bytes;
    const auto &autosize = now.autosize;
    spec.autosize = {autosize.is_on != 0,
                     autosize.low_percent,
                     autosize.high_percent,
                     autosize.min_bytes,
                     autosize.max_bytes,
                     autosize.step_bytes,
                     std::chrono::seconds(autosize.after_seconds)};
    spec.fit = static_cast<Fit>(now.fit);
    spec.object_memory_bytes = now.object_memory_bytes;
    spec.access = {now.access_owner, now.access_group, now.access_mode};
    spec.policy = {static_cast<PolicyMode>(now.policy_mode), now.policy_nodes};
    return spec;
}

std::uint64_t PoolLedger::instance_id() const {
    return header_->instance_id;
}

std::uint32_t PoolLedger::numa_nodes() const {
    return header_->numa_nodes;
}

std::chrono::system_clock::time_point PoolLedger::created() const {
    return time_point_of(header_->created_ns);
}

std::chrono::seconds PoolLedger::age() const {
    const std::chrono::nanoseconds now = std::chrono::steady_clock::now().time_since_epoch();
    const auto age = now - std::chrono::nanoseconds(header_->created_steady_ns);
    // Not below 0: an earlier daemon may have run in another time namespace.
    return std::max(std::chrono::seconds{0}, std::chrono::duration_cast<std::chrono::seconds>(age));
}

LedgerState PoolLedger::state() const {
    return header_->state.load(std::memory_order_acquire);
}

void PoolLedger::set_state(LedgerState state) {
    // A deleted pool stays deleted, whatever state another thread wants to set.
    LedgerState before = header_->state.load(std::memory_order_acquire);
    while (before != LedgerState::deleted &&
           !header_->state.compare_exchange_weak(before, state, std::memory_order_acq_rel)) {
    }
}

std::uint32_t PoolLedger::last_client_id() const {
    return header_->last_client_id.load(std::memory_order_acquire);
}

void PoolLedger::set_last_client_id(std::uint32_t client_id) {
    header_->last_client_id.store(client_id, std::memory_order_release);
}

Durable<std::uint64_t> &PoolLedger::peak_client_bytes() const {
    return header_->peak_client_bytes;
}

std::span<LedgerUnit> PoolLedger::units(NumaNode numa_node) const {
    const std::size_t each = units_.size() / header_->numa_nodes;
    return units_.subspan(numa_node.value * each, each);
}

// ---------------------------------------------------------------------------------------------------------------------

struct MachineLedger::Header {
    std::uint64_t magic;
    std::uint32_t ledger_version;
    std::uint32_t reserved;
    LedgerReservation reservations[kOsNumaNodes];           // of 2 MiB pages
    LedgerReservation gigantic_reservations[kOsNumaNodes];  // of 1 GiB pages
};

Answer<MachineLedger> MachineLedger::create() {
    constexpr std::uint64_t kBytes = round_up(sizeof(Header), kPageBytes);
    auto region = MetadataRegion::create("numacre:machine", kBytes);
    if (!region) return Unexpected{region.error()};
    if (auto populated = region->populate(0, kBytes); !populated) return Unexpected{populated.error()};
    MachineLedger ledger(std::move(*region));
    ledger.header_->ledger_version = kLedgerVersion;
    ledger.header_->magic = kMachineLedgerMagic;
    return ledger;
}

Answer<MachineLedger> MachineLedger::open(Fd fd) {
    auto region = MetadataRegion::adopt(std::move(fd), sizeof(Header));
    if (!region) return Unexpected{region.error()};
    MachineLedger ledger(std::move(*region));
    if (ledger.header_->magic != kMachineLedgerMagic) return no_ledger("the machine's ledger has not our mark");
    if (ledger.header_->ledger_version != kLedgerVersion)
        return other_version(ledger.header_->ledger_version, kLayoutVersion);
    return ledger;
}

MachineLedger::MachineLedger(MetadataRegion region)
    : region_(std::move(region)), header_(static_cast<Header *>(region_.address())) {}

LedgerReservation *MachineLedger::reservation(int os_numa_node, std::uint64_t page_bytes) const {
    if (os_numa_node < 0 || os_numa_node >= static_cast<int>(kOsNumaNodes)) return nullptr;
    if (page_bytes == kHugepageBytes) return &header_->reservations[os_numa_node];
    if (page_bytes == kGiganticPageBytes) return &header_->gigantic_reservations[os_numa_node];
    return nullptr;
}

}  // namespace numacre::daemon
