#include "control/status.hpp"

#include <array>
#include <string_view>
#include <utility>

#include "control/printable.hpp"
#include "numacre/v1/error.pb.h"

namespace numacre::daemon {
namespace {

// A status travels in HTTP/2 headers, and a peer accepts 8 KiB of headers in all.
constexpr std::size_t kMessageBytesMax = 1024;

constexpr std::array<std::pair<std::string_view, grpc::StatusCode>, 11> kCanonicalCodes{{
    {"RESOURCE_EXHAUSTED", grpc::StatusCode::RESOURCE_EXHAUSTED},
    {"ABORTED", grpc::StatusCode::ABORTED},
    {"INVALID_ARGUMENT", grpc::StatusCode::INVALID_ARGUMENT},
    {"PERMISSION_DENIED", grpc::StatusCode::PERMISSION_DENIED},
    {"FAILED_PRECONDITION", grpc::StatusCode::FAILED_PRECONDITION},
    {"NOT_FOUND", grpc::StatusCode::NOT_FOUND},
    {"DEADLINE_EXCEEDED", grpc::StatusCode::DEADLINE_EXCEEDED},
    {"UNAVAILABLE", grpc::StatusCode::UNAVAILABLE},
    {"DATA_LOSS", grpc::StatusCode::DATA_LOSS},
    {"ALREADY_EXISTS", grpc::StatusCode::ALREADY_EXISTS},
    {"CANCELLED", grpc::StatusCode::CANCELLED},
}};

constexpr grpc::StatusCode canonical_code(Errc code) {
    for (const auto &[name, status] : kCanonicalCodes)
        if (name == error_row(code).grpc_status) return status;
    return grpc::StatusCode::INTERNAL;
}

constexpr bool every_error_has_a_canonical_code() {
    for (const ErrorRow &row : kErrors)
        if (row.code != Errc::ok && canonical_code(row.code) == grpc::StatusCode::INTERNAL) return false;
    return true;
}
static_assert(every_error_has_a_canonical_code());

}  // namespace

grpc::Status to_status(const Failure &failure) {
    const ErrorRow &row = error_row(failure.code);
    const grpc::StatusCode code = canonical_code(failure.code);
    const std::string message = printable(failure.message.empty() ? row.name : failure.message, kMessageBytesMax);

    v1::ErrorDetail detail;
    detail.set_reason(row.name);
    detail.set_domain("numacre");
    (*detail.mutable_metadata())["remedy"] = row.remedy;
    v1::ErrorStatus status;
    status.set_code(code);
    status.set_message(message);
    // The type has the name that clients in every language know; its wire format is the same.
    google::protobuf::Any *const packed = status.add_details();
    packed->set_type_url("type.googleapis.com/google.rpc.ErrorInfo");
    packed->set_value(detail.SerializeAsString());
    return {code, message, status.SerializeAsString()};
}

}  // namespace numacre::daemon
