#include "memory.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>

namespace numacre::bench {

Memory::Memory(std::size_t bytes, With with) : bytes_(bytes) {
    const int sharing = with == With::processes ? MAP_SHARED : MAP_PRIVATE;
    void *const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        throw std::runtime_error("no memory for " + std::to_string(bytes) + " bytes: " + strerror(errno));
    memory_ = static_cast<std::byte *>(memory);
}

Memory::~Memory() {
    munmap(memory_, bytes_);
}

}  // namespace numacre::bench
