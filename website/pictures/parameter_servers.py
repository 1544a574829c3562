"""A coordinator, its workers, and the servers that hold the variables."""

from website.pictures.svg import Colour, Picture

WORKERS: tuple[Colour, ...] = ("one", "two", "three")
ROWS = ("rows 0 to 199", "rows 200 to 399")


def draw() -> Picture:
    """Closures go down to the workers, which read from servers and send updates to them."""
    picture = Picture(720, 390, "A coordinator, three workers and two parameter servers")
    picture.text(10, 37, "coordinator", anchor="start", bold=True)
    picture.text(10, 171, "workers", anchor="start", bold=True)
    picture.text(10, 320, "servers", anchor="start", bold=True)
    left, width, gap = 120, 186, 16
    right = left + 3 * width + 2 * gap
    picture.box(left, 10, right - left, 44, "schedule(step) adds to a queue, join() waits for all",
                colour="shared")  # fmt: skip
    for worker, colour in enumerate(WORKERS):
        x = left + worker * (width + gap)
        picture.arrow((x + width / 2, 54), (x + width / 2, 138))
        picture.box(x, 138, width, 58, f"worker {worker}", "a batch of its own", colour=colour)
        picture.arrow((x + 70, 280), (x + 70, 196))
        picture.arrow((x + 116, 196), (x + 116, 280))
        picture.text(x + width / 2 + 8, 100, "next closure", anchor="start", quiet=True, size=12)
        picture.text(x + 62, 246, "reads rows", anchor="end", quiet=True, size=12)
        picture.text(x + 124, 246, "updates", anchor="start", quiet=True, size=12)
    picture.box(left, 280, right - left, 70, dashed=True)
    wide = (right - left - 3 * 12) / 2
    for server, rows in enumerate(ROWS):
        x = left + 12 + server * (wide + 12)
        picture.box(x, 292, wide, 46, f"server {server}: {rows} of the table", "and their slots")
    picture.text(left, 378, "Workers do not wait: others may change what one has read.",
                 anchor="start", quiet=True)  # fmt: skip
    return picture
