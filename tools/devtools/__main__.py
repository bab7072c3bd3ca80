"""The commands of `./dev`."""

import os
import signal
import subprocess
import sys
from typing import Annotated

import typer

from . import ROOT, build, docs, lint, suites

app = typer.Typer(add_completion=False, no_args_is_help=True, help="Builds, tests and measures anynpu.")
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def python(*command: str) -> int:
    return subprocess.run([sys.executable, *command], cwd=ROOT).returncode


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
    suite: Annotated[str | None, typer.Argument(help=f"one of {', '.join(suites.SUITES)}; none: all")] = None,
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
    raise typer.Exit(suites.run(names or suites.ALL, k))


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
    build.build("release")
    raise typer.Exit(python("examples/demo/demo.py", *context.args))


@app.command(context_settings=PASS_ON)
def bench(context: typer.Context, topic: Annotated[str | None, typer.Argument()] = None) -> None:
    """Ratios against rivals, measured in one run; without a topic, lists them."""
    topics = sorted(
        path.stem for path in (ROOT / "bench").glob("*.py") if '__name__ == "__main__"' in path.read_text()
    )
    if topic in (None, "--help"):
        typer.echo("\n".join(topics))
        return
    if topic not in topics:
        raise typer.BadParameter(f"'{topic}' is not one of {', '.join(topics)}", param_hint="topic")
    build.build("release")
    raise typer.Exit(python(f"bench/{topic}.py", *context.args))


@app.command(context_settings=PASS_ON)
def conformance(context: typer.Context) -> None:
    """PyTorch's operator database on npu against the CPU; `-k NAME` takes a part of it."""
    build.build("release")
    raise typer.Exit(python("-m", "conformance", *context.args))


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
    """Random tests; what is found is printed with its seed."""
    build.build("release")
    program = build.folder("release") / "test" / f"fuzz_{target}"
    if not program.exists():
        raise typer.BadParameter(f"'{target}' is not one of tile", param_hint="target")
    arguments = [str(seconds), *([] if seed is None else [str(seed)])]
    raise typer.Exit(subprocess.call([str(program), *arguments]))


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
