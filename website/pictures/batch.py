"""How batches are divided among four replicas of two workers, by the code that divides them."""

from replicax.input.splitting import BatchSplit
from website.pictures.step import COLOURS
from website.pictures.svg import Picture

CELL = 50


def draw() -> Picture:
    """A full batch of 10 and a last one of 7, example by example."""
    picture = Picture(720, 330, "A batch of 10 and a last batch of 7 on 4 replicas and 2 workers")
    full = BatchSplit.filling(10, full_size=10, num_replicas=4)
    last = BatchSplit.filling(7, full_size=10, num_replicas=4)
    _row(picture, 20, "a batch of 10", full)
    _row(picture, 180, "the last one, of 7", last)
    return picture


def _row(picture: Picture, y: int, title: str, split: BatchSplit) -> None:
    left = 180
    picture.text(10, y + 31, title, anchor="start", bold=True)
    example = 0
    for replica, size in enumerate(split.sizes):
        for _ in range(size):
            picture.box(left + example * CELL, y + 8, CELL - 4, 36, str(example),
                        colour=COLOURS[replica])  # fmt: skip
            example += 1
    for worker in range(2):
        x = 10 + 356 * worker
        picture.box(x, y + 64, 344, 66, f"worker {worker}", dashed=True, top=True, size=12)
        for replica in (2 * worker, 2 * worker + 1):
            size = split.sizes[replica]
            text = f"replica {replica}: {size}" if size else f"replica {replica}: none"
            picture.box(
                x + 12 + 164 * (replica % 2), y + 90, 156, 32, text, colour=COLOURS[replica]
            )
