import math
import os
import signal
import subprocess
import sys
from functools import partial

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cosine
from torch.nn import functional as F

from lib.config.errors import UserError
from lib.config.paths import ROOT
from lib.config.schema import RunConfig
from lib.data.text import sample_batch
from lib.train import machine
from lib.train import trainer as training
from lib.train.evaluate import measure
from lib.train.machine import derive_seed, random_stream
from lib.train.model import GPT, weights_digest
from lib.train.optim import get_lr, optimizer_groups
from lib.train.trainer import Trainer, initial_hashes
from tests.conftest import change
from tests.train.samples import assert_same, begun, killed_at, train


@pytest.mark.parametrize(
    ("step", "optimizer"), [(1, "adamw"), (5, "adamw"), (7, "adamw"), (12, "adamw"), (7, "muon")]
)
def test_killed_run_resumes_to_the_bit(step, optimizer, tiny, corpus, tmp_path):
    config = change(tiny, "training", optimizer=optimizer)
    with killed_at(step):
        train(config, corpus, 0, tmp_path / "run")
    resumed = train(config, corpus, 0, tmp_path / "run")
    assert_same(resumed, train(config, corpus, 0, tmp_path / "whole"))
    last_checkpoint = (step - 1) // 5 * 5
    assert resumed.resumed_at == ([last_checkpoint] if last_checkpoint else [])


def test_interrupted_run_resumes_to_the_same_weights(tiny, corpus, tmp_path, undisturbed, capsys):
    """The signal of Ctrl-C and of a notebook's stop button comes in the middle of a step."""
    usual = signal.getsignal(signal.SIGINT)

    def interrupt(config, step):
        if step == 6:
            os.kill(os.getpid(), signal.SIGINT)
        return get_lr(config, step)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "get_lr", interrupt)
        stopped = train(tiny, corpus, 0, tmp_path / "run")
    assert (stopped.step, stopped.finished, len(stopped.trace)) == (7, False, 7)
    assert "Stopped at step 7 of 12; run this cell again" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGINT) is usual
    with pytest.raises(UserError, match="training stopped at step 7; train the run to its end"):
        measure(stopped)
    resumed = train(tiny, corpus, 0, tmp_path / "run")
    assert resumed.resumed_at == [7]
    assert_same(resumed, undisturbed)


def test_report_gets_every_row_and_every_evaluation(tiny, corpus, tmp_path):
    rows, points = [], []

    def watch(row, point):
        rows.append(row)
        points.extend([] if point is None else [point])

    trained = train(tiny, corpus, 0, tmp_path / "run", watch)
    assert rows == trained.rows
    assert points == trained.points[1:]  # the first is of the untrained model
    assert [point["step"] for point in points] == [4, 8, 12]


def test_other_parameters_neither_resume_nor_delete_a_checkpoint(tiny, corpus, tmp_path):
    for config in (tiny, change(tiny, "training", learning_rate=2e-3), tiny):
        assert train(config, corpus, 0, tmp_path).resumed_at == []
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


@pytest.mark.parametrize("interval", [1, 50])
def test_evaluation_cadence_never_changes_training(interval, tiny, corpus, tmp_path, undisturbed):
    other = train(change(tiny, "evaluation", interval=interval), corpus, 0, tmp_path / "run")
    assert weights_digest(other.model) == weights_digest(undisturbed.model)
    steps = sorted({0, 12, *range(0, 13, interval)})
    assert other.curve["step"].tolist() == steps


def test_arms_of_a_seed_share_weights_batches_and_budget(tiny, corpus, tmp_path, undisturbed):
    arm = train(change(tiny, "model", embedding_norm="layernorm"), corpus, 0, tmp_path / "arm")
    other = train(tiny, corpus, 1, tmp_path / "other")
    for name in ("initial_weights", "batches"):
        assert getattr(arm, name) == getattr(undisturbed, name) != getattr(other, name)
    for seed, run in ((1, other), (0, arm), (0, undisturbed)):
        of_run = run.initial_weights, run.batches
        assert initial_hashes(run.config, corpus, seed, 12) == of_run
        assert initial_hashes(run.config, corpus, seed, 5)[1] != run.batches
    assert arm.trace["tokens"].iloc[-1] == 12 * 4 * 16
    assert weights_digest(arm.model) != weights_digest(undisturbed.model)


