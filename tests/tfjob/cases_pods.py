"""Cases about the contents of pod templates."""

from tests.tfjob.table import API, GUIDE, TYPES, Case, Sees

WRAPPED = ("python3", "/pstraining/launch.py", "--", "python", "-m", "digits", "--batch_size=32")

PODS = (
    Case(
        name="sidecar",
        feature="More containers beside `tensorflow`",
        tfjob="Only the container named `tensorflow` gets TF_CONFIG",
        source=TYPES,
        ours="The same: the launcher runs only in that container",
        play=(Sees("Running"),),
        renders={
            "worker": {
                "spec": {
                    "containers": [
                        {"name": "logs", "image": "example.com/logs:1", "args": ["--follow"]},
                        {"name": "tensorflow", "env": [{"name": "PSTRAINING_TASK_TYPE", "value": "worker"}]},
                    ]
                }
            }
        },
    ),
    Case(
        name="any-container-name",
        feature="The training container's name",
        tfjob="It must be `tensorflow`; otherwise the job is rejected",
        source=TYPES,
        ours="Any name, if it is the only container",
        renders={
            "worker": {"spec": {"containers": [{"name": "train", "ports": [{"containerPort": 2222}]}]}},
            "chief": {"spec": {"containers": [{"name": "train"}]}},
        },
    ),
    Case(
        name="command-and-args",
        feature="`command` with `args`",
        tfjob="Run as the template says",
        source=GUIDE,
        ours="The same: the launcher runs both, in order",
        renders={"worker": {"spec": {"containers": [{"command": WRAPPED, "workingDir": "/src"}]}}},
        lacks={"worker": ('"args"',)},
    ),
    Case(
        name="tf-config-as-an-argument",
        feature="`$(TF_CONFIG)` in `args`, and its `environment`",
        tfjob="TF_CONFIG is in the pod's `env`, so the kubelet expands it; `environment` is `cloud`",
        source="`pkg/controller.v1/tensorflow`",
        ours="The same: the launcher expands it for the program; probes and hooks do not have TF_CONFIG",
        renders={"worker": {"spec": {"containers": [{"command": (*WRAPPED[:-1], "--config=$(TF_CONFIG)")}]}}},
    ),
    Case(
        name="init-containers",
        feature="Init containers",
        tfjob="Run as the template says",
        source=API,
        ours="The same",
        renders={"worker": {"spec": {"initContainers": [{"name": "fetch", "command": ["fetch", "/data"]}]}}},
    ),
    Case(
        name="volumes-and-secrets",
        feature="Volumes and secrets, such as a cloud's credentials",
        tfjob="Mounted as the template says",
        source=GUIDE,
        ours="The same",
        renders={
            role: {
                "spec": {
                    "volumes": [{"name": "sa", "secret": {"secretName": "user-gcp-sa"}}],
                    "containers": [
                        {
                            "volumeMounts": [{"name": "sa", "mountPath": "/etc/secrets", "readOnly": True}],
                            "env": [{"name": "GOOGLE_APPLICATION_CREDENTIALS", "value": "/etc/secrets/key.json"}],
                        }
                    ],
                }
            }
            for role in ("worker", "ps", "chief")
        },
    ),
    Case(
        name="gpus",
        feature="GPUs for workers",
        tfjob="`nvidia.com/gpu` in the replica's limits",
        source=GUIDE,
        ours="The same; a role with its own template has its own resources",
        renders={
            "worker": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 2}}}]}},
            "ps": {"spec": {"containers": [{"image": "example.com/server:1"}]}},
        },
        lacks={"ps": ("nvidia.com/gpu",)},
    ),
    Case(
        name="nodes-and-tolerations",
        feature="`nodeSelector`, `tolerations`, `affinity`",
        tfjob="As the template says",
        source=API,
        ours="The same; tolerations for lost nodes are added if the template has none",
        renders={
            "worker": {
                "spec": {
                    "nodeSelector": {"pool": "gpu"},
                    "tolerations": [
                        {"key": "gpu", "operator": "Exists", "effect": "NoSchedule"},
                        {"key": "node.kubernetes.io/unreachable", "tolerationSeconds": 600},
                    ],
                    "affinity": {"podAntiAffinity": {}},
                }
            }
        },
    ),
    Case(
        name="labels-and-annotations",
        feature="Labels and annotations of a template, such as `app.kubernetes.io/name`, `sidecar.istio.io/inject`",
        tfjob="Kept, beside the operator's own",
        source=GUIDE,
        ours="The same",
        renders={
            role: {
                "metadata": {
                    "labels": {"team": "vision", "app.kubernetes.io/name": "eyes", "pstraining.dev/role": role},
                    "annotations": {"sidecar.istio.io/inject": "false"},
                }
            }
            for role in ("worker", "ps", "chief")
        },
    ),
    Case(
        name="service-account",
        feature="`serviceAccountName`, `imagePullSecrets`",
        tfjob="As the template says",
        source=API,
        ours="The same; its token is mounted only if the template says so",
        renders={
            "worker": {
                "spec": {
                    "serviceAccountName": "trainer",
                    "automountServiceAccountToken": True,
                    "imagePullSecrets": [{"name": "registry"}],
                }
            },
        },
    ),
    Case(
        name="ports",
        feature="More ports",
        tfjob="The replica's Service has the named ports; a port named `tfjob-port` replaces TensorFlow's",
        source="#1251, " + TYPES,
        ours="Kept; TensorFlow's port is always 2222, named `tf`",
        renders={
            "worker": {
                "spec": {
                    "containers": [
                        {
                            "ports": [
                                {"name": "tf", "containerPort": 2222, "protocol": "TCP"},
                                {"name": "tensorboard", "containerPort": 6006},
                            ]
                        }
                    ]
                }
            }
        },
        lacks={"worker": ("tfjob-port",)},
    ),
    Case(
        name="checkpoint-volume",
        feature="A claim for checkpoints",
        tfjob="A volume in each template, by hand",
        source=GUIDE,
        ours="`checkpoint.volume` is mounted into the chief, and read-only into the evaluator",
        renders={
            "chief": {"spec": {"containers": [{"volumeMounts": [{"mountPath": "/checkpoints"}]}]}},
            "evaluator": {
                "spec": {"containers": [{"volumeMounts": [{"mountPath": "/checkpoints", "readOnly": True}]}]}
            },
            "worker": {
                "spec": {"containers": [{"env": [{"name": "PSTRAINING_CHECKPOINT_DIR", "value": "/checkpoints"}]}]}
            },
        },
        lacks={"worker": ('"mountPath": "/checkpoints"',)},
    ),
    Case(
        name="volume-per-ps",
        feature="A volume of its own for each PS",
        tfjob="(Replicas share their template's volumes)",
        source="#949, #1971, kubeflow/common#19",
        ours="`ps.volumeClaimTemplates`, as in a StatefulSet",
        asked="#949, #1971, kubeflow/common#19",
        play=(Sees("Running", ready={"ps": 2}),),
        renders={"ps": {"spec": {"containers": [{"volumeMounts": [{"name": "state", "mountPath": "/state"}]}]}}},
    ),
)
