"""Files of a checkpoint that a parameter server writes and reads itself, as operations for a traced function.

TensorFlow's server runs no Python code of this package, but it runs TensorFlow's operations on files. They run outside
the critical section, and steps continue meanwhile.
"""

from typing import Final

import tensorflow as tf

from pstraining.runtime.checkpoint.checksums import METHOD
from pstraining.runtime.model.tensor import Tensor
from pstraining.runtime.ps.critical_section import applied, critical, not_applied, with_dependencies
from pstraining.runtime.ps.saving.parts import ShardParts
from pstraining.runtime.ps.saving.state_parts import StatePart, Unit

ALL: Final = 2**31 - 1
"""More bytes than a file of this module has: the length of a substring up to the end."""


class PartFiles:
    """The files of one member of a shard. Each method emits operations on its server."""

    def __init__(self, parts: ShardParts) -> None:
        self.parts, self._device = parts, parts.shard.device

    def copy(self, source: Tensor, target: Tensor) -> Tensor:
        """Copy a file and return 1. The copy fails on a server without access to the folder.

        Args:
            source, target: paths of the file and of its copy. string[].
        """
        with tf.device(self._device):
            return self._put(target, tf.raw_ops.ReadFile(filename=source))

    def put(self, path: Tensor, content: Tensor) -> Tensor:
        """Replace a file and return 1.

        Args:
            path: path of the file. string[].
            content: its content. string[].
        """
        with tf.device(self._device):
            return self._put(path, tf.identity(content))

    def _put(self, path: Tensor, content: Tensor) -> Tensor:
        return with_dependencies([tf.raw_ops.WriteFile(filename=path, contents=content)], tf.constant(1, tf.int64))

    def checksum(self, file: Tensor) -> Tensor:
        """Return a file's checksum. string[] to uint8[1, 8]."""
        with tf.device(self._device):
            return _checksum(tf.raw_ops.ReadFile(filename=file))

    def write(
        self, unit: Unit, token: Tensor, begin: Tensor, end: Tensor, file: Tensor, header: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Write rows of a copied part to a file.

        Args:
            unit: the part, which is split.
            token: the copy's name. int64[].
            begin, end: the first row, and the first row after the range. int64[].
            file: path of the file, which is replaced. string[].
            header: the file's header. string[].

        Returns:
            Whether the server has the copy, bool[], and the file's checksum, uint8[1, 8].
        """
        is_there, (values,) = self.parts.read(unit, token, begin, end)
        return self._written(is_there, values, file, header)

    def write_changed(
        self, table: int, number: int | None, token: Tensor, begin: Tensor, end: Tensor, file: Tensor, header: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Write changed rows of a part, or their indices, to a file; see `write` for the result.

        Args:
            table: the table's number.
            number: the part's number; None for the local indices.
            token: the copy's name. int64[].
            begin, end: the first row in the copy, and the first row after the range. int64[].
            file: path of the file, which is replaced. string[].
            header: the file's header. string[].
        """
        is_there, values = self.parts.read_changed(table, number, token, begin, end)
        return self._written(is_there, values, file, header)

    def _written(self, is_there: Tensor, values: Tensor, file: Tensor, header: Tensor) -> tuple[Tensor, Tensor]:
        """Emit writing a file if the server has the values; return whether it has, and the file's checksum."""

        def written() -> Tensor:
            size = tf.size(values, tf.int64) * values.dtype.size
            # The bytes of the elements are the last field of the message.
            elements = tf.strings.substr(tf.io.serialize_tensor(values), -size, size)
            content = tf.strings.join([header, elements])
            with tf.control_dependencies([tf.raw_ops.WriteFile(filename=file, contents=content)]):
                return _checksum(content)

        with tf.device(self._device):
            return is_there, tf.cond(is_there, written, lambda: tf.zeros([1, 8], tf.uint8))

    def load(self, unit: Unit, fence: Tensor, token: Tensor, file: Tensor, skip: Tensor, rows: Tensor) -> Tensor:
        """Read rows of a table from a file, between `begin` and `finish`; return 1 if it applied.

        Args:
            unit: the table.
            fence: the chief's fence. int64[].
            token: the token of `ShardParts.begin`. int64[].
            file: path of the file. string[].
            skip: length of its header in bytes. int64[].
            rows: the fields of `checkpoint.parts.SharedRows`. int64[5].
        """
        (number,) = unit.numbers
        part = self.parts.parts[number]
        with tf.device(self._device):
            source, source_step, target, target_step, length = tf.unstack(rows)
            content = tf.strings.substr(tf.raw_ops.ReadFile(filename=file), skip, tf.constant(ALL, tf.int64))
            values = tf.reshape(tf.io.decode_raw(content, part.variable.dtype), [-1, part.width])
            chosen = tf.gather(values, source + source_step * tf.range(length))
            places = target + target_step * tf.range(length)

        return self._replaced(part, fence, token, places, chosen)

    def load_changed(
        self, unit: Unit, fence: Tensor, token: Tensor, files: Tensor, skips: Tensor, numbers: Tensor
    ) -> Tensor:
        """Replace rows of a table by those of a file of changed rows; return 1 if it applied. See `load`.

        Args:
            unit: the table.
            fence: the chief's fence. int64[].
            token: the token of `ShardParts.begin`. int64[].
            files: paths of the file and of its indices. string[2].
            skips: lengths of their headers in bytes. int64[2].
            numbers: the fields `first` and `stride` of `checkpoint.parts.ChangedFile`, and those of the server's rows.
                int64[4].
        """
        (number,) = unit.numbers
        part = self.parts.parts[number]
        with tf.device(self._device):
            first, stride, own_first, own_stride = tf.unstack(numbers)
            values, indices = (
                tf.strings.substr(tf.raw_ops.ReadFile(filename=files[n]), skips[n], tf.constant(ALL, tf.int64))
                for n in range(2)
            )
            distances = first + stride * tf.io.decode_raw(indices, tf.int64) - own_first
            mine = tf.reshape(tf.where(tf.equal(distances % own_stride, 0)), [-1])
            rows = tf.reshape(tf.io.decode_raw(values, part.variable.dtype), [-1, part.width])
            chosen, places = tf.gather(rows, mine), tf.gather(distances, mine) // own_stride
        return self._replaced(part, fence, token, places, chosen)

    def _replaced(self, part: StatePart, fence: Tensor, token: Tensor, places: Tensor, chosen: Tensor) -> Tensor:
        """Emit replacing rows of a table between `begin` and `finish`; 1 if it applied."""

        def body(fence: Tensor, token: Tensor, places: Tensor, chosen: Tensor) -> Tensor:
            def apply() -> Tensor:
                written = tf.raw_ops.ResourceScatterUpdate(
                    resource=part.variable.handle, indices=places, updates=tf.reshape(chosen, [-1, *part.shape[1:]])
                )
                return with_dependencies([written], applied())

            return tf.cond(self.parts.takes(fence, token), apply, not_applied)

        return critical(self._device, self.parts.shard.container, [fence, token, places, chosen], body)


def _checksum(content: Tensor) -> Tensor:
    """Emit the checksum of a string. string[] to uint8[1, 8]."""
    return tf.raw_ops.Fingerprint(data=tf.reshape(content, [1]), method=METHOD)
