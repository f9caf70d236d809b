// Pages of shared metadata that cannot be had. All of them are populated before anybody touches them, but a client can
// punch holes into the files (it has them writable), and where the machine has no page to give then
// (vm.overcommit_memory=2), a touch is a SIGBUS. That would be the end of the daemon, and of the service for all pools.
// So the region's mapping here is replaced, by pages of a file of the daemon's own, all the same ones again and again:
// what stands there makes no sense, as if the client had scribbled over all of it, and the pool counts as damaged at
// the next look. The clients' own mappings are not concerned.
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
    WatchedPages(void *address, std::uint64_t bytes);
    WatchedPages(WatchedPages &&other) noexcept : number_(other.number_) { other.number_ = kNone; }
    WatchedPages &operator=(WatchedPages &&) = delete;
    ~WatchedPages() { end(); }
    void end();  // before it is unmapped
    // One was missing, and the mapping has been replaced.
    bool are_replaced() const;

private:
    static constexpr std::size_t kNone = ~std::size_t{0};
    std::size_t number_ = kNone;
};

}  // namespace numacre::daemon
