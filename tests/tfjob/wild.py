"""TFJob files as people have them: templates of tools, old versions, misspellings, and YAML's corners.

Each is a text, mostly a base with a fragment in one place, with the expected result and words that the notes must have.
"""

import json
import textwrap
from dataclasses import dataclass

NOTES, INCOMPLETE, REFUSED = "converted, with notes", "converted, incomplete", "refused"
UNREADABLE = "unreadable"


@dataclass(frozen=True)
class Wild:
    """A file with its expected result."""

    name: str
    text: str
    result: str = NOTES
    """The result of the file's TFJob."""
    says: tuple[str, ...] = ()
    """Parts of the notes, in any order; if empty, there are only the notes of every job."""


COMMAND = "command: [python, -m, train]"


def job(
    *,
    version: str = "kubeflow.org/v1",
    metadata: str = "name: wild",
    spec: str = "runPolicy: {cleanPodPolicy: All, backoffLimit: 3}",
    ps: str = "spec: {securityContext: {runAsUser: 1, runAsGroup: 1}, "
    "containers: [{name: tensorflow, image: i, command: [serve]}]}",
    role: str = "replicas: 2\nrestartPolicy: OnFailure",
    marks: str = "{}",
    pod: str = "securityContext: {runAsUser: 1, runAsGroup: 1}",
    container: str = COMMAND,
    roles: str = "",
) -> str:
    """Return a TFJob with a PS and workers that contains these fragments of YAML."""
    return f"""\
apiVersion: {version}
kind: TFJob
metadata:
{_in(2, metadata)}
spec:
{_in(2, spec)}
  tfReplicaSpecs:
    PS:
      replicas: 1
      restartPolicy: OnFailure
      template:
{_in(8, ps)}
{_in(4, roles)}
    Worker:
{_in(6, role)}
      template:
        metadata:
{_in(10, marks)}
        spec:
{_in(10, pod)}
          containers:
          - name: tensorflow
            image: registry.example.com/wild:1
{_in(12, container)}
"""


def _in(columns: int, text: str) -> str:
    return textwrap.indent(text, " " * columns)


OTHER = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: code}\ndata: {mode: '0644'}  # kept\n---\n"
SCRIPT = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: code}\ndata:\n  script: "

VERSIONS = (
    Wild("v1beta2", job(version="kubeflow.org/v1beta2"), NOTES, ("line 1: it is kubeflow.org/v1beta2",)),
    Wild(
        "v1beta1-defaults",
        job(version="kubeflow.org/v1beta1", spec="ttlSecondsAfterFinished: 60"),
        NOTES,
        ("the default of kubeflow.org/v1beta1, Running, is written out", "newer TFJobs have it in runPolicy"),
    ),
    Wild(
        "v1beta2-rpc-layer",
        job(version="kubeflow.org/v1beta2", spec="tfRpcLayer: grpc\ncleanPodPolicy: None\nbackoffLimit: 2"),
        INCOMPLETE,
        ("spec.tfRpcLayer: a PSTrainingJob has no such field; it is left out. Correct its name or its place, or",),
    ),
    Wild(
        "v1alpha2-without-restart-policy",
        job(version="kubeflow.org/v1alpha2", role="replicas: 2", spec="cleanPodDelay: 3m\ncleanPodPolicy: All"),
        INCOMPLETE,
        ("the first releases with kubeflow.org/v1alpha2 used Always", "spec.cleanPodDelay"),
    ),
    Wild(
        "v1alpha1",
        "apiVersion: kubeflow.org/v1alpha1\nkind: TFJob\nmetadata: {name: old}\nspec:\n  replicaSpecs:\n"
        "  - {replicas: 1, tfReplicaType: MASTER, template: {spec: {containers: []}}}\n",
        REFUSED,
        ("line 1: kubeflow.org/v1alpha1 has other fields: a list spec.replicaSpecs",),
    ),
    Wild(
        "tensorflow-org",
        "kind: TfJob\napiVersion: tensorflow.org/v1alpha1\nmetadata: {name: older}\nspec: {replicaSpecs: []}\n",
        REFUSED,
        ("line 1: it is TfJob", "line 2: tensorflow.org/v1alpha1 has other fields"),
    ),
    Wild(
        "no-version", job().replace("apiVersion: kubeflow.org/v1\n", ""), REFUSED, ("it is missing. Write apiVersion",)
    ),
)

FORMS = (
    Wild("a-list", "kind: List\napiVersion: v1\nitems:\n- " + _in(2, job()).lstrip()),
    Wild("json-with-tabs", json.dumps({"apiVersion": "v1", "kind": "Secret"}, indent="\t") + "\n---\n" + job()),
    Wild("beside-others", f"{OTHER}{job()}---\n# none\n---\n"),
    Wild("after-a-text-that-keeps-its-last-lines", f"{SCRIPT}|+\n    x\n\n\n---\n{job()}"),
    Wild("before-a-text-without-a-last-line", f"{job()}---\n{SCRIPT}|\n    x"),
    Wild("windows", "\ufeff" + job().replace("\n", "\r\n")),
    Wild(
        "anchors-and-merges",
        job(
            marks="labels: &l {team: a}\nannotations: {<<: *l, owner: b}",
            container=f"{COMMAND}\nenv:\n- &e {{name: A, value: x}}\n- {{<<: *e, name: B}}",
        ),
    ),
    Wild(
        "tabs", job(container=f"{COMMAND}\n\targs: [a]"), UNREADABLE, ("found character that cannot start any token",)
    ),
    Wild("a-key-twice", job(container=f"{COMMAND}\nargs: [a]\nargs: [b]"), UNREADABLE, ("duplicate key args",)),
    Wild("comments-with-tabs", job(container=f"{COMMAND}\t# the program")),
    Wild(
        "stored",
        job(metadata="name: wild\nuid: 1-2\nresourceVersion: '7'\nmanagedFields: []") + "status: {conditions: []}\n",
        NOTES,
        (
            "metadata.uid, metadata.resourceVersion, metadata.managedFields: the API server's own",
            "status of the old job",
        ),
    ),
)

