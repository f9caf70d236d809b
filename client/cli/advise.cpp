#include "advise.hpp"

#include <algorithm>
#include <bit>
#include <ostream>

#include "bytes.hpp"

namespace numacre::cli {
namespace {

std::uint64_t divide_up(std::uint64_t amount, std::uint64_t unit) {
    return unit == 0 ? 0 : amount / unit + (amount % unit != 0 ? 1 : 0);
}

std::uint64_t round_up(std::uint64_t bytes, std::uint64_t unit) {
    return unit == 0 ? bytes : (bytes + unit - 1) / unit * unit;
}

// An object pool keeps its size: the advice is for the next one.
void advise_objects(Advice &advice, std::uint64_t out_of_frames) {
    const std::uint64_t peak = divide_up(advice.peak_used_bytes, advice.frame_bytes);
    advice.suggested_online_bytes = advice.online_bytes;
    advice.suggested_largest_block_bytes = advice.largest_block_bytes;
    advice.suggested_low_watermark_bytes = advice.low_watermark_bytes;
    advice.suggested_object_count = peak == 0 ? advice.object_count : peak + divide_up(peak, 4);
    if (out_of_frames != 0)
        advice.suggested_object_count =
            std::max(advice.suggested_object_count, advice.object_count + divide_up(advice.object_count, 4));
    advice.reasons.push_back("at most " + std::to_string(peak) + " objects were in use on one numa node, " +
                             std::to_string(out_of_frames) + " allocations found none" +
                             (peak == 0 ? ": there is nothing to learn from" : ": that and a quarter"));
    if (advice.suggested_object_count != advice.object_count)
        advice.reasons.push_back("a pool of objects is not resized: delete it, and make it again with this count");
}

}  // namespace

Advice advise(const v1::Pool &pool, const v1::GetStatsResponse &stats, std::uint64_t peak_used_bytes) {
    Advice advice;
    advice.pool = pool.name();
    advice.frame_bytes = pool.frame_bytes();
    advice.largest_block_bytes = pool.largest_block_bytes();
    advice.object_bytes = pool.object_bytes();
    advice.object_count = pool.object_count();
    advice.low_watermark_bytes = pool.low_watermark_bytes();
    advice.peak_client_bytes = pool.peak_client_bytes();
    for (const v1::PoolNode &numa_node : pool.nodes())
        peak_used_bytes = std::max(peak_used_bytes, numa_node.peak_used_bytes());
    advice.peak_used_bytes = peak_used_bytes;
    advice.backing = pool.wanted_backing();
    // A pool that wants pages of 1 GiB comes and goes by 1 GiB, also where there are none.
    std::uint64_t page_bytes = advice.backing == v1::BACKING_HUGETLB_1G ? hugepage_bytes(advice.backing) : 0;
    for (const v1::PoolNode &numa_node : pool.nodes()) {
        advice.capacity_bytes = std::max(advice.capacity_bytes, numa_node.capacity_bytes());
        advice.online_bytes = std::max(advice.online_bytes, numa_node.online_bytes());
        page_bytes = std::max(page_bytes, numa_node.page_bytes());
    }
    std::uint64_t out_of_frames = 0, fragmented = 0, argument = 0, largest_used = 0;
    for (const v1::NodeStats &numa_node : stats.nodes()) {
        out_of_frames += numa_node.failures_out_of_frames();
        fragmented += numa_node.failures_fragmented();
        argument += numa_node.failures_argument();
        for (const v1::OrderStats &order : numa_node.orders()) {
            if (order.allocations() != 0 || order.live_blocks() != 0) {
                largest_used = std::max(largest_used, order.block_bytes());
            }
        }
    }
    if (advice.object_bytes != 0) {
        advise_objects(advice, out_of_frames);
        return advice;
    }
    const std::uint64_t chunk_bytes = std::max(advice.largest_block_bytes, page_bytes);
    advice.suggested_online_bytes = advice.online_bytes;
    advice.suggested_largest_block_bytes = advice.largest_block_bytes;
    advice.suggested_low_watermark_bytes = advice.low_watermark_bytes;
    if (largest_used == 0) {
        advice.reasons.push_back("nothing has been allocated yet: there is nothing to learn from, the sizes stay");
        return advice;
    }

    // A quarter above the peak: for peaks that a sample misses, and for memory that fragmentation makes unusable.
    const std::uint64_t with_room = std::max(chunk_bytes, round_up(peak_used_bytes + peak_used_bytes / 4, chunk_bytes));
    if (out_of_frames + fragmented != 0) {
        const std::uint64_t more = round_up(advice.online_bytes + advice.online_bytes / 4, chunk_bytes);
        advice.suggested_online_bytes = std::max(with_room, more);
        advice.reasons.push_back(std::to_string(out_of_frames) + " allocations failed for want of frames and " +
                                 std::to_string(fragmented) +
                                 " because of fragmentation: what is online was not enough, so a quarter more");
    } else {
        advice.suggested_online_bytes = with_room;
        advice.reasons.push_back(
            "at most " + format_bytes(peak_used_bytes) +
            " were used on one numa node whenever somebody looked, and no allocation has failed: that and a "
            "quarter");
    }
    if (advice.suggested_online_bytes > advice.capacity_bytes) {
        advice.reasons.push_back("the capacity of " + format_bytes(advice.capacity_bytes) + " is below the " +
                                 format_bytes(advice.suggested_online_bytes) +
                                 " that would be wanted: make the pool anew with a larger one");
        advice.suggested_online_bytes = advice.capacity_bytes;
    }

    // Half of the memory that the peak leaves free: the event then means a use above every earlier one, and there is
    // time to act.
    const std::uint64_t left = advice.suggested_online_bytes - std::min(peak_used_bytes, advice.suggested_online_bytes);
    advice.suggested_low_watermark_bytes =
        std::max(left / 2 / advice.frame_bytes, std::uint64_t{1}) * advice.frame_bytes;
    advice.reasons.push_back(
        "low-watermark: half of what that peak leaves free, so that its event tells of more use than "
        "was ever seen");

    if (argument != 0) {
        advice.reasons.push_back(
            std::to_string(argument) +
            " allocations asked for a size of 0 or above the largest block: if programs need larger "
            "blocks, raise largest");
    } else if (largest_used < advice.largest_block_bytes && fragmented == 0) {
        // A largest block below a page would not make the chunk smaller, so nothing would be gained.
        advice.suggested_largest_block_bytes =
            std::clamp(largest_used, std::min(page_bytes, advice.largest_block_bytes), advice.largest_block_bytes);
        if (advice.suggested_largest_block_bytes != advice.largest_block_bytes) {
            advice.reasons.push_back("no block above " + format_bytes(largest_used) +
                                     " has been asked for: smaller chunks let the pool shrink in finer steps");
        }
    }
    return advice;
}

Json advice_json(const Advice &advice) {
    return {{"pool", advice.pool},
            {"capacity_bytes", advice.capacity_bytes},
            {"frame_bytes", advice.frame_bytes},
            {"online_bytes", advice.online_bytes},
            {"largest_block_bytes", advice.largest_block_bytes},
            {"object_bytes", advice.object_bytes},
            {"object_count", advice.object_count},
            {"suggested_object_count", advice.suggested_object_count},
            {"low_watermark_bytes", advice.low_watermark_bytes},
            {"peak_used_bytes", advice.peak_used_bytes},
            {"peak_client_bytes", advice.peak_client_bytes},
            {"suggested_low_watermark_bytes", advice.suggested_low_watermark_bytes},
            {"suggested_online_bytes", advice.suggested_online_bytes},
            {"suggested_largest_block_bytes", advice.suggested_largest_block_bytes},
            {"reasons", advice.reasons}};
}

std::string config_size(std::uint64_t bytes) {
    constexpr char kLetters[] = {'K', 'M', 'G', 'T'};
    std::string letter;
    for (const char next : kLetters) {
        if (bytes == 0 || bytes % 1024 != 0) break;
        bytes /= 1024;
        letter = next;
    }
    return std::to_string(bytes) + letter;
}

namespace {

void print_objects(std::ostream &out, const Advice &advice) {
    out << "object = \"" << config_size(advice.object_bytes) << "\"\n"
        << "count = " << advice.suggested_object_count;
    if (advice.suggested_object_count != advice.object_count) out << "    # now " << advice.object_count;
    if (advice.frame_bytes == advice.object_bytes && std::has_single_bit(advice.object_bytes))
        out << "\ncolouring = \"off\"";
}

void print_blocks(std::ostream &out, const Advice &advice) {
    out << "capacity = \"" << config_size(advice.capacity_bytes) << "\"\n"
        << "online = \"" << config_size(advice.suggested_online_bytes) << "\"";
    if (advice.suggested_online_bytes != advice.online_bytes) out << "    # now " << config_size(advice.online_bytes);
    out << "\nframe = \"" << config_size(advice.frame_bytes) << "\"\n"
        << "largest = \"" << config_size(advice.suggested_largest_block_bytes) << "\"";
    if (advice.suggested_largest_block_bytes != advice.largest_block_bytes)
        out << "    # now " << config_size(advice.largest_block_bytes);
}

void print_watermark(std::ostream &out, const Advice &advice) {
    out << "\nlow-watermark = \"" << config_size(advice.suggested_low_watermark_bytes) << "\"";
    if (advice.suggested_low_watermark_bytes != advice.low_watermark_bytes)
        out << "    # now " << config_size(advice.low_watermark_bytes);
}

}  // namespace

void print_advice(std::ostream &out, const Advice &advice) {
    for (const std::string &reason : advice.reasons) out << "# " << printable(reason) << '\n';
    out << "[[pool]]\n"
        << "name = \"" << printable(advice.pool) << "\"\n";
    if (advice.object_bytes != 0)
        print_objects(out, advice);
    else
        print_blocks(out, advice);
    // hugetlb is the default of a pool, so it need not be written.
    if (advice.backing != v1::BACKING_UNSPECIFIED && advice.backing != v1::BACKING_HUGETLB)
        out << "\nbacking = \"" << backing_name(advice.backing) << "\"";
    if (advice.object_bytes == 0) print_watermark(out, advice);
    out << '\n';
    if (advice.peak_client_bytes != 0)
        out << "# the client that held most had " << format_bytes(advice.peak_client_bytes)
            << ": a quota (`numacre quota`) of less would have stopped it\n";
}

}  // namespace numacre::cli
