// The system's oneDNN for bench/cube.py: x times a weight, rows x depth times columns x depth transposed,
// with the weight in the layout that oneDNN picks for the shape.

#include <cstdint>
#include <cstring>
#include <dnnl.hpp>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

namespace {

using dnnl::memory;
using Tag = memory::format_tag;
using Type = memory::data_type;

Type type_named(const std::string& name) {
  if (name == "float32") return Type::f32;
  if (name == "bfloat16") return Type::bf16;
  if (name == "float16") return Type::f16;
  return Type::s8;
}

class Linear {
 public:
  Linear(int64_t rows, int64_t depth, int64_t columns, Type type)
      : engine_(dnnl::engine::kind::cpu, 0), stream_(engine_) {
    const Type out = type == Type::s8 ? Type::s32 : type;
    const memory::desc x({rows, depth}, type, Tag::ab), weight({columns, depth}, type, Tag::any),
        y({rows, columns}, out, Tag::ab), plain({columns, depth}, type, Tag::ab);
    const dnnl::inner_product_forward::primitive_desc chosen(
        {dnnl::prop_kind::forward_inference, x, weight, y}, engine_);
    product_ = dnnl::inner_product_forward(chosen);
    memory given = filled(plain), packed(chosen.weights_desc(), engine_);
    dnnl::reorder(given, packed).execute(stream_, given, packed);
    stream_.wait();
    arguments_ = {{DNNL_ARG_SRC, filled(x)}, {DNNL_ARG_WEIGHTS, packed}, {DNNL_ARG_DST, memory(y, engine_)}};
  }

  void run() {
    product_.execute(stream_, arguments_);
    stream_.wait();
  }

 private:
  memory filled(const memory::desc& desc) {
    memory numbers({desc.dims(), Type::f32, Tag::ab}, engine_), made(desc, engine_);
    std::mt19937 random(0);
    std::normal_distribution<float> normal;
    auto* const data = static_cast<float*>(numbers.get_data_handle());
    for (int64_t i = 0; i < desc.dims()[0] * desc.dims()[1]; ++i) data[i] = normal(random);
    dnnl::reorder(numbers, made).execute(stream_, numbers, made);
    stream_.wait();
    return made;
  }

  dnnl::engine engine_;
  dnnl::stream stream_;
  dnnl::inner_product_forward product_;
  std::unordered_map<int, memory> arguments_;
};

}  // namespace

/// Null where this oneDNN has no such product on this processor.
extern "C" void* onednn_linear(int64_t rows, int64_t depth, int64_t columns, const char* dtype) {
  try {
    return new Linear(rows, depth, columns, type_named(dtype));
  } catch (const dnnl::error&) {
    return nullptr;
  }
}
extern "C" void onednn_run(void* linear) { static_cast<Linear*>(linear)->run(); }
extern "C" void onednn_end(void* linear) { delete static_cast<Linear*>(linear); }
extern "C" const char* onednn_version() {
  static const auto* text = [] {
    const dnnl_version_t* version = dnnl_version();
    return new std::string(std::to_string(version->major) + "." + std::to_string(version->minor) + "." +
                           std::to_string(version->patch));
  }();
  return text->c_str();
}
