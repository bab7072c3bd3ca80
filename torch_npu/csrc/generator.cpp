#include "torch_npu/csrc/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Functions.h>

#include <array>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/thread_state.h"
#include "tile/philox.h"
#include "torch_npu/csrc/guard.h"

namespace torch_npu {
namespace {

using c10::DeviceIndex;

/// How far a call of a random operator moves the offset, whatever it draws: one block of Philox.
constexpr uint64_t kOffsetOfCall = 4;

struct State {
  uint64_t seed, offset;
};

/// Four words side by side, for philox4x32().
struct Words {
  using Vector [[gnu::vector_size(16)]] = uint32_t;
  explicit Words(uint32_t word) : vector(Vector{} + word) {}
  explicit Words(Vector words) : vector(words) {}
  Vector vector;

  friend Words operator^(Words a, Words b) { return Words(a.vector ^ b.vector); }
  friend Words operator+(Words a, Words b) { return Words(a.vector + b.vector); }
  friend anynpu::tile::WideProduct<Words> wide_product(uint32_t a, Words b) {
    using Wide [[gnu::vector_size(32)]] = uint64_t;
    const Wide product = __builtin_convertvector(b.vector, Wide) * a;
    return {Words(__builtin_convertvector(product >> 32, Vector)),
            Words(__builtin_convertvector(product, Vector))};
  }
};

/// Philox for the key `seed` and the counters (i, offset / 4): block i gives the words 4 i to 4 i + 3.
void fill_with_philox(std::array<uint32_t, at::MERSENNE_STATE_N>& words, const State& state) {
  const auto low = [](uint64_t wide) { return Words(static_cast<uint32_t>(wide)); };
  const auto high = [](uint64_t wide) { return Words(static_cast<uint32_t>(wide >> 32)); };
  const uint64_t call = state.offset / kOffsetOfCall;
  for (uint32_t i = 0; i < words.size() / 4; i += 4) {
    const Words number(Words::Vector{i, i + 1, i + 2, i + 3});
    const auto drawn = anynpu::tile::philox4x32<Words>({low(state.seed), high(state.seed)},
                                                       {number, Words(uint32_t{0}), low(call), high(call)});
    for (size_t block = 0; block < 4; ++block)
      for (size_t word = 0; word < 4; ++word) words[4 * (i + block) + word] = drawn[word].vector[block];
  }
}
static_assert(at::MERSENNE_STATE_N % 16 == 0);

/// What a thread makes the engines of its calls with. Seeding one costs as much as a small operator.
struct Engines {
  at::mt19937 twister;
  at::Generator generator = at::detail::createCPUGenerator();
};

/// The engine of the call of a random operator that finds the generator in this state. PyTorch's CPU kernels
/// draw from a Mersenne Twister: its words are those of fill_with_philox(), as it stands after drawing the
/// first of them; it is first twisted when they are used up.
at::Generator make_engine(const State& state) {
  Engines& engines = anynpu::thread_state<Engines>();
  if (engines.generator.getIntrusivePtr().use_count() > 1)  // a call is still using it
    engines.generator = at::detail::createCPUGenerator();
  at::mt19937_data_pod words;
  words.seed_ = state.seed;
  words.seeded_ = true;
  words.left_ = at::MERSENNE_STATE_N;
  words.next_ = 1;
  fill_with_philox(words.state_, state);
  engines.twister.set_data(words);
  auto* engine = engines.generator.get<at::CPUGeneratorImpl>();
  engine->set_engine(engines.twister);
  engine->set_next_float_normal_sample(std::nullopt);
  engine->set_next_double_normal_sample(std::nullopt);
  return engines.generator;
}

/// A seed and an offset under the device npu:i. Callers of the virtual functions may hold the generator's own
/// mutex, so the state has another one.
struct NpuGenerator final : c10::GeneratorImpl {
  NpuGenerator(DeviceIndex device, State state)
      : GeneratorImpl({c10::DeviceType::PrivateUse1, device},
                      c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)),
        state_(state) {}

  State state() const {
    std::lock_guard lock(state_mutex_);
    return state_;
  }

  void set_state(State state) {
    TORCH_CHECK(state.offset % kOffsetOfCall == 0, "set_offset: the offset is ", state.offset,
                "; multiples of ", kOffsetOfCall, " are accepted");
    std::lock_guard lock(state_mutex_);
    state_ = state;
  }

  /// The state of a call, which moves on.
  State take_call() {
    std::lock_guard lock(state_mutex_);
    return {state_.seed, std::exchange(state_.offset, state_.offset + kOffsetOfCall)};
  }

  void set_current_seed(uint64_t seed) override { set_state({seed, 0}); }
  uint64_t current_seed() const override { return state().seed; }
  uint64_t seed() override {
    const uint64_t seed = c10::detail::getNonDeterministicRandom();
    set_current_seed(seed);
    return seed;
  }

  void set_offset(uint64_t offset) override { set_state({current_seed(), offset}); }
  uint64_t get_offset() const override { return state().offset; }

  /// Seed and offset, or a seed alone.
  void set_state(const c10::TensorImpl& bytes) override {
    at::detail::check_rng_state(bytes);
    const auto size = static_cast<size_t>(bytes.numel());
    TORCH_CHECK(size == sizeof(State) || size == sizeof(uint64_t), "RNG state is wrong size: it has ", size,
                " bytes; that of an npu generator has ", sizeof(State), ", or ", sizeof(uint64_t),
                " without an offset");
    State state = {};
    std::memcpy(&state, bytes.data(), size);
    set_state(state);
  }

  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const State now = state();
    const at::Tensor bytes = at::empty({sizeof(State)}, at::TensorOptions(at::kCPU).dtype(at::kByte));
    std::memcpy(bytes.mutable_data_ptr(), &now, sizeof(State));
    return bytes.getIntrusivePtr();
  }

 private:
  NpuGenerator* clone_impl() const override { return new NpuGenerator(device_.index(), state()); }

  mutable std::mutex state_mutex_;
  State state_;
};

State take_call(const at::Generator& npu) {
  TORCH_CHECK(npu.defined() && npu.device().type() == c10::DeviceType::PrivateUse1,
              "Expected a 'npu' device type for generator but found '",
              npu.defined() ? c10::DeviceTypeName(npu.device().type(), true) : "none", "'");
  return static_cast<NpuGenerator*>(npu.unsafeGetGeneratorImpl())->take_call();
}

DeviceIndex checked(DeviceIndex device) {
  if (device == -1) return current_device();
  check_device(device);
  return device;
}

}  // namespace

const at::Generator& default_npu_generator(DeviceIndex device) {
  static const auto* generators = [] {  // leaked: Python objects refer to them until the very end
    auto* all = new std::vector<at::Generator>;
    for (DeviceIndex index = 0; index < device_count(); ++index)
      all->push_back(
          at::make_generator<NpuGenerator>(index, State{c10::detail::getNonDeterministicRandom(), 0}));
    return all;
  }();
  return (*generators)[checked(device)];
}

at::Generator new_npu_generator(DeviceIndex device) {
  return at::make_generator<NpuGenerator>(checked(device), State{c10::default_rng_seed_val, 0});
}

at::Generator engine_of_call(const at::Generator& npu) { return make_engine(take_call(npu)); }

RandomCall random_call(const std::optional<at::Generator>& npu, c10::DeviceIndex device) {
  const bool given = npu.has_value() && npu->defined();
  const State state = take_call(given ? *npu : default_npu_generator(device));
  return {state.seed, state.offset / kOffsetOfCall};
}

}  // namespace torch_npu
