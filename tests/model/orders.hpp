// Is each memory order needed? The part that the tests of the allocator's and of the channels' orders share: names of
// weakenings that survive edits, and the check that each is noticed by some model or listed with a reason.
// NUMACRE_MODEL_LONG=1 in the environment also looks whether a list is too long. NUMACRE_ORDERS_ONLY=TEXT weakens only
// accesses whose name has this text, NUMACRE_ORDERS_MODELS=TEXT looks at no model but those whose name begins so: for a
// look at new accesses.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "explorer.hpp"

namespace numacre::model {

inline bool long_runs() {
    const char *const wanted = std::getenv("NUMACRE_MODEL_LONG");
    return wanted != nullptr && wanted[0] == '1';
}

struct Named {
    // "claim.hpp climb: load seq_cst -> acquire"; of several alike in a function the second ends in "(2)"
    std::string name;
    Weakening weakening;
};

inline bool is_in(const Site &site, std::string_view folder) {
    return site.file.find(folder) != std::string::npos;
}

// is_wanted(Site)
template <class IsWanted>
std::vector<Named> weakenings_of(const std::vector<Site> &sites, const IsWanted &is_wanted) {
    std::vector<Named> all;
    std::map<std::string, unsigned> alike;
    for (const Site &site : sites) {
        if (!is_wanted(site)) continue;
        for (const Weakening &weakening : one_step_weaker(site)) {
            std::string name = site.file.substr(site.file.find_last_of('/') + 1) + " " + site.function + ": " +
                               to_text(site.access) + " " +
                               to_text(weakening.failure ? site.failure_order : site.order) +
                               (weakening.failure ? " on failure" : "") + " -> " + to_text(weakening.to);
            if (const unsigned count = ++alike[name]; count > 1) name += " (" + std::to_string(count) + ")";
            all.push_back({name, weakening});
        }
    }
    return all;
}

inline void sort_and_unite(std::vector<Site> &sites) {
    const auto place = [](const Site &site) { return std::tie(site.file, site.line, site.column); };
    std::sort(sites.begin(), sites.end(), [&place](const Site &a, const Site &b) { return place(a) < place(b); });
    sites.erase(std::unique(sites.begin(), sites.end(),
                            [&place](const Site &a, const Site &b) { return place(a) == place(b); }),
                sites.end());
}

// A model of a channel, or a broadcast, for short runs. TheModel{name, options, setup} runs it.
template <class Setup>
struct ShortModel {
    const char *name;
    Setup setup;
    unsigned kills_max = 0;
    unsigned restarts_max = 0;
};

// The accesses that the models make, in a small part of the search.
template <class TheModel, class Setup>
std::vector<Site> sites_of(const std::vector<ShortModel<Setup>> &models) {
    Options options;
    options.collect_sites = true;
    options.preemptions_max = 1;
    options.states_max = 20'000;
    options.print = false;
    std::vector<Site> sites;
    for (const ShortModel<Setup> &model : models) {
        options.kills_max = model.kills_max;
        options.restarts_max = model.restarts_max;
        TheModel run(model.name, options, model.setup);
        run.run();
        const std::vector<Site> more = run.explorer.sites();
        sites.insert(sites.end(), more.begin(), more.end());
    }
    sort_and_unite(sites);
    return sites;
}

// Which of the models notices in a short run, so that a small part of the search has to suffice; empty: none.
template <class TheModel, class Setup>
std::string noticed_by_short_runs(const std::vector<ShortModel<Setup>> &models, const Weakening &weakening,
                                  int preemptions_max) {
    Options options;
    options.memory = MemoryMode::weak;
    options.weaken = weakening;
    options.shorten_transitions_max = 0;
    options.states_max = 20'000;
    options.preemptions_max = preemptions_max;
    options.print = false;
    for (const ShortModel<Setup> &model : models) {
        options.kills_max = model.kills_max;
        options.restarts_max = model.restarts_max;
        if (!TheModel(model.name, options, model.setup).run().clean()) return model.name;
    }
    return {};
}

struct Unnoticed {
    std::string_view name;
    const char *why;
};

// noticed_by(Weakening): the name of the model that notices; empty: none.
template <class NoticedBy>
void expect_noticed_or_listed(const std::vector<Named> &all, std::span<const Unnoticed> listed,
                              const NoticedBy &noticed_by) {
    const char *const only = std::getenv("NUMACRE_ORDERS_ONLY");
    for (const Named &named : all) {
        const auto entry = std::find_if(listed.begin(), listed.end(),
                                        [&named](const Unnoticed &one) { return one.name == named.name; });
        const char *const why = entry == listed.end() ? nullptr : entry->why;
        if (why != nullptr && !long_runs()) continue;
        if (only != nullptr && named.name.find(only) == std::string::npos) continue;
        const std::string model = noticed_by(named.weakening);
        if (why == nullptr) {
            EXPECT_NE(model, "") << "no model notices  {\"" << named.name << "\", ...},  at line "
                                 << named.weakening.line;
        } else {
            EXPECT_EQ(model, "") << "is noticed by a model, so it is no exception: " << named.name;
        }
        if (long_runs())
            std::printf("%-75s %s\n", named.name.c_str(), model.empty() ? (why ? why : "-") : model.c_str());
    }
    if (only != nullptr || std::getenv("NUMACRE_ORDERS_MODELS") != nullptr) return;  // not all accesses were met
    for (const Unnoticed &entry : listed) {
        const bool there =
            std::any_of(all.begin(), all.end(), [&entry](const Named &named) { return named.name == entry.name; });
        EXPECT_TRUE(there) << "no such access any more: " << entry.name;
    }
}

}  // namespace numacre::model