@pytest.mark.parametrize("dropout", [0.0, 0.2])
def test_training_is_adamw_on_the_mean_loss_of_its_batches(dropout, tiny, corpus, tmp_path):
    """The same steps written out: draw, cross-entropy, gradient norm, torch's plain AdamW. Each
    step seeds its dropout again."""
    config = change(tiny, "model", dropout=dropout)
    trained = train(config, corpus, 0, tmp_path)
    model = GPT(config.model, corpus.vocab_size, random_stream(0, "weights"))
    settings = {"lr": 1e-3, "betas": (0.9, 0.95), "eps": 1e-8}
    optimizer = torch.optim.AdamW(optimizer_groups(model, 0.1), **settings, foreach=False)
    model.train()
    stream, losses, norms = random_stream(0, "batches"), [], []
    for step in range(12):
        x, y = sample_batch(corpus.train, corpus.ends["train"], 4, 16, stream)
        torch.manual_seed(derive_seed(0, f"dropout/{step}/0"))
        loss = F.cross_entropy(model(x).view(-1, corpus.vocab_size), y.view(-1))
        optimizer.zero_grad()
        loss.backward()
        norms.append(math.sqrt(sum(float(p.grad.square().sum()) for p in model.parameters())))
        losses.append(loss.item())
        optimizer.step()
    np.testing.assert_allclose(trained.trace["loss"], losses, rtol=1e-5)
    np.testing.assert_allclose(trained.trace["grad_norm"], norms, rtol=1e-4)
    second = torch.cat([s["exp_avg_sq"].flatten() for s in optimizer.state.values()])
    last = trained.trace.iloc[-1]
    assert last["second_moment_mean"] == pytest.approx(float(second.mean()), rel=1e-4)
    assert last["second_moment_max"] == pytest.approx(float(second.max()), rel=1e-4)


def orthogonal(matrix):
    """Five Newton-Schulz steps with the coefficients of Jordan's post, on the wide side."""
    x = matrix.mT if matrix.shape[0] > matrix.shape[1] else matrix
    x = x / x.norm()
    for _ in range(5):
        gram = x @ x.mT
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.mT if matrix.shape[0] > matrix.shape[1] else x


