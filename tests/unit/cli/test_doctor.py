"""`doctor`: the verdicts of every check, its results with few rights, and its output."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pstraining import __version__
from pstraining.cli.client import ClusterClient
from pstraining.cli.commands.doctor import picture
from pstraining.cli.doctor import checks
from pstraining.cli.doctor.checks import Amount, Check, CheckResult, Unavailable
from pstraining.cli.doctor.examination import examine
from pstraining.cli.errors import CommandError
from pstraining.cli.main import app
from pstraining.cli.output import Output, PrintedKind, show
from tests.support.command_runner import CliRunner
from tests.support.installation import NOW, Installation, definition, deployment, lease, node

NEED = Amount.of({"cpu": "500m", "memory": "1Gi"})
OK, WARN, FAIL = CheckResult


def schema_of(made: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = made["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    return found


def asking(cpu: str, memory: str = "0", **more: Any) -> dict[str, Any]:
    return {"name": "c", "resources": {"requests": {"cpu": cpu, "memory": memory}}, **more}


def pod(name: str, *containers: dict[str, Any], phase: str = "Running", **spec: Any) -> dict[str, Any]:
    return {"spec": {"nodeName": name, "containers": list(containers), **spec}, "status": {"phase": phase}}


def verdict(check: Check) -> tuple[CheckResult, str]:
    return check.result, check.message


@pytest.mark.parametrize(
    ("major", "minor", "result"),
    [
        ("1", "28", FAIL),
        ("1", "29", WARN),
        ("1", "30+", WARN),
        ("1", "31", OK),
        ("1", "34", OK),
        ("2", "0", OK),
        ("", "", FAIL),
    ],
)
def test_versions_of_kubernetes(major: str, minor: str, result: CheckResult) -> None:
    assert checks.version({"major": major, "minor": minor, "gitVersion": "v"}).result is result


def test_a_missing_or_broken_crd() -> None:
    assert verdict(checks.definition(None)) == (FAIL, "pstrainingjobs.pstraining.dev is not installed")
    made = definition()
    made["status"]["conditions"] = [{"type": "NamesAccepted", "status": "False", "message": "pstj is taken"}]
    assert verdict(checks.definition(made)) == (
        FAIL,
        "pstrainingjobs.pstraining.dev is not established: pstj is taken",
    )
    made = definition()
    made["spec"]["versions"][0]["name"] = "v1"
    assert verdict(checks.definition(made)) == (FAIL, "v1alpha1 is not served, only v1")


def test_a_crd_of_another_version() -> None:
    made = definition()
    assert verdict(checks.definition(made)) == (OK, f"v1alpha1, the same as this CLI's ({__version__})")
    schema_of(made)["ps"]["properties"]["replicas"]["description"] = "only words"
    schema_of(made)["new"] = {"type": "string"}
    del schema_of(made)["network"]
    schema_of(made)["ps"]["properties"]["replicas"]["maximum"] = 7
    found = checks.definition(made)
    assert found.result is WARN
    assert "spec.ps.properties" not in found.message
    assert "spec.ps.replicas, spec.network (only in this CLI), spec.new (only in the cluster)" in found.message


def test_operators() -> None:
    assert [verdict(c) for c in checks.operators([], "team")] == [(FAIL, "no operator is installed")]
    (found,) = checks.operators([deployment()], "team")
    assert verdict(found) == (OK, f"sys/op, image pstraining/operator:{__version__}, is ready")
    (found,) = checks.operators([deployment(ready=0)], "team")
    assert (found.result, found.todo) == (FAIL, "kubectl -n sys get pods; kubectl -n sys logs deployment/op")
    (found,) = checks.operators([deployment(version="0.0.1")], "team")
    assert found.result is WARN
    assert "has version 0.0.1, this CLI has" in found.message


def test_an_operator_of_other_namespaces() -> None:
    _, found = checks.operators([deployment("a,b")], "team")
    assert verdict(found) == (FAIL, "no operator watches namespace team")
    assert found.todo.endswith("use one of: a, b.")
    assert [c.result for c in checks.operators([deployment("a, team")], "team")] == [OK]
    assert [c.result for c in checks.operators([deployment("a"), deployment()], "team")] == [OK, OK]


@pytest.mark.parametrize(
    ("found", "result", "message"),
    [
        (lease(), OK, "op-1 holds Lease s/n"),
        (lease(29), OK, "op-1 holds Lease s/n"),
        (lease(31), FAIL, "op-1 last renewed Lease s/n 31 s ago by this machine's clock; the limit is 30 s"),
        (lease(holder=""), FAIL, "no operator holds Lease s/n"),
        (None, FAIL, "there is no Lease s/n: no operator has started yet"),
    ],
)
def test_leases(found: dict[str, Any] | None, result: CheckResult, message: str) -> None:
    assert verdict(checks.lease(found, "s/n", NOW)) == (result, message)


@pytest.mark.parametrize(
    ("missing", "result"),
    [([], OK), ([("delete", "")], WARN), ([("patch", "scale")], WARN), ([("create", "")], FAIL), ([("get", "")], FAIL)],
)
def test_rights(missing: list[tuple[str, str]], result: CheckResult) -> None:
    found = checks.rights({right: right not in missing for right in checks.RIGHTS}, "team")
    assert found.result is result
    for verb, sub in missing:
        assert f"you may not {verb} pstrainingjobs{'/scale' if sub else ''} in namespace team" == found.message


def test_free_resources_on_nodes() -> None:
    two = [node("a"), node("b")]
    assert verdict(checks.nodes(two, [], NEED)) == (
        OK,
        "2 of 2 nodes have room for a parameter server of 0.5 CPU and 1 GiB",
    )
    full = [pod("a", asking("3600m"))]
    found = checks.nodes(two, full, NEED)
    assert verdict(found) == (
        WARN,
        "only b has room for a parameter server of 0.5 CPU and 1 GiB: standbys require a second node",
    )
    found = checks.nodes(two, [*full, pod("b", asking("0", "7500Mi"))], NEED)
    assert found.result is WARN
    assert found.message.startswith("none of 2 nodes has room for")


def test_nodes_that_do_not_count() -> None:
    taint = {"key": "k", "effect": "NoSchedule"}
    others = [node("x", ready="Unknown"), node("y", unschedulable=True), node("z", taints=[taint])]
    assert checks.nodes(others, [], NEED).result is FAIL
    soft = node("s", taints=[{"key": "k", "effect": "PreferNoSchedule"}])
    assert "only s has room" in checks.nodes([*others, soft], [], NEED).message


def test_without_the_right_to_list_pods_free_resources_are_an_estimate() -> None:
    found = checks.nodes([node("a"), node("b")], Unavailable("eve may not list pods"), NEED)
    assert found.result is WARN
    assert "2 of 2 nodes have room" in found.message
    assert "(if the nodes run nothing else: eve may not list pods)" in found.message


@pytest.mark.parametrize(
    ("made", "cpu", "memory"),
    [
        (pod("a", asking("1", "1Gi"), asking("500m")), "1.5", 2**30),
        (pod("a", {"name": "c"}), "0", 0),
        (pod("a", asking("1"), phase="Succeeded"), "0", 0),
        (pod("a", asking("1"), initContainers=[asking("3"), asking("2", "1Gi")]), "3", 2**30),
        (pod("a", asking("1"), initContainers=[asking("1", restartPolicy="Always"), asking("500m")]), "2", 0),
        (pod("a", asking("1"), overhead={"cpu": "250m"}), "1.25", 0),
        # A container with only a limit requests its limit; a quantity that Kubernetes rejects is not counted.
        (pod("a", {"name": "c", "resources": {"limits": {"cpu": "2"}}}), "2", 0),
        (pod("a", asking("1K", "1Gi")), "0", 2**30),
    ],
)
def test_resources_that_a_pod_reserves(made: dict[str, Any], cpu: str, memory: int) -> None:
    assert checks.requests(made) == Amount.of({"cpu": cpu, "memory": memory})


def test_storage_and_network_and_metrics() -> None:
    mark = {"storageclass.kubernetes.io/is-default-class": "true"}
    classes: list[Any] = [{"metadata": {"name": "slow"}}, {"metadata": {"name": "fast", "annotations": mark}}]
    assert verdict(checks.storage(classes)) == (OK, "the default StorageClass is fast")
    assert verdict(checks.storage(classes[:1])) == (WARN, "no StorageClass is the default (available: slow)")
    assert checks.network([{"metadata": {"name": "cilium"}}]).result is OK
    assert checks.network([{"metadata": {"name": "kindnet"}}]).result is WARN
    assert checks.metrics("pstraining_jobs 1").result is OK
    assert checks.metrics({"kind": "Status"}).result is WARN


def examined(cluster: ClusterClient) -> dict[str, CheckResult]:
    return {c.name: c.result for c in examine(cluster, "team", NEED, NOW)}


WELL = {
    **dict.fromkeys(("api server", "crd", "operator", "lease", "metrics", "rights", "nodes"), OK),
    **dict.fromkeys(("storage", "network"), WARN),
}


def test_all_checks_pass_on_a_healthy_cluster() -> None:
    assert examined(Installation()) == WELL


@pytest.mark.parametrize(
    ("denied", "changed"),
    [
        (("customresourcedefinitions",), {"crd": WARN}),
        (("/v1/deployments",), {}),  # the operator's usual place can be read
        (("deployments",), {"operator": WARN, "lease": None, "metrics": None}),
        (("leases",), {"lease": WARN, "metrics": None}),
        (("proxy",), {"metrics": WARN}),
        (("nodes",), {"nodes": WARN}),
        (("namespaces/team",), {}),
        (("pods",), {"nodes": WARN, "metrics": WARN}),
        (("/v",), dict.fromkeys(WELL, None) | {"api server": FAIL}),
    ],
)
def test_a_missing_right_is_a_warning(denied: tuple[str, ...], changed: dict[str, CheckResult | None]) -> None:
    assert examined(Installation(denied)) == {n: r for n, r in (WELL | changed).items() if r is not None}


def test_a_missing_namespace() -> None:
    cluster = Installation()
    del cluster.paths["/api/v1/namespaces/team"]
    assert examined(cluster) == WELL | {"rights": FAIL}
    assert [verdict(c) for c in examine(cluster, "team", NEED, NOW) if c.name == "rights"] == [
        (FAIL, "there is no namespace team")
    ]


def test_a_name_that_changes_the_path_is_not_a_namespace() -> None:
    cluster = Installation()
    cluster.paths["/api/v1/namespaces/team/pods"] = {"items": []}
    with pytest.raises(CommandError, match="'team/pods' is not a name"):
        list(examine(cluster, "team/pods", NEED, NOW))


def test_without_the_right_to_read_crds_a_missing_api_is_a_failure() -> None:
    cluster = Installation(("customresourcedefinitions",))
    del cluster.paths["/apis/pstraining.dev/v1alpha1"]
    assert examined(cluster)["crd"] is FAIL


def unreachable(context: str | None) -> ClusterClient:
    raise CommandError("No cluster: none.")


@pytest.mark.parametrize(("paths", "status", "worst"), [({}, 0, "warn"), ({"/api/v1/nodes": []}, 1, "fail")])
def test_what_it_prints(monkeypatch: pytest.MonkeyPatch, paths: dict[str, Any], status: int, worst: str) -> None:
    cluster = Installation()
    fresh = lease()
    fresh["spec"]["renewTime"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    cluster.paths |= {"/apis/coordination.k8s.io/v1/namespaces/sys/leases/the-lease": fresh, **paths}
    monkeypatch.setattr("pstraining.cli.commands.doctor.KubeconfigClient", lambda context: cluster)
    result = CliRunner().invoke(app, ["doctor", "-n", "team", "-o", "json"])
    found = json.loads(result.output)
    assert (result.exit_code, found["result"]) == (status, worst)
    assert found["checks"][0] == {
        "check": "api server",
        "result": "ok",
        "message": "Kubernetes v1.34.1",
        "todo": "",
    }
    text = CliRunner().invoke(app, ["doctor"]).output.splitlines()
    assert text[0].split() == ["ok", "api", "server", "Kubernetes", "v1.34.1"]
    assert any(line.strip().startswith("-> ") for line in text)


def test_what_the_documentation_shows(capsys: pytest.CaptureFixture[str]) -> None:
    cluster, home = Installation(), "pstraining-system"
    operator = deployment()
    operator["metadata"] |= {"name": "pstraining-operator", "namespace": home}
    operator["spec"]["template"]["spec"]["containers"][0]["env"][2]["value"] = "pstraining-operator"
    holder = "pstraining-operator-5d8f7c9b64-x2kqj"
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{home}/leases/pstraining-operator"
    cluster.paths |= {
        "/apis/apps/v1/deployments": [operator],
        leases: lease(holder=holder),
        f"/api/v1/namespaces/{home}/pods/{holder}:8080/proxy/metrics": "pstraining_jobs 1",
        "/api/v1/nodes": [node("node-1")],
        "/apis/apps/v1/daemonsets": [{"metadata": {"name": "cilium"}}],
    }
    found = list(examine(cluster, "team", NEED, NOW))
    show(PrintedKind.INSTALLATION, {}, Output.TEXT, lambda: picture(found))
    page = (Path(__file__).parents[3] / "docs" / "operators" / "doctor.md").read_text()
    shown = page.split("## The cluster")[1].split("```\n")[1].splitlines()
    assert [line.rstrip() for line in capsys.readouterr().out.splitlines()] == shown


def test_without_a_kubeconfig(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pstraining.cli.commands.doctor.KubeconfigClient", unreachable)
    result = CliRunner().invoke(app, ["doctor", "-o", "json"])
    assert result.exit_code == 1
    assert json.loads(result.output)["checks"] == [
        {"check": "kubeconfig", "result": "fail", "message": "No cluster: none.", "todo": ""}
    ]


@pytest.mark.parametrize("quantity", ["much", "1GiB"])
def test_a_request_that_is_not_a_quantity(quantity: str) -> None:
    result = CliRunner().invoke(app, ["doctor", "--memory", quantity])
    assert isinstance(result.exception, CommandError)
    assert "not quantities" in str(result.exception)
