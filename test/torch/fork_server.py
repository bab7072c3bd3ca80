"""Python programs in processes of their own, without the seconds that `import torch` takes in each.

A server, which this module starts, imports torch without its device backends and forks for each program; the
fork becomes the program as an interpreter of its own would: its environment, folder, outputs, `__main__` and
arguments, the device backend that `import torch` loads, and the interpreter's own end. What is read before or
while torch is imported (OMP_NUM_THREADS, PYTHONHASHSEED, LD_PRELOAD) is the server's.

A process of `multiprocessing.forkserver` leaves by os._exit(), without the end that programs here test.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

# What is read when the device backend is loaded or later: a program may have other values than the server.
READ_LATE = (
    "ANYNPU_",
    "PYTORCH_ALLOC_CONF",
    "PYTORCH_NPU_ALLOC_CONF",
    "TORCH_DEVICE_BACKEND_AUTOLOAD",
    "TORCH_NPU_",
)
LARGEST_REQUEST = 1 << 17  # bytes


class ForkServer:
    """The caller's end. `environment` is that of the server."""

    def __init__(self, environment):
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.process = subprocess.Popen(
            [sys.executable, "-c", f"import fork_server; exec(fork_server.serve({theirs.fileno()}))"],
            cwd=Path(__file__).parent,
            env=environment | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
        theirs.close()

    def run(self, program, environment, stdout, stderr, *, timeout):
        """Runs the file `program` in its folder, and returns its exit code as subprocess does."""
        request = json.dumps({"program": str(program), "environment": environment}).encode()
        assert len(request) <= LARGEST_REQUEST
        socket.send_fds(self.connection, [request], [stdout.fileno(), stderr.fileno()])
        process_id = self._receive(None)
        try:
            return self._receive(timeout)
        except TimeoutError:
            os.kill(process_id, signal.SIGKILL)
            self._receive(None)
            raise subprocess.TimeoutExpired([str(program)], timeout) from None

    def _receive(self, timeout):
        self.connection.settimeout(timeout)
        number = self.connection.recv(64)
        if not number:
            raise RuntimeError("the fork server has ended")
        return int(number)

    def close(self):
        self.connection.close()
        self.process.wait()


def serve(file_descriptor):
    """The server's end. Returns in each fork, with the code that its `__main__` executes."""
    import torch  # noqa: F401

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller closes the connection
    connection = socket.socket(fileno=file_descriptor)
    while True:
        request, outputs, _, _ = socket.recv_fds(connection, LARGEST_REQUEST, 2)
        if not request:
            os._exit(0)
        process_id = os.fork()
        if process_id == 0:
            connection.close()
            return become(**json.loads(request), outputs=outputs)
        for output in outputs:
            os.close(output)
        connection.send(b"%d" % process_id)
        _, status = os.waitpid(process_id, 0)
        connection.send(b"%d" % os.waitstatus_to_exitcode(status))


def become(program, environment, outputs):
    """Makes this fork the program's process, up to its first line."""
    import torch

    signal.signal(signal.SIGINT, signal.default_int_handler)
    for inherited, output in zip((1, 2), outputs, strict=True):
        os.dup2(output, inherited)
        os.close(output)
    os.environ.clear()
    os.environ.update(environment)
    folder = os.path.dirname(program)
    os.chdir(folder)
    sys.path[0], sys.argv[:] = folder, [program]
    main = sys.modules["__main__"]
    del main.fork_server
    main.__file__ = program  # for the processes that multiprocessing spawns
    with open(program) as file:
        code = compile(file.read(), program, "exec")
    if torch._is_device_backend_autoload_enabled():
        torch._import_device_backends()
    return code
