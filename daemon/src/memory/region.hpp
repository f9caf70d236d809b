// The memfds that a pool is made of. All are sealed against shrinking and growing before anyone else gets them, so that
// no client can pull memory away under another. Sparse: only what populate() has been called for costs memory.
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
    // A memfd that create() made in another process. corrupt: it is shorter, or not sealed.
    static Answer<MetadataRegion> adopt(Fd fd, std::uint64_t bytes_at_least);
    MetadataRegion(MetadataRegion &&other) noexcept;
    MetadataRegion &operator=(MetadataRegion &&) = delete;
    ~MetadataRegion();

    int fd() const { return fd_.get(); }
    void *address() const { return address_; }
    std::uint64_t bytes() const { return bytes_; }
    // Pages of it come from this numa node, if that has any left. Before the first page is there.
    void prefer(const Topology &topology, NumaNode home) const;
    // Puts memory behind a range without mapping it in, so that neither a client nor we can get SIGBUS there. Keeps
    // what is there already. Any range; whole pages around it are populated. What has become 2 MiB of populated pages
    // is made a hugepage if the kernel can (MADV_COLLAPSE): the index of a large pool then costs its users fewer TLB
    // misses. Not thread-safe.
    Answer<void> populate(std::uint64_t offset, std::uint64_t bytes);
    std::uint64_t resident_bytes() const;
    // A page could not be had, and what is mapped here may be another file's (missing_pages.hpp).
    bool is_lost() const { return watched_.are_replaced(); }
    // Before words that clients are to see, of a region that may be lost: what is written goes into the file, where it
    // has pages.
    void look_again() const { watched_.look_again(); }
    // What the kernel has moved to other numa nodes comes back to this one. How many pages that were.
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
    std::vector<std::uint16_t> populated_pages_;  // by hugepage: how many of its small pages are
};

class AlignedWindow;

// Frames: mapped here only where a call needs it. What does so again and again keeps the mapping (see AlignedWindow):
// those of hugetlb that are zeroed, and those that are looked for on other numa nodes, the latter for reading only.
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
    // What the kernel has put behind it. Any thread.
    std::uint64_t backed_bytes() const;

    // Zeroed pages for a range of whole pages. All or nothing: on failure the range is punched again. For hugetlb the
    // calling thread must be bound to the numa node. Who calls has checked that the memory is there: the kernel would
    // first eat everything and fail then.
    Answer<void> populate(std::uint64_t offset, std::uint64_t bytes) const;
    // thp only: replaces the small pages of a populated range by hugepages; false if the kernel did not, or not
    // everywhere (that costs speed, nothing else).
    bool collapse(std::uint64_t offset, std::uint64_t bytes) const;
    // Overwrites a populated range. Where a client has punched a hole, or no page can be had, that is an error, not a
    // SIGBUS.
    Answer<void> zero(std::uint64_t offset, std::uint64_t bytes) const;
    // The pages go back to the kernel at once, whoever has them mapped.
    void punch(std::uint64_t offset, std::uint64_t bytes) const;
    // Of a populated range, what the kernel has moved to other numa nodes comes back to this one. Of small pages one in
    // 2 MiB is looked at, and all of them if that one has been moved. How many pages that were.
    Answer<std::uint64_t> bring_home(const Topology &topology, NumaNode home, std::uint64_t offset,
                                     std::uint64_t bytes) const;

private:
    DataRegion(Fd fd, std::uint64_t bytes, wire::Backing backing);
    // All of it, kept from the first call on; null: errno says why. Not thread-safe.
    void *window() const;

    Fd fd_;
    std::uint64_t bytes_ = 0;
    wire::Backing backing_{};
    mutable std::unique_ptr<AlignedWindow> window_;
};

// The same file, opened for reading only: what an observer gets.
Answer<Fd> reopen_read_only(int fd);

}  // namespace numacre::daemon
