"""Values that every API server rejects in Kubernetes' objects are found before a job is submitted."""

from typing import Any

import pytest

from pstraining.cli.validation.documents import wrong_with
from pstraining.cli.validation.schema import Severity
from tests.support.refused import edit, simple

POD = "spec.worker.template.spec"
VOLUME = [{"name": "v", "emptyDir": {}}]
OWN_NAME = {"fieldRef": {"fieldPath": "metadata.name"}}

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
APART = {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "a"}}}
LATE = {"exec": {"command": ["true"]}, "failureThreshold": 180}
SPREAD = APART | {"maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule"}


def main(**fields: Any) -> list[Any]:
    """Return containers of a template with these fields."""
    return [{"name": "tensorflow", "image": "i", "command": ["a"], **fields}]


def limits(**amounts: Any) -> list[Any]:
    return main(resources={"limits": {name.replace("_", "/"): amount for name, amount in amounts.items()}})


def probe(port: Any, *ports: dict[str, Any]) -> list[Any]:
    return main(readinessProbe={"tcpSocket": {"port": port}}, ports=list(ports))


def claim(storage: Any, *modes: str) -> dict[str, Any]:
    return {"accessModes": list(modes or ("ReadWriteOnce",)), "resources": {"requests": {"storage": storage}}}


