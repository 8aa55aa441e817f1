"""Shared by all tests: quiet threads, the embedded model, and what transformers says about it."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # before torch starts its workers