def test_muon_steps_on_matrices_and_adamw_on_the_rest(float64, tiny, corpus, tmp_path, monkeypatch):
    """Muon written out: Nesterov momentum of 0.95, made orthogonal, scaled to a root mean square of
    0.2 times the rate, which follows the schedule. (torch rounds to bfloat16: some 4 % of the
    path.)"""
    monkeypatch.setattr(torch.Tensor, "bfloat16", torch.Tensor.double)
    fields = {"schedule": "warmup_stable_decay", "warmup_iterations": 3, "decay_fraction": 0.5}
    fields |= {"optimizer": "muon", "muon_learning_rate_ratio": 3.0, "learning_rate": 3e-3}
    config = change(tiny, "training", **fields, gradient_clip=0.5)
    trained = train(config, corpus, 0, tmp_path)
    model = GPT(config.model, corpus.vocab_size, random_stream(0, "weights"))
    matrices, *rest = optimizer_groups(model, 0.1)
    optimizer = torch.optim.AdamW(rest, betas=(0.9, 0.95), eps=1e-8, foreach=False)
    moments = [torch.zeros_like(p) for p in matrices["params"]]
    stream = random_stream(0, "batches")
    for step in range(12):
        x, y = sample_batch(corpus.train, corpus.ends["train"], 4, 16, stream)
        model.zero_grad()
        F.cross_entropy(model(x).view(-1, corpus.vocab_size), y.view(-1)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.param_groups[0]["lr"] = rate = get_lr(config.training, step)
        optimizer.step()
        with torch.no_grad():
            for p, moment in zip(matrices["params"], moments, strict=True):
                moment.mul_(0.95).add_(0.05 * p.grad)
                update = orthogonal(0.05 * p.grad + 0.95 * moment)
                p.mul_(1 - 3 * rate * 0.1).sub_(3 * rate * 0.2 * math.sqrt(max(p.shape)) * update)
    for ours, theirs in zip(model.parameters(), trained.model.parameters(), strict=True):
        torch.testing.assert_close(theirs, ours, rtol=0, atol=1e-9)
    largest = max(float(state["exp_avg_sq"].max()) for state in optimizer.state.values())
    assert trained.trace["second_moment_max"].iloc[-1] == pytest.approx(largest, rel=1e-4)
    groups = {name for name in trained.curve if name.startswith("second_moment_")}
    assert groups == {"second_moment_wte", "second_moment_wpe", "second_moment_ln"}


@pytest.mark.parametrize(
    ("section", "fields", "rtol"),
    [
        ("machine", {"micro_batch_size": 1}, 1e-4),
        ("machine", {"activation_checkpointing": True}, 0),
        ("training", {"precision": "bf16"}, 0.02),
        ("training", {"precision": "fp16"}, 0.02),
        pytest.param("machine", {"compile": True}, 1e-6, marks=pytest.mark.long),
    ],
)
def test_other_rounding_stays_close(section, fields, rtol, tiny, corpus, tmp_path, undisturbed):
    """Settings that only change rounding train close to a plain run."""
    other = train(change(tiny, section, **fields), corpus, 0, tmp_path)
    np.testing.assert_allclose(other.trace["loss"], undisturbed.trace["loss"], rtol=rtol)
    assert (other.batches, other.diverged_at) == (undisturbed.batches, None)
    assert other.model.transformer.wte.weight.dtype == torch.float32
    lower = "precision" in fields
    assert (other.trace["loss"].tolist() != undisturbed.trace["loss"].tolist()) or not lower
    if not lower:
        norms = (run.trace["grad_norm"] for run in (other, undisturbed))
        np.testing.assert_allclose(*norms, rtol=1e-4)
    assert other.provenance.machine.compile == ("compile" in fields)


@pytest.mark.slow
def test_neither_training_nor_counting_weights_imports_a_compiler(tmp_path):
    """Importing it takes a second, in every run and at each start of a sweep."""
    code = (
        "import sys, pathlib, tests.conftest as shared, tests.train.samples as samples\n"
        "config = shared.RunConfig.model_validate(shared.TINY)\n"
        "corpus = shared.load_corpus(config.corpus)\n"
        "samples.train(config, corpus, 0, pathlib.Path(sys.argv[1]))\n"
        "shapes = samples.GPT(config.model, 60, None)\n"
        "sys.exit('torch._dynamo' in sys.modules or 'sympy' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT).returncode == 0


def test_clipping_changes_updates_and_not_the_recorded_norm(tiny, corpus, tmp_path, undisturbed):
    clipped = train(change(tiny, "training", gradient_clip=0.01), corpus, 0, tmp_path / "clipped")
    assert clipped.trace["grad_norm"][0] == undisturbed.trace["grad_norm"][0] > 0.01
    # AdamW cancels the scale of a gradient, not that of its square.
    assert clipped.trace["second_moment_mean"][0] < undisturbed.trace["second_moment_mean"][0] / 100


@pytest.mark.parametrize(("iterations", "diverged_at"), [(12, 2), (1, 1)])
def test_divergence_is_the_same_result_in_a_rerun(iterations, diverged_at, tiny, corpus, tmp_path):
    """One update of that size leaves no finite logit, even if it is the last update."""
    wild = change(tiny, "training", iterations=iterations, learning_rate=1e30)
    for _ in range(2):
        trained = train(wild, corpus, 0, tmp_path / "run")
        assert (trained.diverged_at, len(trained.trace)) == (diverged_at, diverged_at)
        assert not np.isfinite(trained.curve["dev_loss"].iloc[-1])
    assert (trained.from_checkpoint, trained.resumed_at) == (True, [])


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize(("scale", "diverged_at"), [(2.0**30, None), (2.0**60, 20)])
def test_updates_that_fp16_skips_are_counted_and_twenty_in_a_row_are_a_divergence(
    scale, diverged_at, optimizer, tiny, corpus, tmp_path, monkeypatch
):
    scaler = partial(torch.amp.GradScaler, init_scale=scale)
    monkeypatch.setattr(torch.amp, "GradScaler", scaler)
    half = change(tiny, "training", precision="fp16", iterations=24, optimizer=optimizer)
    trained = train(half, corpus, 0, tmp_path / "run")
    trace, skipped = trained.trace, int(trained.trace["skipped"].sum())
    assert trained.diverged_at == diverged_at
    if diverged_at is None:
        assert 0 < skipped < 20
        assert trace["skipped"][:skipped].all()  # the scale halves until it fits
        assert trace["grad_norm"].isna().tolist() == trace["skipped"].tolist()
        assert trace["grad_norm"][skipped:].max() < 100  # and is divided out again
    else:
        assert (len(trace), skipped) == (20, 19)
    assert (trace["second_moment_max"] == 0).sum() == skipped + (diverged_at is not None)
    assert np.isfinite(trace["loss"]).all()


def test_tf32_is_for_training_alone(tiny, corpus, tmp_path, monkeypatch):
    plain = machine.prepare(tiny)
    monkeypatch.setattr(machine, "prepare", lambda _: plain)  # it refuses tf32 on a CPU
    config = change(tiny, "training", precision="tf32")
    run = Trainer(config, corpus, begun(config, corpus), tmp_path / "run")
    seen = []
    run.model.register_forward_hook(lambda *_: seen.append(torch.get_float32_matmul_precision()))
    run.training_step()
    assert set(seen) == {"high"}
    seen.clear()
    run.evaluate()
    assert set(seen) == {"highest"}


def test_a_schedule_is_constant_or_has_its_closed_form():
    constant = RunConfig.model_validate({"training": {"learning_rate": 0.1}}).training
    assert {get_lr(constant, step) for step in range(300)} == {0.1}
    fields = {"schedule": "warmup_cosine", "iterations": 101, "warmup_iterations": 20}
    fields |= {"learning_rate": 1.0, "final_learning_rate_ratio": 0.2}
    config = RunConfig.model_validate({"training": fields}).training
    assert get_lr(config, 0) == pytest.approx(1 / 20)
    assert get_lr(config, 19) == 1.0
    assert get_lr(config, 20) == 1.0
    assert get_lr(config, 60) == pytest.approx(0.6)  # halfway: mean of 1 and 0.2
    assert get_lr(config, 100) == pytest.approx(0.2)
    stable = config.model_copy(update={"schedule": "warmup_stable_decay", "decay_fraction": 0.4})
    assert [get_lr(stable, step) for step in (0, 19)] == [1 / 20, 1.0]
    assert {get_lr(stable, step) for step in range(20, 60)} == {1.0}  # 40.4 of 101 steps decay
    assert get_lr(stable, 80) == pytest.approx(0.2 + 0.8 * 20 / 40.4)
    assert get_lr(stable, 100) == pytest.approx(0.2)
    linear = stable.model_copy(update={"decay_fraction": 1.0})  # from the end of the warm-up on
    expected = [1.0, 0.6, 0.2]
    assert [get_lr(linear, step) for step in (20, 60, 100)] == pytest.approx(expected)


def test_the_dev_curve_is_of_dev_windows_and_its_cosine_of_two_quarters(tiny, corpus, tmp_path):
    """Every fourth window from the first on, against every fourth from the third on."""
    trained = train(change(tiny, "evaluation", dev_windows=10), corpus, 0, tmp_path / "run")
    starts = [k * (len(corpus.dev) - 17) // 9 for k in range(10)]
    losses, gradients = [], []
    for windows in (range(10), (0, 4, 8), (2, 6)):
        batch = torch.stack([corpus.heldout[starts[k] : starts[k] + 17] for k in windows])
        logits = trained.model(batch[:, :-1])
        losses.append(F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten()))
        parts = torch.autograd.grad(losses[-1], list(trained.model.parameters()))
        gradients.append(torch.cat([part.flatten().double() for part in parts]))
    similarity = F.cosine_similarity(gradients[1], gradients[2], dim=0)
    last = trained.curve.iloc[-1]
    assert last["dev_loss"] == pytest.approx(losses[0].item(), rel=1e-5)
    assert last["gradient_cosine"] == pytest.approx(similarity.item(), abs=1e-6)


def test_embedding_angle_is_of_the_step_before_the_evaluation(tiny, corpus, tmp_path):
    config = change(change(tiny, "evaluation", interval=6), "training", schedule="constant")
    embeddings = []
    for steps in (9, 10):
        so_long = change(config, "training", iterations=steps)
        trained = train(so_long, corpus, 0, tmp_path / f"{steps}")
        embeddings.append(trained.model.transformer.wte.weight.detach().double().numpy())
    before, after = embeddings
    angles = [np.arccos(1 - cosine(*rows)) for rows in zip(before, after, strict=True)]
    lengths = np.linalg.norm(after - before, axis=1) / np.linalg.norm(before, axis=1)
    curve = trained.curve.set_index("step")
    assert curve.index.tolist() == [0, 6, 10]
    assert np.isnan(curve.loc[0, "embedding_angle"])
    assert curve.loc[10, "embedding_angle"] == pytest.approx(np.mean(angles), rel=1e-6)
    assert curve.loc[10, "embedding_update"] == pytest.approx(np.mean(lengths), rel=1e-9)
