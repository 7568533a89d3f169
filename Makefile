# Only Python >= 3.11, make and the package registry are assumed. `make up` and `make test` set up all they need.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := src tests docs examples

.PHONY: up test slow check format lint types layers campaign docs schema helm servers lock clean help

help:  ## list the commands
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/'

up: $(VENV)/run.stamp  ## set up and run the product
	$(BIN)/evertick up

# Three processes on two cores: tests wait for half of their time.
test: $(VENV)/dev.stamp  ## set up and run the tests
	$(BIN)/pytest -n 3 --dist worksteal -m "not slow and not campaign"

slow: $(VENV)/dev.stamp  ## the faults of whole clusters, attacks and benches that `make test` leaves out
	$(BIN)/pytest -n 2 --dist worksteal -m "slow and not campaign"

check: format lint types layers  ## exactly what CI runs
	$(MAKE) test

campaign: $(VENV)/dev.stamp  ## the long fuzzing that `make test` leaves out
	$(BIN)/pytest -n 2 -m campaign

format: $(VENV)/dev.stamp  ## is everything formatted? (`.venv/bin/ruff format` does it)
	$(BIN)/ruff format --check $(SOURCES)

lint: $(VENV)/dev.stamp
	$(BIN)/ruff check $(SOURCES)

types: $(VENV)/dev.stamp
	$(BIN)/mypy

layers: $(VENV)/dev.stamp
	$(BIN)/lint-imports

docs: .venv-docs/stamp  ## build the site of the documentation into site/; a broken link fails
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --quiet --strict
	@echo "the site is in site/index.html"

schema: $(VENV)/dev.stamp  ## write docs/schema.sql anew, after a change of the migrations
	$(BIN)/python docs/schema.py

helm: $(VENV)/dev.stamp  ## build Helm with Go, for the tests of the chart
	GOBIN=$(abspath $(BIN)) go install helm.sh/helm/v3/cmd/helm@v3.17.3

servers:  ## install the servers that tests start; tests of those that cannot be had are skipped
	tests/servers/install.sh $(PYTHON)

lock: $(VENV)/dev.stamp  ## choose newer versions of the pinned dependencies
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 --upgrade pyproject.toml --extra embedded --extra brokers --extra otel --extra archive \
		-o requirements/run.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 --upgrade pyproject.toml --extra embedded --extra brokers --extra otel --extra archive \
		--group dev -o requirements/dev.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 pyproject.toml --extra server --extra brokers --extra archive --extra otel -c requirements/run.lock -o requirements/server.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 --upgrade --group servers -o requirements/servers.lock
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --no-emit-index-url \
		--python-version 3.11 --upgrade --group docs -o requirements/docs.lock
	echo hatchling | $(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate \
		--no-emit-index-url --python-version 3.11 - -c requirements/dev.lock -o requirements/build.lock

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Evertick needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/run.stamp: $(VENV)/bin/python requirements/run.lock pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/run.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -e .
	@touch $@

$(VENV)/dev.stamp: $(VENV)/run.stamp requirements/dev.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.lock
	@touch $@

.venv-docs/stamp: requirements/docs.lock
	$(PYTHON) -m venv .venv-docs
	.venv-docs/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements/docs.lock
	@touch $@

clean:  ## remove everything that make created
	rm -rf $(VENV) .venv-docs site .servers .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
