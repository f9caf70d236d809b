#include "daemon.hpp"

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <utility>

#include "daemon/src/daemon.hpp"
#include "memory/hugepages.hpp"
#include "memory/hugetlb_cgroup.hpp"
#include "memory/topology.hpp"
#include "os/closer.hpp"
#include "os/event_loop.hpp"
#include "os/latch.hpp"
#include "os/log.hpp"
#include "os/process_info.hpp"
#include "os/worker.hpp"
#include "survival/keeper.hpp"

namespace numacre::daemon {

using simulation::FilePtr;
using simulation::Kernel;

namespace {

Kernel &kernel() {
    return *Kernel::running;
}
const std::uint32_t *key_of(const void *object) {
    return static_cast<const std::uint32_t *>(object);
}

}  // namespace

// --- a latch: fibers wait for it
// ---------------------------------------------------------------------------------------

struct Latch::Door {
    bool is_open = false;
};
Latch::Latch() : door_(std::make_unique<Door>()) {}
Latch::~Latch() = default;
void Latch::open() {
    door_->is_open = true;
    kernel().scheduler().wake_all(key_of(door_.get()));
}
void Latch::wait() {
    while (!door_->is_open) kernel().scheduler().wait_on(key_of(door_.get()), Kernel::kForEver);
}
bool Latch::wait_for(std::chrono::milliseconds patience) {
    const std::uint64_t until =
        kernel().scheduler().now_ns() + static_cast<std::uint64_t>(patience.count()) * 1'000'000;
    while (!door_->is_open) {
        const std::uint64_t now = kernel().scheduler().now_ns();
        if (now >= until) return false;
        kernel().scheduler().wait_on(key_of(door_.get()), until - now);
    }
    return true;
}

// --- the worker: a fiber of the daemon's process
// -----------------------------------------------------------------------

struct Worker::Thread {
    std::deque<std::function<void()>> jobs;
    bool stopping = false;
    bool has_ended = false;
    int fiber = -1;

