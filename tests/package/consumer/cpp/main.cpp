#include <cstdio>
#include <memory_resource>
#include <numacre/numacre.hpp>
#include <vector>

int main() {
    auto pool = numacre::Pool::open_private({.capacity_bytes = std::uint64_t{16} << 20});
    if (!pool) {
        std::fprintf(stderr, "open_private: %s\n", pool.error().message.c_str());
        return 1;
    }
    {
        auto block = pool->allocate(10000);
        if (!block) {
            std::fprintf(stderr, "allocate: %s\n", block.error().message.c_str());
            return 1;
        }
        if (block->size() != 16384 || !block->ref()) {
            std::fprintf(stderr, "a block of 10000 bytes has %zu\n", block->size());
            return 1;
        }
    }
    numacre::PoolResource resource(*pool);
    std::pmr::vector<int> numbers(1000, 7, &resource);
    if (numbers.back() != 7) return 1;

    auto too_large = pool->allocate(std::size_t{1} << 40);
    if (too_large) {
        std::fprintf(stderr, "a block of 1 TiB out of a pool of 16 MiB\n");
        return 1;
    }
    std::printf("numacre %s\n", numacre_version());
    return 0;
}
