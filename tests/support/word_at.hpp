// For an Env whose accesses are more than accesses: the words of C code (numacre/shm/cached_block.h) as the Env's. The
// Env then says what NUMACRE_INLINE_LOAD and _STORE are.
#pragma once

#include <cstdint>

#ifdef NUMACRE_INLINE_LOAD
#error "numacre/shm/cached_block.h has been included before: the Env would not see its accesses"
#endif

namespace numacre::test {

template <class Env>
typename Env::template Atomic<std::uint64_t> &word_at(std::uint64_t *place) {
    return *reinterpret_cast<typename Env::template Atomic<std::uint64_t> *>(place);
}
template <class Env>
const typename Env::template Atomic<std::uint64_t> &word_at(const std::uint64_t *place) {
    return *reinterpret_cast<const typename Env::template Atomic<std::uint64_t> *>(place);
}

}  // namespace numacre::test
