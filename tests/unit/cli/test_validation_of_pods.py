"""Fields of pods that every API server rejects: selectors, probes, sources of variables and volumes, modes and ids."""

from typing import Any, Final

import pytest

from tests.unit.cli.test_validation_values import OWN_NAME, POD, found, main

TERMS = "nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"
SPREAD = {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}


def nodes(**requirement: Any) -> dict[str, Any]:
    """Return an affinity to nodes with one requirement."""
    terms = [{"matchExpressions": [{"key": "pool", **requirement}]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def node(key: str, operator: str, *values: str) -> dict[str, Any]:
    """Return an affinity to nodes with one requirement on a field."""
    terms = [{"matchFields": [{"key": key, "operator": operator, "values": [*values]}]}]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


def exposed(*ports: dict[str, Any]) -> list[Any]:
    """Return two containers with ports of the node; all but the last one are the first container's."""
    numbered = [{"containerPort": 8000 + number, **port} for number, port in enumerate(ports)]
    return [*main(ports=numbered[:-1]), {"name": "beside", "image": "i", "ports": numbered[-1:]}]


def apart(weight: int, **requirement: Any) -> dict[str, Any]:
    """Return a preference for nodes without the pods that a selector matches."""
    selector = {"matchExpressions": [{"key": "app", **requirement}]}
    term = {"topologyKey": "zone", "labelSelector": selector}
    return {"podAntiAffinity": {PREFERRED: [{"weight": weight, "podAffinityTerm": term}]}}


def variable(**source: Any) -> list[Any]:
    return main(env=[{"name": "A", "valueFrom": source}])


def probes(**fields: Any) -> list[Any]:
    return main(livenessProbe={"exec": {"command": ["a"]}, **fields})


def token(seconds: int) -> dict[str, Any]:
    """Return a source of a volume with a token."""
    return {"serviceAccountToken": {"path": "t", "expirationSeconds": seconds}}


REFUSED: Final[list[tuple[str, Any, str]]] = [
    ("containers", [{**main()[0], "image": "my/image:1 "}], "image: must not begin or end with a space"),
    (
        "affinity",
        nodes(operator="in", values=["a"]),
        f"{TERMS}[0].matchExpressions[0].operator: must be one of In,",
    ),
    ("affinity", nodes(operator="In"), "matchExpressions[0].values: is required with operator In"),
    ("affinity", nodes(operator="Exists", values=["a"]), "values: must be empty with operator Exists"),
    ("affinity", nodes(operator="Gt", values=["1", "2"]), "values: must have one number with operator Gt"),
    (
        "affinity",
        {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}}},
        f"{TERMS}: is required, and not empty",
    ),
    ("affinity", apart(0, operator="Exists"), "weight: must be at least 1 and at most 100, is 0"),
    (
        "affinity",
        apart(1, operator="Gt", values=["1"]),
        "operator: must be one of In, NotIn, Exists, DoesNotExist,",
    ),
    ("topologySpreadConstraints", [{**SPREAD, "maxSkew": 0}], "maxSkew: must be at least 1"),
    ("tolerations", [{"key": "a b"}], "tolerations[0].key: must be the key of a label"),
    ("hostAliases", [{"ip": "localhost", "hostnames": ["a"]}], "hostAliases[0].ip: must be an IP address"),
    ("preemptionPolicy", "never", "preemptionPolicy: must be one of PreemptLowerPriority, Never"),
    ("securityContext", {"runAsUser": -1}, "runAsUser: must be at least 0"),
    ("securityContext", {"seccompProfile": {"type": "Default"}}, "seccompProfile.type: must be one of"),
    (
        "containers",
        main(terminationMessagePolicy="Logs"),
        "terminationMessagePolicy: must be one of File, Fallback",
    ),
    ("containers", probes(periodSeconds=-1), "livenessProbe.periodSeconds: must be at least 0"),
    ("containers", probes(successThreshold=2), "livenessProbe.successThreshold: must be 1, is 2"),
    ("containers", main(envFrom=[{"prefix": "A_"}]), "envFrom[0].configMapRef: is required, or secretRef"),
    (
        "containers",
        main(envFrom=[{"configMapRef": {"name": "a"}, "secretRef": {"name": "b"}}]),
        "envFrom[0].secretRef: excludes configMapRef",
    ),
    ("containers", variable(), "env[0].valueFrom.fieldRef: is required, or resourceFieldRef or"),
    ("containers", variable(resourceFieldRef={"resource": "cpu"}), "must be an amount such as limits.cpu"),
    ("volumes", [{"name": "v", "configMap": {}}], "volumes[0].configMap.name: is required, and not empty"),
    ("volumes", [{"name": "v", "secret": {"name": "s"}}], "volumes[0].secret.secretName: is required"),
    (
        "volumes",
        [{"name": "v", "projected": {"sources": [{"secret": {"optional": True}}]}}],
        "volumes[0].projected.sources[0].secret.name: is required",
    ),
    ("volumes", [{"name": "v", "hostPath": {"path": "/a/../b"}}], "hostPath.path: must be a path without .."),
    ("volumes", [{"name": "v", "secret": {"secretName": "s", "defaultMode": 600}}], "is 600; did you mean 0600?"),
    (
        "volumes",
        [{"name": "v", "configMap": {"name": "c", "items": [{"key": "a", "path": "b", "mode": 999}]}}],
        "items[0].mode: must be at most 511 (octal 0777), is 999",
    ),
    ("volumes", [{"name": "v", "hostPath": {"path": "/d", "type": "directory"}}], "is 'directory'; did you mean Dir"),
    ("volumes", [{"name": "v", "persistentVolumeClaim": {"claimName": ""}}], "claimName: is required, and not empty"),
    ("volumes", [{"name": "v", "nfs": {"server": "", "path": "/a"}}], "nfs.server: is required, and not empty"),
    ("volumes", [{"name": "v", "nfs": {"server": "s", "path": "a"}}], "nfs.path: must be an absolute path, is 'a'"),
    (
        "volumes",
        [{"name": "v", "downwardAPI": {"items": [{"path": "a"}]}}],
        "fieldRef: is required, or resourceFieldRef",
    ),
    ("volumes", [{"name": "v", "ephemeral": {}}], "ephemeral.volumeClaimTemplate: is required, and not empty"),
    ("volumes", [{"name": "v", "csi": {"driver": ""}}], "csi.driver: is required, and not empty"),
    ("volumes", [{"name": "v", "projected": {"sources": [token(60)]}}], "expirationSeconds: must be at least 600"),
    ("containers", variable(secretKeyRef={"key": "k"}), "secretKeyRef.name: is required, and not empty"),
    ("containers", variable(configMapKeyRef={"name": "c", "key": ""}), "configMapKeyRef.key: is required, and not"),
    (
        "containers",
        main(envFrom=[{"secretRef": {"name": ""}}]),
        "envFrom[0].secretRef.name: is required, and not empty",
    ),
    ("containers", probes(exec=None, httpGet={"port": 1, "scheme": "https"}), "is 'https'; did you mean HTTPS?"),
    (
        "containers",
        main(readinessProbe={"exec": {"command": ["a"]}, "terminationGracePeriodSeconds": 5}),
        "readinessProbe.terminationGracePeriodSeconds: cannot be set: a readiness probe ends no container",
    ),
    (
        "containers",
        main(securityContext={"privileged": True, "allowPrivilegeEscalation": False}),
        "allowPrivilegeEscalation: must not be false with privileged",
    ),
    (
        "containers",
        main(securityContext={"capabilities": {"add": ["CAP_SYS_ADMIN"]}, "allowPrivilegeEscalation": False}),
        "allowPrivilegeEscalation: must not be false with CAP_SYS_ADMIN",
    ),
    ("containers", main(resources={"claims": [{"name": "g"}]}), "claims g, which is not in resourceClaims"),
    ("containers", main(resizePolicy=[{"resourceName": "gpu", "restartPolicy": "NotRequired"}]), "one of cpu, memory"),
    ("resourceClaims", [{"name": "g"}], "resourceClaimName: is required, or resourceClaimTemplateName"),
    (
        "resourceClaims",
        [{"name": "g", "resourceClaimName": "a", "resourceClaimTemplateName": "b"}],
        "resourceClaimName: excludes resourceClaimTemplateName",
    ),
    ("topologySpreadConstraints", [SPREAD, SPREAD], "Constraints: has zone with ScheduleAnyway twice"),
    ("topologySpreadConstraints", [{**SPREAD, "minDomains": 2}], "minDomains: needs whenUnsatisfiable DoNotSchedule"),
    ("topologySpreadConstraints", [{**SPREAD, "matchLabelKeys": ["a"]}], "labelSelector: is required with matchLabelK"),
    ("dnsPolicy", "None", "dnsConfig.nameservers: is required with dnsPolicy None"),
    ("dnsConfig", {"nameservers": ["1.1.1.1"] * 4}, "nameservers: has 4 addresses, but at most 3 are allowed"),
    ("dnsConfig", {"nameservers": ["dns.local"]}, "nameservers[0]: must be an IP address, is 'dns.local'"),
    ("securityContext", {"supplementalGroupsPolicy": "strict"}, "is 'strict'; did you mean Strict?"),
    ("securityContext", {"seccompProfile": {"type": "Localhost"}}, "localhostProfile: is required with type Localhost"),
    (
        "readinessGates",
        [{"conditionType": "is ready"}],
        "conditionType: must be the key of a label, NAME or PREFIX/NAME",
    ),
    ("affinity", node("metadata.namespace", "In", "a"), "key: must be metadata.name, the only field"),
    ("affinity", node("metadata.name", "Exists"), "operator: must be In or NotIn for a field, is 'Exists'"),
    ("affinity", node("metadata.name", "In", "a", "b"), "values: must have one name with operator In"),
    ("containers", exposed({"hostPort": 80}, {"hostPort": 80}), "containers: use hostPort 80 twice"),
    ("containers", exposed({"hostPort": 80}, {"hostPort": 80, "protocol": "TCP"}), "containers: use hostPort 80 twice"),
    (
        "securityContext",
        {"appArmorProfile": {"type": "Unconfined", "localhostProfile": "a"}},
        "appArmorProfile.localhostProfile: needs type Localhost",
    ),
]
"""Fields of a pod, their values, and a part of the message."""


