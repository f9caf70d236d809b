// The work of a run of the second stage, and the checks all the time and at the end.
#include <sys/mman.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <vector>

#include "../client.hpp"
#include "numacre/os/kernel.hpp"
#include "plan.hpp"
#include "receive.hpp"

namespace numacre::simulation {
namespace {

// One client as the daemon counts them: a handle that has been attached.
struct Session {
    int process = 0;
    unsigned program = 0;  // of the process
    std::uint32_t client_id = 0;
    std::uint16_t slot = 0;
    const void *frames = nullptr;  // where its process has the first numa node's
    bool is_leaving = false;       // numacre_detach() has been called
    bool has_left = false;         // ... and has returned
    // Reserved for it: so much it gets, whoever else wants memory. Less than the daemon knows of, or as much.
    std::uint64_t promised_bytes = 0;
    unsigned promises = 0;  // how often that has changed
};

struct Handle {
    numacre_pool *pool = nullptr;
    int session = -1;
};

struct HeldBlock {
    void *place = nullptr;
    std::uint64_t serial = 0;
    int session = -1;
    unsigned numa_node = 0;
    std::uint64_t first = 0, count = 0;  // frames
};

// A block on its way from who has published it to who takes it.
struct Token {
    numacre_ref reference = 0;
    HeldBlock block;
    std::uint64_t instance_id = 0;  // of the pool
};

struct Owner {
    int session = -1;
    std::uint64_t serial = 0;
    int taker = -1;  // a session in the middle of numacre_take(): if it dies there, the block may be its own, and free
};

// A process of the run, as its own program sees it.
struct Program {
    int process = 0;
    std::vector<Handle> handles;
    std::vector<Handle> stale;  // made before a fork
    unsigned working = 0;       // threads in the middle of operations
    unsigned lingering = 0;     // threads that have not ended
    bool may_end = false;       // ... and may now
    bool has_closed_all = false;
    bool is_child = false;
    bool has_nothing = false;  // it has let go of everything, and lives on until the end
};

const std::uint32_t *key_of(const void *object) {
    return static_cast<const std::uint32_t *>(object);
}

class SystemWorld final : public World {
public:
    explicit SystemWorld(const SystemPlan &plan)
        : plan_(plan),
          scheduler_(*this, plan.schedule),
          kernel_(scheduler_, plan.kernel, plan.seed),
          random_(plan.seed, 201) {
        the_world = this;
        Kernel::on_failure = [](const std::string &what) { the_world->failed(what); };
        kernel_.on_death = [this](const Process &process) { on_death(process); };
        frames_ = plan.daemon.capacity_bytes / plan.daemon.frame_bytes;
        owners_.resize(plan.daemon.numa_nodes, std::vector<Owner>(frames_));
        call_deaths_left_ = plan.call_deaths;
        call_daemon_deaths_left_ = plan.call_daemon_deaths;
        programs_.reserve(200);
    }
    ~SystemWorld() override { the_world = nullptr; }

    SystemResult run() {
        director_ = kernel_.start_process("director", 0, false);
        scheduler_.spawn(director_, [this] { direct(); });
        scheduler_.run();
        if (scheduler_.cut_short() && failure_.empty()) failure_ = at_step() + "somebody never ends: " + who_is_left();
        result_.failure = failure_;
        result_.steps = steps_done();
        kept_.files.clear();
        return result_;
    }

    bool on_idle() override {
        if (!failure_.empty()) return false;
        const std::uint64_t next = scheduler_.earliest_wake_ns();
        const bool somebody_sleeps = next < Kernel::kForEver;
        if ((!somebody_sleeps || random_.percent(70)) && scheduler_.resume_earliest_paused()) return true;
        if (somebody_sleeps) return scheduler_.wake_earliest();
        failed("nobody can go on: " + who_is_left());
        return false;
    }
    std::uint64_t on_fault_due(std::uint64_t step) override {
        while (next_death_ < plan_.deaths.size() && plan_.deaths[next_death_] <= step) {
            ++next_death_;
            std::vector<int> living;
            for (const Program &program : programs_)
                if (kernel_.process(program.process).is_alive) living.push_back(program.process);
            if (!living.empty() && !is_ending_) kernel_.kill(living[random_.below(living.size())]);
        }
        while (next_daemon_death_ < plan_.daemon_deaths.size() && plan_.daemon_deaths[next_daemon_death_] <= step) {
            ++next_daemon_death_;
            if (daemon_ >= 0 && !is_ending_) kernel_.kill(daemon_);
        }
        std::uint64_t next = ~std::uint64_t{0};
        if (next_death_ < plan_.deaths.size()) next = plan_.deaths[next_death_];
        if (next_daemon_death_ < plan_.daemon_deaths.size())
            next = std::min(next, plan_.daemon_deaths[next_daemon_death_]);
        return next;
    }
    bool on_point_fault(Random &random) override {
        const Process &process = kernel_.current();
        const bool is_mortal =
            process.is_client ? call_deaths_left_ != 0 : process.id == daemon_ && call_daemon_deaths_left_ != 0;
        if (is_ending_ || !is_mortal || random.one_in(4)) return false;
        trace("dies at a named point");
        kernel_.kill(process.id);
        return true;
    }
    void on_store(const void *, std::uint64_t, std::uint64_t) override {}
    void on_look(const void *) override {}
    void on_change(const void *, std::uint64_t, std::uint64_t) override {}
    void on_access(const void *word) override {
        const File *const file = kernel_.file_at(kernel_.current().id, word);
        // The ledgers are the daemon's alone: no client ever gets them.
        if (file == nullptr || file->name.ends_with(":ledger") || file->name == "numacre:machine") return;
        kernel_.loop_watch.touches_shared_memory(kernel_.scheduler().current(), file->name);
    }

