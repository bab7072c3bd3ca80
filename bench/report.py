"""What benchmarks that are programs have in common: options, tables, and the end of their output."""

import argparse
import json
import os
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

WIDTH = 140  # of the tables where the output is no terminal


def parser_of(topic, description):
    parser = argparse.ArgumentParser(prog=f"./dev bench {topic}", description=description)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures to this file too")
    return parser


def console():
    made = Console(highlight=False)
    return made if made.is_terminal else Console(highlight=False, width=WIDTH)


def verdict(met):
    """``met`` is None where there is no aim."""
    return {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[met]


def table_of(title, *columns):
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", pad_edge=False)
    for i, name in enumerate(columns):
        table.add_column(name, justify="left" if i == 0 else "right")
    return table


def finish(console, options, figures):
    """Writes the figures where the options say so, and tells what may have disturbed them."""
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    if (load := os.getloadavg()[0]) > os.cpu_count() + 1:
        console.print(f"[yellow]load average {load:.1f}[/]: other work disturbed these figures")
