#include "memory/node_memory.hpp"

#include <algorithm>
#include <array>
#include <iterator>
#include <span>
#include <string_view>
#include <utility>

#include "base/bytes.hpp"
#include "engine.hpp"
#include "memory/hugetlb_cgroup.hpp"
#include "numacre/shm/account.hpp"
#include "numacre/shm/format.hpp"
#include "numacre/shm/validate.hpp"
#include "os/log.hpp"
#include "spec/pool_spec.hpp"

namespace numacre::daemon {

namespace {

// How much is mapped at once to see where the pages are.
constexpr std::uint64_t kLookedAtBytesMax = std::uint64_t{64} << 20;
// How much is populated between two looks at what the machine has left.
constexpr std::uint64_t kPieceBytes = std::uint64_t{64} << 20;

std::string region_name(const PoolSpec &spec, NumaNode numa_node, const char *part) {
    return "numacre:" + spec.name + ":" + std::to_string(numa_node.value) + ":" + part;
}

std::uint64_t without(std::uint64_t bytes, std::uint64_t booked) {
    return bytes - std::min(bytes, booked);
}

// For memory that is not hugetlb. The kernel refuses no request as too large, it kills a process. So ask first.
// own_bytes: what the caller itself has booked there.
Answer<void> check_available(const Topology &topology, NumaNode numa_node, std::uint64_t bytes,
                             std::uint64_t own_bytes = 0) {
    const std::uint64_t of_others = without(topology.bytes_in_growth(numa_node), own_bytes);
    const std::uint64_t available = without(topology.available_bytes(numa_node), of_others);
    if (bytes + kNodeHeadroomBytes <= available) return {};
    return Unexpected{
        Failure{Errc::out_of_frames, "numa node " + std::to_string(numa_node.value) + " has " +
                                         std::to_string(available >> 20) + "M of memory available, " +
                                         format_bytes(bytes) + " and " + format_bytes(kNodeHeadroomBytes) +
                                         " for the rest of the machine are needed: ask for less, or free some"}};
}

// Metadata lies on small pages, whatever the frames lie on, and comes with the frames that it describes. A client that
// maps it can touch all of it at any time. So a pool whose metadata the machine could not hold is not made.
// own_bytes: what the caller itself has booked.
Answer<void> check_left(const Topology &topology, std::uint64_t bytes, std::uint64_t own_bytes, const std::string &what,
                        const std::string &remedy) {
    MemoryLeft left = memory_left();
    left.bytes = without(left.bytes, without(topology.bytes_in_growth(), own_bytes));
    if (bytes <= left.bytes && left.bytes - bytes >= kNodeHeadroomBytes) return {};
    return Unexpected{Failure{Errc::out_of_frames, what + " takes " + std::to_string(bytes >> 20) + "M, and " +
                                                       left.said_by + " has " + std::to_string(left.bytes >> 20) +
                                                       "M of memory left, " + format_bytes(kNodeHeadroomBytes) +
                                                       " of them for the rest: " + remedy}};
}

// The metadata of frames that come online: their share of the region, rounded up.
std::uint64_t metadata_bytes_for(const Geometry &geometry, std::uint64_t region_bytes, std::uint64_t bytes) {
    // The last page of an object pool may be larger than the pool.
    bytes = std::min(bytes, geometry.capacity_bytes());
    return static_cast<std::uint64_t>(static_cast<double>(region_bytes) * static_cast<double>(bytes) /
                                      static_cast<double>(geometry.capacity_bytes())) +
           kPageBytes;
}

Answer<void> check_unbooked(const Topology &topology, NumaNode numa_node, std::uint64_t bytes) {
    const std::uint64_t left = topology.unbooked_bytes(numa_node);
    if (bytes <= left) return {};
    return Unexpected{Failure{Errc::out_of_frames, "numa node " + std::to_string(numa_node.value) +
                                                       " of the topology " + topology.source() + " has " +
                                                       format_bytes(left) + " left, " + format_bytes(bytes) +
                                                       " are needed: ask for less"}};
}

// Sequence lock: lets concurrent scanners detect online/offline changes. release: the online units are counted before
// the change is over. (Only one thread at a time makes changes: an RMW is not needed, but speed does not matter here.)
class OnlineChange {
public:
    explicit OnlineChange(std::atomic<std::uint64_t> &changes) : changes_(changes) {
        changes_.fetch_add(1, std::memory_order_acq_rel);
    }
    OnlineChange(const OnlineChange &) = delete;
    OnlineChange &operator=(const OnlineChange &) = delete;
    ~OnlineChange() { changes_.fetch_add(1, std::memory_order_acq_rel); }

private:
    std::atomic<std::uint64_t> &changes_;
};

// One page at least: a pool that begins empty must be able to grow.
std::uint64_t pages_at_first(const PoolSpec &spec, NumaNode numa_node, std::uint64_t page_bytes) {
    return std::max<std::uint64_t>(1, divide_up(spec.online_bytes_on(numa_node), page_bytes));
}

void append(std::string &note, std::string_view reason) {
    note += (note.empty() ? "" : "; ");
    note += reason;
}

}  // namespace

Answer<DataRegion> NodeMemory::choose_backing(const Plan &plan, Topology &topology, Hugepages &hugepages,
                                              std::string &note) {
    const std::string name = region_name(plan.spec, plan.numa_node, "frames");
    const std::uint64_t bytes = plan.geometry.capacity_bytes();
    // Only an object pool does not fill its last page.
    const auto file_bytes = [bytes](wire::Backing backing) { return round_up(bytes, page_bytes_of(backing)); };
    const int os_numa_node = topology.numa_nodes()[plan.numa_node.value].os_numa_node;

    const std::span tried(std::ranges::find(kBackings, plan.spec.backing), std::end(kBackings));

    for (const wire::Backing backing : tried) {
        if (!is_hugetlb(backing)) break;
        const std::uint64_t page = page_bytes_of(backing);
        const std::uint64_t pages = pages_at_first(plan.spec, plan.numa_node, page);
        const Hugepages::Lock held = hugepages.lock(os_numa_node, page);
        const auto allowed = check_hugetlb_cgroup(page, pages * page);
        const auto reserved =
            allowed ? hugepages.ensure_free(os_numa_node, page, pages, topology.available_bytes(plan.numa_node),
                                            Hugepages::For::new_file)
                    : Unexpected{allowed.error()};
        if (reserved) {
            auto region = DataRegion::create(name, file_bytes(backing), backing, topology, plan.numa_node);
            if (region) return region;
            append(note, region.error().message);
            hugepages.give_back(os_numa_node, page, *reserved);
        } else {
            append(note, reserved.error().message);
        }
    }
    if (plan.spec.backing != wire::Backing::small_pages) {
        constexpr wire::Backing kThp = wire::Backing::thp;
        auto region = DataRegion::create(name, file_bytes(kThp), kThp, topology, plan.numa_node);
        if (!region) return region;
        // Tries on one page whether the kernel can make hugepages, before anybody is told that it does.
        const bool populated =
            check_available(topology, plan.numa_node, kHugepageBytes) && region->populate(0, kHugepageBytes);
        const bool collapsed = populated && region->collapse(0, kHugepageBytes);
        if (populated) region->punch(0, kHugepageBytes);
        if (collapsed) return region;
        append(note, "the kernel made no transparent hugepage (MADV_COLLAPSE, Linux 6.1 and later)");
    }
    constexpr wire::Backing kSmall = wire::Backing::small_pages;
    return DataRegion::create(name, file_bytes(kSmall), kSmall, topology, plan.numa_node);
}

namespace {

// Populates the parts that format_node_region() writes, and that every walk reads whatever is online: the header, the
// top layer with its index, and the hints above. It uses a system call that can report that there is no memory: a store
// by the daemon would be a SIGBUS.
Answer<void> populate_top(MetadataRegion &metadata, const Geometry &geometry, const NodeLayout<ProductionEnv> &layout) {
    Answer<void> result = metadata.populate(0, kPageBytes);
    const auto populate = [&](std::uint64_t part, std::uint64_t bytes) {
        if (result) result = metadata.populate(part, bytes);
    };
    const unsigned top = geometry.top_layer();
    populate(top == 0 ? layout.leaf : layout.upper[top], geometry.word_count(top) * sizeof(View::Word));
    populate(layout.index[top], geometry.index_entry_count(top) * sizeof(View::Word));
    // The root, which every search reads, may be on the level of the top layer.
    for (unsigned level = std::min(std::max(top + 1, 2U), geometry.hint_levels()); level <= geometry.hint_levels();
         ++level)
        populate(layout.hint[level], geometry.word_count(level) * sizeof(View::Word));
    return result;
}

}  // namespace

Answer<void> check_metadata_left(const PoolSpec &spec, const Geometry &geometry, std::uint32_t thread_slots,
                                 const Topology &topology, std::uint64_t other_bytes) {
    const auto layout = NodeLayout<ProductionEnv>::of(geometry, thread_slots);
    const std::uint64_t numa_nodes = topology.numa_nodes().size();
    return check_left(topology, layout.region_bytes * numa_nodes + other_bytes, 0,
                      "the metadata of a capacity of " + format_bytes(spec.capacity_bytes) +
                          " a numa node in frames of " + format_bytes(spec.frame_bytes),
                      spec.has_objects() ? "ask for fewer objects" : "use larger frames, or less capacity");
}

Answer<std::unique_ptr<NodeMemory>> NodeMemory::create(const Plan &plan, Topology &topology, Hugepages &hugepages) {
    if (auto booked = check_unbooked(topology, plan.numa_node, plan.spec.online_bytes_on(plan.numa_node)); !booked)
        return Unexpected{booked.error()};
    const auto layout = NodeLayout<ProductionEnv>::of(plan.geometry, plan.thread_slots);
    auto metadata = MetadataRegion::create(region_name(plan.spec, plan.numa_node, "metadata"), layout.region_bytes);
    if (!metadata) return Unexpected{metadata.error()};
    metadata->prefer(topology, plan.numa_node);
    if (auto populated = populate_top(*metadata, plan.geometry, layout); !populated)
        return Unexpected{populated.error()};
    std::string note;
    auto data = choose_backing(plan, topology, hugepages, note);
    if (!data) return Unexpected{data.error()};

    format_node_region<ProductionEnv>(metadata->address(), plan.geometry, plan.numa_node, plan.instance_id,
                                      plan.thread_slots);
    if (data->backing() != plan.spec.backing)
        log::warn("pool falls back to lesser pages", {{"pool", plan.spec.name},
                                                      {"numa_node", plan.numa_node.value},
                                                      {"wanted", std::string(backing_name(plan.spec.backing))},
                                                      {"backing", std::string(backing_name(data->backing()))},
                                                      {"reason", note}});
    LedgerNode &record = plan.ledger->node(plan.numa_node);
    record.os_numa_node = topology.numa_nodes()[plan.numa_node.value].os_numa_node;
    record.backing = static_cast<std::uint32_t>(data->backing());
    std::unique_ptr<NodeMemory> made(new NodeMemory(plan, topology, hugepages, std::move(*metadata), std::move(*data)));
    if (const std::uint64_t page = made->data_.page_bytes(); is_hugetlb(made->data_.backing()))
        made->reserved_ahead_bytes_ = pages_at_first(plan.spec, plan.numa_node, page) * page;
    made->note_ = std::move(note);
    if (auto populated = made->populate_thread_parts(); !populated) return Unexpected{populated.error()};
    return made;
}

Answer<std::unique_ptr<NodeMemory>> NodeMemory::adopt(const Plan &plan, Topology &topology, Hugepages &hugepages,
                                                      Fd metadata_fd, Fd data_fd) {
    const auto layout = NodeLayout<ProductionEnv>::of(plan.geometry, plan.thread_slots);
    auto metadata = MetadataRegion::adopt(std::move(metadata_fd), layout.region_bytes);
    if (!metadata) return Unexpected{metadata.error()};
    const LedgerNode &record = plan.ledger->node(plan.numa_node);
    const auto backing = static_cast<wire::Backing>(record.backing);
    auto data = DataRegion::adopt(std::move(data_fd), round_up(plan.geometry.capacity_bytes(), page_bytes_of(backing)),
                                  backing);
    if (!data) return Unexpected{data.error()};
    std::unique_ptr<NodeMemory> made(new NodeMemory(plan, topology, hugepages, std::move(*metadata), std::move(*data)));
    if (made->data_.backing() != plan.spec.backing) made->note_ = "chosen before the daemon's last start";

    made->online_changes_ = 1;  // until finish_units()
    const auto units = plan.ledger->units(plan.numa_node);
    const auto is_online = [&](std::uint64_t unit) {
        return unit < units.size() && units[unit].state.load(std::memory_order_relaxed) == UnitState::online;
    };
    for (std::uint64_t unit = 0; unit < units.size(); ++unit) {
        UnitRange run{unit, 0};
        for (; is_online(unit); ++unit) ++run.count;
        if (run.count == 0) continue;
        made->count_online(run);
        // This memory was granted once, and is there: a synthetic node that has become smaller is over-booked.
        (void)topology.take(plan.numa_node, run.count * made->unit_memory_bytes_);
    }
    // Units that drain by the ledger. Perhaps only some of their chunks drain; the caller finishes that. Until then the
    // free memory of these units is not to be promised.
    for (std::uint64_t unit = 0; unit < units.size(); ++unit)
        if (made->drain_of(unit) != Drain::none) made->draining_.insert(unit);
    made->draining_units_ = made->draining_.size();
    return made;
}

void NodeMemory::finish_units() {
    // The metadata is there already, except for the parts of threads where an older daemon did not populate them. The
    // calls count anew how much of it is populated, so that it can be made hugepages. Not in adopt(): a client can make
    // the kernel wait for its file.
    (void)populate_thread_parts();
    for (std::uint64_t unit = 0; unit < online_.size(); ++unit) {
        UnitRange run{unit, 0};
        for (; unit < online_.size() && online_[unit]; ++unit) ++run.count;
        if (run.count != 0) (void)populate_metadata(frames_of(run));
    }
    const auto units = plan_.ledger->units(plan_.numa_node);
    for (std::uint64_t unit = 0; unit < units.size(); ++unit) {
        const UnitState state = units[unit].state.load(std::memory_order_relaxed);
        if (state == UnitState::offline || state == UnitState::online) continue;
        log::info("finishing a step of the daemon before", {{"pool", plan_.spec.name},
                                                            {"numa_node", plan_.numa_node.value},
                                                            {"unit", unit},
                                                            {"step", static_cast<unsigned>(state)}});
        if (state == UnitState::filling || state == UnitState::closed) {
            data_.punch(unit * unit_memory_bytes_, unit_memory_bytes_);
            set_state({unit, 1}, UnitState::offline);
            give_back_pages(data_.backing(), unit_memory_bytes_);
            continue;
        }
        (void)topology_.take(plan_.numa_node, unit_memory_bytes_);  // as in adopt()
        open_chunks({unit, 1}, true);
        count_online({unit, 1});
        set_state({unit, 1}, UnitState::online);
    }
    online_changes_.fetch_add(1, std::memory_order_acq_rel);
}

void NodeMemory::set_state(UnitRange units, UnitState state) {
    // release: a step's own effects stand before the word that says so; the next daemon maps the page after our death.
    for (LedgerUnit &unit : plan_.ledger->units(plan_.numa_node).subspan(units.first, units.count))
        unit.state.store(state, std::memory_order_release);
}

void NodeMemory::count_online(UnitRange units) {
    for (std::uint64_t unit = units.first; unit < units.first + units.count; ++unit) online_[unit] = true;
    if (search_from_ == units.first) search_from_ += units.count;
    online_units_.fetch_add(units.count, std::memory_order_relaxed);
}

// Returns how many chunks were not as the daemon had left them. only_closed: some may be open already, and in use.
std::uint64_t NodeMemory::open_chunks(UnitRange units, bool only_closed) {
    std::uint64_t overwritten = 0;
    const std::uint64_t first = units.first * chunks_in_unit();
    for (std::uint64_t chunk = first; chunk < first + units.count * chunks_in_unit(); ++chunk) {
        if (only_closed && !chunks_.is_offline(chunk)) continue;
        if (!chunks_.bring_online(chunk)) ++overwritten;
    }
    return overwritten;
}

void NodeMemory::set_drain(std::uint64_t unit, Drain drain) {
    drain_changes_.fetch_add(1, std::memory_order_seq_cst);
    // The ledger says `drain` for as long as any chunk may say so: a daemon that finds it there does the rest.
    Durable<Drain> &remembered = plan_.ledger->units(plan_.numa_node)[unit].drain;
    const bool begins = drain != Drain::none;
    if (begins) {
        remembered.store(drain, std::memory_order_release);
    } else {
        // A look that began before this finds that the word of DrainingHeld has changed. A look that begins from here
        // on finds opening_ set, and notes nothing.
        opening_.fetch_add(1, std::memory_order_seq_cst);
        forget_draining_held(plan_.pool);
    }
    for (std::uint64_t chunk = unit * chunks_in_unit(); chunk < (unit + 1) * chunks_in_unit(); ++chunk)
        chunks_.set_drain(chunk, begins);
    if (!begins) {
        remembered.store(drain, std::memory_order_release);
        opening_.fetch_sub(1, std::memory_order_seq_cst);
    }
    if (begins)
        draining_.insert(unit);
    else
        draining_.erase(unit);
    draining_units_.store(draining_.size(), std::memory_order_relaxed);  // a count
}

Drain NodeMemory::drain_of(std::uint64_t unit) const {
    return plan_.ledger->units(plan_.numa_node)[unit].drain.load(std::memory_order_acquire);
}

NodeMemory::NodeMemory(Plan plan, Topology &topology, Hugepages &hugepages, MetadataRegion metadata, DataRegion data)
    : plan_(std::move(plan)),
      topology_(topology),
      hugepages_(hugepages),
      metadata_(std::move(metadata)),
      data_(std::move(data)),
      view_(View::at(metadata_.address(), plan_.geometry, plan_.numa_node, plan_.thread_slots)),
      chunks_(view_, plan_.pool),
      unit_bytes_(resize_unit_bytes(plan_.spec)),
      unit_memory_bytes_(round_up(unit_bytes_, page_bytes_of(data_.backing()))),
      online_(plan_.geometry.capacity_bytes() / unit_bytes_, false) {}

void NodeMemory::count_hugepages(Hugepages::Pages &pages) const {
    if (!is_hugetlb(data_.backing())) return;
    pages[{os_numa_node(), data_.page_bytes()}] += data_.backed_bytes() / data_.page_bytes();
}

void NodeMemory::give_back_frames() {
    // Jobs that come later touch none of the frames.
    online_.assign(online_.size(), false);
    for (std::uint64_t unit = 0; unit < online_.size();) {
        std::uint64_t end = unit;
        while (end < online_.size() && !is_pinned(end)) ++end;
        if (end != unit) data_.punch(unit * unit_memory_bytes_, (end - unit) * unit_memory_bytes_);
        unit = end + 1;
    }
}

NodeMemory::~NodeMemory() {
    const wire::Backing backing = data_.backing();
    {
        const DataRegion closing = std::move(data_);
    }
    topology_.give_back(plan_.numa_node, online_memory_bytes());
    give_back_pages(backing, online_memory_bytes() + reserved_ahead_bytes_);
}

std::string NodeMemory::backing_note() const {
    const std::lock_guard lock(note_mutex_);
    return note_;
}

Answer<void> NodeMemory::check_growth(std::uint64_t bytes) const {
    bytes = round_up(bytes, page_bytes_of(data_.backing()));
    if (auto booked = check_unbooked(topology_, plan_.numa_node, bytes); !booked) return booked;
    const bool is_huge = is_hugetlb(data_.backing());
    const std::uint64_t available = topology_.available_bytes(plan_.numa_node);
    if (!is_huge)
        if (auto enough = check_available(topology_, plan_.numa_node, bytes); !enough) return enough;
    if (auto enough = check_memory_left(bytes); !enough || !is_huge) return enough;
    const std::uint64_t page = data_.page_bytes();
    if (auto allowed = check_hugetlb_cgroup(page, bytes); !allowed) return allowed;
    const auto pool = hugepages_.pool(os_numa_node(), page);
    const std::uint64_t free = pool ? pool->free : 0;
    const std::uint64_t pages = bytes / page;
    if (pages <= free) return {};
    if (hugepages_.may_reserve() && (pages - free) * page + kNodeHeadroomBytes <= available) return {};
    return Unexpected{
        Failure{Errc::out_of_frames,
                "numa node " + std::to_string(plan_.numa_node.value) + " has " + std::to_string(free) +
                    " free hugepages of " + format_bytes(page) + ", " + std::to_string(pages) + " are needed" +
                    (hugepages_.may_reserve() ? ", and only " + std::to_string(available >> 20) +
                                                    "M of memory to make more of: ask for less, or free some"
                                              : ": reserve them, or allow the daemon to (--reserve-hugepages)")}};
}

std::uint64_t NodeMemory::plain_bytes_for(std::uint64_t bytes) const {
    return metadata_bytes_for(plan_.geometry, metadata_.bytes(), bytes) + (is_hugetlb(data_.backing()) ? 0 : bytes);
}

Answer<void> NodeMemory::check_memory_left(std::uint64_t bytes, std::uint64_t own_bytes) const {
    return check_left(
        topology_, plain_bytes_for(bytes), own_bytes,
        (is_hugetlb(data_.backing()) ? "the metadata of " : "with its metadata, a growth by ") + format_bytes(bytes),
        "ask for less, or free some");
}

bool NodeMemory::header_is_ours() const {
    return validate_node_region<ProductionEnv>(metadata_.address(),
                                               {plan_.geometry, plan_.instance_id, metadata_.bytes()}, plan_.numa_node,
                                               plan_.thread_slots) == Errc::ok;
}

UnitRange NodeMemory::next_offline(std::uint64_t max_units) const {
    UnitRange range{search_from_, 0};
    while (range.first < online_.size() && online_[range.first]) ++range.first;
    while (range.count < max_units && range.first + range.count < online_.size() && !online_[range.first + range.count])
        ++range.count;
    return range;
}

NodeMemory::FrameRange NodeMemory::frames_of(UnitRange units) const {
    const std::uint64_t each = plan_.geometry.frames_in(unit_bytes_);
    return {units.first * each, units.count * each};
}

Answer<void> NodeMemory::populate_metadata(FrameRange frames) {
    const auto layout = NodeLayout<ProductionEnv>::of(plan_.geometry, plan_.thread_slots);
    const std::uint64_t last = frames.first + frames.count - 1;
    Answer<void> result;
    const auto populate = [&](std::uint64_t part, unsigned shift, std::uint64_t bytes_each = sizeof(View::Word)) {
        const std::uint64_t from = part + (frames.first >> shift) * bytes_each;
        const std::uint64_t to = part + ((last >> shift) + 1) * bytes_each;
        if (result) result = metadata_.populate(from, to - from);
    };
    populate(layout.leaf, word_order(0));
    for (unsigned layer = 1; layer <= view_.top_layer; ++layer) populate(layout.upper[layer], word_order(layer));
    for (unsigned level = 2; level <= view_.hint_levels; ++level) populate(layout.hint[level], word_order(level));
    for (unsigned layer = 0; layer <= view_.top_layer; ++layer) {
        populate(layout.index[layer], plan_.geometry.index_granule(layer));
        populate(layout.era[layer], plan_.geometry.index_granule(layer), sizeof(View::EraWord));
    }
    return result;
}

Answer<void> NodeMemory::populate_thread_parts() {
    const auto layout = NodeLayout<ProductionEnv>::of(plan_.geometry, plan_.thread_slots);
    const std::uint64_t end = layout.counters + plan_.thread_slots * sizeof(ThreadCounters<ProductionEnv>);
    return metadata_.populate(layout.home, end - layout.home);
}

Answer<std::uint64_t> NodeMemory::populate_hugepages(std::uint64_t offset, std::uint64_t bytes) {
    const int os = os_numa_node();
    const std::uint64_t page = data_.page_bytes();
    const Hugepages::Lock held = hugepages_.lock(os, page);
    // The cgroup is asked first: reserving pages needs no permission of the cgroup, allocating them does.
    if (auto allowed = check_hugetlb_cgroup(page, bytes); !allowed) return Unexpected{allowed.error()};
    auto reserved = hugepages_.ensure_free(os, page, bytes / page, topology_.available_bytes(plan_.numa_node),
                                           Hugepages::For::old_file);
    if (!reserved) return reserved;
    const auto bound = topology_.bind_this_thread(plan_.numa_node);
    auto populated = bound ? data_.populate(offset, bytes) : Answer<void>(Unexpected{bound.error()});
    if (populated) return reserved;
    hugepages_.give_back(os, page, *reserved);
    return Unexpected{std::move(populated.error())};
}

Answer<std::uint64_t> NodeMemory::populate_data(std::uint64_t offset, std::uint64_t bytes, std::uint64_t own_bytes) {
    if (is_hugetlb(data_.backing())) return populate_hugepages(offset, bytes);
    if (auto enough = check_available(topology_, plan_.numa_node, bytes, own_bytes); !enough)
        return Unexpected{enough.error()};
    if (auto populated = data_.populate(offset, bytes); !populated) return Unexpected{populated.error()};
    if (data_.backing() == wire::Backing::thp && !data_.collapse(offset, bytes)) {
        const std::lock_guard lock(note_mutex_);
        constexpr std::string_view kPartly = "part of the memory is small pages: the kernel found no free hugepages";
        if (note_.find(kPartly) == std::string::npos) {
            append(note_, kPartly);
            log::warn("small pages where hugepages were wanted",
                      {{"pool", plan_.spec.name}, {"numa_node", plan_.numa_node.value}, {"offset", offset}});
        }
    }
    return std::uint64_t{0};
}

// A unit may be large, as that of an object pool: other processes take memory meanwhile, and would have to wait for
// hugepages.
Answer<std::uint64_t> NodeMemory::populate_in_pieces(std::uint64_t offset, std::uint64_t bytes,
                                                     std::uint64_t own_bytes) {
    const std::uint64_t each = std::max(kPieceBytes, page_bytes_of(data_.backing()));
    std::uint64_t reserved = 0;
    for (std::uint64_t done = 0; done < bytes;) {
        const std::uint64_t piece = std::min(each, bytes - done);
        const auto enough = done == 0 ? Answer<void>{} : check_memory_left(piece, own_bytes);
        const auto more = enough ? populate_data(offset + done, piece, own_bytes) : Unexpected{enough.error()};
        if (!more) {
            data_.punch(offset, done);
            give_back_pages(data_.backing(), reserved * data_.page_bytes());
            return more;
        }
        reserved += *more;
        done += piece;
    }
    return reserved;
}

Answer<void> NodeMemory::bring_online(UnitRange units, Growth &growth) {
    const std::uint64_t offset = units.first * unit_memory_bytes_;
    const std::uint64_t bytes = units.count * unit_memory_bytes_;
    // Checked at each step: other processes take memory meanwhile, and beyond a cgroup's limit the kernel would end the
    // daemon, or clients.
    const std::uint64_t plain_bytes = plain_bytes_for(bytes);
    const Topology::InGrowth in_growth(topology_, plan_.numa_node, plain_bytes);
    if (auto enough = check_memory_left(bytes, plain_bytes); !enough) return enough;
    if (auto booked = topology_.take(plan_.numa_node, bytes); !booked) return booked;
    set_state(units, UnitState::filling);
    const auto metadata = populate_metadata(frames_of(units));
    const auto reserved = metadata ? populate_in_pieces(offset, bytes, plain_bytes) : Unexpected{metadata.error()};
    if (!reserved) {
        topology_.give_back(plan_.numa_node, bytes);
        set_state(units, UnitState::offline);
        return Unexpected{reserved.error()};
    }
    growth.reserved_pages += *reserved;
    for (std::uint64_t unit = units.first; unit < units.first + units.count; ++unit) growth.units.push_back(unit);
    const OnlineChange change(online_changes_);
    set_state(units, UnitState::opening);
    const std::uint64_t overwritten = open_chunks(units, false);
    if (overwritten != 0) {
        overwritten_chunks_.fetch_add(overwritten, std::memory_order_relaxed);  // relaxed: a count
        log::error("entries of offline chunks are not what we wrote: somebody scribbled over the metadata",
                   {{"pool", plan_.spec.name}, {"numa_node", plan_.numa_node.value}, {"chunks", overwritten}});
    }
    const std::uint64_t ahead = std::min(reserved_ahead_bytes_, bytes);
    reserved_ahead_bytes_ -= ahead;
    growth.ahead_bytes += ahead;
    if (reserved_ahead_bytes_ == 0 && is_hugetlb(data_.backing())) {
        const Hugepages::Lock held = hugepages_.lock(os_numa_node(), data_.page_bytes());
        hugepages_.restore_surplus(os_numa_node(), data_.page_bytes());
    }
    count_online(units);
    set_state(units, UnitState::online);
    return {};
}

std::uint64_t NodeMemory::take_offline(std::span<const std::uint64_t> units) {
    const std::uint64_t gone = close_and_punch(units);
    give_back_pages(data_.backing(), gone * unit_memory_bytes_);
    return gone;
}

std::uint64_t NodeMemory::undo(Growth &growth, std::uint64_t units_max) {
    const std::size_t tried = std::min<std::size_t>(units_max, growth.units.size());
    const std::uint64_t undone = close_and_punch(std::span(growth.units).last(tried));
    growth.units.resize(growth.units.size() - tried);
    const std::uint64_t pages = std::min(growth.reserved_pages, undone * (unit_memory_bytes_ / data_.page_bytes()));
    growth.reserved_pages -= pages;
    give_back_pages(data_.backing(), pages * data_.page_bytes());
    // The bytes that were reserved ahead are reserved ahead again.
    const std::uint64_t ahead = std::min(growth.ahead_bytes, undone * unit_memory_bytes_ - pages * data_.page_bytes());
    growth.ahead_bytes -= ahead;
    reserved_ahead_bytes_ += ahead;
    return undone;
}

// Each punch interrupts the CPUs of all clients that have the pages mapped: one punch for a run, not one for each unit.
std::uint64_t NodeMemory::close_and_punch(std::span<const std::uint64_t> units) {
    if (units.empty()) return 0;
    const OnlineChange change(online_changes_);
    std::vector<std::uint64_t> closed;
    closed.reserve(units.size());  // no memory afterwards would leave units closed
    std::ranges::copy_if(units, std::back_inserter(closed), [this](std::uint64_t unit) { return close(unit); });
    std::ranges::sort(closed);
    for (auto first = closed.begin(); first != closed.end();) {
        auto end = first + 1;
        while (end != closed.end() && *end == *(end - 1) + 1) ++end;
        punch({*first, static_cast<std::uint64_t>(end - first)});
        first = end;
    }
    return closed.size();
}

// False: something in the unit is in use or pinned, or it is offline.
bool NodeMemory::close(std::uint64_t unit) {
    if (unit >= online_.size() || !online_[unit] || is_pinned(unit)) return false;
    const std::uint64_t first = unit * chunks_in_unit();
    set_state({unit, 1}, UnitState::closing);
    for (std::uint64_t chunk = first; chunk < first + chunks_in_unit(); ++chunk) {
        if (chunks_.try_take_offline(chunk)) continue;
        while (chunk-- > first) chunks_.bring_online(chunk);
        set_state({unit, 1}, UnitState::online);
        return false;
    }
    set_state({unit, 1}, UnitState::closed);
    online_[unit] = false;
    return true;
}

void NodeMemory::punch(UnitRange closed) {
    data_.punch(closed.first * unit_memory_bytes_, closed.count * unit_memory_bytes_);
    // The units leave online_units_ before they stop draining: in between they count as gone twice, and never as there.
    online_units_.fetch_sub(closed.count, std::memory_order_seq_cst);
    set_state(closed, UnitState::offline);
    // The drain ends here, whichever operation took the unit: back online its chunks are like any others.
    for (std::uint64_t unit = closed.first; unit < closed.first + closed.count; ++unit)
        if (drain_of(unit) != Drain::none) set_drain(unit, Drain::none);
    search_from_ = std::min(search_from_, closed.first);
    topology_.give_back(plan_.numa_node, closed.count * unit_memory_bytes_);
}

std::uint64_t NodeMemory::punch_strays() const {
    // No growth is under way: a growth is one job of this thread, from its first page until its last chunk is online.
    if (!is_overfull()) return 0;
    const std::uint64_t before = data_.backed_bytes();
    for (std::uint64_t unit = 0; unit < online_.size();) {
        std::uint64_t end = unit;
        while (end < online_.size() && !online_[end]) ++end;
        if (end != unit) data_.punch(unit * unit_memory_bytes_, (end - unit) * unit_memory_bytes_);
        unit = end + 1;
    }
    return before - std::min(before, data_.backed_bytes());
}

Answer<void> NodeMemory::zero(Block block) const {
    const std::uint64_t offset = plan_.geometry.bytes_of(block.base.value);
    const std::uint64_t bytes = plan_.geometry.bytes_of(block.order.frames());
    if (offset + bytes > data_.bytes() || !online_[offset / unit_bytes_]) return {};
    return data_.zero(offset, bytes);
}

Answer<std::uint64_t> NodeMemory::bring_home() const {
    auto moved = metadata_.bring_home(topology_, plan_.numa_node);
    const std::uint64_t units_at_once = std::max<std::uint64_t>(1, kLookedAtBytesMax / unit_memory_bytes_);
    for (std::uint64_t unit = 0; moved && unit < online_.size();) {
        std::uint64_t end = unit;
        while (end < online_.size() && end - unit < units_at_once && online_[end] && !is_pinned(end)) ++end;
        if (end == unit) {
            ++unit;
            continue;
        }
        const auto frames =
            data_.bring_home(topology_, plan_.numa_node, unit * unit_memory_bytes_, (end - unit) * unit_memory_bytes_);
        if (!frames) return frames;
        *moved += *frames;
        unit = end;
    }
    return moved;
}

void NodeMemory::give_back_pages(wire::Backing backing, std::uint64_t bytes) {
    if (!is_hugetlb(backing) || bytes == 0) return;
    const std::uint64_t page = page_bytes_of(backing);
    const Hugepages::Lock held = hugepages_.lock(os_numa_node(), page);
    hugepages_.give_back(os_numa_node(), page, bytes / page);
}

NodeMemory::DrainingFrames NodeMemory::draining_frames() const {
    DrainingFrames frames;
    if (!is_draining()) return frames;
    const std::uint64_t unit_frames = plan_.geometry.frames_in(unit_bytes_);
    const bool is_opening = opening_.load(std::memory_order_seq_cst) != 0;
    for (std::uint64_t unit = 0; unit < unit_count(); ++unit) {
        if (!is_gone(unit)) continue;
        std::uint64_t used = 0;
        for (std::uint64_t chunk = unit * chunks_in_unit(); chunk < (unit + 1) * chunks_in_unit(); ++chunk) {
            const bool is_noted = !is_opening && chunks_.is_draining(chunk);  // read before the used frames
            const auto in_chunk = chunks_.used(chunk);
            used += in_chunk.held + in_chunk.taken;
            // Without frames that an operation has taken: it may be ours, or of a client that goes elsewhere.
            if (is_noted) frames.noted += in_chunk.held;
        }
        used = std::min(unit_frames, used);
        frames.used += used;
        frames.free += unit_frames - used;
    }
    return frames;
}

std::uint64_t NodeMemory::draining_bytes() const {
    if (!is_draining()) return 0;
    std::uint64_t units = 0;
    for (std::uint64_t unit = 0; unit < unit_count(); ++unit) units += is_gone(unit) ? 1 : 0;
    return units * unit_bytes_;
}

// True: the unit drains and is online, so no block of it can be had.
bool NodeMemory::is_gone(std::uint64_t unit) const {
    const auto &here = plan_.ledger->units(plan_.numa_node)[unit];
    // acquire: carries the online state from the time of the store.
    return here.drain.load(std::memory_order_acquire) != Drain::none &&
           here.state.load(std::memory_order_acquire) != UnitState::offline;
}

std::uint64_t NodeMemory::used_frames(std::uint64_t unit) const {
    std::uint64_t used = 0;
    for (std::uint64_t chunk = unit * chunks_in_unit(); chunk < (unit + 1) * chunks_in_unit(); ++chunk)
        used += chunks_.used_frames(chunk);
    return used;
}

}  // namespace numacre::daemon