@pytest.mark.parametrize(("path", "value", "message"), REFUSED)
def test_a_field_that_kubernetes_refuses_is_an_error(path: str, value: Any, message: str) -> None:
    (first, *_) = found(f"{POD}.{path}", value)
    assert first.startswith("error: spec.worker.template.spec.")
    assert message in first


@pytest.mark.parametrize("host", ["hostPID", "hostIPC"])
def test_a_pod_with_users_of_its_own_has_no_namespace_of_the_node(host: str) -> None:
    spec = {"containers": main(), "hostUsers": False, host: True}
    assert f"error: {POD}.{host}: excludes hostUsers: false" in found(POD, spec)
    assert f"error: {POD}.{host}: excludes hostUsers: false" not in found(POD, {**spec, "hostUsers": True})


def test_a_pod_in_the_nodes_namespace_of_processes_shares_none_of_its_own() -> None:
    spec = {"containers": main(), "hostPID": True, "shareProcessNamespace": True}
    assert f"error: {POD}.shareProcessNamespace: excludes hostPID" in found(POD, spec)


def test_a_path_in_a_volume_is_relative() -> None:
    mounts = [{"name": "v", "mountPath": "/v", "subPath": "/a"}]
    (first, *_) = found(f"{POD}.containers", main(volumeMounts=mounts))
    assert "volumeMounts[0].subPath: must be a relative path without .., is '/a'" in first


