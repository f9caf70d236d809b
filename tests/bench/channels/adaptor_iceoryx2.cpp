// iceoryx2's publish/subscribe with loaned samples. Its library is written in Rust: iceoryx2/ has it behind a C
// interface, which is loaded in the two processes only. A sleeping receiver waits for an event, which follows the
// sample.
#include <dlfcn.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "measure.hpp"

namespace numacre::bench {
namespace {

constexpr std::uint32_t kFailed = ~std::uint32_t{0};

// The functions of iceoryx2/src/lib.rs.
class Library {
public:
    static std::string path() { return NUMACRE_BENCH_ICEORYX2; }
    Library() : handle_(dlopen(path().c_str(), RTLD_NOW | RTLD_LOCAL)) {
        if (handle_ == nullptr) throw std::runtime_error(dlerror());
        find("channel_sender_open", sender_open);
        find("channel_sender_close", sender_close);
        find("channel_loan", loan);
        find("channel_send", send);
        find("channel_wake", wake);
        find("channel_receiver_open", receiver_open);
        find("channel_receiver_close", receiver_close);
        find("channel_receive", receive);
        find("channel_release", release);
        find("channel_wait", wait);
    }
    // Never unloaded: it has thread-specific data.
    ~Library() = default;
    Library(const Library &) = delete;
    Library &operator=(const Library &) = delete;

    void *(*sender_open)(const char *name, const char *folder, std::uint32_t capacity, std::uint32_t burst) = nullptr;
    void (*sender_close)(void *sender) = nullptr;
    std::uint32_t (*loan)(void *sender, void **blocks, std::uint32_t count) = nullptr;
    std::uint32_t (*send)(void *sender) = nullptr;
    std::uint32_t (*wake)(void *sender) = nullptr;
    void *(*receiver_open)(const char *name, const char *folder, std::uint32_t capacity, std::uint32_t burst) = nullptr;
    void (*receiver_close)(void *receiver) = nullptr;
    std::uint32_t (*receive)(void *receiver, const void **blocks, std::uint32_t most) = nullptr;
    void (*release)(void *receiver) = nullptr;
    std::uint32_t (*wait)(void *receiver) = nullptr;

private:
    template <class Function>
    void find(const char *name, Function &function) {
        function = reinterpret_cast<Function>(dlsym(handle_, name));
        if (function == nullptr) throw std::runtime_error(dlerror());
    }
    void *handle_;
};

void expect(const char *call, std::uint32_t result, std::uint32_t wanted) {
    if (result != wanted) [[unlikely]]
        throw std::runtime_error(std::string("iceoryx2: ") + call + " returned " + std::to_string(result) + ", not " +
                                 std::to_string(wanted));
}

class Iceoryx2 {
public:
    explicit Iceoryx2(const Shape &shape) : capacity_(shape.capacity) {
        if (!std::filesystem::exists(Library::path()))
            throw Unavailable(
                "its library was not built (tests/bench/channels/iceoryx2/build.py needs cargo and the registry of "
                "crates)");
        if (shape.hugepages) throw Unavailable("it has small pages only");
        static unsigned count = 0;
        name_ = "numacre_bench_" + std::to_string(getpid()) + "_" + std::to_string(count++);
        folder_ = "/tmp/numacre-bench-XXXXXX";
        if (mkdtemp(folder_.data()) == nullptr) throw std::runtime_error("cannot make " + folder_);
    }
    // A file for each name stays in any case, and all files of a killed process do.
    ~Iceoryx2() {
        std::error_code ignored;
        std::filesystem::remove_all(folder_, ignored);
        for (const auto &file : std::filesystem::directory_iterator("/dev/shm", ignored))
            if (file.path().filename().string().starts_with(name_ + "_")) std::filesystem::remove(file, ignored);
    }
    Iceoryx2(const Iceoryx2 &) = delete;
    Iceoryx2 &operator=(const Iceoryx2 &) = delete;

    class Sender {
    public:
        explicit Sender(Iceoryx2 &system)
            : sender_(library_.sender_open(system.name_.c_str(), system.folder_.c_str(), system.capacity_, kBurstMax)) {
            if (sender_ == nullptr) throw std::runtime_error("iceoryx2: no publisher, see above");
        }
        ~Sender() { library_.sender_close(sender_); }
        Sender(const Sender &) = delete;
        Sender &operator=(const Sender &) = delete;
        template <class Fill>
        void send(unsigned count, Fill fill) {
            std::array<void *, kBurstMax> blocks;
            expect("channel_loan", library_.loan(sender_, blocks.data(), count), count);
            for (unsigned i = 0; i < count; ++i) fill(blocks[i]);
            expect("channel_send", library_.send(sender_), count);
        }
        void notify() { expect("channel_wake", library_.wake(sender_), 1); }

    private:
        Library library_;
        void *sender_;
    };

    class Receiver {
    public:
        explicit Receiver(Iceoryx2 &system)
            : receiver_(
                  library_.receiver_open(system.name_.c_str(), system.folder_.c_str(), system.capacity_, kBurstMax)) {
            if (receiver_ == nullptr) throw std::runtime_error("iceoryx2: no subscriber, see above");
        }
        ~Receiver() { library_.receiver_close(receiver_); }
        Receiver(const Receiver &) = delete;
        Receiver &operator=(const Receiver &) = delete;
        template <class Read>
        unsigned receive(unsigned most, Read read) {
            std::array<const void *, kBurstMax> blocks;
            const std::uint32_t count = library_.receive(receiver_, blocks.data(), most);
            if (count == 0) return 0;
            if (count == kFailed) throw std::runtime_error("iceoryx2: a subscriber failed, see above");
            for (unsigned i = 0; i < count; ++i) read(blocks[i]);
            library_.release(receiver_);
            return count;
        }
        void sleep() { expect("channel_wait", library_.wait(receiver_), 0); }

    private:
        Library library_;
        void *receiver_;
    };

    class Waker {
    public:
        explicit Waker(Iceoryx2 &system) : sender_(system) {}
        void wake(std::uint64_t sequence) {
            sender_.send(1, [sequence](void *block) { *static_cast<std::uint64_t *>(block) = sequence; });
            sender_.notify();
        }

    private:
        Sender sender_;
    };
    class Waiter {
    public:
        explicit Waiter(Iceoryx2 &system) : receiver_(system) {}
        std::uint64_t wait() {
            std::uint64_t sequence = 0;
            const auto read = [&](const void *block) { sequence = *static_cast<const std::uint64_t *>(block); };
            while (receiver_.receive(1, read) == 0) receiver_.sleep();
            return sequence;
        }

    private:
        Receiver receiver_;
    };

private:
    std::string name_, folder_;
    unsigned capacity_;
};

const Registered iceoryx2{entry_of<Iceoryx2>("iceoryx2")};

}  // namespace
}  // namespace numacre::bench
