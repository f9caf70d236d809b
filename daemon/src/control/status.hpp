// Converts failures to gRPC statuses.
#pragma once

#include <grpcpp/support/status.h>

#include "base/failure.hpp"

namespace numacre::daemon {

// Returns the canonical code from the list in shm/error.hpp, the failure's message, and a google.rpc.ErrorInfo beside
// it.
grpc::Status to_status(const Failure &failure);

}  // namespace numacre::daemon
