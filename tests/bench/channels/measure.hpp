// The measuring loops, for any system (adaptor.hpp).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <new>
#include <string_view>
#include <vector>

#include "adaptor.hpp"
#include "processes.hpp"

namespace numacre::bench {

// Every line, so that each of them moves from one CPU to the other.
inline void write_payload(void *block, std::uint64_t sequence) {
    for (std::size_t at = 0; at < kPayloadBytes; at += kLineBytes)
        *reinterpret_cast<std::uint64_t *>(static_cast<std::byte *>(block) + at) = sequence;
}

// False: a line is not of this message.
inline bool payload_is(const void *block, std::uint64_t sequence) {
    std::uint64_t differences = 0;
    for (std::size_t at = 0; at < kPayloadBytes; at += kLineBytes)
        differences |= *reinterpret_cast<const std::uint64_t *>(static_cast<const std::byte *>(block) + at) ^ sequence;
    return differences == 0;
}

// The number that a message carries.
inline std::uint64_t number_of(std::uint64_t sequence, Planted planted) {
    constexpr std::uint64_t kAt = 10;
    if (planted == Planted::swapped && (sequence == kAt || sequence == kAt + 1)) return 2 * kAt + 1 - sequence;
    return sequence;
}

// The number of messages that a sender says it has sent.
inline std::uint64_t total_of(std::uint64_t sent, Planted planted) {
    if (planted == Planted::lost) return sent + 1;
    return planted == Planted::extra ? sent - 1 : sent;
}

// Time from which on a message that has not come counts as lost.
inline constexpr std::uint64_t kLostAfterNs = 200'000'000;

inline double percentile(std::vector<std::uint64_t> &values, double share) {
    if (values.empty()) return 0;
    const auto at = static_cast<std::ptrdiff_t>(share * static_cast<double>(values.size() - 1));
    std::nth_element(values.begin(), values.begin() + at, values.end());
    return static_cast<double>(values[static_cast<std::size_t>(at)]);
}

// A control block in memory of its own.
class SharedControl {
public:
    SharedControl() : memory_(sizeof(Control), false), control_(new (memory_.get()) Control) {}
    Control &operator*() const { return *control_; }

private:
    SharedMemory memory_;
    Control *control_;
};

// --- one way ---------------------------------------------------------------------------------------------------------

// Messages before the measurement: every buffer was used, and the CPUs are awake. A multiple of the burst.
inline std::uint64_t messages_before(const Run &run) {
    return std::uint64_t{4} * run.shape.capacity / run.burst * run.burst;
}

template <class Sender, bool kWritten>
class OneWaySender {
public:
    OneWaySender(Sender &sender, Control &control, const Run &run) : sender_(sender), control_(control), run_(run) {}
    void work() {
        constexpr unsigned kBurstsBetweenLooks = 64;
        while (sent_ < messages_before(run_)) send();
        while (control_.received.load(std::memory_order_acquire) != sent_) relax();
        const std::uint64_t before = sent_, begin = now_ns();
        const std::uint64_t end = begin + run_.milliseconds * 1'000'000;
        do
            for (unsigned i = 0; i < kBurstsBetweenLooks; ++i) send();
        while (now_ns() < end);
        control_.begin_ns = begin;
        control_.of_sender.messages = sent_ - before;
        control_.total.store(total_of(sent_, run_.planted), std::memory_order_release);
    }

private:
    [[gnu::always_inline]] void send() {
        sender_.send(run_.burst, [this](void *block) {
            if constexpr (kWritten) write_payload(block, number_of(sent_, run_.planted));
            ++sent_;
        });
    }
    Sender &sender_;
    Control &control_;
    const Run &run_;
    std::uint64_t sent_ = 0;
};

template <class Receiver, bool kWritten>
class OneWayReceiver {
public:
    OneWayReceiver(Receiver &receiver, Control &control, const Run &run)
        : receiver_(receiver),
          control_(control),
          run_(run),
          part_(std::uint64_t{2} * run.shape.capacity),
          mark_(messages_before(run)) {
        parts_.reserve(1 << 16);
    }
    void work() {
        std::uint64_t total = kNotKnown, last = 0, polls = 0;
        while (received_ < total) {
            if (receive()) {
                if (received_ >= mark_ + part_) [[unlikely]]
                    end_part();
                polls = 0;
                continue;
            }
            control_.received.store(received_, std::memory_order_release);
            total = control_.total.load(std::memory_order_acquire);
            relax();
            if (total == kNotKnown || received_ >= total) continue;
            // All were sent, and this one is not there.
            if (polls++ == 0) last = now_ns();
            if (polls % 1024 == 0 && now_ns() - last > kLostAfterNs) break;
        }
        control_.end_ns = now_ns();
        while (receive()) {
        }
        control_.of_receiver = {.ns = percentile(parts_, 0.5) / static_cast<double>(part_),
                                .lost = received_ < total ? total - received_ : 0,
                                .extra = received_ > total ? received_ - total : 0,
                                .misplaced = misplaced_};
    }

private:
    [[gnu::always_inline]] bool receive() {
        return receiver_.receive(run_.burst, [this](const void *block) {
            if constexpr (kWritten) misplaced_ += payload_is(block, received_) ? 0 : 1;
            ++received_;
        }) != 0;
    }
    void end_part() {
        const std::uint64_t now = now_ns();
        if (part_begin_ != 0) parts_.push_back((now - part_begin_) * part_ / (received_ - mark_));
        part_begin_ = now;
        mark_ = received_;
    }
    Receiver &receiver_;
    Control &control_;
    const Run &run_;
    std::uint64_t received_ = 0, misplaced_ = 0;
    // The time is taken in parts, long enough for the queue to have been full and empty, and short enough that most of
    // them are free of what else the CPUs do.
    std::uint64_t part_;                   // messages
    std::uint64_t mark_, part_begin_ = 0;  // the part begins behind this message; no part has begun at time 0
    std::vector<std::uint64_t> parts_;     // nanoseconds of part_ messages
};

template <class System, bool kWritten>
Outcome one_way_of(const Run &run) {
    const SharedControl shared;
    Control &control = *shared;
    System system(run.shape);
    run_pair(
        control,
        [&] {
            typename System::Sender sender(system);
            meet(control);
            OneWaySender<typename System::Sender, kWritten>(sender, control, run).work();
            meet(control);
        },
        [&] {
            typename System::Receiver receiver(system);
            meet(control);
            OneWayReceiver<typename System::Receiver, kWritten>(receiver, control, run).work();
            meet(control);
        });
    Outcome outcome = control.of_receiver;
    outcome.messages = control.of_sender.messages;
    outcome.mean_ns = static_cast<double>(control.end_ns - control.begin_ns) / static_cast<double>(outcome.messages);
    if (outcome.ns == 0) outcome.ns = outcome.mean_ns;  // too short for a part
    return outcome;
}

template <class System>
Outcome one_way(const Run &run) {
    return run.written ? one_way_of<System, true>(run) : one_way_of<System, false>(run);
}

// --- round trips -----------------------------------------------------------------------------------------------------

// A round trip through two systems, for those whose buffers belong to a direction.
template <class System>
class TwoWay {
public:
    explicit TwoWay(const Shape &shape) : there_(shape), back_(shape) {}
    class Asker {
    public:
        explicit Asker(TwoWay &both) : sender_(both.there_), receiver_(both.back_) {}
        template <class Fill, class Read>
        void ask(Fill fill, Read read) {
            sender_.send(1, fill);
            while (receiver_.receive(1, read) == 0) relax();
        }