def found(path: str, value: Any) -> list[str]:
    made = simple("default")
    made["spec"]["checkpoint"] = {"volume": {"persistentVolumeClaim": {"claimName": "c"}}}
    edit(path, value)(made)
    kept = [f for f in wrong_with(made) if f.severity is Severity.ERROR or POD in f.field]
    return [f"{f.severity}: {f}" for f in kept]


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (f"{POD}.containers", limits(memory="512MB"), "512MB'; did you mean 512Mi?"),
        (f"{POD}.containers", limits(memory="4 Gi"), "did you mean 4Gi?"),
        (f"{POD}.containers", limits(memory="\u0664Gi"), "resources.limits.memory: must be a quantity"),
        (f"{POD}.containers", limits(memory="-1Gi"), "resources.limits.memory: must be a quantity"),
        (f"{POD}.containers", limits(cpu=""), "resources.limits.cpu: must be a quantity such as 500m or 1Gi, is ''"),
        (f"{POD}.containers", limits(gpu=1), "limits.gpu: is not a resource such as cpu, memory or nvidia.com/gpu"),
        (f"{POD}.containers", limits(**{"nvidia.com_gpu": "100m"}), "nvidia.com/gpu: must be a whole number"),
        (
            f"{POD}.containers",
            main(resources={"requests": {"nvidia.com/gpu": 1}}),
            "requests.nvidia.com/gpu: must equal its limit",
        ),
        (
            f"{POD}.containers",
            main(resources={"requests": {"cpu": 4}, "limits": {"cpu": "2000m"}}),
            "requests.cpu: must be at most its limit, 2000m",
        ),
        ("spec.ps.resources", {"limits": {"memory": "4g"}}, "spec.ps.resources.limits.memory: must be a quantity"),
        (f"{POD}.containers", main(ports=[{"name": "TensorBoard", "containerPort": 1}]), "[0].name: must be lower"),
        (f"{POD}.containers", main(ports=[{"containerPort": 70000}]), "containerPort: must be at least 1 and at most"),
        (
            f"{POD}.containers",
            main(ports=[{"name": "a", "containerPort": 1}, {"name": "a", "containerPort": 2}]),
            "ports: has the name a twice",
        ),
        (f"{POD}.containers", probe("8080"), "port: must be lower-case letters, digits and '-', with a letter"),
        (f"{POD}.containers", main(env=[{"name": "A=B"}]), "env[0].name: must be printable characters without '='"),
        (
            f"{POD}.containers",
            main(env=[{"name": "A", "value": "b", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]),
            "env[0].valueFrom: excludes value",
        ),
        (
            f"{POD}.containers",
            main(env=[{"name": "A", "valueFrom": {"fieldRef": {"fieldPath": 'metadata.labels["a"]'}}}]),
            "fieldRef.fieldPath: must be a field such as metadata.labels['app']",
        ),
        (f"{POD}.containers", main(imagePullPolicy="ifNotPresent"), "did you mean IfNotPresent?"),
        (f"{POD}.containers", [*main(), {"name": "Side_Car", "image": "i"}], "containers[1].name: must be lower-case"),
        (f"{POD}.volumes", [{"name": "a_b", "emptyDir": {}}], "volumes[0].name: must be lower-case"),
        (f"{POD}.volumes", [{**VOLUME[0], "hostPath": {"path": "/"}}], "hostPath: excludes emptyDir: a volume has one"),
        (f"{POD}.volumes", [{"name": "v", "emptyDir": {"sizeLimit": "1GB"}}], "emptyDir.sizeLimit: must be a quantity"),
        (f"{POD}.tolerations", [{"key": "a", "operator": "Exist"}], "tolerations[0].operator: must be one of Exists,"),
        (f"{POD}.tolerations", [{"key": "a", "operator": "Exists", "value": "b"}], "[0].value: must be empty with"),
        (f"{POD}.tolerations", [{"effect": "NoSchedule"}], "tolerations[0].operator: must be Exists without a key"),
        (f"{POD}.tolerations", [{"key": "a", "tolerationSeconds": 5}], "tolerationSeconds: needs effect NoExecute"),
        (
            f"{POD}.initContainers",
            [{**main()[0], "name": "i", "readinessProbe": {"exec": {"command": ["a"]}}}],
            "initContainers[0].readinessProbe: cannot be set: the container ends before the program starts",
        ),
        (
            f"{POD}.containers",
            main(livenessProbe={"periodSeconds": 5}),
            "containers[0].livenessProbe.exec: is required, or httpGet, tcpSocket or grpc",
        ),
        (
            f"{POD}.containers",
            main(lifecycle={"preStop": {"exec": {"command": ["a"]}, "sleep": {"seconds": 5}}}),
            "containers[0].lifecycle.preStop.sleep: excludes exec",
        ),
        (f"{POD}.nodeSelector", {"pool": "a b"}, "nodeSelector.pool: must be letters, digits"),
        (f"{POD}.activeDeadlineSeconds", 60, "cannot be in the template of a Deployment; use spec.runPolicy"),
        (f"{POD}.os", {"name": "windows"}, f"{POD}.os.name: must be linux: the launcher, and the users and rights of"),
        (f"{POD}.ephemeralContainers", [{"name": "e", "image": "i"}], "ephemeralContainers: cannot be in a template"),
        ("spec.worker.template.metadata", {"labels": {"a": "x y"}}, "labels.a: must be letters, digits"),
        ("spec.worker.template.metadata", {"labels": {"a/b/c": "x"}}, "labels.a/b/c: is not a key of the form NAME"),
        ("spec.worker.template.metadata", {"annotations": {"a b": "x"}}, "annotations.a b: is not a key"),
        ("metadata.namespace", "Team_A", "metadata.namespace: must be lower-case"),
        ("metadata.labels", {"a": "x" * 64}, "metadata.labels.a: must be letters, digits"),
        ("spec.network", {"topologyKey": "top of rack"}, "spec.network.topologyKey: must be the key of a label"),
        ("spec.network", {"packTopologyKey": "a/b/c"}, "spec.network.packTopologyKey: must be the key of a label"),
        (
            f"{POD}.topologySpreadConstraints",
            [{"maxSkew": 1, "topologyKey": "zone=a", "whenUnsatisfiable": "DoNotSchedule"}],
            "topologySpreadConstraints[0].topologyKey: must be the key of a label, NAME or PREFIX/NAME, is 'zone=a'",
        ),
        ("spec.runPolicy.schedulingPolicy", {"priorityClass": "High"}, "priorityClass: must be lower-case letters"),
        (f"{POD}.priorityClassName", "very_high", "priorityClassName: must be lower-case letters, digits, '-' and '.'"),
        (f"{POD}.runtimeClassName", "Nvidia", "runtimeClassName: must be lower-case"),
        (f"{POD}.serviceAccountName", "team/trainer", "serviceAccountName: must be lower-case"),
        (
            "spec.checkpoint",
            {"volumeClaimTemplate": {"accessModes": ["RWO"], "resources": {"requests": {"storage": "1Gi"}}}},
            "accessModes[0]: must be one of ReadWriteOnce",
        ),
        (
            "spec.checkpoint",
            {"volumeClaimTemplate": {"accessModes": ["ReadWriteOnce"], "resources": {}}},
            "volumeClaimTemplate.resources.requests.storage: is required",
        ),
        ("spec.checkpoint", {"volumeClaimTemplate": claim("0")}, "storage: must be greater than 0, is '0'"),
        (
            "spec.ps.volumeClaimTemplates",
            [{"metadata": {"name": "a"}, "spec": claim("1Gi", "ReadWriteOncePod", "ReadOnlyMany")}],
            "volumeClaimTemplates[0].spec.accessModes: has ReadWriteOncePod, which excludes other modes",
        ),
        (
            "spec.ps.volumeClaimTemplates",
            [{"metadata": {"name": "a", "labels": {"team": "a b"}}, "spec": claim("1Gi", "ReadWriteOnce")}],
            "volumeClaimTemplates[0].metadata.labels.team: must be letters, digits",
        ),
    ],
)
def test_a_value_that_kubernetes_refuses_is_an_error(path: str, value: Any, message: str) -> None:
    (said,) = (one for one in found(path, value) if one.startswith("error: "))
    assert message in said


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (f"{POD}.containers", probe("http"), "readinessProbe names the port http, which the container does not have"),
        (f"{POD}.hostname", "me", "hostname: is the operator's, which names its pods itself"),
        (f"{POD}.subdomain", "me", "subdomain: is the operator's"),
        (
            f"{POD}.containers",
            main(securityContext={"capabilities": {"add": ["NET_BIND_SERVICE", "CAP_IPC_LOCK"]}}),
            f"{POD}.containers[0].securityContext.capabilities.add: IPC_LOCK usually has no effect without a user, "
            "because the container does not run as root; set runAsUser, to 0 for root",
        ),
        (
            f"{POD}.initContainers",
            [{**main()[0], "name": "i", "securityContext": {"capabilities": {"add": ["NET_ADMIN"]}}}],
            "initContainers[0].securityContext.capabilities.add: NET_ADMIN usually has no effect",
        ),
        (
            f"{POD}.containers",
            main(livenessProbe={"exec": {"command": ["true"]}}),
            f"{POD}.containers[0].livenessProbe: also runs while the launcher waits for parameter servers",
        ),
        (
            f"{POD}.containers",
            main(startupProbe={"exec": {"command": ["true"]}, "periodSeconds": 60}),
            "startupProbe: ends the container after 180 s, but the launcher waits for parameter servers up to 1800 s",
        ),
        (
            f"{POD}.containers",
            main(envFrom=[{"prefix": "PSTRAINING_X", "secretRef": {"name": "s"}}]),
            "envFrom[0].prefix: gives names that start with PSTRAINING_, which are reserved; choose another prefix",
        ),
        (
            f"{POD}.containers",
            main(env=[{"name": "A", "value": "5m"}, {"name": "PSTRAINING_START_TIMEOUT_SECONDS", "value": "5m"}]),
            "env[1].value: is '5m', and the launcher ends with an error: write a whole number of seconds, such as 1800",
        ),
        (
            f"{POD}.containers",
            main(env=[{"name": "PSTRAINING_START_TIMEOUT_SECONDS", "value": "9" * 5000}], startupProbe=LATE),
            "9', and the launcher ends with an error: write a whole number of seconds, such as 1800",
        ),
        (
            f"{POD}.containers",
            main(env=[{"name": "PSTRAINING_METRICS_PORT", "value": "9" * 5000}]),
            "9', so there are no metrics: write the number of a port, or 0 for any free port",
        ),
        (
            f"{POD}.containers",
            main(env=[{"name": "PSTRAINING_METRICS_PORT", "value": "65536"}]),
            "env[0].value: is '65536', so there are no metrics: write the number of a port, or 0 for any free port",
        ),
        (f"{POD}.terminationGracePeriodSeconds", 0, "terminationGracePeriodSeconds: is 0: pods end at once, so that a"),
        (
            f"{POD}.containers",
            main(lifecycle={"stopSignal": "SIGUSR1"}),
            "containers[0].lifecycle.stopSignal: is SIGUSR1, which does not stop the launcher: the pod runs until",
        ),
        (
            f"{POD}.containers",
            main(lifecycle={"postStart": {"httpGet": {"port": 8080}}}),
            "containers[0].lifecycle.postStart.httpGet: is sent before the program runs, which the launcher starts",
        ),
        (
            f"{POD}.topologySpreadConstraints",
            [SPREAD | {"matchLabelKeys": ["pod-template-hash"]}],
            "topologySpreadConstraints[0].matchLabelKeys: pod-template-hash differs for each worker, which has",
        ),
        (
            f"{POD}.affinity",
            {"podAntiAffinity": {REQUIRED: [APART | {"matchLabelKeys": ["pod-template-hash"]}]}},
            f"affinity.podAntiAffinity.{REQUIRED}[0].matchLabelKeys: pod-template-hash differs for each worker",
        ),
        (f"{POD}.setHostnameAsFQDN", True, "setHostnameAsFQDN: makes the hostname one like JOB-worker-0.JOB-hs."),
        (
            f"{POD}.initContainers",
            [{**main()[0], "name": "i", "env": [{"name": "TF_CONFIG", "value": "{}"}]}],
            "initContainers[0].env[0].name: is the operator's, which sets it in the training container alone",
        ),
        (
            f"{POD}.initContainers",
            [{**main()[0], "name": "i", "restartPolicy": "Always", "ports": [{"containerPort": 2240}]}],
            "initContainers[0].ports[0].containerPort: is 2240: TCP ports 2222 to 2240 of a pod are the operator's",
        ),
        (
            f"{POD}.containers",
            [*main(), {**main()[0], "name": "beside", "ports": [{"containerPort": 2222}]}],
            "containers[1].ports[0].containerPort: is 2222",
        ),
        (
            f"{POD}.nodeSelector",
            {"example.com/gpu": None},
            'nodeSelector.example.com/gpu: is null, and is left out: write ""',
        ),
        (f"{POD}.containers", limits(**{"nvidia.com_gpu": None}), "nvidia.com/gpu: is null, and is left out: write an"),
        (f"{POD}.volumes", [{"name": "v", "nfs": None}], "volumes[0].nfs: is null, so that the volume is an empty"),
    ],
)
def test_a_value_without_effect_is_a_warning(path: str, value: Any, message: str) -> None:
    (said,) = found(path, value)
    assert message in said
    assert said.startswith("warning: ")


