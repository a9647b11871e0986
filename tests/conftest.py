from __future__ import annotations

import pytest

for kit in ("channel", "compressor", "plane", "connector"):
    pytest.register_assert_rewrite(f"stagelink.plugins.conformance.{kit}")
