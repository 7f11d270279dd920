# make run    set everything up, compare FedAvg and FedProc, as in the paper and tuned, on the embedded data
# make test   set everything up, run the tests
# make paper  every table and figure of the paper on the embedded data
# make lint   ruff and mypy
# make docs   the documentation site, into site/: open site/index.html
# make package  sdist and wheel, into dist/, checked and tried in an empty environment
# make attack kills, damage, full disks and hostile inputs for some minutes
# make ray    the tests with a Ray cluster, in an environment of its own: Ray is 300 MB and no part of the first one
# make audit  known weaknesses of the packages that are used
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
RAY := $(VENV)-ray
RAY_READY := $(RAY)/.ready

.PHONY: run test slow attack ray audit paper lint docs package clean

run: $(READY)
	$(BIN)/fedproc compare --methods fedavg fedproc --variants examples/presets.toml --seeds 0 1 2 \
		--data fashion-mini --clients 10 --beta 0.5 --rounds 12 --epochs 2 --batch-size 32 --out runs/first

test: $(READY)
	$(BIN)/pytest -m "not slow and not attack" -n auto --dist loadfile

slow: $(READY)
	$(BIN)/pytest -m "slow and not attack" -n auto --dist loadgroup

attack: $(READY)
	$(BIN)/pytest -m attack -n auto --dist load tests/attack

ray: $(READY) $(RAY_READY)
	$(RAY)/bin/python -m pytest tests/simulation/test_ray.py

audit: $(READY)
	$(BIN)/python scripts/check_dependencies.py

paper: $(READY)
	$(BIN)/fedproc paper all --scale small --out runs/paper

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)
	rm -rf site
	$(BIN)/sphinx-build --fail-on-warning --keep-going --quiet -b html docs site
	$(BIN)/python scripts/check_site.py site

package: $(READY)
	rm -rf dist
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(BIN)/check-wheel-contents dist/*.whl
	$(BIN)/python scripts/check_package.py dist

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	touch $(READY)

# what the first environment has, and Ray
$(RAY_READY): $(READY)
	$(PYTHON) -m venv $(RAY)
	$(BIN)/python -c 'import sysconfig; print("import site; site.addsitedir(%r)" % sysconfig.get_path("purelib"))' \
		> $$($(RAY)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/beside.pth
	PIP_CONSTRAINT=constraints.txt $(RAY)/bin/python -m pip install --quiet --disable-pip-version-check 'ray>=2.52'
	touch $(RAY_READY)

clean:
	rm -rf $(VENV) $(RAY)
