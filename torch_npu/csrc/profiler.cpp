// Device npu in torch.profiler: what ran on its streams, beside what Kineto records on the host.

#define FMT_HEADER_ONLY  // of fmt, which Kineto's headers use, PyTorch ships the headers only
#define USE_KINETO       // PyTorch's wheel is built with it and does not say so to extensions
#include <libkineto.h>
#include <output_base.h>
#include <torch/csrc/profiler/standalone/privateuse1_profiler.h>

#include <algorithm>

#include "prof/trace.h"
#include "torch_npu/csrc/errors.h"

namespace torch_npu {
namespace {

using anynpu::Trace;
using anynpu::TracedTask;
using libkineto::ActivityType;
using libkineto::GenericTraceActivity;

ActivityType activity_of(const TracedTask& task) {
  switch (task.kind) {
    case anynpu::TaskKind::kCopy:
      return ActivityType::GPU_MEMCPY;
    case anynpu::TaskKind::kFill:
      return ActivityType::GPU_MEMSET;
    default:
      return ActivityType::CONCURRENT_KERNEL;
  }
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  explicit Session(std::set<ActivityType> wanted) : wanted_(std::move(wanted)) {}
  ~Session() override {
    if (status_ == libkineto::TraceStatus::RECORDING) Trace::stop();
  }

  void start() override {
    npu_call(Trace::start);
    status_ = libkineto::TraceStatus::RECORDING;
  }
  void stop() override {
    tasks_ = Trace::stop();
    status_ = libkineto::TraceStatus::PROCESSING;
  }
  std::vector<std::string> errors() override { return {}; }

  void processTrace(libkineto::ActivityLogger& logger) override {
    processTrace(logger, [](int32_t) { return nullptr; }, 0, INT64_MAX);
  }

  /// Each task twice: its launch in the thread that enqueued it, and its run on the stream.
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t,
                    int64_t) override {
    for (const TracedTask& task : tasks_) {
      const libkineto::ITraceActivity* const op =
          task.external == 0 ? nullptr : linked(static_cast<int32_t>(task.external));
      add_launch(task, op, logger);
      add_run(task, op, logger);
    }
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override {
    return nullptr;  // one a session, and a trace may hold several devices: resources name theirs
  }

  std::vector<libkineto::ResourceInfo> getResourceInfos() override {
    std::set<std::pair<int, uint64_t>> streams;
    for (const TracedTask& task : tasks_) streams.emplace(task.device, task.stream);
    std::vector<libkineto::ResourceInfo> result;
    for (const auto& [device, stream] : streams)
      result.push_back({.id = static_cast<int64_t>(stream),
                        .sortIndex = static_cast<int64_t>(stream),
                        .deviceId = device,
                        .name = c10::str("npu:", device, " stream ", stream)});
    return result;
  }

  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

  void pushCorrelationId(uint64_t id) override { Trace::push_external(id); }
  void popCorrelationId() override { Trace::pop_external(); }

 private:
  void add_launch(const TracedTask& task, const libkineto::ITraceActivity* op,
                  libkineto::ActivityLogger& logger) {
    if (!wanted_.contains(ActivityType::PRIVATEUSE1_RUNTIME)) return;
    auto launch =
        std::make_unique<GenericTraceActivity>(buffer_->span, ActivityType::PRIVATEUSE1_RUNTIME, "launch");
    launch->startTime = task.enqueued;
    launch->endTime = task.enqueued;
    launch->device = libkineto::processId();
    launch->resource = launch->threadId = task.thread;
    finish(std::move(launch), task, op, true, logger);
  }

  void add_run(const TracedTask& task, const libkineto::ITraceActivity* op,
               libkineto::ActivityLogger& logger) {
    if (!wanted_.contains(activity_of(task))) return;
    auto run = std::make_unique<GenericTraceActivity>(buffer_->span, activity_of(task), task.name);
    run->startTime = task.started;
    run->endTime = task.ended;
    run->device = task.device;
    run->resource = static_cast<int32_t>(task.stream);
    run->addMetadata("stream", task.stream);
    run->addMetadata("device", task.device);
    if (task.bytes != 0) run->addMetadata("bytes", task.bytes);
    finish(std::move(run), task, op, false, logger);
  }

  void finish(std::unique_ptr<GenericTraceActivity> activity, const TracedTask& task,
              const libkineto::ITraceActivity* op, bool is_start, libkineto::ActivityLogger& logger) {
    activity->id = static_cast<int32_t>(task.correlation);
    activity->linked = op;
    activity->flow.id = static_cast<uint32_t>(task.correlation);
    activity->flow.type = libkineto::kLinkAsyncCpuGpu;
    activity->flow.start = is_start;
    activity->addMetadata("correlation", task.correlation);
    if (task.external != 0) activity->addMetadata("External id", task.external);
    activity->log(logger);
    buffer_->activities.push_back(std::move(activity));
  }

  const std::set<ActivityType> wanted_;
  std::vector<TracedTask> tasks_;
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
};

class Profiler final : public libkineto::IActivityProfiler {
 public:
  const std::string& name() const override { return name_; }
  const std::set<ActivityType>& availableActivities() const override { return activities_; }

  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config&) override {
    std::set<ActivityType> both;
    std::set_intersection(wanted.begin(), wanted.end(), activities_.begin(), activities_.end(),
                          std::inserter(both, both.end()));
    return both.empty() ? nullptr : std::make_unique<Session>(std::move(both));
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t,
                                                                 const std::set<ActivityType>& wanted,
                                                                 const libkineto::Config& config) override {
    return configure(wanted, config);
  }

 private:
  const std::string name_ = "npu";
  const std::set<ActivityType> activities_ = {ActivityType::GPU_MEMCPY, ActivityType::GPU_MEMSET,
                                              ActivityType::CONCURRENT_KERNEL,
                                              ActivityType::PRIVATEUSE1_RUNTIME};
};

REGISTER_PRIVATEUSE1_PROFILER(Profiler);

}  // namespace
}  // namespace torch_npu