ACCEPTED: Final[list[tuple[str, Any]]] = [
    ("affinity", nodes(operator="Gt", values=["1"])),
    ("affinity", nodes(operator="DoesNotExist")),
    ("affinity", apart(100, operator="NotIn", values=["a"])),
    ("readinessGates", [{"conditionType": "example.com/is-ready"}]),
    ("affinity", node("metadata.name", "NotIn", "a")),
    (
        "containers",
        exposed({"hostPort": 80}, {"hostPort": 80, "protocol": "UDP"}, {"hostPort": 80, "hostIP": "1.1.1.1"}),
    ),
    ("topologySpreadConstraints", [SPREAD]),
    ("hostAliases", [{"ip": "010.0.0.1", "hostnames": ["a"]}, {"ip": "fd00::1", "hostnames": ["b"]}]),
    ("securityContext", {"runAsUser": 0, "fsGroup": 2**31 - 1, "fsGroupChangePolicy": "Always"}),
    ("containers", main(readinessProbe={"exec": {"command": ["a"]}, "successThreshold": 2, "periodSeconds": 0})),
    ("containers", main(envFrom=[{"prefix": "A_", "secretRef": {"name": "a", "optional": True}}])),
    ("containers", variable(resourceFieldRef={"resource": "limits.hugepages-2Mi"})),
    ("containers", variable(configMapKeyRef={"name": "a", "key": "b"})),
    ("volumes", [{"name": "v", "secret": {"secretName": "s", "defaultMode": 0o400}}]),
    ("volumes", [{"name": "v", "hostPath": {"path": "/a..b"}}]),
    ("volumes", [{"name": "v", "projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}]),
    ("volumes", [{"name": "v"}]),
    ("volumes", [{"name": "v", "downwardAPI": {"items": [{"path": "a", "mode": 0o400, **OWN_NAME}]}}]),
    ("volumes", [{"name": "v", "hostPath": {"path": "/d", "type": ""}}]),
    ("volumes", [{"name": "v", "projected": {"sources": [token(600)]}}]),
    ("volumes", [{"name": "v", "flexVolume": {"driver": "a/b", "secretRef": {}}}]),
    ("topologySpreadConstraints", [SPREAD, {**SPREAD, "whenUnsatisfiable": "DoNotSchedule", "minDomains": 2}]),
    ("topologySpreadConstraints", [{**SPREAD, "matchLabelKeys": ["a"], "labelSelector": {}}]),
    ("dnsConfig", {"nameservers": ["1.1.1.1", "fd00::1"]}),
    ("securityContext", {"seccompProfile": {"type": "Localhost", "localhostProfile": "a/b.json"}}),
]
"""Fields of a pod, and their values."""


@pytest.mark.parametrize(("path", "value"), ACCEPTED)
def test_a_field_that_kubernetes_accepts_is_none(path: str, value: Any) -> None:
    assert not [one for one in found(f"{POD}.{path}", value) if one.startswith("error")]


@pytest.mark.parametrize("medium", ["memory", "tmpfs", "hugepages"])
def test_a_medium_that_no_kubelet_knows_is_a_warning(medium: str) -> None:
    """The API server accepts any text, and the pod waits for its volume forever."""
    (first,) = found(f"{POD}.volumes", [{"name": "v", "emptyDir": {"medium": medium}}])
    assert first.startswith(f"warning: {POD}.volumes[0].emptyDir.medium: is {medium}, which no kubelet can mount")


@pytest.mark.parametrize("source", [{}, {"medium": ""}, {"medium": "Memory"}, {"medium": "HugePages-2Mi"}])
def test_a_medium_that_kubelets_know_is_none(source: dict[str, str]) -> None:
    assert not found(f"{POD}.volumes", [{"name": "v", "emptyDir": source}])


@pytest.mark.parametrize(
    ("pod", "own", "named"),
    [
        ({"runAsUser": 0}, {"runAsNonRoot": True}, f"{POD}.securityContext.runAsUser"),
        ({"runAsNonRoot": True}, {"runAsUser": 0}, f"{POD}.containers[0].securityContext.runAsUser"),
        ({"runAsUser": 0, "runAsNonRoot": True}, {}, f"{POD}.securityContext.runAsUser"),
        ({"runAsUser": 0, "runAsNonRoot": True}, {"runAsNonRoot": False}, ""),
        ({"runAsUser": 0, "runAsNonRoot": True}, {"runAsUser": 7}, ""),
        ({"runAsUser": 0}, {}, ""),
    ],
)
def test_a_container_that_is_root_and_must_not_be_is_a_warning(
    pod: dict[str, Any], own: dict[str, Any], named: str
) -> None:
    spec = {"containers": main(securityContext=own), "securityContext": pod}
    wrong = [one for one in found(POD, spec) if "is 0, but runAsNonRoot is true" in one]
    assert [one.split(": ")[1] for one in wrong] == ([named] if named else [])
