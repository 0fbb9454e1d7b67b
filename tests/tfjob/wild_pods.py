"""TFJob files as people have them: node selection, schedulers, and fields that do not exist."""

from tests.tfjob.wild import COMMAND, INCOMPLETE, NOTES, REFUSED, Wild, job
from tests.tfjob.wild_schedulers import SCHEDULERS
from tests.tfjob.wild_users import USERS


def affinity(kind: str, term: str) -> str:
    """Return a pod with an affinity of one term, required or preferred."""
    inner = f"{{topologyKey: kubernetes.io/hostname, labelSelector: {term}}}"
    rule = f"[{inner}]" if kind.startswith("required") else f"[{{weight: 9, podAffinityTerm: {inner}}}]"
    where = "podAntiAffinity" if kind.endswith("Anti") else "podAffinity"
    name = kind.removesuffix("Anti")
    term = f"{name}DuringSchedulingIgnoredDuringExecution: {rule}"
    return f"securityContext: {{runAsUser: 1, runAsGroup: 1}}\naffinity: {{{where}: {{{term}}}}}"


SELECTORS = (
    Wild(
        "apart-by-group",
        job(pod=affinity("preferredAnti", "{matchLabels: {group_name: kubeflow.org, tf_job_name: wild}}")),
        NOTES,
        ("(group_name, tf_job_name): it selects no pod, and has no effect",),
    ),
    Wild(
        "together-by-type",
        job(pod=affinity("required", "{matchExpressions: [{key: replica-type, operator: In, values: [ps]}]}")),
        INCOMPLETE,
        ("(replica-type): it selects no pod, and the pod stays Pending",),
    ),
    Wild(
        "not-beside-others",
        job(pod=affinity("requiredAnti", "{matchExpressions: [{key: tf-job-name, operator: NotIn, values: [wild]}]}")),
        NOTES,
        ("TFJob's operator (tf-job-name): it excludes no pod",),
    ),
    Wild("by-own-labels", job(marks="labels: {app: w}", pod=affinity("required", "{matchLabels: {app: w}}"))),
    Wild(
        "by-an-own-label-of-that-name",
        job(marks="labels: {job-name: w}", pod=affinity("required", "{matchLabels: {job-name: w}}")),
    ),
    Wild(
        "by-a-label-of-the-servers",
        job(
            pod=affinity("required", "{matchLabels: {job-name: w}}"),
            ps="metadata: {labels: {job-name: w}}\nspec: {securityContext: {runAsUser: 1, runAsGroup: 1}, "
            "containers: [{name: tensorflow, image: i, command: [serve]}]}",
        ),
    ),
    Wild(
        "spread",
        job(
            pod="securityContext: {runAsUser: 1}\ntopologySpreadConstraints:\n- {maxSkew: 1, topologyKey: zone, "
            "whenUnsatisfiable: DoNotSchedule, labelSelector: {matchLabels: {training.kubeflow.org/job-name: wild}}}"
        ),
        NOTES,
        ("(training.kubeflow.org/job-name): it selects no pod, and has no effect",),
    ),
    Wild(
        "spread-by-the-pods-own-labels",
        job(
            pod="securityContext: {runAsUser: 1}\ntopologySpreadConstraints:\n- {maxSkew: 1, topologyKey: zone, "
            "whenUnsatisfiable: DoNotSchedule, labelSelector: {}, matchLabelKeys: [replica-type, team]}"
        ),
        NOTES,
        ("matchLabelKeys: pods here do not have the labels of TFJob's operator (replica-type): Kubernetes ignores",),
    ),
    Wild(
        "nodes-with-such-labels",
        job(pod="securityContext: {runAsUser: 1, runAsGroup: 1}\nnodeSelector: {training.kubeflow.org/job-name: wild}"),
    ),
    Wild(
        "downward",
        job(
            container=f"{COMMAND}\nenv:\n- name: INDEX\n  valueFrom: {{fieldRef: "
            "{fieldPath: \"metadata.labels['replica-index']\"}}"
        ),
        NOTES,
        ("it refers to labels that TFJob puts on its pods",),
    ),
    Wild(
        "a-folder-for-each-pod",
        job(
            container=f"{COMMAND}\nenv: [{{name: POD, valueFrom: {{fieldRef: {{fieldPath: metadata.name}}}}}}]\n"
            "volumeMounts: [{name: logs, mountPath: /logs, subPathExpr: $(POD)}]",
            pod="securityContext: {runAsUser: 1}\nvolumes: [{name: logs, persistentVolumeClaim: {claimName: logs}}]",
        ),
        NOTES,
        (
            "env[0].valueFrom.fieldRef.fieldPath: a pod's name is like JOB-worker-0 in TFJob, the same after a restart",
            "Use $(PSTRAINING_TASK_TYPE)-$(PSTRAINING_TASK_INDEX), or the hostname",
        ),
    ),
    Wild(
        "the-name-of-a-server",
        job(
            ps="spec: {securityContext: {runAsUser: 1, runAsGroup: 1}, "
            "containers: [{name: tensorflow, image: i, command: [serve], "
            "env: [{name: POD, valueFrom: {fieldRef: {fieldPath: metadata.name}}}]}]}"
        ),
    ),
    Wild(
        "downward-with-the-wrong-quotes",
        job(
            container=f"{COMMAND}\nenv:\n- name: INDEX\n  valueFrom: {{fieldRef: "
            "{fieldPath: 'metadata.labels[\"tf-replica-index\"]'}}"
        ),
        INCOMPLETE,
        (
            "it refers to labels that TFJob puts on its pods",
            "fieldPath: Kubernetes refuses it: must be a field such as",
        ),
    ),
    Wild(
        "recommended-labels",
        job(marks="labels: {app.kubernetes.io/name: recommender, app.kubernetes.io/instance: nightly}"),
    ),
)

