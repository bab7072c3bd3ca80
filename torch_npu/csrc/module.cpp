#include "torch_npu/csrc/module.h"

#include <ATen/ATen.h>
#include <pybind11/native_enum.h>
#include <torch/csrc/Event.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/utils/pybind.h>

#include "base/options.h"
#include "ops/catalog.h"
#include "runtime/device.h"
#include "torch_npu/csrc/allocator_settings.h"
#include "torch_npu/csrc/counters.h"
#include "torch_npu/csrc/errors.h"
#include "torch_npu/csrc/fallback.h"
#include "torch_npu/csrc/formats.h"
#include "torch_npu/csrc/generator.h"
#include "torch_npu/csrc/guard.h"
#include "torch_npu/csrc/native_op.h"
#include "torch_npu/csrc/packed_weights.h"
#include "torch_npu/csrc/sharing.h"
#include "torch_npu/csrc/sync_debug.h"
#include "torch_npu/csrc/wait.h"

namespace torch_npu {
namespace {

namespace py = pybind11;
using c10::DeviceIndex;

const anynpu::Option kDeviceCapability(
    "TORCH_NPU_DEVICE_CAPABILITY", "",
    "major.minor: what torch.npu.get_device_capability() returns, for programs that ask; default: None");

void raise_pending_signal() {
  py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() == 0) return;
  python_error interrupted;
  interrupted.persist();
  throw interrupted;
}

const WaitHooks kPythonWaits = {
    .leave = [] { return PyGILState_Check() != 0 ? static_cast<void*>(PyEval_SaveThread()) : nullptr; },
    .enter =
        [](void* thread_state) {
          if (thread_state != nullptr) PyEval_RestoreThread(static_cast<PyThreadState*>(thread_state));
        },
    .check_interrupt = raise_pending_signal,
};

/// The engine's thread of a device drops its references to a graph, and to Python objects of it, some time
/// after backward() returned. As it works in order, it has done so once it has run one more graph.
void settle_autograd() {
  at::AutoGradMode with_gradients(true);
  for (DeviceIndex device = 0; device < device_count(); ++device) {
    if (!is_started(device)) continue;
    const at::Tensor leaf = at::zeros({1}, at::Device(at::DeviceType::PrivateUse1, device)).requires_grad_();
    torch::autograd::backward({leaf.view({1, 1})}, {at::zeros_like(leaf).view({1, 1})});
  }
}

void bind_devices(py::module& m) {
  m.def("device_count",
        torch::wrap_pybind_function([] { return npu_call([] { return anynpu::device_count(); }); }),
        "How many devices there are. Starts none.");
  m.def("is_available", [] { return device_count() > 0; });
  m.def("current_device", torch::wrap_pybind_function([] { return static_cast<int>(current_device()); }));
  m.def("check_device", torch::wrap_pybind_function(check_device), "Raises where there is no such device.");
  m.def("set_device", torch::wrap_pybind_function(
                          [](int device) { npu_call([&] { anynpu::set_thread_device(device); }); }));
  m.def("init", torch::wrap_pybind_function([] { npu_call([] { anynpu::Device::get(current_device()); }); }),
        "Starts the current device.");
  m.def("is_initialized", [] { return anynpu::Device::started() && !anynpu::Device::forked(); });
  m.def("is_in_bad_fork", [] { return anynpu::Device::forked(); });
  m.def("synchronize", torch::wrap_pybind_function([](int device) {
          if (is_started(device)) synchronize_device(static_cast<DeviceIndex>(device));
        }));
  m.def("stream_of_handle", torch::wrap_pybind_function([](uintptr_t handle) {
          const c10::Stream stream = stream_of_handle(reinterpret_cast<void*>(handle));
          return py::make_tuple(stream.id(), static_cast<int>(stream.device_index()));
        }),
        "Id and device of the stream with that native handle.");
  m.def("stream_priority", torch::wrap_pybind_function([](int64_t id, int device) {
          const c10::Device of(c10::DeviceType::PrivateUse1, static_cast<DeviceIndex>(device));
          return runtime_stream(c10::Stream(c10::Stream::UNSAFE, of, id))->config().priority;
        }));
  m.def("sync_debug_mode", [] { return static_cast<int>(sync_debug_mode()); });
  m.def("set_sync_debug_mode", [](int mode) { set_sync_debug_mode(static_cast<SyncDebugMode>(mode)); });
  m.def("soc_name", [] { return anynpu::soc_name(); });
  m.def("device_capability", [] { return kDeviceCapability.text(); });
  m.def(
      "options",
      [] {
        py::list options;
        for (const anynpu::Option* option : anynpu::all_options())
          options.append(py::make_tuple(option->name(), option->fallback(), option->help()));
        return options;
      },
      "Every environment variable that the libraries read: (name, default or '', meaning).");
  m.def("require_usable", torch::wrap_pybind_function([] { npu_call(anynpu::Device::require_usable); }),
        "Raises where no device can be used (any more). Starts none.");
  m.def("settle_autograd", torch::wrap_pybind_function_no_gil(settle_autograd),
        "Waits until the autograd engine's threads of started devices have let go of finished graphs.");
  m.def("shutdown", torch::wrap_pybind_function_no_gil([] { anynpu::shutdown(); }),
        "Ends the runtime for this process; for its exit.");
}

c10::Event& event_of(const py::object& event) {
  TORCH_CHECK_TYPE(THPEvent_Check(event.ptr()), "a torch.Event is accepted, not ",
                   Py_TYPE(event.ptr())->tp_name);
  return reinterpret_cast<THPEvent*>(event.ptr())->event;
}

void bind_events(py::module& m) {
  m.def("elapsed_ms", torch::wrap_pybind_function([](uintptr_t start, uintptr_t end) {
          return elapsed_ms(reinterpret_cast<void*>(start), reinterpret_cast<void*>(end));
        }),
        "Milliseconds between two events, by torch.Event.event_id.");
  m.def("event_handle", torch::wrap_pybind_function([](const py::object& event) {
          c10::Event& of = event_of(event);
          const bool timing = of.flag() == c10::EventFlag::BACKEND_DEFAULT;
          create_event(of, std::make_shared<anynpu::HandledEvent>(timing, /*is_waitable=*/true));
          return reinterpret_cast<uintptr_t>(of.eventId());
        }),
        "The handle of an event; one that was never recorded becomes one of the current device.");
  m.def("share_event", torch::wrap_pybind_function([](const py::object& event) {
          create_event(event_of(event), new_shared_event());
        }),
        "Makes a new event one of several processes.");
  m.def("open_event", torch::wrap_pybind_function([](const py::object& event, const py::bytes& handle) {
          create_event(event_of(event), open_shared_event(handle));
        }),
        "Makes a new event that of another process.");
  m.def("event_ipc_handle", torch::wrap_pybind_function([](const py::object& event) {
          return py::bytes(event_ipc_handle(event_of(event)));
        }));
}

void bind_sharing(py::module& m) {
  m.def("lend_storage", torch::wrap_pybind_function_no_gil(lend_storage),
        "The key by which one other process can borrow the memory of a storage.");
  m.def("borrow_storage", torch::wrap_pybind_function_no_gil(borrow_storage),
        "The storage of another process, by key, index of its device and number of bytes.");
  m.def("ipc_collect", torch::wrap_pybind_function_no_gil(collect_lent_memory),
        "Makes freed memory available that other processes have given back.");
}

py::dict counters() {
  const Counters now = read_counters();
  const PackedWeightStats packed = packed_weight_stats();
  py::dict ops;
  for (const OpCount& op : now.ops)
    ops[py::str(op.name)] =
        py::dict(py::arg("fallbacks") = op.fallbacks, py::arg("native_launches") = op.native_launches,
                 py::arg("format_conversions") = op.format_conversions);
  return py::dict(py::arg("ops") = ops, py::arg("fallbacks") = now.fallbacks,
                  py::arg("native_launches") = now.native_launches,
                  py::arg("format_conversions") = now.format_conversions,
                  py::arg("fallback_copies") = now.fallback_copies,
                  py::arg("fallback_copied_bytes") = now.fallback_copied_bytes,
                  py::arg("packed_weights") = packed.made, py::arg("packed_weight_uses") = packed.uses,
                  py::arg("packed_weight_bytes") = packed.bytes);
}

void bind_fallback(py::module& m) {
  py::native_enum<FallbackMode>(m, "FallbackMode", "enum.Enum")
      .value("allow", FallbackMode::kAllow)
      .value("warn", FallbackMode::kWarn)
      .value("error", FallbackMode::kError)
      .finalize();
  m.def("fallback_mode", &fallback_mode);
  m.def("set_fallback_mode", &set_fallback_mode);
  m.def("counters", &counters);
  m.def("allow_formats", &allow_formats,
        "Whether operators may give results in formats of their own choice.");
  m.def("reset_counters", [] {
    reset_counters();
    reset_packed_weight_stats();
  });
}

void bind_operators(py::module& m) {
  m.def(
      "operators",
      [] {
        py::list operators;
        for (const anynpu::ops::Entry& entry : anynpu::ops::catalog()) {
          py::list dtypes;
          for (int i = 0; i < anynpu::tile::kDTypes; ++i)
            if (const auto dtype = static_cast<anynpu::tile::DType>(i); entry.dtypes.contains(dtype))
              dtypes.append(anynpu::tile::name_of(dtype));
          operators.append(py::make_tuple(entry.name, entry.doc, dtypes, entry.types, entry.error));
        }
        return operators;
      },
      "The operators of src/ops: name, what it computes, types, rules of types, error.");
  m.def(
      "served",
      [] {
        py::dict rows;
        for (const Served& op : served()) rows[py::str(op.op)] = op.rows;
        return rows;
      },
      "The operators of ATen that kernels of our own serve, and the names of their operators of src/ops.");
}

}  // namespace
}  // namespace torch_npu

PYBIND11_MODULE(_C, m) {
  m.doc() = "Device npu for PyTorch. Loading it registers the device; torch_npu is the interface.";
  torch_npu::set_wait_hooks(torch_npu::kPythonWaits);
  torch_npu::register_fallbacks();
  torch_npu::load_allocator_settings();
  torch_npu::bind_devices(m);
  torch_npu::bind_memory(m);
  torch_npu::bind_fallback(m);
  torch_npu::bind_operators(m);
  torch_npu::bind_events(m);
  torch_npu::bind_sharing(m);
  m.def("default_generator", torch::wrap_pybind_function([](int device) {
          return torch_npu::default_npu_generator(static_cast<c10::DeviceIndex>(device));
        }));
}