    void work() {
        for (;;) {
            while (jobs.empty()) {
                if (stopping) {
                    has_ended = true;
                    kernel().scheduler().wake_all(key_of(this));
                    return;
                }
                kernel().scheduler().wait_on(key_of(this), Kernel::kForEver);
            }
            const std::function<void()> job = std::move(jobs.front());
            jobs.pop_front();
            simulation::step();
            job();
        }
    }
};

Worker::Worker(const char *) : thread_(std::make_shared<Thread>()) {
    thread_->fiber = kernel().scheduler().spawn(kernel().current().id, [thread = thread_] { thread->work(); });
}

Worker::~Worker() {
    if (kernel().scheduler().current() == thread_->fiber)
        thread_->stopping = true;
    else
        finish();
}

void Worker::finish() {
    thread_->stopping = true;
    kernel().scheduler().wake_all(key_of(thread_.get()));
    while (!thread_->has_ended) kernel().scheduler().wait_on(key_of(thread_.get()), Kernel::kForEver);
}

std::chrono::milliseconds Worker::busy_for() const {
    return std::chrono::milliseconds{0};
}

void Worker::post(std::function<void()> job) {
    simulation::step();
    if (thread_->stopping) return;
    thread_->jobs.push_back(std::move(job));
    kernel().scheduler().wake_all(key_of(thread_.get()));
}

void Worker::run_and_wait(const std::function<void()> &job) {
    Latch is_done;
    post([&] {
        job();
        is_done.open();
    });
    is_done.wait();
}

// --- the closer: nobody's close takes long here
// ------------------------------------------------------------------------

struct Closer::Shared {};
Closer::Closer(bool) {}
Closer::~Closer() = default;
void Closer::close(Fd fd) {
    fd.reset();
}
std::size_t Closer::backlog() const {
    return 0;
}

// --- the machine
// -------------------------------------------------------------------------------------------------------

ThreadBinding::ThreadBinding(ThreadBinding &&other) noexcept : bound_(std::exchange(other.bound_, false)) {}
ThreadBinding::~ThreadBinding() = default;
std::vector<NumaNode> Topology::nearest(NumaNode numa_node) const {
    std::vector<NumaNode> order{numa_node};
    for (std::size_t i = 0; i < numa_nodes_.size(); ++i)
        if (i != numa_node.value) order.push_back(NumaNode{static_cast<std::uint8_t>(i)});
    return order;
}
Answer<ThreadBinding> Topology::bind_this_thread(NumaNode) const {
    return ThreadBinding{};
}
Answer<std::uint64_t> Topology::bring_home(void *, std::uint64_t, std::uint64_t, NumaNode) const {
    return std::uint64_t{0};
}
Answer<void> Topology::bind_shared_pages(void *, std::uint64_t, NumaNode, bool) const {
    return {};
}

Hugepages::Hugepages(bool may_reserve, std::string sysfs_nodes, std::string sysfs_machine, std::string lock_folder)
    : may_reserve_(may_reserve),
      sysfs_nodes_(std::move(sysfs_nodes)),
      sysfs_machine_(std::move(sysfs_machine)),
      lock_folder_(std::move(lock_folder)) {}
std::string hugepage_lock_folder() {
    return {};
}
void Hugepages::record_in(MachineLedger &ledger, std::span<const int>) {
    ledger_ = &ledger;
}
std::optional<HugepagePool> Hugepages::pool(int, std::uint64_t) const {
    return std::nullopt;
}
std::vector<HugepagePool> Hugepages::pools(int) const {
    return {};
}
Hugepages::Lock Hugepages::lock(int, std::uint64_t, std::chrono::milliseconds, std::chrono::milliseconds) const {
    return {};
}
Answer<std::uint64_t> Hugepages::ensure_free(int, std::uint64_t, std::uint64_t, std::uint64_t, For) {
    return Unexpected{Failure{Errc::out_of_frames, "there are no hugepages here"}};
}
void Hugepages::give_back(int, std::uint64_t, std::uint64_t) {}
void Hugepages::give_back_all() {}
void Hugepages::give_back_idle(const Pages &) {}
void Hugepages::restore_surplus(int, std::uint64_t) {}

std::string hugetlb_size_name(std::uint64_t) {
    return "2MB";
}
Answer<void> check_hugetlb_cgroup(std::uint64_t, std::uint64_t, const std::string &) {
    return {};
}
MemoryLeft memory_left(const std::string &) {
    return {std::uint64_t{1} << 40, "the machine"};
}

namespace log {

namespace {
void say(const char *level, std::string_view message, std::initializer_list<Field> fields) {
    if (message.starts_with("pool is damaged")) {
        std::string why;
        for (const Field &field : fields) why += " " + field.key + "=" + field.value;
        simulation::fail("the daemon takes a sound pool for damaged:%s", why.c_str());
        return;
    }
    if (!simulation::is_tracing()) return;
    simulation::trace("%s: %s", level, render(message, fields, Format::text).c_str());
}
}  // namespace

std::uint64_t dropped() {
    return 0;
}
std::string render(std::string_view message, std::initializer_list<Field> fields, Format) {
    std::string text(message);
    for (const Field &field : fields) text += " " + field.key + "=" + field.value;
    return text;
}
void debug(std::string_view message, std::initializer_list<Field> fields) {
    say("debug", message, fields);
}
void info(std::string_view message, std::initializer_list<Field> fields) {
    say("info", message, fields);
}
void warn(std::string_view message, std::initializer_list<Field> fields) {
    say("warn", message, fields);
}
void error(std::string_view message, std::initializer_list<Field> fields) {
    say("error", message, fields);
}

}  // namespace log

namespace {

class SimulatedMachine final : public Topology {
public:
    explicit SimulatedMachine(unsigned numa_nodes) : taken_(numa_nodes, 0) {
        constexpr unsigned kLocal = 10, kRemote = 20;
        for (unsigned i = 0; i < numa_nodes; ++i) {
            MemoryNode made{static_cast<int>(i), kBytes, "0", {}};
            for (unsigned other = 0; other < numa_nodes; ++other)
                made.distances.push_back(i == other ? kLocal : kRemote);
            numa_nodes_.push_back(std::move(made));
        }
    }
    std::string source() const override { return "simulated"; }
    std::uint64_t available_bytes(NumaNode) const override { return kBytes; }
    std::uint64_t unbooked_bytes(NumaNode numa_node) const override { return kBytes - taken_[numa_node.value]; }
    Answer<void> take(NumaNode numa_node, std::uint64_t bytes) override {
        taken_[numa_node.value] += bytes;
        return {};
    }
    void give_back(NumaNode numa_node, std::uint64_t bytes) override {
        if (bytes > taken_[numa_node.value])
            simulation::fail("the daemon gives back more of numa node %u than it has taken", numa_node.value);
        taken_[numa_node.value] -= std::min(bytes, taken_[numa_node.value]);
    }

private:
    static constexpr std::uint64_t kBytes = std::uint64_t{1} << 40;
    std::vector<std::uint64_t> taken_;
};

// --- the event loop: what is ready goes in any order
// -------------------------------------------------------------------

class SimulatedLoop final : public EventLoop {
public:
    SimulatedLoop() = default;
    SimulatedLoop(const SimulatedLoop &) = delete;
    SimulatedLoop &operator=(const SimulatedLoop &) = delete;
    ~SimulatedLoop() override { kernel().current().in_flight.clear(); }
    void run() override {
        while (!stopping_) {
            simulation::step();
            std::vector<WaitId> ready;
            std::uint64_t next = Kernel::kForEver;
            const std::uint64_t now = kernel().scheduler().now_ns();
            for (const auto &[id, wait] : waits_) {
                if (is_ready(id, wait, now))
                    ready.push_back(id);
                else if (wait.kind == Kind::timer || wait.resumes_at != 0)
                    next = std::min(next, std::max(wait.deadline, wait.resumes_at));
            }
            if (!posts_.empty()) ready.push_back(0);
            if (ready.empty()) {
                kernel().scheduler().wait_on(reinterpret_cast<const std::uint32_t *>(&kernel()),
                                             next - std::min(now, next));
                continue;
            }
            const WaitId chosen = ready[kernel().random().below(ready.size())];
            if (chosen != 0) {
                complete(chosen);
                continue;
            }
            std::vector<std::function<void()>> posts;
            posts.swap(posts_);
            for (const auto &function : posts) function();
        }
    }
    void stop() override {
        stopping_ = true;
        kernel().notify();
    }
    void post(std::function<void()> function) override {
        simulation::step();
        posts_.push_back(std::move(function));
        kernel().notify();
    }
    WaitId accept_each(int listening_fd, std::function<void(int)> on_accept) override {
        Wait wait(Kind::accept);
        wait.on_accept = std::move(on_accept);
        return begin(std::move(wait), listening_fd);
    }
    WaitId receive_one(int fd, std::function<void(int, std::span<const std::byte>)> on_packet) override {
        Wait wait(Kind::receive);
        wait.on_packet = std::move(on_packet);
        return begin(std::move(wait), fd);
    }
    WaitId when_readable(int fd, std::function<void()> on_readable) override {
        Wait wait(Kind::readable);
        wait.on_event = std::move(on_readable);
        return begin(std::move(wait), fd);
    }
    WaitId signal(int event_fd, std::function<void()> on_done) override {
        Wait wait(Kind::signal);
        wait.on_event = std::move(on_done);
        return begin(std::move(wait), event_fd);
    }
    WaitId after(std::chrono::milliseconds delay, std::function<void()> on_time) override {
        Wait wait(Kind::timer);
        wait.on_event = std::move(on_time);
        wait.deadline = kernel().scheduler().now_ns() +
                        static_cast<std::uint64_t>(std::max<std::int64_t>(0, delay.count())) * 1'000'000;
        return begin(std::move(wait), -1);
    }
    void cancel(WaitId id, std::function<void()> on_gone) override {
        const auto found = waits_.find(id);
        if (found == waits_.end() || found->second.is_cancelled) {
            if (on_gone) on_gone();
            return;
        }
        // The entry stays until the kernel has let go.
        Wait &wait = found->second;
        wait.is_cancelled = true;
        wait.on_accept = nullptr;
        wait.on_packet = nullptr;
        wait.on_event = nullptr;
        wait.on_gone = std::move(on_gone);
    }
    // A connection is accepted as it is delivered.
    void stop_accepting(WaitId id) override { cancel(id, nullptr); }
    std::size_t waits() const { return waits_.size(); }

private:
    enum class Kind : std::uint8_t { accept, receive, readable, signal, timer };
    struct Wait {
        explicit Wait(Kind what) : kind(what) {}
        Kind kind;
        bool is_cancelled = false;
        std::uint64_t deadline = 0;
        std::uint64_t resumes_at = 0;  // accept, after a failure
        bool is_broken = false;        // no such descriptor
        std::function<void(int)> on_accept;
        std::function<void(int, std::span<const std::byte>)> on_packet;
        std::function<void()> on_event;
        std::function<void()> on_gone;
    };

