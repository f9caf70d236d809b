#include "os/log.hpp"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace numacre::daemon::log {

namespace {

std::atomic<Format> line_format{Format::text};

constexpr std::array<std::string_view, 6> kLevels{"trace", "debug", "info", "warn", "error", "off"};

// Both JSON and text use the same escapes. Bytes outside ASCII are escaped as well: command names need not be UTF-8.
std::string escaped(std::string_view text) {
    static constexpr char kHex[] = "0123456789abcdef";
    std::string out;
    out.reserve(text.size());
    for (const char letter : text) {
        const auto byte = static_cast<unsigned char>(letter);
        if (letter == '"' || letter == '\\') {
            out += '\\';
            out += letter;
        } else if (byte < 0x20 || byte >= 0x7f) {
            out += "\\u00";
            out += kHex[byte >> 4];
            out += kHex[byte & 15];
        } else {
            out += letter;
        }
    }
    return out;
}

bool needs_quotes(std::string_view text) {
    if (text.empty()) return true;
    for (const char letter : text)
        if (letter <= ' ' || letter == '"' || letter == '=' || letter == '\\' || letter >= 0x7f) return true;
    return false;
}

void write(spdlog::level::level_enum level, std::string_view message, std::initializer_list<Field> fields) {
    if (!spdlog::should_log(level)) return;
    // relaxed: set once before any thread starts.
    spdlog::log(level, "{}", render(message, fields, line_format.load(std::memory_order_relaxed)));
}

// Formats a line as JSON members. Lines that were written through spdlog itself are bare sentences.
class JsonMembers final : public spdlog::custom_flag_formatter {
public:
    void format(const spdlog::details::log_msg &line, const std::tm &, spdlog::memory_buf_t &out) override {
        const std::string_view payload(line.payload.data(), line.payload.size());
        const std::string members =
            payload.starts_with(kMessageMember) ? std::string(payload) : render(payload, {}, Format::json);
        out.append(members.data(), members.data() + members.size());
    }
    std::unique_ptr<custom_flag_formatter> clone() const override {
        return spdlog::details::make_unique<JsonMembers>();
    }

private:
    static constexpr std::string_view kMessageMember = "\"message\":";
};

// The queue between the loggers and the writing thread. Both own it: the thread may be stuck in write() for ever.
class Queue {
public:
    void push(std::string line) {
        {
            const std::lock_guard lock(mutex_);
            bytes_ += line.size();
            lines_.push_back(std::move(line));
            while (bytes_ > kBytesMax) {
                bytes_ -= lines_.front().size();
                lines_.pop_front();
                ++dropped_since_;
                dropped_.fetch_add(1, std::memory_order_relaxed);  // relaxed: a count
            }
        }
        changed_.notify_one();
    }

    // Returns the next line. dropped: the number of lines before it that were dropped.
    std::string pop(std::uint64_t &dropped) {
        std::unique_lock lock(mutex_);
        is_writing_ = false;
        if (lines_.empty()) written_.notify_all();
        changed_.wait(lock, [this] { return !lines_.empty(); });
        is_writing_ = true;
        std::string line = std::move(lines_.front());
        lines_.pop_front();
        bytes_ -= line.size();
        dropped = std::exchange(dropped_since_, 0);
        return line;
    }

    void flush(std::chrono::milliseconds patience) {
        std::unique_lock lock(mutex_);
        written_.wait_for(lock, patience, [this] { return lines_.empty() && !is_writing_; });
    }

    void count_dropped() { dropped_.fetch_add(1, std::memory_order_relaxed); }  // relaxed: a count
    std::uint64_t dropped() const { return dropped_.load(std::memory_order_relaxed); }

private:
    static constexpr std::size_t kBytesMax = std::size_t{256} << 10;