    static SystemWorld *the_world;

private:
    std::string at_step() const { return "step " + std::to_string(steps_done()) + ": "; }
    void failed(const std::string &what) {
        if (failure_.empty()) {
            failure_ = at_step() + what;
            trace("FAILED %s", failure_.c_str());
        }
        scheduler_.stop();
    }
    std::string who_is_left() {
        std::string text;
        for (const Fiber &fiber : scheduler_.fibers()) {
            if (fiber.state == FiberState::ended || fiber.state == FiberState::dead) continue;
            text += " " + kernel_.process(fiber.process).comm + "/" + std::to_string(fiber.process) + "(" +
                    std::to_string(static_cast<int>(fiber.state)) + ")";
        }
        return text;
    }
    void on_death(const Process &process) {
        trace("process %d (%s, pid %u) ends", process.id, process.comm.c_str(), process.pid);
        if (process.is_client) {
            ++result_.deaths;
            if (call_deaths_left_ == 0 || --call_deaths_left_ == 0) kernel_.plan().kill_client_every = 0;
        } else if (process.id == daemon_) {
            face_ = {};
            daemon_ = -1;
            is_stopping_ = is_reserving_ = false;
            if (call_daemon_deaths_left_ == 0 || --call_daemon_deaths_left_ == 0) kernel_.plan().kill_daemon_every = 0;
        }
        scheduler_.wake_all(key_of(this));
    }

    static constexpr std::uint32_t kUid = 1000;

    // --- the director: it starts and ends everybody
    // -------------------------------------------------------------------

    void rest(std::uint64_t nanoseconds) {
        step();
        scheduler_.wait_on(key_of(this), nanoseconds + 1);
    }

    void start_daemon() {
        ++result_.daemons;
        face_ = {};
        daemon_ = kernel_.start_process("numacred", 0, false);
        is_stopping_ = false;
        scheduler_.spawn(daemon_, [this] {
            run_daemon(face_, plan_.daemon, kept_);
            const int id = kernel_.current().id;
            if (kernel_.current().fds.size() != 0 || !kernel_.current().in_flight.empty()) {
                if (!face_.could_not_start)
                    fail("a daemon that has ended well leaves %zu descriptors open", kernel_.current().fds.size());
            }
            if (!kernel_.current().mappings.empty()) fail("a daemon that has ended well leaves memory mapped");
            if (id == daemon_) {
                daemon_ = -1;
                is_stopping_ = false;
            }
            kernel_.exit_process();
        });
    }
    bool daemon_lives() const { return daemon_ >= 0; }

    void in_daemon(std::function<void()> what) {
        if (!daemon_lives() || !face_.is_serving || is_stopping_) return;
        ++jobs_running_;
        scheduler_.spawn(daemon_, [this, what = std::move(what)] {
            what();
            --jobs_running_;
            scheduler_.wake_all(key_of(this));
        });
    }
    void stop_the_daemon() {
        if (!daemon_lives() || !face_.is_serving) return;
        is_stopping_ = true;
        trace("the daemon is to end");
        stop_daemon(face_);
        while (daemon_lives()) rest(1'000'000);
    }

    unsigned living_clients() {
        unsigned count = 0;
        for (const Program &program : programs_)
            if (kernel_.process(program.process).is_alive && !program.has_nothing) ++count;
        return count;
    }

    void start_client() {
        const int id = kernel_.start_process("app", random_.one_in(2) ? kUid : 0, true);
        Program &program = programs_.emplace_back();
        program.process = id;
        const bool is_strange = random_.percent(plan_.stranger_percent);
        scheduler_.spawn(id, [this, at = programs_.size() - 1, is_strange] {
            if (is_strange)
                run_stranger(at);
            else
                run_client(at);
        });
    }

    // For a client, or all of a user: more than before, less, or nothing any more.
    void reserve_some() {
        std::vector<std::size_t> present;
        for (std::size_t i = 0; i < sessions_.size(); ++i)
            if (is_holding(static_cast<int>(i)) && !sessions_[i].is_leaving) present.push_back(i);
        const std::uint64_t all = plan_.daemon.capacity_bytes * plan_.daemon.numa_nodes;
        const std::uint64_t bytes =
            random_.one_in(4) ? 0 : 1 + random_.below(random_.one_in(3) ? all : std::max<std::uint64_t>(1, all / 4));
        if (random_.one_in(4)) {
            // What a user's dead client leaves in quarantine is promised to the user again, and is not there.
            if (plan_.daemon.reclaim != 0) return;
            in_daemon([this, bytes, uid = random_.one_in(2) ? kUid : 0] { reserve_for_user(face_, uid, bytes); });
            return;
        }
        // One at a time: of two the daemon says not which came last.
        if (present.empty() || is_reserving_ || !daemon_lives() || !face_.is_serving || is_stopping_) return;
        is_reserving_ = true;
        in_daemon([this, bytes, at = present[random_.below(present.size())]] {
            const unsigned promises = ++sessions_[at].promises;
            sessions_[at].promised_bytes = std::min(sessions_[at].promised_bytes, bytes);
            if (reserve_for_client(face_, sessions_[at].client_id, bytes) && sessions_[at].promises == promises)
                sessions_[at].promised_bytes = bytes;
            is_reserving_ = false;
        });
    }
    // Of a refusal. Only where all have counted from the beginning: a call that is under way when the first limit is
    // set may leave a count wrong until the daemon corrects it. Only where nothing but the call itself has changed what
    // the client holds; a block that is handed on is not given back, so nobody can want it again.
    struct Asked {
        std::uint64_t promised_bytes = 0;
        unsigned promises = 0;
        bool is_alone = false;
    };
    Asked before_asking(const Program &program, const Handle &handle) const {
        const Session &session = sessions_[static_cast<std::size_t>(handle.session)];
        return {session.promised_bytes, session.promises, program.working == 0};
    }
    void check_promise(const Handle &handle, const Asked &before, unsigned frames) {
        const Session &session = sessions_[static_cast<std::size_t>(handle.session)];
        if (plan_.daemon.quota_bytes == 0) return;
        if (!before.is_alone || session.promises != before.promises || plan_.kernel.enomem_every != 0) return;
        const std::uint64_t held = frames_held(handle);
        if ((held + frames) * plan_.daemon.frame_bytes > before.promised_bytes) return;
        fail("%s is refused %u frames; it holds %llu, and has been promised %llu bytes",
             name_of(handle.session).c_str(), frames, static_cast<unsigned long long>(held),
             static_cast<unsigned long long>(before.promised_bytes));
    }
    // Caches included, all in one step.
    std::uint64_t frames_held(const Handle &handle) const {
        std::uint64_t frames = 0;
        for (unsigned i = 0; i < plan_.daemon.numa_nodes; ++i) {
            const auto &view = handle.pool->nodes[i].buddy().view();
            for (unsigned layer = 0; layer <= view.geometry.top_layer(); ++layer)
                for (std::uint64_t entry = 0; entry < view.geometry.index_entry_count(layer); ++entry) {
                    std::uint64_t bits = 0;
                    std::memcpy(&bits, static_cast<const void *>(&view.index[layer][entry]), sizeof bits);
                    const IndexEntry block{bits};
                    if (block.is_held() && block.owner() == handle.pool->process) frames += block.order().frames();
                }
        }
        return frames;
    }

