"""The README's example runs."""

from __future__ import annotations

import re
from pathlib import Path


def test_the_example_runs(capsys):
    text = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)

    exec(compile(code, "README.md", "exec"), {})

    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("29 tokens in {'sliding': ")
    assert out[1] == "{'sliding': 0}"
