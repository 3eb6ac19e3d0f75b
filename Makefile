PYTHON ?= python3
# A version of torch, as `make test-torch TORCH=2.11`: it has an environment of its own. Without one, the newest supported.
TORCH =
VENV ?= .venv$(addprefix -torch-,$(TORCH))
# Ranks wait for each other, so one more than there are cores.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)
MINUTES ?= 30
# How many random reshards, and each how many-th plan between two shardings.
COUNT = 20000
EVERY = 1
# Ops of check-rules and op-table, and wrong placements of check-placements: all of them if empty.
OPS =
WRONG =
PLACEMENTS = spmdir/placements/[a-z]*.py
# Further options of the program of a target, such as `make decisions OPTIONS='--count 10'`; the last of an option counts.
OPTIONS =
# Files and folders of test-torch.
TORCH_TESTS = tests/torch_interop tests/importer tests/lowering tests/simulator tests/placements tests/runtime tests/checking
MODELS ?= llama,gpt2,vit,t5,odd_llama:sgd,odd_gpt2:sgd,odd_vit:sgd,odd_t5:sgd
BIN := $(VENV)/bin
BENCHMARKS ?= startup parse_speed memory memory_model fit_memory partitioner wire_bytes compile_time search_quality flatness reshard_bound redistribute schedule schedule_time outlined program_page gloo_step

# One thread a process: the tests already run one process a core, and ranks are processes too.
export OMP_NUM_THREADS ?= 1

.PHONY: env test test-torch test-cuda demo bench peers fuzz explore decisions reshards matrix check-rules check-placements op-table parsed-texts placements site style wheel-check

env: $(VENV)/.installed

$(VENV)/.created:
	$(PYTHON) -m venv $(VENV)
	touch $@

$(VENV)/.installed: pyproject.toml $(VENV)/.created
	$(BIN)/python -m pip install --quiet -e '.[test,demo]' $(patsubst %,'torch==%.*',$(TORCH))
	touch $@

# What only some targets need: one stamp an extra of pyproject.toml.
$(VENV)/.installed-%: pyproject.toml $(VENV)/.created
	$(BIN)/python -m pip install --quiet -e '.[$*]'
	touch $@

test: env
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/pytest -q -n $(WORKERS) --maxprocesses 8 --dist loadgroup

# What depends on the version of torch, with that version.
test-torch: env
	$(BIN)/pytest -q -n $(WORKERS) --maxprocesses 8 --dist loadgroup $(TORCH_TESTS) $(OPTIONS)

test-cuda: env
	$(BIN)/pytest -m cuda $(OPTIONS)

demo: $(VENV)/.installed-demo
	$(BIN)/python examples/demo.py

bench: env
	set -e; for name in $(BENCHMARKS); do $(BIN)/python -m benchmarks.$$name $(OPTIONS); done

# What DTensor, Shardy and spmdir decide for the same programs; Shardy is part of jaxlib.
peers: env $(VENV)/.installed-peers
	$(BIN)/python -m benchmarks.peers $(OPTIONS)

# Random programs, edited IR, malformed texts, special values and ranks that differ, on two cores; see docs/fuzzing.md.
fuzz: env
	$(BIN)/python -m tests.fuzz --minutes $(MINUTES) $(OPTIONS)

# The property tests with examples that are others in each run.
explore: env
	$(BIN)/pytest -q -n 2 --dist loadgroup -m hypothesis --hypothesis-profile=spmdir-explore $(OPTIONS)

# Random programs of fewer than ten ops, decided and compared with the best of all decisions; long.
decisions: env
	$(BIN)/python -m tests.search.compare_exhaustively $(OPTIONS)

# Random reshards between all placements, shipped ones and those of plug-ins: planned, emitted, simulated and compared.
# Before them, the plans of all pairs of shardings of a matrix with every shape on every machine.
reshards: env
	$(BIN)/python -m tests.reshard.every_pair --every $(EVERY)
	$(BIN)/python -m tests.lowering.random_reshards --count $(COUNT)

# Every strategy of every rule, on torch's own samples too; a quarter of an hour on two cores.
check-rules: env
	$(BIN)/python -m spmdir.tools.spmd check-rules $(or $(OPS),--all) $(OPTIONS)

# All laws of the shipped placements, and all of the wrong placements in the tests; minutes.
check-placements: env
	$(BIN)/python -m spmdir.tools.spmd check-placement $(PLACEMENTS) $(OPTIONS)
	$(BIN)/python -m tests.checking.placements.wrong_table $(WRONG)

# The table of torch's ops, as the installed torch has them; run it with each version that is supported. Their element types;
# minutes.
op-table: env
	$(BIN)/python -m spmdir.checking.rules.op_table
	$(BIN)/python -m spmdir.checking.rules.dtype_table write $(OPS)

# What the rules and rewrites of this package parse to; run it when one of them is edited.
parsed-texts: env
	$(BIN)/python -m spmdir.checking.write_parsed

# Every model × plan × mesh against one device; hours.
matrix: env
	$(BIN)/python -m benchmarks.correctness $(OPTIONS)

# Models with any placements that come with spmdir, to rounding; hours.
placements: env
	$(BIN)/python -m benchmarks.correctness --models $(MODELS) --meshes 4,2x3,2x2x2 --sizes 3x7,4x8 --limit 1e-12 \
		--plans $(shell seq -s, -f shipped%g 0 19),$(shell seq -s, -f decided%g 0 19) $(OPTIONS)

# README, docs/ and the docstrings as HTML in build/site; a broken link or a page that docs/index.md leaves out fails.
site: env $(VENV)/.installed-docs
	$(BIN)/sphinx-build -q -W --keep-going -E -c docs -d build/doctrees . build/site

# Phrases and names that are hard to read, by file: a report, not a limit.
style: env
	$(BIN)/python -m benchmarks.style $(OPTIONS)

# What would be published: built, looked through, installed in a fresh environment, used there.
wheel-check: env $(VENV)/.installed-release
	rm -rf build/dist
	$(BIN)/python -m build --quiet --outdir build/dist $(OPTIONS)
	$(BIN)/twine check --strict build/dist/*
	$(BIN)/check-wheel-contents build/dist
	$(BIN)/python -m tests.packaging.wheel_check build/dist