    void one_job() {
        unsigned kind = random_.below(100 + plan_.stop_percent) < 100 ? static_cast<unsigned>(random_.below(6)) : 6;
        if (random_.percent(plan_.sizing_percent)) kind = random_.one_in(2) ? 2 : 3;
        switch (kind) {
            case 0:
            case 1:
                in_daemon([this] { (void)ask_daemon(face_); });
                break;
            case 2: {
                const std::uint64_t unit = std::max<std::uint64_t>(plan_.daemon.largest_block_bytes, 4096);
                const std::uint64_t to = unit * random_.between(0, plan_.daemon.capacity_bytes / unit);
                const auto numa_node = static_cast<unsigned>(random_.below(plan_.daemon.numa_nodes));
                in_daemon([this, to, numa_node] { resize_pool(face_, numa_node, to); });
                break;
            }
            case 3: {
                const std::uint64_t chunk =
                    random_.below(plan_.daemon.capacity_bytes / plan_.daemon.largest_block_bytes);
                const auto numa_node = static_cast<unsigned>(random_.below(plan_.daemon.numa_nodes));
                const bool undo = random_.one_in(2);
                in_daemon([this, chunk, numa_node, undo] { drain_chunk(face_, numa_node, chunk, undo); });
                break;
            }
            case 4:
                in_daemon([this] { evict_someone(face_, random_); });
                break;
            case 5:
                in_daemon([this] {
                    set_some_quota(face_, random_, random_.one_in(2) ? 0 : random_.below(plan_.daemon.capacity_bytes));
                });
                break;
            default:
                if (jobs_running_ == 0) stop_the_daemon();
        }
    }

    void direct() {
        unsigned to_start = plan_.processes, jobs = plan_.jobs, reserves = plan_.reserves;
        start_daemon();
        if (plan_.is_clean)
            while (!face_.is_serving) rest(plan_.rest_ns);
        std::uint64_t pause_ns = plan_.rest_ns;
        while (to_start != 0 || living_clients() != 0) {
            const unsigned left = to_start + jobs + reserves;
            give_up_kept(kept_);
            if (!daemon_lives()) {
                jobs_running_ = 0;
                if (plan_.daemon_away_ns != 0) rest(random_.below(plan_.daemon_away_ns));
                start_daemon();
            }
            if (to_start != 0 && living_clients() < plan_.together) {
                start_client();
                --to_start;
            }
            if (jobs != 0 && random_.one_in(2)) {
                --jobs;
                one_job();
            }
            if (reserves != 0 && random_.one_in(2)) {
                --reserves;
                reserve_some();
            }
            // Seldom, while there is nothing to do.
            constexpr std::uint64_t kPauseMaxNs = 200'000'000;
            pause_ns =
                left != to_start + jobs + reserves ? plan_.rest_ns : std::min(kPauseMaxNs, pause_ns + pause_ns / 8);
            rest(random_.below(2 * pause_ns));
        }
        finish();
        scheduler_.stop();
    }

