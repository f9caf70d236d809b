// Names (shm/names.hpp). They are read in shared memory; the daemon makes the changes, which a client asks for on a
// connection of its own, so that a client of an earlier daemon can ask as well. In a private pool this process makes
// them itself.
#include <algorithm>
#include <climits>
#include <cstdint>
#include <cstring>

#include "connect.hpp"
#include "engine.hpp"
#include "errors.hpp"
#include "idle.hpp"
#include "numacre/os/kernel.hpp"
#include "numacre/shm/names.hpp"
#include "pool.hpp"
#include "report.hpp"
#include "struct_size.hpp"

using namespace numacre;
using namespace numacre::client;

static_assert(NUMACRE_NAME_REFERENCE == static_cast<unsigned>(NameKind::reference) &&
              NUMACRE_NAME_OBJECTS == static_cast<unsigned>(NameKind::objects) &&
              NUMACRE_NAME_CHANNEL == static_cast<unsigned>(NameKind::channel));
static_assert(sizeof(numacre_name::name) == kNameBytes && sizeof(numacre_name::objects) == kPoolNameBytes);

namespace {

// The record worker of the pool may have a look at all process records to end first.
constexpr unsigned kNameSeconds = 30;
// An observer has the word mapped as well, and can take a wake-up that is meant for others.
constexpr std::uint64_t kWatcherLooksAgainAfterNanoseconds = 1'000'000'000;
constexpr unsigned kNameFlags = NUMACRE_NAME_POOL | NUMACRE_NAME_COMPARE;

using Found = NameReader<Env>::Found;

const char *kind_name(NameKind kind) {
    switch (kind) {
        case NameKind::reference:
            return "a reference";
        case NameKind::objects:
            return "an object pool";
        case NameKind::channel:
            return "a channel";
        case NameKind::none:
            break;
    }
    return "nothing";
}

int read_name(const char *text, NameText &name) {
    if (text == nullptr) return fail_with_remedy(Errc::bad_argument, "the name is NULL: pass a text");
    switch (NameText::read(text, name)) {
        case NameFault::none:
            return 0;
        case NameFault::empty:
            return fail_with_remedy(Errc::bad_argument, "the name is empty: use 1 to %zu characters", kNameBytes - 1);
        case NameFault::too_long:
            return fail_with_remedy(Errc::bad_argument, "the name is too long: use at most %zu characters",
                                    kNameBytes - 1);
        case NameFault::bad_character:
            break;
    }
    const char *bad = text;
    while (*bad >= '!' && *bad <= '~' && *bad != '/') ++bad;
    return fail_with_remedy(Errc::bad_argument,
                            "character %d of the name, %#04x, is refused: use printable ASCII characters without space "
                            "and '/'",
                            static_cast<int>(bad - text) + 1, static_cast<unsigned char>(*bad));
}

bool is_pool_name(const char *text) {
    std::size_t length = 0;
    for (; length < kPoolNameBytes && text[length] != 0; ++length) {
        const char letter = text[length];
        if (!((letter >= 'a' && letter <= 'z') || (letter >= '0' && letter <= '9') || letter == '.' || letter == '_' ||
              letter == '-'))
            return false;
    }
    return length != 0 && length < kPoolNameBytes;
}

// Reads what the binding says, without the name.
int read_binding(const numacre_name &binding, NameEntry &entry) {
    if ((binding.flags & ~kNameFlags) != 0)
        return fail_with_remedy(Errc::bad_argument,
                                "numacre_name.flags is %#x: use 0, NUMACRE_NAME_POOL or NUMACRE_NAME_COMPARE",
                                binding.flags);
    entry.is_of_pool = (binding.flags & NUMACRE_NAME_POOL) != 0;
    switch (binding.kind) {
        case NUMACRE_NAME_REFERENCE:
            if (binding.reference == NUMACRE_REF_NULL)
                return fail_with_remedy(Errc::bad_argument,
                                        "numacre_name.reference is NUMACRE_REF_NULL: pass that of a block");
            entry.value = binding.reference;
            break;
        case NUMACRE_NAME_OBJECTS:
            if (!is_pool_name(binding.objects))
                return fail_with_remedy(Errc::bad_argument,
                                        "numacre_name.objects is no name of a pool: use 1 to %zu characters of a-z, "
                                        "0-9, '.', '_' and '-'",
                                        kPoolNameBytes - 1);
            std::memcpy(entry.objects.data(), binding.objects, strnlen(binding.objects, kPoolNameBytes));
            break;
        case NUMACRE_NAME_CHANNEL:
            return fail_with_remedy(Errc::bad_argument,
                                    "numacre_name.kind is NUMACRE_NAME_CHANNEL, which the daemon alone binds: use "
                                    "NUMACRE_NAME_REFERENCE or NUMACRE_NAME_OBJECTS");
        default:
            return fail_with_remedy(Errc::bad_argument,
                                    "numacre_name.kind is %u: use NUMACRE_NAME_REFERENCE or NUMACRE_NAME_OBJECTS",
                                    binding.kind);
    }
    entry.kind = static_cast<NameKind>(binding.kind);
    return 0;
}

int no_struct_size(std::size_t size) {
    return fail_with_remedy(Errc::bad_argument, "numacre_name.struct_size is %zu: set it to sizeof(numacre_name)",
                            size);
}

// An older program has fewer fields than the library. A newer program has more, and finds 0 in the additional ones.
void write_binding(const NameEntry &entry, void *room, std::size_t size) {
    numacre_name found{};
    found.struct_size = size;
    found.kind = static_cast<std::uint32_t>(entry.kind);
    found.flags = entry.is_of_pool ? NUMACRE_NAME_POOL : 0;
    found.version = entry.version;
    (entry.kind == NameKind::channel ? found.channel : found.reference) = entry.value;
    found.user = entry.user;
    found.client_id = entry.client_id;
    const auto name = entry.name.text();
    std::memcpy(found.name, name.data(), sizeof found.name);
    std::memcpy(found.objects, entry.objects.data(), sizeof found.objects);
    std::memcpy(room, &found, std::min(size, sizeof found));
    if (size > sizeof found) std::memset(static_cast<char *>(room) + sizeof found, 0, size - sizeof found);
}

[[gnu::cold]] int overwritten(Found found) {
    return fail(Errc::corrupt, found == Found::unsteady
                                   ? "a name's entry changes all the time: somebody writes over the pool's names"
                                   : "a name's entry makes no sense: somebody has written over the pool's names");
}

// --- a private pool --------------------------------------------------------------------------------------------------

class NamesLocked {
public:
    explicit NamesLocked(numacre_pool *pool) : mutex_(&pool->names_mutex) { pthread_mutex_lock(mutex_); }
    ~NamesLocked() { pthread_mutex_unlock(mutex_); }
    NamesLocked(const NamesLocked &) = delete;
    NamesLocked &operator=(const NamesLocked &) = delete;

private:
    // First: a thread that is cancelled, or whose signal handler calls, while it has the lock would keep it.
    const SignalsBlocked signals_blocked_;
    pthread_mutex_t *mutex_;
};

std::uint32_t *futex_word(const numacre_pool *pool) {
    return reinterpret_cast<std::uint32_t *>(&pool->view.names->version);
}

int change_here(numacre_pool *pool, NameEntry entry, bool compares, std::uint64_t expected, std::uint64_t &version) {
    const auto name = entry.name.text();
    {
        const NamesLocked locked(pool);
        NameBook<Env> book(*pool->view.names);
        auto place = book.find(entry.name);
        const std::uint64_t now = place ? book.at(*place).version : 0;
        if (compares && expected == 0 && now != 0)
            return fail_with_remedy(Errc::already_exists,
                                    "name '%s' is bound, in version %llu: use it, or another name, or remove it first",
                                    name.data(), static_cast<unsigned long long>(now));
        if (now == 0 && (entry.kind == NameKind::none || (compares && expected != 0)))
            return fail_with_remedy(Errc::no_such_name, "no name '%s' is bound in this pool: bind it first",
                                    name.data());
        if (compares && expected != now)
            return fail_with_remedy(Errc::contended,
                                    "name '%s' has version %llu instead of %llu: read it and try again", name.data(),
                                    static_cast<unsigned long long>(now), static_cast<unsigned long long>(expected));
        if (entry.kind == NameKind::none) {
            version = book.unbind(*place);
        } else {
            if (!place) place = book.free_place(entry.name);
            if (!place) return fail_with_remedy(Errc::over_quota, "the pool has its %u names: remove some", kNames);
            entry.user = static_cast<std::uint32_t>(os::geteuid());
            version = book.bind(*place, entry);
        }
    }
    os::futex_wake(futex_word(pool), INT_MAX);
    return 0;
}

// ---------------------------------------------------------------------------------------------------------------------

// entry.kind none: unbinds the name.
int change(numacre_pool *pool, const NameEntry &entry, bool compares, std::uint64_t expected, std::uint64_t *version) {
    std::uint64_t changed = 0;
    if (is_private(pool)) {
        if (const int error = change_here(pool, entry, compares, expected, changed)) return error;
    } else {
        const NotCancelled not_cancelled;
        wire::NameRequest request;
        request.process_slot = pool->process.value;
        request.process_generation = pool->process_generation;
        request.instance_id = pool->instance_id;
        request.kind = static_cast<std::uint32_t>(entry.kind);
        request.flags =
            (entry.is_of_pool ? wire::NameRequest::kOfPool : 0) | (compares ? wire::NameRequest::kCompare : 0);
        request.version = expected;
        request.value = entry.value;
        request.name = entry.name.text();
        request.objects = entry.objects;
        wire::NameReply reply;
        if (const int error = ask_daemon(pool->runtime_dir, &request, sizeof request, wire::MessageType::name_reply,
                                         &reply, sizeof reply, nullptr, kNameSeconds))
            return error;
        changed = reply.version;
    }
    if (version != nullptr) *version = changed;
    return 0;
}

}  // namespace

