"""A reference of `runtime.ps.tables.dynamic_table`: the keys with rows on one server, and the places of the rows."""

from collections.abc import Collection, Sequence
from typing import Any

SAMPLE, SAMPLE_FACTOR, ROOM = 1024, 8, 1024
MASK = 2**64 - 1


def mixed(value: int) -> int:
    """SplitMix64's output function."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        value = (value ^ value >> shift) * factor & MASK
    return value ^ value >> 31


class KeysWithRows:
    """The keys in the order of their rows' places.

    Args:
        policy: of this server.
        of_candidates: whether they are those that have no rows yet.
    """

    def __init__(self, policy: Any, *, of_candidates: bool = False) -> None:
        self.policy = policy
        self.candidates = KeysWithRows(policy, of_candidates=True) if not of_candidates else None
        self.count: dict[int, int] = {}
        """The number of gradients of each candidate."""
        self.keys: list[int] = []
        self.seen: dict[int, int] = {}
        """The step of each key's last update."""
        self.inserted = self.evicted = self.no_room = self.below_min_count = self.expired = 0
        self.swept, self.room = 0, 1

    def place(self, keys: Collection[int], step: int) -> list[int]:
        """Add a step's new keys; return those of the step's keys that have rows."""
        new = sorted(set(keys) - self.seen.keys())
        self.seen |= {key: step for key in keys if key in self.seen}
        if self.candidates is not None and self.policy.min_count > 1:
            new = self.candidates.due(new, step)
            self.below_min_count += len(set(keys) - self.seen.keys()) - len(new)
        self._insert(new, step)
        return [key for key in keys if key in self.seen]

    def expire(self, step: int) -> None:
        """Remove keys that had no gradient in `expire_after` steps."""
        if (age := self.policy.expire_after) is None:
            return
        if self.candidates is not None and self.policy.min_count > 1:
            self.candidates.expire(step)
        end = min(self.swept or len(self.keys), len(self.keys))
        begin = max(end - max(-(-self.room // age), SAMPLE), 0)
        old = [place for place in range(begin, end) if self.seen[self.keys[place]] <= step - age]
        self.expired += self.remove(old)
        self.swept = begin
        self.count = {key: count for key, count in self.count.items() if key in self.seen}

    def due(self, keys: Sequence[int], step: int) -> list[int]:
        """Count a gradient of candidates; return those that get rows."""
        counts = {key: self.count.get(key, 0) + 1 for key in keys}
        found = [key for key in keys if counts[key] >= self.policy.min_count]
        waiting = [key for key in keys if key in self.seen and key not in found]
        self.seen |= dict.fromkeys(waiting, step)
        self.remove([place for place, key in enumerate(self.keys) if key in found])
        self._insert([key for key in keys if key not in found and key not in self.seen], step)
        self.count = {key: counts.get(key, self.count.get(key, 0)) for key in self.seen}
        return found

    def _insert(self, new: Sequence[int], step: int) -> None:
        room = len(new)
        if (most := self.policy.max_rows) is not None:
            excess = len(self.keys) + len(new) - most
            if new and excess > 0:
                self.evicted += self.remove(self._oldest(excess, step))
            room = max(0, most - len(self.keys))
        self.keys += new[:room]
        if len(self.keys) > self.room:
            self.room = max(2 * self.room, len(self.keys), ROOM)
        self.seen |= dict.fromkeys(new[:room], step)
        self.inserted += len(new[:room])
        self.no_room += len(new[room:])

    def remove(self, places: Sequence[int]) -> int:
        """Move the last keys into the freed places; return the number of removed keys."""
        for place in places:
            del self.seen[self.keys[place]]
        left = len(self.keys) - len(places)
        moved = [self.keys[place] for place in range(left, len(self.keys)) if place not in set(places)]
        for place, key in zip(sorted(place for place in places if place < left), moved, strict=True):
            self.keys[place] = key
        del self.keys[left:]
        return len(places)

    def _oldest(self, number: int, step: int) -> list[int]:
        used = len(self.keys)
        size = min(used, max(SAMPLE_FACTOR * number, SAMPLE))
        window = [((mixed(step) >> 1) + place) % used for place in range(size)]
        chosen = sorted(window, key=lambda place: self.seen[self.keys[place]])[:number]
        return [place for place in chosen if self.seen[self.keys[place]] < step]
