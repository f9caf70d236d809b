// Concept: standard containers in a pool, through std::pmr. The program counts the words of standard input.
//
// Build:  c++ -std=c++20 pmr.cpp $(pkg-config --cflags --libs numacre) -o pmr
// Run:    ./pmr < text          in a private pool, inside this process
//         ./pmr POOL < text     in a pool of the daemon
// Prints, for the text "frame block frame":
//     2 frame
//     1 block
//
// numacre::PoolResource gives whole frames. A pool resource of the standard library in front of it cuts the frames up
// for small objects.
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory_resource>
#include <new>
#include <numacre/numacre.hpp>
#include <string>
#include <utility>
#include <vector>

namespace {

void count_words(numacre::Pool &pool) {
    // The order is pool, resources, containers: they are destroyed in the reverse order.
    numacre::PoolResource frames(pool);
    std::pmr::unsynchronized_pool_resource small_objects(&frames);  // for one thread only

    std::pmr::map<std::pmr::string, unsigned, std::less<>> counts(&small_objects);
    std::pmr::string word(&small_objects);
    while (std::cin >> word) ++counts[word];

    using Entry = const std::pair<const std::pmr::string, unsigned> *;
    std::pmr::vector<Entry> by_count(&small_objects);
    for (const auto &entry : counts) by_count.push_back(&entry);
    std::sort(by_count.begin(), by_count.end(),
              [](Entry a, Entry b) { return a->second != b->second ? a->second > b->second : a->first < b->first; });
    for (const Entry entry : by_count) std::cout << entry->second << ' ' << entry->first << '\n';
}

}  // namespace

int main(int argc, char **argv) {
    auto pool = argc > 1 ? numacre::Pool::attach(argv[1]) : numacre::Pool::open_private();
    if (!pool) {
        std::cerr << "pmr: " << pool.error().message << '\n';
        return 1;
    }
    try {
        count_words(*pool);
    } catch (const std::bad_alloc &) {  // std::pmr reports a full pool by this exception
        std::cerr << "pmr: the pool is full\n";
        return 1;
    }
}
