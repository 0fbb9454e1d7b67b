"""TensorFlow variables on a parameter server, identified by name.

Named state belongs to the server's process: it outlives every client, and every client with the same names shares it.
The class is for use inside `tf.function` only, and has no eager handle: after a failure of its server, an eager handle
stays invalid.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import ops
from tensorflow.python.ops import control_flow_v2_func_graphs as control_flow
from tensorflow.python.ops import handle_data_util, resource_variable_ops

from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.critical_section import remembered, unordered

_BRANCHES = (control_flow.CondBranchFuncGraph, control_flow.WhileBodyFuncGraph, control_flow.WhileCondFuncGraph)


def function_graph(graph: tf.Graph) -> tf.Graph:
    """Return the function's graph around a branch of a condition or a loop.

    A handle emitted inside a branch is invisible to TensorFlow's automatic control dependencies: reads and writes of
    two branches then race. Emitted here, the branch captures it and the order holds.
    """
    while isinstance(graph, _BRANCHES):
        graph = graph.outer_graph
    return graph


class PSVariable(resource_variable_ops.BaseResourceVariable):  # type: ignore[misc]
    """A `tf.Variable` named `name` in `container` on `device`.

    Every graph emits the handle again by name, so a traced function stays valid after its server was restarted and
    initialised again.
    """

    def __init__(
        self,
        *,
        name: str,
        container: str,
        device: str,
        shape: tf.TensorShape,
        dtype: tf.DType,
        initial: Callable[[], Tensor],
    ) -> None:
        shape, dtype = tf.TensorShape(shape), tf.as_dtype(dtype)
        self._ps_name, self._ps_container, self._ps_device = name, container, device
        self._ps_dtype, self._ps_shape = dtype, shape
        self.initial = initial
        """Emits the initial value; called inside a traced function, on the server's device."""
        # The base class requires a handle. A local one, which no graph uses, needs no running server. Keras creates an
        # optimizer's variables under the device of the trained variables.
        with tf.init_scope(), tf.device(None), tf.device("CPU:0"):
            handle = tf.raw_ops.VarHandleOp(dtype=dtype, shape=shape, shared_name=name, container=container)
        handle._handle_data = handle_data_util.create_handle_data(shape, dtype)
        super().__init__(
            trainable=True,
            shape=shape,
            dtype=dtype,
            handle=handle,
            name=name,
            unique_id=f"{container}/{name}",
            handle_name=f"{name}:0",
            in_graph_mode=False,
            initial_value=None,
        )

    @property
    def handle(self) -> Tensor:
        """Return the resource handle in the function that is being traced."""
        if tf.executing_eagerly():
            return self._handle
        graph = function_graph(tf.compat.v1.get_default_graph())
        key = (self._ps_container, self._ps_name, self._ps_device)
        with graph.as_default():
            cache = remembered("handles")
            if key not in cache:
                with ops.control_dependencies(None), tf.device(self._ps_device):
                    handle = tf.raw_ops.VarHandleOp(
                        dtype=self._ps_dtype,
                        shape=self._ps_shape,
                        shared_name=self._ps_name,
                        container=self._ps_container,
                    )
                    cache[key] = unordered(handle)
        return cache[key]

    def read_value(self) -> Tensor:
        """Emit reading the value. `tf.Variable` adds an identity, which would take the value to another device."""
        return self._read_variable_op()

    def let_grow(self) -> None:
        """Allow the number of rows to change: the first dimension of the shape is unknown from now on."""
        self._ps_shape = self._shape = tf.TensorShape([None, *self._ps_shape[1:]])
        self._handle._handle_data = handle_data_util.create_handle_data(self._ps_shape, self._ps_dtype)

    @property
    def device(self) -> str:
        """Return the parameter server's device."""
        return self._ps_device

    def initialized(self) -> Tensor:
        """Return whether the server holds a value. bool[]."""
        return tf.raw_ops.VarIsInitializedOp(resource=self.handle)


@contextmanager
def variables_on(device: str, *, container: str, prefix: str, created: list[PSVariable]) -> Iterator[None]:
    """Create every `tf.Variable`, and every Keras variable, of the block as a `PSVariable` named prefix/0, /1, ...

    The variables are appended to `created`. Nothing is sent: initial values are emitted later, on the server.
    """

    def create(_: object, **kwargs: Any) -> PSVariable:
        value = kwargs["initial_value"]
        if callable(value):
            initial: Callable[[], Tensor] = value
            with tf.Graph().as_default():
                probe = tf.convert_to_tensor(initial())
        else:
            probe = np.asarray(value)  # an eager tensor would be captured and sent with every call
            initial = partial(tf.constant, probe)
        dtype = tf.as_dtype(kwargs.get("dtype") or probe.dtype)
        given = kwargs.get("shape")
        variable = PSVariable(
            name=f"{prefix}/{len(created)}",
            container=container,
            device=device,
            shape=probe.shape if given is None else given,
            dtype=dtype,
            initial=lambda: tf.cast(initial(), dtype),
        )
        created.append(variable)
        return variable

    with tf.variable_creator_scope(create):
        yield
