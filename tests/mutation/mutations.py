"""The list of mutations. Each breaks one place of the allocator and names a test that must notice. See mutate.py.

old: the text in shm/include/numacre/shm/<file>; must be there exactly once (any white space and any
     comments between two words count as equal).
why: what goes wrong without it, in one line; it stands in the README of the model tests.
filter: for --gtest_filter; the quickest test that notices (mutate.py --all-tests shows which do).

Left out, since no test can or does notice:
  - with_mark(), with_allocated(), without_mark() that leave COAL set: harmless. COAL decides nothing by itself: a
    thread that is about to clear P looks at the child again and compares the tag; an allocation that meets COAL makes
    one more RMW.
  - clean() without its first, optional look: it makes one more CAS.
  - nothing_is_hidden() that ignores intents: a larger block is refused beside a claim that is about to be undone. The
    model's "free all the time" leaves out blocks that are claimed at the moment, and with two clients the refusal has
    a legal order: the other client's claim, tried again, succeeds. It takes a third client that begins after the
    refusal.
  - nothing_is_hidden() that looks at the hint work once: the root has to be too low twice, by two others, around that
    look. Three clients and about seven preemptions are needed; a short run does not reach that.
  - of channels: a send that does not renew its errand when another sender got its cell (noticed by minutes of
    ChannelSlow.a_death_beside_three at most); write_list() that does not look at the owner (become_the_channels() looks
    again); give_back() that does not see that the cell is as it was (its messages are cut off by the next look, but
    recovery may wait for a living receiver in vain).
"""
import dataclasses

PROGRAMS = {
    "model_channel": "tests/model/channel_test.cpp",
    "model_engine": "tests/model/engine_test.cpp",
    "model_holds": "tests/model/holds_test.cpp",
    "shm_account_test": "tests/unit/shm_account_test.cpp",
    "shm_buddy_test": "tests/unit/shm_buddy_test.cpp",
    "shm_channel_test": "tests/unit/shm_channel_test.cpp",
    "shm_hand_off_test": "tests/unit/shm_hand_off_test.cpp",
    "shm_recovery_test": "tests/unit/shm_recovery_test.cpp",
    "shm_reference_test": "tests/unit/shm_reference_test.cpp",
}


@dataclasses.dataclass(frozen=True)
class Mutation:
    name: str
    file: str
    old: str
    new: str
    why: str
    filter: str
    program: str = "model_engine"

