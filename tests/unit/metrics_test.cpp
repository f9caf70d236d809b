// What a scrape returns, in front of a fake pool manager: names, formulas, labels, and the HTTP endpoint.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <prometheus/metric_family.h>
#include <prometheus/text_serializer.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "control/derived.hpp"
#include "fake_pool_manager.hpp"
#include "metrics/collector.hpp"
#include "metrics/metrics_server.hpp"
#include "metrics/names.hpp"
#include "spec/metrics_address.hpp"

namespace numacre::daemon {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

std::string text_of(const std::vector<prometheus::MetricFamily> &families) {
    return prometheus::TextSerializer{}.Serialize(families);
}

class MetricsTest : public ::testing::Test {
protected:
    MetricsTest() {
        pools_.set_pool(golden_pool());
        pools_.set_clients({golden_client()});
        DaemonTotals totals;
        totals.attach_ok = 29;
        totals.attach_refused = 30;
        totals.resize_ok = 31;
        totals.autosize_shrunk = 34;
        totals.resize_partial = 32;
        totals.resize_failed = 33;
        totals.reaped_killed = 34;
        totals.reaped_detached = 35;
        totals.reaped_lost = 36;
        totals.log_messages_dropped = 37;
        pools_.set_totals(totals);
    }

    std::string text() { return text_of(collector_.Collect()); }

    // The sample with exactly these labels; fails the test when there is none or more than one.
    double value(Metric metric, const std::map<std::string, std::string> &labels) {
        unsigned found = 0;
        double result = 0;
        for (const auto &family : collector_.Collect()) {
            if (family.name != metric_row(metric).name) continue;
            for (const auto &sample : family.metric) {
                std::map<std::string, std::string> its_labels;
                for (const auto &label : sample.label) its_labels[label.name] = label.value;
                if (its_labels != labels) continue;
                result = family.type == prometheus::MetricType::Counter ? sample.counter.value : sample.gauge.value;
                ++found;
            }
        }
        EXPECT_EQ(found, 1U) << metric_row(metric).name;
        return result;
    }
    double of_numa_node(Metric metric, const char *node = "0") {
        return value(metric, {{"pool", "default"}, {"node", node}});
    }
    double of_order(Metric metric, unsigned order) {
        return value(metric, {{"pool", "default"}, {"node", "0"}, {"order", std::to_string(order)}});
    }
    double of_pool(Metric metric) { return value(metric, {{"pool", "default"}}); }