    // All clients have ended. What they had is free again, soon; then the daemon ends, and nothing is left.
    void finish() {
        is_ending_ = true;
        kernel_.plan() = {};
        kernel_.plan().version = plan_.kernel.version;
        give_up_kept(kept_);
        trace("all clients have ended");
        constexpr unsigned kLooksMax = 2000;
        constexpr std::uint64_t kLookNs = 50'000'000;
        constexpr unsigned kFullLooksMax = 50;
        PoolReport report;
        unsigned full_looks = 0;
        for (unsigned look = 0;; ++look) {
            if (look == kLooksMax) {
                fail("clients that have ended, or let go, are still there after %llu s:%s; %s",
                     static_cast<unsigned long long>(kLooksMax * kLookNs / 1'000'000'000), report.table.c_str(),
                     face_.is_serving ? "the daemon serves" : "no daemon serves");
                return;
            }
            if (!daemon_lives()) {
                jobs_running_ = 0;
                start_daemon();
            }
            rest(kLookNs);
            if (!face_.is_serving) continue;
            report = {};
            bool is_there = false;
            in_daemon([this, &report, &is_there] {
                report = ask_daemon(face_);
                is_there = true;
                scheduler_.wake_all(key_of(this));
            });
            while (!is_there) rest(kLookNs);
            // One report is not of one moment: what it finds in use may have been freed since.
            if (report.clients == 0 && report.quarantined_bytes == 0 && jobs_running_ <= 0 &&
                (report.free_frames == report.online_frames || ++full_looks > kFullLooksMax))
                break;
        }
        if (!report.is_there) fail("the pool is gone");
        if (report.is_corrupt) fail("the pool counts as damaged: %s", report.reason.c_str());
        if (report.free_frames != report.online_frames)
            fail("at the end %llu of %llu frames are free", static_cast<unsigned long long>(report.free_frames),
                 static_cast<unsigned long long>(report.online_frames));
        check_slots();
        is_over_ = true;
        scheduler_.wake_all(key_of(&is_over_));
        for (const Program &program : programs_)
            while (kernel_.process(program.process).is_alive) rest(kLookNs);
        rest(10'000'000'000);  // closes and late timers
        if (kernel_.process(daemon_).fds.size() != face_.files_when_idle)
            fail("at the end the daemon has %zu descriptors instead of %zu", kernel_.process(daemon_).fds.size(),
                 face_.files_when_idle);
        stop_the_daemon();
        if (!kept_.files.empty()) fail("at the end %zu descriptors are kept for nobody", kept_.files.size());
        if (kernel_.memory_files() != 0)
            fail("at the end %zu memfds have not gone back to the machine", kernel_.memory_files());
    }

    // In the shared memory itself.
    void check_slots() {
        const auto found = kept_.files.find("default/pool");
        if (found == kept_.files.end()) return;
        const std::uint64_t bytes = found->second->bytes;
        void *const place = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, found->second->real_fd, 0);
        if (place == MAP_FAILED) return;
        const Pool pool = Pool::at(place, plan_.daemon.max_clients + 1, plan_.daemon.max_threads + 1);
        for (std::uint32_t thread = 1; thread < pool.thread_slots; ++thread)
            if (pool.threads[thread].owner.load() != 0) {
                fail("at the end thread slot %u is not free", thread);
                break;
            }
        for (std::uint32_t slot = 1; slot <= plan_.daemon.max_clients; ++slot)
            if (pool.processes[slot].state.load() != static_cast<std::uint64_t>(ProcessState::free)) {
                fail("at the end seat %u is not free", slot);
                break;
            }
        ::munmap(place, bytes);
    }

    // --- what is true of blocks
    // ---------------------------------------------------------------------------------------

    // The kernel's answer: can this client still reach what it holds?
    bool is_holding(int session) const {
        if (session < 0) return false;
        const Session &who = sessions_[static_cast<std::size_t>(session)];
        const Process &process = const_cast<Kernel &>(kernel_).process(who.process);
        return !who.has_left && process.is_alive && process.program == who.program &&
               kernel_.file_at(who.process, who.frames) != nullptr;
    }
    std::string name_of(int session) const {
        const Session &who = sessions_[static_cast<std::size_t>(session)];
        return "client " + std::to_string(who.client_id) + " (process " + std::to_string(who.process) + ", seat " +
               std::to_string(who.slot) + ")";
    }

    // from: whose block it was, if it was taken.
    HeldBlock got(const Handle &handle, void *place, const HeldBlock *from) {
        HeldBlock block;
        numacre_pool *const pool = handle.pool;
        block.place = place;
        block.session = handle.session;
        block.serial = ++last_serial_;
        const auto offset = static_cast<std::uint64_t>(static_cast<std::byte *>(place) - pool->span);
        block.numa_node = static_cast<unsigned>(offset >> pool->span_shift);
        if (block.numa_node >= plan_.daemon.numa_nodes) {
            fail("%s gets a block of numa node %u, which does not exist", name_of(handle.session).c_str(),
                 block.numa_node);
            return block;
        }
        block.first =
            (static_cast<std::byte *>(place) - pool->nodes[block.numa_node].data) >> pool->geometry.frame_shift;
        block.count = numacre_usable_size(pool, place) >> pool->geometry.frame_shift;
        if (block.count == 0 || block.first + block.count > frames_) {
            fail("%s gets %llu frames at frame %llu of numa node %u; there are %llu", name_of(handle.session).c_str(),
                 static_cast<unsigned long long>(block.count), static_cast<unsigned long long>(block.first),
                 block.numa_node, static_cast<unsigned long long>(frames_));
            return block;
        }
        for (std::uint64_t frame = block.first; frame < block.first + block.count; ++frame) {
            Owner &owner = owners_[block.numa_node][frame];
            const bool is_givers = from != nullptr && owner.serial == from->serial;
            const bool may_be_free = owner.taker >= 0 && !is_holding(owner.taker);
            if (!is_givers && !may_be_free && is_holding(owner.session)) {
                fail("%s gets %llu frames at frame %llu of numa node %u; frame %llu is owned by %s",
                     name_of(handle.session).c_str(), static_cast<unsigned long long>(block.count),
                     static_cast<unsigned long long>(block.first), block.numa_node,
                     static_cast<unsigned long long>(frame), name_of(owner.session).c_str());
                return block;
            }
            owner = {handle.session, block.serial, -1};
        }
        trace("%s %llu frames at %llu of numa node %u, block %llu", from == nullptr ? "gets" : "takes",
              static_cast<unsigned long long>(block.count), static_cast<unsigned long long>(block.first),
              block.numa_node, static_cast<unsigned long long>(block.serial));
        sign(block);
        if (from == nullptr) check_quota();
        return block;
    }
    // What all clients hold together, against the quota that the pool has had since it was made: to the byte, whoever
    // is in the middle of a call, stands still or is dead meanwhile.
    void check_quota() {
        if (plan_.daemon.quota_bytes == 0) return;
        std::uint64_t held_bytes = 0;
        for (const auto &of_numa_node : owners_)
            for (const Owner &owner : of_numa_node)
                if (is_holding(owner.session)) held_bytes += plan_.daemon.frame_bytes;
        if (held_bytes > plan_.daemon.quota_bytes)
            fail("the clients hold %llu bytes, the quota of the pool is %llu",
                 static_cast<unsigned long long>(held_bytes),
                 static_cast<unsigned long long>(plan_.daemon.quota_bytes));
    }
    std::uint64_t *last_word(const HeldBlock &block) const {
        return reinterpret_cast<std::uint64_t *>(static_cast<std::byte *>(block.place) +
                                                 (block.count - 1) * plan_.daemon.frame_bytes);
    }
    void sign(const HeldBlock &block) {
        *static_cast<std::uint64_t *>(block.place) = block.serial;
        *last_word(block) = block.serial;
    }
    void check_signature(const HeldBlock &block) {
        if (*static_cast<const std::uint64_t *>(block.place) != block.serial || *last_word(block) != block.serial)
            fail("somebody has written over the block at frame %llu of numa node %u of %s",
                 static_cast<unsigned long long>(block.first), block.numa_node, name_of(block.session).c_str());
    }
    // Before it is freed.
    void gives_up(const HeldBlock &block) {
        trace("frees block %llu", static_cast<unsigned long long>(block.serial));
        check_signature(block);
        for (std::uint64_t frame = block.first; frame < block.first + block.count; ++frame) {
            Owner &owner = owners_[block.numa_node][frame];
            if (owner.serial != block.serial) {
                fail("frame %llu of numa node %u of %s is not its own any more", static_cast<unsigned long long>(frame),
                     block.numa_node, name_of(block.session).c_str());
                return;
            }
            owner = {};
        }
    }

    // A client that lives and has the pool mapped has its seat.
    void check_seat(const Handle &handle) {
        const auto &record = handle.pool->view.processes[handle.pool->process.value];
        if (record.state.load() != static_cast<std::uint64_t>(ProcessState::active) ||
            record.generation.load() != handle.pool->process_generation)
            fail("%s lives, has the pool mapped, and counts as gone (state %llu, generation %llu instead of %llu)",
                 name_of(handle.session).c_str(), static_cast<unsigned long long>(record.state.load()),
                 static_cast<unsigned long long>(record.generation.load()),
                 static_cast<unsigned long long>(handle.pool->process_generation));
    }
    void check_answer(const Handle &handle, const char *call, int error) {
        switch (-error) {
            case 0:
                break;
            case ENOMEM:
            case EUSERS:
            case ETIMEDOUT:
            case EDQUOT:
                ++result_.refusals;
                break;
            default:
                fail("%s of %s: %d (%s)", call, name_of(handle.session).c_str(), error, numacre_last_error());
        }
        check_seat(handle);
    }

    // --- a client
    // -----------------------------------------------------------------------------------------------------

    // Mostly small, now and then the largest.
    std::size_t some_size() {
        const std::uint64_t largest = plan_.daemon.largest_block_bytes;
        if (plan_.hoard != kUsualHoard && random_.one_in(2)) return plan_.daemon.frame_bytes;
        if (random_.one_in(8)) return largest;
        return 1 + random_.below(std::min(largest, plan_.daemon.frame_bytes << random_.below(4)));
    }

    void allocate(const Program &program, const Handle &handle, std::vector<HeldBlock> &held) {
        void *place = nullptr;
        const std::size_t size = some_size();
        int error = 0;
        const Asked before = before_asking(program, handle);
        const bool is_a_frame = size <= plan_.daemon.frame_bytes;  // a promise is not one in one piece
        if (random_.percent(plan_.wait_percent)) {
            error = numacre_alloc_on(handle.pool, -1, size, NUMACRE_WAIT_MS(1 + random_.below(30)), &place);
        } else if (random_.percent(plan_.uncached_percent)) {
            error = numacre_alloc_on(handle.pool, -1, size, NUMACRE_UNCACHED, &place);
        } else if (random_.percent(plan_.bulk_percent)) {
            void *places[4];
            const auto count = static_cast<unsigned>(random_.between(1, 4));
            error = numacre_alloc_bulk(handle.pool, size, places, count);
            if (error == 0)
                for (unsigned i = 0; i < count; ++i) held.push_back(got(handle, places[i], nullptr));
            check_answer(handle, "numacre_alloc_bulk", error);
            if (error == -ENOMEM && is_a_frame) check_promise(handle, before, count);
            return;
        } else {
            error = numacre_alloc(handle.pool, size, &place);
        }
        if (error == 0) held.push_back(got(handle, place, nullptr));
        check_answer(handle, "numacre_alloc", error);
        if (error == -ENOMEM && is_a_frame) check_promise(handle, before, 1);
    }

    // One of the thread's blocks that is of this handle.
    bool pick(const Handle &handle, std::vector<HeldBlock> &held, HeldBlock &block) {
        std::vector<std::size_t> own;
        for (std::size_t i = 0; i < held.size(); ++i)
            if (held[i].session == handle.session) own.push_back(i);
        if (own.empty()) return false;
        const std::size_t chosen = own[random_.below(own.size())];
        block = held[chosen];
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(chosen));
        return true;
    }

