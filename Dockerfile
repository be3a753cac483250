# An image with torshrun, and with the examples in /work:
#
#   docker build -t torshrun .
#   docker run --rm torshrun --nproc-per-node 2 examples/train.py --epochs 20
#
# For NVIDIA GPUs (the host needs NVIDIA's container toolkit; docker run --gpus all):
#
#   docker build -t torshrun:cuda --build-arg EXTRAS=cuda12,torch \
#       --build-arg BASE=nvidia/cuda:12.8.1-runtime-ubuntu24.04 .
#
# BASE is any Debian or Ubuntu with Python 3.11 or later, EXTRAS are of pyproject.toml.
ARG BASE=debian:bookworm-slim

# ---- The build stage has a compiler.
# hadolint ignore=DL3006
FROM ${BASE} AS build
ARG EXTRAS=examples
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml CMakeLists.txt README.md LICENSE THIRD_PARTY_LICENSES ./
COPY cmake cmake
COPY docs/man docs/man
COPY torshrun torshrun
COPY torsh_runtime torsh_runtime
RUN python3 -m venv /opt/torshrun \
    && /opt/torshrun/bin/pip install --no-cache-dir ".[${EXTRAS}]"

# ---- The run stage has none, and runs as a user who is not root.
# hadolint ignore=DL3006
FROM ${BASE}
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install -y --no-install-recommends python3 \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --uid 10001 --create-home torshrun \
    && install -d -o torshrun -g torshrun /work
COPY --from=build /opt/torshrun /opt/torshrun
COPY examples /work/examples
ENV PATH=/opt/torshrun/bin:$PATH
USER 10001:10001
WORKDIR /work
# torshrun is process 1 and does what that has to: it passes signals on and reaps orphans.
ENTRYPOINT ["torshrun"]
CMD ["--help"]
