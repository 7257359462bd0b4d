# The stallscope image: the locked dependencies, the command and its three packages, byte-compiled, run by an unprivileged user.
#
#   docker build -t stallscope:0.1.0 .
#   docker build -t stallscope:0.1.0 --build-arg EXTRAS="--extra cloud-logging" .    # docs/log-delivery.md; 40 MB of memory more when used
#
# No HEALTHCHECK, on purpose. Kubernetes and Cloud Run ignore it and have probes of their own, and the base holds no HTTP
# client but Python: a check would start a whole interpreter inside the container that is being measured, again and
# again, which costs more CPU than the agent itself. For plain Docker, check /livez from outside: docs/deploying.md.

ARG BASE=python:3.13-slim-bookworm

FROM ${BASE} AS build
ARG UV_VERSION=0.13.8
RUN python3 -m venv /opt/uv && /opt/uv/bin/pip install --no-cache-dir "uv==${UV_VERSION}"
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
ARG EXTRAS=""
# hadolint ignore=SC2086
RUN /opt/uv/bin/uv sync --frozen --no-dev --no-install-project ${EXTRAS}
COPY README.md LICENSE stallscope.py ./
COPY probes ./probes
COPY agent ./agent
COPY exporters ./exporters
COPY hooks ./hooks
# hadolint ignore=SC2086
RUN /opt/uv/bin/uv sync --frozen --no-dev --no-editable ${EXTRAS}

FROM ${BASE}
# The official Python images ship their standard library without .pyc files, and a non-root process can never write them.
RUN ["python3", "-c", "import compileall, py_compile, re, sysconfig; compileall.compile_dir(sysconfig.get_path('stdlib'), quiet=1, rx=re.compile('/(site-packages|dist-packages|test|tests|idlelib|tkinter|turtledemo|lib2to3|ensurepip|pydoc_data)/'), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"]
COPY --from=build /opt/stallscope /opt/stallscope
# For the app's own process, not for ours: docs/deploying.md says how the app gets them.
COPY hooks /opt/stallscope/hooks
# Nothing is ever written: the root file system can be read-only. Unbuffered: a finding is on stdout when it happens.
ENV PATH=/opt/stallscope/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# Numeric, so that runAsNonRoot can be checked. Any other uid works too: use the app's, see docs/deploying.md.
USER 65532:65532
EXPOSE 9768
ENTRYPOINT ["stallscope"]
# In a container other containers and the platform's probes must reach it; the command's own default is loopback only.
CMD ["run", "--listen", "0.0.0.0:9768"]
