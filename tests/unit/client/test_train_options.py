"""Options of `Client.train` with a wrong type are refused by name."""

import math
from pathlib import Path
from typing import Any

import pytest

from pstraining.client.client import Client
from pstraining.client.errors import ClientError
from pstraining.client.manifest import JobOptions
from pstraining.client.program import JobProgram


class OptionsBackend:
    """Keeps the options of the last job."""

    def create(self, name: str, program: JobProgram, options: JobOptions) -> None:
        self.options = options


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Client:
    monkeypatch.setattr(Client, "__init__", lambda client: setattr(client, "_backend", OptionsBackend()))
    return Client()


def program() -> None:
    pass


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"packages": "numpy"}, r"packages: it must be a list of requirements, such as \['numpy'\]\."),
        ({"files": "helper.py"}, r"files: it must be a list of paths, such as \['helper.py'\]\."),
        ({"files": Path("helper.py")}, r"files: it must be a list of paths, such as \['helper.py'\]\."),
        ({"workers": "2"}, "workers: it must be a whole number, is '2'"),
        ({"ps": 1.0}, "ps: it must be a whole number, is 1.0"),
        ({"training": "Sync"}, "training: it must be a dict, is 'Sync'"),
        ({"resources": 2}, "resources: it must be a dict, is 2"),
        ({"env": [("A", "b")]}, r"env: it must be a dict, is \[\('A', 'b'\)\]"),
        ({"env": {"A": "b", "TOKEN": None}}, "env: TOKEN is None: give it a text, or leave it out"),
        ({"spec": "x"}, "spec: it must be a dict"),
        ({"spec": {"a": [{"b": Path("x")}]}}, r"spec\.a\[0\]\.b: it must be a number, text, .* is PosixPath\('x'\)"),
        ({"training": {"seed": {1}}}, r"training\.seed: it must be a number, text, boolean, .* is \{1\}"),
        ({"checkpoint": {"every": math.nan}}, r"checkpoint\.every: it must be a number, .* is nan"),
        ({"image": Path("a/b")}, "image: it must be a text, is PosixPath"),
        ({"packages": (name for name in ["numpy"])}, r"packages: it must be a list .*, such as \['numpy'\]\."),
        ({"packages": [Path("a.whl")]}, "packages: requirements are texts, but one is PosixPath"),
        ({"checkpoint": Path("/data")}, "checkpoint: it must be the size of a claim, a URI or a dict"),
    ],
)
def test_an_option_with_a_wrong_type_is_named(client: Client, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ClientError, match=said):
        client.train(program, **options)


def test_none_is_the_default_of_an_option(client: Client) -> None:
    client.train(program, env=None, packages=None, ps=None, workers=2)
    backend: Any = client._backend
    assert backend.options == JobOptions(workers=2)
