# A fresh machine needs python3 and make; every target below installs what it needs into .venv first.
PYTHON ?= python3
# Another Python has an environment of its own: make test PYTHON=python3.13
VENV := $(if $(filter python3,$(notdir $(PYTHON))),.venv,.venv-$(notdir $(PYTHON)))
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SUITE ?= journal
# Tests wait for disks, servers and processes of their own, so one more at a time than there are processors.
WORKERS ?= $(shell $(PYTHON) -c "import os; print((os.cpu_count() or 1) + 1)")

.PHONY: help venv demo test sample lint format bench cluster failover soak kafka screenshots fuzz dist lock clean

help: ## say what each target does
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

venv: $(STAMP) ## create .venv with the exact versions of requirements.lock

$(STAMP): requirements.lock pyproject.toml
	@echo "installing into $(VENV): 2.5 GB, about two minutes"
	$(PYTHON) -m venv $(VENV) || ($(PYTHON) -m pip install --user virtualenv && $(PYTHON) -m virtualenv $(VENV))
	@# uv takes a quarter of pip's time; where it cannot be had, or finds another index, pip does it.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$$(grep '^uv==' requirements.lock)" && \
	$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode -r requirements.lock || \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $(STAMP)
	@echo "installed; 'source $(BIN)/activate' brings detent into your shell"

demo: $(STAMP) ## run the main job on the embedded default
	$(BIN)/detent demo --keep

test: $(STAMP) ## run every test layer
	@# Tests start hundreds of processes, and where Python may not write what it compiles, each would compile all of it.
	$(BIN)/python -m compileall -q src tests
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup

sample: $(STAMP) ## one case of each test of the unit and contract layers, for another PYTHON
	DETENT_ONE_CASE=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup tests/unit tests/contract

lint: $(STAMP) ## ruff, mypy --strict, import layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP) ## rewrite the sources in the house style
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) ## measure one suite (SUITE=journal) and write bench/results/SUITE.json
	$(BIN)/python -m bench $(SUITE)

cluster: $(STAMP) ## Spark on two workers, and on s3a, while each part is killed; needs Maven once
	DETENT_SOAK=1 $(BIN)/python -m pytest --timeout 3600 tests/acceptance/test_spark_cluster.py \
		tests/acceptance/test_spark_s3a.py

failover: $(STAMP) ## three servers of one store, killed, hung and cut off in turn: how long there is no service
	DETENT_SOAK=1 $(BIN)/python -m pytest -s --timeout 3600 tests/acceptance/test_failover.py

soak: $(STAMP) ## the long runs: 100 rounds of kill -9 under load, deep property tests
	DETENT_SOAK=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadgroup --timeout 3600

kafka: $(STAMP) ## bridges and a Kafka broker that are killed; needs Java, and Maven once
	DETENT_KAFKA=1 $(BIN)/python -m pytest -n 1 --dist loadgroup tests/integration/test_kafka_bridge.py tests/acceptance/test_kafka_crashes.py \
		tests/acceptance/test_kafka_spark.py

screenshots: $(STAMP) ## make the pictures of docs/console.md; needs Chromium
	DETENT_SCREENSHOTS=docs/pictures/console $(BIN)/python -m pytest -n 0 tests/acceptance/test_console_browser.py -k pictures

fuzz: $(STAMP) ## a million damaged Arrow messages, and the long form of every other fuzz
	DETENT_SOAK=1 $(BIN)/python -m pytest -n $(WORKERS) --timeout 3600 \
		tests/unit/test_foreign_arrow.py tests/unit/test_decoder_fuzz.py tests/unit/test_http_fuzz.py

dist: $(STAMP) ## build the sdist, and the wheel from it, into dist/
	rm -rf dist
	$(BIN)/uv build --no-build-isolation --python $(BIN)/python --no-create-gitignore --out-dir dist

lock: $(STAMP) ## resolve the dependencies again, newest first
	$(BIN)/uv pip compile pyproject.toml --extra dev --universal --python-version 3.11 --upgrade --no-emit-index-url --no-header --no-annotate -o requirements.lock

clean: ## remove what the targets made
	rm -rf .venv .venv-python* dist demo-data bench/data .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