    FakePoolManager pools_;
    Collector collector_{pools_};
};

TEST_F(MetricsTest, every_metric_of_the_table_is_in_the_text_with_its_kind_help_and_labels) {
    const std::string all = text();
    std::map<std::string, prometheus::MetricFamily> families;
    for (auto &family : collector_.Collect()) families[family.name] = family;
    EXPECT_EQ(families.size(), kMetrics.size());
    for (const MetricRow &row : kMetrics) {
        const std::string name{row.name};
        EXPECT_THAT(all, HasSubstr("\n" + name + (row.label_count() == 0 ? " " : "{")));
        ASSERT_TRUE(families.contains(name)) << name;
        const auto &family = families[name];
        EXPECT_EQ(family.help, row.help);
        EXPECT_EQ(family.type,
                  row.kind == MetricKind::counter ? prometheus::MetricType::Counter : prometheus::MetricType::Gauge);
        for (const auto &sample : family.metric) {
            ASSERT_EQ(sample.label.size(), row.label_count()) << name;
            for (std::size_t at = 0; at < sample.label.size(); ++at)
                EXPECT_EQ(sample.label[at].name, row.label_names[at]) << name;
        }
    }
}

TEST_F(MetricsTest, no_two_samples_have_the_same_labels) {
    for (const auto &family : collector_.Collect()) {
        std::set<std::vector<prometheus::ClientMetric::Label>> seen;
        for (const auto &sample : family.metric) EXPECT_TRUE(seen.insert(sample.label).second) << family.name;
    }
}

TEST_F(MetricsTest, fragmentation_has_the_golden_numbers) {
    const double free_blocks[] = {3, 1, 0, 2, 0, 0};
    const double unusable[] = {0, .143, .238, .238, 1, 1};
    const double external[] = {-1, -1, -1, -1, .615, .724};
    for (unsigned order = 0; order < 6; ++order) {
        EXPECT_EQ(of_order(Metric::free_blocks, order), free_blocks[order]);
        EXPECT_NEAR(of_order(Metric::unusable_free_ratio, order), unusable[order], .0005) << order;
        EXPECT_NEAR(of_order(Metric::external_fragmentation_index, order), external[order], .0005) << order;
    }
    EXPECT_NEAR(of_numa_node(Metric::quadratic_fragmentation), .694, .0005);
    EXPECT_DOUBLE_EQ(of_numa_node(Metric::internal_fragmentation_ratio), .25);
    EXPECT_EQ(of_numa_node(Metric::pool_free_bytes), 21 * 4096);
}

TEST_F(MetricsTest, orders_end_with_the_pools_largest_block) {
    const std::string all = text();
    EXPECT_THAT(all, HasSubstr("order=\"5\""));
    EXPECT_THAT(all, Not(HasSubstr("order=\"6\"")));
}

TEST_F(MetricsTest, bytes_and_counters_are_the_pools) {
    EXPECT_EQ(of_numa_node(Metric::pool_capacity_bytes), 64 * 4096);
    EXPECT_EQ(of_numa_node(Metric::pool_online_bytes), 64 * 4096);
    EXPECT_EQ(of_numa_node(Metric::pool_online_bytes, "1"), 32 * 4096);
    EXPECT_EQ(of_numa_node(Metric::pool_used_bytes), 43 * 4096);
    EXPECT_EQ(of_numa_node(Metric::pool_cached_bytes), 3 * 4096);
    EXPECT_EQ(of_numa_node(Metric::pool_quarantined_bytes), 2 * 4096);
    EXPECT_EQ(of_numa_node(Metric::low_watermark_bytes), 22 * 4096);
    EXPECT_EQ(of_numa_node(Metric::pool_peak_used_bytes), 50 * 4096);
    EXPECT_EQ(of_numa_node(Metric::pool_largest_free_block_bytes), 8 * 4096);
    EXPECT_EQ(of_numa_node(Metric::pool_largest_free_block_bytes, "1"), 0);
    EXPECT_EQ(of_numa_node(Metric::pool_metadata_bytes), 40960);
    EXPECT_EQ(of_numa_node(Metric::pool_metadata_resident_bytes), 8192);
    EXPECT_EQ(value(Metric::pool_backing_info, {{"pool", "default"}, {"node", "0"}, {"backing", "thp"}}), 1);
    EXPECT_EQ(value(Metric::pool_backing_info, {{"pool", "default"}, {"node", "1"}, {"backing", "hugetlb"}}), 1);
    EXPECT_EQ(of_order(Metric::allocations_total, 0), 1000);
    EXPECT_EQ(of_order(Metric::allocations_total, 5), 7);
    EXPECT_EQ(of_order(Metric::frees_total, 0), 957);
    const char *reasons[] = {"out_of_frames", "fragmented", "quota", "argument"};
    for (unsigned reason = 0; reason < 4; ++reason)
        EXPECT_EQ(
            value(Metric::allocation_failures_total, {{"pool", "default"}, {"node", "0"}, {"reason", reasons[reason]}}),
            11 + reason);
    EXPECT_EQ(of_numa_node(Metric::cas_retries_total), 21);
    EXPECT_EQ(of_numa_node(Metric::numa_hit_total), 22);
    EXPECT_EQ(of_numa_node(Metric::numa_miss_total), 23);
    EXPECT_EQ(of_numa_node(Metric::numa_foreign_total), 24);
    EXPECT_EQ(of_numa_node(Metric::numa_interleave_hit_total), 25);
    EXPECT_EQ(of_numa_node(Metric::numa_local_node_total), 26);
    EXPECT_EQ(of_numa_node(Metric::numa_other_node_total), 27);
    EXPECT_EQ(of_numa_node(Metric::hand_offs_total), 28);
    EXPECT_EQ(of_numa_node(Metric::waiting_threads), 29);
    EXPECT_EQ(of_pool(Metric::reclaimed_bytes_total), 12288);
    EXPECT_EQ(of_pool(Metric::recovery_duration_seconds), .25);
    EXPECT_EQ(of_pool(Metric::recoveries_waiting), 1);
    EXPECT_EQ(of_pool(Metric::pool_names), 3);
    EXPECT_EQ(of_pool(Metric::pool_stale_seconds), 2.5);
    EXPECT_EQ(of_pool(Metric::scan_duration_seconds), .125);
    EXPECT_EQ(of_pool(Metric::pool_corrupt), 0);
    EXPECT_EQ(of_pool(Metric::pool_quota_bytes), 40 * 4096);
    EXPECT_EQ(of_pool(Metric::pool_soft_quota_bytes), 30 * 4096);
    EXPECT_EQ(of_pool(Metric::pool_reserved_bytes), 5 * 4096);
    const auto of_user = [this](Metric metric) { return value(metric, {{"pool", "default"}, {"uid", "4294967000"}}); };
    EXPECT_EQ(of_user(Metric::user_used_bytes), 43 * 4096);
    EXPECT_EQ(of_user(Metric::user_quota_bytes), 20 * 4096);
    EXPECT_EQ(of_user(Metric::user_soft_quota_bytes), 10 * 4096);
    EXPECT_EQ(of_user(Metric::user_reserved_bytes), 6 * 4096);
}

TEST_F(MetricsTest, a_channel_has_its_fill_its_totals_and_its_parties) {
    const auto of_channel = [this](Metric metric) {
        return value(metric, {{"pool", "default"}, {"channel", "frames"}});
    };
    const auto parties = [this](const char *role) {
        return value(Metric::channel_parties, {{"pool", "default"}, {"channel", "frames"}, {"role", role}});
    };
    EXPECT_EQ(of_channel(Metric::channel_waiting_messages), 924) << "those that come again wait as well";
    EXPECT_EQ(of_channel(Metric::channel_capacity_messages), 1024);
    EXPECT_EQ(of_channel(Metric::channel_oldest_seconds), 75);
    EXPECT_EQ(of_channel(Metric::channel_sent_total), 5000);
    EXPECT_EQ(of_channel(Metric::channel_received_total), 4100);
    EXPECT_EQ(of_channel(Metric::channel_redelivered_total), 7);
    EXPECT_EQ(of_channel(Metric::channel_dropped_total), 30);
    EXPECT_EQ(parties("sender"), 3);
    EXPECT_EQ(parties("receiver"), 2);
}

TEST_F(MetricsTest, a_broadcast_has_no_backlog) {
    const auto of_channel = [this](Metric metric) { return value(metric, {{"pool", "default"}, {"channel", "news"}}); };
    EXPECT_EQ(of_channel(Metric::channel_kept_messages), 500);
    EXPECT_EQ(of_channel(Metric::channel_sent_total), 6000);
    EXPECT_EQ(of_channel(Metric::channel_received_total), 11000);
    EXPECT_EQ(of_channel(Metric::channel_overtaken_total), 44);
    for (const auto &family : collector_.Collect()) {
        if (family.name != "numacre_channel_waiting_messages" && family.name != "numacre_channel_oldest_seconds")
            continue;
        for (const auto &sample : family.metric) EXPECT_EQ(sample.label[1].value, "frames") << family.name;
    }
}

TEST_F(MetricsTest, clients_and_totals_are_the_daemons) {
    EXPECT_EQ(
        value(Metric::client_info,
              {{"pool", "default"}, {"client", "17"}, {"comm", "relay"}, {"pid", "4242"}, {"cgroup", "/user.slice"}}),
        1);
    EXPECT_EQ(value(Metric::client_used_bytes, {{"pool", "default"}, {"client", "17"}}), 43 * 4096);
    EXPECT_EQ(value(Metric::client_quota_bytes, {{"pool", "default"}, {"client", "17"}}), 1 << 20);
    EXPECT_EQ(value(Metric::client_soft_quota_bytes, {{"pool", "default"}, {"client", "17"}}), 1 << 19);
    EXPECT_EQ(value(Metric::client_reserved_bytes, {{"pool", "default"}, {"client", "17"}}), 1 << 18);
    EXPECT_EQ(value(Metric::client_oldest_block_seconds, {{"pool", "default"}, {"client", "17"}}), 90);
    EXPECT_EQ(value(Metric::log_messages_dropped_total, {}), 37);
    EXPECT_EQ(value(Metric::attaches_total, {{"result", "ok"}}), 29);
    EXPECT_EQ(value(Metric::attaches_total, {{"result", "refused"}}), 30);
    EXPECT_EQ(value(Metric::resize_operations_total, {{"result", "ok"}}), 31);
    EXPECT_EQ(value(Metric::resize_operations_total, {{"result", "partial"}}), 32);
    EXPECT_EQ(value(Metric::resize_operations_total, {{"result", "failed"}}), 33);
    EXPECT_EQ(value(Metric::clients_reaped_total, {{"cause", "killed"}}), 34);
    EXPECT_EQ(value(Metric::clients_reaped_total, {{"cause", "detached"}}), 35);
    EXPECT_EQ(value(Metric::clients_reaped_total, {{"cause", "lost"}}), 36);
}

TEST_F(MetricsTest, a_pid_is_on_the_info_metric_only) {
    for (const auto &family : collector_.Collect())
        for (const auto &sample : family.metric)
            for (const auto &label : sample.label)
                EXPECT_TRUE(label.value != "4242" || family.name == metric_row(Metric::client_info).name)
                    << family.name;
}

TEST_F(MetricsTest, imbalance_is_the_difference_of_used_shares) {
    EXPECT_DOUBLE_EQ(of_pool(Metric::numa_imbalance), 1 - 43.0 / 64);
    PoolStatus pool = golden_pool();
    pool.nodes[1].online_bytes = 0;
    EXPECT_EQ(numa_imbalance(pool), 0) << "a numa node with nothing online has no share";
    pool.nodes.clear();
    EXPECT_EQ(numa_imbalance(pool), 0);
}

TEST_F(MetricsTest, more_requested_than_granted_is_no_fragmentation) {
    PoolStatus pool = golden_pool();
    pool.nodes[0].snapshot.requested_bytes = pool.nodes[0].snapshot.granted_bytes + 1;
    EXPECT_EQ(internal_fragmentation_of(pool.nodes[0]), 0);
}

TEST_F(MetricsTest, a_corrupt_pool_says_so_even_when_it_cannot_be_scanned) {
    PoolStatus pool = golden_pool();
    pool.corrupt = true;
    pools_.set_pool(pool);
    EXPECT_EQ(of_pool(Metric::pool_corrupt), 1);
    pools_.fail_with(Failure{Errc::corrupt, "leaf word 3 is nonsense"});
    EXPECT_EQ(of_pool(Metric::pool_corrupt), 1);
}

TEST_F(MetricsTest, a_pool_deleted_in_the_middle_leaves_the_rest) {
    pools_.fail_with(Failure{Errc::no_such_pool, "gone"});
    const std::string all = text();
    EXPECT_THAT(all, Not(HasSubstr("pool=")));
    EXPECT_THAT(all, HasSubstr(std::string{metric_row(Metric::build_info).name}));
}

// promtool's verdict on the text: its exit status, with what it said.
std::pair<int, std::string> promtool_check(const std::string &text) {
    char path[] = "/tmp/numacre-metrics-XXXXXX";
    const int fd = ::mkstemp(path);
    if (fd < 0) return {-1, "no temporary file"};
    const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    ::close(fd);
    std::string said;
    int status = -1;
    if (written) {
        FILE *const pipe = ::popen(("promtool check metrics < " + std::string{path} + " 2>&1").c_str(), "r");
        char line[512];
        while (pipe != nullptr && std::fgets(line, sizeof(line), pipe) != nullptr) said += line;
        if (pipe != nullptr) status = ::pclose(pipe);
    }
    ::unlink(path);
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, said};
}

