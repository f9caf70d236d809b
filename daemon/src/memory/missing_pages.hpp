// Pages of shared metadata that cannot be had. All of them are populated before anybody touches them, but a client can
// punch holes into the files (it has them writable), and where the machine has no page to give then
// (vm.overcommit_memory=2), a touch is a SIGBUS. That would be the end of the daemon, and of the service for all pools.
// So the handler opens a window there: a piece of the region's mapping, a page to 2 MiB, shows a spare file of the
// daemon's own, which has all its pages. What stands in a window makes no sense, as if the client had scribbled over
// it, and the pool counts as damaged at the next look. The clients' own mappings are not concerned, and what lies
// beside the windows is still theirs.
//
// A region has 16 windows at most: before the next one is opened, the region's file is mapped over all of the region,
// as one mapping. A thread that touches a missing page again opens a window again. So a region takes 33 mappings at
// most, however large it is: 16 windows, and the file between and beside them. A process has 65530 mappings in all
// (vm.max_map_count), and needs some of them for threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace numacre::daemon {

// Once, before the first WatchedPages touches memory. False: errno says why; a page that is missing ends the daemon.
bool survive_missing_pages();

// A mapping of which pages may be missing, for as long as the object lives. There may be very many (65536); more are
// not watched.
class WatchedPages {
public:
    // A shared mapping of the file's beginning. The file stays open for as long as the object lives.
    WatchedPages(void *address, std::uint64_t bytes, int file);
    WatchedPages(WatchedPages &&other) noexcept : number_(other.number_) { other.number_ = kNone; }
    WatchedPages &operator=(WatchedPages &&) = delete;
    ~WatchedPages() { end(); }
    void end();  // before it is unmapped
    // One was missing, and a window has been opened, perhaps closed since.
    bool are_replaced() const;
    // Closes all windows: the file's pages are mapped, as far as there are any by now. Before words that clients are to
    // see. Any thread.
    void look_again() const;

private:
    static constexpr std::size_t kNone = ~std::size_t{0};
    std::size_t number_ = kNone;
};

}  // namespace numacre::daemon
