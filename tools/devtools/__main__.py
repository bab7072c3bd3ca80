"""The commands of `./dev`."""

import ast
import os
import signal
import subprocess
import sys
from typing import Annotated

import typer

from . import ROOT, build, docs, emulator, lint, suites

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Builds, tests and measures anynpu.")
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def build_and_run(*command: str) -> int:
    """Runs Python with a program of the project, after a build; a program's help needs no device, so none."""
    environment = dict(os.environ)
    if {"-h", "--help"} & set(command):
        environment["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
    else:
        build.build("release")
    return subprocess.run([sys.executable, *command], cwd=ROOT, env=environment).returncode


def bench_topics() -> dict[str, str]:
    """The benchmarks that are programs, and the first line of what each says of itself."""
    topics = {}
    for path in sorted((ROOT / "bench").glob("*.py")):
        text = path.read_text()
        if '__name__ == "__main__"' in text:
            topics[path.stem] = (ast.get_docstring(ast.parse(text)) or "").partition("\n")[0]
    return topics


@app.command("build")
def build_command(
    asan: Annotated[bool, typer.Option("--asan", help="with the address and undefined sanitizers")] = False,
    tsan: Annotated[bool, typer.Option("--tsan", help="with the thread sanitizer")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="without optimisation")] = False,
) -> None:
    """Native build."""
    flavours = [name for name, wanted in (("asan", asan), ("tsan", tsan), ("debug", debug)) if wanted]
    for flavour in flavours or ["release"]:
        build.build(flavour)


@app.command()
def test(
    suite: Annotated[
        str | None,
        typer.Argument(
            help=f"one of {', '.join(suites.SUITES)}; none: all, of asan and tsan the one whose turn it "
            "is. tiny, for before a commit, is the fast C++ tests that start no other processes and the "
            "fastest of test/torch"
        ),
    ] = None,
    k: Annotated[str | None, typer.Option("-k", help="only tests whose name contains this")] = None,
    asan: Annotated[bool, typer.Option("--asan", help="the C++ tests under the address sanitizer")] = False,
    tsan: Annotated[bool, typer.Option("--tsan", help="the C++ tests under the thread sanitizer")] = False,
) -> None:
    """Tests; ends with one line that sums up all runners."""
    names = [name for name, wanted in (("asan", asan), ("tsan", tsan)) if wanted]
    if suite is not None:
        if suite not in suites.SUITES:
            raise typer.BadParameter(
                f"'{suite}' is not one of {', '.join(suites.SUITES)}", param_hint="suite"
            )
        names.append(suite)
    raise typer.Exit(suites.run(names or suites.everything(), k))


@app.command(context_settings=PASS_ON)
def run(context: typer.Context) -> None:
    """Runs a command inside the project's environment, in the caller's folder."""
    if not context.args or context.args[0].startswith("-"):
        raise typer.BadParameter("which command? ./dev run CMD…", param_hint="CMD")
    build.build("release", quiet=True)
    own = (ROOT / ".venv/bin", build.folder("release") / "tools")
    os.environ["PATH"] = os.pathsep.join([*map(str, own), os.environ["PATH"]])
    os.environ["VIRTUAL_ENV"] = str(ROOT / ".venv")
    os.chdir(os.environ.get("OLDPWD", "."))  # ./dev itself works in the project's folder
    try:
        os.execvp(context.args[0], context.args)
    except OSError as error:
        typer.echo(f"./dev run: {context.args[0]}: {error.strerror}", err=True)
        raise typer.Exit(127) from error


@app.command(context_settings=PASS_ON)
def demo(context: typer.Context) -> None:
    """Trains and generates on device npu, and compares with PyTorch CPU."""
    raise typer.Exit(build_and_run("examples/demo/demo.py", *context.args))


@app.command(context_settings=PASS_ON)
def bench(context: typer.Context, topic: Annotated[str | None, typer.Argument()] = None) -> None:
    """Ratios against rivals, measured in one run; without a topic, lists them."""
    topics = bench_topics()
    if topic in (None, "-h", "--help"):
        typer.echo("\n".join(f"{name:<10}{what}" for name, what in topics.items()))
        return
    if topic not in topics:
        raise typer.BadParameter(f"'{topic}' is not one of {', '.join(topics)}", param_hint="topic")
    raise typer.Exit(build_and_run(f"bench/{topic}.py", *context.args))


@app.command(context_settings=PASS_ON)
def conformance(context: typer.Context) -> None:
    """PyTorch's operator database on npu against the CPU; `-k NAME` takes a part of it."""
    raise typer.Exit(build_and_run("-m", "conformance", *context.args))


@app.command()
def wheel(
    k: Annotated[str | None, typer.Option("-k", help="only tests whose name contains this")] = None,
) -> None:
    """The published torch_npu wheel over the libraries of this tree, compared with PyTorch CPU."""
    raise typer.Exit(suites.run(["published"], k))


@app.command()
def fuzz(
    target: Annotated[
        str, typer.Argument(help="tile: random tile programs, interpreter against machine code")
    ],
    seconds: Annotated[float, typer.Option(help="how long, unless something is found")] = 60,
    seed: Annotated[int | None, typer.Option(help="of the first case; the time, when not given")] = None,
) -> None:
    """Random tests; what is found is printed with its seed, and in the end what was tested and how long."""
    build.build("release")
    program = build.folder("release") / "test" / f"fuzz_{target}"
    if not program.exists():
        raise typer.BadParameter(f"'{target}' is not one of tile", param_hint="target")
    arguments = [str(seconds), *([] if seed is None else [str(seed)])]
    os.execv(program, [str(program), *arguments])  # which ends on signals by itself


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def emulate(
    context: typer.Context,
    program: Annotated[str, typer.Argument(help="test_jit, fuzz_tile, ...; what follows are its arguments")],
) -> None:
    """Runs a C++ test program on an emulated processor with AVX-512."""
    build.build("release")
    programs = sorted(path.name for path in build.folder("release").glob("test/*_*") if path.is_file())
    if program not in programs:
        known = ", ".join(programs)
        raise typer.BadParameter(f"'{program}' is not one of {known}", param_hint="program")
    raise typer.Exit(emulator.run(program, context.args))


@app.command()
def fmt() -> None:
    """Formats all sources."""
    lint.format_all()


@app.command("lint")
def lint_command() -> None:
    """Formatting, static checks, layering, generated files."""
    build.build("release")
    raise typer.Exit(suites.run(["lint"], None))


@app.command("docs")
def docs_command(
    check: Annotated[bool, typer.Option("--check", help="only say what is stale")] = False,
) -> None:
    """Regenerates the generated parts of docs/."""
    build.build("release", quiet=True)
    stale = docs.update(check)
    for line in stale:
        typer.echo(line)
    raise typer.Exit(1 if check and stale else 0)


@app.command()
def options() -> None:
    """The environment variables that change what the library does."""
    build.build("release", quiet=True)
    typer.echo(docs.options_table())


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that test programs end too
    app(prog_name="./dev")
