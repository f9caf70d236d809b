#include "reload.hpp"

#include <algorithm>
#include <exception>
#include <string>

#include "os/log.hpp"

namespace numacre::daemon {

void Reload::reconcile_at_start() {
    worker_.post([this] {
        for (const ConfiguredPool &pool : running_.pools)
            if (!is_ending_) daemon_.reconcile(pool, pool.named_keys);
    });
}

void Reload::again() {
    if (is_due_.exchange(true)) return;
    worker_.post([this] {
        is_due_ = false;  // a signal from here on wants another reading
        if (is_ending_) return;
        try {
            read_and_apply();
        } catch (const std::exception &failure) {
            log::error("the configuration has not been read to its end",
                       {{"reason", failure.what()}, {"remedy", "free memory, and send SIGHUP again"}});
        }
    });
}

void Reload::read_and_apply() {
    const auto config = load_();
    if (!config) {
        std::string reason = config.error().text;
        while (reason.ends_with('\n')) reason.pop_back();
        log::error("the configuration is refused: nothing is changed",
                   {{"reason", reason}, {"remedy", "mend it, check it with --check-config, and send SIGHUP again"}});
        return;
    }
    apply(*config);
    log::info("configuration read again",
              {{"config", config->file.empty() ? "none" : config->file}, {"pools", config->pools.size()}});
}

void Reload::apply(const Config &config) {
    say_what_waits_for_a_restart(config);
    // Missing pools first: a client can make the daemon wait for the pools that are there.
    for (const ConfiguredPool &pool : config.pools) {
        if (is_ending_) return;
        if (daemon_.has_pool(pool.name)) continue;
        const auto created = daemon_.create_pool(pool);
        if (created || created.error().code == Errc::already_exists) continue;  // made by somebody meanwhile
        log::error(
            "a configured pool is not there",
            {{"pool", pool.name}, {"reason", created.error().message}, {"remedy", "mend it, and send SIGHUP again"}});
    }
    for (const ConfiguredPool &pool : config.pools)
        if (!is_ending_) daemon_.reconcile(pool, pool.named_keys);
    for (const std::string &name : daemon_.pool_names())
        if (std::ranges::find(config.pools, name, &ConfiguredPool::name) == config.pools.end())
            log::info("a pool is not in the configuration: it stays",
                      {{"pool", name}, {"remedy", "to end it: numacre delete " + name}});
}

void Reload::say_what_waits_for_a_restart(const Config &config) const {
    const auto wanted = daemon_settings(config), running = daemon_settings(running_);
    for (std::size_t i = 0; i < wanted.size(); ++i)
        if (wanted[i].value != running[i].value)
            log::warn("a key of the daemon has changed: it takes effect at the next start",
                      {{"key", wanted[i].key}, {"running", running[i].value}, {"configured", wanted[i].value}});
}

}  // namespace numacre::daemon
