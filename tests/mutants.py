"""Change one place of `lib` at a time, drawn from mutmut's list, and name each change that no test
notices. It changes the checkout while it runs: take a clone for it.

    python -m tests.mutants 60 --seed 46 lib/train lib/stats lib/config lib/data lib/record
"""

import argparse
import difflib
import random
import subprocess
import sys
from pathlib import Path

from mutmut.mutation.file_mutation import create_mutations, deep_replace

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("count", type=int)
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("rooms", nargs="+", type=Path)
options = parser.parse_args()

mutants = []
for path in sorted(path for room in options.rooms for path in room.glob("*.py")):
    source = path.read_text("utf-8")
    module, mutations, *_ = create_mutations(str(path), source)
    mutants += [(path, source, module, mutation) for mutation in mutations]
drawn = random.Random(options.seed).sample(mutants, options.count)
pytest = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0"]
pytest += ["--ignore=tests/test_project.py"]  # it tests the text of the code
usual = ["-m", "not long and not benchmark"]
fast = ["-m", "not long and not benchmark and not slow", "tests"]
if subprocess.run([*pytest, *usual, "tests"]).returncode:
    sys.exit("the tests fail without any change")
killed = 0
for path, source, module, mutation in drawn:
    changed = deep_replace(module, mutation.original_node, mutation.mutated_node).code
    path.write_text(changed, "utf-8")
    own = Path("tests", path.parent.name, f"test_{path.stem}.py")
    stages = [[*usual, str(own)]] if own.is_file() else []
    stages += [
        [*usual, f"tests/{path.parent.name}"],
        fast,
    ]  # the tests most likely to notice come first
    noticed = any(
        subprocess.run([*pytest, *tests], capture_output=True, timeout=1800).returncode
        for tests in stages
    )
    path.write_text(source, "utf-8")
    killed += noticed
    diff = [*difflib.unified_diff(source.splitlines(), changed.splitlines(), n=0)][3:]
    print("killed  " if noticed else "SURVIVED", path, *diff, sep="\n    ", flush=True)
print(f"{killed} of {options.count} of {len(mutants)} were killed")
