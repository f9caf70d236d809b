// A SIGBUS handler for pages of shared metadata that cannot be had. All of these pages are populated before anybody
// touches them, but a client can punch holes into the files (its descriptors are writable). Where the machine has no
// page to give then (vm.overcommit_memory=2), a touch is a SIGBUS. The SIGBUS would be the end of the daemon, and of
// the service for all pools. So the handler opens a window at the touched place: a piece of the region's mapping, a
// page to 2 MiB, shows a spare file of the daemon's own, which has all its pages. The contents of a window make no
// sense, as if the client had scribbled over them, and the pool counts as damaged at the next look. The clients' own
// mappings do not change, and the mapping beside the windows still shows the region's file.
//
// A region has 16 windows at most: before the next window is opened, the region's file is mapped over all of the
// region, as one mapping. A thread that touches a missing page again opens a window again. So a region takes 33
// mappings at most, however large it is: 16 windows, and the file between and beside them. A process has 65530
// mappings in all (vm.max_map_count), and needs some of them for threads.
#pragma once

#include <cstddef>
#include <cstdint>

namespace numacre::daemon {

// Call once, before the first WatchedPages touches memory. False: errno says why; then a missing page ends the daemon.
bool survive_missing_pages();

// A mapping whose pages may be missing, watched for as long as the object lives. 65536 mappings are watched at most;
// more are not watched.
class WatchedPages {
public:
    // The mapping must be shared and start at the file's beginning. The file must stay open while the object lives.
    WatchedPages(void *address, std::uint64_t bytes, int file);
    WatchedPages(WatchedPages &&other) noexcept : number_(other.number_) { other.number_ = kNone; }
    WatchedPages &operator=(WatchedPages &&) = delete;
    ~WatchedPages() { end(); }
    void end();  // call before the mapping is unmapped
    // True: a page was missing, and a window has been opened, perhaps closed since.
    bool are_replaced() const;
    // Closes all windows: the file's own pages are mapped again, as far as it has pages by now. Call before writing
    // words that clients are to see. Any thread.
    void look_again() const;

private:
    static constexpr std::size_t kNone = ~std::size_t{0};
    std::size_t number_ = kNone;
};

}  // namespace numacre::daemon
