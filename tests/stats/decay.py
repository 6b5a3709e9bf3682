"""A plan about weight decay, and runs that answer it; nothing here is about a layer."""

from tests.stats.samples import design, noise, plan_of, runs_of

DECAY = "training.weight_decay"
SLOWER = {
    "says": "Weight decay of 0.3 raises the loss by more than 0.02 nats.",
    "test": ["weight_decay=0.3", "weight_decay=0", "loss"],
    "direction": "greater",
    "beyond": 0.02,
    "if_supported": "Leave it off.",
    "if_undecided": "Ask again.",
}
SAME = {
    "says": "0.1 and 0 are equal within 0.02 nats.",
    "test": ["weight_decay=0.1", "weight_decay=0", "loss"],
    "equivalent_within": 0.02,
}


def decay_plan(**content):
    usual = {"hypotheses": {"slower": SLOWER, "same": SAME}}
    return plan_of(**usual | {"smallest_effect_of_interest": {"loss": 0.02}} | content)


def decay_study(n=6):
    return design(name="decay", factors={DECAY: [0.0, 0.1, 0.3]}, seeds=list(range(n)))


def decay_runs(shift=0.05, spread=0.005, n=6):
    """Return runs in which weight decay of 0.3 adds `shift` to the loss, with noise per arm and
    seed."""

    def loss(arm, seed):
        own = {0.0: 0.0, 0.1: 0.001, 0.3: shift}[arm.levels[DECAY]]
        return 2.4 + own + 0.02 * noise(seed) + spread * noise(seed, len(arm.id), 1)

    return runs_of(decay_study(n), loss)


def deltas(runs, level):
    losses = runs.pivot(index="seed", columns="arm", values="loss")
    return losses[f"weight_decay={level}"] - losses["weight_decay=0"]
