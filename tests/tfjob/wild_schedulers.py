"""TFJob files as people have them: gangs, queues, and schedulers that may not run."""

from tests.tfjob.wild import INCOMPLETE, NOTES, Wild, job

SCHEDULERS = (
    Wild(
        "kube-batch",
        job(marks="annotations: {scheduling.k8s.io/group-name: g}", pod="schedulerName: kube-batch"),
        INCOMPLETE,
        ("it requests a gang or a queue from kube-batch, Volcano", "kube-batch is no longer developed"),
    ),
    Wild(
        "coscheduling",
        job(
            marks="labels:\n  pod-group.scheduling.sigs.k8s.io/name: g\n"
            "  pod-group.scheduling.sigs.k8s.io/min-available: '3'"
        ),
        INCOMPLETE,
        ("spec.runPolicy.schedulingPolicy.gang to SchedulerPlugins or Volcano",),
    ),
    Wild("volcano-by-name", job(pod="schedulerName: volcano"), NOTES, ("Here Volcano gets single pods",)),
    Wild(
        "scheduler-plugins-by-name",
        job(pod="securityContext: {runAsUser: 1, runAsGroup: 1}\nschedulerName: scheduler-plugins-scheduler"),
        NOTES,
        ("Here scheduler-plugins gets single pods. Set spec.runPolicy.schedulingPolicy.gang: SchedulerPlugins.",),
    ),
    Wild(
        "volcano-with-a-queue",
        job(
            spec="runPolicy: {cleanPodPolicy: All, backoffLimit: 3, schedulingPolicy: {queue: q}}",
            pod="securityContext: {runAsUser: 1, runAsGroup: 1}\nschedulerName: volcano",
        ),
    ),
    Wild("kueue", job(marks="labels: {kueue.x-k8s.io/queue-name: q}"), INCOMPLETE, ("holds their pods one by one",)),
    Wild(
        "a-topology-of-kueue",
        job(
            metadata="name: wild\nannotations: {provreq.kueue.x-k8s.io/maxRunDurationSeconds: '60'}",
            marks="annotations: {kueue.x-k8s.io/podset-required-topology: example.com/rack}",
        ),
        INCOMPLETE,
        (
            'metadata.annotations["kueue.x-k8s.io/podset-required-topology"]: the operator does not pass this request',
            'metadata.annotations["provreq.kueue.x-k8s.io/maxRunDurationSeconds"]: the operator does not pass this',
        ),
    ),
    Wild(
        "marks-of-the-job",
        job(metadata="name: wild\nannotations: {scheduling.volcano.sh/queue-name: q}"),
        INCOMPLETE,
        ('metadata.annotations["scheduling.volcano.sh/queue-name"]: it requests a gang or a queue from kube-batch',),
    ),
)
