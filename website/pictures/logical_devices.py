"""Replicas of several logical devices, and the shards of a weight and of a batch on them."""

from website.pictures.svg import Picture


def draw() -> Picture:
    """Two replicas of four devices: the batch is divided between them, a weight inside each."""
    picture = Picture(720, 300, "Eight devices as two replicas of four logical devices")
    for replica, (x, colour) in enumerate([(10, "one"), (370, "two")]):
        picture.box(x, 10, 340, 236, dashed=True)
        picture.text(x + 14, 34, f"replica {replica}", anchor="start", bold=True)
        picture.text(x + 326, 34, f"its half of the batch: x[{4 * replica}:{4 * replica + 4}]",
                     anchor="end", quiet=True)  # fmt: skip
        for device in range(4):
            left, top = x + 14 + 158 * (device % 2), 48 + 98 * (device // 2)
            picture.box(left, top, 152, 90)
            picture.text(left + 76, top + 20, f"CPU:{4 * replica + device}", code=True)
            picture.box(left + 12, top + 32, 128, 46, f"w[:, {2 * device}:{2 * device + 2}]",
                        "a quarter of w", colour=colour, size=12)  # fmt: skip
    picture.text(10, 270, 'MirroredStrategy(logical_devices=4, partition_rules={"w": [1, 4]})',
                 anchor="start", code=True)  # fmt: skip
    picture.text(10, 290, "Both replicas have all of w; no device has more than a quarter of it.",
                 anchor="start", quiet=True)  # fmt: skip
    return picture
