"""The API server in use: the pod's own, or that of an explicitly named context."""

from pathlib import Path

import pytest
import yaml

from pstraining.kube.connection import NoApiServerError, load_configuration

pytestmark = pytest.mark.asyncio


@pytest.fixture
def kubeconfig(tmp_path: Path) -> str:
    path = tmp_path / "kubeconfig"
    clusters = [{"name": n, "cluster": {"server": f"http://{n}:8001"}} for n in ("mine", "production")]
    contexts = [{"name": n, "context": {"cluster": n, "user": "me"}} for n in ("mine", "production")]
    users = [{"name": "me", "user": {"token": "secret"}}]
    found = {"current-context": "production", "clusters": clusters, "contexts": contexts, "users": users}
    path.write_text(yaml.safe_dump({"apiVersion": "v1", "kind": "Config", **found}))
    return str(path)


async def test_the_named_context_is_used_and_not_the_current_one(kubeconfig: str) -> None:
    found = await load_configuration({"KUBECONFIG": kubeconfig, "PSTRAINING_CONTEXT": "mine"})
    assert found.host == "http://mine:8001"
    assert await found.get_api_key_with_prefix("BearerToken") == "Bearer secret"


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({}, "set KUBECONFIG outside of one"),
        ({"KUBECONFIG": "{path}"}, "name the context to use in PSTRAINING_CONTEXT"),
        ({"KUBECONFIG": "{path}", "PSTRAINING_CONTEXT": "nobody"}, "context nobody of {path}"),
        ({"KUBECONFIG": "/nowhere", "PSTRAINING_CONTEXT": "mine"}, "context mine of /nowhere"),
    ],
)
async def test_without_a_configuration_there_is_no_connection(
    kubeconfig: str, environ: dict[str, str], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(NoApiServerError) as caught:
        await load_configuration({k: v.format(path=kubeconfig) for k, v in environ.items()})
    assert words.format(path=kubeconfig) in str(caught.value)
