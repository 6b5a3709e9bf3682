"""The final weights of a study's runs in one archive, fit for a release page.

    ./run_all.sh pack STUDY

The same runs give the same bytes. Inside: per run its weights, result and tokenizer; how to load
one; the parameters; and the hash of every file.
"""

import argparse
import hashlib
import io
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

from safetensors.torch import save

from lib.data.tokenizer_json import tokenizer_json
from lib.publish.archive import MANIFEST
from lib.run.finished import read_finished
from lib.study.config import Study, load_study
from lib.study.errors import exit_status
from lib.study.paths import PARAMS, shown, study_folder
from lib.workflow.texts import text_of


def pack(study: Study, target: Path) -> int:
    """Write the archive of a study; return how many files it holds beside its manifest.

    Raises UnfinishedError for a run whose result or weights are not there, and CorpusError.
    """
    partial = target.with_name(f".{target.name}")
    hashes = []
    partial.parent.mkdir(parents=True, exist_ok=True)
    try:
        with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as archive:
            for name, content in _contents(study):
                hashes.append(f"{hashlib.sha256(content).hexdigest()}  {name}\n")
                _add(archive, f"{study.name}/{name}", content)
            _add(archive, f"{study.name}/{MANIFEST}", "".join(hashes).encode())
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)
    return len(hashes)


def _contents(study: Study) -> Iterator[tuple[str, bytes]]:
    """Yield the files of an archive, by their names in it."""
    runs = {f"{arm.id}/seed-{seed}": (arm.id, seed) for arm in study.arms() for seed in study.seeds}
    readme = text_of("archive.md.j2", study=study, manifest=MANIFEST, folders=list(runs))
    yield "README.md", readme.encode()
    yield f"{study.name}.yaml", (PARAMS / f"{study.name}.yaml").read_bytes()
    for folder, (arm, seed) in runs.items():
        run = read_finished(study.name, arm, seed)
        yield f"{folder}/result.json", (run.folder / "result.json").read_bytes()
        yield f"{folder}/tokenizer.json", tokenizer_json(run.corpus).encode()
        yield f"{folder}/weights.safetensors", save(run.model.state_dict())


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    """Add a file that tells nothing of when and by whom it was written."""
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(content), 0o644
    archive.addfile(entry, io.BytesIO(content))


@exit_status
def main(words: list[str]) -> None:
    """Pack one study."""
    parser = argparse.ArgumentParser(prog="./run_all.sh pack", description=__doc__)
    parser.add_argument("study", help="name or path of a parameter file")
    options = parser.parse_args(words)
    study = load_study(options.study)
    target = study_folder(study.name).with_name(f"{study.name}-weights.tar")
    number = pack(study, target)
    print(f"{shown(target)}: {number} files and their hashes; its README.md says how to load a run")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
