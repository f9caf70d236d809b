// The one list of errors, for C (-errno), C++ (Errc) and gRPC. One row a line; tests/unit has a test row for each.
#pragma once

#include <array>
#include <cerrno>
#include <cstdint>

namespace numacre {

// The error code of a C++ call. Each code has its row in kErrors.
enum class Errc : std::uint8_t {
    ok,
    out_of_frames,
    contended,
    bad_argument,
    not_owner,
    stale_ref,
    over_quota,
    version_mismatch,
    no_such_node,
    no_such_pool,
    too_many_clients,
    timed_out,
    daemon_gone,
    corrupt,
    access_denied,
    forked_handle,
    already_exists,
    thread_is_inside,
    no_such_client,
    cancelled,
    too_many_connections,
    end_of_stream,
    peers_gone,
    no_such_name,
    too_many_holds,
};

// An error in all three worlds.
struct ErrorRow {
    Errc code;        // in C++
    int errno_value;  // in C, which returns it negative
    // The name of the canonical gRPC status, so that shm needs to know nothing of gRPC.
    const char *grpc_status;
    const char *name;    // the code's, in words
    const char *remedy;  // advice to the caller
};

// The rows, in the order of Errc.
inline constexpr std::array<ErrorRow, 25> kErrors{{
    {Errc::ok, 0, "OK", "ok", "nothing to do"},
    {Errc::out_of_frames, ENOMEM, "RESOURCE_EXHAUSTED", "out_of_frames",
     "free blocks, use another numa node, wait, or grow the pool"},
    {Errc::contended, EAGAIN, "ABORTED", "contended", "retry"},
    {Errc::bad_argument, EINVAL, "INVALID_ARGUMENT", "bad_argument", "fix the call"},
    {Errc::not_owner, EPERM, "PERMISSION_DENIED", "not_owner", "only the owner may do this: take the block first"},
    {Errc::stale_ref, ESTALE, "FAILED_PRECONDITION", "stale_ref",
     "the block was freed or handed on, or its owner has died: drop the reference"},
    {Errc::over_quota, EDQUOT, "RESOURCE_EXHAUSTED", "over_quota", "free blocks, or raise the quota"},
    {Errc::version_mismatch, EPROTONOSUPPORT, "FAILED_PRECONDITION", "version_mismatch",
     "upgrade the older of client and daemon"},
    {Errc::no_such_node, ENODEV, "NOT_FOUND", "no_such_node", "use a numa node that the pool has"},
    {Errc::no_such_pool, ENOENT, "NOT_FOUND", "no_such_pool", "see `numacre pools` for the names"},
    {Errc::too_many_clients, EUSERS, "RESOURCE_EXHAUSTED", "too_many_clients",
     "let some end, or make the pool with more"},
    {Errc::timed_out, ETIMEDOUT, "DEADLINE_EXCEEDED", "timed_out", "try again, or wait longer"},
    {Errc::daemon_gone, ECONNREFUSED, "UNAVAILABLE", "daemon_gone", "start numacred, then attach again"},
    {Errc::corrupt, EUCLEAN, "DATA_LOSS", "corrupt", "stop, keep the region, see the runbook NumacrePoolCorrupt"},
    {Errc::access_denied, EACCES, "PERMISSION_DENIED", "access_denied", "ask the pool's owner for access"},
    {Errc::forked_handle, ECHILD, "FAILED_PRECONDITION", "forked_handle", "attach again in the child process"},
    {Errc::already_exists, EEXIST, "ALREADY_EXISTS", "already_exists", "choose another, or remove what has it"},
    {Errc::thread_is_inside, EBUSY, "ABORTED", "thread_is_inside", "call again when the signal handler has returned"},
    {Errc::no_such_client, ESRCH, "NOT_FOUND", "no_such_client", "see `numacre clients` for those that are attached"},
    {Errc::cancelled, ECANCELED, "CANCELLED", "cancelled", "nothing: the caller wanted it so"},
    {Errc::too_many_connections, EMLINK, "RESOURCE_EXHAUSTED", "too_many_connections",
     "detach some clients, or raise max-connections-per-user"},
    {Errc::end_of_stream, ESHUTDOWN, "FAILED_PRECONDITION", "end_of_stream",
     "close the channel: nobody sends on it any more"},
    {Errc::peers_gone, EPIPE, "FAILED_PRECONDITION", "peers_gone", "wait for others to open the channel, or close it"},
    {Errc::no_such_name, ENODATA, "NOT_FOUND", "no_such_name", "see `numacre names` for those that are bound"},
    {Errc::too_many_holds, ENOSPC, "RESOURCE_EXHAUSTED", "too_many_holds",
     "drop one of the blocks that the thread holds"},
}};

// The row of a code.
constexpr const ErrorRow &error_row(Errc code) {
    return kErrors[static_cast<std::size_t>(code)];
}
// The errno value of a code, positive.
constexpr int to_errno(Errc code) {
    return error_row(code).errno_value;
}

}  // namespace numacre
