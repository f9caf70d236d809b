// A run of the second stage: the director, the clients and the daemon, whom the scheduler moves; deaths, and who has
// failed.
#include <algorithm>
#include <string>
#include <vector>

#include "director.hpp"
#include "end_checks.hpp"

namespace numacre::simulation {
namespace {

class SystemWorld final : public World {
public:
    explicit SystemWorld(const SystemPlan &plan) : run_(*this, plan) {
        the_world = this;
        Kernel::on_failure = [](const std::string &what) { the_world->failed(what); };
        run_.kernel.on_death = [this](const Process &process) { on_death(process); };
    }
    ~SystemWorld() override { the_world = nullptr; }

    SystemResult run() {
        run_.scheduler.spawn(run_.kernel.start_process("director", 0, false), [this] {
            director_.direct();
            end_checks_.finish();
            run_.scheduler.stop();
        });
        run_.scheduler.run();
        if (run_.scheduler.cut_short() && failure_.empty())
            failure_ = at_step() + "somebody never ends: " + who_is_left();
        run_.result.failure = failure_;
        run_.result.steps = steps_done();
        daemon_.kept().files.clear();
        return run_.result;
    }

    bool on_idle() override {
        if (!failure_.empty()) return false;
        const std::uint64_t next = run_.scheduler.earliest_wake_ns();
        const bool somebody_sleeps = next < Kernel::kForEver;
        if ((!somebody_sleeps || run_.random.percent(70)) && run_.scheduler.resume_earliest_paused()) return true;
        if (somebody_sleeps) return run_.scheduler.wake_earliest();
        failed("nobody can go on: " + who_is_left());
        return false;
    }
    std::uint64_t on_fault_due(std::uint64_t step) override {
        const std::vector<std::uint64_t> &deaths = run_.plan.deaths, &daemon_deaths = run_.plan.daemon_deaths;
        while (next_death_ < deaths.size() && deaths[next_death_] <= step) {
            ++next_death_;
            std::vector<int> living;
            for (const Program &program : run_.programs)
                if (run_.kernel.process(program.process).is_alive) living.push_back(program.process);
            if (!living.empty() && !run_.is_ending) run_.kernel.kill(living[run_.random.below(living.size())]);
        }
        while (next_daemon_death_ < daemon_deaths.size() && daemon_deaths[next_daemon_death_] <= step) {
            ++next_daemon_death_;
            if (daemon_.lives() && !run_.is_ending) daemon_.kill();
        }
        std::uint64_t next = ~std::uint64_t{0};
        if (next_death_ < deaths.size()) next = deaths[next_death_];
        if (next_daemon_death_ < daemon_deaths.size()) next = std::min(next, daemon_deaths[next_daemon_death_]);
        return next;
    }
    bool on_point_fault(Random &random) override {
        const Process &process = run_.kernel.current();
        const bool is_mortal = process.is_client ? run_.call_deaths_left != 0
                                                 : process.id == daemon_.process() && run_.call_daemon_deaths_left != 0;
        if (run_.is_ending || !is_mortal || random.one_in(4)) return false;
        trace("dies at a named point");
        run_.kernel.kill(process.id);
        return true;
    }
    void on_store(const void *, std::uint64_t, std::uint64_t) override {}
    void on_look(const void *) override {}
    void on_change(const void *, std::uint64_t, std::uint64_t) override {}
    void on_access(const void *word) override {
        const File *const file = run_.kernel.file_at(run_.kernel.current().id, word);
        // The ledgers are the daemon's alone: no client ever gets them.
        if (file == nullptr || file->name.ends_with(":ledger") || file->name == "numacre:machine") return;
        run_.kernel.loop_watch.touches_shared_memory(run_.scheduler.current(), file->name);
    }

private:
    static SystemWorld *the_world;

    static std::string at_step() { return "step " + std::to_string(steps_done()) + ": "; }
    void failed(const std::string &what) {
        if (failure_.empty()) {
            failure_ = at_step() + what;
            trace("FAILED %s", failure_.c_str());
        }
        run_.scheduler.stop();
    }
    std::string who_is_left() {
        std::string text;
        for (const Fiber &fiber : run_.scheduler.fibers()) {
            if (fiber.state == FiberState::ended || fiber.state == FiberState::dead) continue;
            text += " " + run_.kernel.process(fiber.process).comm + "/" + std::to_string(fiber.process) + "(" +
                    std::to_string(static_cast<int>(fiber.state)) + ")";
        }
        return text;
    }
    void on_death(const Process &process) {
        trace("process %d (%s, pid %u) ends", process.id, process.comm.c_str(), process.pid);
        if (process.is_client) {
            ++run_.result.deaths;
            if (run_.call_deaths_left == 0 || --run_.call_deaths_left == 0) run_.kernel.plan().kill_client_every = 0;
        } else if (process.id == daemon_.process()) {
            daemon_.note_death();
            promises_.note_daemon_death();
            if (run_.call_daemon_deaths_left == 0 || --run_.call_daemon_deaths_left == 0)
                run_.kernel.plan().kill_daemon_every = 0;
        }
        run_.tell_director();
    }

    Run run_;
    DaemonControl daemon_{run_};
    Sessions sessions_{run_};
    Promises promises_{run_, sessions_, daemon_};
    Blocks blocks_{run_.plan, sessions_};
    ThreadWork work_{run_, sessions_, promises_, blocks_};
    ClientLife life_{run_, sessions_, work_, daemon_};
    Director director_{run_, daemon_, promises_, life_};
    EndChecks end_checks_{run_, daemon_};
    std::size_t next_death_ = 0, next_daemon_death_ = 0;
    std::string failure_;
};

SystemWorld *SystemWorld::the_world = nullptr;

}  // namespace

SystemResult run_system(const SystemPlan &plan, bool tracing) {
    set_tracing(tracing);
    SystemWorld world(plan);
    return world.run();
}

}  // namespace numacre::simulation