TEST_F(MetricsTest, promtool_accepts_the_text) {
    if (std::system("command -v promtool > /dev/null") != 0)
        GTEST_SKIP() << "promtool is missing, the text is NOT checked: apt-get install prometheus";
    ClientStatus hostile = golden_client();
    hostile.client_id = 18;
    hostile.comm = "a\"b\\c\n\xff{}";
    pools_.set_clients({golden_client(), hostile});
    const auto [verdict, said] = promtool_check(text());
    EXPECT_EQ(verdict, 0) << said;
    const auto [other_verdict, complaint] = promtool_check("some_count_total{a=\"\xff\"} 1\n");
    EXPECT_NE(other_verdict, 0) << "promtool accepts anything: " << complaint;
}

// -- the endpoint -----------------------------------------------------------------------------------------------------

class Socket {
public:
    Socket() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        timeval patience{60, 0};
        ::setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    }
    ~Socket() { ::close(fd_); }
    Socket(const Socket &) = delete;
    Socket &operator=(const Socket &) = delete;
    int fd() const { return fd_; }

private:
    int fd_;
};

sockaddr_in loopback(std::uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
}

std::uint16_t port_of(const std::string &address) {
    return static_cast<std::uint16_t>(std::atoi(address.substr(address.rfind(':') + 1).c_str()));
}

