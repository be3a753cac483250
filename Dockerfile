# The build stage compiles; the run stage has no compiler, and runs as a user who is not root.
FROM python:3.12-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY cmake cmake
COPY torshrun torshrun
COPY torsh_runtime torsh_runtime
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim-bookworm
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir /wheels/*.whl && rm -r /wheels \
    && useradd --uid 1000 --create-home torshrun && install -d -o torshrun -g torshrun /work
COPY examples /opt/torshrun/examples
USER 1000:1000
WORKDIR /work
# torshrun does what PID 1 has to: it passes signals on and reaps orphans.
ENTRYPOINT ["torshrun"]
CMD ["--help"]
