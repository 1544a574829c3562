"""The way of a step through the engine; the names are those of the modules."""

from website.pictures.svg import Picture


def draw() -> Picture:
    """From `strategy.run` down to the devices and back."""
    picture = Picture(720, 470, "The way of a step through the engine")
    picture.box(200, 10, 320, 36, "strategy.run(step, args)", colour="shared")
    picture.arrow((360, 46), (360, 66))
    picture.box(200, 66, 320, 36, "strategies/base: the last call again?")
    picture.text(372, 122, "no", anchor="start", quiet=True, size=12)
    picture.text(528, 80, "yes", anchor="start", quiet=True, size=12)
    picture.arrow((520, 86), (620, 86), (620, 300))
    picture.arrow((360, 102), (360, 130))
    picture.box(200, 130, 320, 36, "engine/run: a function, or plain Python?")
    picture.arrow((260, 166), (260, 184), (120, 184), (120, 204))
    picture.arrow((400, 166), (400, 204))
    picture.text(128, 180, "compiled", anchor="start", quiet=True, size=12)
    picture.text(408, 188, "eager", anchor="start", quiet=True, size=12)
    picture.box(10, 204, 240, 52, "functions/call_site", "types, captures, settings", colour="one")
    picture.box(280, 204, 240, 52, "eager/run", "a thread a replica, in turn", colour="two")
    picture.arrow((70, 256), (70, 286))
    picture.text(78, 276, "first call", anchor="start", quiet=True, size=12)
    picture.arrow((225, 256), (225, 386))
    picture.text(219, 374, "known", anchor="end", quiet=True, size=12)
    inner = ("functions/program", "trace/spmd: one trace", "analysis: no drift")
    picture.box(10, 286, 205, 70, *inner, colour="one")
    picture.arrow((70, 356), (70, 386))
    picture.box(280, 286, 240, 70, "eager/peers", "all_reduce, merge_call:", "the threads meet",
                colour="two")  # fmt: skip
    picture.arrow((400, 256), (400, 286))
    picture.box(540, 300, 170, 52, "functions/repeating", "compare, launch", colour="three")
    picture.box(10, 386, 420, 34, "functions/launching: buffers in, launch, buffers kept",
                colour="one")  # fmt: skip
    picture.arrow((460, 356), (460, 436))
    picture.arrow((620, 352), (620, 436))
    picture.arrow((120, 420), (120, 436))
    picture.box(10, 436, 700, 28, "PerReplica, Mirrored, arrays", colour="shared")
    return picture
