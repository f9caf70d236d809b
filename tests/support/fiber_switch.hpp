// From one stack to another, for fibers in tests. x86-64 only.
#pragma once

#include <cstddef>

#if !defined(__x86_64__) || !defined(__linux__)
#error \
    "The context switch is written for x86-64 Linux: port fiber_switch.cpp and those who lay out a fiber's first stack."
#endif

// Keeps what the ABI wants kept (kFiberSavedRegisters of 8 bytes, then the return address) on the running stack, whose
// pointer goes to *save_stack_pointer, and goes on where the stack at load_stack_pointer was left. So a suspended fiber
// is its stack bytes and nothing else.
extern "C" void numacre_fiber_switch(void *save_stack_pointer, void *load_stack_pointer);

inline constexpr std::size_t kFiberSavedRegisters = 6;
