#include "sites.hpp"

#include <algorithm>
#include <string_view>
#include <tuple>

namespace numacre::model {

const char *to_text(Access kind) {
    switch (kind) {
        case Access::load:
            return "load";
        case Access::store:
            return "store";
        case Access::exchange:
            return "exchange";
        case Access::compare_exchange:
            return "cas";
        case Access::fetch_add:
            return "fetch_add";
        case Access::fetch_sub:
            return "fetch_sub";
        case Access::fetch_and:
            return "fetch_and";
        case Access::fetch_or:
            return "fetch_or";
        case Access::barrier:
            return "barrier";
    }
    return "?";
}

const char *to_text(std::memory_order order) {
    switch (order) {
        case std::memory_order_relaxed:
            return "relaxed";
        case std::memory_order_consume:
            return "consume";
        case std::memory_order_acquire:
            return "acquire";
        case std::memory_order_release:
            return "release";
        case std::memory_order_acq_rel:
            return "acq_rel";
        case std::memory_order_seq_cst:
            return "seq_cst";
    }
    return "?";
}

std::string to_text(const Site &site) {
    std::string text = site.file.substr(site.file.find_last_of('/') + 1) + ":" + std::to_string(site.line) + " " +
                       site.function + ": " + to_text(site.access) + " " + to_text(site.order);
    if (site.access == Access::compare_exchange) text += std::string("/") + to_text(site.failure_order);
    return text;
}

std::vector<Weakening> one_step_weaker(const Site &site) {
    std::vector<Weakening> all;
    const auto add = [&](std::memory_order to, bool failure) {
        all.push_back({site.file, site.line, site.column, failure, to});
    };
    const bool is_load = site.access == Access::load;
    const bool is_store = site.access == Access::store;
    switch (site.order) {
        case std::memory_order_seq_cst:
            add(is_load    ? std::memory_order_acquire
                : is_store ? std::memory_order_release
                           : std::memory_order_acq_rel,
                false);
            break;
        case std::memory_order_acq_rel:
            add(std::memory_order_acquire, false);
            add(std::memory_order_release, false);
            break;
        case std::memory_order_acquire:
        case std::memory_order_consume:
        case std::memory_order_release:
            add(std::memory_order_relaxed, false);
            break;
        case std::memory_order_relaxed:
            break;
    }
    if (site.access != Access::compare_exchange) return all;
    if (site.failure_order == std::memory_order_seq_cst) add(std::memory_order_acquire, true);
    if (site.failure_order == std::memory_order_acquire) add(std::memory_order_relaxed, true);
    return all;
}

bool is_weakened(const Request &request, const Weakening &weaken) {
    if (weaken.line == 0 || request.where.line() != weaken.line) return false;
    if (weaken.column != 0 && request.where.column() != weaken.column) return false;
    return std::string_view(request.where.file_name()).ends_with(weaken.file);
}

Request with_weakening(const Request &request, const Weakening &weaken) {
    Request ordered = request;
    if (is_weakened(request, weaken)) (weaken.failure ? ordered.failure_order : ordered.order) = weaken.to;
    return ordered;
}

void SiteList::note(const Request &request) {
    for (const Request &known : requests_)
        if (known.where.line() == request.where.line() && known.where.column() == request.where.column() &&
            known.kind == request.kind && known.where.file_name() == request.where.file_name())
            return;
    requests_.push_back(request);
}

std::vector<Site> SiteList::all() const {
    std::vector<Site> sites;
    for (const Request &request : requests_) {
        // "Errc numacre::Buddy<Env>::free(...) [with ...]": the name before the parameters.
        std::string function = request.where.function_name();
        constexpr std::string_view kNameless = "(anonymous namespace)";  // clang's
        if (const std::size_t at = function.find(kNameless); at != std::string::npos)
            function.erase(at, kNameless.size());
        function.resize(std::min(function.find('('), function.size()));
        function.erase(0, function.find_last_of(" :*&") + 1);
        sites.push_back({request.where.file_name(), function, request.where.line(), request.where.column(),
                         request.kind, request.order, request.failure_order});
    }
    std::sort(sites.begin(), sites.end(), [](const Site &a, const Site &b) {
        return std::tie(a.file, a.line, a.column) < std::tie(b.file, b.line, b.column);
    });
    // A header's name may be there once for each translation unit.
    sites.erase(std::unique(sites.begin(), sites.end(),
                            [](const Site &a, const Site &b) {
                                return std::tie(a.file, a.line, a.column, a.access) ==
                                       std::tie(b.file, b.line, b.column, b.access);
                            }),
                sites.end());
    return sites;
}

}  // namespace numacre::model
