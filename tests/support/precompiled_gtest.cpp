// Empty: a precompiled header needs a target with a source (numacre_precompile_gtest() in tests/CMakeLists.txt).
