VENV ?= .venv
PY = $(VENV)/bin/python

# Compiled modules are kept, also where the environment says otherwise: tests and the demo start many processes.
export PYTHONDONTWRITEBYTECODE =

# Two more than cores, since tests of processes wait; each takes 1 GiB.
IN_PARALLEL = -n $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) + 2 ))) --maxprocesses 5 --dist worksteal

# The pure core: its branch coverage is at least 98 %.
CORE = $(addprefix --cov=ps_server.,agreement.gate shard.partition.machine coordinator.jobs.member \
	coordinator.jobs.roster coordinator.jobs.tables coordinator.jobs.job) --cov=ps_wire.spec.plan

.PHONY: install demo test check chaos fuzz stress late free-threaded mutants unchanged soak bench bench-peers image protos api docs dist matrix clean

install: $(VENV)/installed
	@echo "installed into $(VENV)"

demo: $(VENV)/installed
	$(VENV)/bin/ps-lab demo

test: $(VENV)/installed-test
	$(PY) -m pytest $(IN_PARALLEL) --durations 15

check: $(VENV)/installed-test
	PATH="$(CURDIR)/$(VENV)/bin:$$PATH" sh -ec 'ruff check . && ruff format --check . && mypy && lint-imports && python -m pytest $(IN_PARALLEL) -m "not integration" $(CORE) --cov-branch --cov-fail-under=98'

# Faults drawn from a seed, over real processes; what fails says how to run it again.
chaos: $(VENV)/installed-test
	$(PY) -m tests.faults.chaos --seed $(or $(SEED),1) --minutes $(or $(MINUTES),2)

# Frames and control messages that are nearly right, drawn from a seed; what is found says how to run it again.
fuzz: $(VENV)/installed-test
	$(PY) -m tests.security.fuzz --seed $(or $(SEED),1) --count $(or $(COUNT),1000000) --minutes $(or $(MINUTES),60)

# Threads change all the time, and give way at locks, by a seed that is printed; TESTS may name fewer.
STRESSED = tests/component tests/contracts $(addprefix tests/unit/ps_server/,shard/table/test_table.py \
	shard/partition/test_cell_figures.py shard/transport/test_session.py shard/table/test_cuts.py process/test_closing_pool.py \
	shard/test_service.py coordinator/test_beside.py test_lanes.py) $(addprefix tests/unit/ps_worker/,group/test_beside.py \
	group/test_channel.py group/test_stage_traffic.py exchange/test_early_pushes.py exchange/test_in_flight.py)

stress: $(VENV)/installed-test
	$(PY) -m pytest $(IN_PARALLEL) --stress=$(SEED) $(or $(TESTS),$(STRESSED))

# Threads stand still now and then, by a seed that is printed; who does so takes no core.
late: $(VENV)/installed-test
	$(PY) -m pytest -n $(shell echo $$(( 4 * $$(getconf _NPROCESSORS_ONLN) ))) --dist worksteal --late=$(SEED) $(or $(TESTS),tests/component tests/contracts)

# Tests of what needs neither torch nor grpc, on a Python without its lock, where there is one.
PYTHON_FREE ?= $(firstword $(foreach name,python3.14t python3.13t,$(shell command -v $(name))))
PURE = $(addprefix tests/unit/ps_wire/,test_text.py $(addprefix spec/test_,address.py consistency.py nonfinite.py plan.py \
	staleness.py table.py) frames/test_frame.py frames/test_queue.py frames/test_messages.py access/test_token.py \
	process/test_trace.py process/test_watched.py)
PURE += $(addprefix tests/unit/ps_server/,agreement/test_gate.py agreement/test_cut_points.py shard/partition/test_cut.py \
	shard/partition/test_machine.py coordinator/jobs/test_action_queue.py coordinator/jobs/test_leases.py \
	coordinator/jobs/test_roster.py coordinator/fleet/test_registry.py)

ifeq ($(PYTHON_FREE),)
free-threaded:
	@echo "make free-threaded is skipped: there is no python3.14t or python3.13t on PATH (PYTHON_FREE=... names one)"
else
free-threaded: .venv-free/installed
	.venv-free/bin/python -X gil=0 -m pytest $(PURE)
