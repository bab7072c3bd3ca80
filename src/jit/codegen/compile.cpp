#include <llvm/Analysis/CGSCCPassManager.h>
#include <llvm/Analysis/LoopAnalysisManager.h>
#include <llvm/ExecutionEngine/Orc/LLJIT.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/Transforms/InstCombine/InstCombine.h>
#include <llvm/Transforms/Scalar/EarlyCSE.h>
#include <llvm/Transforms/Scalar/LICM.h>
#include <llvm/Transforms/Scalar/LoopPassManager.h>
#include <llvm/Transforms/Scalar/SROA.h>
#include <llvm/Transforms/Scalar/SimplifyCFG.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>

#include "base/error.h"
#include "jit/emit.h"
#include "jit/jit.h"
#include "tile/bounds.h"
#include "tile/reduce.h"
#include "tile/verify.h"

namespace anynpu::jit {
namespace {

using tile::Arguments;
using tile::DType;
using tile::Kernel;

template <class T>
T checked(llvm::Expected<T> result, std::string_view what) {
  if (!result) raise(ErrorCode::kInternal, "jit: ", what, ": ", llvm::toString(result.takeError()));
  return std::move(*result);
}
void checked(llvm::Error error, std::string_view what) {
  if (error) raise(ErrorCode::kInternal, "jit: ", what, ": ", llvm::toString(std::move(error)));
}

constexpr const char* kX86 = "x86_64-unknown-linux-gnu";

Target target_of(Isa isa) {
  // Features by name and not the machine's: one instruction set level gives one result.
  if (isa == Isa::kAvx512) return {kX86, "x86-64-v4", "-prefer-256-bit", 16, true};
  return {kX86, "x86-64-v3", "", 8, false};
}
Target aarch64() { return {"aarch64-unknown-linux-gnu", "generic", "+neon,+fp-armv8", 4, false}; }

std::unique_ptr<llvm::TargetMachine> machine_for(const Target& target) {
  static std::once_flag once;
  std::call_once(once, [] {
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    LLVMInitializeAArch64TargetInfo();
    LLVMInitializeAArch64Target();
    LLVMInitializeAArch64TargetMC();
    LLVMInitializeAArch64AsmPrinter();
  });
  std::string error;
  const llvm::Target* found = llvm::TargetRegistry::lookupTarget(target.triple, error);
  require(found != nullptr, ErrorCode::kInternal, "jit: ", error);
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  return std::unique_ptr<llvm::TargetMachine>(
      found->createTargetMachine(target.triple, target.cpu, target.features, options, llvm::Reloc::PIC_,
                                 llvm::CodeModel::Small, llvm::CodeGenOptLevel::Less, true));
}

/// Few passes: the emitted code is what it should be, but for variables and repeated index arithmetic.
void optimize(llvm::Module& module, llvm::TargetMachine& machine) {
  llvm::LoopAnalysisManager loops;
  llvm::FunctionAnalysisManager functions;
  llvm::CGSCCAnalysisManager graphs;
  llvm::ModuleAnalysisManager modules;
  llvm::PassBuilder builder(&machine);
  builder.registerModuleAnalyses(modules);
  builder.registerCGSCCAnalyses(graphs);
  builder.registerFunctionAnalyses(functions);
  builder.registerLoopAnalyses(loops);
  builder.crossRegisterProxies(loops, functions, graphs, modules);
  llvm::FunctionPassManager passes;
  passes.addPass(llvm::SROAPass(llvm::SROAOptions::ModifyCFG));
  passes.addPass(llvm::EarlyCSEPass(true));
  passes.addPass(llvm::SimplifyCFGPass());
  passes.addPass(llvm::createFunctionToLoopPassAdaptor(llvm::LICMPass(llvm::LICMOptions()), true));
  for (llvm::Function& function : module)
    if (!function.isDeclaration()) passes.run(function, functions);
}

/// The module of a kernel, as code for a target.
Emitted make_module(const Kernel& kernel, const Target& target, llvm::LLVMContext& context,
                    const std::string& name, llvm::TargetMachine& machine) {
  Emitted emitted = emit(kernel, target, context, name);
  emitted.module->setTargetTriple(target.triple);
  emitted.module->setDataLayout(machine.createDataLayout());
  std::string problems;
  llvm::raw_string_ostream stream(problems);
  require(!llvm::verifyModule(*emitted.module, &stream), ErrorCode::kInternal, "jit: kernel @", kernel.name,
          ": ", problems);
  return emitted;
}

std::string text_of(const llvm::Module& module) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  module.print(stream, nullptr);
  return text;
}

std::string assembly_of(llvm::Module& module, llvm::TargetMachine& machine) {
  llvm::SmallString<0> text;
  llvm::raw_svector_ostream stream(text);
  llvm::legacy::PassManager passes;
  require(!machine.addPassesToEmitFile(passes, stream, nullptr, llvm::CodeGenFileType::AssemblyFile),
          ErrorCode::kInternal, "jit: no assembly for ", machine.getTargetTriple().str());
  passes.run(module);
  return std::string(text);
}

/// The process's compiler: what was compiled stays in it until it is dropped.
class Engine {
 public:
  static Engine& of(Isa isa) {
    static Engine* const engines[] = {new Engine(Isa::kAvx2),
                                      new Engine(Isa::kAvx512)};  // outlive every thread
    return *engines[static_cast<size_t>(isa)];
  }

