"""A file as objects of bounded size, its segments: written in order, read in ranges, compared with their checksums.

No request is larger than a segment, so a repeated request costs little, and the memory of both directions is bounded. A
multipart upload would be one object, but its parts are neither listed nor deleted with the checkpoint after a crash.
"""

import io
import threading
import zlib
from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import accumulate
from types import TracebackType
from typing import TYPE_CHECKING, Final

from pstraining.runtime.checkpoint.errors import CorruptCheckpointError
from pstraining.runtime.checkpoint.manifest import FileSegment

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

SEGMENT_BYTES: Final = 8 << 20
"""Size of all segments of a file but the last."""
IN_FLIGHT: Final = 2
"""Number of segments that are uploaded at once, while the next one is filled."""
KEPT: Final = 2
"""Number of segments that a reader keeps: a table with rows by key is read in several places by turns."""


class SegmentWriter(io.RawIOBase):
    """A file that is uploaded while it is written; a context manager, after whose end no request is in flight.

    Args:
        put: uploads the content of the segment with this index, in any thread. Raises OSError.
        segment_bytes: size of the segments.
    """

    def __init__(self, put: Callable[[int, bytearray], None], segment_bytes: int = SEGMENT_BYTES) -> None:
        self._put, self._segment_bytes = put, segment_bytes
        self._content = bytearray()
        self._segments: list[FileSegment] = []
        self._pool = ThreadPoolExecutor(IN_FLIGHT, "pstraining-upload")
        self._uploads: deque[Future[None]] = deque()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.shutdown(cancel_futures=True)

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: "ReadableBuffer") -> int:
        """Append bytes, and return their number.

        Raises:
            OSError: a segment could not be uploaded.
        """
        rest = whole = memoryview(data).cast("B")
        while rest:
            taken = rest[: self._segment_bytes - len(self._content)]
            self._content += taken
            rest = rest[len(taken) :]
            if len(self._content) == self._segment_bytes:
                self._upload()
        return len(whole)

    def finish(self) -> list[FileSegment]:
        """Upload the rest, wait for all uploads, and return the segments.

        Raises:
            OSError: a segment could not be uploaded.
        """
        if self._content:
            self._upload()
        while self._uploads:
            self._uploads.popleft().result()
        return self._segments

    def _upload(self) -> None:
        while len(self._uploads) >= IN_FLIGHT:
            self._uploads.popleft().result()
        content, self._content = self._content, bytearray()
        self._uploads.append(self._pool.submit(self._put, len(self._segments), content))
        self._segments.append(FileSegment(len(content), zlib.crc32(content)))


class SegmentedFile:
    """A file in segments, of which the last KEPT that were read are in memory.

    Args:
        segments: size and checksum of each segment.
        get: returns the content of the segment with this index. Raises FileNotFoundError if it is missing, and OSError.
    """

    def __init__(self, segments: Sequence[FileSegment], get: Callable[[int], memoryview]) -> None:
        self._segments, self._get, self._lock = segments, get, threading.Lock()
        self._ends = list(accumulate(segment.size for segment in segments))
        self.size = self._ends[-1] if segments else 0
        """Number of bytes."""
        self._kept: OrderedDict[int, memoryview] = OrderedDict()

    def read_into(self, offset: int, target: memoryview) -> int:
        """Fill the beginning of `target` with bytes from `offset` on, and return their number; 0 at the file's end.

        Raises:
            CorruptCheckpointError: the segment is missing, or does not match its checksum.
            OSError: the segment could not be read.
        """
        if offset >= self.size:
            return 0
        index = bisect_right(self._ends, offset)
        content = self._content(index)
        begin = offset - (self._ends[index] - self._segments[index].size)
        found = content[begin : begin + len(target)]
        target[: len(found)] = found
        return len(found)

    def _content(self, index: int) -> memoryview:
        with self._lock:
            if index not in self._kept:
                if len(self._kept) == KEPT:
                    self._kept.popitem(last=False)  # before the next one is read, which needs its memory
                self._kept[index] = self._checked(index)
            self._kept.move_to_end(index)
            return self._kept[index]

    def _checked(self, index: int) -> memoryview:
        for _ in range(2):  # damage on the way is not damage of the object
            try:
                content = self._get(index)
            except FileNotFoundError:
                raise CorruptCheckpointError(f"segment {index} is missing") from None
            if FileSegment(len(content), zlib.crc32(content)) == self._segments[index]:
                return content
        raise CorruptCheckpointError(f"segment {index} does not match its checksum")
