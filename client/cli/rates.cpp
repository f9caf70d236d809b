#include "rates.hpp"

namespace numacre::cli {

Counts counts_of(const v1::NodeStats &numa_node) {
    Counts counts;
    for (const v1::OrderStats &order : numa_node.orders()) {
        counts.allocations += order.allocations();
        counts.frees += order.frees();
    }
    counts.failures = numa_node.failures_out_of_frames() + numa_node.failures_fragmented() +
                      numa_node.failures_quota() + numa_node.failures_argument();
    return counts;
}

std::optional<Rates> RateMeter::look(const Key &key, const Counts &counts, Clock::time_point now) {
    const auto [place, is_new] = seen_.try_emplace(key, Seen{counts, now});
    if (is_new) return std::nullopt;
    const Seen before = place->second;
    place->second = {counts, now};
    const double seconds = std::chrono::duration<double>(now - before.when).count();
    if (seconds <= 0 || counts.allocations < before.counts.allocations || counts.frees < before.counts.frees ||
        counts.failures < before.counts.failures) {
        return std::nullopt;
    }
    const auto rate = [&](std::uint64_t after, std::uint64_t earlier) {
        return static_cast<double>(after - earlier) / seconds;
    };
    return Rates{rate(counts.allocations, before.counts.allocations), rate(counts.frees, before.counts.frees),
                 rate(counts.failures, before.counts.failures)};
}

std::vector<std::optional<ChannelRates>> channel_rates(const v1::ListChannelsResponse &before,
                                                       const v1::ListChannelsResponse &after,
                                                       std::chrono::duration<double> between) {
    // A client id is given once, also to a channel.
    std::map<std::uint32_t, const v1::Channel *> earlier;
    for (const v1::Channel &channel : before.channels()) earlier[channel.client_id()] = &channel;
    std::vector<std::optional<ChannelRates>> rates;
    for (const v1::Channel &channel : after.channels()) {
        rates.emplace_back();
        const auto found = earlier.find(channel.client_id());
        if (found == earlier.end() || between.count() <= 0) continue;
        const v1::Channel &then = *found->second;
        if (channel.sent_messages() < then.sent_messages() || channel.received_messages() < then.received_messages())
            continue;
        rates.back() = {static_cast<double>(channel.sent_messages() - then.sent_messages()) / between.count(),
                        static_cast<double>(channel.received_messages() - then.received_messages()) / between.count()};
    }
    return rates;
}

}  // namespace numacre::cli
