// The recorder writes one line for each allocation, at once, and fills in the lifetime, in place, when the block is
// freed. So the lines are in the order of allocation, regardless of the order of the frees, and no line is buffered in
// memory. A killed process leaves a whole trace, in which the blocks that it held have the lifetime "never".
#include "record.hpp"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <search.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "errors.hpp"
#include "pool.hpp"

namespace numacre::client {

std::atomic<bool> is_recording{false};

namespace {

constexpr char kHead[] = "time_ns,size_bytes,lifetime_ns,block\n";
// The width of the longest lifetime, so that every lifetime fits in the place of "never".
#define LIFETIME_WIDTH "19"
constexpr int kNamesTried = 100;

struct Held {
    const void *address;
    std::uint64_t since_ns;
    off_t lifetime_at;  // offset in the file
};

// Guards all variables below and every pool's tree of held blocks. The time is read under the mutex, so times never go
// back.
pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
bool looked = false;
int file = -1;
dev_t file_device = 0;
ino_t file_inode = 0;
off_t end = 0;

int by_address(const void *left, const void *right) {
    const void *const a = static_cast<const Held *>(left)->address;
    const void *const b = static_cast<const Held *>(right)->address;
    return a < b ? -1 : static_cast<int>(a > b);
}

// False: the trace has ended. A program may have closed all descriptors, and the number may now be that of a file of
// its own.
bool has_file() {
    if (file < 0) return false;
    struct stat status{};
    if (fstat(file, &status) == 0 && status.st_dev == file_device && status.st_ino == file_inode) return true;
    file = -1;
    return false;
}

// A write beyond the process's limit on files would end the process (SIGXFSZ).
bool may_write_up_to(off_t where) {
    rlimit limit{};
    return getrlimit(RLIMIT_FSIZE, &limit) != 0 || static_cast<rlim_t>(where) <= limit.rlim_cur;
}

// Writes `text` as a whole. A write that fails or is cut short (a full disk, a limit on files) ends the trace, so a
// trace never has half a line.
void write_at(off_t where, const char *text, int length) {
    if (!has_file()) return;
    ssize_t written = 0;
    do {
        written = may_write_up_to(where + length) ? pwrite(file, text, static_cast<std::size_t>(length), where) : 0;
    } while (written < 0 && errno == EINTR);
    if (written == length) return;
    if (where + length > end) (void)!ftruncate(file, end);
    close(file);
    file = -1;
}

void write_lifetime(const Held &held, std::uint64_t now) {
    char text[32];
    const int length = snprintf(text, sizeof text, "%-" LIFETIME_WIDTH PRIu64, now - held.since_ns);
    write_at(held.lifetime_at, text, length);
}

// Takes the entry of this address out of the tree. nullptr: there is none.
Held *take_out(numacre_pool *pool, const void *address) {
    const Held wanted{address, 0, 0};
    void *const found = tfind(&wanted, &pool->recorded, by_address);
    if (found == nullptr) return nullptr;
    Held *const held = *static_cast<Held **>(found);
    tdelete(&wanted, &pool->recorded, by_address);
    return held;
}

// Makes FILE, or FILE.PID if FILE exists: an existing file is another trace, perhaps of a process that was started with
// the same environment.
int make_file(const char *name) {
    const std::size_t room = strlen(name) + 40;
    char *const path = static_cast<char *>(malloc(room));
    if (path == nullptr) return -1;
    int made = -1;
    for (int attempt = 0; attempt < kNamesTried; ++attempt) {
        if (attempt == 0) snprintf(path, room, "%s", name);
        if (attempt == 1) snprintf(path, room, "%s.%d", name, getpid());
        if (attempt > 1) snprintf(path, room, "%s.%d.%d", name, getpid(), attempt);
        // O_EXCL: does not follow a symbolic link either.
        made = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (made >= 0 || errno != EEXIST) break;
    }
    const int error = errno;
    free(path);
    errno = error;
    return made;
}

}  // namespace

int start_recording() {
    const NotCancelled not_cancelled;
    pthread_mutex_lock(&mutex);
    int result = 0;
    const char *const name = looked ? nullptr : secure_getenv("NUMACRE_TRACE");
    if (name != nullptr && *name != '\0') {
        file = make_file(name);
        if (file < 0) {
            result = fail_with_remedy(Errc::bad_argument,
                                      "NUMACRE_TRACE=%s: the trace cannot be made (%s): name a file that this process "
                                      "may write, or do not set it",
                                      name, strerror(errno));
        } else {
            struct stat status{};
            (void)fstat(file, &status);
            file_device = status.st_dev;
            file_inode = status.st_ino;
            end = 0;
            write_at(0, kHead, sizeof kHead - 1);
            end = sizeof kHead - 1;
            is_recording.store(true, std::memory_order_relaxed);
        }
    }
    looked = result == 0;
    pthread_mutex_unlock(&mutex);
    return result;
}

void record_allocation(numacre_pool *pool, const void *block, std::size_t size_bytes) {
    const auto offset = static_cast<std::uint64_t>(static_cast<const std::byte *>(block) - pool->span);
    char text[192];
    const NotCancelled not_cancelled;
    pthread_mutex_lock(&mutex);
    // The time is that of the machine's monotonic clock, so that traces of several processes fit together.
    const std::uint64_t now = now_nanoseconds();
    // An old entry of this address means that another process has owned the block since, or that we have taken back a
    // block that we had handed over. The old line ends here at the latest.
    Held *held = take_out(pool, block);
    if (held != nullptr)
        write_lifetime(*held, now);
    else
        held = static_cast<Held *>(malloc(sizeof(Held)));
    // Other processes can write the memory of the name: the name must not break the line.
    char name[kPoolNameBytes];
    std::size_t name_length = 0;
    for (char c; name_length < sizeof name && (c = pool->view.header->name[name_length]) != '\0'; ++name_length)
        name[name_length] = c > ' ' && c != ',' && c != '"' ? c : '?';
    const int before = snprintf(text, sizeof text, "%" PRIu64 ",%zu,", now, size_bytes);
    int length = before + snprintf(text + before, sizeof text - static_cast<std::size_t>(before),
                                   "%-" LIFETIME_WIDTH "s,%.*s", "never", static_cast<int>(name_length), name);
    // All private pools have one name: the pid and the serial tell them apart.
    if (pool->connection < 0)
        length += snprintf(text + length, sizeof text - static_cast<std::size_t>(length), ".%d.%" PRIu64, getpid(),
                           pool->serial);
    length += snprintf(text + length, sizeof text - static_cast<std::size_t>(length), "/%" PRIu64 "\n", offset);
    write_at(end, text, length);
    if (held != nullptr) {
        *held = {block, now, end + before};
        if (tsearch(held, &pool->recorded, by_address) == nullptr) free(held);  // no memory: its lifetime stays "never"
    }
    if (file >= 0) end += length;
    pthread_mutex_unlock(&mutex);
}

void record_free(numacre_pool *pool, const void *block) {
    if (pool->fork_generation != fork_generation()) return;  // the lines are in the parent's file
    const NotCancelled not_cancelled;
    pthread_mutex_lock(&mutex);
    Held *const held = take_out(pool, block);
    if (held != nullptr) write_lifetime(*held, now_nanoseconds());
    pthread_mutex_unlock(&mutex);
    free(held);
}

void record_detach(numacre_pool *pool) {
    const NotCancelled not_cancelled;
    pthread_mutex_lock(&mutex);
    tdestroy(pool->recorded, [](void *entry) {
        write_lifetime(*static_cast<Held *>(entry), now_nanoseconds());
        free(entry);
    });
    pool->recorded = nullptr;
    pthread_mutex_unlock(&mutex);
}

void forget_recording_in_child() {
    mutex = PTHREAD_MUTEX_INITIALIZER;  // may have been held by a thread that does not exist here
    looked = false;
    if (has_file()) close(file);
    file = -1;
    is_recording.store(false, std::memory_order_relaxed);
}

}  // namespace numacre::client