@pytest.mark.parametrize(("timeout", "port"), [("600", "0"), ("", ""), ("$(TIMEOUT)", "$(PORT)")])
def test_values_of_the_operators_variables(timeout: str, port: str) -> None:
    given = {"PSTRAINING_START_TIMEOUT_SECONDS": timeout, "PSTRAINING_METRICS_PORT": port}
    assert found(f"{POD}.containers", main(env=[{"name": name, "value": value} for name, value in given.items()])) == []


def test_a_probe_of_another_name_of_tensorflows_port_is_named() -> None:
    (left_out, probed) = sorted(found(f"{POD}.containers", probe("grpc", {"name": "grpc", "containerPort": 2222})))
    assert "name of port 2222 is left out" in left_out
    assert "container tensorflow: readinessProbe names the port grpc" in probed
    assert "here 2222 is tf" in probed


@pytest.mark.parametrize(
    ("port", "field", "pods"),
    [
        ({"name": "metrics", "containerPort": 2240}, "name of port 2240", "worker, chief"),
        ({"name": "grpc", "containerPort": 2222, "protocol": "TCP"}, "name of port 2222", "worker, ps, chief"),
        ({"name": "tf", "containerPort": 2222, "hostPort": 2222}, "hostPort of port 2222", "worker, ps, chief"),
        ({"containerPort": 2223, "hostIP": "10.0.0.1"}, "hostIP of port 2223", "worker, ps, chief"),
    ],
)
def test_fields_of_the_operators_ports_are_left_out(port: dict[str, Any], field: str, pods: str) -> None:
    """A Service or a PodMonitor that selects the port by this name finds nothing."""
    ours = {2222: "tf", 2223: "status", 2240: "pst-metrics"}[port["containerPort"]]
    assert found(f"{POD}.containers", main(ports=[port])) == [
        f"warning: {POD}.containers: container tensorflow: {field} is left out: the port is the operator's, named "
        f"{ours}; use that name, or another port (pods of {pods})"
    ]


