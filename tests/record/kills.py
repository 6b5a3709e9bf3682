"""Kill a command at its changes to files, and repeat it:

    STUDY_OUTPUT=FOLDER python -m tests.record.kills archive | replace | import | freeze ZIP [EVERY]

kills it at every change, or at every EVERYth, and at the last ones. It prints the number of
changes. A killed command does nothing more, not even its clean-up. After each kill the command is
repeated, and must leave the same files as an undisturbed one.
"""

import shutil
import sys
from functools import partial
from pathlib import Path

from lib.config import files
from lib.config.freeze import freeze
from lib.config.paths import PLANS, output_root
from lib.config.study import load_study
from lib.record.archive import archive
from lib.record.verify import Report
from lib.sweep import kaggle

CHANGES = ("os.rename", "os.remove", "os.rmdir", "os.mkdir")
WRITES = 0o3
"""Flags with which a file is opened to be written."""


class Killed(BaseException):
    """The kill happened here."""


class Machine:
    """Count the changes to files below a folder; raise at number `end` and at every later one."""

    def __init__(self, folder):
        self.folder, self.end, self.number = str(folder), None, 0
        sys.addaudithook(self.hook)

    def hook(self, event, args):
        is_write = event == "open" and args[2] & WRITES
        if self.end is None or not (is_write or event in CHANGES):
            return
        if event != "open" or str(args[0]).startswith(self.folder):
            self.number += 1
            if self.number >= self.end:
                raise Killed

    def kill(self, command, end):
        """Run a command until its change number `end`; False if it has fewer."""
        self.end, self.number = end, 0
        try:
            command()
        except Killed:
            return True
        finally:
            self.end = None
        return False


def contents(folder):
    """Return all files except hidden ones, which nothing reads, and those of a cache."""
    names = {path: path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}
    shown = {n: p for p, n in names.items() if not any(part[0] == "." for part in n.parts)}
    return {name: path.read_bytes() for name, path in shown.items() if name.parts[0] != "data"}


def kill_everywhere(machine, command, folder, check, every):
    """Kill a command at each `every`th change and at the last ones, each time from the same files;
    return how many changes there are."""
    kept = folder.with_name(f"{folder.name}-kept")
    shutil.copytree(folder, kept)
    command()
    undisturbed, number = contents(folder), 0

    def restore():
        for path in folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.copytree(kept, folder, dirs_exist_ok=True)

    while True:
        restore()
        before = contents(folder)
        if not machine.kill(command, number + every):
            if every == 1:
                return number
            every = 1  # try each of the last changes
            continue
        number += every
        check(before)
        command()
        found = contents(folder)
        different = sorted(n for n in found | undisturbed if found.get(n) != undisturbed.get(n))
        assert not different, f"after a kill at change {number}: {different}"


def protects(folder):
    """Check that a record from elsewhere is whole, or was replaced on request."""

    def check(before):
        kept = {name: text for name, text in before.items() if name.parts[0] == "papers"}
        archive(load_study("tiny"))  # without `replace`
        found = {n: text for n, text in contents(folder).items() if n.parts[0] == "papers"}
        is_foreign = (
            next(t for n, t in kept.items() if n.name == "MANIFEST.sha256") in found.values()
        )
        assert not is_foreign or found == kept

    return check


def main(word, file, every="1"):
    folder = output_root()
    files._flush = lambda path: None  # it would take longest
    machine, check = Machine(folder), lambda before: None
    if word == "import":
        kaggle.verify_run = lambda *_: ()  # it changes no file
        kaggle.verify_record = lambda *_: Report("tiny")
        command = partial(kaggle.import_study, Path(file))
    elif word == "freeze":
        text = (PLANS / "plan.yaml").read_text("utf-8")
        (PLANS / "plan.yaml").write_text(text.partition("frozen:")[0], "utf-8")
        command = partial(freeze, "plan.yaml", lambda _: ({"synthetic": "0" * 64}, []))
    else:
        command = partial(archive, load_study("tiny"), replace=word == "replace")
        check = protects(folder) if word == "replace" else check
    print(kill_everywhere(machine, command, folder, check, int(every)))


if __name__ == "__main__":
    main(*sys.argv[1:])
