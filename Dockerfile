# Every process of Evertick, for a PostgreSQL of your own. docs/deploy.md says how to build and run it.
ARG PYTHON_IMAGE=python:3.13.5-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /build
# Dependencies before the code, which changes more often. Wheels alone, by their hashes: nothing is compiled.
COPY requirements/server.lock requirements/build.lock requirements/
RUN python -m venv /opt/evertick
RUN /opt/evertick/bin/python -m pip install --require-hashes --only-binary :all: -r requirements/server.lock
RUN python -m venv /opt/build
RUN /opt/build/bin/python -m pip install --require-hashes --only-binary :all: -r requirements/build.lock
COPY pyproject.toml README.md LICENSE ./
COPY src src
RUN /opt/build/bin/python -m hatchling build -t wheel -d dist
RUN /opt/evertick/bin/python -m pip install --no-deps --no-index --find-links dist evertick
RUN /opt/evertick/bin/python -m pip uninstall --yes pip

FROM ${PYTHON_IMAGE}
LABEL org.opencontainers.image.title="Evertick" org.opencontainers.image.licenses="Apache-2.0"
RUN groupadd --system --gid 10001 evertick \
    && useradd --system --uid 10001 --gid 10001 --create-home --home-dir /var/lib/evertick --shell /usr/sbin/nologin evertick
COPY --from=build /opt/evertick /opt/evertick
ENV PATH=/opt/evertick/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    EVERTICK_HOST=0.0.0.0 \
    EVERTICK_HEALTH_FILE=/tmp/evertick-health
WORKDIR /var/lib/evertick
USER 10001:10001
EXPOSE 8700
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=10s --start-period=60s --retries=3 CMD ["evertick", "health"]
ENTRYPOINT ["evertick"]
CMD ["up", "--no-migrate"]
