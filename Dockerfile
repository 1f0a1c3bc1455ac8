# The image of Holdfast for a cluster. Replicas (`holdfast serve`) and the agents of workers run it. It writes only to /tmp and
# /var/lib/holdfast, so its root file system can be read-only.

FROM python:3.11-slim AS build
WORKDIR /build
COPY requirements.lock pyproject.toml README.md LICENSE ./
# The lock file also contains the developers' tools. uv installs only what Holdfast needs to run, and checks the hashes.
RUN awk '/^[a-z]/ {keep = /^uv==/} keep' requirements.lock > uv.lock \
    && pip install --no-cache-dir --disable-pip-version-check --require-hashes --no-deps -r uv.lock \
    && python -m venv --without-pip /opt/holdfast \
    && uv pip install --no-cache --python /opt/holdfast/bin/python --compile-bytecode --constraint requirements.lock -r pyproject.toml
COPY src ./src
RUN uv pip install --no-cache --python /opt/holdfast/bin/python --compile-bytecode --no-deps --build-constraint requirements.lock .

FROM python:3.11-slim
RUN useradd --uid 65532 --user-group --no-create-home --home-dir /tmp --shell /usr/sbin/nologin holdfast \
    && install -d -o holdfast -g holdfast /var/lib/holdfast
COPY --from=build /opt/holdfast /opt/holdfast
ENV PATH=/opt/holdfast/bin:$PATH \
    HOME=/tmp \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
WORKDIR /var/lib/holdfast
# This is a number, because a kubelet with `runAsNonRoot` cannot check a user name.
USER 65532:65532
EXPOSE 7070 7072
ENTRYPOINT ["holdfast"]
CMD ["--help"]