  struct Code {
    KernelFunction function;
    std::vector<Scratch> scratch;
    llvm::orc::ResourceTrackerSP tracker;
  };

  Code compile(const Kernel& kernel) {
    std::lock_guard lock(mutex_);
    if (jit_ == nullptr) start();
    const std::string name = concat("kernel_", number_++);
    auto context = std::make_unique<llvm::LLVMContext>();
    Emitted emitted = make_module(kernel, target_, *context, name, *machine_);
    optimize(*emitted.module, *machine_);
    auto tracker = jit_->getMainJITDylib().createResourceTracker();
    checked(jit_->addIRModule(tracker,
                              llvm::orc::ThreadSafeModule(std::move(emitted.module), std::move(context))),
            "adding code");
    const auto address = checked(jit_->lookup(name), "compiling");
    return {address.toPtr<KernelFunction>(), std::move(emitted.scratch), std::move(tracker)};
  }

  void drop(llvm::orc::ResourceTrackerSP& tracker) {
    std::lock_guard lock(mutex_);
    llvm::consumeError(tracker->remove());
  }

 private:
  explicit Engine(Isa isa) : target_(target_of(isa)) {}

  void start() {
    machine_ = machine_for(target_);
    llvm::orc::LLJITBuilder builder;
    builder.setDataLayout(machine_->createDataLayout());
    builder.setCompileFunctionCreator([this](const llvm::orc::JITTargetMachineBuilder&) {
      return std::make_unique<llvm::orc::TMOwningSimpleCompiler>(machine_for(target_));
    });
    jit_ = checked(builder.create(), "starting");
    auto& library = jit_->getMainJITDylib();
    library.addGenerator(
        checked(llvm::orc::DynamicLibrarySearchGenerator::GetForCurrentProcess('\0'), "symbols"));
    llvm::orc::SymbolMap symbols;
    symbols[jit_->mangleAndIntern("anynpu_jit_reduce")] = {
        llvm::orc::ExecutorAddr::fromPtr(&anynpu_jit_reduce), llvm::JITSymbolFlags::Exported};
    checked(library.define(llvm::orc::absoluteSymbols(std::move(symbols))), "symbols");
  }

  const Target target_;
  std::mutex mutex_;
  std::unique_ptr<llvm::TargetMachine> machine_;
  std::unique_ptr<llvm::orc::LLJIT> jit_;
  uint64_t number_ = 0;
};

class CompiledKernel : public Compiled {
 public:
  CompiledKernel(Kernel kernel, Isa isa) : kernel_(std::move(kernel)), isa_(isa) {
    tile::verify(kernel_);
    code_ = Engine::of(isa).compile(kernel_);
  }
  ~CompiledKernel() override { Engine::of(isa_).drop(code_.tracker); }

  const Kernel& kernel() const override { return kernel_; }

  void run(const Arguments& arguments, int64_t first, int64_t last) const override {
    std::vector<int64_t> packed = arguments.sizes;
    for (const auto& buffer : arguments.buffers) {
      packed.push_back(static_cast<int64_t>(reinterpret_cast<uintptr_t>(buffer.data)));
      packed.insert(packed.end(), buffer.strides.begin(), buffer.strides.end());
    }
    for (size_t i = 0; i < kernel_.scalars.size(); ++i)
      packed.push_back(bits_of(kernel_.type(kernel_.scalars[i]).dtype, arguments.scalars[i]));
    const auto memory = add_scratch(arguments, packed);
    tile::Fault fault;
    code_.function(packed.data(), first, last, &fault);
    if (fault.buffer >= 0) tile::raise_fault(kernel_, arguments, fault);
  }

 private:
  static int64_t bits_of(DType dtype, const tile::Literal& literal) {
    int64_t bits = 0;
    tile::visit(dtype, [&]<class T>(std::type_identity<T>) {
      const T value = std::visit([](auto number) { return tile::convert<T>(number); }, literal);
      std::memcpy(&bits, &value, sizeof(T));
    });
    return bits;
  }

