"""The wheel, as a user installs it, and the toolkit inside: CMake, environment script, compilers."""

import fcntl
import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from devtools.build import CCACHE

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
# Kept from run to run, and built as ./dev builds, so that ccache knows most of it.
BUILDS = ROOT / "build"
ENVIRONMENT = os.environ | CCACHE | {f"CMAKE_{name}_COMPILER_LAUNCHER": "ccache" for name in ("C", "CXX")}
pytestmark = pytest.mark.timeout(1800)  # a first build

CMAKE_CLIENT = """
cmake_minimum_required(VERSION 3.25)
project(client C)
find_package(anynpu 0.1 REQUIRED)
add_executable(client {source})
target_link_libraries(client anynpu::ascendcl)
"""

# What a user types: the script is all that says where the toolkit is.
CONFIGURE_AND_RUN = """
unset CMAKE_PREFIX_PATH anynpu_DIR
source {prefix}/set_env.sh
cmake -G Ninja -S . -B build
cmake --build build
build/client
"""


def client_of(prefix, folder):
    """What the CMake client prints that is built in `folder` with the toolkit at `prefix`."""
    (folder / "CMakeLists.txt").write_text(CMAKE_CLIENT.format(source=HERE / "minimal.c"))
    return run("bash", "-euc", CONFIGURE_AND_RUN.format(prefix=prefix), cwd=folder).splitlines()[-1]


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built by the first of pytest's workers that needs it."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent  # which the workers share
    folder /= "wheel"
    with open(BUILDS / ".wheel.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not list(folder.glob("*.whl")):
            run(
                *(
                    sys.executable,
                    "-m",
                    "pip",
                    "wheel",
                    ROOT,
                    "--no-deps",
                    "--no-build-isolation",
                    "-w",
                    folder,
                ),
                *("--config-settings", f"build-dir={BUILDS / 'wheel'}"),
                env=ENVIRONMENT,
            )
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def site(wheel, tmp_path_factory):
    """A folder with the installed wheel, which comes before the source tree."""
    folder = tmp_path_factory.mktemp("site")
    run(sys.executable, "-m", "pip", "install", "--no-deps", "--target", folder, wheel)
    return folder


@pytest.fixture
def python(site, tmp_path):
    def call(*arguments):
        return run(sys.executable, *arguments, cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(site)})

    return call


C_LIBRARIES = (
    "acl_cblas",
    "acl_op_compiler",
    "acl_tdt_channel",
    "ascendcl",
    "ge_runner",
    "graph",
    "hccl",
    "opapi",
)


