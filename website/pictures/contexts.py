"""Which context code is in, and what it calls there."""

from website.pictures.svg import Picture


def draw() -> Picture:
    """Cross-replica context around two replicas, with the ways in and out of them."""
    picture = Picture(720, 400, "Replica context and cross-replica context, and the ways between")
    picture.box(10, 10, 700, 380, colour="plain")
    picture.text(26, 36, "with strategy.scope():", anchor="start", code=True)
    picture.text(694, 36, "cross-replica context", anchor="end", bold=True)
    picture.text(26, 60, "creates variables; reduce, gather, distribute_batch", anchor="start",
                 quiet=True)  # fmt: skip
    for replica, (x, colour) in enumerate([(30, "one"), (375, "two")]):
        picture.box(x, 104, 315, 186, colour=colour)
        picture.text(x + 12, 128, f"fn(...) of replica {replica}", anchor="start", code=True)
        picture.text(x + 303, 128, "replica context", anchor="end", bold=True)
        picture.text(x + 12, 152, "reads its copy, computes on its share", anchor="start",
                     quiet=True)  # fmt: skip
        picture.box(x + 20, 236, 275, 34, "ctx.merge_call(merge_fn)")
        outside = x + 30 + 190 * replica
        picture.arrow((outside, 78), (outside, 104))
        picture.arrow((x + 120, 270), (x + 120, 324))
        picture.arrow((x + 200, 324), (x + 200, 270))
        picture.arrow((outside + 65, 104), (outside + 65, 78))
    picture.box(130, 170, 460, 44, "ctx.all_reduce(SUM, x)", "all replicas meet; each has the sum",
                colour="shared")  # fmt: skip
    picture.text(360, 88, "strategy.run(fn, args)        ->        one PerReplica", code=True)
    picture.box(130, 324, 460, 52, "merge_fn(strategy, ...)  once for all replicas",
                "cross-replica context again", colour="shared")  # fmt: skip
    return picture