std::string http_get(std::uint16_t port, const std::string &path) {
    const Socket socket;
    const sockaddr_in address = loopback(port);
    if (::connect(socket.fd(), reinterpret_cast<const sockaddr *>(&address), sizeof(address)) != 0) return "no answer";
    const std::string request = "GET " + path + " HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n";
    if (::send(socket.fd(), request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size()))
        return "not sent";
    std::string answer;
    char bytes[4096];
    for (ssize_t got = 0; (got = ::recv(socket.fd(), bytes, sizeof(bytes), 0)) > 0;)
        answer.append(bytes, static_cast<std::size_t>(got));
    return answer;
}

TEST_F(MetricsTest, port_0_picks_one_and_serves_there) {
    MetricsServer server{pools_, "127.0.0.1:0"};
    const auto started = server.start();
    ASSERT_TRUE(started.has_value()) << started.error().message;
    EXPECT_TRUE(server.address().starts_with("127.0.0.1:")) << server.address();
    const std::uint16_t port = port_of(server.address());
    ASSERT_NE(port, 0);
    const std::string answer = http_get(port, "/metrics");
    EXPECT_THAT(answer, HasSubstr("200 OK"));
    for (const MetricRow &row : kMetrics)
        EXPECT_THAT(answer, HasSubstr("\n" + std::string{row.name} + (row.label_count() == 0 ? " " : "{")));
    server.stop();
    EXPECT_EQ(http_get(port, "/metrics"), "no answer");
    EXPECT_EQ(server.address(), "");
    server.stop();
}