  /// The addresses of the scratch regions, in memory that is returned.
  std::unique_ptr<std::byte[]> add_scratch(const Arguments& arguments, std::vector<int64_t>& packed) const {
    if (code_.scratch.empty()) return nullptr;
    constexpr int64_t kAlignment = 64, kMost = int64_t{1} << 46;
    const tile::Bounds bounds(kernel_, arguments);
    std::vector<int64_t> offsets;
    int64_t total = 0;
    for (const Scratch& region : code_.scratch) {
      const int64_t rows = std::max<int64_t>(bounds.of(region.rows).greatest, 0),
                    cols = std::max<int64_t>(bounds.of(region.cols).greatest, 0);
      require(rows < kMost && cols < kMost && (rows == 0 || cols < kMost / rows), ErrorCode::kInvalidArgument,
              "kernel @", kernel_.name, ": a tile of ", rows, " x ", cols, " does not fit memory");
      offsets.push_back(total);
      const int64_t padded = (cols + kPadding - 1) / kPadding * kPadding;
      total += (rows * padded * static_cast<int64_t>(size_of(region.dtype)) + kAlignment - 1) / kAlignment *
               kAlignment;
    }
    std::unique_ptr<std::byte[]> memory(new std::byte[static_cast<size_t>(total + kAlignment)]);
    auto start = reinterpret_cast<uintptr_t>(memory.get());
    start += (kAlignment - start % kAlignment) % kAlignment;
    for (const int64_t offset : offsets) packed.push_back(static_cast<int64_t>(start) + offset);
    return memory;
  }

  const Kernel kernel_;
  const Isa isa_;
  Engine::Code code_;
};

/// An array of states of a reduction, one component an array.
template <class Reduction, class Load, class Store>
void reduce_states(int64_t count, const Load& load, const Store& store) {
  struct Merging : Reduction {
    static typename Reduction::State take(typename Reduction::State a, typename Reduction::State b) {
      return Reduction::merge(a, b);
    }
  };
  store(tile::reduce<Merging>(count, load));
}

}  // namespace

extern "C" void anynpu_jit_reduce(int opcode, int dtype, void* const* components, int64_t count,
                                  int64_t stride) {
  using tile::Opcode;
  tile::visit(static_cast<DType>(dtype), [&]<class T>(std::type_identity<T>) {
    if constexpr (!std::is_same_v<T, tile::Half> && !std::is_same_v<T, tile::BFloat16>) {
      const auto plain = [&]<class Reduction>(std::type_identity<Reduction>) {
        auto* values = static_cast<T*>(components[0]);
        reduce_states<Reduction>(
            count, [&](int64_t i) { return values[i * stride]; }, [&](T value) { values[0] = value; });
      };
      const auto positions = [&]<class Reduction>(std::type_identity<Reduction>) {
        auto* at = static_cast<int64_t*>(components[0]);
        auto* values = static_cast<T*>(components[1]);
        reduce_states<Reduction>(
            count, [&](int64_t i) { return tile::Position<T>{values[i * stride], at[i * stride]}; },
            [&](tile::Position<T> result) { at[0] = result.position; });
      };
      switch (static_cast<Opcode>(opcode)) {
        case Opcode::kRowMax:
          return plain(std::type_identity<tile::MaxReduction<T>>());
        case Opcode::kRowMin:
          return plain(std::type_identity<tile::MinReduction<T>>());
        case Opcode::kRowArgmax:
          return positions(std::type_identity<tile::ArgReduction<T, true>>());
        case Opcode::kRowArgmin:
          return positions(std::type_identity<tile::ArgReduction<T, false>>());
        default:
          break;
      }
      if constexpr (!std::is_same_v<T, bool>) {
        if (static_cast<Opcode>(opcode) == Opcode::kRowSum)
          return plain(std::type_identity<tile::SumReduction<T>>());
        if (static_cast<Opcode>(opcode) == Opcode::kRowProd)
          return plain(std::type_identity<tile::ProdReduction<T>>());
      }
      if constexpr (std::is_floating_point_v<T>) {
        using Moments = tile::MomentsReduction<T>;
        auto *mean = static_cast<T*>(components[0]), *squares = static_cast<T*>(components[1]),
             *counts = static_cast<T*>(components[2]);
        reduce_states<Moments>(
            count,
            [&](int64_t i) {
              return typename Moments::State{counts[i * stride], mean[i * stride], squares[i * stride]};
            },
            [&](typename Moments::State state) {
              mean[0] = state.mean;
              squares[0] = state.squares;
            });
      }
    }
  });
}

Isa isa_of_machine() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                 __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")
             ? Isa::kAvx512
             : Isa::kAvx2;
}

void Compiled::run(const Arguments& arguments) const {
  tile::check_arguments(kernel(), arguments);
  run(arguments, 0, tile::blocks_of(kernel(), arguments));
}

std::shared_ptr<const Compiled> compile(Kernel kernel, Isa isa) {
  return std::make_shared<CompiledKernel>(std::move(kernel), isa);
}

std::string code_text(const Kernel& kernel, Stage stage, Isa isa) {
  if (stage == Stage::kSchedule) return text_of(kernel, schedule(kernel));
  const Target target = stage == Stage::kAssemblyAArch64 ? aarch64() : target_of(isa);
  const auto machine = machine_for(target);
  llvm::LLVMContext context;
  const Emitted emitted = make_module(kernel, target, context, kernel.name, *machine);
  if (stage == Stage::kEmitted) return text_of(*emitted.module);
  optimize(*emitted.module, *machine);
  return stage == Stage::kOptimized ? text_of(*emitted.module) : assembly_of(*emitted.module, *machine);
}

}  // namespace anynpu::jit
