"""What would stop a study is found before anything trains, for all studies at once."""

import json
import os
import socket
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from lib.run.cost import memory
from lib.workflow.preflight import load_and_check

from lib.data.suite import INSTALL
from lib.run.machine import prepare
from lib.run.model import GPT, count_parameters
from lib.study.study import Study, load_study
from lib.study.yaml import UserError
from lib.workflow import preflight
from tests.conftest import TINY

# Since Python 3.14 a name that is too long is one of no file.
TOO_LONG = "is neither a" if sys.version_info >= (3, 14) else "cannot be read: File name too long"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of parameter files, and the working folder; on a machine without a GPU."""
    monkeypatch.setattr("lib.study.study.PARAMS", tmp_path)
    monkeypatch.setattr("lib.study.plan.PLANS", tmp_path)
    monkeypatch.setattr("lib.run.machine.is_usable", lambda device: device == "cpu")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, name: str, **content: object) -> None:
    text = yaml.safe_dump(TINY | {"name": name, "seeds": [0]} | content)
    (folder / f"{name}.yaml").write_text(text, "utf-8")


def faults(*names: str) -> list[str]:
    with pytest.raises(UserError) as error:
        load_and_check(list(names))
    return f"error: {error.value}".split("\n")


def test_sound_studies_are_returned_each_once(folder: Path) -> None:
    write(folder, "one")
    write(folder, "two")
    studies = load_and_check(["one", "params/two.yaml", "one"])
    assert [study.name for study in studies] == ["one", "two"]
    assert all(isinstance(study, Study) for study in studies)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"plan": "absent.yaml"},
            "plan: there is no params/plans/absent.yaml (",
        ),
        ({"plan": "broken.yaml"}, "broken.yaml must hold fields"),
        ({"machine": {"device": "cuda"}}, "machine.device: 'cuda' does not work on this machine"),
        (
            {"corpus": "absent.txt"},
            "corpus.source: 'absent.txt' is neither a text file nor a ",
        ),
        ({"corpus": "~nobody-at-all/a.txt"}, "corpus.source: '~nobody-at-all/a.txt' names no user"),
        ({"corpus": "/dev/zero"}, "corpus.source: '/dev/zero' is a device; give"),
        ({"corpus": "fifo"}, "corpus.source: 'fifo' is a device; give the path"),
        ({"corpus": "socket"}, "corpus.source: 'socket' is a device; give the path"),
        ({"corpus": "folder"}, "corpus.source: folder 'folder' is empty; put .txt"),
        ({"corpus": "empty.txt"}, "empty.txt: empty or too short: 0 characters"),
        ({"corpus": "/proc/kmsg"}, "kmsg: empty or too short: 0 characters"),
        ({"corpus": "latin.txt"}, "latin.txt: not UTF-8 at byte 0; convert it"),
        ({"corpus": "wide.txt"}, "wide.txt: not UTF-8 at byte 0; convert it"),
        ({"corpus": "x" * 300}, f"corpus.source: '{'x' * 300}' {TOO_LONG}"),
        ({"corpus": "loop"}, "corpus.source: 'loop' is neither a text file nor a known corpus"),
        ({"corpus": "short.txt"}, "short.txt: too short: the dev part has 5 characters and"),
        (
            {"corpus": {"source": "synthetic", "fraction": 1e-5}},
            "synthetic: too short: the train part has 9 characters and model.block_size 16",
        ),
        (
            {"factors": {"model.block_size": [8, 60_000]}},
            "synthetic: too short: the train part has 19800 characters and model.block_size 60000",
        ),
    ],
)
def test_trouble_is_found_early_and_never_hides_anothers(
    content: dict[str, object], message: str, folder: Path
) -> None:
    (folder / "broken.yaml").write_text("[]")
    (folder / "folder").mkdir()
    (folder / "empty.txt").touch()
    with (folder / "large.txt").open("w") as file:
        file.truncate(2 * 10**9)
    (folder / "latin.txt").write_bytes("é\n".encode("latin-1") * 100)
    (folder / "wide.txt").write_bytes("é\n".encode("utf-16") * 100)
    (folder / "short.txt").write_text("a" * 100)
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "fifo")
    write(folder, "tried", **content)
    write(folder, "other", training={"iteration": 1})
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind("socket")
        found = faults("other", "tried", "nosuch")
    assert found[0].startswith("error: other.yaml: training.iteration: 'iteration' is unknown")
    assert found[1].startswith("error: study: 'nosuch' is unknown")
    assert found[2].startswith(f"error: tried.yaml: {message}")
    assert len(found) == 3


def having(monkeypatch: pytest.MonkeyPatch, cores: int, memory: int) -> None:
    """Stand for a machine with so many cores, and so many bytes of memory."""
    monkeypatch.setattr("os.cpu_count", lambda: cores)
    sizes = {"SC_PHYS_PAGES": memory // 4096, "SC_PAGE_SIZE": 4096}
    monkeypatch.setattr("os.sysconf", sizes.__getitem__)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            {"machine": {"threads": 65_536}},
            "machine.threads: 65536 is more than the 8 cores of this machine; use auto or at most "
            "8",
        ),
        ({"machine": {"threads": 9}}, "machine.threads: 9 is more than the 8 cores of this"),
        (
            {"model": TINY["model"] | {"n_embd": 100_000}},
            "model: with n_embd 100000, n_layer 2, block_size 16 and 60 symbols a run needs "
            "3,840.17 GB of memory for 240,010,400,000 parameters and their optimizer and 870.5 MB "
            "for activations of 4 sequences, and this machine has 32.00 GB; reduce model.n_embd, "
            "model.n_layer or the vocabulary",
        ),
        (
            {"factors": {"model.n_embd": [16, 64_000]}},
            "model: with n_embd 64000, n_layer 2, block_size 16 and 60 symbols a run needs 1,572",
        ),
        (
            {"factors": {"model.mlp_ratio": [4, 100]}, "model": TINY["model"] | {"n_embd": 2560}},
            "model: with n_embd 2560, n_layer 2, block_size 16 and 60 symbols a run needs 42.79 GB",
        ),
        (
            {
                "model": TINY["model"] | {"block_size": 1024, "n_embd": 512},
                "training": TINY["training"] | {"batch_size": 1024},
                "machine": {"micro_batch_size": 1024},
            },
            "activations of 1024 sequences, and this machine has 32.00 GB; reduce model.block_size "
            "or machine.micro_batch_size",
        ),
    ],
)
def test_what_needs_more_than_the_machine_has_is_refused_before_anything_runs(
    content: dict[str, object], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    having(monkeypatch, cores=8, memory=32 * 10**9)
    write(folder, "large", **content)
    (fault,) = faults("large")
    assert message in fault
    assert fault.startswith("error: large.yaml: m")
    (on_a_cluster,) = load_and_check(["large"], is_local=False)
    assert on_a_cluster.name == "large"


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_a_run_may_take_all_cores_and_all_memory(
    positions: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = TINY["model"] | {"n_embd": 64, "positions": positions}
    write(folder, "fits", model=model, machine={"threads": 8, "processes": 4})
    config = next(iter(load_study("fits").arms())).config
    parameters = count_parameters(GPT(config.model, 60, None))
    needed = 4 * sum(
        memory(config, 60, parameters, 1, "cpu").values()
    )  # every process holds a model
    having(monkeypatch, cores=8, memory=int(needed) + 4096)
    assert [study.name for study in load_and_check(["fits"])] == ["fits"]
    having(monkeypatch, cores=8, memory=int(0.95 * needed))
    assert "model: with n_embd 64, n_layer 2, block_size 16" in faults("fits")[0]


@pytest.mark.slow  # imports the harness
def test_a_stock_task_that_the_harness_lacks_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lib.data.tokens.output_root", lambda: folder)
    monkeypatch.setattr("lib.run.lm_eval._manager", lambda _: SimpleNamespace(all_tasks=["piqa"]))
    evaluation = TINY["evaluation"] | {"tasks": ["piqq"]}
    write(folder, "asks", corpus=TINY["corpus"] | {"tokenizer": "bytes"}, evaluation=evaluation)
    (fault,) = faults("asks")
    assert fault == ("error: asks.yaml: evaluation.tasks: 'piqq' is unknown; did you mean 'piqa'?")


def test_stock_tasks_without_the_harness_are_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lib.data.tokens.output_root", lambda: folder)
    monkeypatch.setattr(preflight, "has_harness", lambda: False)
    evaluation = TINY["evaluation"] | {"tasks": ["piqa"]}
    write(folder, "asks", corpus=TINY["corpus"] | {"tokenizer": "bytes"}, evaluation=evaluation)
    (fault,) = faults("asks")
    assert fault == f"error: asks.yaml: evaluation.tasks: need lm_eval; {INSTALL}, or remove them"


def test_all_that_is_wrong_with_a_study_is_said(folder: Path) -> None:
    write(folder, "bad", plan="a.yaml", corpus="c.txt", machine={"device": "cuda"})
    assert [fault.split()[2] for fault in faults("bad")] == [
        "plan:",
        "corpus.source:",
        "machine.device:",
    ]


def test_a_clusters_device_is_not_sought_here(folder: Path) -> None:
    write(folder, "far", machine={"device": "cuda"})
    assert [study.name for study in load_and_check(["far"], is_local=False)] == ["far"]


def test_a_file_that_may_not_be_read_is_named(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "secret.txt").write_text("a" * 1000)
    write(folder, "bad", corpus="secret.txt")

    read = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.suffix == ".txt":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    (fault,) = faults("bad")
    assert "corpus.source: 'secret.txt' cannot be read: Permission denied" in fault


def test_a_study_begun_on_another_device_is_not_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "study_folder", lambda name: tmp_path / name)
    result = tmp_path / "smoke" / "none" / "seed-0" / "result.json"
    result.parent.mkdir(parents=True)
    for device in ("cpu", "cuda"):
        result.write_text(json.dumps({"provenance": {"device": device}}), "utf-8")
        if device == prepare(next(iter(load_study("smoke").arms())).config).device:
            assert [study.name for study in load_and_check(["smoke"])] == ["smoke"]
        else:
            with pytest.raises(UserError, match=f"runs of it were made on {device}, and") as error:
                load_and_check(["smoke"])
            assert f": set machine.device: {device}, or delete smoke" in str(error.value)