    // Where there are hoarders, those who have been promised something mostly do not use it.
    unsigned allocate_percent(const Program &program, const Handle &handle) const {
        if (plan_.hoard == kUsualHoard) return 50;
        if (sessions_[static_cast<std::size_t>(handle.session)].promised_bytes != 0) return 40;
        return program.process % 2 == 0 ? 90 : 50;
    }

    void operate(Program &program, std::vector<HeldBlock> &held) {
        if (program.handles.empty()) return;
        const Handle handle = program.handles[random_.below(program.handles.size())];
        ++result_.operations;
        HeldBlock block;
        if (random_.percent(plan_.publish_percent) && pick(handle, held, block)) {
            const numacre_ref reference = numacre_ref_of(handle.pool, block.place);
            if (reference == NUMACRE_REF_NULL) {
                // No lane for this thread, perhaps: then the block is still its own.
                held.push_back(block);
                check_seat(handle);
                return;
            }
            trace("gives away block %llu", static_cast<unsigned long long>(block.serial));
            tokens_.push_back({reference, block, handle.pool->view.header->instance_id});
        } else if (random_.percent(plan_.take_percent) && !tokens_.empty()) {
            const std::size_t chosen = random_.below(tokens_.size());
            const Token token = tokens_[chosen];
            tokens_.erase(tokens_.begin() + static_cast<std::ptrdiff_t>(chosen));
            // Of the pool's life before: it may name any block of this one.
            if (token.instance_id != handle.pool->view.header->instance_id) return;
            const bool giver_held = is_holding(token.block.session);
            // What was promised to a giver has gone to somebody else, who may keep it: it may be missing to anybody.
            if (token.block.session >= 0 && sessions_[static_cast<std::size_t>(token.block.session)].promises != 0)
                for (Session &session : sessions_) {
                    session.promised_bytes = 0;
                    ++session.promises;
                }
            void *place = nullptr;
            const auto note_taker = [&](int session) {
                for (std::uint64_t frame = token.block.first; frame < token.block.first + token.block.count; ++frame) {
                    Owner &owner = owners_[token.block.numa_node][frame];
                    if (owner.serial == token.block.serial) owner.taker = session;
                }
            };
            note_taker(handle.session);
            const int error = numacre_take(handle.pool, token.reference, &place);
            if (error != 0) note_taker(-1);
            if (error == 0) {
                ++result_.takes;
                held.push_back(got(handle, place, &token.block));
            } else if (error == -ESTALE) {
                if (giver_held && is_holding(token.block.session) &&
                    !sessions_[static_cast<std::size_t>(token.block.session)].is_leaving)
                    fail("the reference that %s has given away is stale", name_of(token.block.session).c_str());
                check_seat(handle);
            } else {
                check_answer(handle, "numacre_take", error);
            }
        } else if (held.size() > plan_.hoard ||
                   (!random_.percent(allocate_percent(program, handle)) && !held.empty())) {
            if (!pick(handle, held, block)) return;
            gives_up(block);
            const int error = numacre_free(handle.pool, block.place);
            if (error == -EUSERS) return;  // no lane for this thread: it stays the client's
            if (error != 0)
                fail("numacre_free of a block of %s: %d (%s)", name_of(handle.session).c_str(), error,
                     numacre_last_error());
            check_seat(handle);
        } else {
            allocate(program, handle, held);
        }
    }

