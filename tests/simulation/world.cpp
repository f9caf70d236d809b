// A machine with a pool, client processes and a daemon, whom the scheduler moves: deaths, and what follows when all
// sleep. See README.md.
#include <algorithm>
#include <cstdio>

#include "daemon_steps.hpp"
#include "operations.hpp"
#include "rest_checks.hpp"

namespace numacre::simulation {
namespace {

class Machine final : public World {
public:
    Machine(const Plan &plan, bool trace)
        : plan_(plan), trace_(trace), scheduler_(*this, plan.schedule), verdict_(scheduler_, trace) {
        processes_.live = [this](Client &client) { operations_.live(client); };
        memory_.open(plan_);
        forget_clients();
    }

    Result run() {
        for (unsigned seat = 0; seat < plan_.processes; ++seat) processes_.start(seat);
        daemon_.start();
        scheduler_.run();
        Result result;
        result.steps = door.steps;
        if (scheduler_.cut_short() && verdict_.is_clean()) {
            std::string states;
            for (const Fiber &fiber : scheduler_.fibers())
                states +=
                    " " + std::to_string(static_cast<int>(fiber.state)) + "@" + std::to_string(fiber.paused_until);
            verdict_.record("somebody never ends:" + states);
        }
        if (verdict_.is_clean()) checks_.check_at_end(deaths() == 0);
        result.deaths = deaths();
        for (const Node &view : memory_.nodes)
            result.hand_offs += fold_counters(view, memory_.pool.thread_slots).hand_offs;
        if (trace_)
            for (const Client &client : processes_.clients())
                std::printf("process %d thread %u: %zu held\n", client.instance->number, client.number,
                            client.held.size());
        result.failure = verdict_.failure();
        result.operations = operations_.done();
        result.refusals = operations_.refusals();
        return result;
    }

    bool on_idle() override {
        if (!verdict_.is_clean()) return false;
        if (scheduler_.resume_earliest_paused()) return true;
        if (processes_.somebody_dead() == nullptr && !daemon_.is_restarting()) checks_.check_wake_ups();
        if (!verdict_.is_clean()) return false;
        bool client_parked = false, sleeping = false, all_ended = true;
        for (const Fiber &fiber : scheduler_.fibers()) {
            if (fiber.process != kDaemon && fiber.state == FiberState::parked) client_parked = true;
            if (fiber.process != kDaemon && fiber.state != FiberState::ended && fiber.state != FiberState::dead)
                all_ended = false;
            if (fiber.state == FiberState::sleeping) sleeping = true;
        }
        if (sleeping) return scheduler_.wake_earliest();
        if (all_ended) {
            if (daemon_.has_ended()) return false;
            scheduler_.unpark_all();
            return true;
        }
        if (!client_parked) return false;  // nobody is left but the daemon, which has ended: a mistake of ours
        checks_.check_when_quiet(deaths() == 0);
        if (!verdict_.is_clean()) return false;
        processes_.begin_round();
        daemon_.begin_round();
        scheduler_.unpark_all();
        return true;
    }

    std::uint64_t on_fault_due(std::uint64_t step) override {
        while (next_death_ < plan_.deaths.size() && plan_.deaths[next_death_] <= step) {
            ++next_death_;
            std::vector<Instance *> living;
            for (Instance &instance : processes_.instances())
                if (instance.alive && !instance.has_ended()) living.push_back(&instance);
            if (!living.empty()) die(*living[scheduler_.random().below(living.size())]);
        }
        while (next_daemon_death_ < plan_.daemon_deaths.size() && plan_.daemon_deaths[next_daemon_death_] <= step) {
            ++next_daemon_death_;
            if (!daemon_.has_ended()) daemon_.die();
        }
        std::uint64_t next = ~std::uint64_t{0};
        if (next_death_ < plan_.deaths.size()) next = plan_.deaths[next_death_];
        if (next_daemon_death_ < plan_.daemon_deaths.size())
            next = std::min(next, plan_.daemon_deaths[next_daemon_death_]);
        return next;
    }

    bool on_point_fault(Random &random) override {
        const int process = scheduler_.fibers()[static_cast<std::size_t>(scheduler_.current())].process;
        if (point_deaths_ >= plan_.point_deaths || !random.one_in(3)) return false;
        ++point_deaths_;
        if (process == kDaemon)
            daemon_.die();
        else
            die(processes_.instances()[static_cast<std::size_t>(process - 1)]);
        return true;
    }

    void on_look(const void *word) override { wishes_.before_look(word); }
    void on_change(const void *word, std::uint64_t before, std::uint64_t after) override {
        history_.note_change(word, before, after);
    }
    void on_store(const void *word, std::uint64_t before, std::uint64_t after) override {
        history_.note_store(word, before, after);
    }

private:
    void die(Instance &instance) {
        for (Client *const client : instance.clients) wishes_.finish(*client);
        verdict_.say("process %d dies", instance.number);
        instance.alive = false;
        scheduler_.kill(instance.number);
        tokens_.note_death(instance);
        daemon_.unpark();
    }
    std::uint64_t deaths() const { return processes_.deaths() + daemon_.deaths(); }

    const Plan plan_;
    const bool trace_;
    Scheduler scheduler_;
    Verdict verdict_;
    PoolMemory memory_{plan_};
    Processes processes_{plan_, memory_, scheduler_};
    Wishes wishes_{plan_, memory_, processes_, scheduler_};
    TreeHistory history_{memory_, wishes_, verdict_};
    Shadow shadow_{memory_, history_, verdict_};
    Tokens tokens_{memory_, shadow_, verdict_};
    Operations operations_{plan_, memory_, processes_, wishes_, history_, shadow_, tokens_, scheduler_, verdict_};
    DaemonSteps daemon_{plan_, memory_, processes_, shadow_, tokens_, scheduler_, verdict_};
    RestChecks checks_{plan_, memory_, processes_, history_, shadow_, verdict_};
    std::size_t next_death_ = 0, next_daemon_death_ = 0;
    unsigned point_deaths_ = 0;
};

}  // namespace

Result run(const Plan &plan, bool trace) {
    Machine machine(plan, trace);
    return machine.run();
}

}  // namespace numacre::simulation