SCALARS = (
    Wild("times", job(container=f"{COMMAND}\nargs: [--from, 12:30, --map, 22:22, =, 10:30:45, 2024-01-01, 1.2.3]")),
    Wild(
        "numbers-of-volumes",
        job(
            pod="securityContext: {runAsUser: 0o17, runAsGroup: 0o17, fsGroup: 0o17}\n"
            "terminationGracePeriodSeconds: 1_000\nvolumes:\n"
            "- {name: a, configMap: {name: a, defaultMode: 0644}}\n- {name: s, emptyDir: {sizeLimit: 2e9}}"
        ),
    ),
    Wild("seconds", job(spec="runPolicy: {activeDeadlineSeconds: 1e3, cleanPodPolicy: All, backoffLimit: 3.0}")),
    Wild(
        "names-of-truth",
        job(container=f"{COMMAND}\nenv: [{{name: N, value: 'x'}}, {{name: Y, value: 'y'}}]"),
        REFUSED,
        ("env[0].name: it must be text, is false. Put it in quotes.", "env[1].name: it must be text, is true"),
    ),
    Wild(
        "an-env-of-numbers",
        job(container=f"{COMMAND}\nenv: [{{name: A, value: 010}}, {{name: B, value: yes}}, {{name: T, value: 1:30}}]"),
        INCOMPLETE,
        (
            "env[0].value: Kubernetes refuses it",
            "must be a valid string, is 8",
            "must be a valid string, is True",
        ),
    ),
    Wild(
        "labels-of-numbers",
        job(marks="labels: {cost: 0123, on: x}"),
        INCOMPLETE,
        ("metadata.labels.cost: Kubernetes refuses it: must be a valid string, is 83. Put it in quotes.",),
    ),
    Wild(
        "a-node-selector-of-truth",
        job(pod="securityContext: {runAsUser: 1, runAsGroup: 1}\nnodeSelector: {gpu: true, zone: 'no'}"),
        INCOMPLETE,
        ("nodeSelector.gpu: Kubernetes refuses it: must be a valid string, is True",),
    ),
    Wild(
        "quantities", job(container=f"{COMMAND}\nresources: {{requests: {{cpu: .5, memory: 4Gi}}, limits: {{cpu: 2}}}}")
    ),
    Wild("halves-of-workers", job(role="replicas: 2.5"), REFUSED, ("replicas: it must be a whole number, is 2.5.",)),
    Wild("tags", job(container=f"{COMMAND}\nargs: [!!str 12, !vault x, !!binary aGk=]")),
    Wild(
        "a-script",
        job(
            container="command: [sh, -c]\nargs:\n- |\n  set -e\n  echo ${HOME} $(hostname) {{x}} <in\n  python train\n"
        ),
    ),
)

PLACEHOLDERS = (
    Wild("helm", job(role="replicas: {{ .Values.workers }}"), UNREADABLE, ("`helm template RELEASE CHART |",)),
    Wild(
        "helm-in-quotes",
        job(container=f'{COMMAND}\nargs: ["{{{{ .Values.rate }}}}"]', marks='labels: {x: "{{ .Release.Name }}"}'),
        INCOMPLETE,
        ("{{ .Values.rate }} is a placeholder for Helm; it is kept", "{{ .Release.Name }} is a placeholder for Helm"),
    ),
    Wild(
        "envsubst",
        job(role="replicas: ${WORKERS}", metadata="name: ${NAME}\nnamespace: $NAMESPACE"),
        REFUSED,
        (
            "${WORKERS} is a placeholder for envsubst: fill it in",
            "${NAME} is not a valid name",
            "$NAMESPACE is a placeholder",
        ),
    ),
    Wild(
        "katib",
        job(container=f"{COMMAND}\nargs: ['--rate=${{trialParameters.rate}}', '$HOME', '${{HOME}}']"),
        INCOMPLETE,
        ("${trialParameters.rate} is a placeholder for Katib; it is kept",),
    ),
    Wild(
        "argo",
        job(metadata='generateName: wild-\nlabels: {run: "{{workflow.name}}"}'),
        INCOMPLETE,
        ("{{workflow.name}} is a placeholder for Argo Workflows",),
    ),
    Wild(
        "tekton",
        job(container=f"{COMMAND}\nargs: [$(params.epochs)]"),
        INCOMPLETE,
        ("$(params.epochs) is a placeholder for Tekton",),
    ),
    Wild(
        "openshift",
        job(pod="securityContext: {runAsUser: 1, runAsGroup: 1}\nnodeName: ${{NODE}}"),
        INCOMPLETE,
        ("${{NODE}} is a placeholder for OpenShift",),
    ),
    Wild(
        "a-blank-to-fill-in",
        job(pod="securityContext: {runAsUser: 1, runAsGroup: 1}\nimagePullSecrets: [{name: <your-secret>}]"),
        INCOMPLETE,
        ("<your-secret> is a placeholder for you",),
    ),
)

FILES = (*VERSIONS, *FORMS, *SCALARS, *PLACEHOLDERS)
