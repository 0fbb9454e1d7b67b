"""URIs of object stores that a program gives: what the library would drop from them, or does not accept."""

from pathlib import Path

import pytest

from pstraining.runtime.checkpoint.objects.choice import bucket_at
from pstraining.runtime.config.settings import SettingsError


@pytest.mark.parametrize("rest", ["bucket/run#2", "bucket/run?of=2", "name:secret@bucket/run"])
def test_a_uri_of_which_a_part_would_be_ignored_is_refused(rest: str) -> None:
    """Two runs whose URIs differ in that part would have the same checkpoints."""
    for scheme in ("s3", "gs"):
        with pytest.raises(SettingsError, match=r"^checkpoint\.path: a URI has a bucket and a prefix") as refused:
            bucket_at(f"{scheme}://{rest}")
        assert "secret" not in str(refused.value)


def test_a_bucket_that_the_library_does_not_accept_is_named() -> None:
    with pytest.raises(SettingsError, match=r"^checkpoint\.path: s3://my bucket/a cannot be used \(.*invalid"):
        bucket_at("s3://my bucket/a")


def test_other_characters_are_kept(tmp_path: Path) -> None:
    bucket = bucket_at(f"file://{tmp_path}/läufe/mail@home")
    bucket.put("a", b"1")
    assert (tmp_path / "läufe" / "mail@home" / "a").read_bytes() == b"1"