def test_the_wheel_holds_what_runs_and_nothing_else(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {
        "anynpu/__init__.py",
        "anynpu/include/acl/acl.h",
        "anynpu/lib/cmake/anynpu/anynpuConfig.cmake",
        "anynpu/lib64/libanynpu.so",
        "anynpu/lib64/libanynpu_jit.so",
        *(f"anynpu/lib64/lib{name}.so" for name in C_LIBRARIES),
        *(f"anynpu/{part}/README.md" for part in ("compiler", "opp", "runtime")),
        "anynpu/set_env.sh",
        "torch_npu/__init__.py",
        "torch_npu/_C.cpython-311-x86_64-linux-gnu.so",
    } <= names
    folders = {name.split("/")[0] for name in names}
    assert folders == {"anynpu", "torch_npu", "anynpu-0.1.0.dist-info"}
    odd = {name for name in names if name.endswith((".cpp", ".o", ".a", ".pyc", ".txt"))}
    assert {name for name in odd if "dist-info" not in name} == set()


SYSTEM = {"libc.so.6", "libgcc_s.so.1", "libm.so.6", "libstdc++.so.6", "ld-linux-x86-64.so.2"}
OF_TORCH = {"libc10.so", "libgomp.so.1", "libtorch_cpu.so", "libtorch_python.so"}
OWN = {"libanynpu.so", "libascendcl.so"}
NEWEST = {"GLIBC": (2, 34), "GLIBCXX": (3, 4, 29)}  # README.md names the systems that have them


def test_the_wheel_needs_torch_and_a_system_without_build_tools(site):
    libraries = sorted(site.rglob("*.so"))
    assert len(libraries) == len(C_LIBRARIES) + 3  # libanynpu, libanynpu_jit, torch_npu._C
    for library in libraries:
        text = run("readelf", "-dVW", library)
        needed = set(re.findall(r"\(NEEDED\).*\[(.*)\]", text))
        assert needed <= SYSTEM | OF_TORCH | OWN, library
        if "torch_npu" not in library.parts:  # for C programs too, in a process without torch
            assert needed & OF_TORCH <= {"libgomp.so.1"}, library
        for path in re.findall(r"\((?:RUNPATH|RPATH)\).*\[(.*)\]", text):
            assert all(part.startswith("$ORIGIN") for part in path.split(":")), (library, path)
        for name, newest in NEWEST.items():
            versions = re.findall(rf"Name: {name}_([\d.]+)", text)
            found = (tuple(map(int, version.split("."))) for version in versions)
            assert max(found, default=newest) <= newest, library  # a library without code needs none


def test_the_wheel_serves_torch(python, site):
    program = (
        "import torch, torch_npu, anynpu; print(torch_npu.__file__, (torch.ones(3).npu() + 1).sum().item(),"
        " torch_npu.__version__, anynpu.__version__)"
    )
    file, total, *versions = python("-c", program).split()
    assert Path(file).is_relative_to(site)
    assert total == "6.0"
    assert versions == ["0.1.0", "0.1.0"]


def test_find_package(python, site, tmp_path):
    (tmp_path / "CMakeLists.txt").write_text(CMAKE_CLIENT.format(source=HERE / "minimal.c"))
    anynpu_dir = python("-m", "anynpu", "--cmakedir").strip()
    assert Path(anynpu_dir).is_relative_to(site)
    build = tmp_path / "build"
    run("cmake", "-G", "Ninja", "-S", tmp_path, "-B", build, f"-Danynpu_DIR={anynpu_dir}")
    run("cmake", "--build", build)
    assert run(build / "client") == "Ascend910B2 41\n"


def test_the_environment_script_is_enough_for_find_package(python, tmp_path):
    assert client_of(python("-m", "anynpu", "--prefix").strip(), tmp_path) == "Ascend910B2 41"


@pytest.mark.parametrize("version", ["0.2", "1.0", "0.0.1"])
def test_find_package_refuses_other_versions(python, tmp_path, version):
    text = CMAKE_CLIENT.format(source=HERE / "minimal.c").replace("anynpu 0.1", f"anynpu {version}")
    (tmp_path / "CMakeLists.txt").write_text(text)
    anynpu_dir = python("-m", "anynpu", "--cmakedir").strip()
    done = subprocess.run(
        ["cmake", "-G", "Ninja", "-S", tmp_path, "-B", tmp_path / "build", f"-Danynpu_DIR={anynpu_dir}"],
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    assert "requested version" in done.stderr


def test_the_environment_script(python, tmp_path):
    script = Path(python("-m", "anynpu", "--prefix").strip()) / "set_env.sh"
    build_and_run = f"""
        source {script}
        gcc -I$ASCEND_HOME_PATH/include {HERE / "minimal.c"} -o client -L$ASCEND_TOOLKIT_HOME/lib64 -lascendcl
        ./client
    """
    environment = {key: value for key, value in os.environ.items() if key != "LD_LIBRARY_PATH"}
    assert run("bash", "-euc", build_and_run, cwd=tmp_path, env=environment) == "Ascend910B2 41\n"


def test_the_toolkit_without_torch(tmp_path):
    """C and C++ users need neither Python nor PyTorch: CMake alone builds and installs the same layout."""
    build, prefix = BUILDS / "toolkit", tmp_path / "toolkit"
    options = ["-DANYNPU_TORCH=OFF", "-DANYNPU_TESTS=OFF", "-DANYNPU_BENCH=OFF", "-DANYNPU_JIT=OFF"]
    run("cmake", "-S", ROOT, "-B", build, "-GNinja", *options, env=ENVIRONMENT)
    run("cmake", "--build", build, env=ENVIRONMENT)
    run("cmake", "--install", build, "--prefix", prefix)
    for part in ("include/acl/acl.h", "lib64/libascendcl.so", "lib/cmake/anynpu/anynpuConfig.cmake"):
        assert (prefix / part).exists(), part
    program = (
        f"source {prefix / 'set_env.sh'}; gcc -I$ASCEND_HOME_PATH/include {HERE / 'minimal.c'} -o c "
        + ("-L$ASCEND_HOME_PATH/lib64 -lascendcl && ./c")
    )
    assert run("bash", "-euc", program, cwd=tmp_path) == "Ascend910B2 41\n"
    assert client_of(prefix, tmp_path) == "Ascend910B2 41"


def test_the_source_tree_has_no_toolkit():
    done = subprocess.run(
        [sys.executable, "-m", "anynpu", "--prefix"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "source tree" in done.stderr