FIELDS = (
    Wild(
        "items-after-those-that-are-left-out",
        job(
            container=f"{COMMAND}\nenv: [{{name: TF_CONFIG, value: x}}, {{name: A, value: a}}, {{name: B, value: 3}}]\n"
            "ports: [{name: tfjob-port, containerPort: 2222}, {name: HTTP, containerPort: 80}]"
        ),
        INCOMPLETE,
        (
            "containers[0].env[2].value: Kubernetes refuses it: must be a valid string, is 3",
            "containers[0].ports[1].name: Kubernetes refuses it",
        ),
    ),
    Wild(
        "a-probe-of-a-port-that-is-missing",
        job(container=f"{COMMAND}\nlivenessProbe: {{tcpSocket: {{port: http}}}}"),
        INCOMPLETE,
        (
            "containers: container tensorflow: livenessProbe names the port http",
            "(pods of worker). It is kept. Correct",
        ),
    ),
    Wild(
        "a-label-of-a-gang-with-a-wrong-value",
        job(marks="labels: {scheduling.x-k8s.io/pod-group: 7}"),
        INCOMPLETE,
        (
            "it requests a gang or a queue from",
            "Kubernetes refuses it: must be a valid string, is 7. Put it in quotes.",
        ),
    ),
    Wild(
        "misspelt-fields",
        job(container=f"{COMMAND}\nworkdir: /srv\nresouces: {{limits: {{cpu: 1}}}}\nenvironment: {{MODE: train}}"),
        INCOMPLETE,
        ("did you mean workingDir? It is kept", "did you mean resources?", "environment: it is not a known field"),
    ),
    Wild(
        "a-port-without-a-number",
        job(container=f"{COMMAND}\nports: [{{name: http, port: 80}}]"),
        INCOMPLETE,
        (
            "ports[0].containerPort: Kubernetes refuses it: is required",
            "ports[0].port: it is not a known field of Kubernetes",
        ),
    ),
    Wild(
        "a-probe-of-tensorflows-port",
        job(
            container=f"{COMMAND}\nports: [{{name: tfjob-port, containerPort: 2222}}]\n"
            "livenessProbe: {tcpSocket: {port: tfjob-port}}"
        ),
        NOTES,
        ("livenessProbe.tcpSocket.port: it is tf, TensorFlow's port here.",),
    ),
    Wild(
        "a-probe-of-another-port-of-tensorflows",
        job(
            container=f"{COMMAND}\nports: [{{name: tfjob-port, containerPort: 3333}}]\n"
            "readinessProbe: {grpc: {port: 3333}}\nlifecycle: {preStop: {httpGet: {port: tfjob-port}}}"
        ),
        NOTES,
        ("readinessProbe.grpc.port: it is 2222,", "lifecycle.preStop.httpGet.port: it is tf,"),
    ),
    Wild(
        "numbers-for-arguments",
        job(container=f"{COMMAND}\nargs: [--batch, 32]"),
        INCOMPLETE,
        ("args[1]: the API server refuses the job: must be a string, is 32. Put it in quotes.",),
    ),
    Wild(
        "a-null-for-an-argument",
        job(container=f"{COMMAND}\nargs: [--from, null]"),
        REFUSED,
        ("args[1]: it is null: write a value, in quotes if it is the text null, or remove it.",),
    ),
    Wild(
        "values-that-kubernetes-refuses",
        job(container=f"{COMMAND}\nresources: {{limits: {{memory: 4GB}}}}\nports: [{{name: TB, containerPort: 6006}}]"),
        INCOMPLETE,
        (
            "limits.memory: Kubernetes refuses it: must be a quantity",
            "did you mean 4Gi? Change it",
            "ports[0].name: Kub",
        ),
    ),
    Wild(
        "an-empty-scheduling-policy",
        job(spec="runPolicy: {cleanPodPolicy: All, backoffLimit: 3, schedulingPolicy: {queue: '', minResources: {}}}"),
    ),
    Wild(
        "servers-of-a-job-with-a-long-name",
        job(metadata=f"name: {'w' * 60}", container=f"{COMMAND}\nargs: [--ps={'w' * 60}-ps-1:2222]"),
        NOTES,
        (f"{'w' * 60}-ps-1 is {'w' * 33}-e0bd8d-ps-1 now.",),
    ),
    Wild("misspelt-roles", job().replace("Worker:", "Workers:"), REFUSED, ("Workers: a TFJob has Chief or Master",)),
    Wild(
        "misspelt-specs",
        job().replace("tfReplicaSpecs", "tfReplicasSpecs"),
        REFUSED,
        ("it names no role that can be read", "spec.tfReplicasSpecs: a PSTrainingJob has no such field"),
    ),
    Wild(
        "lower-case",
        job(spec="runPolicy: {cleanPodPolicy: running}\nsuccessPolicy: allworkers", role="restartPolicy: never"),
        REFUSED,
        ("one of All, Running, None, is running", 'AllWorkers or "", is allworkers', "ExitCode, is never"),
    ),
    Wild(
        "texts-for-numbers",
        job(spec="runPolicy: {backoffLimit: '3', ttlSecondsAfterFinished: -1, suspend: 'false'}"),
        REFUSED,
        (
            'backoffLimit: it must be a whole number, is "3"',
            "must not be negative, is -1",
            "suspend: it must be true or",
        ),
    ),
    Wild(
        "a-sidecar-on-a-reserved-port",
        job().replace(
            "- name: tensorflow\n",
            "- {name: s, image: p, ports: [{containerPort: 1}, {containerPort: 2223}]}\n          - name: tensorflow\n",
        ),
        INCOMPLETE,
        ("Worker.template.spec.containers[0].ports[1]: ports 2222 to 2240 of a pod are the operator's; it is kept.",),
    ),
    Wild(
        "a-native-sidecar-on-a-reserved-port",
        job(
            pod="securityContext: {runAsUser: 1, runAsGroup: 1}\ninitContainers:\n"
            "- {name: fetch, image: p, command: [fetch], ports: [{containerPort: 2222}]}\n"
            "- {name: proxy, image: p, restartPolicy: Always, ports: [{containerPort: 2239}]}"
        ),
        INCOMPLETE,
        ("initContainers[1].ports[0]: ports 2222 to 2240 of a pod are the operator's; it is kept.",),
    ),
    Wild(
        "the-domain-in-the-hostname",
        job(pod="securityContext: {runAsUser: 1, runAsGroup: 1}\nsetHostnameAsFQDN: true"),
        NOTES,
        ("setHostnameAsFQDN: TFJob's pods have no domain, so it has no effect there. Here the hostname is like JOB-",),
    ),
    Wild(
        "two-sidecars",
        job(container=f"{COMMAND}\n").replace(
            "- name: tensorflow\n", "- {name: proxy, image: p}\n          - name: tf\n"
        ),
        REFUSED,
        ("TFJob requires a container tensorflow",),
    ),
    Wild(
        "an-entrypoint-and-a-volume-that-is-none",
        job(container="volumeMounts: [{name: gone, mountPath: /data}]\nenv: [{name: A, value: 1}]"),
        INCOMPLETE,
        (
            "Convert with --command",
            "env[0].value: Kubernetes refuses it",
            "container tensorflow mounts gone, which is not a volume (pods of worker",
        ),
    ),
    Wild(
        "commands-of-one-text",
        job(container="command: python -m train\nargs: --rate 1\nworkdir: /srv"),
        INCOMPLETE,
        ("command: the API server refuses the job: must be an array", "].args: the API server", "mean workingDir?"),
    ),
    Wild(
        "labels-of-the-operator",
        job(marks="labels: {pstraining.dev/role: x}"),
        INCOMPLETE,
        ("it is the operator's, which sets another value",),
    ),
    Wild("an-entrypoint", job(container="args: [--rate, '1']"), INCOMPLETE, ("Convert with --command",)),
    Wild(
        "the-pods-own-settings",
        job(pod="restartPolicy: Always\nhostNetwork: true\nhostname: me\nsecurityContext: {runAsUser: 1}"),
        INCOMPLETE,
        ("restartPolicy: TFJob overwrites it", "pods have a network of their own", "hostname: the operator names its"),
    ),
    Wild(
        "a-probe-that-reads-tf-config",
        job(container=f"{COMMAND}\nlivenessProbe: {{exec: {{command: [sh, -c, test -n $TF_CONFIG]}}}}"),
        INCOMPLETE,
        ("here only the program has TF_CONFIG",),
    ),
    Wild(
        "the-address-of-a-service",
        job(container=f"{COMMAND}\nargs: [--store=$(MINIO_SERVICE_HOST), $(KUBERNETES_SERVICE_HOST)]"),
        NOTES,
        ("args[0]: pods here do not have variables with the addresses of Services, such as MINIO_SERVICE_HOST.",),
    ),
    Wild(
        "the-namespace-of-the-token",
        job(container=f"{COMMAND}\nargs: [-n, $(cat /var/run/secrets/kubernetes.io/serviceaccount/namespace)]"),
        NOTES,
        ("args[1]: here the service account's token is mounted only if the template requests it.",),
    ),
    Wild(
        "an-own-variable-like-that-of-a-service",
        job(container=f"{COMMAND}\nargs: [$(A_SERVICE_HOST)]\nenv: [{{name: A_SERVICE_HOST, value: a}}]"),
    ),
    Wild("tf-config-as-an-argument", job(container=f"{COMMAND}\nargs: ['--config=$(TF_CONFIG)']")),
    Wild(
        "deletes-itself",
        job(container="command: [sh, -c, 'train && kubectl delete tfjob wild']"),
        INCOMPLETE,
        ("command[2]: it names the resource of TFJobs. The one here is pstrainingjobs.pstraining.dev.",),
    ),
    Wild(
        "waits-for-a-worker",
        job(
            pod="securityContext: {runAsUser: 1}\ninitContainers: [{name: w, image: b, command: [ping, wild-worker-0]}]"
        ),
        NOTES,
        ("wild-worker-0 is a Service that TFJob creates",),
    ),
    Wild(
        "waits-for-a-worker-of-a-generated-name",
        job(metadata="generateName: wild-", container="command: [sh, -c, 'ping ${JOB}-worker-0; train']"),
        NOTES,
        ("command[2]: ${JOB}-worker-0 is a Service that TFJob creates",),
    ),
    Wild(
        "the-index-in-the-hostname-of-a-worker",
        job(container="command: [sh, -c, 'python -m train --index ${HOSTNAME##*-}']"),
    ),
    Wild(
        "the-index-in-the-hostname-of-a-master",
        job(
            roles="Master: {replicas: 1, restartPolicy: OnFailure, template: {spec: {securityContext: {runAsUser: 1}, "
            "containers: [{name: tensorflow, image: i, command: [sh, -c, 'train --index ${HOSTNAME##*-}']}]}}}"
        ),
        NOTES,
        ("command[2]: the hostname is JOB-chief here, without an index, and JOB-master-0 in TFJob. Take the",),
    ),
    Wild("upper-case-name", job(metadata="name: Wild_Job"), REFUSED, ("Wild_Job is not a valid name",)),
    Wild("a-long-name", job(metadata=f"name: {'w' * 60}"), NOTES, ("names have at most 40 characters",)),
    Wild(
        "a-master-of-which-there-is-none",
        job(roles="Master: {replicas: 0, template: {spec: {containers: [{name: tensorflow, workdir: /}]}}}"),
        NOTES,
        ("Master: with replicas: 0 there is no chief; it is left out.",),
    ),
    Wild(
        "all-reduce",
        job().replace("    PS:\n      replicas: 1", "    PS:\n      replicas: 0"),
        REFUSED,
        ("all-reduce",),
    ),
    Wild(
        "master-and-evaluator",
        job(
            roles="\n".join(
                f"{r}: {{restartPolicy: Never, template: {{spec: {{securityContext: {{runAsUser: 1, runAsGroup: 1}}, "
                f"containers: [{{name: tensorflow, image: i, command: [{r}]}}]}}}}}}"
                for r in ("master", "evaluator")
            )
        ),
        NOTES,
        ("its task is called chief in TF_CONFIG", "TF_CONFIG's cluster does not name the evaluator"),
    ),
)

PODS = (*SELECTORS, *SCHEDULERS, *USERS, *FIELDS)
