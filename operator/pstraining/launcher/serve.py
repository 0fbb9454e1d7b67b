"""Runs TensorFlow's server without importing TensorFlow, for a parameter server with `server: Builtin`.

It is one of the launcher's files. In a pod it is beside launch.py, and it imports only Python 3.8's standard library.
"""

from __future__ import annotations

import ctypes
import os
import platform
from importlib import import_module, util
from typing import TYPE_CHECKING, Any, List, Mapping  # noqa: UP035 - Python 3.8

if TYPE_CHECKING or __package__:
    from . import contract, freed_memory, keepalive
else:
    import contract
    import freed_memory
    import keepalive

Cluster = Mapping[str, List[str]]  # noqa: UP006


def serve(cluster: Cluster, kind: str, index: int) -> None:
    """Run one task's server through TensorFlow's C API until the process is killed.

    Raises:
        RuntimeError: the server does not start, with TensorFlow's message.
    """
    contract.drop_grpc_keepalive(os.environ)
    keepalive.keep_all_alive()
    freed_memory.return_regularly()
    spec = util.find_spec("tensorflow")
    folder = ((spec and spec.submodule_search_locations) or [""])[0]
    try:
        ctypes.CDLL(os.path.join(folder, "libtensorflow_framework.so.2"), ctypes.RTLD_GLOBAL)
        tf = ctypes.CDLL(os.path.join(folder, "libtensorflow_cc.so.2"), ctypes.RTLD_GLOBAL)
        tf.TF_NewStatus.restype = tf.TF_NewServer.restype = ctypes.c_void_p
        tf.TF_Message.restype = ctypes.c_char_p
    except (OSError, AttributeError):  # another build of TensorFlow
        import_module("tensorflow").distribute.Server(cluster, kind, index, protocol="grpc").join()
        return
    definition, status = server_def(cluster, kind, index), ctypes.c_void_p(tf.TF_NewStatus())
    server = ctypes.c_void_p(tf.TF_NewServer(definition, ctypes.c_size_t(len(definition)), status))
    steps = (
        lambda: hold_a_context(tf, server),
        lambda: tf.TF_ServerStart(server, status),
        lambda: tf.TF_ServerJoin(server, status),
    )
    for step in steps:
        if tf.TF_GetCode(status):
            raise RuntimeError(f"TensorFlow's server does not start: {tf.TF_Message(status).decode()}")
        step()


ADD_CONTEXT = "_ZN10tensorflow10GrpcServer35AddMasterEagerContextToEagerServiceEmPNS_12EagerContextE"
SERVER_CLASS = "_ZTVN10tensorflow10GrpcServerE"
NO_SPINNING = bytes([0x82, 1, 2, 0x48, 1])
"""A ConfigProto with experimental {disable_thread_spinning: true}: idle threads sleep at once. With more processes than
cores, spinning takes a fifth of the processor time of a small step (measured)."""
NO_GPU = bytes([0x0A, 7, 0x0A, 3]) + b"GPU" + bytes([0x10, 0])
"""A ConfigProto with device_count {GPU: 0}. A server computes on the CPU. If its container runtime shows all GPUs of
the node, they belong to the workers there."""
CONFIG = NO_GPU + NO_SPINNING
"""A server's ConfigProto: protobuf's wire format allows messages to be concatenated."""
CONTEXT_ID, STATUS_OK = 1, 1
SERVER_OFFSET = 32
"""Offset in bytes of the pointer to the server in a TF_Server; a std::string precedes it."""


def hold_a_context(tf: ctypes.CDLL, server: ctypes.c_void_p) -> bool:
    """Add a client's context to the server before it starts, so that clients that connect at once do not crash it.

    A TensorFlow server without a context creates a new manager of collectives for the first client, and destroys the
    old one. If two clients connect together, both count as the first, and the manager of one of them is destroyed: the
    server crashes at that client's next operation (SIGSEGV, in 3 of 8 starts with six clients; in none of 20 with a
    context). The C API cannot add a context, but the server's class can. Its method is called only if every symbol and
    offset is as expected.

    Returns:
        Whether the server has the context; without it, the server works like TensorFlow's own.
    """
    add, its_class = (_address(tf, name) for name in (ADD_CONTEXT, SERVER_CLASS))
    if platform.machine() != "x86_64" or not (add and its_class):
        return False  # other calling conventions return the result differently
    tf.TF_ServerTarget.restype = ctypes.c_void_p
    if not server.value or _word(server.value) != tf.TF_ServerTarget(server):
        return False
    inner = _word(server.value + SERVER_OFFSET)
    if _word(inner) != its_class + 2 * ctypes.sizeof(ctypes.c_void_p):
        return False
    tf.TFE_NewContextOptions.restype = tf.TFE_NewContext.restype = ctypes.c_void_p
    status = ctypes.c_void_p(tf.TF_NewStatus())
    options = ctypes.c_void_p(tf.TFE_NewContextOptions())
    tf.TFE_ContextOptionsSetConfig(options, NO_GPU, ctypes.c_size_t(len(NO_GPU)), status)
    context = ctypes.c_void_p(tf.TFE_NewContext(options, status))
    if tf.TF_GetCode(status):
        return False
    result = ctypes.c_uint64(0)
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_void_p)(add)(
        ctypes.addressof(result), inner, CONTEXT_ID, context
    )
    return result.value == STATUS_OK


def _address(library: ctypes.CDLL, name: str) -> int:
    """Return the address of a symbol; 0 if it does not exist."""
    try:
        return ctypes.addressof(ctypes.c_char.in_dll(library, name))
    except ValueError:
        return 0


def _word(address: Any) -> int:
    """Return the pointer at an address."""
    return int(ctypes.c_uint64.from_address(address).value)


def server_def(cluster: Cluster, kind: str, index: int) -> bytes:
    """Return TensorFlow's ServerDef in protobuf's wire format, with the whole cluster, which TF1 sessions need."""

    def varint(number: int) -> bytes:
        return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)

    def field(number: int, value: int | bytes) -> bytes:
        kind_of_field, data = (0, varint(value)) if isinstance(value, int) else (2, varint(len(value)) + value)
        return varint(number << 3 | kind_of_field) + data

    jobs = b""
    for name, tasks in cluster.items():
        entries = [field(2, field(1, task) + field(2, address.encode())) for task, address in enumerate(tasks)]
        jobs += field(1, field(1, name.encode()) + b"".join(entries))
    port = int(cluster[kind][index].rpartition(":")[2])
    task = field(2, kind.encode()) + field(3, index)
    return field(1, jobs) + task + field(4, CONFIG) + field(5, b"grpc") + field(6, port)
