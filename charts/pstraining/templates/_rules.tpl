{{/*
What the operator may do in the namespaces that it watches: exactly the calls that it makes. tests/chart holds this list;
a call that is added to the operator is added here and there.
*/}}
{{- define "pstraining.rules" -}}
- apiGroups: [pstraining.dev]
  resources: [pstrainingjobs]
  verbs: [list, watch, delete] # delete: ttlSecondsAfterFinished
- apiGroups: [pstraining.dev]
  resources: [pstrainingjobs/status]
  verbs: [patch]
# The admission plugin OwnerReferencesPermissionEnforcement requires this right of clients that set blockOwnerDeletion.
- apiGroups: [pstraining.dev]
  resources: [pstrainingjobs/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [statefulsets, deployments]
  verbs: [create, get, list, watch, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [create, get, list, watch, patch, delete] # patch: the owner, if it was removed
- apiGroups: [""]
  resources: [services, configmaps]
  verbs: [create, get, list, watch, patch, delete]
# One for each shard that has standbys.
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [create, get, list, watch, patch, delete]
# One for each job, because a TensorFlow server executes every request.
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [create, get, list, watch, patch, delete]
# One for each job that is scheduled as a gang. It is never watched, because its kind need not be installed.
- apiGroups: [scheduling.x-k8s.io, scheduling.volcano.sh]
  resources: [podgroups]
  verbs: [create, get, patch, delete]
# The claim for checkpoints is created once; patch: its owner, by checkpoint.retainPolicy. delete: claims of parameter servers,
# by persistentVolumeClaimRetentionPolicy.whenScaled.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [create, get, list, watch, patch, delete]
- apiGroups: [""]
  resources: [pods]
  verbs: [list, watch, patch, delete]
# Resizes of running pods without a restart (Kubernetes 1.33 or newer).
- apiGroups: [""]
  resources: [pods/resize]
  verbs: [patch]
# Only events report why a StatefulSet or a Job has no pod.
- apiGroups: [""]
  resources: [events]
  verbs: [list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- if .Values.kueue.enabled }}
# One for each job that is in a queue, and a second one while its workers are scaled.
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [create, get, list, watch, patch, delete]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch]
# A job without a queue gets the default queue of its namespace.
- apiGroups: [kueue.x-k8s.io]
  resources: [localqueues]
  verbs: [get]
- apiGroups: [pstraining.dev]
  resources: [pstrainingjobs]
  verbs: [patch]
{{- end }}
{{- end -}}

{{/* Cluster-scoped objects that are read for jobs in queues: flavors with their nodes and tolerations, and priority classes. */}}
{{- define "pstraining.kueueRules" -}}
- apiGroups: [kueue.x-k8s.io]
  resources: [resourceflavors, workloadpriorityclasses]
  verbs: [get]
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [get]
{{- end -}}

{{/* The rights to the logs of a job's own pods, which its chief keeps beside the checkpoints. */}}
{{- define "pstraining.logRules" -}}
- apiGroups: [""]
  resources: [pods/log]
  verbs: [get]
{{- end -}}

{{/* The right to review the tokens of reports of progress. It needs a ClusterRole, because reviews have no namespace. */}}
{{- define "pstraining.tokenRules" -}}
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
{{- end -}}

{{/* The rights in the operator's own namespace: the Lease, which lets one operator at a time work. */}}
{{- define "pstraining.leaseRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create] # a name cannot be asked of a create
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [{{ include "pstraining.operatorName" . }}]
  verbs: [get, update]
{{- end -}}

{{/* The rights in the operator's own namespace for progress: the Secret with the authority of the endpoint's certificate. */}}
{{- define "pstraining.progressRules" -}}
- apiGroups: [""]
  resources: [secrets]
  verbs: [create] # a name cannot be asked of a create
- apiGroups: [""]
  resources: [secrets]
  resourceNames: [{{ include "pstraining.operatorName" . }}-progress]
  verbs: [get]
{{- end -}}
