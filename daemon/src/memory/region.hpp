// The memfds that a pool is made of. All are sealed against shrinking and growing before another process gets them, so
// that no client can pull memory away under another. All are sparse: only populated ranges cost memory.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/failure.hpp"
#include "engine.hpp"
#include "memory/missing_pages.hpp"
#include "memory/topology.hpp"
#include "numacre/shm/attach_wire.hpp"
#include "os/fd.hpp"

namespace numacre::daemon {

// Metadata: a plain memfd, mapped here for as long as the object lives.
class MetadataRegion {
public:
    static Answer<MetadataRegion> create(const std::string &name, std::uint64_t bytes);
    // Maps a memfd that create() made in another process. corrupt: the file is shorter, or not sealed.
    static Answer<MetadataRegion> adopt(Fd fd, std::uint64_t bytes_at_least);
    MetadataRegion(MetadataRegion &&other) noexcept;
    MetadataRegion &operator=(MetadataRegion &&) = delete;
    ~MetadataRegion();

    int fd() const { return fd_.get(); }
    void *address() const { return address_; }
    std::uint64_t bytes() const { return bytes_; }
    // Asks the kernel to take the region's pages from this numa node, if that has any left. Call before the first page
    // is there.
    void prefer(const Topology &topology, NumaNode home) const;
    // Puts memory behind a range, so that neither a client nor we can get SIGBUS there. Keeps the range's contents.
    // Takes any range and populates the whole pages around it. Each 2 MiB that are populated in full become a hugepage
    // if the kernel can make one (MADV_COLLAPSE): the index of a large pool then costs its users fewer TLB misses. Not
    // thread-safe.
    Answer<void> populate(std::uint64_t offset, std::uint64_t bytes);
    std::uint64_t resident_bytes() const;
    // True: a page could not be had, and part of the mapping may show another file (missing_pages.hpp).
    bool is_lost() const { return watched_.are_replaced(); }
    // Call before writing words that clients are to see, of a region that may be lost: the words then go into the
    // region's file, where it has pages.
    void look_again() const { watched_.look_again(); }
    // Moves the region's pages that the kernel has moved to other numa nodes back to `home`. Returns how many.
    Answer<std::uint64_t> bring_home(const Topology &topology, NumaNode home) const;

private:
    MetadataRegion(Fd fd, void *address, std::uint64_t bytes);
    static Answer<MetadataRegion> map(Fd fd, std::uint64_t bytes);
    void collapse(std::uint64_t hugepage) const;

    Fd fd_;
    void *address_ = nullptr;
    std::uint64_t bytes_ = 0;
    WatchedPages watched_;
    std::vector<bool> is_populated_;              // by small page
    std::vector<std::uint16_t> populated_pages_;  // by hugepage: how many of its small pages are populated
};

class AlignedWindow;

// The frames of one numa node. A call maps them only while it needs them. A DataRegion keeps the mapping (see
// AlignedWindow) where calls need it again and again: for zeroing hugetlb frames, and for finding frames on other numa
// nodes; the latter mapping is for reading only.
class DataRegion {
public:
    static Answer<DataRegion> create(const std::string &name, std::uint64_t bytes, wire::Backing backing,
                                     const Topology &topology, NumaNode home);
    static Answer<DataRegion> adopt(Fd fd, std::uint64_t bytes, wire::Backing backing);
    DataRegion(DataRegion &&other) noexcept;
    DataRegion &operator=(DataRegion &&) = delete;
    ~DataRegion();

    int fd() const { return fd_.get(); }
    std::uint64_t bytes() const { return bytes_; }
    wire::Backing backing() const { return backing_; }
    std::uint64_t page_bytes() const;
    // How much memory the kernel has put behind the file. Any thread.
    std::uint64_t backed_bytes() const;

    // Puts zeroed pages behind a range of whole pages. All or nothing: on failure the range is punched again. For
    // hugetlb the calling thread must be bound to the numa node. The caller must have checked that the memory is there:
    // the kernel would take all that is left before it fails.
    Answer<void> populate(std::uint64_t offset, std::uint64_t bytes) const;
    // thp only: replaces the small pages of a populated range by hugepages. False: the kernel did not, or not
    // everywhere (that costs speed, nothing else).
    bool collapse(std::uint64_t offset, std::uint64_t bytes) const;
    // Overwrites a populated range. Where a client has punched a hole, or no page can be had, that is an error, not a
    // SIGBUS.
    Answer<void> zero(std::uint64_t offset, std::uint64_t bytes) const;
    // Gives the pages back to the kernel at once, whichever processes have them mapped.
    void punch(std::uint64_t offset, std::uint64_t bytes) const;
    // Moves pages of a populated range that the kernel has moved to other numa nodes back to `home`. Of small pages it
    // looks at one in 2 MiB, and at all of the 2 MiB if that page has been moved. Returns how many pages moved.
    Answer<std::uint64_t> bring_home(const Topology &topology, NumaNode home, std::uint64_t offset,
                                     std::uint64_t bytes) const;

private:
    DataRegion(Fd fd, std::uint64_t bytes, wire::Backing backing);
    // A mapping of the whole file, kept from the first call on. null: errno says why. Not thread-safe.
    void *window() const;

    Fd fd_;
    std::uint64_t bytes_ = 0;
    wire::Backing backing_{};
    mutable std::unique_ptr<AlignedWindow> window_;
};

// Opens the file of `fd` again for reading only: observers get such descriptors.
Answer<Fd> reopen_read_only(int fd);

}  // namespace numacre::daemon
