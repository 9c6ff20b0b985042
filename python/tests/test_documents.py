"""The examples of docs/python.md, run as they stand."""

import os
import pathlib
import re
import subprocess
import sys

import pytest

_PAGE = pathlib.Path(os.environ.get("DAFS_SOURCES", pathlib.Path(__file__).parents[2])) / "docs" / "python.md"
_EXAMPLES = re.findall(r"```python\n(.*?)```", _PAGE.read_text(), re.S)


@pytest.mark.parametrize("number", range(len(_EXAMPLES)))
def test_an_example_runs(number, tmp_path):
    program = _EXAMPLES[number].replace("/srv/data", str(tmp_path))
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert (run.returncode, run.stderr) == (0, "") and run.stdout, run


def test_there_are_examples():
    assert len(_EXAMPLES) == 6
