"""The message about a file that is no text names what to do."""

import gzip
from pathlib import Path

import pytest

from pstraining.cli.errors import CommandError
from pstraining.cli.reading.sources import sources


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            gzip.compress(b"kind: A", mtime=0),
            "it is compressed. Unpack it first, with gunzip; render a Helm chart (.tgz) with",
        ),
        (b"PK\x03\x04\xff", "it is compressed. Unpack it first, with unzip."),
        (
            "kind: A\n# für uns\n".encode("latin-1"),
            "line 2 has the byte 0xfc, which is not UTF-8. Save the file as UTF-8.",
        ),
    ],
)
def test_a_file_that_is_no_text_is_refused_with_the_way_out(data: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(data)
    (found,) = sources([str(path)], recursive=False)
    assert isinstance(found, CommandError)
    assert str(found).startswith(f"{path} cannot be read: {said}")
