#include "run.hpp"

namespace numacre::simulation {
namespace {

constexpr std::size_t kProgramsMax = 200;  // programs are named by their addresses: they never move

}  // namespace

Run::Run(World &world, const SystemPlan &system_plan)
    : plan(system_plan),
      scheduler(world, plan.schedule),
      kernel(scheduler, plan.kernel, plan.seed),
      random(plan.seed, 201),
      call_deaths_left(plan.call_deaths),
      call_daemon_deaths_left(plan.call_daemon_deaths) {
    programs.reserve(kProgramsMax);
}

void Run::rest(std::uint64_t nanoseconds) {
    step();
    scheduler.wait_on(key_of(this), nanoseconds + 1);
}

}  // namespace numacre::simulation