@pytest.mark.parametrize(
    "port",
    [
        {"name": "pst-metrics", "containerPort": 2240},
        {"containerPort": 2222, "hostPort": 0},
        {"name": "stats", "containerPort": 2222, "protocol": "UDP"},
        {"name": "http", "containerPort": 8080, "hostPort": 80},
        {"name": "ring", "containerPort": 2224},
    ],
)
def test_other_ports_are_kept(port: dict[str, Any]) -> None:
    assert found(f"{POD}.containers", main(ports=[port])) == []


def test_a_finalizer_of_a_template_keeps_its_pods() -> None:
    made = simple("default")
    made["spec"]["worker"]["template"]["metadata"] = {"finalizers": ["example.com/hold"]}
    (said,) = (str(f) for f in wrong_with(made) if "checkpoint" not in f.field)
    assert said.startswith("spec.worker.template.metadata.finalizers: keep the pods, and with them the job, until")


def test_a_readiness_probe_of_hot_standbys_has_no_effect() -> None:
    own = {"template": {"spec": {"containers": main(readinessProbe={"exec": {"command": ["true"]}})}}}
    for mode, said in (("Hot", ["spec.ps.template.spec.containers[0].readinessProbe"]), ("Warm", [])):
        made = simple("default")
        made["spec"] |= {"training": {"mode": "Sync"}, "ps": {"replicas": 1, "standby": {"mode": mode}, **own}}
        assert [f.field for f in wrong_with(made) if "checkpoint" not in f.field] == said


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (f"{POD}.containers", limits(memory="1e9", cpu=1.5, **{"nvidia.com_gpu": "2000m", "hugepages-2Mi": "4Mi"})),
        (f"{POD}.containers", limits(memory="0", cpu=".5", **{"ephemeral-storage": "1E"})),
        (f"{POD}.containers", probe("tf")),
        (f"{POD}.containers", probe(2222)),
        (f"{POD}.containers", probe("http", {"name": "http", "containerPort": 80, "hostPort": 0, "protocol": "TCP"})),
        (f"{POD}.containers", main(env=[{"name": "my.var-1 x"}, {"name": "A", "value": "", "valueFrom": OWN_NAME}])),
        (
            f"{POD}.containers",
            [*main(), {**main()[0], "name": "b", "ports": [{"containerPort": 2230, "protocol": "UDP"}]}],
        ),
        (f"{POD}.initContainers", [{**main()[0], "name": "i", "ports": [{"containerPort": 2222}]}]),
        (f"{POD}.securityContext", {"runAsNonRoot": False}),
        (f"{POD}.containers", main(securityContext={"runAsNonRoot": False, "privileged": True})),
        (f"{POD}.containers", main(securityContext={"privileged": True, "capabilities": {"add": ["NET_ADMIN"]}})),
        (f"{POD}.containers", main(securityContext={"runAsUser": 0, "capabilities": {"add": ["NET_ADMIN"]}})),
        (f"{POD}.containers", main(securityContext={"capabilities": {"add": ["NET_BIND_SERVICE"]}})),
        (f"{POD}.containers", main(startupProbe=LATE)),
        (
            f"{POD}.containers",
            main(
                startupProbe={"exec": {"command": ["true"]}},
                env=[{"name": "PSTRAINING_START_TIMEOUT_SECONDS", "value": "30"}],
            ),
        ),
        (
            f"{POD}.containers",
            [*main(), {**main()[0], "name": "proxy", "livenessProbe": {"tcpSocket": {"port": 1}}}],
        ),
        (f"{POD}.securityContext", {"runAsNonRoot": False, "runAsUser": 0}),
        (f"{POD}.securityContext", {"runAsNonRoot": True}),
        (f"{POD}.containers", main(securityContext={"runAsNonRoot": False, "runAsUser": 7})),
        (
            f"{POD}.containers",
            main(envFrom=[{"prefix": "MY_", "secretRef": {"name": "s"}}, {"secretRef": {"name": "s"}}]),
        ),
        (f"{POD}.nodeSelector", {"example.com/gpu": ""}),
        ("spec.network", {"topologyKey": "topology.kubernetes.io/zone", "packTopologyKey": "Rack_1"}),
        ("spec.runPolicy.schedulingPolicy", {"priorityClass": "system.high-1"}),
        (f"{POD}.priorityClassName", ""),
        (f"{POD}.os", {"name": "linux"}),
        (f"{POD}.tolerations", [{"key": "a", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5}]),
        (
            f"{POD}.initContainers",
            [{**main()[0], "name": "i", "restartPolicy": "Always", "startupProbe": {"grpc": {"port": 1}}}],
        ),
        (
            POD,
            {"containers": main(lifecycle={"preStop": {"sleep": {"seconds": 5}}}), "terminationGracePeriodSeconds": 60},
        ),
        (f"{POD}.volumes", [{"name": "v"}]),
        (f"{POD}.tolerations", [{"operator": "Exists", "effect": ""}]),
        ("spec.worker.template.metadata", {"labels": {"a.b/c_D": "X-1.y", "e": ""}, "annotations": {"A.b/C": "x y"}}),
        (
            "spec.checkpoint",
            {"volumeClaimTemplate": {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": 5}}}},
        ),
        ("spec.checkpoint", {"volume": {"name": "copied", "persistentVolumeClaim": {"claimName": "c"}}}),
    ],
)
def test_values_that_kubernetes_accepts(path: str, value: Any) -> None:
    assert found(path, value) == []


def test_values_and_missing_volumes_are_reported_in_one_run() -> None:
    mounts = [{"name": "v", "mountPath": "/pstraining/"}, {"name": "gone", "mountPath": "/x"}]
    containers = main(volumeMounts=mounts, resources={"limits": {"memory": "1GB"}})
    made = simple("default")
    edit(POD, {"containers": containers, "volumes": VOLUME})(made)
    said = "\n".join(str(f) for f in wrong_with(made))
    assert "did you mean 1Gi?" in said
    assert "mounts gone, which is not a volume" in said
    assert "mounts /pstraining twice" in said
