"""The README's example runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest


@pytest.mark.usefixtures("cluster")
def test_the_example_runs(capsys):
    text = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)

    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})

    # 20 layers of 8,192 bytes a block: 67,108,864 // 163,840 blocks; 256 hold 4,096 tokens
    assert capsys.readouterr().out.splitlines() == ["{'full': 409} 1 sequences at once", "[409, 409]"]
