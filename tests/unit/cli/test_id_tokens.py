"""ID tokens that have expired are renewed once, and kept for kubectl and the next command."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from kubernetes.config import kube_config

from pstraining.cli.client import KubeconfigClient
from pstraining.cli.connection.models import AuthProvider
from pstraining.cli.connection.oidc import _store, current
from pstraining.cli.errors import CommandError
from pstraining.cli.reading.texts import first_document
from tests.support.kubeconfigs import id_token, tls
from tests.support.kubectl_rows import Row, laid_out, rig


def test_the_other_values_of_a_kubeconfig_stay(tmp_path: Path) -> None:
    path = tmp_path / "config"
    path.write_text(
        "users: [{name: jane, user: {auth-provider: {name: oidc, config: {id-token: a}}}},\n"
        "  {name: b, user: {token: '1e10'}}]\n"
        "contexts: [{name: dev, context: {cluster: dev, user: jane, namespace: 12:30}}, {name: '0o7', context: {}}]\n"
        "current-context: 2026-01-01\n"
    )
    before = first_document("config", path.read_text())
    _store({"id-token": "b", "client-secret": "2e5"}, "jane", str(path))
    before["users"][0]["user"]["auth-provider"]["config"] = {"id-token": "b", "client-secret": "2e5"}
    assert first_document("config", path.read_text()) == before
    assert "'1e10'" in path.read_text()


def test_a_renewed_token_is_kept_with_its_refresh_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = id_token(exp=4102444800)["auth-provider"]["config"]["id-token"]
    used: list[str] = []

    def renewed(loader: Any, provider: Any) -> None:
        used.append(provider["config"]["refresh-token"])
        provider["config"].value |= {"id-token": fresh, "refresh-token": "second"}

    monkeypatch.setattr(kube_config.KubeConfigLoader, "_refresh_oidc", renewed)
    user = id_token(exp=1)
    user["auth-provider"]["config"]["refresh-token"] = "first"
    body = tls(user)
    body["users"].append({"name": "other", "user": {"token": "t"}})
    with rig() as servers:
        environ, _ = laid_out(Row("", {"config": body}), servers, tmp_path)
        monkeypatch.setenv("KUBECONFIG", environ["KUBECONFIG"])
        before = json.loads((tmp_path / "config").read_text())
        for _ in range(2):  # two commands, with two requests each
            cluster = KubeconfigClient()
            cluster.read("/a")
            cluster.read("/b")
        assert [asked["authorization"] for asked in servers.kept()] == [f"Bearer {fresh}"] * 4
    assert used == ["first"]
    before["users"][0]["user"]["auth-provider"]["config"] |= {"id-token": fresh, "refresh-token": "second"}
    assert yaml.safe_load((tmp_path / "config").read_text()) == before


def test_a_client_without_a_secret_has_its_token_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fresh = id_token(exp=4102444800)["auth-provider"]["config"]["id-token"]
    endpoint = SimpleNamespace(status=200, read=lambda: b"", data=json.dumps({"token_endpoint": "https://i/token"}))
    renewed = SimpleNamespace(refresh_token=lambda **_: {"id_token": fresh, "refresh_token": "second"})
    monkeypatch.setattr(kube_config, "ApiClient", lambda **_: SimpleNamespace(call_api=lambda **_: endpoint))
    monkeypatch.setattr(kube_config, "OAuth2Session", lambda **_: renewed)
    user = id_token(exp=1)["auth-provider"]
    user["config"]["refresh-token"] = "first"
    path = tmp_path / "config"
    path.write_text(json.dumps({"users": [{"name": "jane", "user": {"auth-provider": user}}]}))
    found = current(AuthProvider(**user), "jane", str(path)).config
    assert found == user["config"] | {"id-token": fresh, "refresh-token": "second"}
    assert yaml.safe_load(path.read_text())["users"][0]["user"]["auth-provider"]["config"] == found


@pytest.mark.parametrize("missing", [{}, {"id-token": ""}])
def test_a_refresh_token_alone_is_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, missing: Any) -> None:
    fresh = id_token(exp=4102444800)["auth-provider"]["config"]["id-token"]
    config = {"idp-issuer-url": "https://i", "client-id": "c", "refresh-token": "first", **missing}
    user: dict[str, Any] = {"name": "oidc", "config": config}
    path = tmp_path / "config"
    path.write_text(json.dumps({"users": [{"name": "jane", "user": {"auth-provider": user}}]}))
    monkeypatch.setattr(kube_config.KubeConfigLoader, "_refresh_oidc", lambda *_: None)
    with pytest.raises(CommandError, match=r"user jane was not renewed: .* did not issue one. Log in again"):
        current(AuthProvider(**user), "jane", str(path))
    assert "e30" not in path.read_text()

    def renewed(loader: Any, provider: Any) -> None:
        provider["config"].value["id-token"] = fresh

    monkeypatch.setattr(kube_config.KubeConfigLoader, "_refresh_oidc", renewed)
    assert current(AuthProvider(**user), "jane", str(path)).config == config | {"id-token": fresh}
    stored = yaml.safe_load(path.read_text())["users"][0]["user"]["auth-provider"]["config"]
    assert stored == config | {"id-token": fresh}


@pytest.mark.parametrize("given", [{}, {"idp-certificate-authority": "ca.pem"}])
def test_a_refresh_token_is_only_sent_to_a_provider_with_a_trusted_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, str]
) -> None:
    authorities: list[str] = []
    monkeypatch.setattr(
        kube_config.KubeConfigLoader,
        "_refresh_oidc",
        lambda _, provider: authorities.append(provider["config"]["idp-certificate-authority"]),
    )
    user = id_token(exp=1)["auth-provider"]
    path = tmp_path / "config"
    path.write_text(json.dumps({"users": [{"name": "jane", "user": {"auth-provider": user}}]}))
    user["config"] |= given
    current(AuthProvider(**user), "jane", str(path))
    assert authorities == [given.get("idp-certificate-authority", authorities[0])]
    assert Path(authorities[0]).is_file() or given
    assert yaml.safe_load(path.read_text())["users"][0]["user"]["auth-provider"] == user


def test_a_kubeconfig_is_replaced_at_once(tmp_path: Path) -> None:
    path, link = tmp_path / "config", tmp_path / "link"
    path.write_text(json.dumps({"users": [{"name": "jane", "user": id_token(exp=1)}]}))
    path.chmod(0o640)
    link.symlink_to(path)
    with path.open() as reader:
        _store({"id-token": "b"}, "jane", str(link))
        assert "idp-issuer-url" in reader.read(), "a reader has the former file as a whole"
    assert link.is_symlink()
    assert yaml.safe_load(link.read_text())["users"][0]["user"]["auth-provider"]["config"] == {"id-token": "b"}
    assert path.stat().st_mode & 0o777 == 0o640
    assert sorted(tmp_path.iterdir()) == [path, link]


def test_a_kubeconfig_is_written_once_kubectl_has_written_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, lock = tmp_path / "config", tmp_path / "config.lock"
    before = {"users": [{"name": "jane", "user": id_token(exp=1)}]}
    path.write_text(json.dumps(before))
    lock.touch()

    def kubectl_ends(seconds: float) -> None:
        path.write_text(json.dumps(before | {"current-context": "new"}))
        lock.unlink()

    monkeypatch.setattr("pstraining.cli.connection.oidc.time.sleep", kubectl_ends)
    _store({"id-token": "b"}, "jane", str(path))
    assert yaml.safe_load(path.read_text())["current-context"] == "new"
    assert not lock.exists()
    lock.touch()
    monkeypatch.setattr("pstraining.cli.connection.oidc.time.sleep", lambda seconds: None)
    _store({"id-token": "c"}, "jane", str(path))
    assert "id-token: c" in path.read_text()
    assert lock.exists(), "it belongs to another process"


def test_a_token_that_another_command_has_renewed_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config"
    used, renewed = (id_token(exp=exp)["auth-provider"] for exp in (1, 4102444800))
    path.write_text(json.dumps({"users": [{"name": "jane", "user": {"auth-provider": used}}]}))

    def refused(*_: Any) -> None:
        _store(renewed["config"], "jane", str(path))  # by another command, which has used the refresh token
        raise ValueError("invalid_grant")

    monkeypatch.setattr(kube_config.KubeConfigLoader, "_refresh_oidc", refused)
    assert current(AuthProvider(**used), "jane", str(path)).config == renewed["config"]
    with pytest.raises(CommandError, match=r"invalid_grant. Log in again"):
        current(AuthProvider(**used), "joe", str(path))
