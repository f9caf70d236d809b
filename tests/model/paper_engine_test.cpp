// The shape of the published algorithm's lost memory (paper_test.cpp, algorithm notes A2) on the product's engine:
// there a rollback must not stop below a mark that a release left to it. (The shape of its overlap, A1, is
// engine_test.cpp's a_late_clean_does_not_unmark_a_new_block.)
#include <gtest/gtest.h>

#include "engine_model.hpp"

namespace numacre::model {
namespace {

TEST(PaperShapesOnTheEngine, a_rollback_clears_the_mark_that_a_release_left_to_it) {
    // The largest block comes and goes, then half a leaf word; meanwhile a claim in that leaf word (slots 1 and 37
    // prefer the same ones) has seen the large block and is on its way back. Without the cleaning in the engine's
    // rollback a mark stays that nobody will clear.
    EngineModel model("engine-rollback", {.solo_steps_max = 4000},
                      {.geometry = {.frame_bytes = 4096, .largest_order = 10, .frame_count = 1024},
                       .clients = {{.process = 1, .script = {10, kFreeFirst, 5, kFreeFirst}, .thread_slot = 1},
                                   {.process = 2, .script = {5}, .thread_slot = 37}}});
    const Report report = model.run();
    EXPECT_TRUE(report.clean()) << report.violation;
    EXPECT_TRUE(report.complete);
}

}  // namespace
}  // namespace numacre::model
