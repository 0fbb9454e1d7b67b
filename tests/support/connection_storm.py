"""Many clients that connect to one parameter server at once: `python -m tests.support.connection_storm ADDRESS
CLIENTS`.

Threads with a TensorFlow context each, through its C API, as processes would take seconds to start. Prints how many of
them were served.
"""

import ctypes
import os
import sys
import threading
from importlib import util
from typing import Any

from pstraining.launcher.serve import server_def
from tests.support.ports import free_neighbours

DEVICE = b"/job:ps/replica:0/task:0/device:CPU:0"


def library() -> Any:
    spec = util.find_spec("tensorflow")
    assert spec
    assert spec.submodule_search_locations
    folder = spec.submodule_search_locations[0]
    ctypes.CDLL(os.path.join(folder, "libtensorflow_framework.so.2"), ctypes.RTLD_GLOBAL)
    found = ctypes.CDLL(os.path.join(folder, "libtensorflow_cc.so.2"), ctypes.RTLD_GLOBAL)
    for name in ("TF_NewStatus", "TFE_NewContextOptions", "TFE_NewContext", "TFE_NewOp"):
        getattr(found, name).restype = ctypes.c_void_p
    return found


def served(tf: Any, address: str, own_port: int, together: threading.Barrier) -> bool:
    """Whether a client that connects together with the others can run an operation."""
    status, options = ctypes.c_void_p(tf.TF_NewStatus()), ctypes.c_void_p(tf.TFE_NewContextOptions())
    context = ctypes.c_void_p(tf.TFE_NewContext(options, status))
    definition = server_def({"worker": [f"127.0.0.1:{own_port}"], "ps": [address]}, "worker", 0)
    together.wait()
    tf.TFE_ContextSetServerDef(context, 600, definition, ctypes.c_size_t(len(definition)), status)
    for _ in range(2):
        if tf.TF_GetCode(status):
            return False
        operation = ctypes.c_void_p(tf.TFE_NewOp(context, b"NoOp", status))
        tf.TFE_OpSetDevice(operation, DEVICE, status)
        tf.TFE_Execute(operation, None, ctypes.byref(ctypes.c_int(0)), status)
    return not tf.TF_GetCode(status)


def main() -> None:
    address, number = sys.argv[1], int(sys.argv[2])
    tf, together = library(), threading.Barrier(number)
    ports, results = [free_neighbours() for _ in range(number)], [False] * number

    def run(index: int, port: int) -> None:
        results[index] = served(tf, address, port, together)

    threads = [threading.Thread(target=run, args=pair, daemon=True) for pair in enumerate(ports)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    sys.stdout.write(f"{sum(results)}\n")
    sys.stdout.flush()
    os._exit(0)  # A context waits long for a lost server.


if __name__ == "__main__":
    main()
