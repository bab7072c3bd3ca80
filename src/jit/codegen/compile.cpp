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
  if (isa == Isa::kAvx512) return {kX86, "x86-64-v4", "-prefer-256-bit", 16, true};
  return {kX86, "x86-64-v3", "", 8, false};
}
Target aarch64() { return {"aarch64-unknown-linux-gnu", "generic", "+neon,+fp-armv8", 4, false}; }

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

/// Leaves to the backend what makes good code of good IR: selecting instructions and allocating registers. Its
/// optimizations take as long again and find nothing: loop strength reduction makes addresses dearer.
void leave_to_backend(llvm::Module& module) {
  for (llvm::Function& function : module)
    if (!function.isDeclaration()) {
      function.addFnAttr(llvm::Attribute::OptimizeNone);
      function.addFnAttr(llvm::Attribute::NoInline);  // goes with it
    }
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
  leave_to_backend(module);
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

std::string generate(llvm::Module& module, llvm::TargetMachine& machine, llvm::CodeGenFileType type) {
  llvm::SmallString<0> text;
  llvm::raw_svector_ostream stream(text);
  llvm::legacy::PassManager passes;
  require(!machine.addPassesToEmitFile(passes, stream, nullptr, type), ErrorCode::kInternal,
          "jit: no code for ", machine.getTargetTriple().str());
  passes.run(module);
  return std::string(text);
}

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
    auto& machine = machines_[static_cast<size_t>(isa)];
    const Target target = target_of(isa);
    if (machine == nullptr) machine = machine_for(target);
    llvm::LLVMContext context;
    const Emitted emitted = make_module(kernel, target, context, kEntry, *machine);
    optimize(*emitted.module, *machine);
    Code code = link(generate(*emitted.module, *machine, llvm::CodeGenFileType::ObjectFile), kEntry);
    code.scratch = emitted.scratch;
    return code;
  }

  std::string text(const Kernel& kernel, Stage stage, Isa isa) override {
    if (stage == Stage::kSchedule) return text_of(kernel, schedule(kernel));
    const Target target = stage == Stage::kAssemblyAArch64 ? aarch64() : target_of(isa);
    std::lock_guard lock(mutex_);
    const auto machine = machine_for(target);
    llvm::LLVMContext context;
    const Emitted emitted = make_module(kernel, target, context, kernel.name, *machine);
    std::string problems;
    llvm::raw_string_ostream stream(problems);
    require(!llvm::verifyModule(*emitted.module, &stream), ErrorCode::kInternal, "jit: kernel @", kernel.name,
            ": ", problems);
    if (stage == Stage::kEmitted) return text_of(*emitted.module);
    optimize(*emitted.module, *machine);
    return stage == Stage::kOptimized
               ? text_of(*emitted.module)
               : generate(*emitted.module, *machine, llvm::CodeGenFileType::AssemblyFile);
  }

 private:
  std::mutex mutex_;
  std::unique_ptr<llvm::TargetMachine> machines_[2];  ///< by Isa
};

}  // namespace

extern "C" __attribute__((visibility("default"))) Compiler* anynpu_jit_compiler(const char* wanted,
                                                                                const char** built) {
  *built = kBuildId.data();
  if (wanted != kBuildId) return nullptr;
  static auto* const compiler = new LlvmCompiler;  // outlives every thread
  return compiler;
}

}  // namespace anynpu::jit