    void end_thread() {
        ThreadLocals &locals = scheduler_.fibers()[static_cast<std::size_t>(scheduler_.current())].locals;
        void *const value = locals.value;
        locals.value = nullptr;
        if (value != nullptr && kernel_.current().at_thread_end != nullptr) kernel_.current().at_thread_end(value);
    }

    void run_thread(std::size_t at, unsigned operations, bool lingers) {
        {
            std::vector<HeldBlock> held;
            for (unsigned i = 0; i < operations; ++i) operate(programs_[at], held);
        }
        Program &program = programs_[at];
        --program.working;
        scheduler_.wake_all(key_of(&program));
        if (lingers)
            while (!program.may_end) scheduler_.wait_on(key_of(&program), Kernel::kForEver);
        end_thread();
        --program.lingering;
        scheduler_.wake_all(key_of(&program));
    }

    bool attach_one(Program &program) {
        ++result_.attaches;
        numacre_pool *pool = nullptr;
        Process &process = kernel_.current();
        const std::size_t files = process.fds.size();
        const std::size_t maps = process.mappings.size();
        if (random_.percent(plan_.squeeze_percent))
            process.fd_limit = static_cast<unsigned>(3 + files + random_.below(8));
        const int error = numacre_attach("/run/numacre", nullptr, &pool);
        process.fd_limit = 1024;
        if (error == 0) {
            sessions_.push_back(
                {process.id, process.program, pool->client_id, pool->process.value, pool->nodes[0].data, false, false});
            const int session = static_cast<int>(sessions_.size()) - 1;
            program.handles.push_back({pool, session});
            trace("attached as client %u in seat %u", pool->client_id, pool->process.value);
            for (int other = 0; other < session; ++other)
                if (sessions_[static_cast<std::size_t>(other)].slot == pool->process.value && is_holding(other))
                    fail("%s gets the seat of %s", name_of(session).c_str(), name_of(other).c_str());
            check_seat(program.handles.back());
            return true;
        }
        ++result_.refusals;
        trace("not attached: %d (%s)", error, numacre_last_error());
        if (plan_.is_clean) fail("process %d is refused: %d (%s)", process.id, error, numacre_last_error());
        switch (-error) {
            case ECONNREFUSED:
            case EUSERS:
            case ENOMEM:
            case ETIMEDOUT:
                break;
            default:
                fail("process %d cannot attach: %d (%s)", process.id, error, numacre_last_error());
        }
        if (process.fds.size() != files)
            fail("process %d has %zu descriptors after it was refused, %zu before", process.id, process.fds.size(),
                 files);
        if (process.mappings.size() != maps)
            fail("process %d has %zu maps after it was refused, %zu before", process.id, process.mappings.size(), maps);
        return false;
    }

    // Threads that have ended have given back their slots; the first one's may be there.
    void check_thread_slots(const Program &program) {
        for (const Handle &handle : program.handles) {
            unsigned slots = 0;
            for (std::uint32_t thread = 1; thread < handle.pool->view.thread_slots; ++thread) {
                const ThreadOwner owner{handle.pool->view.threads[thread].owner.load()};
                if (owner.in_use() && owner.process() == handle.pool->process) ++slots;
            }
            if (slots > 1) fail("%s has %u thread slots, and one thread", name_of(handle.session).c_str(), slots);
        }
    }

    void detach_all(Program &program) {
        while (!program.handles.empty()) {
            const Handle handle = program.handles.back();
            program.handles.pop_back();
            sessions_[static_cast<std::size_t>(handle.session)].is_leaving = true;
            if (random_.percent(plan_.orphan_percent) && daemon_lives() && call_daemon_deaths_left_ != 0 &&
                !is_ending_) {
                trace("the daemon dies as a client detaches");
                kernel_.kill(daemon_);
            }
            trace("%s detaches", name_of(handle.session).c_str());
            numacre_detach(handle.pool);
            if (is_holding(handle.session))
                fail("%s has detached and still has its frames mapped", name_of(handle.session).c_str());
            sessions_[static_cast<std::size_t>(handle.session)].has_left = true;
        }
    }

