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
command = [sys.executable, "-m", "pytest", "-q", "-x", "-m"]
command += ["not long and not benchmark and not slow"]
if subprocess.run([*command, "tests"]).returncode:
    sys.exit("the tests fail without any change")
killed = 0
for path, source, module, mutation in drawn:
    changed = deep_replace(module, mutation.original_node, mutation.mutated_node).code
    path.write_text(changed, "utf-8")
    own = Path("tests", path.parent.name, f"test_{path.stem}.py")
    tests = [*([str(own)] if own.is_file() else []), f"tests/{path.parent.name}", "tests"]
    ignored = ["--ignore=tests/test_thin.py", "--ignore=tests/test_project.py"]  # of the text
    done = subprocess.run([*command, *ignored, *tests], capture_output=True, timeout=1200)
    noticed = done.returncode != 0
    path.write_text(source, "utf-8")
    killed += noticed
    diff = [*difflib.unified_diff(source.splitlines(), changed.splitlines(), n=0)][3:]
    print("killed  " if noticed else "SURVIVED", path, *diff, sep="\n    ", flush=True)
print(f"{killed} of {options.count} of {len(mutants)} were killed")
