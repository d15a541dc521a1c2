"""The only import of onnxruntime: its telemetry is disabled first, unless the user has set it."""

from __future__ import annotations

import os
import sys

TELEMETRY = "ORT_DISABLE_TELEMETRY"  # read by onnxruntime once, while it is imported

IMPORTED_BEFORE = "onnxruntime" in sys.modules and TELEMETRY not in os.environ
os.environ.setdefault(TELEMETRY, "1")

import onnxruntime  # noqa: E402 (the line above must run first)

if IMPORTED_BEFORE:
    onnxruntime.disable_telemetry_events()

__all__ = ["IMPORTED_BEFORE", "TELEMETRY", "onnxruntime"]