    void fork_child(std::size_t at) {
        if (forks_ == plan_.forks) return;
        ++forks_;
        ++result_.forks;
        step();
        ThreadLocals locals;
        save_thread_locals(locals);
        locals.value = scheduler_.fibers()[static_cast<std::size_t>(scheduler_.current())].locals.value;
        const int child = kernel_.fork();
        const bool is_raw = random_.one_in(3);
        trace("forks process %d%s", child, is_raw ? ", without telling" : "");
        Program &made = programs_.emplace_back();
        made.process = child;
        made.is_child = true;
        made.stale = programs_[at].handles;
        made.has_closed_all = programs_[at].has_closed_all;
        const int fiber = scheduler_.spawn(child, [this, mine = programs_.size() - 1, is_raw] {
            if (!is_raw && kernel_.current().in_forked_child != nullptr) kernel_.current().in_forked_child();
            run_client(mine);
        });
        ThreadLocals &its = scheduler_.fibers()[static_cast<std::size_t>(fiber)].locals;
        its = locals;
        its.process = child;
    }

    // What was its parent's is nobody's here.
    void try_stale(Program &program) {
        for (const Handle &handle : program.stale) {
            void *place = nullptr;
            if (const int error = numacre_alloc(handle.pool, 1, &place); error != -ECHILD)
                fail("a forked child allocates by its parent's handle: %d", error);
            if (random_.one_in(2)) {
                std::uint32_t events = 0;
                if (const int error = numacre_events(handle.pool, &events); error != -ECHILD)
                    fail("a forked child asks for events by its parent's handle: %d", error);
            }
        }
        if (random_.one_in(2)) {
            for (const Handle &handle : program.stale) numacre_detach(handle.pool);
            program.stale.clear();
        }
    }

    void run_client(std::size_t at) {
        Process &process = kernel_.current();
        for (unsigned round = 0; round < plan_.rounds; ++round) {
            if (!programs_[at].stale.empty()) try_stale(programs_[at]);
            const std::size_t files_before = process.fds.size();
            const auto wanted = static_cast<unsigned>(random_.between(1, plan_.handles));
            constexpr unsigned kTriesMax = 5;  // while there is no daemon
            for (unsigned i = 0; i < wanted; ++i)
                for (unsigned tries = 0; tries < kTriesMax && !attach_one(programs_[at]); ++tries)
                    scheduler_.sleep_ns(random_.below(20'000'000));
            if (programs_[at].handles.empty()) {
                scheduler_.sleep_ns(random_.below(20'000'000));
                continue;
            }
            if (random_.percent(plan_.event_percent)) {
                int fd = -1;
                const Handle handle = programs_[at].handles.front();
                const int error = numacre_event_fd(handle.pool, &fd);
                if (error != 0 && error != -ECONNREFUSED && error != -EUSERS && error != -ETIMEDOUT)
                    fail("numacre_event_fd: %d (%s)", error, numacre_last_error());
                check_seat(handle);
            }
            programs_[at].may_end = false;
            const auto threads = static_cast<unsigned>(random_.between(0, plan_.threads));
            for (unsigned i = 0; i < threads; ++i) {
                ++programs_[at].working;
                ++programs_[at].lingering;
                const auto operations = static_cast<unsigned>(random_.between(0, plan_.operations));
                const bool lingers = random_.one_in(3);
                scheduler_.spawn(process.id, [this, at, operations, lingers] { run_thread(at, operations, lingers); });
            }
            {
                std::vector<HeldBlock> held;
                for (unsigned i = 0; i < plan_.operations; ++i) {
                    operate(programs_[at], held);
                    if (random_.percent(plan_.fork_percent) && random_.one_in(10)) fork_child(at);
                    if (random_.percent(plan_.event_percent) && random_.one_in(10)) {
                        std::uint32_t events = 0;
                        (void)numacre_events(programs_[at].handles.front().pool, &events);
                    }
                    if (random_.percent(plan_.close_from_percent) && random_.one_in(20)) {
                        trace("closes all descriptors");
                        kernel_.close_from_and_reopen();
                        programs_[at].has_closed_all = true;
                    }
                }
            }
            if (random_.percent(plan_.exec_percent) && execs_ < plan_.execs) {
                ++execs_;
                trace("replaces its program");
                step();
                programs_[at].handles.clear();
                programs_[at].stale.clear();
                programs_[at].working = programs_[at].lingering = 0;
                kernel_.exec();
                if (random_.one_in(3)) break;
                continue;
            }
            if (random_.percent(plan_.leave_percent)) break;  // without a word
            while (programs_[at].working != 0) scheduler_.wait_on(key_of(&programs_[at]), Kernel::kForEver);
            if (programs_[at].lingering == 0) check_thread_slots(programs_[at]);
            detach_all(programs_[at]);
            programs_[at].may_end = true;
            scheduler_.wake_all(key_of(&programs_[at]));
            while (programs_[at].lingering != 0) scheduler_.wait_on(key_of(&programs_[at]), Kernel::kForEver);
            check_nothing_left(programs_[at], files_before);
        }
        end_thread();
        if (programs_[at].handles.empty()) live_on(at);
        kernel_.exit_process();
    }

    // What the process had is free again although it has not ended: that is looked at while it lives.
    void live_on(std::size_t at) {
        // Where /proc does not show it, the daemon cannot tell a program that has been replaced, nor on kernels before
        // 6.9 a process from the next that has its number: daemon/README.md, Limits.
        const bool is_shown =
            plan_.kernel.hidden_percent == 0 && plan_.kernel.emfile_every == 0 && !plan_.kernel.has_proc_of_strangers;
        if (!is_shown && (plan_.kernel.version != KernelPlan::Version::with_pidfs || kernel_.current().program != 0))
            return;
        if (random_.one_in(2)) return;
        trace("has nothing, and lives on");
        programs_[at].has_nothing = true;
        scheduler_.wake_all(key_of(this));
        while (!is_over_) scheduler_.wait_on(key_of(&is_over_), Kernel::kForEver);
    }

