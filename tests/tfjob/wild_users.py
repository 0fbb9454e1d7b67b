"""TFJob files as people have them: users, groups and rights of containers."""

from tests.tfjob.wild import COMMAND, NOTES, Wild, job

USERS = (
    Wild(
        "an-init-container-of-its-images-user",
        job(
            pod="initContainers: [{name: own, image: b, command: [chown, -R, '1', /data]}]",
            container=f"{COMMAND}\nsecurityContext: {{runAsUser: 1, runAsGroup: 1}}",
        ),
        NOTES,
        ("initContainers[0].securityContext: it has no runAsUser: in TFJob this container runs as its image's user",),
    ),
    Wild(
        "an-init-container-of-root",
        job(
            pod="securityContext: {runAsUser: 1, runAsGroup: 1}\n"
            "initContainers: [{name: own, image: b, command: [chown, '1', /data], securityContext: {runAsUser: 0}}]"
        ),
        NOTES,
        ("initContainers[0].securityContext: root has no capabilities here: chown and",),
    ),
    Wild(
        "a-user-without-its-groups",
        job(
            pod="securityContext: {runAsUser: 1}\nvolumes: [{name: d, persistentVolumeClaim: {claimName: d}}]",
            container=f"{COMMAND}\nvolumeMounts: [{{name: d, mountPath: /d}}]",
        ),
        NOTES,
        (
            "Worker.template.spec.securityContext: it has no runAsGroup: TFJob's pods have their image's group",
            "Worker.template.spec.securityContext: it has no fsGroup: TFJob leaves the groups of files in volumes",
        ),
    ),
    Wild(
        "root-with-a-volume",
        job(
            pod="securityContext: {runAsUser: 0}\nvolumes: [{name: d, persistentVolumeClaim: {claimName: d}}]",
            container=f"{COMMAND}\nsecurityContext: {{privileged: true}}",
        ),
    ),
    Wild(
        "the-users-of-images-that-may-be-root",
        job(
            pod="securityContext: {runAsNonRoot: false}\ninitContainers: "
            "[{name: own, image: b, command: [id], securityContext: {runAsNonRoot: true}}]"
        ),
        NOTES,
        (
            "initContainers[0].securityContext: it has no runAsUser: in TFJob this container runs as its image's user",
            "Worker.template.spec.containers[0].securityContext: root has no capabilities here: chown and",
        ),
    ),
    Wild(
        "root-with-rights-of-its-own",
        job(pod="securityContext: {runAsUser: 0}", container=f"{COMMAND}\nsecurityContext: {{privileged: true}}"),
    ),
)