TEST_F(MetricsTest, a_port_that_is_taken_is_refused_with_the_address_and_why) {
    const Socket taken;
    sockaddr_in address = loopback(0);
    socklen_t size = sizeof(address);
    ASSERT_EQ(::bind(taken.fd(), reinterpret_cast<const sockaddr *>(&address), size), 0);
    ASSERT_EQ(::listen(taken.fd(), 1), 0);
    ASSERT_EQ(::getsockname(taken.fd(), reinterpret_cast<sockaddr *>(&address), &size), 0);
    const std::string wanted = "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    MetricsServer server{pools_, wanted};
    const auto started = server.start();
    ASSERT_FALSE(started.has_value());
    EXPECT_THAT(started.error().message, HasSubstr(wanted));
    EXPECT_THAT(started.error().message, HasSubstr("in use"));
    EXPECT_THAT(started.error().message, HasSubstr("--metrics-address"));
    EXPECT_EQ(server.address(), "");
}

TEST_F(MetricsTest, an_address_that_this_machine_does_not_have_is_refused) {
    MetricsServer server{pools_, "192.0.2.1:0"};  // reserved for documentation, RFC 5737
    const auto started = server.start();
    ASSERT_FALSE(started.has_value());
    EXPECT_THAT(started.error().message, HasSubstr("192.0.2.1"));
}

TEST(MetricsAddressTest, without_a_host_it_is_loopback) {
    for (const char *text : {"9853", ":9853", "localhost:9853", "127.0.0.1:9853"}) {
        const auto address = parse_metrics_address(text);
        ASSERT_TRUE(address.has_value()) << text;
        EXPECT_EQ(address->host, "127.0.0.1") << text;
        EXPECT_EQ(address->port, 9853) << text;
    }
    const auto v6 = parse_metrics_address("[::1]:0");
    ASSERT_TRUE(v6.has_value());
    EXPECT_EQ(v6->host, "::1");
    EXPECT_EQ(v6->port, 0);
}

TEST(MetricsAddressTest, what_is_no_address_is_refused_with_the_remedy) {
    for (const char *text : {"", ":", "127.0.0.1", "127.0.0.1:", "127.0.0.1:65536", "127.0.0.1:-1", "127.0.0.1:98x",
                             "somewhere:9853", "::1:9853", "[127.0.0.1]:9853", "127.0.0.1:9853,0.0.0.0:80", "9853s"}) {
        const auto address = parse_metrics_address(text);
        ASSERT_FALSE(address.has_value()) << text;
        EXPECT_EQ(address.error().code, Errc::bad_argument);
        EXPECT_THAT(address.error().message, HasSubstr("use IP:PORT"));
    }
}

}  // namespace
}  // namespace numacre::daemon
