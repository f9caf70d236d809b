#include "weak_memory.hpp"

#include <cstdio>
#include <cstdlib>

namespace numacre::model {

namespace {

[[noreturn]] void die_of(const char *what) {
    std::fprintf(stderr, "model explorer, weak memory: %s\n", what);
    std::abort();
}

constexpr bool is_load(Access kind) {
    return kind == Access::load;
}
constexpr bool is_store(Access kind) {
    return kind == Access::store;
}

}  // namespace

WeakMemory::WeakMemory(unsigned history_max, bool barriers) : history_max_(history_max), barriers_(barriers) {
    if (history_max < 1 || history_max >= kMessagesMax - 1) die_of("history_max must be 1 to 14");
}

unsigned WeakMemory::location_of(std::size_t place) const {
    return place < location_of_place_.size() ? location_of_place_[place] : 0U;
}

unsigned WeakMemory::make_location(std::size_t place) {
    if (place >= location_of_place_.size()) location_of_place_.resize(place + 1);
    if (location_of_place_[place] == 0) {
        if (location_count_ == kLocationsMax) die_of("too many shared words are written: raise kLocationsMax");
        location_of_place_[place] = static_cast<std::uint8_t>(++location_count_);
    }
    return location_of_place_[place];
}

// `location` counts from 1 here and wherever a location is named; views' arrays from 0.
WeakMemory::Range WeakMemory::range_of(unsigned location) const {
    std::size_t first = 0;
    while (first < messages_.size() && messages_[first].location < location) ++first;
    if (first == messages_.size() || messages_[first].location != location) return {first, 0};
    return range_at(first);
}

WeakMemory::Range WeakMemory::range_at(std::size_t first) const {
    std::size_t end = first + 1;
    while (end < messages_.size() && messages_[end].location == messages_[first].location) ++end;
    return {first, static_cast<unsigned>(end - first)};
}

unsigned WeakMemory::list_ways(int thread, const Request &request, unsigned location, std::uint64_t newest,
                               Ways &ways) const {
    const Range range = location != 0 ? range_of(location) : Range{0, 0};
    if (range.count == 0) {
        ways[0] = {0,
                   !is_load(request.kind) && (request.kind != Access::compare_exchange || newest == request.expected)};
        return 1;
    }
    const View &view = view_of(thread);
    const auto message = [this, &range](unsigned index) -> const Message & { return messages_[range.first + index]; };
    // A seq_cst load sees the last seq_cst write that comes before it in S; a seq_cst write comes after all others.
    unsigned load_floor = 0;
    unsigned write_floor = 0;
    for (unsigned i = 0; i < range.count; ++i) {
        if (!message(i).seq_cst) continue;
        write_floor = i;
        if (message(i).number <= view.order_seen) load_floor = i;
    }
    const auto readable = [&](unsigned i, std::memory_order order) {
        return order != std::memory_order_seq_cst || i >= load_floor;
    };
    unsigned count = 0;
    for (unsigned i = range.count; i-- > view.seen[location - 1];) {
        const bool room_behind = (i + 1 == range.count || !message(i + 1).follows_closely) &&
                                 (request.order != std::memory_order_seq_cst || i >= write_floor);
        if (is_load(request.kind)) {
            if (readable(i, request.order)) ways[count++] = {i, false};
        } else if (request.kind != Access::compare_exchange || message(i).value == request.expected) {
            if (room_behind) ways[count++] = {i, true};
        } else if (readable(i, request.failure_order)) {
            ways[count++] = {i, false};
        }
    }
    return count;
}

void WeakMemory::pass_barrier(int thread) {
    const View before = view_of(thread);
    for (int other = 0; other < kThreadsMax; ++other) {
        if (other == thread) continue;
        view_of(thread).join(view_of(other));
        view_of(other).join(before);
    }
    view_of(thread).join(view_of(kEnded));
    view_of(thread).join(view_of(kKernel));
}

unsigned WeakMemory::ways(int thread, const Request &request, std::size_t place, std::uint64_t newest) const {
    if (request.kind == Access::barrier) return 1;
    Ways ways;
    return list_ways(thread, request, location_of(place), newest, ways);
}

bool WeakMemory::knows_newest(int thread, std::size_t place) const {
    const unsigned location = location_of(place);
    const unsigned count = location != 0 ? range_of(location).count : 0;
    return count == 0 || view_of(thread).seen[location - 1] + 1U == count;
}

WeakMemory::Outcome WeakMemory::perform(int thread, const Request &request, std::size_t place, std::uint64_t newest,
                                        unsigned way) {
    Ways ways;
    const unsigned known = location_of(place);
    const unsigned way_count = list_ways(thread, request, known, newest, ways);
    if (way >= way_count) die_of("no such way");
    const Way chosen = ways[way];
    Outcome outcome{newest, newest, newest, 0};
    if (known == 0 && !chosen.writes) return outcome;
    const unsigned location = make_location(place);
    Range range = range_of(location);
    if (range.count == 0) {
        if (!chosen.writes) return outcome;
        Message first;
        first.location = static_cast<std::uint8_t>(location);
        first.value = newest;
        messages_.insert(messages_.begin() + static_cast<std::ptrdiff_t>(range.first), first);
        range.count = 1;
    }
    outcome.behind_newest = range.count - 1 - chosen.message;
    const std::size_t read = range.first + chosen.message;
    outcome.before = messages_[read].value;
    outcome.after = outcome.before;
    if (!is_store(request.kind)) {
        View &view = view_of(thread);
        std::uint8_t &seen = view.seen[location - 1];
        seen = std::max(seen, static_cast<std::uint8_t>(chosen.message));
        const bool failed = request.kind == Access::compare_exchange && !chosen.writes;
        if (acquires(failed ? request.failure_order : request.order)) view.join(messages_[read].view);
    }
    if (chosen.writes) {
        outcome.after = result_of(request, outcome.before);
        insert(thread, request, location, chosen.message, outcome.after);
        range = range_of(location);
    }
    outcome.newest = messages_[range.first + range.count - 1].value;
    return outcome;
}

template <class Function>
void WeakMemory::for_each_view(const Function &function) {
    for (View &view : views_) function(view);
    for (Message &message : messages_) function(message.view);
}

void WeakMemory::insert(int thread, const Request &request, unsigned location, unsigned behind, std::uint64_t value) {
    std::uint8_t last_number = 0;
    for_each_view([&](View &view) {
        if (view.seen[location - 1] > behind) ++view.seen[location - 1];
        last_number = std::max(last_number, view.order_seen);
    });
    for (const Message &message : messages_) last_number = std::max(last_number, message.number);
    View &view = view_of(thread);
    view.seen[location - 1] = static_cast<std::uint8_t>(behind + 1);
    const std::size_t predecessor = range_of(location).first + behind;
    Message fresh;
    fresh.location = static_cast<std::uint8_t>(location);
    fresh.value = value;
    fresh.follows_closely = !is_store(request.kind);
    if (request.order == std::memory_order_seq_cst) {
        fresh.seq_cst = true;
        fresh.number = static_cast<std::uint8_t>(last_number + 1);
        view.order_seen = fresh.number;
    }
    if (releases(request.order)) fresh.view = view;
    if (fresh.follows_closely) fresh.view.join(messages_[predecessor].view);  // a release sequence goes on
    messages_.insert(messages_.begin() + static_cast<std::ptrdiff_t>(predecessor + 1), fresh);
}

void WeakMemory::pass_through_channel(int thread, const Request &request, std::size_t place, std::uint64_t newest) {
    Request strong = request;
    strong.order = strong.failure_order = std::memory_order_acq_rel;
    perform(thread, strong, place, newest, 0);
    // Nobody reads an older one, so there is none.
    const unsigned location = location_of(place);
    if (location == 0) return;
    const unsigned count = range_of(location).count;
    if (count == 0) return;
    for (View &view : views_) view.seen[location - 1] = static_cast<std::uint8_t>(count - 1);
}

bool WeakMemory::touch(int thread, std::size_t place) {
    if (!knows_newest(thread, place)) return false;
    Request store{};
    store.kind = Access::store;
    store.order = std::memory_order_relaxed;
    perform(thread, store, place, 0, 0);
    return true;
}

void WeakMemory::start(int thread, int starter) {
    view_of(thread) = view_of(kKernel);
    if (starter >= 0) view_of(thread).join(view_of(starter));
}

void WeakMemory::die(int thread) {
    view_of(kKernel).join(view_of(thread));
    view_of(thread) = View{};
}

// Returns how many messages are left.
unsigned WeakMemory::tidy_location(Range range, unsigned live) {
    const unsigned location = messages_[range.first].location;
    unsigned oldest = range.count - 1;
    for (int thread = 0; thread < kThreadsMax; ++thread)
        if ((live >> thread & 1) != 0) oldest = std::min<unsigned>(oldest, view_of(thread).seen[location - 1]);
    if (range.count - oldest > history_max_) {
        oldest = range.count - history_max_;
        was_cut_ = true;
    }
    if (oldest != 0) {
        const auto begin = messages_.begin() + static_cast<std::ptrdiff_t>(range.first);
        messages_.erase(begin, begin + static_cast<std::ptrdiff_t>(oldest));
        for_each_view([&](View &view) {
            std::uint8_t &seen = view.seen[location - 1];
            seen = static_cast<std::uint8_t>(seen > oldest ? seen - oldest : 0);
        });
    }
    // Nothing goes before the oldest one, and nobody reads an older one instead of it.
    Message &first = messages_[range.first];
    first.follows_closely = false;
    first.seq_cst = false;
    first.number = 0;
    return range.count - oldest;
}

void WeakMemory::tidy_numbers(unsigned live) {
    std::uint8_t passed = UINT8_MAX;
    for (int thread = 0; thread < kThreadsMax; ++thread)
        if ((live >> thread & 1) != 0) passed = std::min(passed, view_of(thread).order_seen);
    std::array<bool, UINT8_MAX + 1> used{};
    std::uint8_t last = 0;
    for (const Message &message : messages_) {
        if (!message.seq_cst || message.number <= passed) continue;
        used[message.number] = true;
        last = std::max(last, message.number);
    }
    std::array<std::uint8_t, UINT8_MAX + 1> renumbered;
    std::uint8_t count = 0;
    for (unsigned number = 0; number <= last; ++number) {
        if (used[number]) ++count;
        renumbered[number] = count;
    }
    const auto renumber = [&](std::uint8_t &number) { number = number <= last ? renumbered[number] : count; };
    for_each_view([&renumber](View &view) { renumber(view.order_seen); });
    for (Message &message : messages_) renumber(message.number);
}

void WeakMemory::tidy(unsigned live) {
    if (messages_.empty()) {
        for (View &view : views_) view.order_seen = 0;
        return;
    }
    for (std::size_t at = 0; at < messages_.size();) at += tidy_location(range_at(at), live);
    tidy_numbers(live);
    // One message that tells nobody anything is as good as a location that was never written.
    for (std::size_t at = 0; at < messages_.size();) {
        const Range range = range_at(at);
        if (range.count == 1 && messages_[at].view == View{})
            messages_.erase(messages_.begin() + static_cast<std::ptrdiff_t>(at));
        else
            at += range.count;
    }
}

void WeakMemory::add_to_hash(std::uint64_t &a, std::uint64_t &b) const {
    // Most words of most views are 0.
    std::uint64_t place = 0;
    const auto add = [&a, &b, &place](std::uint64_t word) {
        ++place;
        if (word == 0) return;
        a += fold(word ^ 0x9e37'79b9'7f4a'7c15, place * 0xd6e8'feb8'6659'fd93);
        b += fold(word ^ 0xc2b2'ae3d'27d4'eb4f, place * 0xff51'afd7'ed55'8ccd);
    };
    const auto add_view = [&add](const View &view) {
        static_assert(sizeof(View) == 64);
        std::array<std::uint64_t, 8> words;
        std::memcpy(words.data(), &view, sizeof view);
        for (const std::uint64_t word : words) add(word);
    };
    for (const View &view : views_) add_view(view);
    for (const Message &message : messages_) {
        add(message.value);
        add(std::uint64_t{message.location} << 32 | std::uint64_t{message.follows_closely} << 16 |
            std::uint64_t{message.seq_cst} << 8 | message.number);
        add_view(message.view);
    }
}

void WeakMemory::save() {
    saved_.push_back({views_, messages_.size()});
    saved_messages_.insert(saved_messages_.end(), messages_.begin(), messages_.end());
}

void WeakMemory::restore(std::size_t count) {
    if (saved_.size() <= count) return;
    while (saved_.size() > count + 1) {
        saved_messages_.resize(saved_messages_.size() - saved_.back().message_count);
        saved_.pop_back();
    }
    views_ = saved_.back().views;
    const auto begin = saved_messages_.end() - static_cast<std::ptrdiff_t>(saved_.back().message_count);
    messages_.assign(begin, saved_messages_.end());
    saved_messages_.erase(begin, saved_messages_.end());
    saved_.pop_back();
}

}  // namespace numacre::model
