# The control service and the metrics endpoint: all that speaks gRPC or Prometheus in the daemon.
# gRPC's headers are slow to compile, so only three sources see them; a precompiled header would keep ccache from working.
find_package(Protobuf REQUIRED)
find_package(gRPC CONFIG REQUIRED)
find_package(prometheus-cpp CONFIG REQUIRED)
find_package(civetweb CONFIG REQUIRED)
find_package(spdlog CONFIG REQUIRED)

add_library(numacred_control STATIC
  ${CMAKE_CURRENT_LIST_DIR}/src/control/checks.cpp
  ${CMAKE_CURRENT_LIST_DIR}/src/control/control_gate.cpp
  ${CMAKE_CURRENT_LIST_DIR}/src/control/control_server.cpp
  ${CMAKE_CURRENT_LIST_DIR}/src/control/control_service.cpp
  ${CMAKE_CURRENT_LIST_DIR}/src/control/conversions.cpp
  ${CMAKE_CURRENT_LIST_DIR}/src/control/event_queue.cpp
  ${CMAKE_CURRENT_LIST_DIR}/src/control/printable.cpp
  ${CMAKE_CURRENT_LIST_DIR}/src/control/status.cpp
  ${CMAKE_CURRENT_LIST_DIR}/src/metrics/collector.cpp
  ${CMAKE_CURRENT_LIST_DIR}/src/metrics/metrics_server.cpp)
target_include_directories(numacred_control PUBLIC ${CMAKE_CURRENT_LIST_DIR}/src)
target_compile_definitions(numacred_control PRIVATE NUMACRE_VERSION="${PROJECT_VERSION}")
target_link_libraries(numacred_control
  PUBLIC numacre_os numacre_shm numacred_words numacre_proto prometheus-cpp::core
  PRIVATE numacre_options numacre_glue_options gRPC::grpc++ gRPC::grpc++_reflection prometheus-cpp::pull civetweb::civetweb-cpp spdlog::spdlog)