endif

.venv-free/installed:
	$(PYTHON_FREE) -m venv $(@D) && $(@D)/bin/python -m pip install --quiet --only-binary numpy,hypothesis numpy protobuf hypothesis pytest pytest-asyncio pytest-randomly pytest-timeout && touch $@

# Deliberate faults, one after the other; what no test sees is said.
mutants: $(VENV)/installed-test
	$(PY) -m tests.mutants $(if $(ONLY),--only '$(ONLY)') $(if $(FILE),--file '$(FILE)') $(if $(RESULTS),--results '$(RESULTS)') --jobs $(or $(JOBS),1)

# What a change of form must leave as it was: weights, states, ledgers, files, frames, texts; against a commit.
unchanged: $(VENV)/installed-test
	$(PY) -m tests.unchanged --before $(or $(BEFORE),HEAD~1) $(if $(OUT),--out '$(OUT)')

# All tests, again and again beside busy loops: what fails now and then.
soak: $(VENV)/installed-test
	$(PY) -m tests.soak --runs $(or $(RUNS),20) --busy $(or $(BUSY),4) -- $(IN_PARALLEL) $(TESTS)

bench: $(VENV)/installed-test
	$(PY) benchmarks/run.py

# Peers that do not fit into our environment; MXNet's last release needs Python 3.11 or older.
bench-peers: .venv-mxnet/installed .venv-tensorflow/installed

# The container image, and a job in it; BUILD="--build-arg TORCH_INDEX_URL=..." and RUN="--ulimit ..." are passed on.
image: $(VENV)/installed-test
	$(PY) -m tests.deploy.image --build '$(BUILD)' --run '$(RUN)'

protos: $(VENV)/installed-test
	$(PY) protos/generate.py

api: $(VENV)/installed-test
	$(PY) docs/generate.py
	$(PY) docs/generate_reference.py
	$(PY) docs/generate_pipeline.py

# The sdist, and the wheel that is made of it, in build/dist; then the demo's script runs from the wheel alone.
dist: $(VENV)/installed-test
	$(PY) -m tests.dist

# Each supported Python that is on PATH, with the lowest and the newest torch; what does not install is said.
matrix: $(VENV)/installed-test
	$(PY) -m tests.matrix $(foreach it,$(PYTHONS),--python $(it)) $(foreach it,$(TORCH),--torch '$(it)')

# The pages as a site, in an environment of its own. What reads it fetches nothing from elsewhere.
docs: .venv-docs/installed
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict --quiet
	@echo "the pages are in build/site; to read them with the search: python3 -m http.server --directory build/site"

.venv-docs/installed: pyproject.toml constraints.txt
	python3 -m venv $(@D) && $(@D)/bin/python -m pip install --quiet --upgrade 'pip>=25.1' && $(@D)/bin/python -m pip install --quiet -c constraints.txt --group docs && touch $@

clean:
	rm -rf $(VENV) .venv-docs .venv-free .venv-mxnet .venv-tensorflow build *.egg-info

$(VENV)/bin/python:
	python3 -m venv $(VENV)

PACKAGE = pyproject.toml setup.py ps_wire/process/kernels.c ps_worker/memory/tensor_list.cpp constraints.txt

$(VENV)/installed: $(PACKAGE) $(VENV)/bin/python
	$(PY) -m pip install --quiet -c constraints.txt -e '.[certs,compare,examples]' && touch $@

# All in one go. Modules are compiled when they are first imported: most of what these packages bring never is.
$(VENV)/installed-test: $(PACKAGE) $(VENV)/bin/python
	$(PY) -m pip install --quiet --upgrade 'pip>=25.1'
	$(PY) -m pip install --quiet --no-compile -c constraints.txt -e '.[certs,compare,examples,frameworks]' --group test --group check
	@touch $(VENV)/installed $@

.venv-mxnet/installed: REQUIREMENTS = mxnet==1.9.1 numpy==1.23.5
.venv-tensorflow/installed: REQUIREMENTS = tensorflow-cpu==2.21.0
.venv-%/installed:
	python3 -m venv $(@D) && $(@D)/bin/python -m pip install --quiet $(REQUIREMENTS) && touch $@
