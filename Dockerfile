# Three images from one file, built with docker or buildah:
#   docker build --target operator    -t pstraining/operator:0.2.0 .
#   docker build --target runtime     -t pstraining/runtime:0.2.0 .
#   docker build --target runtime-gpu -t pstraining/runtime-gpu:0.2.0 .
# What changes seldom comes first: after a change of the package's source only the last, small layers are built again.
# Every package is one of hack/locks, by its hash. With BASE given by its digest, and `--timestamp` of buildah or SOURCE_DATE_EPOCH
# of BuildKit, the same commit makes the same image, byte for byte.
# pip's options on the machine that builds (PIP_INDEX_URL, PIP_CERT, ...) come in as build arguments of the same names.
ARG BASE=python:3.11-slim

FROM ${BASE} AS base
# A virtual environment of our own: `python` and `python3` are then the same in any base that has python3 with venv.
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_ROOT_USER_ACTION=ignore
RUN python3 -m venv /opt/venv && find /opt/venv -name __pycache__ -prune -exec rm -r {} +

# Bytecode is compiled by one process, in order: what several make depends on which of them compiles what.
# The package alone, under /out as it lies in the images. The containers' root is read-only or not theirs: bytecode is
# compiled here or never.
FROM base AS package
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG PIP_CERT
ARG PIP_DEFAULT_TIMEOUT
COPY hack/locks/build.txt /locks/
RUN pip install --require-hashes -r /locks/build.txt
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY operator operator
RUN pip install --no-deps --no-build-isolation --no-compile --root /out . \
    && PYTHONHASHSEED=0 python -m compileall -q -f --invalidation-mode unchecked-hash -s /out /out

FROM base AS operator-venv
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG PIP_CERT
ARG PIP_DEFAULT_TIMEOUT
COPY hack/locks/operator.txt /locks/
RUN pip install --no-compile --require-hashes -r /locks/operator.txt \
    && pip uninstall --yes setuptools wheel pip \
    && PYTHONHASHSEED=0 python -m compileall -q -f --invalidation-mode unchecked-hash /opt/venv/lib

FROM ${BASE} AS operator
LABEL org.opencontainers.image.title="pstraining operator" \
      org.opencontainers.image.licenses="Apache-2.0"
# USER: whoever it runs as, also without a line in /etc/passwd, has a name; libraries ask for it.
ENV PATH=/opt/venv/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    USER=pstraining
COPY --from=operator-venv /opt/venv /opt/venv
# Importing leaves the bytecode of the standard library's modules behind, which some bases come without.
RUN python -c "import kopf, kubernetes.aio.client, prometheus_client, pythonjsonlogger.json"
COPY --from=package /out/ /
# The build fails here if anything that the operator needs is missing.
RUN python -c "import pstraining.controller.main"
USER 65532:65532
WORKDIR /
EXPOSE 8080 8081
ENTRYPOINT ["pstraining-operator"]

# Group 0 owns HOME: OpenShift runs the image as any user of group 0.
FROM base AS runtime-base
RUN echo "pstraining:x:1000:" >> /etc/group \
    && echo "pstraining:x:1000:1000::/home/pstraining:/bin/sh" >> /etc/passwd \
    && mkdir /home/pstraining && chown 1000:0 /home/pstraining && chmod 0775 /home/pstraining
ENV HOME=/home/pstraining \
    USER=pstraining
WORKDIR /app

FROM runtime-base AS runtime
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG PIP_CERT
ARG PIP_DEFAULT_TIMEOUT
LABEL org.opencontainers.image.title="pstraining runtime" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY hack/locks/runtime-cpu.txt /locks/runtime.txt
RUN pip install --no-compile --require-hashes -r /locks/runtime.txt \
    && PYTHONHASHSEED=0 python -m compileall -q -f --invalidation-mode unchecked-hash /opt/venv/lib
COPY --from=package /out/ /
COPY examples examples
USER 1000:1000
EXPOSE 2222
CMD ["python"]

# The same with CUDA's libraries. The device plugin decides which GPUs a container sees: the image asks for none.
FROM runtime-base AS runtime-gpu
ARG PIP_INDEX_URL
ARG PIP_EXTRA_INDEX_URL
ARG PIP_TRUSTED_HOST
ARG PIP_CERT
ARG PIP_DEFAULT_TIMEOUT
LABEL org.opencontainers.image.title="pstraining runtime for GPUs" \
      org.opencontainers.image.licenses="Apache-2.0"
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY hack/locks/runtime-gpu.txt /locks/runtime.txt
RUN pip install --no-compile --require-hashes -r /locks/runtime.txt \
    && PYTHONHASHSEED=0 python -m compileall -q -f --invalidation-mode unchecked-hash /opt/venv/lib
COPY --from=package /out/ /
COPY examples examples
USER 1000:1000
EXPOSE 2222
CMD ["python"]
