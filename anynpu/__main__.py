"""Prints where build files find the toolkit."""

import argparse

import anynpu


def main():
    parser = argparse.ArgumentParser(prog="python -m anynpu", description=__doc__)
    parser.add_argument("--version", action="version", version=anynpu.__version__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--prefix", dest="part", action="store_const", const=".", help="the toolkit's root")
    what.add_argument(
        "--cmakedir",
        dest="part",
        action="store_const",
        const="lib/cmake/anynpu",
        help="the folder of anynpuConfig.cmake, for CMake's anynpu_DIR",
    )
    what.add_argument(
        "--includedir", dest="part", action="store_const", const="include", help="the folder of acl/acl.h"
    )
    part = parser.parse_args().part
    try:
        print(anynpu.prefix() / part)
    except RuntimeError as error:
        parser.exit(1, f"{error}\n")


main()