    std::mutex mutex_;
    std::condition_variable changed_, written_;
    std::deque<std::string> lines_;    // guarded by mutex_
    std::size_t bytes_ = 0;            // of lines_; guarded by mutex_
    std::uint64_t dropped_since_ = 0;  // guarded by mutex_
    bool is_writing_ = false;          // guarded by mutex_
    std::atomic<std::uint64_t> dropped_{0};
};

std::shared_ptr<Queue> the_queue;  // set once, before any thread starts

// False: no process can read the line any more.
bool write_all(std::string_view line) {
    while (!line.empty()) {
        const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
        if (written > 0) {
            line.remove_prefix(static_cast<std::size_t>(written));
        } else if (errno == EAGAIN) {  // another process that has this file made it non-blocking
            pollfd wait{STDERR_FILENO, POLLOUT, 0};
            ::poll(&wait, 1, -1);
        } else if (errno != EINTR) {
            return false;
        }
    }
    return true;
}

void write_lines(const std::shared_ptr<Queue> &queue, spdlog::formatter &formatter, Format format) {
    for (;;) {
        std::uint64_t dropped = 0;
        const std::string line = queue->pop(dropped);
        if (dropped != 0) {
            const std::string text = render("messages dropped: they came faster than they could be written",
                                            {{"messages", dropped}}, format);
            spdlog::memory_buf_t notice;
            formatter.format(spdlog::details::log_msg("numacred", spdlog::level::warn, text), notice);
            write_all({notice.data(), notice.size()});
        }
        if (!write_all(line)) queue->count_dropped();
    }
}

class QueueSink final : public spdlog::sinks::base_sink<std::mutex> {
public:
    explicit QueueSink(std::shared_ptr<Queue> queue) : queue_(std::move(queue)) {}

protected:
    void sink_it_(const spdlog::details::log_msg &message) override {
        spdlog::memory_buf_t line;
        formatter_->format(message, line);
        queue_->push(std::string(line.data(), line.size()));
    }
    void flush_() override {}

private:
    std::shared_ptr<Queue> queue_;
};

constexpr std::chrono::milliseconds kTerminatePatience{200};
std::terminate_handler terminate_before;

}  // namespace

std::string render(std::string_view message, std::initializer_list<Field> fields, Format format) {
    std::string line;
    if (format == Format::json) {
        line = "\"message\":\"" + escaped(message) + "\"";
        for (const Field &field : fields) {
            line += ",\"" + escaped(field.key) + "\":";
            line += field.is_text ? "\"" + escaped(field.value) + "\"" : field.value;
        }
        return line;
    }
    // The sentence is ours, except for an error text in it; it has to stay on its line.
    for (const char letter : message) line += (letter == '\n' || letter == '\r') ? ' ' : letter;
    for (const Field &field : fields) {
        line += ' ' + field.key + '=';
        line += field.is_text && needs_quotes(field.value) ? "\"" + escaped(field.value) + "\"" : field.value;
    }
    return line;
}

bool is_level(std::string_view level) {
    for (const std::string_view known : kLevels)
        if (known == level) return true;
    return false;
}

Answer<void> setup(std::string_view level, Format format) {
    if (!is_level(level))
        return Unexpected{Failure{Errc::bad_argument, "log level \"" + std::string(level) +
                                                          "\" is unknown: use trace, debug, info, warn, error or off"}};
    line_format.store(format, std::memory_order_relaxed);  // relaxed: no thread has been started yet
    the_queue = std::make_shared<Queue>();
    auto logger = std::make_shared<spdlog::logger>("numacred", std::make_shared<QueueSink>(the_queue));
    auto formatter = std::make_unique<spdlog::pattern_formatter>();
    formatter->add_flag<JsonMembers>('*');
    formatter->set_pattern(format == Format::json ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l",%*})"
                                                  : "%Y-%m-%dT%H:%M:%S.%e %l %v");
    // The writing thread blocks all signals: the daemon's signals are not for it, and it starts before they are
    // blocked.
    sigset_t all, before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread([queue = the_queue, own = std::shared_ptr<spdlog::formatter>(formatter->clone()), format] {
        pthread_setname_np(pthread_self(), "numacred-log");
        write_lines(queue, *own, format);
    }).detach();  // the thread may never return from write()
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    terminate_before = std::set_terminate([] {
        flush(kTerminatePatience);
        terminate_before();
    });
    logger->set_formatter(std::move(formatter));
    logger->set_level(spdlog::level::from_str(std::string(level)));
    spdlog::set_default_logger(std::move(logger));
    return {};
}

std::uint64_t dropped() {
    return the_queue ? the_queue->dropped() : 0;
}

void flush(std::chrono::milliseconds patience) {
    if (the_queue) the_queue->flush(patience);
}

void debug(std::string_view message, std::initializer_list<Field> fields) {
    write(spdlog::level::debug, message, fields);
}
void info(std::string_view message, std::initializer_list<Field> fields) {
    write(spdlog::level::info, message, fields);
}
void warn(std::string_view message, std::initializer_list<Field> fields) {
    write(spdlog::level::warn, message, fields);
}
void error(std::string_view message, std::initializer_list<Field> fields) {
    write(spdlog::level::err, message, fields);
}

}  // namespace numacre::daemon::log