extern "C" int numacre_name_set(numacre_pool *pool, const char *name, const numacre_name *binding, uint64_t *version) {
    if (pool == nullptr) return no_pool("numacre_name_set");
    if (pool->fork_generation != fork_generation()) return fail_forked();
    if (binding == nullptr) return fail_with_remedy(Errc::bad_argument, "the binding is NULL: pass a numacre_name");
    NameEntry entry;
    if (const int error = read_name(name, entry.name)) return error;
    numacre_name wanted{};
    if (const int error = read_options(*binding, "numacre_name", wanted)) return error;
    if (const int error = read_binding(wanted, entry)) return error;
    return change(pool, entry, (wanted.flags & NUMACRE_NAME_COMPARE) != 0, wanted.version, version);
}

extern "C" int numacre_name_remove(numacre_pool *pool, const char *name, uint64_t version) {
    if (pool == nullptr) return no_pool("numacre_name_remove");
    if (pool->fork_generation != fork_generation()) return fail_forked();
    NameEntry entry;
    if (const int error = read_name(name, entry.name)) return error;
    return change(pool, entry, version != 0, version, nullptr);
}

extern "C" int numacre_name_get(numacre_pool *pool, const char *name, uint32_t kind, numacre_name *binding) {
    if (pool == nullptr) return no_pool("numacre_name_get");
    if (binding == nullptr) return no_result("numacre_name_get");
    if (pool->fork_generation != fork_generation()) return fail_forked();
    const std::size_t size = binding->struct_size;
    if (!is_struct_size(size)) return no_struct_size(size);
    NameText text;
    if (const int error = read_name(name, text)) return error;
    if (kind >= kNameKinds)
        return fail_with_remedy(Errc::bad_argument,
                                "kind %u is unknown: use 0 or NUMACRE_NAME_REFERENCE, _OBJECTS or "
                                "_CHANNEL",
                                kind);
    NameEntry entry;
    std::uint32_t place = 0;
    const Found found = NameReader<Env>(*pool->view.names).find(text, entry, place);
    if (found == Found::no)
        return fail_with_remedy(Errc::no_such_name,
                                "no name '%s' is bound in this pool: see numacre_name_list, or wait by "
                                "numacre_name_watch",
                                name);
    if (found != Found::yes) return overwritten(found);
    if (kind != 0 && entry.kind != static_cast<NameKind>(kind))
        return fail_with_remedy(Errc::bad_argument, "name '%s' is bound to %s, and not to %s: ask for what it is", name,
                                kind_name(entry.kind), kind_name(static_cast<NameKind>(kind)));
    write_binding(entry, binding, size);
    return 0;
}

