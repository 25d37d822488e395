VENV ?= .venv
PY = $(VENV)/bin/python

IN_PARALLEL = -n auto --maxprocesses 4 --dist worksteal

# The pure core: its branch coverage is at least 98 %.
CORE = $(addprefix --cov=ps_server.,gate partition member roster job_tables membership) --cov=ps_wire.plan

.PHONY: install demo test check chaos mutants soak bench bench-peers protos api clean

install: $(VENV)/installed
	@echo "installed into $(VENV)"

demo: $(VENV)/installed
	$(VENV)/bin/ps-lab demo

test: $(VENV)/installed-test
	$(PY) -m pytest $(IN_PARALLEL) --durations 15

check: $(VENV)/installed-test
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" sh -ec 'ruff check . && ruff format --check . && mypy && lint-imports && python -m pytest -m "not integration" $(CORE) --cov-branch --cov-fail-under=98'

# Faults drawn from a seed, over real processes; what fails says how to run it again.
chaos: $(VENV)/installed-test
	$(PY) -m tests.faults.chaos --seed $(or $(SEED),1) --minutes $(or $(MINUTES),2)

# Deliberate faults, one after the other; what no test sees is said.
mutants: $(VENV)/installed-test
	$(PY) -m tests.mutants $(if $(ONLY),--only '$(ONLY)') $(if $(FILE),--file '$(FILE)') --jobs $(or $(JOBS),1)

# All tests, again and again beside busy loops: what fails now and then.
soak: $(VENV)/installed-test
	$(PY) -m tests.soak --runs $(or $(RUNS),20) --busy $(or $(BUSY),4) -- $(IN_PARALLEL) $(TESTS)

bench: $(VENV)/installed-test
	$(PY) benchmarks/run.py

# Peers that do not fit into our environment; MXNet's last release needs Python 3.11 or older.
bench-peers: .venv-mxnet/installed .venv-tensorflow/installed

protos: $(VENV)/installed-test
	$(PY) protos/generate.py

api: $(VENV)/installed-test
	$(PY) docs/generate.py

clean:
	rm -rf $(VENV) .venv-mxnet .venv-tensorflow build *.egg-info

$(VENV)/bin/python:
	python3 -m venv $(VENV)

$(VENV)/installed: pyproject.toml setup.py ps_wire/kernels.c constraints.txt $(VENV)/bin/python
	$(PY) -m pip install --quiet -c constraints.txt -e '.[certs,examples]' && touch $@

$(VENV)/installed-test: $(VENV)/installed
	$(PY) -m pip install --quiet --upgrade 'pip>=25.1' && $(PY) -m pip install --quiet -c constraints.txt -e '.[certs,examples,frameworks]' --group test --group check && touch $@

.venv-mxnet/installed: REQUIREMENTS = mxnet==1.9.1 numpy==1.23.5
.venv-tensorflow/installed: REQUIREMENTS = tensorflow-cpu==2.21.0
.venv-%/installed:
	python3 -m venv $(@D) && $(@D)/bin/python -m pip install --quiet $(REQUIREMENTS) && touch $@