MUTATIONS = [
    # --- marks: climb, coalescing, clean ------------------------------------------------------------------------------
    Mutation(
        name="upper_word_tag_not_advanced",
        file="node_state.hpp",
        old="return UpperWord{bits + kTagStep};",
        new="return UpperWord{bits};",
        why="a clean decided long ago clears the mark of a new block (ABA)",
        filter="Engine.a_late_clean_does_not_unmark_a_new_block",
    ),
    Mutation(
        name="climb_stops_above_a_set_mark",
        file="buddy/claim.hpp",
        old="while (!seen.passable(child)) {",
        new="if (seen.passable(child)) return kClimbed;\n            while (!seen.passable(child)) {",
        why="the thread that set the mark may be stopped half way up: no mark above a live block",
        filter="Engine.a_climb_goes_on_above_a_mark_that_is_set",
    ),
    Mutation(
        name="climb_does_not_withdraw_COAL",
        file="node_state.hpp",
        old="return (bits_ >> child & (kP | kF | kCoal | kDrain)) == kP;",
        new="return (bits_ >> child & (kP | kF | kDrain)) == kP;",
        why="the clean that set COAL does not learn of the new block and clears its mark",
        filter="Engine.a_giver_and_its_taker",
    ),
    Mutation(
        name="climb_ignores_F",
        file="node_state.hpp",
        old="return (bits_ >> child & (kF | kDrain)) != 0;",
        new="return (bits_ >> child & kDrain) != 0;",
        why="a block is handed out below a larger live one",
        filter="Engine.a_giver_and_its_taker",
    ),
    Mutation(
        name="climb_ignores_DRAIN",
        file="node_state.hpp",
        old="return (bits_ >> child & (kF | kDrain)) != 0;",
        new="return (bits_ >> child & kF) != 0;",
        why="a draining chunk never becomes empty",
        filter="Engine.a_chunk_is_drained_and_taken_offline_beside_clients",
    ),
    Mutation(
        name="claim_ignores_DRAIN",
        file="node_state.hpp",
        old="return static_cast<std::uint8_t>(~(bits_ | bits_ >> 8 | bits_ >> 24));",
        new="return static_cast<std::uint8_t>(~(bits_ | bits_ >> 8));",
        why="a draining chunk is handed out whole",
        program="shm_buddy_test",
        filter="Buddy.a_draining_chunk_is_not_handed_out_whole",
    ),
    Mutation(
        name="claim_ignores_P",
        file="node_state.hpp",
        old="return static_cast<std::uint8_t>(~(bits_ | bits_ >> 8 | bits_ >> 24));",
        new="return static_cast<std::uint8_t>(~(bits_ >> 8 | bits_ >> 24));",
        why="a block is handed out above smaller live ones",
        filter="Engine.a_bulk_claim_is_undone_under_a_larger_block",
    ),
    Mutation(
        name="clean_does_not_look_again_after_COAL",
        file="buddy/coalesce.hpp",
        old="""if (!word_is_empty(layer, word)) return false;
            std::uint64_t bits = seen.bits();
            if (state.compare_exchange_weak(bits, seen.without_mark(child)""",
        new="std::uint64_t bits = seen.bits();\n"
            "            if (state.compare_exchange_weak(bits, seen.without_mark(child)",
        why="the word was taken before COAL was there to be seen; its mark is cleared",
        filter="Engine.a_giver_and_its_taker",
    ),
    Mutation(
        name="clean_clears_without_comparing",
        file="buddy/coalesce.hpp",
        old="if (state.compare_exchange_weak(bits, seen.without_mark(child).bits(), std::memory_order_seq_cst)) return "
            "true;",
        new="""while (!state.compare_exchange_weak(bits, UpperWord{bits}.without_mark(child).bits(), \
std::memory_order_seq_cst)) {
            }
            return true;""",
        why="a mark that was renewed since the look at the child is cleared",
        filter="Engine.a_giver_and_its_taker",
    ),
    Mutation(
        name="clean_through_stops_after_one_level",
        file="buddy/coalesce.hpp",
        old="if (state.occupied_below(child)) empty = clean_through(layer - 1, word * kUpperFanOut + child, search);",
        new="if (state.occupied_below(child)) empty = false;",
        why="marks two levels down are never cleaned: memory is lost for larger blocks",
        filter="Engine.three_upper_layers",
    ),
    Mutation(
        name="short_climb_looks_at_the_parent_only",
        file="buddy/claim.hpp",
        old="return is_marked_in(layer + 1, word) && (layer + 1 == kUsual || is_marked_in(layer + 2, word));",
        new="return is_marked_in(layer + 1, word);",
        why="a small block is kept without a mark two layers up: a largest one is handed out over it",
        filter="Engine.two_upper_layers",
    ),
    Mutation(
        name="short_climb_of_an_upper_block_looks_at_nothing",
        file="buddy/claim.hpp",
        old="if (layer < kUsual && view_.top_layer == kUsual) [[likely]]",
        new="if (layer == 1 && view_.top_layer == kUsual) return true;\n"
            "        if (layer < kUsual && view_.top_layer == kUsual) [[likely]]",
        why="a block in an upper word is kept without a mark two layers up: a largest one is handed out over it",
        filter="Engine.two_upper_layers",
    ),
    Mutation(
        name="short_climb_in_a_tree_of_other_height_passes_a_layer_by",
        file="buddy/claim.hpp",
        old="for (unsigned level = layer + 1; level <= view_.top_layer; ++level)\n"
            "            if (!is_marked_in(level, word)) return false;",
        new="word /= kUpperFanOut;\n        for (unsigned level = layer + 2; level <= view_.top_layer; ++level)\n"
            "            if (!is_marked_in(level, word)) return false;",
        why="with one upper layer, or three, a block is kept without a mark above it: a largest one is handed out "
            "over it",
        filter="Engine.three_upper_layers",
    ),
    # --- claim, undo, commit ------------------------------------------------------------------------------------------
    Mutation(
        name="intent_written_after_the_claim",
        file="buddy/claim.hpp",
        old="""begin(self, IntentKind::allocate, out);
        Env::crash_point(CrashPoint::allocate_after_intent);
        const std::uint64_t claimed = seen | run;
        if (!state.compare_exchange_strong(seen, claimed, std::memory_order_seq_cst, std::memory_order_relaxed))
            [[unlikely]]
            return ShortPath::raced;""",
        new="""Env::crash_point(CrashPoint::allocate_after_intent);
        const std::uint64_t claimed = seen | run;
        if (!state.compare_exchange_strong(seen, claimed, std::memory_order_seq_cst, std::memory_order_relaxed))
            [[unlikely]]
            return ShortPath::raced;
        begin(self, IntentKind::allocate, out);""",
        why="a death between the two leaves bits that no intent names",
        filter="Engine.a_death_with_a_cache_or_in_a_bulk_call_loses_nothing",
    ),
    Mutation(
        name="intent_written_after_the_upper_claim",
        file="buddy/claim.hpp",
        old="""begin(self, IntentKind::allocate, out);
        Env::crash_point(CrashPoint::allocate_after_intent);
        std::uint64_t bits = seen.bits();
        if (!view_.upper[layer][word].compare_exchange_strong(
                bits, seen.with_allocated(upper::group(first_child, levels)).bits(), std::memory_order_seq_cst,
                std::memory_order_relaxed)) [[unlikely]]
            return ShortPath::raced;""",
        new="""Env::crash_point(CrashPoint::allocate_after_intent);
        std::uint64_t bits = seen.bits();
        if (!view_.upper[layer][word].compare_exchange_strong(
                bits, seen.with_allocated(upper::group(first_child, levels)).bits(), std::memory_order_seq_cst,
                std::memory_order_relaxed)) [[unlikely]]
            return ShortPath::raced;
        begin(self, IntentKind::allocate, out);""",
        why="a death between the two leaves bits in an upper word that no intent names",
        filter="Engine.a_death_around_a_large_block_is_recovered",
    ),
    Mutation(
        name="intent_is_kept_after_a_lost_claim",
        file="buddy/claim.hpp",
        old="""end(self);
        count(self.counters->cas_retries);""",
        new="count(self.counters->cas_retries);",
        why="recovery takes a block that somebody else has for one that was in flight",
        filter="Engine.two_threads_of_one_process",
    ),
    Mutation(
        name="intent_is_kept_after_a_lost_claim_in_an_upper_word",
        file="buddy.hpp",
        old="if (way == ShortPath::raced) give_up(self);\n"
            "        return allocate_elsewhere(self, layer, home, {}, order, grant, out);",
        new="return allocate_elsewhere(self, layer, home, {}, order, grant, out);",
        why="recovery takes a block that somebody else has for one that was in flight: after the last attempt of all, "
            "nothing overwrites the intent",
        filter="Engine.a_race_lost_in_the_only_upper_word_leaves_nothing",
    ),
    Mutation(
        name="commit_before_the_climb",
        file="buddy/claim.hpp",
        old="""const unsigned closed_at = climb(layer, word);
        if (closed_at != kClimbed) {
            undo(""",
        new="""commit(layer, block, grant);
        const unsigned closed_at = climb(layer, word);
        if (closed_at != kClimbed) {
            undo(""",
        why="the index calls a block owned that may have to be undone, and that has no marks yet",
        filter="Engine.a_bulk_claim_is_undone_under_a_larger_block",
    ),
    Mutation(
        name="commit_does_not_advance_the_generation",
        file="owner.hpp",
        old="return IndexEntry{bits_ | ((old.bits_ & kGenerationMask) + kGenerationStep)};",
        new="return IndexEntry{bits_ | (old.generation() == 0 ? kGenerationStep : old.bits_ & kGenerationMask)};",
        why="a reference from before the last free names the block again",
        filter="Buddy.a_reference_is_taken_once_and_goes_stale",
        program="shm_buddy_test",
    ),
    Mutation(
        name="undo_does_not_clear_bits",
        file="buddy/claim.hpp",
        old="unclaim(layer, word, block);\n        Env::crash_point(CrashPoint::undo_after_unclaim);",
        new="Env::crash_point(CrashPoint::undo_after_unclaim);",
        why="memory is lost",
        filter="Engine.a_giver_and_its_taker",
    ),
    Mutation(
        name="undo_leaves_no_trace",
        file="buddy/claim.hpp",
        old="leave_trace(self, block);\n        Env::crash_point(CrashPoint::undo_after_trace);\n        unclaim",
        new="Env::crash_point(CrashPoint::undo_after_trace);\n        unclaim",
        why="recovery takes an undone claim's bit for the dead client's and clears it from under the next owner",
        filter="Engine.a_death_beside_a_claim_that_is_undone",
    ),
    Mutation(
        name="undo_trace_does_not_advance_the_generation",
        file="buddy/claim.hpp",
        old="slot.store(after(layer_of(block.order), block, trace, old).bits(), std::memory_order_release);",
        new="slot.store(trace.bits() | std::uint64_t{old.generation()} << 24, std::memory_order_release);",
        why="recovery's second look does not see that a claim was undone meanwhile",
        filter="Engine.a_death_beside_a_claim_that_is_undone",
    ),
    Mutation(
        name="undo_does_not_raise_hints",
        file="buddy/claim.hpp",
        old="""Env::crash_point(CrashPoint::undo_after_unclaim);
        raise_hints(self, layer, word);""",
        new="Env::crash_point(CrashPoint::undo_after_unclaim);",
        why="a search that looked meanwhile lowered the hint: the block is hidden",
        filter="Engine.an_undone_claim_hides_nothing",
    ),
    # --- free ---------------------------------------------------------------------------------------------------------
    Mutation(
        name="free_without_the_ownership_CAS",
        file="buddy/release.hpp",
        old="""if (!slot.compare_exchange_strong(bits, entry.now(self.freeing).bits(), std::memory_order_acq_rel))
            [[unlikely]] {""",
        new="slot.store(entry.now(self.freeing).bits(), std::memory_order_release);\n        if (bits == 0) {",
        why="a free and a take, or recovery and a take, both have the block",
        filter="Engine.a_giver_thinks_again",
    ),
    Mutation(
        name="free_of_a_published_block_without_the_CAS",
        file="owner.hpp",
        old="return ownership() == other.ownership();",
        new="return published().ownership() == other.published().ownership();",
        why="on the short way, a free and a take, or recovery and a take, both have the block",
        filter="Engine.a_giver_thinks_again",
    ),
    Mutation(
        name="intent_cleared_before_the_unclaim",
        file="buddy/release.hpp",
        old="unclaim(layer, word, block);\n        Env::crash_point(CrashPoint::free_after_unclaim);",
        new="end(self);\n        unclaim(layer, word, block);\n"
            "        Env::crash_point(CrashPoint::free_after_unclaim);",
        why="a death between the two leaves bits that no intent names",
        filter="Engine.two_clients_of_all_orders_in_a_tree_of_seven_blocks",
    ),
    Mutation(
        name="unclaim_in_an_upper_word_without_RMW",
        file="buddy/release.hpp",
        old="""view_.upper[layer][word].fetch_and(UpperWord::all_but_allocated(group_of(layer, block)),
                                           std::memory_order_seq_cst);""",
        new="""Word &state = view_.upper[layer][word];
        state.store(state.load(std::memory_order_seq_cst) & UpperWord::all_but_allocated(group_of(layer, block)),
                    std::memory_order_seq_cst);""",
        why="marks and claims that others made in the word meanwhile are wiped out",
        filter="Engine.a_chunk_is_drained_and_taken_offline_beside_clients",
    ),
    Mutation(
        name="unclaim_in_an_upper_word_clears_its_other_children",
        file="node_state.hpp",
        old="static constexpr std::uint64_t all_but_allocated(std::uint8_t group) { return ~spread(group, 8); }",
        new="static constexpr std::uint64_t all_but_allocated(std::uint8_t) { return ~spread(0xff, 8); }",
        why="a neighbour's live block becomes free",
        filter="Engine.two_upper_layers",
    ),
    Mutation(
        name="hint_not_raised_after_a_free_in_a_leaf",
        file="buddy/release.hpp",
        old="layer == 0 ? searcher(self).leaf_is_promised(word)",
        new="layer == 0 ? true",
        why="the frames are hidden from every search",
        filter="Engine.one_client_alone_is_exact",
    ),
    Mutation(
        name="hint_not_raised_by_one_order",
        file="search.hpp",
        old="leaf::free_ends(leaf_state(word), std::min(value, kLeafOrder)) == 0;",
        new="leaf::free_ends(leaf_state(word), std::min(value + 1, kLeafOrder)) == 0;",
        why="two neighbours that have become one block are hidden from searches for a block of that size",
        filter="Engine.neighbours_freed_one_by_one_are_found_as_one_block",
    ),
    Mutation(
        name="hint_not_raised_after_a_free_in_an_upper_word",
        file="buddy/release.hpp",
        old=": searcher(self).hints_are_full(layer, word);",
        new=": true;",
        why="the block is hidden from every search",
        filter="Engine.a_block_that_fills_its_word_is_found_when_freed",
    ),
    # --- several blocks in one call, caches ---------------------------------------------------------------------------
    Mutation(
        name="bulk_allocation_does_not_climb",
        file="buddy/claim.hpp",
        old="if (climb(0, word) != kClimbed) [[unlikely]] {",
        new="if (got > kLeafFrames) [[unlikely]] {",
        why="no marks stand above live blocks; blocks are handed out below a larger live one",
        filter="Engine.a_bulk_claim_is_undone_under_a_larger_block",
    ),
    Mutation(
        name="bulk_allocation_without_intent",
        file="buddy/claim.hpp",
        old="if (!begun) begin(self, IntentKind::word, leaf_word_block(word));",
        new="",
        why="a death after the claim leaves bits that no intent names",
        filter="Engine.a_death_with_a_cache_or_in_a_bulk_call_loses_nothing",
    ),
    Mutation(
        name="bulk_free_without_intent",
        file="buddy/release.hpp",
        old="begin(self, IntentKind::word, leaf_word_block(word));\n            std::uint64_t mask = 0;",
        new="std::uint64_t mask = 0;",
        why="a death before the unclaim leaves bits that no intent names",
        filter="Engine.a_death_with_a_cache_or_in_a_bulk_call_loses_nothing",
    ),
    Mutation(
        name="bulk_intent_names_one_frame",
        file="buddy/tree.hpp",
        old="return {FrameIndex{first_frame(word)}, Order{kLeafOrder}};",
        new="return {FrameIndex{first_frame(word)}, Order{0}};",
        why="recovery looks at the first frame only",
        filter="Engine.a_death_with_a_cache_or_in_a_bulk_call_loses_nothing",
    ),
    Mutation(
        name="bulk_intent_beyond_the_largest_order_is_refused",
        file="recovery.hpp",
        old="return intent.kind() == IntentKind::word && intent.block().order.value == kLeafOrder &&",
        new="return intent.kind() == IntentKind::none && intent.block().order.value == kLeafOrder &&",
        why="where the largest block is smaller than a leaf word, the claim of a dead bulk call is lost",
        filter="Engine.a_death_in_a_bulk_call_in_a_pool_of_small_blocks",
    ),
    Mutation(
        name="bulk_undo_does_not_clear_bits",
        file="buddy/claim.hpp",
        old="unclaim_in_leaf(word, mask);\n            Env::crash_point(CrashPoint::undo_after_unclaim);",
        new="Env::crash_point(CrashPoint::undo_after_unclaim);",
        why="memory is lost",
        filter="Engine.a_bulk_claim_is_undone_under_a_larger_block",
    ),
    Mutation(
        name="bulk_undo_leaves_no_trace",
        file="buddy/claim.hpp",
        old="for (unsigned i = 0; i < got; ++i) leave_trace(self, Block{bases[i], order});",
        new="",
        why="recovery takes an undone claim's bits for the dead client's and clears them from under the next owner",
        filter="Engine.a_death_beside_a_claim_that_is_undone",
    ),
    Mutation(
        name="bulk_undo_does_not_raise_hints",
        file="buddy/claim.hpp",
        old="Env::crash_point(CrashPoint::undo_after_unclaim);\n            raise_hints(self, 0, word);",
        new="Env::crash_point(CrashPoint::undo_after_unclaim);",
        why="a search that looked meanwhile lowered the hint: the blocks are hidden",
        filter="Engine.an_undone_claim_hides_nothing",
    ),
    Mutation(
        name="bulk_free_does_not_check_the_owner",
        file="buddy/release.hpp",
        old="if (entry.state() != state || entry.owner() != self.actor.process || block.order.value > kLeafOrder || "
            "entry.is_lent() ||",
        new="if (entry.state() != state || block.order.value > kLeafOrder || entry.is_lent() ||",
        why="a process frees a block that it has given away",
        filter="Engine.a_giver_thinks_again",
    ),
    Mutation(
        name="bulk_free_takes_what_is_cached",
        file="buddy/release.hpp",
        old="if (entry.state() != state || entry.owner() != self.actor.process || block.order.value > kLeafOrder",
        new="if (!entry.is_held() || entry.owner() != self.actor.process || block.order.value > kLeafOrder",
        why="a block that is freed a second time is free and in a cache",
        program="shm_buddy_test",
        filter="Buddy.only_what_nobody_else_can_reach_is_cached",
    ),
    Mutation(
        name="out_of_the_cache_whosever_it_is",
        file="cached_block.h",
        old="return (now & all_but_generation) == owned;",
        new="return (now & all_but_generation & 0xff) == (owned & 0xff);",
        why="a block that another process got is handed out here as well",
        program="shm_buddy_test",
        filter="Buddy.what_another_thread_gave_back_from_its_cache_does_not_come_out_of_ours",
    ),
    Mutation(
        name="bulk_free_without_the_ownership_CAS",
        file="buddy/release.hpp",
        old="if (!entry.is_published() && !contended)\n            slot.store(entry.now(self.freeing)",
        new="if (!entry.is_freeing() && !contended)\n            slot.store(entry.now(self.freeing)",
        why="a bulk free and a take both have the block",
        filter="Engine.a_giver_thinks_again",
    ),
    Mutation(
        name="bulk_free_frees_only_the_last_block",
        file="buddy/release.hpp",
        old="mask |= leaf::mask(base.value % kLeafFrames, block.order.value);\n        if (entry.is_owned())",
        new="mask = leaf::mask(base.value % kLeafFrames, block.order.value);\n        if (entry.is_owned())",
        why="memory is lost",
        filter="Engine.several_blocks_of_a_word_in_one_call",
    ),
    Mutation(
        name="bulk_free_frees_a_frame_too_many",
        file="buddy/release.hpp",
        old="mask |= leaf::mask(base.value % kLeafFrames, block.order.value);\n        if (entry.is_owned())",
        new="mask |= leaf::mask(base.value % kLeafFrames, block.order.value) << 1 | 1;\n        if (entry.is_owned())",
        why="a neighbour's live frame becomes free",
        filter="Engine.several_blocks_of_a_word_in_one_call",
    ),
    Mutation(
        name="bulk_free_clears_the_intent_before_the_unclaim",
        file="buddy/release.hpp",
        old="if (mask != 0) release_in_leaf(self, word, mask);\n            end(self);",
        new="end(self);\n            if (mask != 0) release_in_leaf(self, word, mask);",
        why="a death between the two leaves bits that no intent names",
        filter="Engine.a_death_with_a_cache_or_in_a_bulk_call_loses_nothing",
    ),
    Mutation(
        name="cached_block_of_the_wrong_owner",
        file="owner.hpp",
        old="return make(BlockState::cached, owner.value, order, generation,",
        new="return make(BlockState::cached, kOfflineOwner.value + 0 * owner.value, order, generation,",
        why="nobody gives the block back after a death",
        filter="Engine.a_cache_is_filled_used_and_flushed",
    ),
    Mutation(
        name="block_in_a_cache_not_called_cached",
        file="cached_block.h",
        old="NUMACRE_INLINE_RELEASE(slot, (entry & without_note) | mark);",
        new="NUMACRE_INLINE_RELEASE(slot, (entry & without_note) | (mark & ~NUMACRE_INLINE_CACHED));",
        why="a block that is freed a second time is in the cache twice",
        filter="Engine.a_cache_is_filled_used_and_flushed",
    ),
    Mutation(
        name="block_out_of_a_cache_still_called_cached",
        file="cached_block.h",
        old="NUMACRE_INLINE_STORE(slot, now);",
        new="NUMACRE_INLINE_STORE(slot, now | NUMACRE_INLINE_CACHED);",
        why="the block's user cannot free it",
        filter="Engine.a_cache_is_filled_used_and_flushed",
    ),
    Mutation(
        name="block_out_of_a_cache_without_its_generation",
        file="cached_block.h",
        old="NUMACRE_INLINE_STORE(slot, now);",
        new="NUMACRE_INLINE_STORE(slot, now & ~NUMACRE_INLINE_GENERATION);",
        why="references from before name the block again once it has been freed and allocated often enough",
        filter="Buddy.a_block_says_since_when_its_holder_has_it",
        program="shm_buddy_test",
    ),
    Mutation(
        name="out_of_the_cache_of_another_order",
        file="cached_block.h",
        old="return (now & all_but_generation) == owned;",
        new="return ((now ^ owned) & all_but_generation & ~(uint64_t)0xf8) == 0;",
        why="the caller gets a smaller block than it asked for",
        filter="Buddy.what_another_thread_gave_back_from_its_cache_does_not_come_out_of_ours",
        program="shm_buddy_test",
    ),
    Mutation(
        name="published_block_may_be_cached",
        file="owner.hpp",
        old="return static_cast<std::uint32_t>(bits_) & (kStateMask | kPublished | kHolderMask);",
        new="return static_cast<std::uint32_t>(bits_) & (kStateMask | kHolderMask);",
        why="the block is handed out again while an old reference still names it",
        filter="Buddy.only_what_nobody_else_can_reach_is_cached",
        program="shm_buddy_test",
    ),
    Mutation(
        name="put_into_the_cache_whosever_it_is",
        file="owner.hpp",
        old="return ownership() == pattern;",
        new="(void)pattern;\n    return is_held();",
        why="a block that a process frees and another one holds by now is cached, and handed out, here",
        filter="Engine.a_block_in_two_caches_is_left_in_one_when_another_process_has_got_it",
    ),
    Mutation(
        name="put_into_the_cache_of_another_state",
        file="cached_block.h",
        old="return (entry & NUMACRE_INLINE_OURS) == like;",
        new="return (entry & NUMACRE_INLINE_OURS & ~(uint64_t)7) == (like & ~(uint64_t)7);",
        why="a block that is published, or in the cache already, is cached, and then handed out twice",
        filter="Buddy.only_what_nobody_else_can_reach_is_cached",
        program="shm_buddy_test",
    ),
    Mutation(
        name="out_of_the_cache_without_a_look",
        file="cached_block.h",
        old="return (now & all_but_generation) == owned;",
        new="(void)now, (void)owned, (void)all_but_generation;\n    return 1;",
        why="a block that two threads freed at once comes out of the second cache when another process has it",
        filter="Engine.a_block_in_two_caches_is_left_in_one_when_another_process_has_got_it",
    ),
    # --- idle caches --------------------------------------------------------------------------------------------------
    Mutation(
        name="taken_back_from_a_thread_inside",
        file="idle_caches.hpp",
        old="return slot.inside.load(std::memory_order_acquire) == 0 &&\n               Answered",
        new="return slot.inside.load(std::memory_order_acquire) <= 1 &&\n               Answered",
        why="a block is handed out by the thread and freed under it",
        filter="Engine.cached_blocks_are_taken_back_from_threads_that_do_not_use_them",
    ),
    Mutation(
        name="taken_back_from_a_thread_that_has_answered",
        file="idle_caches.hpp",
        old="slot.inside.load(std::memory_order_acquire) == 0 &&\n               Answered::is_before(slot.answered"
        ".load(std::memory_order_relaxed), request_);",
        new="slot.inside.load(std::memory_order_acquire) == 0;",
        why="a block that was cached after the answer is taken while the thread hands it out",
        filter="Engine.a_block_cached_after_an_answer_is_not_taken_back_for_it",
    ),
    Mutation(
        name="answer_frees_by_plain_stores",
        file="buddy/release.hpp",
        old="if (!entry.is_published() && !contended)",
        new="if (!entry.is_published())",
        why="the thread and whoever takes back both free a block",
        filter="Engine.cached_blocks_are_taken_back_from_threads_that_do_not_use_them",
    ),
    Mutation(
        name="free_of_what_another_thread_caches",
        file="buddy/release.hpp",
        old=" || (entry.is_cached() && entry.cacher() != self.actor.thread))",
        new=")",
        why="of two threads that have cached one block, both give it back or hand it out",
        filter="Engine.a_block_in_two_caches_is_its_last_thread_s",
    ),
    # --- hand-over ----------------------------------------------------------------------------------------------------
    Mutation(
        name="take_without_the_published_check",
        file="owner.hpp",
        old="return ((bits_ ^ name.bits_) & (kHeldBit | kPublished | kOrderMask)) == 0;",
        new="return ((bits_ ^ name.bits_) & (kHeldBit | kOrderMask)) == 0;",
        why="a reference made up from the index takes a block that its owner writes by plain stores",
        filter="Buddy.a_reference_is_taken_once_and_goes_stale",
        program="shm_buddy_test",
    ),
    Mutation(
        name="take_without_the_generation_check",
        file="buddy/ownership.hpp",
        old="!view_.reference_format.has_number(reference, number_of_name(layer, block, entry)) ||",
        new="",
        why="an old reference takes the block's next life",
        filter="Buddy.a_reference_is_taken_once_and_goes_stale",
        program="shm_buddy_test",
    ),
    Mutation(
        name="publishes_what_another_holds",
        file="owner.hpp",
        old="return ((bits_ ^ other.bits_) & (kStateMask | kHolderMask)) == 0;",
        new="return ((bits_ ^ other.bits_) & kStateMask) == 0;",
        why="the block's owner writes the entry by plain stores while others may take the block",
        filter="Buddy.only_a_holder_publishes",
        program="shm_buddy_test",
    ),
    Mutation(
        name="publish_without_CAS",
        file="buddy/ownership.hpp",
        old="""if (slot.compare_exchange_strong(bits, entry.published().bits(), std::memory_order_release,
                                         std::memory_order_acquire)) [[likely]]
            return true;""",
        new="""slot.store(entry.published().bits(), std::memory_order_release);
        if (entry.bits() == bits) return true;""",
        why="a thread that comes late takes the block back from the process that has taken it by another thread's "
            "reference",
        filter="Engine.several_threads_of_a_process_refer_to_one_block",
    ),
    Mutation(
        name="take_without_CAS",
        file="buddy/ownership.hpp",
        old="""if (!slot.compare_exchange_strong(bits, ours.bits(), std::memory_order_acq_rel)) [[unlikely]]
            return false;""",
        new="slot.store(ours.bits(), std::memory_order_release);",
        why="two takers, or a taker and recovery of the giver, both have the block",
        filter="Engine.a_death_of_giver_or_taker_loses_nothing",
    ),
    Mutation(
        name="take_does_not_advance_the_generation",
        file="buddy/ownership.hpp",
        old="const IndexEntry ours = after(layer, block, entry.handed_to(self.ours, since), entry);",
        new="const IndexEntry ours{entry.handed_to(self.ours, since).bits() | std::uint64_t{entry.generation()} << "
            "24};",
        why="the reference that was taken still names the block",
        filter="Buddy.a_reference_is_taken_once_and_goes_stale",
        program="shm_buddy_test",
    ),
    Mutation(
        name="burst_take_without_the_published_check",
        file="owner.hpp",
        old="constexpr std::uint64_t kMask = std::uint64_t{kStateMask | kPublished | kOrderMask} | kGenerationMask;",
        new="constexpr std::uint64_t kMask = std::uint64_t{kStateMask | kOrderMask} | kGenerationMask;",
        why="a reference made up from the index takes a block that its owner writes by plain stores",
        filter="Buddy.a_burst_takes_what_single_takes_would",
        program="shm_buddy_test",
    ),
    Mutation(
        name="burst_take_without_the_generation_check",
        file="owner.hpp",
        old="constexpr std::uint64_t kMask = std::uint64_t{kStateMask | kPublished | kOrderMask} | kGenerationMask;",
        new="constexpr std::uint64_t kMask = std::uint64_t{kStateMask | kPublished | kOrderMask};",
        why="an old reference takes the block's next life",
        filter="Buddy.only_a_holder_publishes",
        program="shm_buddy_test",
    ),
    Mutation(
        name="burst_take_without_the_era_check",
        file="buddy/leaf_names.hpp",
        old="!is_number_of_era(number, era, era_mask_) ||",
        new="era == 0xffff ||",
        why="a reference that is some milliseconds old takes the block when its generation has come round",
        filter="Names.*",
        program="shm_reference_test",
    ),
    Mutation(
        name="burst_take_leaves_a_half_round_uncounted",
        file="buddy/leaf_names.hpp",
        old="|| entry.is_last_of_half())",
        new=")",
        why="names come round with the entry's generation: a reference that is some milliseconds old takes the block",
        filter="Names.*",
        program="shm_reference_test",
    ),
    Mutation(
        name="burst_take_of_a_block_in_quarantine",
        file="owner.hpp",
        old="return static_cast<std::uint16_t>(owner().value - 1) < kLingeringOwner.value - 1;",
        new="return owner() != kOfflineOwner;",
        why="a block of a dead process is taken before its quarantine ends",
        filter="Buddy.a_burst_takes_what_single_takes_would",
        program="shm_buddy_test",
    ),
    Mutation(
        name="burst_take_without_CAS",
        file="buddy/leaf_names.hpp",
        old="return slot.compare_exchange_strong(bits, entry.handed_on_in_half(ours_).bits(), "
            "std::memory_order_acq_rel);",
        new="slot.store(entry.handed_on_in_half(ours_).bits(), std::memory_order_release);\n        return bits != 0;",
        why="the taker and the giver who frees or withdraws it both have the block",
        filter="Engine.the_giver_of_a_block_that_was_born_published_thinks_again",
    ),
    Mutation(
        name="burst_take_does_not_advance_the_generation",
        file="owner.hpp",
        old="return IndexEntry{(bits_ & kKept) + (other.bits_ + kGenerationStep)};",
        new="return IndexEntry{(bits_ & kKept) + other.bits_};",
        why="the reference that was taken still names the block",
        filter="Names.*",
        program="shm_reference_test",
    ),
    Mutation(
        name="withdraw_without_CAS",
        file="buddy/ownership.hpp",
        old="if (!view_.index_entry(block).compare_exchange_strong(bits, now.bits(), std::memory_order_acq_rel)) "
            "return false;",
        new="view_.index_entry(block).store(now.bits(), std::memory_order_release);",
        why="a block that was just taken is its giver's again",
        filter="Engine.a_giver_thinks_again",
    ),
    Mutation(
        name="withdraw_does_not_advance_the_generation",
        file="buddy/ownership.hpp",
        old="""after(layer_of(block.order), block,
                                     IndexEntry::owned(entry.owner(), entry.order(), 0, entry.note()), entry);""",
        new="IndexEntry::owned(entry.owner(), entry.order(), entry.generation(), entry.note());",
        why="a reference that was withdrawn can take the block once it is published anew",
        filter="Buddy.a_reference_is_taken_once_and_goes_stale",
        program="shm_buddy_test",
    ),
    Mutation(
        name="a_half_round_is_left_without_counting_it",
        file="buddy/tree.hpp",
        old="count_half(layer, block, old);\n        return entry.after(old);",
        new="(void)layer, (void)block;\n        return entry.after(old);",
        why="names come round with the entry's generation: a reference that is some milliseconds old takes the block",
        filter="Names.*",
        program="shm_reference_test",
    ),
    Mutation(
        name="an_era_word_that_is_one_behind_is_taken_for_the_era",
        file="reference.hpp",
        old="return static_cast<std::uint16_t>(era_word + ((era_word ^ generation >> kHalfRoundBits) & 1));",
        new="return static_cast<std::uint16_t>(era_word + 0 * generation);",
        why="a block has one name in two halves of a round, and another name once its half is counted",
        filter="Names.*:Era.*",
        program="shm_reference_test",
    ),
    # --- several threads of a process ---------------------------------------------------------------------------------
    Mutation(
        name="the_second_free_goes_on_as_well",
        file="buddy/release.hpp",
        old="""if (!slot.compare_exchange_strong(bits, entry.now(self.freeing).bits(), std::memory_order_acq_rel))
            [[unlikely]] {
            end(self);
            entry = IndexEntry{bits};
            return false;
        }""",
        new="(void)slot.compare_exchange_strong(bits, entry.now(self.freeing).bits(), std::memory_order_acq_rel);",
        why="the second free clears the bits of the block's next owner",
        filter="Engine.two_threads_of_one_process_free_the_same_block",
    ),
    Mutation(
        name="freeing_names_the_process",
        file="buddy/tree.hpp",
        old="IndexEntry::freeing(actor.thread, Order{0}, 0)",
        new="IndexEntry::freeing(ThreadSlotIndex{actor.process.value}, Order{0}, 0)",
        why="recovery asks the wrong thread whether the free is under way, and clears the next owner's bits",
        filter="Engine.a_death_in_a_bulk_free_beside_another",
    ),
    Mutation(
        name="free_without_intent",
        file="buddy/release.hpp",
        old="begin(self, IntentKind::free, block);\n        Env::crash_point(CrashPoint::free_after_intent);",
        new="",
        why="a death after FREEING leaves bits that no intent names",
        filter="Engine.a_death_while_freeing_is_recovered",
    ),
    Mutation(
        name="a_lost_free_keeps_its_intent",
        file="buddy/release.hpp",
        old="""[[unlikely]] {
            end(self);
            entry = IndexEntry{bits};
            return false;
        }
        Env::crash_point(CrashPoint::free_after_ownership);""",
        new="""[[unlikely]] {
            entry = IndexEntry{bits};
            return false;
        }
        Env::crash_point(CrashPoint::free_after_ownership);""",
        why="recovery of another thread waits for an operation that is over",
        filter="Engine.two_threads_of_one_process_free_the_same_block",
    ),
    # --- search -------------------------------------------------------------------------------------------------------
    Mutation(
        name="lower_does_not_look_again",
        file="search.hpp",
        old="raise_from(level, word, value_of(level, word));\n                break;",
        new="break;",
        why="memory that was freed between the look and the CAS is hidden",
        filter="Engine.two_clients_of_all_orders_in_a_tree_of_seven_blocks",
    ),
    Mutation(
        name="lower_is_not_announced",
        file="search.hpp",
        old="if (potential(seen, level + 1, word / kUpperFanOut, child) <= value) return;\n"
            "        begin_hint_work(level, word);",
        new="if (potential(seen, level + 1, word / kUpperFanOut, child) <= value) return;\n        ++depth_;",
        why="others believe a hint that holds for a moment only, or one that the dead left",
        filter="Engine.a_death_with_a_cache_or_in_a_bulk_call_loses_nothing",
    ),
    Mutation(
        name="raise_is_not_announced",
        file="search.hpp",
        old="begin_hint_work(level, word);\n        raise_from(level, word, value);",
        new="raise_from(level, word, value);\n        ++depth_;",
        why="a death half way up hides the memory from all who search from the root",
        filter="Engine.a_raise_on_its_way_up_is_known",
    ),
    Mutation(
        name="raise_stops_after_one_level",
        file="search.hpp",
        old="""for (; level < view_.hint_levels && raise_one(level, word, value); ++level, word /= kUpperFanOut)
            value = hopeful(level + 1, value);""",
        new="if (level < view_.hint_levels) (void)raise_one(level, word, value);",
        why="the memory is hidden from searches that begin higher",
        filter="Engine.a_raise_on_its_way_up_is_known",
    ),
    Mutation(
        name="raise_does_not_hope",
        file="search.hpp",
        old="return value > word_order(level - 1) || value > full_value(level) ? full_value(level) : value;",
        new="return value > full_value(level) ? full_value(level) : value;",
        why="neighbours that become one larger block are hidden",
        filter="Engine.one_client_alone_is_exact",
    ),
    Mutation(
        name="release_in_an_upper_word_is_not_told_to_the_grandparent",
        file="search.hpp",
        old="if (layer < view_.hint_levels) raise(layer + 1, word / kUpperFanOut, value);",
        new="",
        why="the word's own hint was high all the time, but its parent's hint is not: the block is hidden",
        filter="Engine.a_block_that_fills_its_word_is_found_when_freed",
    ),
    Mutation(
        name="nothing_is_ever_hidden",
        file="buddy/elsewhere.hpp",
        old="if (nothing_is_hidden(self, order)) return Errc::out_of_frames;",
        new="return Errc::out_of_frames;",
        why="false out-of-memory beside a thread in the middle of changing hints",
        filter="Engine.one_client_alone_is_exact",
    ),
    Mutation(
        name="one_look_at_all_places_is_believed",
        file="buddy/elsewhere.hpp",
        old="if (now.stood_since(before) || round == refusal_rounds(layer)) return Errc::out_of_frames;",
        new="if (now.everywhere || round == refusal_rounds(layer)) return Errc::out_of_frames;",
        why="memory that is free now here, now there is refused: false out-of-memory for large blocks",
        filter="Buddy.a_large_block_is_refused_only_if_none_was_free_at_some_moment",
        program="shm_buddy_test",
    ),
    # --- recovery -----------------------------------------------------------------------------------------------------
    Mutation(
        name="one_index_shared_between_layers",
        file="layout.hpp",
        old="view.index[layer] = words(layout.index[layer]);",
        new="view.index[layer] = words(layout.index[0]);",
        why="blocks of two layers that begin at one frame have one entry: a free of one block takes it for the other",
        filter="Engine.two_clients_of_all_orders_in_a_tree_of_seven_blocks",
    ),
    Mutation(
        name="resolve_opens_what_does_not_exist",
        file="recovery.hpp",
        old="std::uint64_t mine = existing_bits_of(view, layer, block);",
        new="std::uint64_t mine = bits_of(layer, block);",
        why="frames beyond the end of a pool that ends inside a leaf word are handed out",
        filter="Engine.a_death_in_a_bulk_call_in_a_pool_that_ends_inside_a_leaf_word",
    ),
    Mutation(
        name="recovery_ends_at_the_first_that_is_in_its_way",
        file="recovery.hpp",
        old="one->step = RecoveryStep::blocked;\n                continue;",
        new="one->step = RecoveryStep::blocked;\n                return;",
        why="one client that is stopped in the middle of an operation keeps all that a dead client's later threads "
            "had",
        filter="Recovery.goes_on_past_the_thread_for_which_it_has_to_wait",
        program="shm_recovery_test",
    ),
    Mutation(
        name="a_dead_waiters_wish_stands_until_its_recovery_is_done",
        file="recovery.hpp",
        old="        take_back_given(slot);\n        drop_holds(slot, pool_.holds[thread.value]);",
        new="        drop_holds(slot, pool_.holds[thread.value]);",
        why="blocks go to a dead thread for as long as a stopped client is in the way of its recovery",
        filter="Recovery.takes_the_wish_of_the_dead_back_before_it_has_to_wait",
        program="shm_recovery_test",
    ),
    Mutation(
        name="recovery_does_not_resolve",
        file="recovery.hpp",
        old="resolve(view, intent.block(), thread, blocked_by) == RecoveryStep::blocked)",
        new="false)",
        why="a block that a dead client had claimed but not committed is lost",
        filter="Engine.a_death_of_giver_or_taker_loses_nothing",
    ),
    Mutation(
        name="seizing_does_not_compare",
        file="recovery.hpp",
        old="if (view.index_entry(block).compare_exchange_strong(bits, ours.bits(), std::memory_order_seq_cst)) {",
        new="""view.index_entry(block).store(ours.bits(), std::memory_order_release);
                if (bits != 0) {""",
        why="a block that was taken from the dead at that moment is taken from its new owner",
        filter="Engine.a_quarantine_keeps_what_a_dead_client_held",
    ),
    Mutation(
        name="resolve_does_not_spare_owned_blocks",
        file="recovery.hpp",
        old="mine &= ~bits_of(layer, other);",
        new="",
        why="the dead client's intent clears the bits of a live block",
        filter="Engine.a_death_of_either_client_is_recovered_beside_the_other",
    ),
    Mutation(
        name="resolve_gives_up_where_anything_is_owned",
        file="recovery.hpp",
        old="mine &= ~bits_of(layer, other);",
        new="mine = 0;",
        why="a block that the dead had claimed beside a living client's block, or beside another dead client's, is "
            "lost",
        filter="Engine.a_death_with_a_cache_or_in_a_bulk_call_loses_nothing",
    ),
    Mutation(
        name="resolve_wants_all_bits_or_none",
        file="recovery.hpp",
        old="if (mine != 0) mine &= bits_in_word(view, layer, word);",
        new="if (mine != 0 && (mine & ~bits_in_word(view, layer, word)) != 0) mine = 0;",
        why="some bits of a dead bulk call, or of two dead clients, are free already: the others are lost",
        filter="Engine.a_death_with_a_cache_or_in_a_bulk_call_loses_nothing",
    ),
    Mutation(
        name="resolve_does_not_wait_for_claims_that_are_undone",
        file="recovery.hpp",
        old="intent_of(entry.freer()).active() &&",
        new="intent_of(entry.freer()).active() && intent_of(entry.freer()).kind() != IntentKind::allocate &&",
        why="the undone claim's bits are cleared from under their next owner",
        filter="Engine.a_death_beside_a_claim_that_is_undone",
    ),
    Mutation(
        name="recovery_waits_for_the_dead",
        file="recovery.hpp",
        old="""return pool_.processes[owner.process().value].state.load(std::memory_order_acquire) ==
               static_cast<std::uint64_t>(ProcessState::active);""",
        new="return true;",
        why="two threads died in the middle of one block: each waits for the other for ever",
        filter="Engine.two_threads_of_one_process_die_together",
    ),
    Mutation(
        name="resolve_clears_bits_that_are_free",
        file="recovery.hpp",
        old="if (mine != 0) mine &= bits_in_word(view, layer, word);",
        new="",
        why="bits that were free at the look are claimed meanwhile, and cleared",
        filter="Engine.a_death_of_either_client_is_recovered_beside_the_other",
    ),
    Mutation(
        name="resolve_does_not_wait_for_live_intents",
        file="recovery.hpp",
        old="if (is_in_live_hands(view, block, thread, blocked_by)) return RecoveryStep::blocked;\n"
            "            bool unchanged",
        new="bool unchanged",
        why="a live client's claim in flight is taken for the dead one's",
        filter="Engine.a_death_of_either_client_is_recovered_beside_the_other",
    ),
    Mutation(
        name="resolve_does_not_wait_for_live_frees",
        file="recovery.hpp",
        old="} else if (entry.is_freeing() && entry.freer() != thread &&",
        new="} else if (view.thread_slots == 0 && entry.freer() != thread &&",
        why="bits that a live client is about to free are cleared from under their next owner",
        filter="Engine.a_death_in_a_bulk_free_beside_another",
    ),
    Mutation(
        name="resolve_does_not_look_at_the_index_again",
        file="recovery.hpp",
        old="if (!unchanged) continue;",
        new="(void)unchanged;",
        why="a live client's claim that was committed between the looks is cleared",
        filter="Engine.a_death_of_either_client_is_recovered_beside_the_other",
    ),
    Mutation(
        name="resolve_ignores_cached_blocks",
        file="recovery.hpp",
        old="if (entry.is_held()) {",
        new="if (entry.is_owned()) {",
        why="the dead client's intent clears the bits of a living client's cached block",
        filter="Engine.a_death_with_a_cache_or_in_a_bulk_call_loses_nothing",
    ),
    Mutation(
        name="recovery_does_not_give_back_caches",
        file="walk.hpp",
        old="if (entry.is_held() && order <= largest && (frame & ((1U << order) - 1)) == 0) [[likely]] {",
        new="if (entry.is_owned() && order <= largest && (frame & ((1U << order) - 1)) == 0) [[likely]] {",
        why="the blocks that a dead client's threads had cached are lost",
        filter="Engine.a_death_with_a_cache_or_in_a_bulk_call_loses_nothing",
    ),
    Mutation(
        name="recovery_does_not_raise_hints_for_the_intent",
        file="recovery.hpp",
        old="raise_to_root(view, level, intent.block().base.value >> word_order(level));",
        new="",
        why="the dead client had unclaimed the block and not yet raised the hints: the memory is hidden",
        filter="Engine.a_death_of_either_client_is_recovered_beside_the_other",
    ),
    Mutation(
        name="recovery_does_not_finish_hint_work",
        file="recovery.hpp",
        old="for (const NodeView<Env> &view : numa_nodes_) finish_hints(view, thread);",
        new="",
        why="the dead client had lowered a hint and not looked again: the memory is hidden",
        filter="Engine.a_death_with_a_cache_or_in_a_bulk_call_loses_nothing",
    ),
    Mutation(
        name="recovery_forgets_its_own_intent",
        file="recovery.hpp",
        old="return finish_thread(kDaemonThread, blocked_by); }",
        new="(void)blocked_by; return RecoveryStep::done; }",
        why="a block that the daemon was freeing when it died is lost",
        filter="Engine.a_death_of_the_daemon_during_recovery",
    ),
    Mutation(
        name="recovery_frees_the_slot_before_the_intent",
        file="recovery.hpp",
        old="const Intent intent{slot.intent.load(std::memory_order_acquire)};\n        if (intent.active()",
        new="const Intent intent{slot.intent.exchange(0)};\n        if (intent.active()",
        why="if the daemon dies before it has resolved the intent, nobody knows of the intent any more",
        filter="Engine.a_death_of_either_client_is_recovered_beside_the_other",
    ),
    Mutation(
        name="recovery_frees_without_the_ownership_CAS",
        file="recovery.hpp",
        old="return buddy.free_entry(kSelf, block, entry, entry.is_owned()) == Errc::ok;",
        new="""view.index_entry(block).store(entry.bits(), std::memory_order_release);
            return buddy.free_entry(kSelf, block, entry, entry.is_owned()) == Errc::ok;""",
        why="a block that was taken from the dead at that moment is freed under its new owner",
        filter="Engine.a_death_of_giver_or_taker_loses_nothing",
    ),
    Mutation(
        name="out_of_the_cache_with_the_note_of_before",
        file="cached_block.h",
        old="NUMACRE_INLINE_STORE(slot, now);",
        new="NUMACRE_INLINE_STORE(slot, now & ~((uint64_t)0x1fffff << NUMACRE_INLINE_THREAD_SHIFT));",
        why="a block that is used again and again through a cache looks as if it had been forgotten",
        filter="Buddy.a_block_says_since_when_its_holder_has_it",
        program="shm_buddy_test",
    ),
    Mutation(
        name="take_keeps_the_time_of_the_giver",
        file="owner.hpp",
        old="return IndexEntry{other.of(order(), note().with_since(since)).bits_ | lent_bits()};",
        new="return (void)since, IndexEntry{other.of(order(), note()).bits_ | lent_bits()};",
        why="the taker of a block is said to have held it for as long as the giver",
        filter="Buddy.a_block_says_since_when_its_holder_has_it",
        program="shm_buddy_test",
    ),
    Mutation(
        name="release_frees_whosever_it_is",
        file="recovery.hpp",
        old="if (!entry.is_owned() || entry.owner() != kDaemonProcess || entry.order() != block.order) return false;",
        new="if (!entry.is_owned() || entry.order() != block.order) return false;",
        why="a block that was seized and is somebody's by now is freed under its owner",
        filter="Recovery.what_is_seized_is_the_daemon_s_until_it_is_released",
        program="shm_recovery_test",
    ),
    Mutation(
        name="recovery_gives_back_the_slot_of_whom_it_waits_for",
        file="recovery.hpp",
        old="one->step = RecoveryStep::blocked;\n                continue;",
        new="",
        why="the block that the dead thread had in flight is lost, and the thread's slot is handed out with an intent "
            "in it",
        filter="Engine.a_death_of_either_client_is_recovered_beside_the_other",
    ),
    Mutation(
        name="a_thread_slot_is_claimed_below_no_mark",
        file="thread_slots.hpp",
        old="while (seen <= thread && !mark.compare_exchange_weak(seen, thread + 1, std::memory_order_seq_cst)) {\n}",
        new="(void)seen;",
        why="recovery does not find the slot of a thread that died with it: the slot is taken for ever",
        program="shm_recovery_test",
        filter="Recovery.gives_back_a_thread_slot_wherever_its_claimant_died",
    ),
    # --- chunks -------------------------------------------------------------------------------------------------------
    Mutation(
        name="chunk_taken_offline_over_marks",
        file="buddy/claim.hpp",
        old="return state.occupied_children() | state.allocated_children() |\n                   (if_draining",
        new="return state.allocated_children() |\n                   (if_draining",
        why="memory is taken away from under live blocks",
        filter="Engine.a_chunk_is_drained_and_taken_offline_beside_clients",
    ),
    Mutation(
        name="chunk_taken_offline_without_clean",
        file="chunks.hpp",
        old="if (!buddy_.clean_below(kSelf, block) || !buddy_.claim_exactly(kSelf, block)) return false;",
        new="return false;",
        why="a chunk that was ever used can never go offline",
        filter="*chunks_come_online*",
        program="shm_buddy_test",
    ),
    Mutation(
        name="undrain_does_not_raise_hints",
        file="chunks.hpp",
        old="search.raise_after(layer, word, change);",
        new="change();",
        why="a chunk that is open again stays hidden",
        filter="Engine.a_chunk_is_drained_and_taken_offline_beside_clients",
    ),
    Mutation(
        name="undrain_announced_too_late",
        file="search.hpp",
        old="begin_hint_work(layer, word);\n        open();",
        new="open();\n        begin_hint_work(layer, word);",
        why="a search in between is told that there is nothing",
        filter="Engine.a_chunk_that_drains_no_more_is_hidden_from_nobody",
    ),
    Mutation(
        name="intent_of_an_offline_step_ends_before_the_commit",
        file="chunks.hpp",
        old="""buddy_.commit(layer_of(block.order), block, IndexEntry::owned(kOfflineOwner, block.order, 0, {}));
        buddy_.end(kSelf);""",
        new="""buddy_.end(kSelf);
        buddy_.commit(layer_of(block.order), block, IndexEntry::owned(kOfflineOwner, block.order, 0, {}));""",
        why="a daemon that dies between the two leaves a chunk that is neither open nor offline, for ever",
        filter="Engine.a_daemon_that_dies_in_the_middle_of_a_unit_of_several_chunks",
    ),
    Mutation(
        name="offline_chunk_is_the_daemons",
        file="chunks.hpp",
        old="buddy_.commit(layer_of(block.order), block, IndexEntry::owned(kOfflineOwner, block.order, 0, {}));",
        new="buddy_.commit(layer_of(block.order), block, IndexEntry::owned(kDaemonProcess, block.order, 0, {}));",
        why="the next daemon releases the chunk as something seized: the chunk is open without memory behind it",
        filter="Engine.a_chunk_is_drained_and_taken_offline_beside_clients",
    ),
    Mutation(
        name="drain_forgets_the_marks_of_others",
        file="chunks.hpp",
        old="if (state.compare_exchange_weak(bits, now.bits(), std::memory_order_seq_cst)) break;",
        new="state.store(now.bits(), std::memory_order_seq_cst);\n                break;",
        why="marks and claims that clients made in the word meanwhile are wiped out",
        filter="Engine.a_chunk_is_drained_and_taken_offline_beside_clients",
    ),
    Mutation(
        name="given_block_is_forgotten_at_a_death",
        file="recovery.hpp",
        old="        take_back_given(slot);\n",
        new="        slot.waiting.store(0, std::memory_order_release);\n",
        why="a block that the dead was given and had not received stays nobody's for ever",
        filter="Engine.a_death_around_a_hand_off_loses_nothing",
    ),
    Mutation(
        name="large_block_called_cached_is_not_walked",
        file="walk.hpp",
        old="if (entry.is_held() && layer_of(block.order) == layer && view_.contains(block)) {",
        new="if (entry.is_owned() && layer_of(block.order) == layer && view_.contains(block)) {",
        why="a large block that the dead had taken out of the tree for a waiting thread is lost",
        filter="Engine.a_death_around_a_hand_off_of_a_large_block",
    ),
    Mutation(
        name="wish_is_cleared_without_a_look",
        file="recovery.hpp",
        old="if (bits == 0 || slot.waiting.compare_exchange_weak(bits, 0, std::memory_order_acq_rel)) return;",
        new="return slot.waiting.store(0, std::memory_order_release);",
        why="somebody gives the dead thread a block at this moment",
        filter="Engine.who_gives_up_waiting_may_have_been_given_a_block",
    ),
    Mutation(
        name="untold_block_stays_on_its_way",
        file="recovery.hpp",
        old="(void)Buddy<Env>{view, pool_}.free_entry(kSelf, block, entry, true);\n        return RecoveryStep::done;",
        new="return RecoveryStep::done;",
        why="the giver died before it told anybody of the block",
        filter="Engine.a_death_around_a_hand_off_loses_nothing",
    ),
    Mutation(
        name="flag_is_lowered_before_the_search",
        file="hand_off.hpp",
        old="            const Served served = serve_all(actor, exhausted, wake);\n",
        new="            pool_.header->attention.fetch_and(~Attention::kWaiters, std::memory_order_seq_cst);\n"
        "            const Served served = serve_all(actor, exhausted, wake);\n"
        "            if (served == Served::not_all) raise_flag();\n",
        why="a block that is released after the search and before the flag is up again is given to nobody",
        filter="Engine.a_released_block_goes_to_who_waits",
    ),
    Mutation(
        name="own_words_are_read_once",
        file="account.hpp",
        old="if (last.digest == before.digest && last.own == charged) return last;",
        new="(void)charged;\n    if (last.digest == before.digest) return last;",
        why="a block that the charged process hands on while the others' words are read is missed: a quota is exceeded",
        filter="Account.a_block_that_is_handed_over_between_any_loads_is_not_missed",
        program="shm_account_test",
    ),
    Mutation(
        name="readings_agree_without_own_words",
        file="account.hpp",
        old="return digest == other.digest && own == other.own;",
        new="return digest == other.digest;",
        why="a block that goes back to the charged process between two readings is missed: a quota is exceeded",
        filter="Account.a_block_that_is_handed_over_between_any_loads_is_not_missed",
        program="shm_account_test",
    ),
    Mutation(
        name="a_thread_that_still_waits_forgets_its_wish",
        file="hand_off.hpp",
        old="if (!given.is_given()) return false;\n        bool got = false;",
        new="bool got = false;",
        why="a wish that was nudged again is forgotten; a store would also wipe out a block that is given at that "
            "moment",
        filter="HandOff.who_still_waits_receives_nothing_and_goes_on_waiting",
        program="shm_hand_off_test",
    ),
    Mutation(
        name="second_nudge_ends_the_wait",
        file="hand_off.hpp",
        old="return now.not_nudged() != wish;",
        new="return now != wish;",
        why="a waiter that is nudged twice begins a new wish over a word that waits, and a block given to it is lost",
        filter="Engine.who_is_nudged_twice_loses_no_block_that_it_is_given",
    ),
    Mutation(
        name="hand_off_out_of_a_draining_chunk",
        file="hand_off.hpp",
        old="if (buddy.is_draining(block)) return Given::no;",
        new="",
        why="a chunk that is to become empty is handed on for as long as threads wait",
        filter="Engine.a_drain_beside_a_hand_off",
    ),
    Mutation(
        name="wish_of_nobody_is_served",
        file="hand_off.hpp",
        old="if (!ThreadOwner{pool_.threads[thread].owner.load(std::memory_order_relaxed)}.in_use()) continue;",
        new="",
        why="a block is given to a thread slot that nobody has, and lost",
        filter="HandOff.a_wish_in_a_thread_slot_without_a_thread_is_passed_over",
        program="shm_hand_off_test",
    ),
    Mutation(
        name="chosen_place_in_a_draining_chunk",
        file="buddy/claim.hpp",
        old="if (!claim_this(actor, block, IfDraining::refuse)) return false;",
        new="if (!claim_this(actor, block, IfDraining::claim)) return false;",
        why="a thread that chose a place before the drain began gets it after",
        filter="Buddy.a_place_in_a_draining_chunk_is_refused",
        program="shm_buddy_test",
    ),
    # --- channels -----------------------------------------------------------------------------------------------------
    Mutation(
        name="send_without_errand",
        file="channel/channel.hpp",
        old="""begin(slot, ErrandKind::send, false, count, at);
 for (unsigned moved = 0;""",
        new="for (unsigned moved = 0;",
        why="a death in the middle leaves blocks that are the channel's and in no cell: lost",
        filter="ChannelDeaths.of_a_sender_beside_a_ring_that_goes_round",
        program="shm_channel_test",
    ),
    Mutation(
        name="segment_of_the_cell_is_not_kept",
        file="channel/channel.hpp",
        old="""slot.segment.store(at.cell.segment(), std::memory_order_relaxed);
 end(slot);""",
        new="end(slot);",
        why="the sender's next list overwrites the one that is in the ring",
        filter="Channel.a_sender_and_a_receiver",
        program="model_channel",
    ),
    Mutation(
        name="undo_is_not_said",
        file="channel/channel.hpp",
        old="slot.errand.store(errand.as(ErrandKind::undo).bits(), std::memory_order_release);",
        new="(void)errand;",
        why="a death in the middle of giving back: the first block is the sender's with a new generation, as if it had "
        "been sent and received",
        filter="ChannelDeaths.of_a_sender_who_takes_its_burst_back",
        program="shm_channel_test",
    ),
    Mutation(
        name="taking_is_not_said",
        file="channel/channel.hpp",
        old="slot.errand.store(errand.as(ErrandKind::taking).bits(), std::memory_order_release);",
        new="(void)errand;",
        why="messages that a dead receiver had made its own, and not returned, are lost",
        filter="Channel.a_death",
        program="model_channel",
    ),
    Mutation(
        name="claims_of_another_burst",
        file="channel/channel.hpp",
        old="if (!ring.is_unchanged(at)) continue;",
        new="",
        why="a dead receiver that came late names messages that are in the ring: they come back a second time",
        filter="Channel.a_death_of_a_receiver_that_came_late",
        program="model_channel",
    ),
    Mutation(
        name="list_is_read_after_the_CAS",
        file="channel/channel.hpp",
        old="const Message message{slot.claims[next].load(std::memory_order_relaxed)};",
        new="const Message message{list[first + next].load(std::memory_order_relaxed)};",
        why="the segment is a sender's again, and the list another one",
        filter="Channel.a_death_of_a_receiver_that_came_late",
        program="model_channel",
    ),
    Mutation(
        name="receive_without_errand",
        file="channel/channel.hpp",
        old="begin(slot, ErrandKind::receive, is_of_returned, count, at);",
        new="",
        why="a message that a dead receiver had taken out of the ring is lost",
        filter="Channel.a_death",
        program="model_channel",
    ),
    Mutation(
        name="errand_before_the_cell_that_it_has_seen",
        file="channel/channel.hpp",
        old="""slot.seen.store(at.cell.bits(), std::memory_order_release);
 slot.errand.store(Errand{kind, is_of_returned, count, at.position}.bits(), std::memory_order_release);""",
        new="""slot.errand.store(Errand{kind, is_of_returned, count, at.position}.bits(), std::memory_order_release);
        slot.seen.store(at.cell.bits(), std::memory_order_release);""",
        why="recovery judges the errand by the cell of the one before",
        filter="Channel.a_death",
        program="model_channel",
    ),
    Mutation(
        name="returned_messages_come_last",
        file="channel/channel.hpp",
        old="""const Received again = receive_from(view_.returned, true, party, actor, most, since, give);
 return again.result != ReceiveResult::empty ? again
 : receive_from(view_.ring, false, party, actor, most, since, give);""",
        new="""const Received again = receive_from(view_.ring, false, party, actor, most, since, give);
        return again.result != ReceiveResult::empty
            ? again : receive_from(view_.returned, true, party, actor, most, since, give);""",
        why="a message that came back waits for as long as others send, and its ring may be too small",
        filter="ChannelReturned.comes_first_and_says_so",
        program="shm_channel_test",
    ),
    Mutation(
        name="published_block_is_sent",
        file="channel/channel.hpp",
        old="if (entry.is_published()) return SendResult::published;",
        new="",
        why="the caller is told that the block is not its own",
        filter="Channels.a_send_of_a_block_that_cannot_be_sent_changes_nothing",
        program="shm_channel_test",
    ),
    Mutation(
        name="block_named_twice_is_sent_twice",
        file="channel/channel.hpp",
        old="""if (!blocks_.look(message, entry) || !entry.is_private(IndexEntry::private_to(process)) ||
 next_generation(entry.generation()) != message.generation())
 return false;""",
        new="if (!blocks_.look(message, entry)) return false;",
        why="a block is in the channel twice",
        filter="Channel.a_block_that_is_named_twice_is_refused",
        program="model_channel",
    ),
    Mutation(
        name="room_is_not_counted",
        file="channel/channel.hpp",
        old="return now + count <= view_.shape.capacity ? SendResult::sent : SendResult::full;",
        new="return SendResult::sent;",
        why="more messages are sent than the capacity",
        filter="Channels.capacity_counts_messages_and_order_is_kept",
        program="shm_channel_test",
    ),
    Mutation(
        name="head_is_remembered_for_too_long",
        file="channel/channel.hpp",
        old="at.position - received_at_ < kBurstsCounted)",
        new="at.position - received_at_ < view_.ring.cell_count)",
        why="totals come round meanwhile, and a full channel seems to have room",
        filter="ChannelRounds.capacity_is_exact_though_another_sender_s_totals_have_come_round",
        program="shm_channel_test",
    ),
    Mutation(
        name="closed_channel_takes_messages",
        file="channel/channel.hpp",
        old="if (view_.header->state.load(std::memory_order_relaxed) != 0) return SendResult::closed;",
        new="",
        why="a message that is sent after the end is received by nobody",
        filter="Channels.nobody_sends_into_a_closed_one_and_what_is_there_is_received",
        program="shm_channel_test",
    ),
    Mutation(
        name="cell_is_filled_without_comparing",
        file="channel/ring.hpp",
        old="""if (!view_.cell(at.position).compare_exchange_strong(bits, filled.bits(), std::memory_order_seq_cst))
 return false;
 pass(*view_.tail""",
        new="""(void)bits;
        view_.cell(at.position).store(filled.bits(), std::memory_order_seq_cst);
        pass(*view_.tail""",
        why="of two senders one overwrites the other's burst",
        filter="Channel.two_senders_fill_it",
        program="model_channel",
    ),
    Mutation(
        name="messages_are_taken_without_comparing",
        file="channel/ring.hpp",
        old="""if (!view_.cell(at.position).compare_exchange_strong(bits, rest.bits(), std::memory_order_seq_cst))
 return false;
 if (""",
        new="""(void)bits;
        view_.cell(at.position).store(rest.bits(), std::memory_order_seq_cst);
        if (""",
        why="two receivers have one message",
        filter="Channel.two_receivers_share_a_burst",
        program="model_channel",
    ),
    Mutation(
        name="tail_hint_is_believed",
        file="channel/ring.hpp",
        old="position = behind(position, last, last.is_full() ? 0 : 1);",
        new="++position;",
        why="a hint of long ago, by a thread that was stopped before it stored it, ends all sending",
        filter="Channel.hints_are_far_behind",
        program="model_channel",
    ),
    Mutation(
        name="head_hint_is_believed",
        file="channel/ring.hpp",
        old="position = behind(position, last, 1);",
        new="++position;",
        why="a hint of long ago, by a thread that was stopped before it stored it, ends all receiving",
        filter="Channel.hints_are_far_behind",
        program="model_channel",
    ),
    Mutation(
        name="round_does_not_go_on",
        file="channel/words.hpp",
        old=": empty(segment(), round() + 1, total());",
        new=": empty(segment(), round(), total());",
        why="an empty cell that was received looks like one that nobody has sent to",
        filter="Channel.a_sender_and_a_receiver",
        program="model_channel",
    ),
    Mutation(
        name="segment_stays_with_the_sender",
        file="channel/words.hpp",
        old="return CellWord{empty(segment, round(), total).bits_ | kFull",
        new="return CellWord{empty(this->segment(), round(), total).bits_ | kFull",
        why="receivers read the list that the cell had before",
        filter="Channel.a_sender_and_a_receiver",
        program="model_channel",
    ),
    Mutation(
        name="sleeper_is_not_announced",
        file="channel/sleepers.hpp",
        old="asleep_.store(1, std::memory_order_seq_cst);",
        new="",
        why="nobody wakes the sleeper",
        filter="Channel.nobody_sleeps_beside_a_message_or_room",
        program="model_channel",
    ),
    Mutation(
        name="signal_does_not_grow",
        file="channel/sleepers.hpp",
        old="signal_.fetch_add(1, std::memory_order_seq_cst);",
        new="",
        why="a receiver that was about to sleep sleeps beside a message",
        filter="Channel.nobody_sleeps_beside_a_message_or_room",
        program="model_channel",
    ),
    Mutation(
        name="signal_before_flag",
        file="channel/sleepers.hpp",
        old="""asleep_.store(0, std::memory_order_seq_cst);
 signal_.fetch_add(1, std::memory_order_seq_cst);""",
        new="""signal_.fetch_add(1, std::memory_order_seq_cst);
        asleep_.store(0, std::memory_order_seq_cst);""",
        why="the flag of one who announced itself in between is lost, and nobody wakes it",
        filter="Channel.nobody_sleeps_beside_a_message_or_room",
        program="model_channel",
    ),
    Mutation(
        name="flag_before_signal_is_read",
        file="channel/sleepers.hpp",
        old="""const std::uint32_t signal = signal_.load(std::memory_order_seq_cst);
 // EDGE asleep-then-look (seq_cst; partner: must_wake(), after a change of the ring). Weakened: the sleeper does
 // not see the message, and its sender sees no sleeper.
 asleep_.store(1, std::memory_order_seq_cst);""",
        new="""asleep_.store(1, std::memory_order_seq_cst);
        const std::uint32_t signal = signal_.load(std::memory_order_seq_cst);""",
        why="the flag is cleared before the signal is read: the sleeper sleeps on a signal that nobody will change",
        filter="Channel.two_sleepers_are_woken",
        program="model_channel",
    ),
    Mutation(
        name="bell_is_cleared_before_it_is_rung",
        file="channel/bells.hpp",
        old="""if (serial == 0 || !ring(party, serial)) continue;
 std::uint64_t bits = seen.bits();""",
        new="""if (serial == 0) continue;
            std::uint64_t early = seen.bits();
            if (!slot.armed.compare_exchange_strong(early, seen.rung().bits(), std::memory_order_seq_cst,
                                                    std::memory_order_relaxed)) continue;
            if (!ring(party, serial)) continue;
            std::uint64_t bits = seen.bits();""",
        why="a sender that dies, or stops, between the two takes the wake-up with it",
        filter="Channel.a_stopped_sender_takes_no_wake_up",
        program="model_channel",
    ),
    Mutation(
        name="arm_without_number",
        file="channel/bells.hpp",
        old="return ArmedWord{((bits_ | kAny) + 1) | what};",
        new="return ArmedWord{what};",
        why="a sender that has rung long ago clears what the party has armed since",
        filter="Channel.nobody_watches_beside_a_message_or_room",
        program="model_channel",
    ),
    Mutation(
        name="party_looks_before_it_is_armed",
        file="channel/bells.hpp",
        old="armed.store(now.bits(), std::memory_order_seq_cst);",
        new="armed.store(now.bits(), std::memory_order_relaxed);",
        why="the party does not see the message, and its sender does not see that it waits",
        filter="Channel.weak_memory",
        program="model_channel",
    ),
    Mutation(
        name="verdict_is_not_kept",
        file="channel/recovery.hpp",
        old="""slot.errand.store(errand.as(ErrandKind::undo).bits(), std::memory_order_release);
 [[fallthrough]];""",
        new="[[fallthrough]];",
        why="the first block is free when the next daemon judges: it takes the burst for sent",
        filter="ChannelDeaths.of_a_sender_beside_a_ring_that_goes_round",
        program="shm_channel_test",
    ),
    Mutation(
        name="unsent_blocks_are_not_returned",
        file="channel/recovery.hpp",
        old="return_unsent(slot, errand.count(), process, since);",
        new="",
        why="the blocks of a burst that was not sent stay the channel's for ever",
        filter="Channel.a_death",
        program="model_channel",
    ),
    Mutation(
        name="errand_cleared_before_the_segment",
        file="channel/recovery.hpp",
        old="""slot.segment.store(seen.segment(), std::memory_order_relaxed);
 slot.errand.store(0, std::memory_order_release);""",
        new="""slot.errand.store(0, std::memory_order_release);
        slot.segment.store(seen.segment(), std::memory_order_relaxed);""",
        why="a daemon that dies in between leaves a segment in two places",
        filter="ChannelDeaths.of_a_sender_beside_a_ring_that_goes_round",
        program="shm_channel_test",
    ),
    Mutation(
        name="swapped_segment_is_not_seen",
        file="channel/recovery.hpp",
        old="if (has_swapped(slot, seen)) return true;",
        new="",
        why="the sender died between its last two stores, and what it has sent is freed",
        filter="Channel.a_death",
        program="model_channel",
    ),
    Mutation(
        name="distance_of_rounds_is_believed",
        file="channel/recovery.hpp",
        old="if (now == seen) return false;",
        new="if (rounds <= 0) return false;",
        why="a burst that was sent so many rounds ago that the distance is negative is taken for unsent",
        filter="ChannelRounds.a_dead_sender_s_burst_was_sent_however_long_ago",
        program="shm_channel_test",
    ),
    Mutation(
        name="block_that_is_still_the_sender_s",
        file="channel/recovery.hpp",
        old="return !is_channels && !is_still_its;",
        new="return !is_channels;",
        why="a burst that the sender had not begun to move is taken for sent: a segment is in two places",
        filter="ChannelDeaths.of_a_sender_beside_a_ring_that_goes_round",
        program="shm_channel_test",
    ),
    Mutation(
        name="living_receivers_are_not_waited_for",
        file="channel/recovery.hpp",
        old="if (most != 0 && is_named_by_the_living(slot, errand, seen.round(), is_dead)) "
        "return RecoveryStep::blocked;",
        new="",
        why="a message that a living receiver has taken comes back as well",
        filter="Channel.a_death",
        program="model_channel",
    ),
    Mutation(
        name="living_receivers_before_the_cell",
        file="channel/recovery.hpp",
        old="""const CellWord now{
 view_.ring_of(errand.is_of_returned()).cell(errand.position()).load(std::memory_order_seq_cst)};
 if (now == seen) most = 0;
 if (most != 0 && is_named_by_the_living(slot, errand, seen.round(), is_dead)) return RecoveryStep::blocked;""",
        new="""const bool named = is_named_by_the_living(slot, errand, seen.round(), is_dead);
            const CellWord now{
                view_.ring_of(errand.is_of_returned()).cell(errand.position()).load(std::memory_order_seq_cst)};
            if (now == seen) most = 0;
            if (most != 0 && named) return RecoveryStep::blocked;""",
        why="a receiver that begins in between is not seen, and what it takes comes back as well",
        filter="Channel.a_death",
        program="model_channel",
    ),
    Mutation(
        name="dead_receivers_are_waited_for",
        file="channel/recovery.hpp",
        old="owner.in_use() && !is_dead(owner.process()) &&",
        new="owner.in_use() &&",
        why="two parties that died in the middle of one cell wait for each other for ever",
        filter="Channel.two_parties_die_at_once",
        program="model_channel",
    ),
    Mutation(
        name="cell_messages_come_back_as_well",
        file="channel/recovery.hpp",
        old="if (is_same_burst && now.taken() < seen.taken() + most)",
        new="if (false)",
        why="messages that nobody has taken are in both rings",
        filter="Channel.a_death",
        program="model_channel",
    ),
    Mutation(
        name="moved_messages_are_forgotten",
        file="channel/recovery.hpp",
        old="else if (has_taken && blocks_.is_owned(received, process))",
        new="else if (false)",
        why="messages that were the dead receiver's, which had not returned, are lost",
        filter="Channel.a_death",
        program="model_channel",
    ),
    Mutation(
        name="messages_of_another_thread_come_back",
        file="channel/recovery.hpp",
        old="else if (has_taken && blocks_.is_owned(received, process))",
        new="else if (blocks_.is_owned(received, process))",
        why="a message that another thread of the dead process had received is received again",
        filter="Channel.two_parties_die_at_once",
        program="model_channel",
    ),
    Mutation(
        name="resume_does_nothing",
        file="channel/recovery.hpp",
        old="if (errand.kind() != ErrandKind::send) return;",
        new="if (errand.kind() != ErrandKind::none) return;",
        why="messages that the daemon was sending back when it died are lost",
        filter="ChannelDeaths.of_a_receiver_beside_a_ring_that_goes_round",
        program="shm_channel_test",
    ),
    Mutation(
        name="resume_sends_again_what_was_sent",
        file="channel/recovery.hpp",
        old="if (has_swapped(slot, seen) || is_in_cell(view_.returned, errand.position(), seen, segment_of(slot)))",
        new="if (has_swapped(slot, seen))",
        why="a message that the daemon had sent back when it died comes back twice",
        filter="ChannelDeaths.of_a_receiver_beside_a_ring_that_goes_round",
        program="shm_channel_test",
    ),
    Mutation(
        name="message_that_comes_back_keeps_its_generation",
        file="channel/recovery.hpp",
        old="list[next].store(messages[next].with_generation(next_generation(messages[next].generation())).bits(),",
        new="list[next].store(messages[next].bits(),",
        why="a message that the dead receiver had made its own is listed as it is not: nobody can receive it",
        filter="Channel.a_death",
        program="model_channel",
    ),
    Mutation(
        name="party_slot_is_free_while_recovery_waits",
        file="channel/recovery.hpp",
        old="""step = RecoveryStep::blocked;
 continue;""",
        new="step = RecoveryStep::blocked;",
        why="the next user's errand overwrites that of the dead, and its messages are lost",
        filter="Channel.a_death",
        program="model_channel",
    ),
    Mutation(
        name="returned_ring_is_small",
        file="channel/layout.hpp",
        old="return std::bit_ceil(parties * burst < 2 ? 2 : parties * burst);",
        new="return std::bit_ceil(2 * parties);",
        why="receivers that die one after the other fill it, and recovery waits for ever",
        filter="ChannelReturned.there_is_room_for_whatever_the_dead_had_received",
        program="shm_channel_test",
    ),
    Mutation(
        name="hold_without_the_second_look",
        file="buddy/holds.hpp",
        old="if (bits != entry.lent().bits()) [[unlikely]] {",
        new="if (bits == 0) [[unlikely]] {",
        why="the block was freed between the look and the word",
        filter="Holds.what_is_held_is_not_freed_and_the_last_drop_frees",
        program="model_holds",
    ),
    Mutation(
        name="hold_that_looks_before_its_word_is_seen",
        file="buddy/holds.hpp",
        old="self.slot->holds.store(others | std::uint64_t{1} << place, std::memory_order_seq_cst);",
        new="self.slot->holds.store(others | std::uint64_t{1} << place, std::memory_order_release);",
        why="the free sees no word yet, and the thread an old entry: the block is freed under it",
        filter="Holds.in_the_memory_of_x86",
        program="model_holds",
    ),
    Mutation(
        name="first_hold_does_not_lend",
        file="buddy/holds.hpp",
        old="} else if (slot.compare_exchange_strong(bits, entry.lent().bits(), std::memory_order_seq_cst)) {",
        new="} else if ((bits = slot.load(std::memory_order_seq_cst)) == entry.bits()) {",
        why="the free does not look whether anybody holds the block",
        filter="Holds.what_is_held_is_not_freed_and_the_last_drop_frees",
        program="model_holds",
    ),
    Mutation(
        name="hold_that_was_too_late_leaves_the_block",
        file="buddy/holds.hpp",
        old="(void)drop(self, *self.slot, words, place);\n            return Errc::stale_ref;",
        new="self.slot->holds.store(others, std::memory_order_release);\n            return Errc::stale_ref;",
        why="the free has seen the word and left the block to it: memory is lost",
        filter="Holds.what_is_held_is_not_freed_and_the_last_drop_frees",
        program="model_holds",
    ),
    Mutation(
        name="drop_does_not_look",
        file="buddy/holds.hpp",
        old="is_freed = is_ours && entry.order() == block.order && free_lingering(self, layer, block, entry);",
        new="is_freed = false;",
        why="a block that was freed while it was held is lost",
        filter="Holds.what_is_held_is_not_freed_and_the_last_drop_frees",
        program="model_holds",
    ),
    Mutation(
        name="drop_that_looks_as_a_holder",
        file="buddy/holds.hpp",
        old="words.word[place].store(word.dropping().bits(), std::memory_order_seq_cst);",
        new="words.word[place].store(word.bits(), std::memory_order_seq_cst);",
        why="the last drop sees its own word, and leaves the block to itself",
        filter="Holds.what_is_held_is_not_freed_and_the_last_drop_frees",
        program="model_holds",
    ),
    Mutation(
        name="drop_that_looks_before_its_word_is_seen",
        file="buddy/holds.hpp",
        old="words.word[place].store(word.dropping().bits(), std::memory_order_seq_cst);",
        new="words.word[place].store(word.dropping().bits(), std::memory_order_release);",
        why="the free sees a holder, and the holder no free: memory is lost",
        filter="Holds.in_the_memory_of_x86",
        program="model_holds",
    ),
    Mutation(
        name="drop_forgets_its_word_before_it_looks",
        file="buddy/holds.hpp",
        old="words.word[place].store(word.dropping().bits(), std::memory_order_seq_cst);",
        new="""words.word[place].store(word.dropping().bits(), std::memory_order_seq_cst);
        holder.holds.store(holder.holds.load() & ~(std::uint64_t{1} << place));""",
        why="after a death between the two nobody looks: a lingering block is lost",
        filter="Holds.a_death_loses_nothing",
        program="model_holds",
    ),
    Mutation(
        name="free_of_a_lent_block_does_not_look",
        file="buddy/release.hpp",
        old="if (has_readers(pool_, view_.numa_node, block)) return false;",
        new="",
        why="a block is freed under its readers",
        filter="Holds.what_is_held_is_not_freed_and_the_last_drop_frees",
        program="model_holds",
    ),
    Mutation(
        name="free_of_a_lent_block_leaves_it_to_nobody",
        file="buddy/release.hpp",
        old="if (!free_lingering(self, layer, block, lingers)) end(self);",
        new="end(self);",
        why="nobody holds it any more, and nobody frees it",
        filter="Holds.what_is_held_is_not_freed_and_the_last_drop_frees",
        program="model_holds",
    ),
    Mutation(
        name="free_looks_before_the_block_lingers",
        file="buddy/release.hpp",
        old="const IndexEntry lingers = entry.now(IndexEntry::owned(kLingeringOwner, Order{0}, 0, {}));",
        new="""const IndexEntry lingers = entry.now(IndexEntry::owned(kLingeringOwner, Order{0}, 0, {}));
        if (!has_readers(pool_, view_.numa_node, block) && become_freer(self, layer, block, entry))
            return release(self, layer, block, tally);
        begin_free(self, block);""",
        why="a hold between the look and the free is not seen",
        filter="Holds.what_is_held_is_not_freed_and_the_last_drop_frees",
        program="model_holds",
    ),
    Mutation(
        name="free_of_a_block_that_is_just_lent_gives_up",
        file="buddy/release.hpp",
        old="return found.is_owned() && entry == found.lent() ? free_lent(self, layer, block, entry, tally)\n"
            ": ShortPath::refused;",
        new="return found.is_lent() ? free_lent(self, layer, block, entry, tally) : ShortPath::refused;",
        why="a first hold beside the free makes the free fail, and the block is lost",
        filter="Holds.what_is_held_is_not_freed_and_the_last_drop_frees",
        program="model_holds",
    ),
    Mutation(
        name="bulk_free_of_a_lent_block",
        file="buddy/release.hpp",
        old="entry.is_lent() || !view_.contains(block) ||",
        new="!view_.contains(block) ||",
        why="a block is freed under its readers",
        filter="Holds.what_is_held_is_not_freed_and_the_last_drop_frees",
        program="model_holds",
    ),
    Mutation(
        name="take_ends_the_loan",
        file="owner.hpp",
        old="return IndexEntry{other.of(order(), note().with_since(since)).bits_ | lent_bits()};",
        new="return IndexEntry{other.of(order(), note().with_since(since)).bits_};",
        why="the taker's free does not look: the block is freed under its readers",
        filter="Holds.what_is_held_is_not_freed_and_the_last_drop_frees",
        program="model_holds",
    ),
    Mutation(
        name="take_beside_a_first_hold_gives_up",
        file="buddy/ownership.hpp",
        old="if (!take_at(self, layer, block, reference, since) && !take_at(self, layer, block, reference, since))",
        new="if (!take_at(self, layer, block, reference, since))",
        why="a good reference is called stale because somebody has begun to hold the block",
        filter="Holds.what_is_held_is_not_freed_and_the_last_drop_frees",
        program="model_holds",
    ),
    Mutation(
        name="withdraw_ends_the_loan",
        file="buddy/ownership.hpp",
        old="""if (entry.is_lent()) return false;
        std::uint64_t bits = entry.bits();
        const IndexEntry now""",
        new="""std::uint64_t bits = entry.bits();
        const IndexEntry now""",
        why="the withdrawn block is freed, or cached, under its readers",
        filter="Holds.what_is_held_is_not_freed_and_the_last_drop_frees",
        program="model_holds",
    ),
    Mutation(
        name="recovery_forgets_holds",
        file="recovery.hpp",
        old="drop_holds(slot, pool_.holds[thread.value]);",
        new="slot.holds.store(0, std::memory_order_release);",
        why="a block that only the dead held is lost when its owner has freed it before",
        filter="Holds.a_death_loses_nothing",
        program="model_holds",
    ),
    Mutation(
        name="recovery_leaves_holds",
        file="recovery.hpp",
        old="drop_holds(slot, pool_.holds[thread.value]);",
        new="",
        why="the dead hold for ever",
        filter="Holds.a_death_loses_nothing",
        program="model_holds",
    ),
    Mutation(
        name="recovery_forgets_what_a_freer_left",
        file="recovery.hpp",
        old="free_what_lingers(view, intent.block());",
        new="",
        why="a free that died before its look for holders has lost the block",
        filter="Holds.a_death_loses_nothing",
        program="model_holds",
    ),
    Mutation(
        name="seize_of_a_block_that_is_just_lent",
        file="recovery.hpp",
        old="for (unsigned look = 0; look < 2; ++look) {",
        new="for (unsigned look = 0; look < 1; ++look) {",
        why="the block stays the dead process's for ever",
        filter="Holds.a_block_that_the_daemon_seizes_is_not_zeroed_under_its_readers",
        program="model_holds",
    ),
    Mutation(
        name="seized_block_without_readers",
        file="recovery.hpp",
        old="""return IndexEntry{view.index_entry(block).load(std::memory_order_acquire)}.is_lent() &&
               engine::has_readers(pool_, numa_node, block);""",
        new="return view.index_entry(block).load(std::memory_order_acquire) == 0;",
        why="the daemon zeroes what somebody reads",
        filter="Holds.a_block_that_the_daemon_seizes_is_not_zeroed_under_its_readers",
        program="model_holds",
    ),
    Mutation(
        name="hand_off_of_a_lent_block",
        file="buddy/ownership.hpp",
        old="if (entry.is_lent()) return false;\n        const Self self = view_of(actor);",
        new="const Self self = view_of(actor);",
        why="the waiter writes into a block under its readers",
        filter="HandOff.a_block_that_was_held_goes_to_nobody_who_waits",
        program="shm_hand_off_test",
    ),
    Mutation(
        name="short_hold_without_the_second_look",
        file="buddy/holds.hpp",
        old="if (slot.load(std::memory_order_seq_cst) == bits) [[likely]]",
        new="if (bits != 0) [[likely]]",
        why="the block was freed between the look and the word",
        filter="Holds.what_is_held_is_not_freed_and_the_last_drop_frees",
        program="model_holds",
    ),
    Mutation(
        name="short_hold_that_was_too_late_leaves_the_block",
        file="buddy/holds.hpp",
        old="(void)drop(self, *self.slot, words, place);\n        return false;",
        new="self.slot->holds.store(others, std::memory_order_release);\n        return false;",
        why="the free has seen the word and left the block to it: memory is lost",
        filter="Holds.what_is_held_is_not_freed_and_the_last_drop_frees",
        program="model_holds",
    ),
]
