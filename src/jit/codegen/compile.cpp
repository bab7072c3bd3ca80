#include <llvm/Analysis/CGSCCPassManager.h>
#include <llvm/Analysis/LoopAnalysisManager.h>
#include <llvm/IR/LegacyPassManager.h>
#include <llvm/IR/Verifier.h>
#include <llvm/MC/TargetRegistry.h>
#include <llvm/Passes/PassBuilder.h>
#include <llvm/Support/TargetSelect.h>
#include <llvm/Target/TargetMachine.h>
#include <llvm/Transforms/Scalar/EarlyCSE.h>
#include <llvm/Transforms/Scalar/LICM.h>
#include <llvm/Transforms/Scalar/LoopPassManager.h>
#include <llvm/Transforms/Scalar/SROA.h>
#include <llvm/Transforms/Scalar/SimplifyCFG.h>

#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/fork.h"
#include "jit/build_id.h"
#include "jit/codegen/emit.h"
#include "jit/codegen/link.h"
#include "jit/codegen/schedule.h"

namespace anynpu::jit {
namespace {

using tile::Kernel;

constexpr const char* kX86 = "x86_64-unknown-linux-gnu";
constexpr const char* kEntry = "kernel";

Target target_of(Isa isa) {
  // Features by name and not the machine's: one instruction set level gives one result.
  if (isa == Isa::kAvx2) return {kX86, "x86-64-v3", "", vector_registers(isa), 4, isa};
  const char* features = isa == Isa::kAvx512 ? "-prefer-256-bit" : "-prefer-256-bit,+avx512bf16,+avx512vnni";
  return {kX86, "x86-64-v4", features, vector_registers(isa), 1, isa};
}
Target aarch64() {
  return {"aarch64-unknown-linux-gnu", "generic", "+neon,+fp-armv8", {4, 32, 16}, 0, std::nullopt};
}

std::unique_ptr<llvm::TargetMachine> machine_for(const Target& target) {
  std::string error;
  const llvm::Target* found = llvm::TargetRegistry::lookupTarget(target.triple, error);
  require(found != nullptr, ErrorCode::kInternal, "jit: ", error);
  llvm::TargetOptions options;
  options.AllowFPOpFusion = llvm::FPOpFusion::Strict;
  std::unique_ptr<llvm::TargetMachine> machine(
      found->createTargetMachine(target.triple, target.cpu, target.features, options, llvm::Reloc::PIC_,
                                 llvm::CodeModel::Small, llvm::CodeGenOptLevel::Less, true));
  machine->setO0WantsFastISel(false);  // of functions that are not to be optimized; see leave_to_backend()
  return machine;
}

/// Leaves to the backend what makes good code of good IR: selecting instructions and allocating registers.
/// Its optimizations take as long again and find nothing (loop strength reduction makes addresses dearer) but
/// in products of matrices, whose sums they keep in their registers.
void leave_to_backend(llvm::Module& module) {
  for (llvm::Function& function : module)
    if (!function.isDeclaration()) {
      function.addFnAttr(llvm::Attribute::OptimizeNone);
      function.addFnAttr(llvm::Attribute::NoInline);  // goes with it
    }
}

/// Few passes: the emitted code is what it should be, but for variables and repeated index arithmetic.
void optimize(const Emitted& emitted, llvm::TargetMachine& machine) {
  llvm::Module& module = *emitted.module;
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
  if (!emitted.has_products) leave_to_backend(module);
}

/// The module of a kernel, as code for a target.
Emitted make_module(const Kernel& kernel, const Target& target, llvm::LLVMContext& context,
                    const std::string& name, llvm::TargetMachine& machine) {
  Emitted emitted = emit(kernel, target, context, name);
  llvm::Module& module = *emitted.module;
  module.setTargetTriple(target.triple);
  module.setDataLayout(machine.createDataLayout());
  module.setRtLibUseGOT();  // calls go through the table of link()
  for (llvm::Function& function : module)
    if (function.isDeclaration()) function.addFnAttr(llvm::Attribute::NonLazyBind);
  return emitted;
}

std::string text_of(const llvm::Module& module) {
  std::string text;
  llvm::raw_string_ostream stream(text);
  module.print(stream, nullptr);
  return text;
}

/// A target machine and its passes from IR to a file, which serve one module after another: making them takes
/// longer than they take for a small kernel.
class Backend {
 public:
  Backend(const Target& target, llvm::CodeGenFileType type) : machine_(machine_for(target)), stream_(file_) {
    require(!machine_->addPassesToEmitFile(passes_, stream_, nullptr, type), ErrorCode::kInternal,
            "jit: no code for ", target.triple);
  }

  llvm::TargetMachine& machine() { return *machine_; }

  std::string run(llvm::Module& module) {
    file_.clear();
    passes_.run(module);
    return std::string(file_);
  }

 private:
  std::unique_ptr<llvm::TargetMachine> machine_;
  llvm::SmallString<0> file_;
  llvm::raw_svector_ostream stream_;
  llvm::legacy::PassManager passes_;
};

class LlvmCompiler final : public Compiler {
 public:
  LlvmCompiler() {
    hold_in_forks(mutex_);
    llvm::InitializeNativeTarget();
    llvm::InitializeNativeTargetAsmPrinter();
    LLVMInitializeAArch64TargetInfo();
    LLVMInitializeAArch64Target();
    LLVMInitializeAArch64TargetMC();
    LLVMInitializeAArch64AsmPrinter();
  }

  Code compile(const Kernel& kernel, Isa isa) override {
    std::lock_guard lock(mutex_);
    auto& backend = backends_[static_cast<size_t>(isa)];
    const Target target = target_of(isa);
    if (backend == nullptr) backend = std::make_unique<Backend>(target, llvm::CodeGenFileType::ObjectFile);
    llvm::LLVMContext context;
    const Emitted emitted = make_module(kernel, target, context, kEntry, backend->machine());
    optimize(emitted, backend->machine());
    Code code = link(backend->run(*emitted.module), kEntry);
    code.scratch = emitted.scratch;
    return code;
  }

  std::string text(const Kernel& kernel, Stage stage, Isa isa) override {
    if (stage == Stage::kSchedule) return text_of(kernel, schedule(kernel));
    const Target target = stage == Stage::kAssemblyAArch64 ? aarch64() : target_of(isa);
    std::lock_guard lock(mutex_);
    Backend backend(target, llvm::CodeGenFileType::AssemblyFile);
    llvm::LLVMContext context;
    const Emitted emitted = make_module(kernel, target, context, kernel.name, backend.machine());
    std::string problems;
    llvm::raw_string_ostream stream(problems);
    require(!llvm::verifyModule(*emitted.module, &stream), ErrorCode::kInternal, "jit: kernel @", kernel.name,
            ": ", problems);
    if (stage == Stage::kEmitted) return text_of(*emitted.module);
    optimize(emitted, backend.machine());
    return stage == Stage::kOptimized ? text_of(*emitted.module) : backend.run(*emitted.module);
  }

 private:
  std::mutex mutex_;
  std::unique_ptr<Backend> backends_[std::size(kIsaNames)];  ///< by Isa
};

}  // namespace

extern "C" __attribute__((visibility("default"))) Compiler* anynpu_jit_compiler(const char* wanted,
                                                                                const char** built) {
  *built = kBuildId;
  if (std::string_view(wanted) != kBuildId) return nullptr;
  static auto* const compiler = new LlvmCompiler;  // outlives every thread
  return compiler;
}

}  // namespace anynpu::jit
