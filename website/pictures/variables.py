"""Mirrored and sync-on-read variables while a step runs."""

from website.pictures.svg import Picture

COLUMNS = ((190, 150, "before"), (350, 170, "in the step"), (530, 180, "after"))


def draw() -> Picture:
    """Two copies of each kind of variable, before, in and after a step."""
    picture = Picture(720, 392, "Mirrored and sync-on-read variables before, in and after a step")
    for x, width, title in COLUMNS:
        picture.text(x + width / 2, 20, title, bold=True)
    picture.text(10, 56, "mirrored", anchor="start", bold=True)
    picture.text(10, 76, "aggregation=SUM", anchor="start", code=True, size=12)
    picture.text(10, 96, "copies always equal", anchor="start", quiet=True)
    for replica, (y, colour, delta) in enumerate([(36, "one", 2), (106, "two", 3)]):
        picture.text(182, y + 26, f"replica {replica}", anchor="end", quiet=True, size=11)
        picture.box(190, y, 150, 42, "w = 10", colour=colour)
        picture.box(350, y, 170, 42, f"w.assign_add({delta})", colour=colour)
        picture.arrow((520, y + 21), (546, 85 + 10 * replica))
        picture.arrow((650, 85 + 10 * replica), (668, y + 21 + 10 - 20 * replica))
    picture.box(546, 72, 104, 38, "2 + 3 = 5", colour="shared")
    picture.text(668, 60, "w = 15", size=12)
    picture.text(668, 132, "w = 15", size=12)
    picture.text(190, 172, "The replicas meet at the assignment; each copy adds the sum.",
                 anchor="start", quiet=True)  # fmt: skip
    picture.text(10, 226, "sync on read", anchor="start", bold=True)
    picture.text(10, 246, "aggregation=SUM", anchor="start", code=True, size=12)
    picture.text(10, 266, "copies differ", anchor="start", quiet=True)
    for replica, (y, colour, delta) in enumerate([(206, "one", 2), (276, "two", 3)]):
        picture.text(182, y + 26, f"replica {replica}", anchor="end", quiet=True, size=11)
        picture.box(190, y, 150, 42, "count = 0", colour=colour)
        picture.box(350, y, 170, 42, f"count.assign_add({delta})", colour=colour)
        picture.box(546, y, 84, 42, f"count = {delta}", colour=colour)
        picture.arrow((520, y + 21), (546, y + 21))
        picture.arrow((630, y + 21), (662, 258 + 10 * replica))
    picture.text(688, 267, "read: 5", size=12)
    picture.text(190, 342, "Nobody waits in the step. A read outside of it adds the copies.",
                 anchor="start", quiet=True)  # fmt: skip
    picture.text(190, 374, "Weights are mirrored, counters and metrics are sync on read.",
                 anchor="start")  # fmt: skip
    return picture
