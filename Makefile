# Every target sets up what it needs first; 'make help' lists them.

PYTHON_ENV := .venv/bin/python
export PYTHONHASHSEED := 0

# Several tests run at once: more than one BLAS thread in each would only make them wait for each other.
test nightly sim: export OPENBLAS_NUM_THREADS := 1

# Variables of 'make sim' and the tests; see 'make help'.
SIM ?=
TEST ?=
SEED ?=
WAVES ?=
JOBS ?= 2
PRESET ?= smollm2 ulx3s
BOARD ?= ulx3s-85f
SEEDS ?= 1
FPGA_OPTIONS ?=
PORT ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo test nightly sim lint synth fpga flash selftest clean

help: ## print this list
	@echo "usage: make TARGET [VARIABLE=value ...]"
	@echo
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-10s %s\n", $$1, $$2 }'
	@echo
	@echo "variables:"
	@echo "  SIM=icarus|verilator|both   simulators of 'sim' and 'test' (both)"
	@echo "  TEST=dsq.quantizer          block of 'sim': a full name, a stem, a directory or a pytest path (all)"
	@echo "  SEED=7                      seed of random vectors (a random one, printed)"
	@echo "  WAVES=1                     write wave files: FST on Icarus, VCD on Verilator"
	@echo "  JOBS=2                      tests that run at once"
	@echo "  PRESET='smollm2 ulx3s'      presets that 'synth' synthesizes (these two, ten minutes each; tiny takes two)"
	@echo "  BOARD=ulx3s-85f             board of 'fpga', 'flash' and 'selftest'; 'python -m fpga.build --list' has them"
	@echo "  SEEDS=1,2,3                 seeds of the placement by 'fpga' (1)"
	@echo "  FPGA_OPTIONS=--synth-only   further options of 'python -m fpga.build' for 'fpga'"
	@echo "  PORT=/dev/ttyUSB0           serial port of 'selftest'; without one, a simulated board is tested"
	@echo "  PYTHON=python3.12           interpreter that 'setup' makes .venv from (the first suitable one)"

setup: ## install what is needed into .venv (and, as root on Debian, the simulator from the distribution)
	@scripts/setup

demo: setup ## compress the KV cache of a real model, check the RTL against golden, plot the result
	@$(PYTHON_ENV) -m sim.demo

test: setup lint ## lint, type check and all tests on both simulators
	@mkdir -p build/junit
	SIM='$(SIM)' SEED='$(SEED)' WAVES='$(WAVES)' $(PYTHON_ENV) -m pytest -m "not nightly" -n $(JOBS) -q \
		--junit-xml=build/junit/pytest.xml

nightly: setup ## all tests, the long ones too, with fresh random vectors, the full evaluation, place and route of a board
	@mkdir -p build/junit build/nightly
	SIM='$(SIM)' SEED='$(SEED)' $(PYTHON_ENV) -m pytest -n $(JOBS) -q --junit-xml=build/junit/nightly.xml
	OPENBLAS_NUM_THREADS=$(JOBS) $(PYTHON_ENV) -m golden.evaluate --context 4096 --method all --json build/nightly/evaluation.json \
		--plot build/nightly/evaluation.png
	$(PYTHON_ENV) -m fpga.build --board ulx3s-85f --seeds 1,2,3

sim: setup ## run the simulator tests of one block or of all: SIM= TEST= SEED= WAVES=
	@$(PYTHON_ENV) -m sim.runner --test '$(TEST)' --sim '$(SIM)' --seed '$(SEED)' --waves '$(WAVES)' --jobs '$(JOBS)'

lint: setup ## check style (ruff) and types of golden/ (mypy)
	@$(PYTHON_ENV) -m ruff check --output-format concise
	@$(PYTHON_ENV) -m mypy

synth: setup ## synthesize the blocks for ECP5 and write LUT, DSP and RAM counts to fpga/results/
	@set -e; for preset in $(PRESET); do $(PYTHON_ENV) -m fpga.synth --all --preset $$preset; done

fpga: setup ## synthesize, place and route the design of a board: bitstream, cells and clock rates
	@$(PYTHON_ENV) -m fpga.build --board '$(BOARD)' --seeds '$(SEEDS)' $(FPGA_OPTIONS)

flash: setup ## load the bitstream of a board over USB
	@$(PYTHON_ENV) -m fpga.flash --board '$(BOARD)'

selftest: setup ## real data through a board, or a simulated one, compared with golden bit for bit
	@$(PYTHON_ENV) -m fpga.selftest $(if $(PORT),--port '$(PORT)' --board '$(BOARD)',--simulate)

clean: ## remove build/ (keeps .venv)
	rm -rf build
