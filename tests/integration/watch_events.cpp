// Prints the daemon's events, one JSON object a line, until its standard input ends or the daemon does. The first line
// says that from there on nothing is missed. usage: watch_events RUNTIME_DIR [POOL]
#include <google/protobuf/util/json_util.h>
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <cstdio>
#include <string>
#include <thread>

#include "numacre/v1/control.grpc.pb.h"

int main(int argc, char **argv) {
    if (argc < 2 || argc > 3) {
        std::fputs("usage: watch_events RUNTIME_DIR [POOL]\n", stderr);
        return 2;
    }
    const auto stub = numacre::v1::Control::NewStub(
        grpc::CreateChannel("unix:" + std::string(argv[1]) + "/control.sock", grpc::InsecureChannelCredentials()));
    numacre::v1::WatchEventsRequest request;
    if (argc == 3) request.set_pool(argv[2]);
    grpc::ClientContext context;
    const auto reader = stub->WatchEvents(&context, request);
    reader->WaitForInitialMetadata();
    std::puts("{\"kind\": \"watching\"}");
    std::fflush(stdout);

    std::thread until_told([&context] {
        char byte = 0;
        while (::read(STDIN_FILENO, &byte, 1) > 0) {
        }
        context.TryCancel();
    });
    google::protobuf::util::JsonPrintOptions options;
    options.preserve_proto_field_names = true;
    numacre::v1::Event event;
    while (reader->Read(&event)) {
        std::string line;
        if (!google::protobuf::util::MessageToJsonString(event, &line, options).ok()) continue;
        std::puts(line.c_str());
        std::fflush(stdout);
    }
    const grpc::Status status = reader->Finish();
    if (status.error_code() != grpc::StatusCode::CANCELLED) {
        std::fprintf(stderr, "%s\n", status.error_message().c_str());
        std::_Exit(1);  // the thread still reads
    }
    until_told.join();
    return 0;
}
