"""TensorFlow's server, started without importing TensorFlow: what a parameter server with `server: Builtin` runs.

launch.py, beside it in the pod, imports this file. It knows nothing of pods and jobs, and stands on Python 3.8's
standard library alone.
"""

from __future__ import annotations

import ctypes
import os
from importlib import import_module, util
from typing import List, Mapping  # noqa: UP035 - Python 3.8

Cluster = Mapping[str, List[str]]  # noqa: UP006


def serve(cluster: Cluster, kind: str, index: int) -> None:
    """Be one task's server until the process is killed, through TensorFlow's C API, which needs no import.

    Raises:
        RuntimeError: the server does not start; the message is TensorFlow's.
    """
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
    for step in (tf.TF_ServerStart, tf.TF_ServerJoin):
        if tf.TF_GetCode(status):
            raise RuntimeError(f"TensorFlow's server does not start: {tf.TF_Message(status).decode()}")
        step(server, status)


def server_def(cluster: Cluster, kind: str, index: int) -> bytes:
    """TensorFlow's ServerDef in protobuf's wire format; it holds the whole cluster, as TF1 sessions need it."""

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
    return field(1, jobs) + field(2, kind.encode()) + field(3, index) + field(5, b"grpc") + field(6, port)
