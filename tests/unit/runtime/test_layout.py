"""The layout is complete, balanced, and the same in every process."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pstraining.runtime.model.partition import LARGE_BYTES, Layout, Tensor, pack, partition, servers_to_use, unpack

sizes = st.lists(st.integers(0, 300_000), min_size=1, max_size=12)
LARGE = LARGE_BYTES // 4


def tensors(elements: list[int]) -> list[Tensor]:
    groups = ("decayed", "undecayed", "state")
    return [Tensor(f"t{i}", (size,), "float32", groups[i % 3]) for i, size in enumerate(elements)]


def load(layout: Layout) -> list[int]:
    return [sum(segment.size * 4 for segment in layout.on(ps)) for ps in range(layout.ps)]


@given(sizes, st.integers(1, 5))
def test_every_element_lies_in_exactly_one_place(elements: list[int], ps: int) -> None:
    layout = partition(tensors(elements), ps)
    held: dict[int, list[tuple[int, int]]] = {}
    for segment in layout.segments:
        for slice_ in segment.slices:
            held.setdefault(slice_.tensor, []).append((slice_.begin, slice_.end))
            tensor = layout.tensors[slice_.tensor]
            assert (tensor.group, tensor.dtype) == (segment.group, segment.dtype)
    for index, size in enumerate(elements):
        ends = sorted(held[index])
        assert ends[0][0] == 0
        assert ends[-1][1] == size
        assert all(one[1] == other[0] for one, other in itertools.pairwise(ends))


@given(sizes, st.integers(1, 5))
def test_packed_tensors_are_unpacked_unchanged(elements: list[int], ps: int) -> None:
    layout = partition(tensors(elements), ps)
    values = {t.path: np.arange(t.size, dtype=np.float32) + i for i, t in enumerate(layout.tensors)}
    back = unpack(layout, [(segment, pack(layout, segment, values)) for segment in layout.segments])
    assert set(back) == set(values)
    for path, value in values.items():
        np.testing.assert_array_equal(back[path], value)


@given(sizes, st.integers(2, 5))
def test_no_server_carries_much_more_than_its_share(elements: list[int], ps: int) -> None:
    layout = partition(tensors(elements), ps)
    share = sum(elements) * 4 / ps
    assert max(load(layout)) <= 1.5 * share + LARGE_BYTES


@given(sizes, st.integers(1, 5))
def test_only_large_tensors_of_more_than_half_a_share_are_cut(elements: list[int], ps: int) -> None:
    layout = partition(tensors(elements), ps)
    pieces = [slice_ for segment in layout.segments for slice_ in segment.slices]
    for index, size in enumerate(elements):
        number = sum(slice_.tensor == index for slice_ in pieces)
        if number > 1:
            assert size * 4 >= LARGE_BYTES
            assert size * 4 > sum(elements) * 4 / ps / 2
            assert number <= ps


def test_large_tensors_travel_alone_and_small_ones_together() -> None:
    layout = partition(tensors([LARGE, 10, 20, 30, 40]), 1)
    together = {tuple(slice_.tensor for slice_ in segment.slices) for segment in layout.segments}
    assert together == {(0,), (3,), (1, 4), (2,)}, "large alone; small ones by group"


def test_the_layout_does_not_depend_on_anything_but_its_input() -> None:
    one, other = partition(tensors([LARGE, 5, 5, 5]), 3), partition(tensors([LARGE, 5, 5, 5]), 3)
    assert one == other
    assert one.fingerprint("Adam") == other.fingerprint("Adam") > 0
    assert one.fingerprint("Adam") != one.fingerprint("SGD")
    assert one.fingerprint() != partition(tensors([LARGE, 5, 5, 6]), 3).fingerprint()


@pytest.mark.parametrize(
    ("elements", "ps", "min_bytes", "used"),
    [
        ([1000], 4, 0, 4),
        ([1000], 4, 4001, 1),
        ([1000], 4, 2001, 1),
        ([1000], 4, 2000, 2),
        ([500, 500, 1000], 4, 2000, 4),
        ([500, 500, 1000], 3, 2000, 3),
        ([], 4, 1, 1),
    ],
)
def test_a_server_is_used_that_holds_enough(elements: list[int], ps: int, min_bytes: int, used: int) -> None:
    assert servers_to_use(tensors(elements), ps, min_bytes) == used


def test_a_layout_needs_servers_and_distinct_paths() -> None:
    with pytest.raises(ValueError, match="at least one"):
        partition([], 0)
    twice = Tensor("a", (1,), "float32", "state")
    with pytest.raises(ValueError, match="share a path"):
        partition([twice, twice], 1)


def test_a_tensor_that_its_optimizer_needs_whole_is_not_cut_and_the_skew_is_known() -> None:
    cut = partition([Tensor("large", (LARGE, 3), "float32", "trainable"), *tensors([100] * 3)], 3)
    held = [Tensor("large", (LARGE, 3), "float32", "trainable", whole=True), *tensors([100] * 3)]
    layout = partition(held, 3)
    assert [len([s for s in found.segments if s.slices[0].tensor == 0]) for found in (cut, layout)] == [3, 1]
    assert cut.skew() == pytest.approx(1.0, abs=0.01)
    assert layout.skew() == pytest.approx(3.0, abs=0.01)


def test_where_norms_suffice_and_are_agreed_on_a_whole_tensor_is_cut() -> None:
    held = [
        Tensor("norms", (LARGE, 3), "float32", "trainable", whole=True, by_norms=True),
        Tensor("shape", (LARGE, 3), "float32", "other", whole=True),
        *tensors([100] * 3),
    ]
    assert partition(held, 3).cut_by_norms() == ()
    layout = partition(held, 3, agrees_on_norms=True)
    assert layout.cut_by_norms() == (0,)
    pieces = [slice_ for segment in layout.segments for slice_ in segment.slices if slice_.tensor == 0]
    assert len(pieces) > 1
    assert all(map(layout.is_piece, pieces))
    assert partition(held, 1, agrees_on_norms=True).cut_by_norms() == ()


def test_the_fingerprint_of_a_layout_stays_the_same() -> None:
    """The fingerprint of a layout stays the same, because a newer version of this program reads it in a server's
    record.
    """
    assert partition(tensors([10, 20, 30]), 2).fingerprint("Adam") == 3251941882264740191
