{{- define "pstraining.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 53 | trimSuffix "-" -}}
{{- end -}}

{{/* The release's name, with the chart's name unless the release's contains it; short enough for "-operator-leader-election". */}}
{{- define "pstraining.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" -}}
{{- else if contains (include "pstraining.name" .) .Release.Name -}}
{{- .Release.Name | trunc 53 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "pstraining.name" .) | trunc 53 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The operator's objects. */}}
{{- define "pstraining.operatorName" -}}
{{ include "pstraining.fullname" . }}-operator
{{- end -}}

{{/* The beginning of the names of Services, which start with a letter, have no dot, and have at most 63 characters with
"-progress". */}}
{{- define "pstraining.serviceName" -}}
{{- $name := include "pstraining.operatorName" . | replace "." "-" -}}
{{- if regexMatch "^[0-9]" $name }}{{ $name = printf "pst-%s" $name }}{{ end -}}
{{- $name | trunc 54 | trimSuffix "-" -}}
{{- end -}}

{{/* The end of the names of objects without a namespace. Releases of several namespaces may have the same name, each with
its own watch.namespaces. Without an end, the last one would replace the subjects and settings of the others. */}}
{{- define "pstraining.clusterSuffix" -}}
{{- if .Values.watch.namespaces }}-{{ .Release.Namespace }}{{ end -}}
{{- end -}}

{{- define "pstraining.serviceAccountName" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "pstraining.operatorName" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* No default: a name that the project does not own would let its owner run an image in the cluster. */}}
{{- define "pstraining.image" -}}
{{- if not .Values.image.repository -}}
{{- fail "image.repository is not set. Set it to the repository where you have pushed the operator's image: --set image.repository=REGISTRY/pstraining/operator" -}}
{{- end -}}
{{- if regexMatch "[:@][^/]*$" .Values.image.repository -}}
{{- fail (printf "image.repository must have neither tag nor digest: %s. Set image.tag or image.digest instead" .Values.image.repository) -}}
{{- end -}}
{{- if not (regexMatch "^([A-Za-z0-9][A-Za-z0-9.-]*(:[0-9]+)?/|\\[[0-9A-Fa-f:]+\\](:[0-9]+)?/)?[a-z0-9]+([._-]+[a-z0-9]+)*(/[a-z0-9]+([._-]+[a-z0-9]+)*)*$" .Values.image.repository) -}}
{{- fail (printf "image.repository is not the name of an image: %s. It has no scheme such as https://, no capital letter after the registry, and no / at its end" .Values.image.repository) -}}
{{- end -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}
{{- end -}}

{{/* The runtime's image beside the operator's, for the notes. Another name of the operator's does not tell the runtime's. */}}
{{- define "pstraining.runtimeImage" -}}
{{- $repository := .Values.image.repository -}}
{{- ternary (regexReplaceAll "operator$" $repository "runtime") "REGISTRY/pstraining/runtime" (hasSuffix "operator" $repository) -}}
:{{ .Chart.AppVersion }}
{{- end -}}

{{/* The labels that select the operator's pod. They never change in a release. */}}
{{- define "pstraining.selectorLabels" -}}
app.kubernetes.io/name: {{ include "pstraining.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "pstraining.labels" -}}
{{ include "pstraining.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: pstraining
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* The labels with those of a value, of which each key occurs once: (list $ labels). Kustomize, which Flux and others use,
refuses an object with two equal keys. */}}
{{- define "pstraining.labelsAnd" -}}
{{- toYaml (mergeOverwrite (fromYaml (include "pstraining.labels" (first .))) (default dict (last .))) -}}
{{- end -}}

{{/* The labels of the operator's pod. Those that select it are the same everywhere. */}}
{{- define "pstraining.podLabels" -}}
{{- range $name, $_ := fromYaml (include "pstraining.selectorLabels" .) -}}
{{- if hasKey (default dict $.Values.podLabels) $name -}}
{{- fail (printf "podLabels must not have %s, by which the Deployment and the Services select the pod: remove it" $name) -}}
{{- end -}}
{{- end -}}
{{- include "pstraining.labelsAnd" (list . .Values.podLabels) -}}
{{- end -}}

{{/* The Deployment's annotation in a release that deletes the CRD once its manifests have none. An upgrade reads it there:
a user that may upgrade the release may read its Deployment, but not always CRDs. */}}
{{- define "pstraining.crdIsDeleted" -}}
pstraining.dev/crd-deleted-with-release
{{- end -}}

{{/* "true" if the operator accepts progress, otherwise empty. auto: not if only progress would need a ClusterRole. */}}
{{- define "pstraining.progress" -}}
{{- $enabled := toString .Values.progress.enabled -}}
{{- if or (eq $enabled "true") (and (eq $enabled "auto") (not .Values.watch.namespaces)) }}true{{ end -}}
{{- end -}}

{{/* Variables that the chart sets, each with the value to change instead. Kubernetes would use the last of two variables of
one name, and server-side apply refuses both. */}}
{{- define "pstraining.ownEnv" -}}
POD_NAME: ""
POD_NAMESPACE: ""
PSTRAINING_NAMESPACES: watch.namespaces
PSTRAINING_WATCH_NODES: watch.nodes
PSTRAINING_LEASE_NAME: fullnameOverride
PSTRAINING_LEASE_DURATION_SECONDS: lease.durationSeconds
PSTRAINING_METRICS_PORT: ""
PSTRAINING_HEALTH_PORT: ""
PSTRAINING_PROGRESS_URL: progress.enabled
PSTRAINING_PROGRESS_PORT: progress.enabled
PSTRAINING_LOG_LEVEL: operator.logLevel
PSTRAINING_LOG_FORMAT: operator.logFormat
PSTRAINING_POD_IDS: operator.podIds
PSTRAINING_KUEUE: kueue.enabled
PSTRAINING_WORKERS: operator.workers
{{- end -}}

{{/* The variables of extraEnv, each of which occurs once. */}}
{{- define "pstraining.extraEnv" -}}
{{- $own := fromYaml (include "pstraining.ownEnv" .) -}}
{{- $seen := list -}}
{{- range .Values.extraEnv -}}
{{- if hasKey $own .name -}}
{{- $todo := ternary "remove it" (printf "set %s instead" (get $own .name)) (empty (get $own .name)) -}}
{{- fail (printf "extraEnv must not have %s, which the chart sets: %s" .name $todo) -}}
{{- end -}}
{{- if has .name $seen -}}
{{- fail (printf "extraEnv has %s twice: remove one of them" .name) -}}
{{- end -}}
{{- $seen = append $seen .name -}}
{{- end -}}
{{- toYaml .Values.extraEnv -}}
{{- end -}}
