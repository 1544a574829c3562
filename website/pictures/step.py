"""One training step on four replicas."""

from website.pictures.svg import Colour, Picture

COLOURS: tuple[Colour, ...] = ("one", "two", "three", "four")


def draw() -> Picture:
    """The batch is divided, four copies compute, their sums meet, every copy gets the update."""
    picture = Picture(720, 330, "A training step on four replicas")
    picture.text(10, 30, "batch", anchor="start", bold=True)
    picture.text(10, 92, "run(fn)", anchor="start", bold=True, code=True)
    picture.text(10, 190, "all_reduce", anchor="start", bold=True, code=True)
    picture.text(10, 282, "variable w", anchor="start", bold=True)
    left, width, gap = 120, 135, 15
    picture.box(left, 258, 4 * width + 3 * gap, 66, dashed=True)
    for replica, colour in enumerate(COLOURS):
        x = left + replica * (width + gap)
        middle = x + width / 2
        picture.box(x, 10, width, 32, f"examples {3 * replica}-{3 * replica + 2}", colour=colour)
        picture.arrow((middle, 42), (middle, 62))
        picture.box(
            x, 62, width, 66, f"replica {replica}", "loss, gradient", "of its examples",
            colour=colour,
        )  # fmt: skip
        picture.arrow((middle, 128), (middle, 164))
        picture.arrow((middle, 206), (middle, 266))
        picture.box(x + 8, 266, width - 16, 34, f"copy {replica}", colour="shared")
    picture.box(
        left, 164, 4 * width + 3 * gap, 42, "one sum of the four gradients, the same everywhere",
        colour="shared",
    )  # fmt: skip
    picture.text(left + 292, 317, "every copy gets the same update, so all stay equal", quiet=True)
    return picture
