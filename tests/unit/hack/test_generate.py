"""The chart's table of values."""

import pytest

from hack import generate

VALUES = """
# About the file.
# -- The name.
name: ""
image:
  # -- Where it comes from, a|b.
  repository: x
  # not described: no dashes
  tag: y
# -- All of it.
resources:
  limits: {memory: 1Mi}
"""


def test_described_values() -> None:
    assert list(generate.described_values(VALUES)) == [
        ("name", "The name."),
        ("image.repository", "Where it comes from, a|b."),
        ("resources", "All of it."),
    ]


def test_the_table_has_defaults_and_no_stray_bars() -> None:
    assert generate.values_table(VALUES).splitlines()[2:] == [
        '| `name` | `""` | The name. |',
        "| `image.repository` | `x` | Where it comes from, a\\|b. |",
        "| `resources` | `{limits: {memory: 1Mi}}` | All of it. |",
    ]


def test_the_table_replaces_the_old_one() -> None:
    text = f"before\n{generate.TABLE_BEGIN}\nold\n{generate.TABLE_END}\nafter\n"
    new = generate.chart_readme(text, "new")
    assert new == f"before\n{generate.TABLE_BEGIN}\nnew\n{generate.TABLE_END}\nafter\n"
    with pytest.raises(ValueError, match="must hold"):
        generate.chart_readme("no place", "new")