    WaitId begin(Wait wait, int fd) {
        const WaitId id = ++last_id_;
        if (fd >= 0) {
            const FilePtr file = kernel().file(fd);
            wait.is_broken = !file;
            if (file) kernel().current().in_flight[id] = file;
        } else if (wait.kind != Kind::timer) {
            wait.is_broken = true;
        }
        waits_.emplace(id, std::move(wait));
        return id;
    }
    simulation::File *file_of(WaitId id) const {
        const auto &in_flight = kernel().current().in_flight;
        const auto found = in_flight.find(id);
        return found == in_flight.end() ? nullptr : found->second.get();
    }
    bool is_ready(WaitId id, const Wait &wait, std::uint64_t now) const {
        if (wait.is_cancelled || wait.is_broken) return true;
        if (wait.kind == Kind::timer) return now >= wait.deadline;
        if (wait.resumes_at > now) return false;
        if (wait.kind == Kind::signal) return true;
        return kernel().is_ready(*file_of(id));
    }
    void complete(WaitId id) {
        Wait &here = waits_.at(id);
        if (here.kind == Kind::accept && !here.is_cancelled) {
            accept(id, here);
            return;
        }
        Wait wait = std::move(here);
        waits_.erase(id);
        int result = -EBADF;
        std::vector<std::byte> packet;
        if (simulation::File *const file = file_of(id); file != nullptr && !wait.is_cancelled) {
            if (wait.kind == Kind::receive) result = take_packet(*file, packet);
            if (wait.kind == Kind::signal) ++file->count;
        }
        kernel().current().in_flight.erase(id);
        if (wait.is_cancelled) {
            if (wait.on_gone) wait.on_gone();
        } else if (wait.kind == Kind::receive) {
            wait.on_packet(result, packet);
        } else {
            wait.on_event();
        }
    }
    static int take_packet(simulation::File &socket, std::vector<std::byte> &packet) {
        if (std::exchange(socket.was_reset, false)) return -ECONNRESET;
        if (socket.queue.empty()) return 0;
        if (!socket.queue.front().files.empty()) return -EBADMSG;
        packet = std::move(socket.queue.front().bytes);
        socket.queue.pop_front();
        const int size = static_cast<int>(packet.size());
        if (packet.size() > kPacketBytes) packet.resize(kPacketBytes);
        return size;
    }
    void accept(WaitId id, Wait &wait) {
        constexpr std::uint64_t kPauseNs = 100'000'000;
        wait.resumes_at = 0;
        simulation::File *const listener = file_of(id);
        const auto on_accept = wait.on_accept;  // a copy: it may cancel this wait
        int fd = -EMFILE;
        if (!kernel().fails(kernel().plan().emfile_every)) {
            fd = kernel().install(listener->backlog.front());
            if (fd >= 0) {
                listener->backlog.front()->is_accepted = true;
                listener->backlog.pop_front();
            } else {
                fd = -errno;
            }
        }
        if (fd < 0) wait.resumes_at = kernel().scheduler().now_ns() + kPauseNs;
        on_accept(fd);
    }

