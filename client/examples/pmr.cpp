// Standard containers in a numacre pool, through std::pmr: counts the words of standard input.
//
//   pmr < text           in a pool of its own, inside this process
//   pmr default < text   in pool "default" of the daemon ($NUMACRE_RUNTIME_DIR, else /run/numacre)
#include <algorithm>
#include <functional>
#include <iostream>
#include <map>
#include <memory_resource>
#include <numacre/numacre.hpp>
#include <string>
#include <vector>

int main(int argc, char **argv) {
    auto pool = argc > 1 ? numacre::Pool::attach(argv[1]) : numacre::Pool::open_private();
    if (!pool) {
        std::cerr << pool.error().message << '\n';
        return 1;
    }
    // The pool gives whole frames; the standard library's own resource cuts them up for nodes and strings.
    numacre::PoolResource frames(*pool);
    std::pmr::unsynchronized_pool_resource small_objects(&frames);

    std::pmr::map<std::pmr::string, unsigned, std::less<>> counts(&small_objects);
    std::pmr::string word(&small_objects);
    try {
        while (std::cin >> word) ++counts[word];
    } catch (const std::bad_alloc &) {
        std::cerr << "the pool is full after " << counts.size() << " different words\n";
        return 1;
    }

    using Entry = const std::pair<const std::pmr::string, unsigned> *;
    std::pmr::vector<Entry> by_count(&small_objects);
    for (const auto &entry : counts) by_count.push_back(&entry);
    std::sort(by_count.begin(), by_count.end(),
              [](Entry a, Entry b) { return a->second != b->second ? a->second > b->second : a->first < b->first; });
    for (const Entry entry : by_count) std::cout << entry->second << ' ' << entry->first << '\n';
}
