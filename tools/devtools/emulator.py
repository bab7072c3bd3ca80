"""Runs a C++ test program on a processor with AVX-512, for machines without one.

Bochs emulates a whole machine. It boots a kernel of Debian's, whose first process runs the program; that and
the libraries that it needs are files in the machine's memory, and its output comes through a serial line.
"""

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from . import ROOT, build

PROCESSOR = "corei7_skylake_x"
MEMORY = 2048  # MiB
# Bochs 2.7 and the kernel disagree on the size of what these two features save; it would do without AVX.
KERNEL_OPTIONS = "console=ttyS0 clearcpuid=xsavec,xsaves mitigations=off nokaslr nosmp tsc=reliable panic=1"
STATUS = "exit status "
INIT = f"""#!/bin/busybox sh
busybox mount -t proc proc /proc
busybox mount -t devtmpfs dev /dev
busybox mount -t tmpfs tmp /tmp
export HOME=/tmp ANYNPU_CACHE_DIR=off GTEST_COLOR=no
echo BOOTED
if busybox grep -q avx512vl /proc/cpuinfo; then
  busybox sh /run
else
  echo 'the kernel found no AVX-512'
  false
fi
echo "{STATUS}$?"
busybox sleep 2
busybox poweroff -f
"""
BOOT = f"""default l
label l
  kernel /kernel
  append initrd=/files {KERNEL_OPTIONS} quiet
"""
DISK = "-b isolinux/isolinux.bin -c isolinux/boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table"
MACHINE = """display_library: rfb, options="timeout=0"
cpu: model={processor}, count=1, ips=80000000
memory: guest={memory}, host={memory}
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/vgabios/vgabios.bin
ata0-master: type=cdrom, path={folder}/disk.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev={folder}/output
log: {folder}/log
clock: sync=none
panic: action=fatal
"""


def run(name: str, arguments: list[str]) -> int:
    """The exit status of a test program of the release build, whose output is passed on."""
    with tempfile.TemporaryDirectory(prefix="anynpu-emulator-") as folder:
        make_disk(Path(folder), build.folder("release") / "test" / name, arguments)
        return emulate(Path(folder))


def make_disk(folder: Path, program: Path, arguments: list[str]) -> None:
    files, disk = folder / "files", folder / "disk"
    for name in ("bin", "proc", "dev", "tmp"):
        (files / name).mkdir(parents=True)
    (disk / "isolinux").mkdir(parents=True)
    shutil.copy("/bin/busybox", files / "bin")
    own = sorted((ROOT / "anynpu" / "lib64").glob("libanynpu*.so"))
    for path in {*own, program, *(needed for file in (*own, program) for needed in libraries_of(file))}:
        target = files / str(path).lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
    (files / "run").write_text(shlex.join([str(program), *arguments]) + "\n")
    (files / "init").write_text(INIT)
    (files / "init").chmod(0o755)
    listed = output_of("find", ".", cwd=files)
    with open(disk / "files", "wb") as archive:
        subprocess.run(
            ["cpio", "-o", "-H", "newc", "--quiet"],
            cwd=files,
            input=listed.encode(),
            stdout=archive,
            check=True,
        )
    shutil.copy(kernel(), disk / "kernel")
    shutil.copy("/usr/lib/ISOLINUX/isolinux.bin", disk / "isolinux")
    shutil.copy("/usr/lib/syslinux/modules/bios/ldlinux.c32", disk / "isolinux")
    (disk / "isolinux" / "isolinux.cfg").write_text(BOOT)
    output_of("xorriso", "-as", "mkisofs", "-o", folder / "disk.iso", *DISK.split(), disk)


def output_of(*command: str | Path, cwd: Path | None = None) -> str:
    """What a command prints; where it fails, that ends the program."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"./dev emulate: {' '.join(map(str, command))}: {done.stderr or done.stdout}")
    return done.stdout


def libraries_of(path: Path) -> list[Path]:
    """The paths by which the loader finds them, itself among them."""
    return [Path(found) for found in re.findall(r"(/\S+) \(0x", output_of("ldd", path))]


def kernel() -> Path:
    """Debian's, for virtual machines: downloaded once, and not installed."""
    folder = ROOT / "build" / "emulator"
    if not (found := sorted(folder.glob("boot/vmlinuz-*"))):
        folder.mkdir(parents=True, exist_ok=True)
        depends = output_of("apt-cache", "depends", "linux-image-cloud-amd64")
        output_of("apt-get", "download", re.search(r"Depends: (linux-image-\S+)", depends)[1], cwd=folder)
        output_of("dpkg-deb", "-x", next(folder.glob("*.deb")), folder)
        found = sorted(folder.glob("boot/vmlinuz-*"))
    return found[-1]


def emulate(folder: Path) -> int:
    """Boots the disk, and passes on what is printed after that; the program's exit status."""
    (folder / "machine").write_text(MACHINE.format(processor=PROCESSOR, memory=MEMORY, folder=folder))
    (folder / "start").write_text("c\n")  # Debian's Bochs has a debugger, which waits for a command
    bochs = subprocess.Popen(
        ["bochs-bin", "-q", "-f", folder / "machine", "-rc", folder / "start"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    output, shown, booted, status = folder / "output", 0, False, None
    try:
        while True:
            ended = bochs.poll() is not None
            text = output.read_text(errors="replace") if output.exists() else ""
            lines = text.split("\n")
            if not ended:
                lines.pop()  # it is not whole
            for line in lines[shown:]:
                if line.startswith(STATUS):
                    status = int(line.removeprefix(STATUS))
                elif booted and status is None:
                    print(line, flush=True)
                booted = booted or line.strip() == "BOOTED"
            shown = max(shown, len(lines))
            if ended:
                break
            time.sleep(0.5)
    finally:
        bochs.kill()
    if status is None:
        print((folder / "log").read_text(errors="replace")[-2000:], file=sys.stderr)
        sys.exit("./dev emulate: the emulated machine ended before the program did")
    return status
