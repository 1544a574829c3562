"""The figures of the last benchmark run, read from ``benchmarks/results``."""

import json
import pathlib
import statistics

from website.pictures.svg import Picture

RESULTS = pathlib.Path(__file__).parents[2] / "benchmarks" / "results"
LIMIT = "hand-written"
NAMES = {
    "replicax": "Replicax",
    "pmap": "pmap",
    "auto-sharded": "auto-sharded jit",
    "nnx": "Flax NNX, sharded",
    "keras": "Keras, DataParallel",
    "tensorflow": "TensorFlow, own loop",
    "tensorflow keras": "TensorFlow, Keras fit",
    "ddp": "torch DDP",
}
CASES = (
    ("W2", "adam", 4, "MLP on 4 CPU replicas"),
    ("W3", "adam", 2, "transformer on 2 CPU replicas"),
)
LARGEST = 5.0


def last_run() -> pathlib.Path:
    """The folder of the newest results."""
    return max(path for path in RESULTS.iterdir() if (path / "measurements.jsonl").exists())


def ratios(workload: str, variant: str, replicas: int) -> dict[str, float]:
    """How many times the hand-written step each peer takes: the median over the rounds."""
    rows = {}
    for line in (last_run() / "measurements.jsonl").read_text("utf-8").splitlines():
        row = json.loads(line)
        if (row["workload"], row["variant"], row["replicas"]) == (workload, variant, replicas):
            rows[row["peer"]] = row["rounds"]["wall_us"]
    limit = rows.pop(LIMIT)
    return {
        peer: statistics.median(a / b for a, b in zip(times, limit, strict=False))
        for peer, times in rows.items()
    }


def draw() -> Picture:
    """A bar for each peer, for both models."""
    found = [(title, ratios(*case)) for *case, title in CASES]
    rows = sum(len(peers) for _, peers in found)
    picture = Picture(
        720, 76 + 24 * rows + 44 * len(found), "Time of a step beside hand-written JAX"
    )
    y, left, unit = 10, 190, 100
    for title, peers in found:
        picture.text(10, y + 18, title, anchor="start", bold=True)
        y += 30
        top = y
        for peer in sorted(peers, key=lambda each: peers[each]):
            ratio = peers[peer]
            width = min(ratio, LARGEST) * unit
            ours = peer == "replicax"
            picture.text(left - 10, y + 14, NAMES[peer], anchor="end", bold=ours)
            picture.box(left, y, width, 19, colour="one" if ours else "plain")
            picture.text(
                left + max(width, unit) + 8,
                y + 14,
                f"{ratio:.2f}",
                anchor="start",
                size=12,
                bold=ours,
            )
            y += 24
        picture.line((left + unit, top - 6), (left + unit, y))
        y += 14
    picture.text(left + unit, y + 4, "1.00 = the same step by hand in JAX: less is faster", size=12,
                 anchor="start", quiet=True)  # fmt: skip
    machine = json.loads((last_run() / "machine.json").read_text("utf-8"))
    said = (
        f"{machine['date']}, {machine['processor']}, {machine['cores']} cores, JAX {machine['jax']}"
    )
    picture.text(left + unit, y + 24, f"{said}, TensorFlow {machine['tensorflow-cpu']}", size=12,
                 anchor="start", quiet=True)  # fmt: skip
    return picture