extern "C" int numacre_name_list(numacre_pool *pool, numacre_name *bindings, size_t most, size_t *count,
                                 uint64_t *version) {
    if (pool == nullptr) return no_pool("numacre_name_list");
    if (count == nullptr || (bindings == nullptr && most != 0)) return no_result("numacre_name_list");
    if (pool->fork_generation != fork_generation()) return fail_forked();
    const std::size_t size = most == 0 ? sizeof(numacre_name) : bindings->struct_size;
    if (!is_struct_size(size)) return no_struct_size(size);
    const NameReader<Env> reader(*pool->view.names);
    const std::uint64_t before = reader.version();
    std::size_t names = 0;
    for (std::uint32_t place = 0; place < kNames; ++place) {
        NameEntry entry;
        const Found found = reader.at(place, entry);
        if (found == Found::no) continue;
        if (found != Found::yes || !entry.name.is_good()) return overwritten(found);
        if (names < most) write_binding(entry, reinterpret_cast<char *>(bindings) + names * size, size);
        ++names;
    }
    *count = names;
    if (version != nullptr) *version = before;
    return 0;
}

extern "C" int numacre_name_watch(numacre_pool *pool, uint64_t *version, int timeout_ms) {
    if (pool == nullptr) return no_pool("numacre_name_watch");
    if (version == nullptr) return no_result("numacre_name_watch");
    if (pool->fork_generation != fork_generation()) return fail_forked();
    const std::uint64_t patience = static_cast<std::uint64_t>(timeout_ms < 0 ? 0 : timeout_ms) * 1'000'000;
    const std::uint64_t begin = now_nanoseconds();
    const std::uint64_t known = *version;
    for (;;) {
        // acquire: a name that this version has made is there, and one that it has removed is not.
        const std::uint64_t seen = pool->view.names->version.load(std::memory_order_acquire);
        if (seen != known) {
            *version = seen;
            return 0;
        }
        const auto state = static_cast<PoolState>(pool->view.header->state.load(std::memory_order_acquire));
        if (state == PoolState::deleted)
            return fail(Errc::no_such_pool, "the pool has been deleted, and no name of it changes any more");
        if (state == PoolState::corrupt) return damaged_pool();
        const std::uint64_t waited = now_nanoseconds() - begin;
        if (timeout_ms >= 0 && waited >= patience)
            return fail_with_remedy(Errc::timed_out,
                                    "no name of the pool has changed for %d ms since version %llu: wait longer",
                                    timeout_ms, static_cast<unsigned long long>(known));
        const std::uint64_t nap = timeout_ms < 0 ? kWatcherLooksAgainAfterNanoseconds
                                                 : std::min(patience - waited, kWatcherLooksAgainAfterNanoseconds);
        const timespec duration{static_cast<time_t>(nap / 1'000'000'000), static_cast<long>(nap % 1'000'000'000)};
        (void)os::futex_wait(futex_word(pool), static_cast<std::uint32_t>(known), &duration);
        // A handler has forked, and this is the child: nothing of the pool is mapped here.
        if (pool->fork_generation != fork_generation()) return fail_forked();
    }
}
