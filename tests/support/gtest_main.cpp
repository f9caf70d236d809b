// main() of the C++ tests: as googletest's own, but a run in which a test was skipped ends with 77, which ctest shows
// as "Skipped". A part that this machine cannot try is never green.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>

namespace {
constexpr int kSkipped = 77;  // SKIP_RETURN_CODE in tests/CMakeLists.txt
}

int main(int argc, char **argv) {
    testing::InitGoogleMock(&argc, argv);
    const int result = RUN_ALL_TESTS();
    if (testing::UnitTest::GetInstance()->test_to_run_count() == 0) {
        std::fputs("no test was run: what the filter names is not there\n", stderr);
        return 1;
    }
    const int skipped = testing::UnitTest::GetInstance()->skipped_test_count();
    if (result != 0 || skipped == 0) return result;
    std::printf("SKIPPED: %d of the tests above, for the reasons that they give; all others passed.\n", skipped);
    return kSkipped;
}