    private:
        typename System::Sender sender_;
        typename System::Receiver receiver_;
    };
    class Answerer {
    public:
        explicit Answerer(TwoWay &both) : sender_(both.back_), receiver_(both.there_) {}
        template <class Read, class Fill>
        bool answer(Read read, Fill fill) {
            if (receiver_.receive(1, read) == 0) return false;
            sender_.send(1, fill);
            return true;
        }

    private:
        typename System::Sender sender_;
        typename System::Receiver receiver_;
    };

private:
    System there_, back_;
};

template <class Asker, bool kWritten>
void ask_all(Asker &asker, Control &control, const Run &run) {
    constexpr std::size_t kSamplesMax = 1 << 20;
    constexpr std::uint64_t kTripsBefore = 1000;
    std::vector<std::uint64_t> trips(kSamplesMax, 0);  // filled in, so that no page comes later
    std::uint64_t asked = 0, misplaced = 0;
    const auto fill = [&](void *block) {
        if constexpr (kWritten) write_payload(block, number_of(asked, run.planted));
    };
    // An answer carries the complement of the number, so that it cannot be the request itself.
    const auto read = [&](const void *block) {
        if constexpr (kWritten) misplaced += payload_is(block, ~asked) ? 0 : 1;
    };
    for (; asked < kTripsBefore; ++asked) asker.ask(fill, read);
    std::size_t count = 0;
    std::uint64_t before = now_ns();
    const std::uint64_t end = before + run.milliseconds * 1'000'000;
    while (before < end && count < kSamplesMax) {
        asker.ask(fill, read);
        ++asked;
        const std::uint64_t after = now_ns();
        trips[count++] = after - before;
        before = after;
    }
    trips.resize(count);
    control.of_sender = {
        .ns = percentile(trips, 0.5), .p999_ns = percentile(trips, 0.999), .messages = count, .misplaced = misplaced};
    control.total.store(total_of(asked, run.planted), std::memory_order_release);
}

template <class Answerer, bool kWritten>
void answer_all(Answerer &answerer, Control &control) {
    std::uint64_t answered = 0, misplaced = 0;
    const auto read = [&](const void *block) {
        if constexpr (kWritten) misplaced += payload_is(block, answered) ? 0 : 1;
    };
    const auto fill = [&](void *block) {
        if constexpr (kWritten) write_payload(block, ~answered);
    };
    for (;;) {
        if (answerer.answer(read, fill)) {
            ++answered;
            continue;
        }
        if (control.total.load(std::memory_order_acquire) != kNotKnown) break;
        relax();
    }
    // Each request has had its answer by then.
    const std::uint64_t total = control.total.load(std::memory_order_acquire);
    control.of_receiver.lost = answered < total ? total - answered : 0;
    control.of_receiver.extra = answered > total ? answered - total : 0;
    control.of_receiver.misplaced = misplaced;
}

template <class System, bool kWritten>
Outcome round_trip_of(const Run &run) {
    const SharedControl shared;
    Control &control = *shared;
    System system(run.shape);
    run_pair(
        control,
        [&] {
            typename System::Asker asker(system);
            meet(control);
            ask_all<typename System::Asker, kWritten>(asker, control, run);
            meet(control);
        },
        [&] {
            typename System::Answerer answerer(system);
            meet(control);
            answer_all<typename System::Answerer, kWritten>(answerer, control);
            meet(control);
        });
    Outcome outcome = control.of_sender;
    outcome.lost = control.of_receiver.lost;
    outcome.extra = control.of_receiver.extra;
    outcome.misplaced += control.of_receiver.misplaced;
    return outcome;
}

template <class System>
concept HasAsker = requires { typename System::Asker; };

template <class System>
Outcome round_trip(const Run &run) {
    if constexpr (HasAsker<System>)
        return run.written ? round_trip_of<System, true>(run) : round_trip_of<System, false>(run);
    else
        return round_trip<TwoWay<System>>(run);
}

// --- a receiver that sleeps ------------------------------------------------------------------------------------------

template <class Waker>
void wake_all(Waker &waker, Control &control, const Run &run) {
    std::vector<std::uint64_t> latencies, sends;
    constexpr std::uint64_t kWakesBefore = 16;
    std::uint64_t sequence = 0;
    for (std::uint64_t end = 0; sequence < kWakesBefore || now_ns() < end; ++sequence) {
        if (sequence == kWakesBefore - 1) end = now_ns() + run.milliseconds * 1'000'000;
        // Has begun what it was told to, and sleeps: there is no other system call on its way there.
        while (control.entered.load(std::memory_order_acquire) != sequence + 1) relax();
        wait_until_asleep(control.receiver_pid);
        const std::uint64_t before = now_ns();
        waker.wake(number_of(sequence, run.planted));
        const std::uint64_t after = now_ns();
        while (control.received.load(std::memory_order_acquire) != sequence + 1) relax();
        if (sequence < kWakesBefore) continue;
        sends.push_back(after - before);
        latencies.push_back(control.returned_ns - before);
    }
    control.of_sender = {.ns = percentile(latencies, 0.5),
                         .p999_ns = percentile(latencies, 0.999),
                         .send_ns = percentile(sends, 0.5),
                         .messages = latencies.size()};
    // The last message ends the receiver.
    while (control.entered.load(std::memory_order_acquire) != sequence + 1) relax();
    wait_until_asleep(control.receiver_pid);
    control.total.store(total_of(sequence + 1, run.planted), std::memory_order_release);
    waker.wake(sequence);
}

template <class Waiter>
void wait_for_all(Waiter &waiter, Control &control) {
    std::uint64_t received = 0, misplaced = 0;
    while (control.total.load(std::memory_order_acquire) == kNotKnown) {
        control.entered.fetch_add(1);
        const std::uint64_t sequence = waiter.wait();
        control.returned_ns = now_ns();
        misplaced += sequence == received ? 0 : 1;
        control.received.store(++received, std::memory_order_release);
    }
    const std::uint64_t total = control.total.load(std::memory_order_acquire);
    control.of_receiver.lost = received < total ? total - received : 0;
    control.of_receiver.extra = received > total ? received - total : 0;
    control.of_receiver.misplaced = misplaced;
}

template <class System>
Outcome wake_up(const Run &run) {
    const SharedControl shared;
    Control &control = *shared;
    System system(run.shape);
    run_pair(
        control,
        [&] {
            typename System::Waker waker(system);
            meet(control);
            wake_all(waker, control, run);
            meet(control);
        },
        [&] {
            typename System::Waiter waiter(system);
            meet(control);
            wait_for_all(waiter, control);
            meet(control);
        });
    Outcome outcome = control.of_sender;
    outcome.lost = control.of_receiver.lost;
    outcome.extra = control.of_receiver.extra;
    outcome.misplaced = control.of_receiver.misplaced;
    return outcome;
}

template <class System>
concept HasSender = requires { typename System::Sender; };
template <class System>
concept HasWaker = requires { typename System::Waker; };

template <class System>
constexpr Entry entry_of(std::string_view name) noexcept {
    Entry entry{name, nullptr, nullptr, nullptr};
    if constexpr (HasSender<System>) {
        entry.one_way = one_way<System>;
        entry.round_trip = round_trip<System>;
    }
    if constexpr (HasWaker<System>) entry.wake_up = wake_up<System>;
    return entry;
}

}  // namespace numacre::bench
