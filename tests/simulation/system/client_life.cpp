#include "client_life.hpp"

#include <cerrno>

#include "stranger.hpp"

namespace numacre::simulation {

void ClientLife::run_client(std::size_t at) {
    const Process &process = run_.kernel.current();
    Program &program = run_.programs[at];
    while (!program.pins.empty()) unpin(program);  // a forked child's, or it would hold them until the end
    for (unsigned round = 0; round < run_.plan.rounds; ++round) {
        if (!program.stale.empty()) try_stale(program);
        const std::size_t files_before = process.fds.size();
        const auto wanted = static_cast<unsigned>(run_.random.between(1, run_.plan.handles));
        constexpr unsigned kTriesMax = 5;  // while there is no daemon
        for (unsigned i = 0; i < wanted; ++i)
            for (unsigned tries = 0; tries < kTriesMax && !attach_one(program); ++tries)
                run_.scheduler.sleep_ns(run_.random.below(20'000'000));
        if (program.handles.empty()) {
            run_.scheduler.sleep_ns(run_.random.below(20'000'000));
            continue;
        }
        if (run_.random.percent(run_.plan.event_percent)) open_events(program.handles.front());
        program.may_end = false;
        start_threads(at);
        work_in_first_thread(at);
        if (run_.random.percent(run_.plan.exec_percent) && execs_ < run_.plan.execs) {
            replace_program(program);
            if (run_.random.one_in(3)) break;
            continue;
        }
        if (run_.random.percent(run_.plan.leave_percent)) break;  // without a word
        while (program.working != 0) run_.scheduler.wait_on(key_of(&program), Kernel::kForEver);
        if (program.lingering == 0) check_thread_slots(program);
        while (!program.pins.empty()) unpin(program);
        detach_all(program);
        program.may_end = true;
        run_.scheduler.wake_all(key_of(&program));
        while (program.lingering != 0) run_.scheduler.wait_on(key_of(&program), Kernel::kForEver);
        check_nothing_left(program, files_before);
    }
    end_thread();
    if (program.handles.empty()) live_on(program);
    run_.kernel.exit_process();
}

void ClientLife::open_events(const Handle &handle) {
    int fd = -1;
    const int error = numacre_event_fd(handle.pool, &fd);
    if (error != 0 && error != -ECONNREFUSED && error != -EUSERS && error != -ETIMEDOUT)
        fail("numacre_event_fd: %d (%s)", error, numacre_last_error());
    sessions_.check_seat(handle);
}

void ClientLife::pin_or_unpin(Program &program) {
    if (!program.pins.empty() && run_.random.one_in(3)) return unpin(program);
    const Handle &handle = program.handles[run_.random.below(program.handles.size())];
    void *base = nullptr;
    std::size_t size = 0;
    if (numacre_region(handle.pool, static_cast<int>(run_.random.below(run_.plan.daemon.numa_nodes)), &base, &size) !=
        0)
        fail("numacre_region: %s", numacre_last_error());
    const std::size_t first = run_.random.below(size);
    const std::size_t bytes = run_.random.between(1, run_.random.one_in(4) ? size - first : 1);
    const std::byte *const range = static_cast<std::byte *>(base) + first;
    int pin = -1;
    const int error = numacre_pin(handle.pool, range, bytes, &pin);
    trace("pins %zu bytes from %zu on: %d (%d)", bytes, first, pin, error);
    if (error == 0) {
        program.pins.push_back({handle.pool, pin});
        const File *const file = run_.kernel.file_at(run_.kernel.current().id, base);
        if (file == nullptr) fail("the region is not mapped");
        run_.kernel.pinned().push_back({run_.kernel.file(pin), file->inode, first, bytes});
        ++run_.result.pins;
        return;
    }
    switch (-error) {
        case EINVAL:  // a part is offline
        case EAGAIN:
        case ECONNREFUSED:
        case EUSERS:
        case EMLINK:
        case ENOMEM:
        case ETIMEDOUT:
        case ENOENT:
            break;
        default:
            fail("process %d cannot pin: %d (%s)", run_.kernel.current().id, error, numacre_last_error());
    }
}

void ClientLife::unpin(Program &program) {
    const HeldPin pin = program.pins.back();
    program.pins.pop_back();
    const int error = numacre_unpin(pin.pool, pin.descriptor);
    if (error != (program.has_closed_all ? -EINVAL : 0) && !(program.has_closed_all && error == 0))
        fail("numacre_unpin of descriptor %d: %d (%s)", pin.descriptor, error, numacre_last_error());
}

void ClientLife::start_threads(std::size_t at) {
    Program &program = run_.programs[at];
    const auto threads = static_cast<unsigned>(run_.random.between(0, run_.plan.threads));
    for (unsigned i = 0; i < threads; ++i) {
        ++program.working;
        ++program.lingering;
        const auto operations = static_cast<unsigned>(run_.random.between(0, run_.plan.operations));
        const bool lingers = run_.random.one_in(3);
        run_.scheduler.spawn(program.process, [this, at, operations, lingers] { run_thread(at, operations, lingers); });
    }
}

void ClientLife::work_in_first_thread(std::size_t at) {
    Program &program = run_.programs[at];
    std::vector<HeldBlock> held;
    for (unsigned i = 0; i < run_.plan.operations; ++i) {
        work_.operate(program, held);
        if (run_.random.percent(run_.plan.fork_percent) && run_.random.one_in(10)) fork_child(at);
        if (run_.random.percent(run_.plan.event_percent) && run_.random.one_in(10)) {
            std::uint32_t events = 0;
            (void)numacre_events(program.handles.front().pool, &events);
        }
        if (run_.random.percent(run_.plan.pin_percent) && run_.random.one_in(5)) pin_or_unpin(program);
        if (run_.random.percent(run_.plan.close_from_percent) && run_.random.one_in(20)) {
            trace("closes all descriptors");
            run_.kernel.close_from_and_reopen();
            program.has_closed_all = true;
        }
    }
}

void ClientLife::replace_program(Program &program) {
    ++execs_;
    trace("replaces its program");
    step();
    program.handles.clear();
    program.stale.clear();
    program.pins.clear();
    program.working = program.lingering = 0;
    run_.kernel.exec();
}

void ClientLife::run_stranger(std::size_t at) {
    speak_to_the_daemon(run_);
    live_on(run_.programs[at]);
    run_.kernel.exit_process();
}

bool ClientLife::attach_one(Program &program) {
    ++run_.result.attaches;
    numacre_pool *pool = nullptr;
    Process &process = run_.kernel.current();
    const std::size_t files = process.fds.size();
    const std::size_t maps = process.mappings.size();
    if (run_.random.percent(run_.plan.squeeze_percent))
        process.fd_limit = static_cast<unsigned>(3 + files + run_.random.below(8));
    const int error = numacre_attach("/run/numacre", nullptr, &pool);
    process.fd_limit = 1024;
    if (error == 0) {
        if (run_.plan.is_of_a_group && numacre_join(pool, 1) != 0) fail("numacre_join: %s", numacre_last_error());
        program.handles.push_back({pool, sessions_.add(process, pool)});
        sessions_.check_seat(program.handles.back());
        return true;
    }
    ++run_.result.refusals;
    trace("not attached: %d (%s)", error, numacre_last_error());
    if (run_.plan.is_clean) fail("process %d is refused: %d (%s)", process.id, error, numacre_last_error());
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
        fail("process %d has %zu descriptors after it was refused, %zu before", process.id, process.fds.size(), files);
    if (process.mappings.size() != maps)
        fail("process %d has %zu maps after it was refused, %zu before", process.id, process.mappings.size(), maps);
    return false;
}

void ClientLife::run_thread(std::size_t at, unsigned operations, bool lingers) {
    Program &program = run_.programs[at];
    {
        std::vector<HeldBlock> held;
        for (unsigned i = 0; i < operations; ++i) work_.operate(program, held);
    }
    --program.working;
    run_.scheduler.wake_all(key_of(&program));
    if (lingers)
        while (!program.may_end) run_.scheduler.wait_on(key_of(&program), Kernel::kForEver);
    end_thread();
    --program.lingering;
    run_.scheduler.wake_all(key_of(&program));
}

void ClientLife::end_thread() {
    ThreadLocals &locals = run_.scheduler.fibers()[static_cast<std::size_t>(run_.scheduler.current())].locals;
    void *const value = locals.value;
    locals.value = nullptr;
    if (value != nullptr && run_.kernel.current().at_thread_end != nullptr) run_.kernel.current().at_thread_end(value);
}

void ClientLife::fork_child(std::size_t at) {
    if (forks_ == run_.plan.forks) return;
    ++forks_;
    ++run_.result.forks;
    step();
    ThreadLocals locals;
    save_thread_locals(locals);
    locals.value = run_.scheduler.fibers()[static_cast<std::size_t>(run_.scheduler.current())].locals.value;
    const int child = run_.kernel.fork();
    const bool is_raw = run_.random.one_in(3);
    trace("forks process %d%s", child, is_raw ? ", without telling" : "");
    Program &made = run_.programs.emplace_back();
    made.process = child;
    made.is_child = true;
    made.stale = run_.programs[at].handles;
    made.pins = run_.programs[at].pins;
    made.has_closed_all = run_.programs[at].has_closed_all;
    const int fiber = run_.scheduler.spawn(child, [this, mine = run_.programs.size() - 1, is_raw] {
        if (!is_raw && run_.kernel.current().in_forked_child != nullptr) run_.kernel.current().in_forked_child();
        run_client(mine);
    });
    ThreadLocals &its = run_.scheduler.fibers()[static_cast<std::size_t>(fiber)].locals;
    its = locals;
    its.process = child;
}

// What was its parent's is nobody's here.
void ClientLife::try_stale(Program &program) {
    for (const Handle &handle : program.stale) {
        void *place = nullptr;
        if (const int error = numacre_alloc(handle.pool, 1, &place); error != -ECHILD)
            fail("a forked child allocates by its parent's handle: %d", error);
        if (run_.random.one_in(2)) {
            std::uint32_t events = 0;
            if (const int error = numacre_events(handle.pool, &events); error != -ECHILD)
                fail("a forked child asks for events by its parent's handle: %d", error);
        }
    }
    if (run_.random.one_in(2)) {
        for (const Handle &handle : program.stale) numacre_detach(handle.pool);
        program.stale.clear();
    }
}

void ClientLife::detach_all(Program &program) {
    while (!program.handles.empty()) {
        const Handle handle = program.handles.back();
        program.handles.pop_back();
        sessions_.at(handle.session).is_leaving = true;
        if (run_.random.percent(run_.plan.orphan_percent) && daemon_.lives() && run_.call_daemon_deaths_left != 0 &&
            !run_.is_ending) {
            trace("the daemon dies as a client detaches");
            daemon_.kill();
        }
        trace("%s detaches", sessions_.name_of(handle.session).c_str());
        numacre_detach(handle.pool);
        if (sessions_.is_holding(handle.session))
            fail("%s has detached and still has its frames mapped", sessions_.name_of(handle.session).c_str());
        sessions_.at(handle.session).has_left = true;
    }
}

// What the process had is free again although it has not ended: that is looked at while it lives.
void ClientLife::live_on(Program &program) {
    // Where /proc does not show it, the daemon cannot tell a program that has been replaced, nor on kernels before
    // 6.9 a process from the next that has its number: daemon/README.md, Limits.
    const bool is_shown = run_.plan.kernel.hidden_percent == 0 && run_.plan.kernel.emfile_every == 0 &&
                          !run_.plan.kernel.has_proc_of_strangers;
    if (!is_shown &&
        (run_.plan.kernel.version != KernelPlan::Version::with_pidfs || run_.kernel.current().program != 0))
        return;
    if (run_.random.one_in(2)) return;
    trace("has nothing, and lives on");
    program.has_nothing = true;
    run_.tell_director();
    while (!run_.is_over) run_.scheduler.wait_on(key_of(&run_.is_over), Kernel::kForEver);
}

// Threads that have ended have given back their slots; the first one's may be there.
void ClientLife::check_thread_slots(const Program &program) const {
    for (const Handle &handle : program.handles) {
        unsigned slots = 0;
        for (std::uint32_t thread = 1; thread < handle.pool->view.thread_slots; ++thread) {
            const ThreadOwner owner{handle.pool->view.threads[thread].owner.load()};
            if (owner.in_use() && owner.process() == handle.pool->process) ++slots;
        }
        if (slots > 1) fail("%s has %u thread slots, and one thread", sessions_.name_of(handle.session).c_str(), slots);
    }
}

// Of what the library had for handles that are detached.
void ClientLife::check_nothing_left(const Program &program, std::size_t files_before) const {
    const Process &process = run_.kernel.current();
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

}  // namespace numacre::simulation
