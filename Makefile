# `make help` lists the targets. Everything works on a bare Linux machine with Python 3.11; the local cluster needs root.

PYTHON ?= python3
VENV := .venv
PY := $(VENV)/bin/python
export PYTHONUNBUFFERED := 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-changed bench soak test-lint test-drift test-unit test-property test-chart \
        test-training test-controlplane test-e2e \
        campaign mutants pictures install lock generate format site image sbom release cluster-up cluster-down clean python

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: python ## From nothing to a finished training job on a local cluster
	@$(PYTHON) -m hack.demo

test: install ## Run every layer of the tests, each mechanism once, the cheap ones first: what CI runs
	@$(PY) hack/run_tests.py

test-all: install ## The same with what `make test` leaves out: before an issue is closed (an hour and more)
	@PSTRAINING_TESTS=all $(PY) hack/run_tests.py

test-changed: install ## The layers, and of the slow ones the files, that a change touches (BASE=REV: since then)
	@$(PY) hack/run_tests.py --changed --base $(or $(BASE),HEAD)

test-lint: install ## ruff, mypy --strict, import contracts, module length, links in the docs, their prose, their site
test-drift: install ## Generated files are what `make generate` writes
test-unit: install ## Tests that need nothing but Python
test-property: install ## Properties of the decisions and of the protocols, with random inputs
test-chart: install ## The Helm chart, rendered by helm
test-training: install ## The launcher and the runtime as processes on this machine, with TensorFlow
test-controlplane: install ## The operator against a real API server
test-e2e: install ## Jobs on a real cluster
test-lint test-drift test-unit test-property test-chart test-training test-controlplane test-e2e:
	@$(PY) hack/run_tests.py $(@:test-%=%)

SOAK := PSTRAINING_TESTS=soak PSTRAINING_SYNC_STEPS=200 PSTRAINING_KILLS=30 PSTRAINING_SIMULATED_KILLS=1000 \
        PSTRAINING_CUTS=1000 PSTRAINING_HOT_KILLS=150 PSTRAINING_HOT_TAKEOVERS=200 PSTRAINING_ASYNC_KILLS=100 \
        PSTRAINING_KUBELET_LOSSES=150,20,10
soak: install ## Slow versions of tests: training compared after 200 updates, hundreds of processes and threads killed (hours)
	@failed=0; for file in tests/training/test_*.py; do $(SOAK) $(PY) -m pytest $$file || failed=1; done; \
		$(SOAK) $(PY) hack/run_tests.py property chart e2e || failed=1; exit $$failed

BENCHES := controlplane training training.accuracy training.auto training.hybrid training.keys training.key_accuracy
bench: install ## Measure the control plane and the runtime beside others, and check their limits (half a day)
	@failed=0; for part in $(BENCHES); do $(PY) -m bench.$$part || failed=1; done; exit $$failed

pictures: install ## Take the pictures of the dashboard for the docs, in a real Chromium
	@PSTRAINING_TESTS=all PSTRAINING_PICTURES=docs/users/pictures $(PY) -m pytest -q tests/unit/cli/test_dashboard_chromium.py

campaign: install ## Disturb the operator at every write and every watch; results in docs/project/benchmarks/campaign.md
	@$(PY) -m tests.campaign --guards --table docs/project/benchmarks/campaign.md

mutants: install ## Mutate pure modules, and report the changes that no test notices (MODULES="replication/view": those alone)
	@$(PY) -m hack.mutants $(MODULES) --table docs/project/run-the-tests.md

# Images install from locks with hashes, so that the same commit is the same image. Development has constraints: pip cannot
# check the hash of a package that is edited in place. Versions are resolved for every platform and Python (--universal).
COMPILE := $(VENV)/bin/uv pip compile --quiet --universal --python-version 3.11 --no-annotate --no-header
COMPILE += $(if $(UPGRADE),--upgrade)
lock: install ## Write the locks of all versions after a change of pyproject.toml (UPGRADE=1: the newest)
	@$(COMPILE) --generate-hashes pyproject.toml --extra operator -o hack/locks/operator.txt >/dev/null
	@$(COMPILE) --generate-hashes pyproject.toml --extra cli -o hack/locks/cli.txt >/dev/null
	@$(COMPILE) --generate-hashes pyproject.toml --extra runtime-gpu --extra examples -o hack/locks/runtime-gpu.txt >/dev/null
	@$(COMPILE) --generate-hashes pyproject.toml --extra runtime-cpu --extra examples -o hack/locks/runtime-cpu.txt >/dev/null
	@$(PY) -c 'import tomllib; print(*tomllib.load(open("pyproject.toml", "rb"))["build-system"]["requires"], sep="\n")' | \
		$(COMPILE) --generate-hashes - -o hack/locks/build.txt >/dev/null
	@$(COMPILE) pyproject.toml $(foreach extra,operator cli runtime-cpu examples dev,--extra $(extra)) -o hack/locks/development.txt >/dev/null

install: python ## Make .venv with the package and what its tests need
	@$(PYTHON) hack/install.py

generate: install ## Write all generated files: the CRD, pages of the docs, the chart's copies and its table of values
	@$(PY) hack/generate.py

site: install ## Build the documentation as a site, into build/site; a link that leads nowhere is an error
	@$(VENV)/bin/sphinx-build -c docs -W --keep-going -q -j auto -E . build/site
	@echo "the documentation is in build/site/index.html"

format: install ## Format the code
	@$(VENV)/bin/ruff format .
	@$(VENV)/bin/ruff check --fix .

image: python ## Build the images with buildah, without a registry
	@$(PYTHON) -m localcluster build-images

sbom: install ## List what the images and the plugin install, as CycloneDX, into build/sbom
	@$(PY) -m hack.release.sbom build/sbom

# Without REGISTRY, install.yaml names an image that no cluster can pull, for you to replace.
release: install ## Make the artefacts of a release of this commit, into build/release (REGISTRY=ghcr.io/me DOWNLOADS=URL IMAGES=no)
	@$(PY) -m hack.release $(if $(REGISTRY),--registry $(REGISTRY)) $(if $(DOWNLOADS),--downloads $(DOWNLOADS)) \
		$(if $(filter no,$(IMAGES)),--without-images)

cluster-up: python ## Bring the local cluster up
	@$(PYTHON) -m localcluster up

cluster-down: python ## Take the local cluster down; built programs and images stay cached
	@$(PYTHON) -m localcluster down

clean: ## Remove what was built in this folder
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: Python 3.11 or newer is needed as '$(PYTHON)'; name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