    // --- who speaks to the attach socket without the library
    // ------------------------------------------------------------

    void run_stranger(std::size_t at) {
        const int fd = os::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        const timeval patience{5, 0};
        os::setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
        sockaddr_un address{};
        std::snprintf(address.sun_path, sizeof address.sun_path, "/run/numacre/attach.sock");
        if (fd >= 0 && os::connect(fd, reinterpret_cast<const sockaddr *>(&address), sizeof address) == 0) {
            switch (random_.below(5)) {
                case 0:
                    trace("says nothing");
                    scheduler_.sleep_ns(random_.below(12'000'000'000));
                    break;
                case 1: {
                    trace("sends nonsense");
                    char nonsense[300] = {1};
                    for (unsigned i = 0; i < 3; ++i)
                        (void)os::send(fd, nonsense, random_.between(1, sizeof nonsense), 0);
                    (void)os::recv(fd, nonsense, sizeof nonsense, 0);
                    break;
                }
                case 2:
                    trace("sends a descriptor");
                    send_with_descriptor(fd);
                    break;
                case 3:
                    observe(fd);
                    break;
                default: {
                    // Its seat is given up, although it lives.
                    trace("attaches and does not come");
                    const wire::AttachRequest request = request_for(wire::Tier::trusted);
                    (void)os::send(fd, &request, sizeof request, 0);
                    if (random_.one_in(2)) scheduler_.sleep_ns(random_.below(1'000'000'000));
                }
            }
        }
        os::close(fd);
        live_on(at);
        kernel_.exit_process();
    }
    static wire::AttachRequest request_for(wire::Tier tier) {
        wire::AttachRequest request;
        request.tier = tier;
        std::memcpy(request.pool_name.data(), "default", sizeof "default");
        return request;
    }
    static void send_with_descriptor(int fd) {
        wire::AttachRequest request = request_for(wire::Tier::trusted);
        iovec part{&request, sizeof request};
        alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
        msghdr message{};
        message.msg_iov = &part;
        message.msg_iovlen = 1;
        message.msg_control = control;
        message.msg_controllen = sizeof control;
        cmsghdr *const rights = CMSG_FIRSTHDR(&message);
        rights->cmsg_level = SOL_SOCKET;
        rights->cmsg_type = SCM_RIGHTS;
        rights->cmsg_len = CMSG_LEN(sizeof(int));
        std::memcpy(CMSG_DATA(rights), &fd, sizeof fd);
        (void)os::sendmsg(fd, &message, 0);
        (void)os::recv(fd, &request, sizeof request, 0);
    }
    // Reads, until it goes in one of several ways. What it gets it can read, and not write.
    void observe(int fd) {
        trace("observes");
        const wire::AttachRequest request = request_for(wire::Tier::observer);
        if (os::send(fd, &request, sizeof request, 0) < 0) return;
        wire::AttachReply reply;
        int fds[wire::kMaxFds];
        const client::Received received =
            client::receive_by(client::Deadline{5}, fd, &reply, sizeof reply, fds, wire::kMaxFds);
        if (received.bytes != static_cast<ssize_t>(sizeof reply) || reply.error != 0 || received.fds == 0) return;
        if (os::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fds[0], 0) != MAP_FAILED)
            fail("an observer can write to the pool");
        void *const place = os::mmap(nullptr, reply.pool_region_bytes, PROT_READ, MAP_SHARED, fds[0], 0);
        scheduler_.sleep_ns(random_.below(5'000'000'000));
        if (place != MAP_FAILED) {
            const Pool pool = Pool::at(place, reply.process_slots, reply.thread_slots);
            (void)pool.processes[reply.process_slot].state.load();
        }
        if (random_.one_in(2)) {
            const wire::DetachRequest detach;
            wire::DetachReply over;
            if (os::send(fd, &detach, sizeof detach, 0) > 0) (void)os::recv(fd, &over, sizeof over, 0);
        }
    }

    // Of what the library had for handles that are detached.
    void check_nothing_left(const Program &program, std::size_t files_before) {
        const Process &process = kernel_.current();
        if (!program.has_closed_all && process.fds.size() != files_before)
            fail("process %d has %zu descriptors after it has detached, %zu before it attached", process.id,
                 process.fds.size(), files_before);
        if (!process.mappings.empty())
            fail("process %d has %zu maps after it has detached", process.id, process.mappings.size());
        // The page that a child finds empty, the first thread's table, and where others find that.
        constexpr std::size_t kUsual = 3;
        if (!program.is_child && process.arena.live.size() > kUsual)
            fail("process %d has %zu pieces of memory after it has detached", process.id, process.arena.live.size());
    }

    const SystemPlan plan_;
    Scheduler scheduler_;
    Kernel kernel_;
    Random random_;
    Kept kept_;
    DaemonFace face_;
    int director_ = -1;
    int daemon_ = -1;
    bool is_stopping_ = false;
    bool is_reserving_ = false;
    bool is_ending_ = false;
    bool is_over_ = false;
    int jobs_running_ = 0;
    std::vector<Program> programs_;
    std::vector<Session> sessions_;
    std::vector<std::vector<Owner>> owners_;  // by numa node, frame
    std::vector<Token> tokens_;
    std::uint64_t last_serial_ = 0;
    std::uint64_t frames_ = 0;
    std::size_t next_death_ = 0, next_daemon_death_ = 0;
    unsigned call_deaths_left_ = 0, call_daemon_deaths_left_ = 0;
    unsigned forks_ = 0, execs_ = 0;
    std::string failure_;
    SystemResult result_;
};

SystemWorld *SystemWorld::the_world = nullptr;

}  // namespace

SystemResult run_system(const SystemPlan &plan, bool tracing) {
    set_tracing(tracing);
    SystemWorld world(plan);
    return world.run();
}

}  // namespace numacre::simulation
