"""The operator's settings, read from an environment."""

import dataclasses
import gc
import os
import resource

import pytest

from pstraining.controller import logs, main
from pstraining.controller.settings import LogFormat, OperatorSettingsError, Settings
from pstraining.resources.security import PodIds


def test_the_defaults_are_valid() -> None:
    settings = Settings.from_env({"POD_NAME": "op-0"})
    assert settings == Settings(pod_name="op-0", lease_namespace="default")
    assert (settings.namespaces, settings.workers, settings.lease_duration_seconds) == ((), 32, 15)
    assert (settings.metrics_port, settings.health_port) == (8080, 8081)
    assert not settings.kueue
    assert Settings.from_env({}).pod_name


def test_everything_can_be_set() -> None:
    settings = Settings.from_env(
        {
            "POD_NAME": "op-0",
            "POD_NAMESPACE": "pstraining-system",
            "PSTRAINING_NAMESPACES": "team-a, team-b,team-a",
            "PSTRAINING_LEASE_NAME": "op",
            "PSTRAINING_LEASE_DURATION_SECONDS": "30",
            "PSTRAINING_METRICS_PORT": "9090",
            "PSTRAINING_HEALTH_PORT": "0",
            "PSTRAINING_LOG_LEVEL": "debug",
            "PSTRAINING_LOG_FORMAT": "text",
            "PSTRAINING_POD_IDS": "Platform",
            "PSTRAINING_KUEUE": "true",
            "PSTRAINING_WORKERS": "8",
            "PSTRAINING_RESYNC_SECONDS": "0",
        }
    )
    assert settings.namespaces == ("team-a", "team-b")
    assert settings.lease_namespace == "pstraining-system"
    assert (settings.log_level, settings.log_format) == ("DEBUG", LogFormat.TEXT)
    assert (settings.workers, settings.metrics_port, settings.health_port) == (8, 9090, 0)
    assert settings.pod_ids is PodIds.PLATFORM
    assert settings.kueue


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("PSTRAINING_WORKERS", "0", "PSTRAINING_WORKERS must be 1 to 64, not 0"),
        ("PSTRAINING_WORKERS", "many", "PSTRAINING_WORKERS is not a whole number: 'many'"),
        ("PSTRAINING_METRICS_PORT", "70000", "PSTRAINING_METRICS_PORT must be 0 to 65535, not 70000"),
        ("PSTRAINING_METRICS_PORT", "tcp://10.0.0.1:8080", "enableServiceLinks: false"),
        ("PSTRAINING_LOG_LEVEL", "loud", "PSTRAINING_LOG_LEVEL must be DEBUG, INFO, WARNING or ERROR"),
        ("PSTRAINING_LOG_FORMAT", "xml", "PSTRAINING_LOG_FORMAT must be json or text"),
        ("PSTRAINING_POD_IDS", "1000", "PSTRAINING_POD_IDS must be auto, set or platform"),
        ("PSTRAINING_KUEUE", "yes", "PSTRAINING_KUEUE must be true or false, not 'yes'"),
        ("PSTRAINING_NAMESPACES", "Team_A", "PSTRAINING_NAMESPACES 'Team_A' is not the name of a namespace"),
        ("PSTRAINING_LEASE_NAME", " ", "PSTRAINING_LEASE_NAME is empty"),
        ("PSTRAINING_LEASE_DURATION_SECONDS", "1", "PSTRAINING_LEASE_DURATION_SECONDS must be 3 to 600"),
        ("PSTRAINING_WORKER", "4", "PSTRAINING_WORKER is not a setting"),
    ],
)
def test_an_invalid_setting_is_named(name: str, value: str, words: str) -> None:
    with pytest.raises(OperatorSettingsError) as caught:
        Settings.from_env({name: value})
    assert words in str(caught.value)


@pytest.mark.parametrize("name", ["PSTRAINING_CONTEXT", "PSTRAINING_X_SERVICE_HOST", "PSTRAINING_X_PORT_80_TCP_ADDR"])
def test_foreign_variables_are_ignored(name: str) -> None:
    assert Settings.from_env({name: "x", "POD_NAME": "p"}) == Settings(pod_name="p", lease_namespace="default")


@pytest.mark.parametrize("name", ["PSTRAINING_NAMESPACES", "PSTRAINING_LEASE_NAMESPACE", "POD_NAME"])
def test_an_empty_value_is_accepted_only_where_the_default_is_empty(name: str) -> None:
    Settings.from_env({name: ""})


def test_every_setting_has_its_own_variable() -> None:
    found = [f.metadata["env"] for f in dataclasses.fields(Settings)]
    assert len(set(found)) == len(found)


def test_the_operator_uses_all_descriptors_that_its_container_permits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Containers often start with 1,024, which idle connections from any pod could use up."""
    limits: list[tuple[int, int]] = []

    async def run(*_: object) -> int:
        return 0

    for name in [name for name in os.environ if name.startswith("PSTRAINING_")]:
        monkeypatch.delenv(name)  # of the test run, and no setting
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 65536))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: limits.append(limit))
    for function in ("freeze", "set_threshold"):
        monkeypatch.setattr(gc, function, lambda *_: None)
    monkeypatch.setattr(logs, "configure", lambda *_: None)
    monkeypatch.setattr(main, "run", run)
    with pytest.raises(SystemExit):
        main.main()
    assert limits == [(65536, 65536)]
