"""Options of `Client.train` with a wrong type are refused by name."""

import math
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from pstraining.client.client import Client
from pstraining.client.errors import ClientError
from pstraining.client.manifest import JobOptions, build_job
from pstraining.client.program import JobProgram, program_of


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
        ({"packages": {"keras": ">=3"}}, "packages: it must be a list of requirements, .* is {'keras': '>=3'}"),
        ({"packages": 3}, "packages: it must be a list of requirements, .* is 3"),
        ({"env": {"KEY": b"x"}}, "env: KEY must be a text or a number, is b'x'"),
        ({"env": {"HOSTS": ["a", "b"]}}, r"env: HOSTS must be a text or a number, is \['a', 'b'\]"),
        ({"env": {1: "a"}}, "env: names must be texts, but one is 1"),
        ({"resources": {None: 1}}, "resources: names must be texts, but one is None"),
        ({"resources": {"requests": {"cpu": Decimal(2)}}}, r"resources\.requests\.cpu: it must be a number, .*Decimal"),
        ({"resources": {"limits": Path("x")}}, r"resources\.limits: it must be a number, text, .* is PosixPath"),
        ({"resources": {"limits": {1: "2"}}}, r"resources\.limits: names must be texts, but one is 1"),
        ({"training": {"a": [{1: 2}]}}, r"training\.a\[0\]: names must be texts, but one is 1"),
        ({"checkpoint": ""}, "checkpoint: it is empty"),
        ({"checkpoint": Path("/data")}, "checkpoint: it must be the size of a claim, a URI or a dict"),
    ],
)
def test_an_option_with_a_wrong_type_is_named(client: Client, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ClientError, match=said):
        client.train(program, **options)


@pytest.mark.parametrize("word", [None, b"x", ["a"], {"a": 1}])
def test_words_of_a_scripts_command_line_that_are_no_texts_are_named(client: Client, word: Any) -> None:
    """A program would get `None`, for example."""
    with pytest.raises(
        ClientError, match=f"arguments: a script takes texts and numbers, but one is {re.escape(repr(word))}"
    ):
        client.train(__file__, arguments=["--seed", word])


def test_an_empty_checkpoint_is_not_dropped() -> None:
    sent = build_job("a", "b", program_of(program, {}, ()), JobOptions(image="i", checkpoint={}))
    assert sent["spec"]["checkpoint"] == {}, "the API server refuses it"


@pytest.mark.parametrize(
    ("checkpoint", "said"),
    [
        ("/data/digits", r"checkpoint: it must be the size of a claim, .* is '/data/digits'.* in .*checkpoints/digits"),
        ("10GB", "checkpoint: it must be the size of a claim, such as '10Gi', or a URI, is '10GB'"),
        ({}, "checkpoint: it needs exactly one of uri, volume, volumeClaimTemplate"),
        ({"path": "/data"}, r"checkpoint: it needs exactly one of uri, .* in .*checkpoints/digits"),
    ],
)
def test_a_local_job_does_not_take_a_folder_for_a_size(checkpoint: Any, said: str) -> None:
    """Its checkpoints would be in another folder than the named one."""
    with pytest.raises(ClientError, match=said):
        Client(local=True).train(program, name="digits", checkpoint=checkpoint)


def test_amounts_of_a_flat_dict_are_quantities() -> None:
    resources = {"cpu": Decimal("0.5"), "memory": "1Gi"}
    job = build_job("digits", "team", program_of(program, {}, ()), JobOptions(image="i", resources=resources))
    (container,) = job["spec"]["worker"]["template"]["spec"]["containers"]
    assert container["resources"] == {"requests": {"cpu": "0.5", "memory": "1Gi"}, "limits": {"memory": "1Gi"}}


def test_none_is_the_default_of_an_option(client: Client) -> None:
    client.train(program, env=None, packages=None, ps=None, workers=2)
    backend: Any = client._backend
    assert backend.options == JobOptions(workers=2)


@pytest.mark.parametrize(
    ("resources", "spec", "expected"),
    [
        ({"cpu": 2, "memory": "4Gi", "nvidia.com/gpu": 1}, {}, ({"cpu": 2, "memory": "4Gi"}, {"memory": "4Gi"})),
        (
            {"cpu": 8, "memory": "64Gi"},
            {
                "chief": {"resources": {"requests": {"cpu": "500m"}, "limits": {"cpu": "1", "memory": "2Gi"}}},
                "ps": {"resources": {"requests": {"memory": "100Gi"}}},
            },
            ({"cpu": "500m", "memory": "2Gi"}, {"cpu": "1", "memory": "2Gi"}),
        ),
        ({}, {"worker": {"resources": {"limits": {"cpu": 3}}}}, ({"cpu": 3}, {"cpu": 3})),
    ],
    ids=["devices", "roles", "spec"],
)
def test_the_installation_of_packages_has_resources_for_a_quota(
    resources: dict[str, Any], spec: dict[str, Any], expected: tuple[dict[str, Any], dict[str, Any]]
) -> None:
    """A ResourceQuota refuses pods with a container without them. No pod requests more than before."""
    options = JobOptions(image="img:1", packages=["lz4"], resources=resources, spec=spec)
    job = build_job("digits", "team", program_of(program, {}, ()), options)
    (install,) = job["spec"]["worker"]["template"]["spec"]["initContainers"]
    assert install["resources"] == {"requests": expected[0], "limits": expected[1]}


def test_the_installation_of_packages_of_a_job_without_resources_has_none() -> None:
    job = build_job("digits", "team", program_of(program, {}, ()), JobOptions(image="img:1", packages=["lz4"]))
    (install,) = job["spec"]["worker"]["template"]["spec"]["initContainers"]
    assert "resources" not in install