    std::map<WaitId, Wait> waits_;
    WaitId last_id_ = 0;
    std::vector<std::function<void()>> posts_;
    bool stopping_ = false;
};

class SimulatedKeeper final : public Keeper {
public:
    explicit SimulatedKeeper(simulation::Kept &kept) : kept_(kept) {}
    std::string_view kind() const override { return "simulated"; }
    Answer<std::map<std::string, Fd>> inherited() override {
        simulation::step();
        kept_.is_left = false;
        std::map<std::string, Fd> files;
        for (const auto &[name, file] : kept_.files) files.emplace(name, Fd(kernel().install(file)));
        return files;
    }
    void keep(const std::string &name, int fd) override {
        simulation::step();
        kept_.files[name] = kernel().file(fd);
    }
    void drop(const std::string &name) override {
        simulation::step();
        kept_.files.erase(name);
    }
    void leave(std::span<const int> pidfds) override {
        simulation::step();
        kept_.left_to.clear();
        for (const int pidfd : pidfds) kept_.left_to.insert(kernel().file(pidfd)->of_process);
        kept_.is_left = true;
        simulation::give_up_kept(kept_);
    }

private:
    simulation::Kept &kept_;
};

}  // namespace
}  // namespace numacre::daemon

namespace numacre::simulation {

using namespace engine;

namespace {

constexpr const char *kPool = "default";

daemon::Daemon &daemon_of(const DaemonFace &face) {
    return *static_cast<daemon::Daemon *>(face.daemon);
}

bool reserve_for(const DaemonFace &face, const daemon::Holder &holder, std::uint64_t bytes) {
    if (face.daemon == nullptr) return false;
    const auto result = daemon_of(face).reserve(holder, bytes);
    trace("reserve %llu bytes for client %u or user %u: %s", static_cast<unsigned long long>(bytes), holder.client_id,
          holder.uid, result ? "ok" : result.error().message.c_str());
    return result.has_value();
}

}  // namespace

void give_up_kept(Kept &kept) {
    if (!kept.is_left) return;
    std::erase_if(kept.left_to, [](int process) { return !Kernel::running->process(process).is_alive; });
    if (!kept.left_to.empty()) return;
    kept.files.clear();
    kept.is_left = false;
}

void run_daemon(DaemonFace &face, const DaemonPlan &plan, Kept &kept) {
    using namespace daemon;
    face = {};
    face.process = Kernel::running->current().id;
    auto made_loop = std::make_unique<SimulatedLoop>();
    SimulatedLoop &loop = *made_loop;
    Daemon::Options options;
    options.runtime_dir = "/run/numacre";
    options.reserve_hugepages = false;
    LoopWatch &watch = Kernel::running->loop_watch;
    watch.begin(face.process, Kernel::running->scheduler().current());
    {
        Daemon daemon(std::move(options), std::make_unique<SimulatedMachine>(plan.numa_nodes), std::move(made_loop),
                      std::make_unique<SimulatedKeeper>(kept));
        const auto could_not = [&](const Failure &why) {
            trace("the daemon does not start: %s", why.message.c_str());
            face.could_not_start = true;
        };
        if (auto adopted = daemon.adopt_pools(); !adopted) {
            if (!plan.may_lack_memory)
                fail("the daemon does not adopt what was kept: %s", adopted.error().message.c_str());
            return could_not(adopted.error());
        }
        if (!daemon.has_pool(kPool)) {
            PoolSpec spec;
            spec.name = kPool;
            spec.capacity_bytes = plan.capacity_bytes;
            spec.online_bytes = plan.online_bytes;
            spec.frame_bytes = plan.frame_bytes;
            spec.largest_block_bytes = plan.largest_block_bytes;
            spec.object_bytes = plan.object_bytes;
            spec.object_count = plan.object_count;
            spec.max_clients = plan.max_clients;
            spec.max_threads = plan.max_threads;
            spec.max_threads_per_client = plan.max_threads_per_client;
            spec.backing = wire::Backing::small_pages;
            spec.access.mode = PoolAccess::kWidestMode;
            spec.reclaim.kind = static_cast<Reclaim::Kind>(plan.reclaim);
            spec.reclaim.hold = std::chrono::seconds(spec.reclaim.kind == Reclaim::Kind::quarantine ? 1 : 0);
            spec.fit = static_cast<Fit>(plan.fit);
            spec.quota_bytes = plan.quota_bytes;
            watch.pause();
            auto created = daemon.create_pool(spec);
            watch.resume();
            if (!created) {
                if (!plan.may_lack_memory) fail("the daemon cannot make the pool: %s", created.error().message.c_str());
                return could_not(created.error());
            }
        }
        Fd listener(Kernel::running->listen());
        daemon.serve_clients(std::move(listener));
        face.daemon = &daemon;
        face.loop = &loop;
        // Its ledger, the machine's, the pool's region and its pins, two of each numa node; and the attach socket.
        face.files_when_idle = 5 + 2 * std::size_t{plan.numa_nodes};
        face.is_serving = true;
        trace("the daemon serves");
        loop.run();
        watch.pause();
        face.is_serving = false;
        face.daemon = face.loop = nullptr;
        daemon.begin_shutdown();
    }
    trace("the daemon has ended");
}

PoolReport ask_daemon(DaemonFace &face) {
    PoolReport report;
    if (face.daemon == nullptr) return report;
    const auto status = daemon_of(face).pool_status(kPool);
    if (!status || face.daemon == nullptr) return report;
    report.is_there = true;
    report.is_corrupt = status->corrupt;
    report.reason = status->corrupt_reason;
    report.clients = status->clients;
    for (const daemon::NodeStatus &node : status->nodes) {
        report.online_frames += node.snapshot.online_frames();
        report.free_frames += node.snapshot.free_frames;
        report.cached_frames += node.snapshot.cached_frames;
        report.quarantined_bytes += node.quarantined_bytes;
        report.waiting_threads += node.waiting_threads;
    }
    const auto clients = daemon_of(face).clients(kPool);
    if (clients)
        for (const daemon::ClientStatus &client : *clients) {
            report.client_ids.push_back(client.client_id);
            report.table += " " + std::to_string(client.client_id) + " (" + client.comm + ", pid " +
                            std::to_string(client.pid) + ", " + client.state + ", " +
                            std::to_string(client.used_bytes) + " B)";
        }
    return report;
}

void resize_pool(DaemonFace &face, unsigned numa_node, std::uint64_t online_bytes) {
    if (face.daemon == nullptr) return;
    const auto result = daemon_of(face).resize(kPool, NumaNode{static_cast<std::uint8_t>(numa_node)}, online_bytes,
                                               false, [](const daemon::ResizeStep &) { return true; });
    trace("resize to %llu: %s", static_cast<unsigned long long>(online_bytes),
          result ? "ok" : result.error().message.c_str());
}

void drain_chunk(DaemonFace &face, unsigned numa_node, std::uint64_t chunk, bool undo) {
    if (face.daemon == nullptr) return;
    (void)daemon_of(face).drain_chunk(kPool, NumaNode{static_cast<std::uint8_t>(numa_node)}, chunk, undo);
}

void evict_someone(DaemonFace &face, Random &random) {
    if (face.daemon == nullptr) return;
    const auto clients = daemon_of(face).clients(kPool);
    if (!clients || clients->empty() || face.daemon == nullptr) return;
    (void)daemon_of(face).evict((*clients)[random.below(clients->size())].client_id, std::chrono::milliseconds(10));
}

void set_some_quota(DaemonFace &face, Random &random, std::uint64_t bytes) {
    if (face.daemon == nullptr) return;
    const auto clients = daemon_of(face).clients(kPool);
    if (!clients || clients->empty() || face.daemon == nullptr) return;
    daemon::Holder holder;
    holder.client_id = (*clients)[random.below(clients->size())].client_id;
    (void)daemon_of(face).set_quota(holder, bytes, 0);
}

bool reserve_for_client(DaemonFace &face, std::uint32_t client_id, std::uint64_t bytes) {
    daemon::Holder holder;
    holder.client_id = client_id;
    return reserve_for(face, holder, bytes);
}

bool reserve_for_user(DaemonFace &face, std::uint32_t uid, std::uint64_t bytes) {
    daemon::Holder holder;
    holder.kind = daemon::Holder::Kind::user;
    holder.uid = uid;
    holder.pool = kPool;
    return reserve_for(face, holder, bytes);
}

void stop_daemon(DaemonFace &face) {
    if (face.loop != nullptr) static_cast<daemon::SimulatedLoop *>(face.loop)->stop();
}

void warm_up_daemon() {
    (void)daemon::can_be_found({1, 1, 0, 0});
    daemon::Peer peer;
    peer.pid = 1;
    daemon::ProcessIdentity known{1, 7, 0, 0};
    (void)daemon::find_peer(known);
    (void)daemon::has_executed(1, 1);
    peer.pid_space = known.pid_space;
    peer.pidfd = std::make_shared<const daemon::Fd>(-1);
    daemon::complete_identity(peer);
}

}  // namespace numacre::simulation
