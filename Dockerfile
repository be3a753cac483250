# The build stage compiles; the run stage has no compiler.
FROM python:3.12-slim-bookworm AS build
RUN apt-get update && apt-get install -y --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY pyproject.toml CMakeLists.txt README.md LICENSE ./
COPY torshrun torshrun
COPY torsh_runtime torsh_runtime
RUN pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

FROM python:3.12-slim-bookworm
COPY --from=build /wheels /wheels
RUN pip install --no-cache-dir /wheels/*.whl && rm -r /wheels
COPY examples /opt/torshrun/examples
WORKDIR /work
ENTRYPOINT ["torshrun"]
CMD ["--help"]
